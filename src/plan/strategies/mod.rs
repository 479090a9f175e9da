//! Strategies: functions that build schedules.
//!
//! What belongs here: how a plan becomes a [`Schedule`]. Two parts meet: `push` brings rows to the ranks, one function for
//! each engine; the strategies multiply, a file each. A new strategy is a function here; it touches no executor unless
//! it needs a new kind of step. Invariant: nothing outside of here chooses an order.

mod fused;
mod pipelined;
mod push;
mod sequential;

pub(super) use push::peer_in_round;

use super::schedule::{Lane, Schedule, Step};
use super::way::{Operation, Strategy};
use super::whole::Plan;

/// What `rank` does in one step of `plan`.
pub(super) fn schedule(plan: &Plan, rank: u32) -> Schedule {
    let mut steps = Vec::new();
    let options = plan.options();
    if options.operation != Operation::Gemm {
        push::push(plan, rank, &mut steps);
    }
    let multiply = match (options.operation, options.strategy) {
        (Operation::Gemm, _) => vec![sequential::multiply_all(plan, rank)],
        (Operation::AllGather, _) => sequential::await_all(plan),
        (Operation::AllGatherGemm, Strategy::Fused) => fused::steps(plan, rank),
        (Operation::AllGatherGemm, Strategy::Pipelined) => pipelined::steps(plan, rank),
        (Operation::AllGatherGemm, Strategy::Sequential) => sequential::steps(plan, rank),
    };
    steps.extend(multiply.into_iter().map(|step: Step| (Lane::Compute, step)));
    Schedule { rank, steps }
}
