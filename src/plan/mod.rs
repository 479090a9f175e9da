//! What happens in which order, as values that need no device.
//!
//! A [`Problem`] says what is multiplied and how the rows of A are spread over ranks. From it
//! follow [`Chunks`] (the pieces that travel and are signalled), [`TileOrder`] (the order in which
//! a rank computes its output) and [`Transfers`] (the order in which a rank sends). A [`Plan`]
//! holds them together. Executors carry plans out; nothing in here knows one, and nothing in here
//! does I/O or looks at a clock.
//!
//! Invariant: every query is arithmetic over a handful of integers (O(1), or O(log W) where shards
//! are unequal), so a kernel can do the same, and a plan for 2³¹ rows costs what one for 8 does.
//!
//! ```text
//!  Problem ──► Shards ──► Chunks ──┬──► TileOrder   (what a rank computes, and when)
//!  m n k       rows of    pieces   └──► Transfers   (what a rank sends, and when)
//!  types       each rank  of shards         │
//!                                           └──► model (runs it, looking for trouble)
//! ```

mod chunks;
mod display;
mod epilogue;
pub mod model;
mod partition;
mod problem;
#[cfg(feature = "serde")]
mod serial;
mod shards;
mod table;
mod tiles;
mod transfers;
mod whole;

pub use chunks::{Chunks, MAX_CHUNKS};
pub use epilogue::Activation;
pub use partition::Partition;
#[cfg(feature = "cuda")]
pub(crate) use problem::check_aligned;
pub use problem::{
    BLayout, ElementTypes, MAX_DIMENSION, Problem, ProblemBuilder, Scaling, TMA_ALIGNMENT,
};
pub use shards::{MAX_RANKS, Shards};
pub use tiles::{
    ClusterShape, MAX_CLUSTER_EXTENT, MAX_TILE_EXTENT, Tile, TileOrder, TileShape, Tiling,
};
pub use transfers::{BUFFERS, ConsumerStep, SenderStep, Transfers};
pub use whole::{Plan, PlanOptions, RankPlan};
