//! Plans as serde values.
//!
//! Invariant: reading validates. A [`Plan`] that was read went through the same checks as one that was built; what is
//! derived (chunk rows, tile order, schedules) is written for other tools, entry by entry, and recomputed when read.

use std::ops::Range;

use serde::{Deserialize, Serialize, Serializer};

use super::operation::Operation;
use super::problem::Problem;
use super::tiles::Tiling;
use super::way::{Engine, Strategy};
use super::whole::{Plan, PlanOptions, RankPlan};
use crate::error::{Error, Result};

/// A list that is made while it is written.
struct List<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for List<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Serialize)]
struct WrittenPlan<'a, C, S, O> {
    problem: &'a Problem,
    #[serde(flatten)]
    options: PlanOptions,
    /// Of columns, in which each chunk travels.
    spans: u32,
    chunks: C,
    schedules: S,
    tile_orders: O,
}

#[derive(Serialize)]
struct WrittenChunk {
    chunk: u32,
    rank: u32,
    rows: Range<u32>,
}

#[derive(Serialize)]
struct WrittenOrder<V> {
    rank: u32,
    grid: (u32, u32),
    tiling: Tiling,
    /// The tiles in visiting order, as pairs.
    visits: V,
}

/// The whole plan, with the schedules and the tile orders of `ranks`.
fn write<S: Serializer>(plan: &Plan, ranks: Range<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    let order = |rank| Ok((rank, plan.tile_order(rank)?));
    let orders: Result<Vec<_>> = ranks.clone().map(order).collect();
    let orders = orders.map_err(serde::ser::Error::custom)?;
    let chunks = plan.chunks();
    let chunk =
        |chunk| WrittenChunk { chunk, rank: chunks.rank_of(chunk), rows: chunks.rows(chunk) };
    WrittenPlan {
        problem: plan.problem(),
        options: plan.options(),
        spans: chunks.spans(),
        chunks: List(|| (0..chunks.len()).map(chunk)),
        schedules: List(|| ranks.clone().map(|rank| plan.schedule(rank))),
        tile_orders: List(|| {
            orders.iter().map(|(rank, order)| WrittenOrder {
                rank: *rank,
                grid: order.grid(),
                tiling: order.tiling(),
                visits: List(|| order.tiles().map(|tile| (tile.m, tile.n))),
            })
        }),
    }
    .serialize(serializer)
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self, 0..self.problem().ranks(), serializer)
    }
}

impl Serialize for RankPlan<'_> {
    /// The same fields as of a whole plan (it reads back as one), with one rank's lists only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self.plan, self.rank..self.rank + 1, serializer)
    }
}

/// The fields from which a plan is read back.
#[derive(Deserialize)]
pub(super) struct ReadPlan {
    problem: Problem,
    operation: Operation,
    strategy: Strategy,
    engine: Engine,
    pieces: Option<u32>,
    tiling: Tiling,
    /// Those of a step with fewer rows than planned: no more than the plan's memory has words for.
    spans: Option<u32>,
}

impl TryFrom<ReadPlan> for Plan {
    type Error = Error;

    fn try_from(read: ReadPlan) -> Result<Self> {
        let ReadPlan { problem, operation, strategy, engine, pieces, tiling, spans } = read;
        let options = PlanOptions { operation, strategy, engine, pieces, tiling };
        Plan::with_spans(&problem, options, spans.unwrap_or(u32::MAX))
    }
}
