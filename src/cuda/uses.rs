//! Streams that may still touch some memory.
//!
//! Invariant: a stream that was noted is waited for before the memory goes; what is in a graph may be used at any later time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;

use super::device::Device;
use super::driver_error;
use super::workspace::is_capturing;
use crate::error::Result;

/// The streams that have used something.
#[derive(Debug, Default)]
pub(super) struct Uses {
    streams: Mutex<Vec<Arc<CudaStream>>>,
    captured: AtomicBool,
}

impl Uses {
    /// Notes that `stream` of `device` will touch the memory, and makes the context current.
    pub(super) fn begin<'a>(
        &self,
        device: &Device,
        stream: &'a Arc<CudaStream>,
    ) -> Result<&'a Arc<CudaStream>> {
        device.check_stream(stream)?;
        device.bind()?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(stream) {
            streams.push(Arc::clone(stream));
        }
        Ok(stream)
    }

    /// Whether what comes next on `stream` is recorded into a graph; if so, that is kept in mind.
    pub(super) fn note_capture(&self, stream: &CudaStream) -> Result<bool> {
        let capturing = is_capturing(stream)?;
        if capturing {
            // Relaxed: read when nobody else has this value any more.
            self.captured.store(true, Ordering::Relaxed);
        }
        Ok(capturing)
    }

    /// Whether a graph may use the memory, of which nobody knows when it is launched.
    pub(super) fn are_in_graphs(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Waits for all of them. Fails where one is being captured, or the context is lost: then nobody can say when
    /// the last kernel has ended.
    pub(super) fn wait(&self) -> Result<()> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // All of them, whatever becomes of one.
        let waited: Vec<_> = streams.iter().map(|stream| stream.synchronize()).collect();
        let waited = waited.into_iter().collect::<std::result::Result<(), _>>();
        waited.map_err(|error| driver_error("cuStreamSynchronize", error))
    }
}
