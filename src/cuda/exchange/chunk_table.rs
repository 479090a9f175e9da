//! Chunks as a kernel gets them.
//!
//! What belongs here: the table that travels with a launch, and how long it may be. Invariant: chunks are in
//! the order of their rows, and the pivot row is the first of some chunk.

use crate::cuda::sys::bindings::og_chunk;
use crate::cuda::sys::ffi::{MAX_CHUNKS, int};
use crate::error::{Error, Result};
use crate::plan::Chunks;

/// Where each chunk begins, and its signal; and the row that the order of tiles begins at.
#[derive(Debug)]
pub(crate) struct ChunkTable {
    pub(crate) chunks: Box<[og_chunk]>,
    pub(crate) pivot_row: i32,
}

impl ChunkTable {
    /// The chunks of `pivot_rank` first; the signal of chunk c is in `slot_of(c)`.
    pub(crate) fn new(chunks: &Chunks, pivot_rank: u32, slot_of: impl Fn(u32) -> u32) -> Self {
        let chunk = |chunk| og_chunk {
            first_row: int(chunks.rows(chunk).start),
            signal: int(slot_of(chunk)),
        };
        // A rank without rows at the end of A begins where the first one does.
        let pivot_row = int(chunks.shards().rows(pivot_rank).start % chunks.shards().m());
        ChunkTable { chunks: (0..chunks.len()).map(chunk).collect(), pivot_row }
    }
}

/// An error if there are more chunks than a launch can carry.
pub(crate) fn check_count(chunks: &Chunks) -> Result<()> {
    if chunks.len() <= MAX_CHUNKS {
        return Ok(());
    }
    let remedy = "use fewer, larger chunks: they travel as parameters of the kernel";
    let (what, max) = ("the number of chunks", MAX_CHUNKS.into());
    Err(Error::out_of_range(what, chunks.len().into(), 1, max, remedy))
}
