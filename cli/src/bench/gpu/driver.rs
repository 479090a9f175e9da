//! The few driver calls that a bench makes, with errors that name the call.
//!
//! Invariant: one thread and one stream use this memory. So `cudarc`'s own tracking is off ([`Gpu::open`]): its waits
//! would be captured into graphs and timed.

use std::sync::Arc;

use overlap_gemm::cuda::Device;
use overlap_gemm::cuda::cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr, CUevent_flags};
use overlap_gemm::cuda::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr, DriverError, result,
};
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::{Error, Result};

/// The GPU, and the stream that everything runs on.
pub struct Gpu {
    pub device: Device,
    pub stream: Arc<CudaStream>,
}

impl Gpu {
    /// Opens a GPU by its number.
    pub fn open(ordinal: usize) -> Result<Gpu> {
        Gpu::of(Device::open(ordinal)?)
    }

    /// This process's group, and its GPU.
    pub fn join(options: &GroupOptions) -> Result<(Arc<Group>, Gpu)> {
        let (group, device) = Device::join(options)?;
        Ok((group, Gpu::of(device)?))
    }

    fn of(device: Device) -> Result<Gpu> {
        // SAFETY: the bench uses one stream, and waits for it before memory is freed or read.
        unsafe { device.context().disable_event_tracking() };
        let stream = device.new_stream()?;
        Ok(Gpu { device, stream })
    }

    /// Waits until everything is done.
    pub fn synchronize(&self) -> Result<()> {
        call("cuStreamSynchronize", self.stream.synchronize())
    }

    /// Bytes of L2 cache.
    pub fn l2_bytes(&self) -> Result<u64> {
        let size = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        let bytes = call("cuDeviceGetAttribute", self.device.context().attribute(size))?;
        Ok(u64::from(bytes.unsigned_abs()))
    }

    /// Bytes of device memory that nobody uses.
    pub fn free_bytes(&self) -> Result<u64> {
        let (free, _) = call("cuMemGetInfo", self.device.context().mem_get_info())?;
        Ok(free as u64)
    }

    /// Memory that holds nothing in particular.
    pub fn allocate(&self, bytes: u64) -> Result<Block> {
        // SAFETY: a `Block` is written through the driver's copies, or by the products that are
        // checked, before anything reads it; nothing on the host does without a copy.
        let slice = unsafe { self.stream.alloc::<u8>(bytes.max(1) as usize) };
        let slice = call("cuMemAllocAsync", slice)?;
        let address = slice.device_ptr(&self.stream).0;
        Ok(Block { _slice: slice, address, bytes })
    }

    /// Memory that holds a copy of `values`.
    pub fn upload(&self, values: &[u8]) -> Result<Block> {
        let block = self.allocate(values.len() as u64)?;
        // On the stream that everything runs on: a call without one returns when the slice has been read, and other streams
        // may then find that its end has not arrived yet.
        // SAFETY: the block is as long as the slice, which stays until the stream is through.
        let copied =
            unsafe { result::memcpy_htod_async(block.address, values, self.stream.cu_stream()) };
        call("cuMemcpyHtoDAsync", copied)?;
        self.synchronize()?;
        Ok(block)
    }

    /// The first bytes of `block`, into all of `values`.
    pub fn download(&self, block: &Block, values: &mut [u8]) -> Result<()> {
        let all = values.len().min(block.bytes as usize);
        self.synchronize()?;
        // SAFETY: no more bytes than either side has; everything enqueued before is done.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut values[..all], block.address) };
        call("cuMemcpyDtoH", copied)
    }

    /// Enqueues a copy within the device.
    ///
    /// # Safety
    /// Both addresses are of live device memory of that many bytes, which do not overlap.
    pub unsafe fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: u64) -> Result<()> {
        let stream = self.stream.cu_stream();
        // SAFETY: the caller's promise.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream) };
        call("cuMemcpyDtoDAsync", copied)
    }

    /// Enqueues setting every bit of `block`: a NaN in every floating-point type.
    pub fn poison(&self, block: &Block) -> Result<()> {
        let (stream, bytes) = (self.stream.cu_stream(), block.bytes as usize);
        // SAFETY: the block is live and so long.
        call("cuMemsetD8Async", unsafe {
            result::memset_d8_async(block.address, 0xff, bytes, stream)
        })
    }

    /// An event that keeps its time.
    pub fn event(&self) -> Result<CudaEvent> {
        let timing = Some(CUevent_flags::CU_EVENT_DEFAULT);
        call("cuEventCreate", self.device.context().new_event(timing))
    }
}

/// Device memory, freed when dropped.
pub struct Block {
    _slice: CudaSlice<u8>,
    pub address: CUdeviceptr,
    pub bytes: u64,
}

/// Names the call that failed.
pub fn call<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| Error::Cuda {
        call,
        code: Some(error.0 as u32),
        detail: error.to_string(),
    })
}
