//! The host executor: carries a plan out on threads.
//!
//! It is the default backend, the reference for the GPU, and the executor on which loom, shuttle and fault tests check
//! the chunk protocol. Each rank is a caller's thread, a pusher thread that sends its
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
//! - `control`: timeouts, abort, departures: the ends of waits that fail.
//! - `memory`: buffers of which several threads write disjoint parts.
//! - `all_gather_gemm`, `gemm_reduce`, `reduce`, `async_gemm`: the operations, planned once and enqueued many times;
//!   `operands`: the inputs and outputs of a step; `products`: the code that all operations share.
//! - `world`: what the ranks of an operation share; `pusher`: the thread that sends; `member`: a rank's part: epochs, waits,
//!   steps.
//! - `gather`, `sums`: the memory of the all-gather, and of the reduction; `input`: an input that the caller's threads fill
//!   chunk by chunk.
//! - `compute`: distribution of tiles to workers. `tile`: the arithmetic of one tile.
//! - `group`: the ranks of one process.
//!
//! Invariant: ranks share rows only under [`protocol`]; atomics of the other files count or raise a
//! flag. Within a rank the standard library orders the rest: the channel to the pusher, the join of
//! the workers, a lock a chunk in an [`AsyncInput`].

mod all_gather_gemm;
mod async_gemm;
mod compute;
mod control;
mod gather;
mod gemm_reduce;
mod group;
mod input;
mod member;
mod memory;
mod operands;
mod products;
pub mod protocol;
mod pusher;
mod reduce;
mod sums;
mod tile;
mod world;

pub use all_gather_gemm::{AllGatherGemm, Gathered};
pub use async_gemm::AsyncGemm;
pub use compute::Stream;
pub use control::Aborter;
pub use gemm_reduce::{GemmAllReduce, GemmReduce, GemmReduceScatter};
pub use group::{Group, GroupOptions, Link, Rank};
pub use input::{AsyncInput, ChunkWriter};
pub use operands::{Product, Shard};
pub use reduce::{AllReduce, Reduce, ReduceScatter};

pub(crate) use memory::check_memory;
