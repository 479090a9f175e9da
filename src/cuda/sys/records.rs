//! When each tile waited and was computed, as the device writes it down.
//!
//! What belongs here: the buffer for one product's records, and reading them. Invariant: a record is
//! either as the kernel wrote it or recognisably unwritten ([`TileRecords::clear`]), so stale and
//! missing tiles are never taken for computed ones.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};

use super::Driver;
use super::bindings::og_tile_record;
use super::device::Device;
use crate::error::Result;
use crate::plan::Tile;

/// One tile, or one slice of K of it; times are nanoseconds of the GPU's global timer.
///
/// ```no_run
/// use overlap_gemm::cuda::{TileRecord, TileRecords};
/// # fn look(records: &TileRecords, stream: &std::sync::Arc<overlap_gemm::cuda::cudarc::driver::CudaStream>) -> overlap_gemm::Result<()> {
/// let waited = |tile: &TileRecord| tile.ready - tile.wait_begin;
/// println!("{:?} ns", records.read(stream)?.iter().map(waited).max());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRecord {
    /// When the wait for its chunks began.
    pub wait_begin: u64,
    /// When the last of them was there.
    pub ready: u64,
    /// When it had been computed; where K is cut, only in the record of the last slice, which adds the
    /// others up (`u64::MAX` in theirs).
    pub done: u64,
    /// Its place in the visiting order ([`TileOrder::index_of`](crate::plan::TileOrder::index_of)),
    /// times the number of splits, plus the slice of K.
    pub index: u64,
    /// The SM that computed it.
    pub sm: u32,
    /// Its tile row.
    pub tile_m: u32,
    /// Its tile column.
    pub tile_n: u32,
    /// The last of the chunks that its rows touch; `u32::MAX` where the product waits for none.
    pub chunk: u32,
}

impl TileRecord {
    /// Which tile.
    pub fn tile(&self) -> Tile {
        Tile { m: self.tile_m, n: self.tile_n }
    }

    /// The last of the chunks that it had to wait for.
    pub fn waited_for(&self) -> Option<u32> {
        (self.chunk != u32::MAX).then_some(self.chunk)
    }
}

// SAFETY: a plain struct of numbers; any bits are a value of it.
unsafe impl DeviceRepr for og_tile_record {}

/// A device buffer for the records of one product's tiles; the plan makes one that fits it.
///
/// ```no_run
/// use overlap_gemm::cuda::TileRecords;
/// # use overlap_gemm::cuda::{Device, Gemm, GemmOptions, RawOperands};
/// # use overlap_gemm::plan::Problem;
/// # let device = Device::open(0)?;
/// # let stream = device.new_stream()?;
/// # let gemm = Gemm::plan(&device, &Problem::builder(64, 64, 64).build()?, &GemmOptions::default())?;
/// # let operands = RawOperands::new(0, 0, 0);
/// let records: TileRecords = gemm.records()?;
/// let operands = operands.records(records.address(&stream));
/// // SAFETY: the operands are the plan's; they and the records outlive the product.
/// unsafe { gemm.enqueue_raw(&stream, &operands) }?;
/// println!("{} tiles", records.read(&stream)?.len());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct TileRecords {
    pub(crate) memory: CudaSlice<og_tile_record>,
}

impl TileRecords {
    /// Room for `len` records.
    pub(crate) fn new(device: &Device, len: u64) -> Result<Self> {
        let stream = device.new_stream()?;
        // SAFETY: `clear` writes all of it before anybody reads.
        let memory = unsafe { stream.alloc(len as usize) }.in_call("cuMemAllocAsync")?;
        let mut records = TileRecords { memory };
        records.clear(&stream)?;
        // Other streams will use it, and the allocation is in the order of this one.
        stream.synchronize().in_call("cuStreamSynchronize")?;
        Ok(records)
    }

    /// How many records there are: tiles times splits.
    #[expect(clippy::len_without_is_empty, reason = "every product has a tile")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// For [`RawOperands::records`](crate::cuda::RawOperands::records); the buffer has to outlive the work.
    pub fn address(&self, stream: &CudaStream) -> CUdeviceptr {
        self.memory.device_ptr(stream).0
    }

    /// Forgets what was recorded, in the order of `stream`.
    pub fn clear(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let bytes = self.memory.num_bytes();
        let (address, _guard) = self.memory.device_ptr_mut(stream);
        stream.context().bind_to_thread().in_call("cuCtxSetCurrent")?;
        // SAFETY: the buffer is this long, and the guard records its use on the stream.
        unsafe { cudarc::driver::result::memset_d8_async(address, 0xff, bytes, stream.cu_stream()) }
            .in_call("cuMemsetD8Async")
    }

    /// What was recorded, by tile row, column and slice; tiles that were not computed are left out.
    /// Waits for `stream`.
    pub fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<TileRecord>> {
        let records = stream.clone_dtoh(&self.memory).in_call("cuMemcpyDtoHAsync")?;
        stream.synchronize().in_call("cuStreamSynchronize")?;
        let written = records.into_iter().filter(|record| record.index != u64::MAX);
        Ok(written.map(TileRecord::from).collect())
    }
}

impl From<og_tile_record> for TileRecord {
    fn from(record: og_tile_record) -> Self {
        let og_tile_record { wait_begin, ready, done, index, sm, tile_m, tile_n, chunk } = record;
        TileRecord { wait_begin, ready, done, index, sm, tile_m, tile_n, chunk }
    }
}
