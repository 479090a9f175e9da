//! This rank's own memory before a step: its rows into their slot, and the rows of past steps out of the way.
//!
//! Invariant: everything is on the caller's stream, before the step begins.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result};

use super::{Gatherer, OwnRows};
use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::sys::driver_error;
use crate::cuda::sys::stream_ops::copy;
use crate::error::Result;

impl Gatherer {
    /// Fills what the other ranks sent in the latest step with NaN. What this one sent may still be on its way.
    pub(super) fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(latest) = &self.course.latest else { return Ok(()) };
        let buffer = 1 - self.course.next_buffer;
        // Shards as in the latest step, rows up to the most of any.
        let own = latest.plan.problem().shards().rows(self.group.rank());
        for (at, bytes) in self.part.layout.received(buffer, &own, self.plan.problem().m()) {
            let (at, bytes) = (self.part.start() + at, bytes as usize);
            // SAFETY: this rank's part is so long; what the last step read there, it has read in the order of
            // the stream, and nobody writes there before this step has said so.
            let filled = unsafe { result::memset_d8_async(at, 0xff, bytes, stream.cu_stream()) };
            filled.map_err(|error| driver_error("cuMemsetD8Async", error))?;
        }
        Ok(())
    }

    /// Puts this rank's rows and scales into their slot, unless they are there.
    pub(super) fn bring(
        &self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
        own: OwnRows,
    ) -> Result<()> {
        let rows = shape.plan.problem().shards().rows(self.group.rank());
        let (start, count) = (self.part.start(), rows.len() as u32);
        let rows_bytes = self.part.layout.rows_bytes(count);
        if let Some(from) = own.rows.filter(|_| rows_bytes > 0) {
            let slot = start + self.part.layout.row(buffer, rows.start);
            // SAFETY: a slot of the layout; the caller of `begin` has vouched for the rows.
            unsafe { copy(stream, slot, from, rows_bytes) }?;
        }
        let scales_bytes = self.part.layout.scales_bytes(count);
        if scales_bytes > 0 {
            let slot = start + self.part.layout.scale(buffer, rows.start);
            // SAFETY: as above.
            unsafe { copy(stream, slot, own.scales, scales_bytes) }?;
        }
        Ok(())
    }
}
