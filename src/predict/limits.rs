//! Limits of a prediction: it walks over every unit and every piece, so a few digits too many would take
//! hours, or all of the memory.
//!
//! What belongs here: the limits, which ranks are computed, and counting what would be done before any of it is. Invariant:
//! nothing is counted one by one but ranks; what is let through takes a few seconds at most, and some hundred megabytes.

use std::ops::Range;

use super::TIMES;
use super::setup::Setup;
use super::transfers::are_alike;
use crate::error::{Error, Result};
use crate::plan::{Engine, Operation, Plan, Strategy};

/// Units of all ranks that are looked at: about a second. A million rows by 65536 columns in tiles of 64 by 128, eight ranks
/// of them, are half of that.
const MOST_UNITS: u64 = 1 << 27;
/// Pieces of all senders that are looked at: one each between 1024 ranks that all differ.
const MOST_TRANSFERS: u64 = 1 << 20;
/// Tiles, or pieces, of a timeline: each is kept.
const MOST_DRAWN: u64 = 1 << 22;

/// The ranks that are computed to know the slowest: one, where all do the same at the same time.
pub(super) fn to_compute(plan: &Plan, alike: bool) -> impl Iterator<Item = u32> + use<> {
    /// Where ranks differ only in how tiles straddle their shards, this number of them is enough.
    const ENOUGH: u32 = 8;
    let (problem, options) = (plan.problem(), plan.options());
    let unit_rows = options.tiling.unit_rows();
    let shard = problem.shards().rows(0).len() as u64;
    let equal = u64::from(problem.m()) == shard * u64::from(problem.ranks());
    // All ranks visit tiles in the same order, each from its own shard on.
    let turned = equal && shard.is_multiple_of(unit_rows);
    let (ranks, some) = match (options.strategy, alike) {
        _ if options.operation == Operation::Gemm => (1, 1),
        // Each adds up the same chunks, but its own are complete last.
        (_, true) if options.operation.is_all_reduce() => (problem.ranks(), ENOUGH),
        (Strategy::Fused, true) if !turned => (problem.ranks(), ENOUGH),
        (_, true) => (1, 1),
        (_, false) => (problem.ranks(), problem.ranks()),
    };
    (0..ranks).step_by(ranks.div_ceil(some) as usize)
}

/// An error if an estimate of `plan` would take too long.
pub(super) fn check_estimate(plan: &Plan, setup: &Setup) -> Result<()> {
    check(plan, setup, to_compute(plan, are_alike(plan)).count() as u64)
}

/// An error if a timeline of these ranks would take too long, or too much memory.
pub(super) fn check_timeline(plan: &Plan, setup: &Setup, ranks: &Range<u32>) -> Result<()> {
    let count = ranks.len() as u64;
    check(plan, setup, count)?;
    let tiles = plan.options().tiling.unit_tiles();
    let pieces = match setup.operation {
        Operation::Gemm => 0,
        _ => u64::from(plan.chunks().len()),
    };
    for (what, each) in [
        ("the number of tiles of a timeline", units(plan).saturating_mul(tiles)),
        ("the number of transfers of a timeline", pieces),
    ] {
        let remedy = "draw fewer ranks, or a smaller problem";
        Error::check_range(what, each.saturating_mul(count), 0..=MOST_DRAWN, remedy)?;
    }
    Ok(())
}

/// An error if what these many ranks compute, and all transfers, are too much.
fn check(plan: &Plan, setup: &Setup, ranks: u64) -> Result<()> {
    let chunks = match are_alike(plan) {
        _ if setup.operation == Operation::Gemm || setup.way.engine == Engine::Nccl => 0,
        true => plan.chunks().most_per_rank(),
        false => plan.chunks().len(),
    };
    let others = u64::from(plan.problem().ranks() - 1);
    let to_all = match setup.operation {
        // Sums, and totals.
        operation if operation.is_all_reduce() && plan.has_two_shots() => 2,
        operation if operation.is_all_reduce() => others + 1,
        _ => 1,
    };
    let sent = u64::from(chunks) * others * to_all;
    let remedy = "cut shards into fewer pieces, or give all ranks as many rows";
    Error::check_range("the number of transfers to predict", sent, 0..=MOST_TRANSFERS, remedy)?;

    let mut each = units(plan);
    if is(plan, Strategy::Fused) {
        // Each column of units looks at every chunk once, besides those that two units touch.
        each = each.saturating_add(columns(plan).saturating_mul(plan.chunks().len().into()));
    }
    let times = if setup.operation.reduces() { u64::from(TIMES) + 1 } else { 1 };
    let all = each.saturating_mul(setup.splits.into()).saturating_mul(ranks * times);
    let remedy = "predict a smaller problem, a kernel of larger tiles, or fewer slices or pieces";
    Error::check_range("the number of units of work to predict", all, 0..=MOST_UNITS, remedy)
}

/// What one rank computes, in units of a cluster.
fn units(plan: &Plan) -> u64 {
    let (problem, tiling) = (plan.problem(), plan.options().tiling);
    let of = |rows: u64| rows.div_ceil(tiling.unit_rows());
    let rows = match is(plan, Strategy::Pipelined) {
        true => {
            let shards = problem.shards();
            (0..shards.ranks()).map(|rank| of(shards.rows(rank).len() as u64)).sum()
        }
        false => of(problem.m().into()),
    };
    columns(plan).saturating_mul(rows)
}

/// Whether rows or sums travel, by this strategy.
fn is(plan: &Plan, strategy: Strategy) -> bool {
    let options = plan.options();
    options.operation != Operation::Gemm && options.strategy == strategy
}

/// Units beside each other.
fn columns(plan: &Plan) -> u64 {
    u64::from(plan.problem().n()).div_ceil(plan.options().tiling.unit_columns())
}
