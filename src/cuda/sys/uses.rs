//! Streams that may still touch some memory.
//!
//! Invariant: what was enqueued on a stream that was noted is waited for before the memory goes, unless sixteen other
//! streams are noted between a call's note and its enqueue; what is in a graph may be used at any later time. However
//! many streams come and go, few are kept: behind the work of an older one comes one stream that nobody else has
//! (`Tail`). No stream is queried, which would end a capture elsewhere.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaEvent, CudaStream, sys};

use super::Driver;
use super::device::Device;
use super::stream_ops::{follow, is_capturing, synchronize, untimed_event};
use crate::error::Result;
use crate::sync::lock;

/// How many streams are kept: more than a caller uses side by side.
const KEPT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Uses {
    streams: Mutex<Streams>,
    captured: AtomicBool,
}

#[derive(Debug, Default)]
struct Streams {
    /// The one that was not used for longest first.
    kept: VecDeque<Arc<CudaStream>>,
    tail: Option<Tail>,
}

/// Comes behind all work of the streams that are kept no longer.
#[derive(Debug)]
struct Tail {
    stream: Arc<CudaStream>,
    event: CudaEvent,
}

impl Uses {
    /// Notes that `stream` of `device` will touch the memory, and makes the context current.
    pub(crate) fn begin<'a>(
        &self,
        device: &Device,
        stream: &'a Arc<CudaStream>,
    ) -> Result<&'a Arc<CudaStream>> {
        device.check_stream(stream)?;
        device.bind()?;
        let mut streams = lock(&self.streams);
        match streams.kept.iter().position(|known| known == stream) {
            Some(at) => {
                // To the back: what this call enqueues comes later than what is here now.
                let known = streams.kept.remove(at);
                streams.kept.extend(known);
            }
            None => {
                if streams.kept.len() >= KEPT {
                    streams.retire_one(device)?;
                }
                streams.kept.push_back(Arc::clone(stream));
            }
        }
        Ok(stream)
    }

    /// Whether what comes next on `stream` is recorded into a graph; if so, that is kept in mind.
    pub(crate) fn note_capture(&self, stream: &CudaStream) -> Result<bool> {
        let capturing = is_capturing(stream)?;
        if capturing {
            // Relaxed: read when nobody else has this value any more.
            self.captured.store(true, Ordering::Relaxed);
        }
        Ok(capturing)
    }

    /// Whether a graph may use the memory, of which nobody knows when it is launched.
    pub(crate) fn are_in_graphs(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Waits for all work that was noted. Fails where a stream is being captured, or the context is lost: then nobody
    /// can say when the last kernel has ended.
    pub(crate) fn wait(&self) -> Result<()> {
        let streams = lock(&self.streams);
        let tail = streams.tail.as_ref().map(|tail| &tail.stream);
        // All of them, also if one fails.
        streams.kept.iter().chain(tail).map(|stream| synchronize(stream)).fold(Ok(()), Result::and)
    }
}

impl Streams {
    /// Lets go of the oldest stream that is not being captured, if there is one.
    fn retire_one(&mut self, device: &Device) -> Result<()> {
        // One that cannot be asked is kept: the legacy stream, while another is being captured.
        let idle =
            |stream: &Arc<CudaStream>| is_capturing(stream).is_ok_and(|capturing| !capturing);
        let Some(oldest) = self.kept.iter().position(idle) else { return Ok(()) };
        let tail = match &mut self.tail {
            Some(tail) => tail,
            none => none.insert(Tail::new(device)?),
        };
        follow(&tail.stream, &tail.event, &self.kept[oldest])?;
        self.kept.remove(oldest);
        Ok(())
    }
}

impl Tail {
    /// Also while another thread captures: making a stream is none of that capture's business.
    fn new(device: &Device) -> Result<Tail> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is to a live value; the mode is this thread's own, and set back below.
        let mut exchange = || unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result();
        let mut exchange = || exchange().in_call("cuThreadExchangeStreamCaptureMode");
        exchange()?;
        let made = device
            .new_stream()
            .and_then(|stream| Ok(Tail { stream, event: untimed_event(device)? }));
        exchange()?;
        made
    }
}
