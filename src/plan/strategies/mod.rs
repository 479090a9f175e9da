//! Strategies: functions that build schedules.
//!
//! What belongs here: making a [`Schedule`] of a plan. `push` moves rows to the ranks, with one function for
//! each engine; the strategies multiply, with one file each; `reduce` has both reductions. A new strategy is a
//! function here; it changes no executor unless it needs a new kind of step. Invariant: no other module chooses an order.

mod fused;
mod pipelined;
mod push;
mod reduce;
mod sequential;

use super::schedule::{Lane, Schedule, Step};
use super::way::{Operation, Strategy};
use super::whole::Plan;

/// The schedule of `rank` in one step of `plan`.
pub(super) fn schedule(plan: &Plan, rank: u32) -> Schedule {
    let mut steps = Vec::new();
    let options = plan.options();
    if matches!(options.operation, Operation::AllGatherGemm | Operation::AllGather) {
        push::push(plan, rank, &mut steps);
    }
    let multiply = match (options.operation, options.strategy) {
        (Operation::Gemm, _) => vec![sequential::multiply_all(plan, rank)],
        (Operation::AllGather, _) => sequential::await_all(plan),
        (Operation::AllGatherGemm, Strategy::Fused) => fused::steps(plan, rank),
        (Operation::AllGatherGemm, Strategy::Pipelined) => pipelined::steps(plan, rank),
        (Operation::AllGatherGemm, Strategy::Sequential) => sequential::steps(plan, rank),
        (Operation::GemmReduceScatter | Operation::GemmAllReduce, _) => {
            return Schedule { rank, steps: reduce::steps(plan, rank) };
        }
    };
    steps.extend(multiply.into_iter().map(|step: Step| (Lane::Compute, step)));
    Schedule { rank, steps }
}

/// The rank that `rank` of `ranks` sends to in `round`; round 0 is itself.
pub(super) fn peer_in_round(operation: Operation, rank: u32, round: u32, ranks: u32) -> u32 {
    match operation {
        Operation::GemmReduceScatter | Operation::GemmAllReduce => {
            reduce::peer_in_round(rank, round, ranks)
        }
        Operation::AllGatherGemm | Operation::AllGather | Operation::Gemm => {
            push::peer_in_round(rank, round, ranks)
        }
    }
}
