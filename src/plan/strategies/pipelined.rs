//! Pipelined: a product for each rank's rows, its own first, each after all of those rows have landed.

use super::super::schedule::{Step, Word};
use super::super::whole::Plan;

pub(super) fn steps(plan: &Plan, rank: u32) -> Vec<Step> {
    let (chunks, ranks) = (plan.chunks(), plan.problem().ranks());
    let mut steps = Vec::new();
    for of in (0..ranks).map(|round| (rank + round) % ranks) {
        let rows = plan.problem().shards().rows(of);
        if rows.is_empty() {
            continue;
        }
        // This lane itself put the own rows into their slot.
        let awaited = if of == rank { 0..0 } else { chunks.of_rank(of) };
        steps.extend(awaited.map(|chunk| Step::Await { word: Word::Landed { chunk }, age: 0 }));
        steps.push(Step::Multiply { rows, pivot: of, awaits: Vec::new() });
    }
    steps
}
