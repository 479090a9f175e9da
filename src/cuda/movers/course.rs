//! Where a rank is in the sequence of its steps.
//!
//! What belongs here: which buffer and epoch come next, whether a graph has been captured, and the stream of the latest
//! step. Invariant: steps have one order, so a step on another stream comes behind the one before.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{follow, is_capturing, record};
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Course {
    /// What other streams wait for: the end of the step before, or the beginning of this one.
    pub(crate) begun: CudaEvent,
    /// The buffer of the next step, and the epoch of the latest one as far as this side has counted.
    pub(crate) next_buffer: u32,
    pub(crate) epoch: u32,
    /// A step was captured: from then on only the device knows the epoch.
    pub(crate) captured: bool,
    /// The capture that the latest step was in.
    pub(crate) latest_capture: Option<u64>,
    pub(crate) first_is_over: bool,
    pub(crate) latest: Option<Arc<StepShape>>,
    pub(crate) last_stream: Option<Arc<CudaStream>>,
}

impl Course {
    /// Before the first step, whose epoch is the one after `epoch`.
    pub(crate) fn new(begun: CudaEvent, epoch: u32) -> Self {
        Course {
            begun,
            next_buffer: 0,
            epoch,
            captured: false,
            latest_capture: None,
            first_is_over: false,
            latest: None,
            last_stream: None,
        }
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
                remedy: "capture on the stream of the steps before, or plan another operation",
            });
        }
        Ok(())
    }

    /// Steps have one order: a step on another stream comes behind the one before.
    pub(crate) fn follow(&mut self, device: &Device, stream: &Arc<CudaStream>) -> Result<()> {
        self.check_stream(device, stream)?;
        if let Some(last) = self.last_stream.as_ref().filter(|last| *last != stream) {
            follow(stream, &self.begun, last)?;
        }
        self.last_stream = Some(Arc::clone(stream));
        Ok(())
    }

    /// Whether the step before this one may have had the same buffer, on the device: it was in another graph, or in none. The host
    /// does not know how often graphs are launched.
    pub(crate) fn may_repeat_buffer(&self, capture: Option<u64>) -> bool {
        self.captured && (capture.is_none() || capture != self.latest_capture)
    }

    /// Behind a step's beginning on `stream`: in a graph, streams that push wait for [`Course::begun`].
    pub(crate) fn note_begun(&self, stream: &Arc<CudaStream>) -> Result<()> {
        // The stream of the product has nothing between two kernels where it can be helped, so that one starts while
        // the other ends.
        if !self.captured {
            return Ok(());
        }
        record(&self.begun, stream)
    }

    /// The next step has been enqueued: another epoch, and the other buffer.
    pub(crate) fn advance(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.next_buffer = 1 - self.next_buffer;
    }
}
