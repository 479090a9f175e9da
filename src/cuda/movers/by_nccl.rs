//! Steps whose rows NCCL gathers, or whose sums it adds up.
//!
//! Invariant: everything is in the order of one stream, so nothing is signalled; ranks agree on changed rows before they
//! call NCCL, which hangs where they differ.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::nccl::{Communicator, Parts};
use crate::cuda::exchange::layout::Layout;
use crate::cuda::exchange::step_shape::{Part, StepShape};
use crate::cuda::exchange::waiters::other_layout;
use crate::element::ElementType;
use crate::error::Result;
use crate::group::Group;

#[derive(Debug)]
pub(crate) struct ByNccl {
    pub(crate) communicator: Communicator,
    /// How long NCCL may take for the steps that were begun since somebody last waited for them here.
    pub(crate) patience: Duration,
}

impl ByNccl {
    pub(crate) fn new(communicator: Communicator) -> Self {
        ByNccl { communicator, patience: Duration::ZERO }
    }

    /// Enqueues the gathering of a step, which may take as long as `limit`; this rank's rows are in their slot.
    pub(crate) fn gather(
        &mut self,
        stream: &Arc<CudaStream>,
        part: &Part,
        shape: &StepShape,
        buffer: u32,
        limit: Duration,
    ) -> Result<()> {
        self.patience = self.patience.saturating_add(limit);
        let (layout, shards) = (&part.layout, shape.plan.problem().shards());
        let parts = |start_of: fn(&Layout, u32, u32) -> u64, bytes_of: fn(&Layout, u32) -> u64| {
            let of_rank = |rank| {
                let rows = shards.rows(rank);
                (start_of(layout, buffer, rows.start), bytes_of(layout, rows.len() as u32))
            };
            Parts { address: part.start(), of_ranks: (0..shards.ranks()).map(of_rank).collect() }
        };
        // Of rows, to the end of the last one: what lies between them goes along.
        let mut buffers = vec![parts(Layout::row, Layout::rows_bytes)];
        if layout.scales_bytes(1) > 0 {
            buffers.push(parts(Layout::scale, Layout::scales_bytes));
        }
        // SAFETY: each part lies in this rank's memory, which lives until its streams are through.
        unsafe { self.communicator.all_gather(&buffers, stream) }
    }

    /// Enqueues adding up all ranks' sums of a step in `element`s, which may take as long as `limit`. This rank's are those of all
    /// rows, at `sums`. The totals of the rows that it gets come to where its own memory has these rows.
    ///
    /// # Safety
    /// `sums` is this device's memory, as long as the shape says, until the stream is through; it may be this operation's own.
    pub(crate) unsafe fn add_up(
        &mut self,
        stream: &Arc<CudaStream>,
        part: &Part,
        (shape, buffer, sums): (&StepShape, u32, CUdeviceptr),
        element: ElementType,
        limit: Duration,
    ) -> Result<()> {
        self.patience = self.patience.saturating_add(limit);
        let (layout, plan) = (&part.layout, &shape.plan);
        let place = |rows: Range<u32>| {
            (u64::from(rows.start) * layout.pitch, layout.rows_bytes(rows.len() as u32))
        };
        let gets = plan.output_rows(shape.schedule.rank);
        let (to, communicator) =
            (part.start() + layout.row(buffer, gets.start), &self.communicator);
        if plan.options().operation.is_all_reduce() {
            let (_, bytes) = place(gets);
            // SAFETY: the caller's promise; this rank's memory has a place for all rows, and lives until its streams are through.
            return unsafe { communicator.all_reduce(sums, to, bytes, element, stream) };
        }
        let shards = plan.problem().shards();
        let of_ranks = (0..shards.ranks()).map(|rank| place(shards.rows(rank))).collect();
        // SAFETY: as above. Where the sums are in the same memory, the totals take the place of this rank's part.
        unsafe {
            communicator.reduce_scatter(&Parts { address: sums, of_ranks }, to, element, stream)
        }
    }

    /// Waits for `stream`, for as long as all that was begun may take, and no less than `least`.
    pub(crate) fn wait(&self, stream: &Arc<CudaStream>, least: Duration) -> Result<()> {
        self.communicator.wait(stream, self.patience.max(least))
    }
}

/// An error unless all ranks have gone over from the rows `before` to these; nothing to do where they stay.
pub(crate) fn agree_on_rows(
    group: &Group,
    before: &StepShape,
    shape: &StepShape,
    epoch: u32,
    limit: Duration,
) -> Result<()> {
    if before.tags == shape.tags {
        return Ok(());
    }
    // The step, too: a rank that goes over later is not with those that do now.
    let own = [epoch.to_le_bytes(), shape.tags[0].to_le_bytes()].concat();
    let tags = group.all_gather("the rows of a step", &own, limit)?;
    let differs = |tag: &Vec<u8>| *tag != own;
    match tags.iter().position(differs) {
        Some(peer) => Err(other_layout(group.rank(), peer as u32, epoch)),
        None => Ok(()),
    }
}
