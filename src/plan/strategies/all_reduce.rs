//! All-reduce in one shot: every rank sends its sums of all rows to all others, and every rank adds up all rows.
//!
//! Each chunk leaves when it is computed, first to the rank of round 1. Ranks compute in the order of a reduce-scatter
//! (`reduce_scatter`), so each begins with other rows. Every rank sends W − 1 times as many bytes as in a reduce-scatter, and
//! nobody waits for a second transfer: the way of few rows.
//!
//! No word says that slots, or own sums, may be overwritten. What rank p sends in epoch e + 1 says so: p computes it after it has
//! added up epoch e, for which it had all that was sent to it. A rank has that of all ranks before it computes epoch e + 2.
//!
//! Invariants: those of a reduce-scatter; and all ranks add up the same numbers in the same order, so all results are equal
//! bit for bit.

use super::super::schedule::{Step, Word};
use super::super::whole::Plan;
use super::reduce_scatter::peer_in_round;

/// The steps of the lane of `rank` that sends.
pub(super) fn push(plan: &Plan, rank: u32) -> Vec<Step> {
    let ranks = plan.problem().ranks();
    let peers = || (1..ranks).map(|round| peer_in_round(rank, round, ranks));
    let mut steps = Vec::new();
    for owner in (1..=ranks).map(|round| peer_in_round(rank, round, ranks)) {
        for chunk in plan.chunks().of_rank(owner) {
            steps.push(Step::Await { word: Word::Summed { chunk }, age: 0 });
            for to in peers() {
                steps.push(Step::Move { chunk, to });
                steps.push(Step::Post { word: Word::Partial { chunk, from: rank }, to, age: 0 });
            }
        }
    }
    steps.push(Step::Post { word: Word::Sent { push: 0 }, to: rank, age: 0 });
    steps
}

#[cfg(test)]
mod tests {
    use super::super::super::problem::Problem;
    use super::super::super::schedule::Lane;
    use super::super::super::way::{Operation, Strategy};
    use super::super::super::whole::{Plan, PlanOptions};

    #[test]
    fn every_chunk_goes_to_all_others_when_it_is_computed() {
        let problem = Problem::builder(3, 16, 16).shards(&[2, 0, 1]).build().unwrap();
        let options = PlanOptions::new().with_strategy(Strategy::Fused).with_pieces(2);
        let operation = Operation::GemmAllReduce;
        let plan = Plan::new(&problem, PlanOptions { operation, ..options }).unwrap();
        let lane = |lane| -> Vec<String> {
            plan.schedule(1).lane(lane).map(ToString::to_string).collect()
        };
        assert_eq!(
            lane(Lane::Compute),
            [
                "multiply rows 2..3",
                "post summed 2 → 1",
                "multiply rows 0..1",
                "post summed 0 → 1",
                "multiply rows 1..2",
                "post summed 1 → 1",
                "await partial 0 from 0",
                "await partial 0 from 2",
                "reduce 0",
                "await partial 1 from 0",
                "await partial 1 from 2",
                "reduce 1",
                "await partial 2 from 0",
                "await partial 2 from 2",
                "reduce 2",
            ]
        );
        assert_eq!(
            lane(Lane::Push(0))[..5],
            [
                "await summed 2",
                "move 2 → 2",
                "post partial 2 from 1 → 2",
                "move 2 → 0",
                "post partial 2 from 1 → 0",
            ]
        );
    }
}
