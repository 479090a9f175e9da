//! When the pushes of one step began and were signalled, and when sums were added up: events on the streams that do it, or around a
//! kernel that does.
//!
//! What belongs here: making, recording and reading them. Invariant: a step that nobody asked about has none, for they
//! cost time on the stream.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::cuda::sys::Driver;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::record;
use crate::error::Result;

/// One push to one rank, or one addition.
#[derive(Debug)]
pub(crate) struct Mark {
    /// `None`: the chunk was added up.
    pub(crate) to: Option<u32>,
    pub(crate) chunk: u32,
    begin: Arc<CudaEvent>,
    end: Arc<CudaEvent>,
}

/// The pushes and additions of one step, in the order in which they were enqueued.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    /// Before a push's data, on its stream.
    pub(crate) fn begin(
        &mut self,
        device: &Device,
        stream: &Arc<CudaStream>,
        to: u32,
        chunk: u32,
    ) -> Result<()> {
        let begin = Arc::new(recorded(device, stream)?);
        self.0.push(Mark { to: Some(to), chunk, begin, end: Arc::new(event(device)?) });
        Ok(())
    }

    /// All that a kernel did: it tells nobody when it goes from one to the next, so each is somewhere within its time.
    pub(crate) fn by_kernel(
        &mut self,
        done: impl Iterator<Item = (Option<u32>, u32)>,
        begin: CudaEvent,
        end: CudaEvent,
    ) {
        let (begin, end) = (Arc::new(begin), Arc::new(end));
        self.0.extend(done.map(|(to, chunk)| {
            let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
            Mark { to, chunk, begin, end }
        }));
    }

    /// After its signal.
    pub(crate) fn end(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.0.last().map_or(Ok(()), |mark| record(&mark.end, stream))
    }

    /// Each of them, and how many milliseconds before `event` it began and ended. Waits for all of them.
    pub(crate) fn before(&self, event: &CudaEvent) -> Result<Vec<(&Mark, f64, f64)>> {
        let ms = |from: &CudaEvent| {
            let waited = from.synchronize().and_then(|()| event.synchronize());
            waited.in_call("cuEventSynchronize")?;
            from.elapsed_ms(event).map(f64::from).in_call("cuEventElapsedTime")
        };
        self.0.iter().map(|mark| Ok((mark, ms(&mark.begin)?, ms(&mark.end)?))).collect()
    }
}

/// An event that knows its time.
pub(crate) fn event(device: &Device) -> Result<CudaEvent> {
    device.context().new_event(Some(CU_EVENT_DEFAULT)).in_call("cuEventCreate")
}

/// One that is recorded.
pub(crate) fn recorded(device: &Device, stream: &Arc<CudaStream>) -> Result<CudaEvent> {
    let event = event(device)?;
    record(&event, stream)?;
    Ok(event)
}
