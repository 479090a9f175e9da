//! Moving rows: into the own slot, to the other ranks by copy engines, and out of the way.
//!
//! Invariant: a signal follows its data on the same stream; no stream begins before the step has.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, result};

use super::{Gatherer, OwnRows};
use crate::cuda::exchange::layout::{Layout, SENT_AT, SENT_TOGGLES_AT};
use crate::cuda::exchange::signals::{EPOCH_AT, SIGNALS_AT};
use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::movers::marks::recorded;
use crate::cuda::sys::call::TOGGLE_SET;
use crate::cuda::sys::driver_error;
use crate::cuda::sys::stream_ops::{copy, wait_for, write};
use crate::error::Result;
use crate::plan::{Lane, Step, Word};

/// A stream that pushes, and the event at the end of its pushes.
#[derive(Debug)]
pub(crate) struct Pusher {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) sent: CudaEvent,
}

impl Gatherer {
    /// Fills the other ranks' rows of the latest step with NaN. Its own may still be on their way.
    pub(crate) fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
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
    pub(crate) fn bring(
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
            let slot = start + self.layout.row(buffer, rows.start);
            // SAFETY: a slot of the layout; the caller of `begin` has vouched for the rows.
            unsafe { copy(stream, slot, from, rows_bytes) }?;
        }
        let scales_bytes = self.layout.scales_bytes(count);
        if scales_bytes > 0 {
            let slot = start + self.layout.scale(buffer, rows.start);
            // SAFETY: as above.
            unsafe { copy(stream, slot, own.scales, scales_bytes) }?;
        }
        Ok(())
    }

    /// The pushing lanes of the schedule, a stream each.
    pub(crate) fn push_by_copies(
        &mut self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
        capturing: bool,
    ) -> Result<()> {
        let own = self.memory.own_address();
        let record = |event: &CudaEvent, stream: &CudaStream| {
            event.record(stream).map_err(|error| driver_error("cuEventRecord", error))
        };
        // The stream of the product has nothing between two kernels where it can be helped, so that one starts while
        // the other ends.
        if self.captured {
            record(&self.begun, stream)?;
        }
        // A graph cannot know the epoch.
        let (signals_at, sent_at, value) = match self.captured {
            true => (self.layout.toggles_of(buffer), SENT_TOGGLES_AT, TOGGLE_SET),
            false => (SIGNALS_AT, SENT_AT, self.epoch),
        };
        let mut marks = self.marks.take();
        for (lane, step) in &shape.schedule.steps {
            let Lane::Push(push) = lane else { continue };
            let pusher = &self.pushers[*push as usize];
            match *step {
                // Begun: nothing else is awaited by a stream of copies.
                Step::Await { .. } if self.captured => {
                    let waited = pusher.stream.wait(&self.begun);
                    waited.map_err(|error| driver_error("cuStreamWaitEvent", error))?;
                }
                Step::Await { .. } => {
                    let epoch = own + Layout::word(EPOCH_AT);
                    // SAFETY: a word of the layout, which lives until the streams are through.
                    unsafe { wait_for(&pusher.stream, epoch, self.epoch) }?;
                }
                Step::Move { chunk, to } => {
                    let (peer, piece) =
                        (self.memory.address(to)?, &shape.pieces[buffer as usize][chunk as usize]);
                    if let Some(marks) = &mut marks {
                        marks.begin(&self.device, &pusher.stream, to, chunk)?;
                    }
                    for (offset, bytes) in piece.offset.into_iter().zip(piece.bytes) {
                        if bytes > 0 {
                            // SAFETY: on both sides memory of the layout.
                            unsafe { copy(&pusher.stream, peer + offset, own + offset, bytes) }?;
                        }
                    }
                }
                Step::Post { word: Word::Landed { chunk }, to, .. } => {
                    let slot = shape.pieces[buffer as usize][chunk as usize].slot.unsigned_abs();
                    let signal = self.memory.address(to)? + Layout::word(signals_at + slot);
                    // SAFETY: as above.
                    unsafe { write(&pusher.stream, signal, value) }?;
                    if let Some(marks) = &marks {
                        marks.end(&pusher.stream)?;
                    }
                }
                Step::Post { .. } => {
                    // Sent: nothing else is posted by a stream of copies but signals.
                    // SAFETY: as above.
                    unsafe { write(&pusher.stream, own + Layout::word(sent_at + push), value) }?;
                    if capturing {
                        record(&pusher.sent, &pusher.stream)?;
                    }
                }
                Step::Multiply { .. } => {}
            }
        }
        self.marks = marks;
        Ok(())
    }

    /// Keeps when the kernel that begins this step, and pushes, was at work: `begun` was recorded before it.
    ///
    /// Its last block lets this rank's epoch grow when all is pushed. Another stream looks for that, so that nothing comes
    /// between the kernel and the product, which starts while the other still pushes. It was told to look a moment after
    /// the kernel was launched, so what is quicker than that seems to take as long.
    pub(crate) fn mark_kernel(&mut self, begun: CudaEvent, shape: &StepShape) -> Result<()> {
        let (Some(marks), Some(watcher)) = (&mut self.marks, self.pushers.first()) else {
            return Ok(());
        };
        let epoch = self.memory.own_address() + Layout::word(EPOCH_AT);
        // SAFETY: a word of the layout, which lives until the stream is through.
        unsafe { wait_for(&watcher.stream, epoch, self.epoch) }?;
        let pushed = recorded(&self.device, &watcher.stream)?;
        let pushes = shape.schedule.lane(Lane::Push(0)).filter_map(|step| match *step {
            Step::Move { chunk, to } => Some((to, chunk)),
            Step::Await { .. } | Step::Post { .. } | Step::Multiply { .. } => None,
        });
        marks.by_kernel(pushes, begun, pushed);
        Ok(())
    }
}
