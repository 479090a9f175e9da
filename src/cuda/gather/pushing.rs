//! Moving rows: into the own slot, to the other ranks by copy engines, and out of the way.
//!
//! Invariant: a signal follows its data on the same stream; no stream begins before the step has.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUstreamWaitValue_flags};
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::layout::{Layout, SENT_AT};
use super::step_shape::StepShape;
use super::{Gatherer, OwnRows};
use crate::cuda::call::TOGGLE_SET;
use crate::cuda::driver_error;
use crate::cuda::signals::{EPOCH_AT, SIGNALS_AT};
use crate::error::Result;

/// A stream that pushes, and the event at the end of its pushes.
#[derive(Debug)]
pub(super) struct Pusher {
    pub(super) stream: Arc<CudaStream>,
    pub(super) sent: CudaEvent,
}

impl Gatherer {
    /// Fills the other ranks' rows of the latest step with NaN. Its own may still be on their way.
    pub(super) fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(latest) = &self.latest else { return Ok(()) };
        let own = latest.plan.problem().shards().rows(self.group.rank());
        let start = self.memory.own_address();
        for rows in [0..own.start, own.end..self.plan.problem().m()] {
            let at = start + self.layout.row(1 - self.next_buffer, rows.start);
            let bytes = self.layout.rows_bytes(rows.len() as u32) as usize;
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
        let (start, count) = (self.memory.own_address(), rows.len() as u32);
        let rows_bytes = self.layout.rows_bytes(count);
        if let Some(from) = own.rows.filter(|_| rows_bytes > 0) {
            copy(stream, start + self.layout.row(buffer, rows.start), from, rows_bytes)?;
        }
        let scales_bytes = self.layout.scales_bytes(count);
        if scales_bytes > 0 {
            copy(stream, start + self.layout.scale(buffer, rows.start), own.scales, scales_bytes)?;
        }
        Ok(())
    }

    /// [`Transfers`](crate::plan::Transfers), round by round: the rank that needs this one's rows soonest
    /// comes first. Pieces go round the streams; a signal follows its data.
    pub(super) fn push_by_copies(
        &self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
    ) -> Result<()> {
        let own = self.memory.own_address();
        let recorded = |event: &CudaEvent, stream: &CudaStream| {
            event.record(stream).map_err(|error| driver_error("cuEventRecord", error))
        };
        // Not before the step has begun. The stream of the product has nothing between two kernels where it
        // can be helped, so that one starts while the other ends.
        if self.captured {
            recorded(&self.begun, stream)?;
        }
        for pusher in &self.pushers {
            if self.captured {
                let waited = pusher.stream.wait(&self.begun);
                waited.map_err(|error| driver_error("cuStreamWaitEvent", error))?;
            } else {
                wait_for(&pusher.stream, own + Layout::word(EPOCH_AT), self.epoch)?;
            }
        }
        let (signals_at, value) = match self.captured {
            // A graph cannot know the epoch.
            true => (self.layout.toggles_of(buffer), TOGGLE_SET),
            false => (SIGNALS_AT, self.epoch),
        };
        let transfers = shape.plan.transfers();
        let mut pushers = self.pushers.iter().cycle();
        for round in 1..self.group.ranks() {
            let peer = self.memory.address(transfers.peer_in_round(self.group.rank(), round))?;
            for (push, pusher) in shape.pushes[buffer as usize].iter().zip(&mut pushers) {
                for (offset, bytes) in push.offset.into_iter().zip(push.bytes) {
                    if bytes > 0 {
                        copy(&pusher.stream, peer + offset, own + offset, bytes)?;
                    }
                }
                let slot = push.slot.unsigned_abs();
                write(&pusher.stream, peer + Layout::word(signals_at + slot), value)?;
            }
        }
        for (sender, pusher) in (0..).zip(&self.pushers) {
            if self.captured {
                recorded(&pusher.sent, &pusher.stream)?;
            } else {
                write(&pusher.stream, own + Layout::word(SENT_AT + sender), self.epoch)?;
            }
        }
        Ok(())
    }
}

/// Enqueues a copy between any two places that this GPU reaches.
pub(super) fn copy(
    stream: &CudaStream,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: u64,
) -> Result<()> {
    // SAFETY: the callers name memory of the layout, and rows that `begin`'s caller has vouched for.
    unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream.cu_stream()) }
        .map_err(|error| driver_error("cuMemcpyDtoDAsync", error))
}

/// Lets a stream wait until an epoch has reached `value`.
fn wait_for(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    // The comparison wraps, as epochs do.
    let reached = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: a word of the layout, which lives until the stream is through.
    unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), word, value, reached) }
        .result()
        .map_err(|error| driver_error("cuStreamWaitValue32", error))
}

/// Enqueues the writing of a word, after everything that the stream has written is seen everywhere.
pub(super) fn write(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    // Flags 0: a fence of the whole system comes before the write.
    // SAFETY: a word of the layout, which lives until the stream is through.
    unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), word, value, 0) }
        .result()
        .map_err(|error| driver_error("cuStreamWriteValue32", error))
}
