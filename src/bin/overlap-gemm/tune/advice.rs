//! What a table would choose for a problem that it has, had that not been measured.
//!
//! What belongs here: the question, and the answer as ranks tell each other. Invariant: what is advised can be carried
//! out with the kernels that were compiled, and has not been measured in all rounds.

use overlap_gemm::cuda::Kernel;
use overlap_gemm::plan::Problem;
use overlap_gemm::tune::{
    Anything, Asked, Entry, Family, Fits, Gathering, Measured, Multiplying, Order, Shape, Tuning,
};
use serde::{Deserialize, Serialize};

/// What would be chosen, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub measured: Vec<Measured>,
    pub gathering: Gathering,
    pub multiplying: Multiplying,
}

impl Advice {
    /// Of `table`. `None`: it does not have the problem, or how good the rest of it is there is known.
    pub fn of(
        table: &Tuning,
        gpu: &str,
        sms: u32,
        problem: &Problem,
        kernels: &[Kernel],
    ) -> Option<Advice> {
        let (family, shape) = (Family::of(problem, gpu), Shape::of(problem));
        let is_it = |entry: &&Entry| entry.family == family && entry.shape == shape;
        let entry = table.entries().iter().find(is_it)?;
        let rest = table.without(problem, gpu);
        let answer = rest.look_up(&Asked { gpu, sms, problem }, &Compiled(kernels))?;
        let (gathering, multiplying) = (answer.gathering, answer.multiplying?);
        let is_it =
            |one: &&Measured| (&one.gathering, &one.multiplying) == (&gathering, &multiplying);
        let is_known = entry.measured.iter().find(is_it);
        if is_known.is_some_and(|one| one.is_finalist(&entry.measured)) {
            return None;
        }
        Some(Advice { measured: entry.measured.clone(), gathering, multiplying })
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

    fn advice(table: &Tuning, problem: &Problem, kernels: &[Kernel]) -> Option<Advice> {
        Advice::of(table, GPU, Machine::h200().sms, problem, kernels)
    }

    #[test]
    fn what_was_measured_as_thoroughly_as_anything_is_not_advised_again() {
        let problem = Problem::builder(2048, 3584, 8192).ranks(2).build().unwrap();
        let (family, shape) = (Family::of(&problem, GPU), Shape::of(&problem));
        let all = Tuning::shipped().entries();
        let entry = all.iter().find(|one| one.family == family && one.shape == shape).unwrap();
        let asked = Asked { gpu: GPU, sms: Machine::h200().sms, problem: &problem };
        let rest = Tuning::shipped().without(&problem, GPU);
        let answer = rest.look_up(&asked, &Anything).unwrap();
        let (gathering, multiplying) = (answer.gathering, answer.multiplying.unwrap());
        let is_it = |one: &Measured| (one.gathering, &one.multiplying) == (gathering, &multiplying);
        let others: Vec<_> = entry.measured.iter().filter(|one| !is_it(one)).cloned().collect();
        let with = |rounds: Option<u32>| {
            let mut measured = others.clone();
            measured.extend(rounds.map(|rounds| {
                let time = Some(Time::new(1e3, 0.0, rounds));
                let multiplying = multiplying.clone();
                let (graph, plain, by_model, untuned) = (time, time, false, false);
                Measured { gathering, multiplying, by_model, untuned, graph, plain }
            }));
            let mut table = rest.clone();
            table.add(Tuning::of_entries(vec![Entry { measured, ..entry.clone() }]));
            advice(&table, &problem, all_kernels())
        };
        // Never measured, or dropped early.
        for rounds in [None, Some(3)] {
            let Advice { measured, gathering: how, multiplying: by } = with(rounds).unwrap();
            assert_eq!((how, &by), (gathering, &multiplying));
            assert_eq!(measured.len(), others.len() + usize::from(rounds.is_some()));
        }
        assert_eq!(with(Some(7)), None);
    }

    #[test]
    fn what_is_not_in_the_table_or_not_compiled_is_not_advised() {
        let other = Problem::builder(2049, 3584, 8192).ranks(2).build().unwrap();
        assert_eq!(advice(Tuning::shipped(), &other, all_kernels()), None);
        let sms = Machine::h200().sms;
        for entry in Tuning::shipped().entries().iter().filter(|one| one.family.ranks == 2) {
            let problem = entry.problem().unwrap();
            assert_eq!(advice(Tuning::shipped(), &problem, &[]), None);
            assert_eq!(
                Advice::of(Tuning::shipped(), "another", sms, &problem, all_kernels()),
                None
            );
            let few = &all_kernels()[..8];
            if let Some(advice) = advice(Tuning::shipped(), &problem, few) {
                assert!(few.iter().any(|kernel| kernel.name == advice.multiplying.kernel));
            }
        }
    }
}
