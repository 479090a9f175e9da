//! Streams that may still touch some memory.
//!
//! Invariant: a stream that was noted is waited for before the memory goes.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;

use super::device::Device;
use super::driver_error;
use crate::error::Result;

/// The streams that have used something.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<Vec<Arc<CudaStream>>>);

impl Uses {
    /// Notes that `stream` of `device` will touch the memory, and makes the context current.
    pub(super) fn begin<'a>(
        &self,
        device: &Device,
        stream: &'a Arc<CudaStream>,
    ) -> Result<&'a Arc<CudaStream>> {
        device.check_stream(stream)?;
        device.bind()?;
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(stream) {
            streams.push(Arc::clone(stream));
        }
        Ok(stream)
    }

    /// Waits for all of them. Fails where one is being captured, or the context is lost: then nobody can say when
    /// the last kernel has ended.
    pub(super) fn wait(&self) -> Result<()> {
        let streams = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // All of them, whatever becomes of one.
        let waited: Vec<_> = streams.iter().map(|stream| stream.synchronize()).collect();
        let waited = waited.into_iter().collect::<std::result::Result<(), _>>();
        waited.map_err(|error| driver_error("cuStreamSynchronize", error))
    }
}
