//! A step that keeps when its parts were.
//!
//! Invariant: a step has marks exactly between [`Gatherer::mark_step`] and [`Gatherer::take_marks`].

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use super::Gatherer;
use crate::cuda::movers::marks::{self, Marks};
use crate::error::Result;

impl Gatherer {
    /// Keeps when the pushes and additions of the next step begin and end: [`Gatherer::take_marks`] has them.
    pub(crate) fn mark_step(&mut self) {
        self.marks = Some(Marks::default());
    }

    /// Now, if marks are kept: before an addition on `stream`.
    pub(crate) fn mark(&self, stream: &Arc<CudaStream>) -> Result<Option<CudaEvent>> {
        self.marks.is_some().then(|| marks::recorded(&self.device, stream)).transpose()
    }

    /// The additions of these chunks, which began at `begin`, have been enqueued.
    pub(crate) fn mark_added(
        &mut self,
        stream: &Arc<CudaStream>,
        chunks: impl Iterator<Item = u32>,
        begin: Option<CudaEvent>,
    ) -> Result<()> {
        let (Some(begin), Some(marks)) = (begin, &mut self.marks) else { return Ok(()) };
        let end = marks::recorded(&self.device, stream)?;
        marks.by_kernel(chunks.map(|chunk| (None, chunk)), begin, end);
        Ok(())
    }

    /// The marks of the step that was enqueued since [`Gatherer::mark_step`]. A kernel's have one time for all; NCCL
    /// leaves none, nor does a kernel that pushes rows once a step was captured, for then only the device knows the epoch.
    pub(crate) fn take_marks(&mut self) -> Marks {
        self.marks.take().unwrap_or_default()
    }
}
