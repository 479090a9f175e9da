//! What the device has to know of the chunks that a product waits for.
//!
//! Invariant: it has the order of the [`Chunks`], and no more of them than a launch can carry.

use crate::cuda::sys::bindings::og_chunk;
use crate::cuda::sys::ffi::{MAX_AWAITED_CHUNKS, int};
use crate::error::{Error, Result};
use crate::plan::{Chunks, Problem};

/// Where each chunk begins, and its signal; and the row that the order of tiles begins at.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    pub(crate) chunks: Box<[og_chunk]>,
    pub(crate) pivot_row: i32,
    /// How many from there on are expected before a product starts.
    pub(crate) early_chunks: i32,
    /// How many spans of columns each arrives in, as a power of two, and how many bytes of a row each has, but the last.
    pub(crate) span_bits: i32,
    pub(crate) span_bytes: i32,
}

impl ChunkTable {
    /// The chunks of `pivot_rank` first; the signal of chunk c is in `slot_of(c)`.
    pub(crate) fn new(
        chunks: &Chunks,
        problem: &Problem,
        pivot_rank: u32,
        slot_of: impl Fn(u32) -> u32,
    ) -> Self {
        let chunk = |chunk| og_chunk {
            first_row: int(chunks.rows(chunk).start),
            signal: int(slot_of(chunk)),
        };
        // A rank without rows at the end of A begins where the first one does.
        let pivot_row = int(chunks.shards().rows(pivot_rank).start % chunks.shards().m());
        let early_chunks = int(chunks.early_ones(pivot_rank));
        ChunkTable {
            chunks: (0..chunks.len()).map(chunk).collect(),
            pivot_row,
            early_chunks,
            span_bits: int(chunks.spans().ilog2()),
            span_bytes: i32::try_from(chunks.span_bytes(problem)).unwrap_or(i32::MAX),
        }
    }
}

/// An error if there are more chunks than a launch can carry.
pub(crate) fn check_count(chunks: &Chunks) -> Result<()> {
    let remedy = "use fewer, larger chunks: they travel as parameters of the kernel";
    Error::check_range("the number of chunks", chunks.len(), 1..=MAX_AWAITED_CHUNKS, remedy)
}
