//! What does not change between steps with the same rows.
//!
//! Invariant: two ranks that make it of the same rows agree on every chunk, slot and tag.

use super::layout::Layout;
use crate::cuda::call::Push;
use crate::cuda::chunk_table::{ChunkTable, check_count};
use crate::error::Result;
use crate::plan::{BUFFERS, Plan};

/// What does not change between steps with the same rows.
#[derive(Debug)]
pub(in super::super) struct StepShape {
    pub(in super::super) plan: Plan,
    pub(super) table: ChunkTable,
    pub(super) pushes: [Vec<Push>; BUFFERS as usize],
    /// What ranks compare: the same only if rows and buffer are.
    pub(super) tags: [u32; BUFFERS as usize],
}

impl StepShape {
    pub(super) fn new(plan: &Plan, layout: &Layout, rank: u32) -> Result<Self> {
        let chunks = plan.chunks();
        check_count(chunks)?;
        let slot_of = |chunk| chunks.signal_slot(chunk, layout.slots_per_rank());
        let rows = plan.problem().shards().to_rows();
        let each = |buffer| layout.pushes(plan, rank, buffer);
        Ok(StepShape {
            table: ChunkTable::new(chunks, rank, slot_of),
            pushes: [each(0), each(1)],
            tags: [tag(&rows, 0), tag(&rows, 1)],
            plan: plan.clone(),
        })
    }
}

/// Differs for other rows or another buffer, up to one chance in four thousand million: FNV-1a.
fn tag(rows: &[u32], buffer: u32) -> u32 {
    let bytes = rows.iter().chain([&buffer]).flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
