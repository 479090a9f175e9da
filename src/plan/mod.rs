//! The order of all steps of an operation, as values that need no device.
//!
//! A [`Problem`] has the sizes, the types and the rows of each rank; [`PlanOptions`] have the strategy, the
//! engine, the pieces and the tiling. From both follow [`Chunks`] (the pieces that travel and are signalled), [`TileOrder`]
//! (the order in which a rank computes its output) and [`Schedule`] (the steps of a rank, lane by lane). A [`Plan`] holds
//! them together. The model, the cost model, threads and GPUs carry schedules out; this module uses none of them but the
//! model, does no I/O and reads no clock.
//!
//! Invariant: a query for one tile is arithmetic over a handful of integers (O(1), or O(log W) where shards
//! are unequal), so a kernel can do the same, and a plan for 2³¹ rows costs as much as one for 8.
//!
//! ```text
//!  Problem ──► Shards ──► Chunks ──┬──► TileOrder   (a rank's tiles, in order)
//!  m n k       rows of    pieces   │
//!  types       each rank  of shards└──► Schedule    (a rank's steps: await, move, post, multiply)
//!  PlanOptions ── strategy, engine ─────┘   │
//!                                           └──► model (runs it, looking for faults)
//! ```

mod chunks;
mod display;
mod epilogue;
mod gate;
pub mod model;
mod operation;
mod partition;
mod problem;
mod problem_builder;
mod reduction;
mod scatter;
mod schedule;
mod serial;
mod shards;
mod strategies;
mod tiles;
mod timeouts;
mod types;
mod way;
mod whole;

pub use chunks::{Chunks, MAX_CHUNKS};
pub use epilogue::{Activation, Epilogue};
pub use gate::{GATE_COLUMNS, gate_column, interleave_gates};
pub use operation::Operation;
#[cfg(feature = "cuda")]
pub(crate) use problem::check_aligned;
#[cfg(feature = "cuda")]
pub(crate) use problem::strided_len;
pub use problem::{Problem, TMA_ALIGNMENT};
pub use problem_builder::ProblemBuilder;
pub use reduction::{Partials, Reduction};
pub(crate) use scatter::Part;
pub use schedule::{BUFFERS, Lane, Schedule, Step, Word};
pub use shards::{MAX_DIMENSION, MAX_RANKS, Shards};
pub use tiles::{ClusterShape, Tile, TileOrder, TileShape, Tiling};
pub use timeouts::Timeouts;
pub use types::{BLayout, ElementTypes, Scaling};
pub use way::{Engine, MAX_BLOCKS, MAX_PUSHED, MAX_STREAMS, SMALL_SHARD, Strategy, Way};
pub use whole::{Plan, PlanOptions, RankPlan};
