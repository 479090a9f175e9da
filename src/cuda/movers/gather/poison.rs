//! NaN in the place of what others write, or read, in the next step: a read too early or too late shows in the result.
//!
//! What belongs here: what is filled, and when nobody needs it. Invariant: nothing is filled that another rank may still read or has
//! written for the next step.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::Gatherer;
use crate::cuda::sys::Driver;
use crate::error::Result;

impl Gatherer {
    /// Fills what the other ranks sent in the latest step with NaN. What this one sent may still be on its way.
    pub(super) fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(latest) = &self.course.latest else { return Ok(()) };
        let buffer = 1 - self.course.next_buffer;
        // Shards as in the latest step, rows up to the most of any.
        let own = latest.plan.problem().shards().rows(self.group.rank());
        for (at, bytes) in self.part.layout.received(buffer, &own, self.plan.problem().m()) {
            // What the last step read there, it has read in the order of the stream, and nobody writes there before this step has said
            // so.
            fill(stream, self.part.start() + at, bytes)?;
        }
        Ok(())
    }

    /// Fills this rank's sums with NaN where the next product writes them, and then others read them. What others read there of an
    /// older step, they have read when the product may write. Nothing where the caller brings the sums, but the place of NCCL's totals.
    pub(super) fn poison_sums(&self, stream: &Arc<CudaStream>, buffer: u32) -> Result<()> {
        let is_used = !self.plan.options().operation.is_alone() || self.nccl.is_some();
        if !self.options.poison || !is_used {
            return Ok(());
        }
        let bytes = self.part.layout.rows_bytes(self.plan.problem().m());
        fill(stream, self.gathered(buffer).0, bytes)
    }
}

/// Of this rank's part of the memory, which is so long.
fn fill(stream: &Arc<CudaStream>, at: CUdeviceptr, bytes: u64) -> Result<()> {
    // SAFETY: the callers fill their part alone.
    let filled = unsafe { result::memset_d8_async(at, 0xff, bytes as usize, stream.cu_stream()) };
    filled.in_call("cuMemsetD8Async")
}
