//! Plans as serde values (feature `serde`).
//!
//! Invariant: reading validates. A [`Problem`] or a [`Plan`] that was read went through the same
//! checks as one that was built; what is derived (chunk rows, tile order, schedules) is written
//! for other tools and recomputed when read.

use std::ops::Range;

use serde::de::Error as _;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::chunks::Chunks;
use super::problem::{BLayout, ElementTypes, Problem, Scaling};
use super::tiles::{TileOrder, Tiling};
use super::way::{Engine, Operation, Strategy};
use super::whole::{Plan, PlanOptions, RankPlan};

/// A problem's decisions, as they are written.
#[derive(Serialize, Deserialize)]
struct ProblemFields {
    m: u64,
    n: u64,
    k: u64,
    elements: ElementTypes,
    b_layout: BLayout,
    lda: u64,
    ldb: u64,
    ldd: u64,
    scaling: Scaling,
    shard_rows: Vec<u32>,
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = ProblemFields {
            m: self.m().into(),
            n: self.n().into(),
            k: self.k().into(),
            elements: self.elements(),
            b_layout: self.b_layout(),
            lda: self.lda().into(),
            ldb: self.ldb().into(),
            ldd: self.ldd().into(),
            scaling: self.scaling(),
            shard_rows: self.shards().to_rows(),
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = ProblemFields::deserialize(deserializer)?;
        Problem::builder(fields.m, fields.n, fields.k)
            .elements(fields.elements.a, fields.elements.b, fields.elements.d)
            .b_layout(fields.b_layout)
            .lda(fields.lda)
            .ldb(fields.ldb)
            .ldd(fields.ldd)
            .scaling(fields.scaling)
            .shards(&fields.shard_rows)
            .build()
            .map_err(D::Error::custom)
    }
}

/// One chunk, as it is written.
#[derive(Serialize)]
struct ChunkFields {
    chunk: u32,
    rank: u32,
    rows: Range<u32>,
}

impl Serialize for Chunks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields =
            |chunk| ChunkFields { chunk, rank: self.rank_of(chunk), rows: self.rows(chunk) };
        serializer.collect_seq((0..self.len()).map(fields))
    }
}

impl Serialize for TileOrder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        OrderOf { rank: self.pivot_rank(), order: self }.serialize(serializer)
    }
}

/// The order of a rank, which is not always its own pivot.
struct OrderOf<'a> {
    rank: u32,
    order: &'a TileOrder,
}

impl Serialize for OrderOf<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("TileOrder", 4)?;
        fields.serialize_field("rank", &self.rank)?;
        fields.serialize_field("grid", &self.order.grid())?;
        fields.serialize_field("tiling", &self.order.tiling())?;
        fields.serialize_field("visits", &Visits(self.order))?;
        fields.end()
    }
}

/// The tiles in visiting order, as pairs, written one by one.
struct Visits<'a>(&'a TileOrder);

impl Serialize for Visits<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.tiles().map(|tile| (tile.m, tile.n)))
    }
}

/// What a plan is read back from.
#[derive(Deserialize)]
struct PlanFields {
    problem: Problem,
    operation: Operation,
    strategy: Strategy,
    engine: Engine,
    pieces: Option<u32>,
    tiling: Tiling,
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_plan(self, 0..self.problem().ranks(), serializer)
    }
}

impl Serialize for RankPlan<'_> {
    /// The same fields as of a whole plan (it reads back as one), with one rank's lists only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_plan(self.plan(), self.rank()..self.rank() + 1, serializer)
    }
}

fn serialize_plan<S: Serializer>(
    plan: &Plan,
    ranks: Range<u32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let orders: Result<Vec<_>, _> = ranks.clone().map(|rank| plan.tile_order(rank)).collect();
    let orders = orders.map_err(serde::ser::Error::custom)?;
    let orders: Vec<_> =
        ranks.clone().zip(&orders).map(|(rank, order)| OrderOf { rank, order }).collect();
    let PlanOptions { operation, strategy, engine, pieces, tiling } = plan.options();
    let mut fields = serializer.serialize_struct("Plan", 9)?;
    fields.serialize_field("problem", plan.problem())?;
    fields.serialize_field("operation", &operation)?;
    fields.serialize_field("strategy", &strategy)?;
    fields.serialize_field("engine", &engine)?;
    fields.serialize_field("pieces", &pieces)?;
    fields.serialize_field("tiling", &tiling)?;
    fields.serialize_field("chunks", plan.chunks())?;
    fields.serialize_field("schedules", &Schedules { plan, ranks })?;
    fields.serialize_field("tile_orders", &orders)?;
    fields.end()
}

/// The schedules of some of the ranks, written one by one.
struct Schedules<'a> {
    plan: &'a Plan,
    ranks: Range<u32>,
}

impl Serialize for Schedules<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ranks.clone().map(|rank| self.plan.schedule(rank)))
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let PlanFields { problem, operation, strategy, engine, pieces, tiling } =
            PlanFields::deserialize(deserializer)?;
        let options = PlanOptions { operation, strategy, engine, pieces, tiling };
        Plan::new(&problem, options).map_err(D::Error::custom)
    }
}
