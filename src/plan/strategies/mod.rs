//! Strategies: functions that build schedules.
//!
//! What belongs here: making a [`Schedule`] of a plan, and the order of its tiles. `push` moves rows to the ranks, with one function for
//! each engine; the strategies multiply, with one file each; `reduce` has both reductions. A new strategy is a
//! function here; it changes no executor unless it needs a new kind of step. Invariant: no other module chooses an order.

mod fused;
mod pipelined;
mod push;
mod reduce;
mod sequential;

use super::schedule::{Lane, Schedule, Step};
use super::tiles::TileOrder;
use super::way::{Operation, Strategy};
use super::whole::Plan;
use crate::error::Result;

/// The order that follows from a plan.
impl Plan {
    /// The schedule of `rank` in one step; its length grows with the chunks of a rank times the ranks. For a rank that does
    /// not exist, it is the schedule of a rank without rows.
    pub fn schedule(&self, rank: u32) -> Schedule {
        let mut steps = Vec::new();
        let options = self.options();
        if matches!(options.operation, Operation::AllGatherGemm | Operation::AllGather) {
            push::push(self, rank, &mut steps);
        }
        let multiply = match (options.operation, options.strategy) {
            (Operation::Gemm, _) => vec![sequential::multiply_all(self, rank)],
            (Operation::AllGather, _) => sequential::await_all(self),
            (Operation::AllGatherGemm, Strategy::Fused) => fused::steps(self, rank),
            (Operation::AllGatherGemm, Strategy::Pipelined) => pipelined::steps(self, rank),
            (Operation::AllGatherGemm, Strategy::Sequential) => sequential::steps(self, rank),
            (Operation::GemmReduceScatter | Operation::GemmAllReduce, _) => {
                return Schedule { rank, steps: reduce::steps(self, rank) };
            }
        };
        steps.extend(multiply.into_iter().map(|step: Step| (Lane::Compute, step)));
        Schedule { rank, steps }
    }

    /// The rank that `rank` sends to in `round`; round 0 is itself.
    pub fn peer_in_round(&self, rank: u32, round: u32) -> u32 {
        let ranks = self.problem().ranks();
        if self.options().operation.reduces() {
            reduce::peer_in_round(rank, round, ranks)
        } else {
            push::peer_in_round(rank, round, ranks)
        }
    }

    /// The order in which `rank` computes an output of the problem's N columns: its own rows first; where sums travel,
    /// last.
    pub fn tile_order(&self, rank: u32) -> Result<TileOrder> {
        self.problem().shards().check_rank(rank)?;
        let options = self.options();
        let pivot = if options.operation.reduces() { self.peer_in_round(rank, 1) } else { rank };
        TileOrder::new(self.chunks(), self.problem().n(), options.tiling, pivot)
    }
}
