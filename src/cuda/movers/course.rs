//! Where a rank is in the sequence of its steps.
//!
//! What belongs here: which buffer and epoch come next, in which order steps are. Invariant: the buffers alternate, as far as this
//! side counts.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::exchange::step_order::StepOrder;
use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::sys::stream_ops::record;
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) order: StepOrder,
    /// The buffer of the next step, and the epoch of the latest one as far as this side has counted.
    pub(crate) next_buffer: u32,
    pub(crate) epoch: u32,
    pub(crate) first_is_over: bool,
    pub(crate) latest: Option<Arc<StepShape>>,
}

impl Course {
    /// Before the first step, whose epoch is the one after `epoch`.
    pub(crate) fn new(order: StepOrder, epoch: u32) -> Self {
        Course { order, next_buffer: 0, epoch, first_is_over: false, latest: None }
    }

    /// Behind a step's beginning on `stream`: in a graph, streams that push wait for `order.begun`.
    pub(crate) fn note_begun(&self, stream: &Arc<CudaStream>) -> Result<()> {
        // The stream of the product has nothing between two kernels where it can be helped, so that one starts while
        // the other ends.
        if !self.order.captured {
            return Ok(());
        }
        record(&self.order.begun, stream)
    }

    /// The next step has been enqueued: another epoch, and the other buffer.
    pub(crate) fn advance(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.next_buffer = 1 - self.next_buffer;
    }
}
