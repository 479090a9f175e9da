//! Pushing by copy engines: a stream for each pushing lane of the schedule.
//!
//! Invariant: a signal follows its data on the same stream; no stream begins before the step has; sums are sent when the
//! caller's stream has computed them.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaEvent, CudaStream};

use super::course::Course;
use super::marks::{Marks, recorded};
use crate::cuda::exchange::step_shape::{Part, StepShape};
use crate::cuda::exchange::words::{EPOCH_AT, SCRATCH_AT, SENT_AT, SENT_TOGGLES_AT, SIGNALS_AT};
use crate::cuda::sys::bindings::OG_TOGGLE_SET;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{
    PitchedRows, copy, copy_rows, follow, is_capturing, let_go, record, synchronize, untimed_event,
    wait, wait_for, write,
};
use crate::error::Result;
use crate::plan::{Lane, Step, Word};

/// Some columns of rows that are sent: where they are, and where they begin and how long they are in a row, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartOfRows {
    pub(crate) from: PitchedRows,
    pub(crate) column: u64,
    pub(crate) bytes: u64,
}

/// A stream that pushes, and the event at the end of its pushes.
#[derive(Debug)]
pub(crate) struct Pusher {
    pub(crate) stream: Arc<CudaStream>,
    sent: CudaEvent,
}

/// The streams that push, as many as the engine says.
#[derive(Debug)]
pub(crate) struct CopyEngines {
    pub(crate) pushers: Vec<Pusher>,
    /// After the latest sums on the caller's stream: the schedule's `summed`.
    summed: CudaEvent,
}

impl CopyEngines {
    pub(crate) fn new(device: &Device, streams: Vec<Arc<CudaStream>>) -> Result<Self> {
        let pusher = |stream| Ok(Pusher { stream, sent: untimed_event(device)? });
        let pushers = streams.into_iter().map(pusher).collect::<Result<_>>()?;
        Ok(CopyEngines { pushers, summed: untimed_event(device)? })
    }

    /// First uses of a way to a peer take milliseconds, and may wait for what waits for them.
    pub(crate) fn try_the_way(&self, part: &Part, rank: u32, ranks: u32) -> Result<()> {
        for pusher in &self.pushers {
            for peer in (0..ranks).filter(|peer| *peer != rank) {
                let (to, from) = (part.word_of(peer, SCRATCH_AT)?, part.word(SCRATCH_AT));
                // SAFETY: memory of the layout, in which anybody may write anything.
                unsafe {
                    copy(&pusher.stream, to, from, 16)?;
                    write(&pusher.stream, to, 0)?;
                }
            }
            synchronize(&pusher.stream)?;
        }
        Ok(())
    }

    /// Waits until all is done that was enqueued here outside of graphs. A stream that is being captured belongs to a workspace, and
    /// another operation of it was captured before: the barrier between their steps comes after what was enqueued here.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let one = |Pusher { stream, .. }: &Pusher| match is_capturing(stream)? {
            true => Ok(()),
            false => synchronize(stream),
        };
        // All of them, also if one fails.
        self.pushers.iter().map(one).fold(Ok(()), Result::and)
    }

    /// At the end of a captured step: what was enqueued here becomes leaves of the graph. The next step's first kernel waits for
    /// words; if the graph made it wait for the copies, too, it could not start while the product ends.
    pub(crate) fn leave(&self, stream: &Arc<CudaStream>) -> Result<()> {
        for Pusher { stream: pusher, sent } in &self.pushers {
            let_go(pusher)?;
            // A capture has to come back to the stream that it began on.
            follow(stream, sent, pusher)?;
        }
        Ok(())
    }

    /// The schedule's `sent` of one lane: what was enqueued on it so far.
    pub(crate) fn note_sent(&self, push: u32) -> Result<()> {
        let Pusher { stream, sent } = &self.pushers[push as usize];
        record(sent, stream)
    }

    /// What comes next on `stream` comes after that.
    pub(crate) fn await_sent(&self, stream: &Arc<CudaStream>, push: u32) -> Result<()> {
        wait(stream, &self.pushers[push as usize].sent)
    }

    /// What comes next on `stream` comes after all that was enqueued here.
    pub(crate) fn await_all(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let one = |Pusher { stream: pusher, sent }: &Pusher| follow(stream, sent, pusher);
        // All of them, also if one fails.
        self.pushers.iter().map(one).fold(Ok(()), Result::and)
    }

    /// What was computed on `stream` so far may be sent by what is enqueued here from now on.
    pub(crate) fn note_summed(&self, stream: &Arc<CudaStream>) -> Result<()> {
        record(&self.summed, stream)
    }

    /// One step of a pushing lane, on the lane's stream; `own_rows`: where row 0 of what this rank sends is. `totals`: where the
    /// caller's D has the chunk, if a total is sent; else empty.
    pub(crate) fn push(
        &self,
        device: &Device,
        part: &Part,
        course: &Course,
        (shape, buffer, own_rows): (&StepShape, u32, CUdeviceptr),
        (push, step, totals): (u32, &Step, &[PartOfRows]),
        marks: &mut Option<Marks>,
    ) -> Result<()> {
        let (own, layout, rank) = (part.start(), &part.layout, shape.schedule.rank);
        // A graph cannot know the epoch.
        let (signals_at, sent_at, value) = match course.order.captured {
            true => (layout.toggles_of(buffer), SENT_TOGGLES_AT, OG_TOGGLE_SET),
            false => (SIGNALS_AT, SENT_AT, course.epoch),
        };
        let stream = &self.pushers[push as usize].stream;
        match *step {
            Step::Await { word: Word::Summed { .. }, .. } => wait(stream, &self.summed),
            // Begun: nothing else is awaited by a stream of copies.
            Step::Await { .. } if course.order.captured => wait(stream, &course.order.begun),
            Step::Await { .. } => {
                let epoch = part.word(EPOCH_AT);
                // SAFETY: a word of the layout, which lives until the streams are through.
                unsafe { wait_for(stream, epoch, course.epoch) }
            }
            Step::Move { chunk, to } => {
                let (peer, piece) =
                    (part.start_of(to)?, &shape.pieces[buffer as usize][chunk as usize]);
                if let Some(marks) = marks.as_mut() {
                    marks.begin(device, stream, to, chunk)?;
                }
                let lands_at = layout.lands_at(&shape.plan, chunk, [rank, to], buffer);
                for PartOfRows { from, column, bytes } in totals {
                    let to = PitchedRows { start: peer + lands_at + column, pitch: layout.pitch };
                    // SAFETY: there, memory of the layout; here the caller's D, which it has vouched for.
                    unsafe { copy_rows(stream, to, *from, *bytes, piece.rows as u64) }?;
                }
                let [rows, scales] = piece.offset;
                let rows = own_rows + (rows - layout.row(buffer, 0));
                for ((from, to), bytes) in
                    [(rows, lands_at), (own + scales, scales)].into_iter().zip(piece.bytes)
                {
                    if bytes > 0 && totals.is_empty() {
                        // SAFETY: on both sides memory of the layout, or here the caller's sums, which it has vouched for.
                        unsafe { copy(stream, peer + to, from, bytes) }?;
                    }
                }
                Ok(())
            }
            Step::Post {
                word: Word::Landed { chunk } | Word::Partial { chunk, .. }, to, ..
            } => {
                let slot = layout.signal_slot(&shape.plan, chunk, rank);
                let signal = part.word_of(to, signals_at + slot)?;
                // SAFETY: as above.
                unsafe { write(stream, signal, value) }?;
                marks.as_ref().map_or(Ok(()), |marks| marks.end(stream))
            }
            // Sent: nothing else is posted by a stream of copies but signals.
            // SAFETY: as above.
            Step::Post { .. } => unsafe { write(stream, part.word(sent_at + push), value) },
            // Of the caller's stream.
            Step::Multiply { .. } | Step::Reduce { .. } => Ok(()),
        }
    }

    /// Keeps when the kernel that begins this step, and pushes, was at work: `begun` was recorded before it.
    ///
    /// Its last block lets this rank's epoch grow when all is pushed. Another stream looks for that, so that nothing comes
    /// between the kernel and the product, which starts while the other still pushes. It began to look a moment after
    /// the kernel was launched, so what is quicker than that seems to take as long.
    pub(crate) fn mark_kernel(
        &self,
        device: &Device,
        part: &Part,
        epoch: u32,
        begun: CudaEvent,
        shape: &StepShape,
        marks: &mut Marks,
    ) -> Result<()> {
        let Some(watcher) = self.pushers.first() else { return Ok(()) };
        let word = part.word(EPOCH_AT);
        // SAFETY: a word of the layout, which lives until the stream is through.
        unsafe { wait_for(&watcher.stream, word, epoch) }?;
        let pushed = recorded(device, &watcher.stream)?;
        let pushes = shape.schedule.lane(Lane::Push(0)).filter_map(|step| match *step {
            Step::Move { chunk, to } => Some((Some(to), chunk)),
            Step::Await { .. } | Step::Post { .. } => None,
            Step::Multiply { .. } | Step::Reduce { .. } => None,
        });
        marks.by_kernel(pushes, begun, pushed);
        Ok(())
    }
}
