//! Device memory that a planned product needs for itself, used by one stream at a time.
//!
//! What belongs here: who may use the memory when. Invariant: any two uses are ordered. Calls are
//! ordered by a lock; work on one stream by the stream; a change of stream by an event. A graph may
//! be launched at any later time on the stream it was captured on, with nobody to ask: so a captured
//! use keeps the workspace on its stream, and the memory where it is, for good.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr};

use super::Driver;
use super::device::Device;
use super::stream_ops::{follow, is_capturing};
use crate::error::{Error, Result};
use crate::sync::lock;

#[derive(Debug)]
pub(crate) struct Workspace {
    memory: ManuallyDrop<CudaSlice<u8>>,
    address: u64,
    uses: Mutex<Uses>,
}

#[derive(Debug)]
struct Uses {
    last: Option<Arc<CudaStream>>,
    captured: bool,
    /// Made when the product was planned, so that a call makes none.
    handover: CudaEvent,
}

/// The right to use the workspace in the work that is enqueued while this lives.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    pub(crate) address: u64,
    _uses: MutexGuard<'a, Uses>,
}

impl Workspace {
    /// `bytes` zero bytes; none are needed for 0.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Option<Self>> {
        if bytes == 0 {
            return Ok(None);
        }
        let stream = device.new_stream()?;
        let memory = stream.alloc_zeros::<u8>(bytes as usize).in_call("cuMemAllocAsync")?;
        let handover = device.context().new_event(None).in_call("cuEventCreate")?;
        // Other streams will use it, and allocation and zeros are in the order of this one.
        stream.synchronize().in_call("cuStreamSynchronize")?;
        let address = memory.device_ptr(&stream).0;
        let uses = Mutex::new(Uses { last: None, captured: false, handover });
        Ok(Some(Workspace { memory: ManuallyDrop::new(memory), address, uses }))
    }

    /// Waits, on `stream` and not here, until the last use on another stream is over.
    pub(crate) fn lease(&self, stream: &Arc<CudaStream>) -> Result<Lease<'_>> {
        let mut uses = self.lock();
        let capturing = uses.check(stream)?;
        if let Some(last) = uses.last.as_ref().filter(|last| *last != stream) {
            follow(stream, &uses.handover, last)?;
        }
        if uses.last.as_ref() != Some(stream) {
            uses.last = Some(Arc::clone(stream));
        }
        uses.captured |= capturing;
        Ok(Lease { address: self.address, _uses: uses })
    }

    /// Whether [`Workspace::lease`] would refuse.
    pub(crate) fn check(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.lock().check(stream).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Uses> {
        lock(&self.uses)
    }
}

impl Uses {
    /// An error if `stream` cannot be the next one; else whether it is captured.
    fn check(&self, stream: &Arc<CudaStream>) -> Result<bool> {
        let capturing = is_capturing(stream)?;
        let Some(last) = self.last.as_ref().filter(|last| *last != stream) else {
            return Ok(capturing);
        };
        if self.captured || capturing || is_capturing(last)? {
            return Err(Error::Unsupported {
                what: "a product that cuts K into slices, in a graph and on another stream,".into(),
                why: "its workspace is used by one stream at a time, and nobody can tell when a \
                      graph is launched"
                    .into(),
                remedy: "plan another product for the graph",
            });
        }
        Ok(capturing)
    }

    /// Whether memory that is freed on `stream` from now on is freed after the last use.
    fn end_before(&self, stream: &CudaStream) -> Result<bool> {
        let Some(last) = &self.last else { return Ok(true) };
        if self.captured || is_capturing(last)? {
            return Ok(false);
        }
        follow(stream, &self.handover, last).map(|()| true)
    }
}

impl Drop for Workspace {
    /// The memory is freed in the order of its own stream: behind the last use. It stays where nobody knows when
    /// that is: in a graph, or where the driver refuses to say.
    fn drop(&mut self) {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let context = Arc::clone(self.memory.context());
        // `cudarc` keeps an error of an earlier drop for the next call, which then does nothing. None of the calls below may
        // be that call: the error is taken here, and put back at the end.
        let kept = context.check_err();
        if uses.end_before(self.memory.stream()).unwrap_or(false) {
            // SAFETY: nobody uses the memory or this field any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        context.record_err(kept);
    }
}
