//! The host executor: carries a plan out on threads, with real numbers.
//!
//! It is the default backend, the reference for the GPU, and the place where the chunk protocol is
//! checked in every way there is. Each rank is a caller's thread, a pusher thread that sends its
//! shard to the others, and the workers of a [`Stream`] that compute tiles as chunks arrive.
//!
//! ```text
//!  rank r                                                       rank p
//!  ┌ caller ──────────────┐   ┌ pusher ──────────────────┐     ┌ memory ───────────────┐
//!  │ copy shard into slot │──►│ await consumed by p      │     │ gathered[e mod 2]     │
//!  │ run tiles, waiting   │   │ copy chunk ──────────────┼────►│   rows of the chunk   │
//!  │ for signals          │   │ signal (release) ────────┼────►│ signals[slot] = e     │
//!  └──────────────────────┘   └──────────────────────────┘     └───────────────────────┘
//! ```
//!
//! - [`protocol`]: signals, acknowledgements, epochs: the orderings under which rows travel.
//! - `control`: deadlines, abort, departures: how a wait ends that should not last.
//! - `memory`: what several threads write disjoint parts of.
//! - `product`: the numbers of one tile. `compute`: which worker computes which tile, and when.
//! - `group`: the ranks of one process. `gather`: a rank's part in the all-gather.
//! - `input`: an input that a caller's own threads fill chunk by chunk.
//!
//! Invariant: ranks share rows only under [`protocol`]; atomics of the other files count or raise a
//! flag. Within a rank the standard library orders the rest: the channel to the pusher, the join of
//! the workers, a lock a chunk in an [`AsyncInput`].

mod compute;
mod control;
mod gather;
mod group;
mod input;
mod memory;
mod product;
pub mod protocol;

pub use compute::Stream;
pub use control::{Aborter, Deadlines};
pub use group::{Group, GroupOptions, Link, Rank};
pub use input::{AsyncInput, ChunkWriter};

pub(crate) use compute::{Operand, TileJob, lay_side_by_side, run_tiles};
pub(crate) use gather::{Gatherer, OwnRows, StepShape};
pub(crate) use memory::{OutputCells, check_memory};
pub(crate) use product::ProductView;
