//! Fused: one product that waits, tile by tile, for the chunks that it needs, its own rank's first.

use super::super::schedule::Step;
use super::super::whole::Plan;

pub(super) fn steps(plan: &Plan, rank: u32) -> Vec<Step> {
    let awaits = plan.chunks().need_order(rank).collect();
    vec![Step::Multiply { rows: 0..plan.problem().m(), pivot: rank, awaits }]
}
