//! Strategies: functions that build schedules.
//!
//! What belongs here: making a [`Schedule`] of a plan, and the order of its tiles. `push` moves rows to the ranks, with one
//! function for each engine; the functions here multiply them; `reduce` has all reductions. A new strategy is a
//! function here; it changes no executor unless it needs a new kind of step. Invariant: no other module chooses an order.

mod push;
mod reduce;

use super::operation::Operation;
use super::schedule::{Lane, Schedule, Step, Word};
use super::tiles::TileOrder;
use super::way::Strategy;
use super::whole::Plan;
use crate::error::Result;

/// The order that follows from a plan.
impl Plan {
    /// The schedule of `rank` in one step; its length grows with the chunks of a rank times the ranks. For a rank that does
    /// not exist, it is the schedule of a rank without rows.
    pub fn schedule(&self, rank: u32) -> Schedule {
        let steps = match self.options().operation {
            Operation::AllGatherGemm | Operation::AllGather => {
                let mut steps = push::push(self, rank);
                steps.extend(multiply(self, rank).into_iter().map(|step| (Lane::Compute, step)));
                steps
            }
            Operation::Gemm => vec![(Lane::Compute, multiply_all(self, rank, Vec::new()))],
            Operation::GemmReduceScatter
            | Operation::GemmAllReduce
            | Operation::ReduceScatter
            | Operation::AllReduce => reduce::steps(self, rank),
        };
        Schedule { rank, steps }
    }

    /// The rank that `rank` sends to in `round`; round 0 is itself.
    pub fn peer_in_round(&self, rank: u32, round: u32) -> u32 {
        let ranks = self.problem().ranks();
        let (rank, round) = (rank % ranks, round % ranks);
        match self.options().operation.reduces() {
            true => (rank + round) % ranks,
            false => (rank + ranks - round) % ranks,
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

/// How `rank` waits for the rows that are gathered, and multiplies them.
fn multiply(plan: &Plan, rank: u32) -> Vec<Step> {
    let (chunks, options) = (plan.chunks(), plan.options());
    let landed = |chunk| Step::Await { word: Word::Landed { chunk }, age: 0 };
    let await_all = (0..chunks.len()).map(landed);
    match (options.operation, options.strategy) {
        (Operation::AllGather, _) => await_all.collect(),
        // One product that waits, tile by tile, for the chunks that it needs, its own rank's first.
        (_, Strategy::Fused) => vec![multiply_all(plan, rank, chunks.need_order(rank).collect())],
        // All rows first, then one product.
        (_, Strategy::Sequential) => {
            await_all.chain([multiply_all(plan, rank, Vec::new())]).collect()
        }
        // A product for each rank's rows, its own first, each after all of those rows have landed.
        (_, Strategy::Pipelined) => {
            let (ranks, mut steps) = (plan.problem().ranks(), Vec::new());
            for of in all_from(rank, ranks) {
                let rows = plan.problem().shards().rows(of);
                if rows.is_empty() {
                    continue;
                }
                // This lane itself put the own rows into their slot.
                let awaited = if of == rank { 0..0 } else { chunks.of_rank(of) };
                steps.extend(awaited.map(landed));
                steps.push(Step::Multiply { rows, pivot: of, awaits: Vec::new() });
            }
            steps
        }
    }
}

fn multiply_all(plan: &Plan, rank: u32, awaits: Vec<u32>) -> Step {
    Step::Multiply { rows: 0..plan.problem().m(), pivot: rank, awaits }
}

/// Posts that `rank` has consumed the previous step: to itself, then to the rank behind it, and so on. In a gather that rank
/// sends here first; in a reduction it is the first that `rank` sends to.
fn announce(plan: &Plan, rank: u32) -> impl Iterator<Item = Step> + use<> {
    let to = all_from(rank, plan.problem().ranks());
    to.map(move |to| Step::Post { word: Word::Consumed { by: rank }, to, age: 1 })
}

/// All ranks, from `rank` on.
fn all_from(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (0..ranks).map(move |round| (rank % ranks + round) % ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Engine, PlanOptions, Problem};

    #[test]
    fn a_rank_that_does_not_exist_has_a_schedule() {
        let problem = Problem::builder(6, 16, 16).ranks(3).build().unwrap();
        let engines = [Engine::Thread, Engine::CopyEngines { streams: 2 }, Engine::PUSHING];
        let operations =
            [Operation::AllGatherGemm, Operation::GemmReduceScatter, Operation::GemmAllReduce];
        for (operation, engine) in operations.into_iter().flat_map(|of| engines.map(|by| (of, by)))
        {
            for strategy in Strategy::ALL {
                let options = PlanOptions { operation, strategy, engine, ..PlanOptions::default() };
                // An engine may refuse a strategy of a reduction.
                let Ok(plan) = Plan::new(&problem, options) else { continue };
                let is_empty = |rank: u32| plan.schedule(rank).steps.is_empty();
                assert!(![3, 100, u32::MAX].into_iter().any(is_empty), "{plan}");
            }
        }
    }
}
