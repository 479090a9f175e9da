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
    /// Fills the other ranks' rows of the latest step with NaN. Its own may still be on their way.
    pub(super) fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(latest) = &self.course.latest else { return Ok(()) };
        let own = latest.plan.problem().shards().rows(self.group.rank());
        for rows in [0..own.start, own.end..self.plan.problem().m()] {
            let at =
                self.part.start() + self.part.layout.row(1 - self.course.next_buffer, rows.start);
            let bytes = self.part.layout.rows_bytes(rows.len() as u32) as usize;
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
