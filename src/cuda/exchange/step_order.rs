//! The order of steps that use the same memory.
//!
//! What belongs here: on which stream the latest step is, and in which graph. Invariant: steps have one order, so a step on
//! another stream comes behind the one before.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{follow, is_capturing, untimed_event};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct StepOrder {
    /// What other streams wait for: the end of the step before, or the beginning of this one.
    pub(crate) begun: CudaEvent,
    /// A step was captured: from then on only the device knows which step is the latest.
    pub(crate) captured: bool,
    /// The capture that the latest step was in.
    latest_capture: Option<u64>,
    pub(crate) last_stream: Option<Arc<CudaStream>>,
}

impl StepOrder {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let begun = untimed_event(device)?;
        Ok(StepOrder { begun, captured: false, latest_capture: None, last_stream: None })
    }

    /// An error if the next step cannot be on `stream`.
    pub(crate) fn check_stream(&self, device: &Device, stream: &Arc<CudaStream>) -> Result<()> {
        device.check_stream(stream)?;
        let Some(last) = self.last_stream.as_ref().filter(|last| *last != stream) else {
            return Ok(());
        };
        if self.captured || is_capturing(stream)? || is_capturing(last)? {
            return Err(Error::Unsupported {
                what: "an operation in a graph and on another stream".into(),
                why: "its steps have one order, and nobody can tell when a graph is launched"
                    .into(),
                remedy: "capture on the stream of the steps before, or plan another operation with memory of its own",
            });
        }
        Ok(())
    }

    /// The next step is on `stream`, in that capture, and comes behind the one before. Whether, on the device, another step may
    /// have come between them: this one begins another graph, or is in none while there are graphs. The host does not know how
    /// often graphs are launched.
    pub(crate) fn next(
        &mut self,
        device: &Device,
        stream: &Arc<CudaStream>,
        capture: Option<u64>,
    ) -> Result<bool> {
        self.check_stream(device, stream)?;
        if let Some(last) = self.last_stream.as_ref().filter(|last| *last != stream) {
            follow(stream, &self.begun, last)?;
        }
        self.last_stream = Some(Arc::clone(stream));
        self.captured |= capture.is_some();
        let is_cut_off = self.captured && (capture.is_none() || capture != self.latest_capture);
        self.latest_capture = capture;
        Ok(is_cut_off)
    }
}
