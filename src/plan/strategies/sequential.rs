//! Sequential: all rows first, then one product. The gather alone is its first half, the plain product its second.

use super::super::schedule::{Step, Word};
use super::super::whole::Plan;

pub(super) fn steps(plan: &Plan, rank: u32) -> Vec<Step> {
    let mut steps = await_all(plan);
    steps.push(multiply_all(plan, rank));
    steps
}

pub(super) fn await_all(plan: &Plan) -> Vec<Step> {
    let chunks = 0..plan.chunks().len();
    chunks.map(|chunk| Step::Await { word: Word::Landed { chunk }, age: 0 }).collect()
}

pub(super) fn multiply_all(plan: &Plan, rank: u32) -> Step {
    Step::Multiply { rows: 0..plan.problem().m(), pivot: rank, awaits: Vec::new() }
}
