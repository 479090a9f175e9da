//! Steps whose rows NCCL gathers.
//!
//! Invariant: everything is in the order of one stream, so nothing is signalled; ranks agree on their rows before
//! NCCL hears of other ones, for it would wait for ever where they differ.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::Gatherer;
use crate::cuda::exchange::signals::other_layout;
use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::movers::nccl::{Communicator, Parts};
use crate::error::Result;

impl Gatherer {
    /// Enqueues the gathering of a step; this rank's rows are in their slot.
    pub(crate) fn gather_by_nccl(
        &self,
        nccl: &Communicator,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
    ) -> Result<()> {
        let (start, shards) = (self.memory.own_address(), shape.plan.problem().shards());
        let parts = |start_of: &dyn Fn(u32) -> u64, bytes_of: &dyn Fn(u32) -> u64| {
            let of_rank = |rank| {
                let rows = shards.rows(rank);
                (start_of(rows.start), bytes_of(rows.len() as u32))
            };
            Parts { address: start, of_ranks: (0..self.group.ranks()).map(of_rank).collect() }
        };
        let layout = &self.layout;
        let mut buffers = vec![parts(&|row| layout.row(buffer, row), &|rows| {
            // To the end of the last row: what lies between rows goes along.
            layout.rows_bytes(rows)
        })];
        if layout.scales_bytes(1) > 0 {
            buffers
                .push(parts(&|row| layout.scale(buffer, row), &|rows| layout.scales_bytes(rows)));
        }
        // SAFETY: each part lies in this rank's memory, which lives until its streams are through.
        unsafe { nccl.all_gather(&buffers, stream) }
    }

    /// An error unless all ranks have gone over to these rows; nothing to do where they stay.
    pub(crate) fn agree_on_rows(&self, shape: &Arc<StepShape>) -> Result<()> {
        let before = self.latest.as_ref().unwrap_or(&self.shapes[0]);
        if before.tags == shape.tags {
            return Ok(());
        }
        // The step, too: a rank that goes over later is not with those that do now.
        let own = [self.epoch.to_le_bytes(), shape.tags[0].to_le_bytes()].concat();
        let tags = self.group.all_gather("the rows of a step", &own, self.limit(false))?;
        let differs = |tag: &Vec<u8>| *tag != own;
        match tags.iter().position(differs) {
            Some(peer) => Err(other_layout(self.group.rank(), peer as u32, self.epoch)),
            None => Ok(()),
        }
    }
}
