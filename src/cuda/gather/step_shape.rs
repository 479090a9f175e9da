//! What does not change between steps with the same rows.
//!
//! Invariant: two ranks that make it of the same rows agree on every chunk, slot and tag.

use super::layout::Layout;
use super::planning::check_chunks;
use crate::cuda::call::{Chunk, Push};
use crate::error::Result;
use crate::plan::{BUFFERS, Plan};

/// What does not change between steps with the same rows.
#[derive(Debug)]
pub(in super::super) struct StepShape {
    pub(in super::super) plan: Plan,
    pub(super) chunks: Box<[Chunk]>,
    pub(super) pivot_row: i32,
    pub(super) pushes: [Vec<Push>; BUFFERS as usize],
    /// What ranks compare: the same only if rows and buffer are.
    pub(super) tags: [u32; BUFFERS as usize],
}

impl StepShape {
    pub(super) fn new(plan: &Plan, layout: &Layout, rank: u32) -> Result<Self> {
        let chunks = plan.chunks();
        check_chunks(plan)?;
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let table = (0..chunks.len()).map(|chunk| Chunk {
            first_row: number(chunks.rows(chunk).start),
            signal: number(chunks.signal_slot(chunk, layout.slots_per_rank())),
        });
        let shards = plan.problem().shards();
        let pivot_row = number(shards.rows(rank).start % shards.m());
        let each = |buffer| layout.pushes(plan, rank, buffer);
        Ok(StepShape {
            chunks: table.collect(),
            pivot_row,
            pushes: [each(0), each(1)],
            tags: [tag(&shards.to_rows(), 0), tag(&shards.to_rows(), 1)],
            plan: plan.clone(),
        })
    }
}

/// Differs for other rows or another buffer, up to one chance in four thousand million: FNV-1a.
fn tag(rows: &[u32], buffer: u32) -> u32 {
    let bytes = rows.iter().chain([&buffer]).flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
