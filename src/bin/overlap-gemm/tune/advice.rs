//! What is still to be measured of a problem that a table has: whatever would be chosen for it, had it not been measured.
//!
//! What belongs here: the questions, and the answers as ranks tell each other. Invariant: what is advised can be carried
//! out with the kernels that were compiled, and has not been measured in all rounds.

use overlap_gemm::plan::Problem;
use overlap_gemm::predict::{Kernel, Machine, Setup, Strategy};
use overlap_gemm::tune::{
    Anything, Asked, Entry, Family, Fits, Gathering, Measured, Multiplying, Order, Shape, Tuning,
};
use serde::{Deserialize, Serialize};

/// One way to carry out a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advised {
    pub gathering: Gathering,
    pub multiplying: Multiplying,
}

/// What would be chosen, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub measured: Vec<Measured>,
    /// At least one.
    pub advised: Vec<Advised>,
}

impl Advice {
    /// Of `table`, but for what is said to be out. `None`: it does not have the problem, or how good all that would be chosen
    /// for it is known: by the rest of the table, without a table, and by the rules for a fused step.
    pub fn of(
        table: &Tuning,
        gpu: &str,
        sms: u32,
        problem: &Problem,
        kernels: &[Kernel],
        is_out: &dyn Fn(&Advised) -> bool,
    ) -> Option<Advice> {
        let (family, shape) = (Family::of(problem, gpu), Shape::of(problem));
        let is_it = |entry: &&Entry| entry.family == family && entry.shape == shape;
        let Entry { measured, .. } = table.entries().iter().find(is_it)?;
        let (rest, none, fits) = (table.without(problem, gpu), Tuning::none(), Compiled(kernels));
        let ask = |table: &Tuning| {
            let answer = table.look_up(&Asked { gpu, sms, problem }, &fits)?;
            let (gathering, multiplying) = (answer.gathering, answer.multiplying?);
            Some(Advised { gathering, multiplying })
        };
        let rules = || {
            let machine = Machine::h200().with_sms(sms);
            let usual = Setup::of_kernels(kernels, &machine, problem, Strategy::Fused).ok()?;
            let (gathering, multiplying) =
                (Gathering::of_setup(&usual)?, Multiplying::of_setup(&usual));
            Some(Advised { gathering, multiplying })
        };
        let is_known = |new: &Advised| {
            let same = measured.iter().find(|one| new.is(one));
            same.is_some_and(|one| one.is_finalist(measured))
        };
        let mut advised: Vec<Advised> = Vec::new();
        for new in [ask(&rest), ask(&none), rules()].into_iter().flatten() {
            if !is_known(&new) && !is_out(&new) && !advised.contains(&new) {
                advised.push(new);
            }
        }
        (!advised.is_empty()).then(|| Advice { measured: measured.clone(), advised })
    }
}

impl Advised {
    /// Whether that is what was measured.
    fn is(&self, one: &Measured) -> bool {
        (&self.gathering, &self.multiplying) == (&one.gathering, &one.multiplying)
    }
}

/// Whatever these kernels can do, and is what is usually asked for.
struct Compiled<'a>(&'a [Kernel]);

impl Fits for Compiled<'_> {
    fn kernels(&self) -> &[Kernel] {
        self.0
    }

    fn gathering(&self, gathering: &Gathering) -> bool {
        Anything.gathering(gathering)
    }

    fn multiplying(&self, order: Order, multiplying: &Multiplying) -> bool {
        self.0.iter().any(|kernel| kernel.name == multiplying.kernel)
            && Anything.multiplying(order, multiplying)
    }
}

#[cfg(test)]
mod tests {
    use overlap_gemm::predict::{Machine, all_kernels};
    use overlap_gemm::tune::Time;

    use super::*;

    const GPU: &str = "NVIDIA H200";

    fn advice(table: &Tuning, problem: &Problem, kernels: &[Kernel]) -> Vec<Advised> {
        let advice = Advice::of(table, GPU, Machine::h200().sms, problem, kernels, &|_| false);
        advice.map(|advice| advice.advised).unwrap_or_default()
    }

    #[test]
    fn what_was_measured_as_thoroughly_as_anything_is_not_advised_again() {
        let problem = Problem::builder(2048, 3584, 8192).ranks(2).build().unwrap();
        let (family, shape) = (Family::of(&problem, GPU), Shape::of(&problem));
        let all = Tuning::shipped().entries();
        let entry = all.iter().find(|one| one.family == family && one.shape == shape).unwrap();
        let rest = Tuning::shipped().without(&problem, GPU);
        let with = |measured: Vec<Measured>| {
            let mut table = rest.clone();
            table.add(Tuning::of_entries(vec![Entry { measured, ..entry.clone() }]));
            table
        };
        // All that would be chosen is not measured.
        let time = |rounds| Some(Time::new(1e3, 0.0, rounds));
        let mut of = vec![entry.measured[0].clone()];
        of[0].multiplying.kernel = "another".into();
        let all = advice(&with(of.clone()), &problem, all_kernels());
        assert!((1..=3).contains(&all.len()), "{all:?}");
        for new in &all {
            let measured = |rounds| {
                let Advised { gathering, multiplying } = new.clone();
                let (graph, plain, by_model, untuned) = (time(rounds), time(rounds), false, false);
                Measured { gathering, multiplying, by_model, untuned, graph, plain }
            };
            let now = |rounds| {
                let table = with([&of[..], &[measured(rounds)]].concat());
                advice(&table, &problem, all_kernels())
            };
            // Dropped early, and not.
            assert_eq!(now(3), all);
            let left: Vec<_> = all.iter().filter(|one| *one != new).cloned().collect();
            assert_eq!(now(7), left);
            let sms = Machine::h200().sms;
            let is_out = |one: &Advised| one == new;
            let advice = Advice::of(&with(of.clone()), GPU, sms, &problem, all_kernels(), &is_out);
            assert_eq!(advice.map(|advice| advice.advised).unwrap_or_default(), left);
        }
    }

    #[test]
    fn whatever_would_be_chosen_is_advised() {
        let sms = Machine::h200().sms;
        let is_in = |all: &[Advised], gathering, multiplying: &Multiplying| {
            all.iter().any(|one| (one.gathering, &one.multiplying) == (gathering, multiplying))
        };
        // How often what is chosen without a table, and what the rules plan, is no other's answer.
        let mut alone = [0; 2];
        for entry in Tuning::shipped().entries() {
            let problem = entry.problem().unwrap();
            // Nothing that would be chosen was measured.
            let mut one = entry.measured[0].clone();
            one.multiplying.kernel = "another".into();
            let mut table = Tuning::shipped().without(&problem, GPU);
            let asked = Asked { gpu: GPU, sms, problem: &problem };
            let [by_rest, by_none] = [&table, &Tuning::none()].map(|table| {
                let answer = table.look_up(&asked, &Anything).unwrap();
                (answer.gathering, answer.multiplying.unwrap())
            });
            let usual = Setup::usual(&Machine::h200(), &problem, Strategy::Fused).unwrap();
            let usual = (Gathering::of_setup(&usual).unwrap(), Multiplying::of_setup(&usual));
            table.add(Tuning::of_entries(vec![Entry { measured: vec![one], ..entry.clone() }]));
            let all = advice(&table, &problem, all_kernels());
            for (gathering, multiplying) in [&by_rest, &by_none, &usual] {
                assert!(is_in(&all, *gathering, multiplying), "{problem}: {all:?}");
            }
            alone[0] += usize::from(by_none != by_rest && by_none != usual);
            alone[1] += usize::from(usual != by_rest && usual != by_none);
        }
        assert!(alone.iter().all(|count| *count > 0), "{alone:?}");
    }

    #[test]
    fn what_is_not_in_the_table_or_not_compiled_is_not_advised() {
        let other = Problem::builder(2049, 3584, 8192).ranks(2).build().unwrap();
        assert_eq!(advice(Tuning::shipped(), &other, all_kernels()), []);
        let sms = Machine::h200().sms;
        for entry in Tuning::shipped().entries().iter().filter(|one| one.family.ranks == 2) {
            let problem = entry.problem().unwrap();
            assert_eq!(advice(Tuning::shipped(), &problem, &[]), []);
            let another =
                Advice::of(Tuning::shipped(), "another", sms, &problem, all_kernels(), &|_| false);
            assert_eq!(another, None);
            let few = &all_kernels()[..8];
            for new in advice(Tuning::shipped(), &problem, few) {
                assert!(few.iter().any(|kernel| kernel.name == new.multiplying.kernel));
            }
        }
    }
}
