//! `plan --check`: runs the plan on the library's model in many random orders.
//!
//! Invariant: the orders follow from the seed alone, so the same command finds a violation again. The work is estimated
//! first, and hours of it are refused.

use std::fmt;

use overlap_gemm::plan::model::{self, Schedules, Violation};
use overlap_gemm::plan::{MAX_STREAMS, Operation, Plan};
use overlap_gemm::random::Random;
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;

/// Enough epochs for every buffer to be used again twice.
const EPOCHS: u32 = 5;

/// The most looks at a thread (is it enabled?) that a check may need: minutes.
const MOST_LOOKS: u128 = 30_000_000_000;

/// What the check found.
#[derive(Serialize)]
pub struct Verdict {
    orders: u32,
    epochs: u32,
    seed: u64,
    violation: Option<String>,
    #[serde(skip)]
    operation: Operation,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { orders, epochs, seed, violation, operation } = self;
        write!(f, "Check: {orders} random orders of {epochs} epochs from seed {seed}: ")?;
        match violation {
            None => {
                let arrives = match operation {
                    Operation::GemmReduceScatter => "every rank's sums reach their owner once",
                    Operation::GemmAllReduce => "every rank's sums reach every rank once",
                    _ => "every chunk reaches every rank once",
                };
                writeln!(
                    f,
                    "no deadlock, no read too early, no overwrite;\n  {arrives}, in the order of need"
                )
            }
            Some(violation) => writeln!(f, "{violation}"),
        }
    }
}

impl Verdict {
    /// An error if something was found.
    pub fn into_result(self) -> Result<(), Failure> {
        let broken = |violation| format!("the plan breaks its protocol: {violation}");
        self.violation.map_or(Ok(()), |violation| Err(Failure::CheckFailed(broken(violation))))
    }
}

/// Checks `plan` in `orders` random orders.
pub fn run(plan: &Plan, orders: u32, seed: u64, output: &Output) -> Result<Verdict, Failure> {
    refuse_too_much(plan, orders)?;
    let interrupt = Interrupt::install()?;
    let schedules = Schedules::new(plan);
    let bar = progress::bar(orders.into(), "checking orders", output);
    let mut found = schedules.check_order();
    for order in 0..u64::from(orders) {
        interrupt.check()?;
        if found.is_err() {
            break;
        }
        found = run_order(&schedules, seed.wrapping_add(order));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let violation = found.err().map(|violation| violation.to_string());
    Ok(Verdict { orders, epochs: EPOCHS, seed, violation, operation: plan.options().operation })
}

fn run_order(schedules: &Schedules, seed: u64) -> Result<(), Violation> {
    let mut random = Random::new(seed);
    model::run(schedules, EPOCHS, |enabled| (random.next_u64() % enabled as u64) as usize)
}

fn refuse_too_much(plan: &Plan, orders: u32) -> Result<(), Failure> {
    let (ranks, chunks) = (plan.problem().ranks(), plan.chunks().len());
    let (all, cut) = (u128::from(ranks), u128::from(chunks));
    // Moves and their words, a wait and a read of each chunk, and words between lanes: of all ranks, at most.
    let steps = cut * (1 + 4 * all) + all * (2 * all + 4 + 3 * u128::from(MAX_STREAMS));
    // The model looks at every lane of every rank before every step.
    let looks = steps * u128::from(EPOCHS) * plan.schedule(0).lanes().len() as u128 * all;
    match u128::from(orders) * looks <= MOST_LOOKS {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{orders} orders of {ranks} ranks and {chunks} chunks would take too long: check fewer orders, or fewer ranks or \
             chunks, which the protocol treats no differently"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overlap_gemm::plan::{Lane, PlanOptions, Problem, Step};

    fn schedules() -> Schedules {
        let problem = Problem::builder(1024, 128, 64).ranks(4).build().unwrap();
        Schedules::new(&Plan::new(&problem, PlanOptions::default()).unwrap())
    }

    #[test]
    fn a_broken_schedule_is_found_and_fails_the_command() {
        let mut broken = schedules();
        let steps = &mut broken.of_ranks[0].steps;
        let sent = |(lane, step): &(Lane, Step)| {
            matches!((lane, step), (Lane::Push(_), Step::Move { .. }))
        };
        let at = steps.iter().position(sent).unwrap();
        steps.swap(at, at + 1); // the signal before its data
        let violation = (0..100).find_map(|seed| run_order(&broken, seed).err()).unwrap();
        let violation = Some(violation.to_string());
        let operation = Operation::default();
        let verdict = Verdict { orders: 1, epochs: 5, seed: 0, violation, operation };
        assert!(verdict.to_string().contains("before it has been written"), "{verdict}");
        assert!(matches!(verdict.into_result(), Err(Failure::CheckFailed(_))));
    }

    #[test]
    fn the_same_seed_finds_the_same() {
        let mut broken = schedules();
        broken.of_ranks[1].steps.remove(0);
        assert_eq!(run_order(&broken, 7), run_order(&broken, 7));
    }
}
