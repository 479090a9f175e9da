//! When each tile waited and was computed, as the device writes it down.
//!
//! What belongs here: the buffer for one product's records, and reading them. Invariant: a record is
//! either as the kernel wrote it or recognisably unwritten ([`TileRecords::clear`]), so stale and
//! missing tiles are never taken for computed ones.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};

use super::call::TileRecord;
use super::device::Device;
use super::driver_error;
use crate::error::{Error, Result};

/// A device buffer for the records of one product's tiles; the plan makes one that fits it.
#[derive(Debug)]
pub struct TileRecords {
    memory: CudaSlice<u8>,
    len: usize,
}

impl TileRecords {
    /// Room for `len` records.
    pub(crate) fn new(device: &Device, len: u64) -> Result<Self> {
        let too_many = || {
            let most = (isize::MAX as u64) / size_of::<TileRecord>() as u64;
            let remedy = "record a smaller product";
            Error::out_of_range("the number of tile records", len, 1, most, remedy)
        };
        let len = usize::try_from(len).map_err(|_| too_many())?;
        let bytes = len.checked_mul(size_of::<TileRecord>()).ok_or_else(too_many)?;
        let stream = device.new_stream()?;
        // SAFETY: `clear` writes all of it before anybody reads.
        let memory = unsafe { stream.alloc::<u8>(bytes) }
            .map_err(|error| driver_error("cuMemAllocAsync", error))?;
        let mut records = TileRecords { memory, len };
        records.clear(&stream)?;
        // Other streams will use it, and the allocation is in the order of this one.
        stream.synchronize().map_err(|error| driver_error("cuStreamSynchronize", error))?;
        Ok(records)
    }

    /// How many records there are: tiles times splits.
    #[expect(clippy::len_without_is_empty, reason = "every product has a tile")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// For [`RawOperands::records`](crate::cuda::RawOperands::records); the buffer has to outlive the work.
    pub fn address(&self, stream: &CudaStream) -> CUdeviceptr {
        self.memory.device_ptr(stream).0
    }

    /// Forgets what was recorded, in the order of `stream`.
    pub fn clear(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let bytes = self.memory.len();
        let (address, _guard) = self.memory.device_ptr_mut(stream);
        stream
            .context()
            .bind_to_thread()
            .map_err(|error| driver_error("cuCtxSetCurrent", error))?;
        // SAFETY: the buffer is this long, and the guard records its use on the stream.
        unsafe { cudarc::driver::result::memset_d8_async(address, 0xff, bytes, stream.cu_stream()) }
            .map_err(|error| driver_error("cuMemsetD8Async", error))
    }

    /// What was recorded, by tile row, column and slice; tiles that were not computed are left out.
    /// Waits for `stream`.
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<TileRecord>> {
        let bytes = stream
            .clone_dtoh(&self.memory)
            .map_err(|error| driver_error("cuMemcpyDtoHAsync", error))?;
        stream.synchronize().map_err(|error| driver_error("cuStreamSynchronize", error))?;
        let records = bytes.chunks_exact(size_of::<TileRecord>()).map(parse);
        Ok(records.filter(|record| record.index != u64::MAX).collect())
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.memory.context()
    }

    pub(crate) fn memory_mut(&mut self) -> &mut CudaSlice<u8> {
        &mut self.memory
    }
}

/// One record from its bytes, in the order of the fields.
fn parse(bytes: &[u8]) -> TileRecord {
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[32 + 4 * at + i]));
    TileRecord {
        wait_begin: long(0),
        ready: long(1),
        done: long(2),
        index: long(3),
        sm: word(0),
        tile_m: word(1),
        tile_n: word(2),
        chunk: word(3),
    }
}
