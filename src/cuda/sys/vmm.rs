//! Memory of one GPU that can be handed to other processes, and places where it is mapped.
//!
//! What belongs here: the driver's virtual memory management, each thing owned by the value that frees it.
//! Invariant: a mapping holds the memory that it shows; memory lives until the last mapping and handle of
//! it, in whichever process, is gone. So no rank can take memory from under another.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::Driver;
use super::device::Device;
use crate::error::{Error, Result};

/// As a file descriptor: what a unix socket can carry.
const AS_FILE: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory without an address: of this process's making, or another's.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: CUmemGenericAllocationHandle,
    /// What was asked for, rounded up.
    pub(crate) bytes: u64,
    context: Arc<CudaContext>,
}

/// Memory at an address, which this GPU may read and write.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) address: CUdeviceptr,
    mapped: bool,
    pub(crate) memory: Physical,
}

fn status(call: &'static str, result: sys::CUresult) -> Result<()> {
    result.result().in_call(call)
}

fn location(context: &CudaContext) -> CUmemLocation {
    let mut location = MaybeUninit::<CUmemLocation>::zeroed();
    let start = location.as_mut_ptr();
    // SAFETY: a C struct of two 32-bit fields, the kind and the number. From CUDA 13.2 on the second is
    // a union in the bindings, with the same layout: so it is written by its place.
    unsafe {
        (&raw mut (*start).type_).write(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE);
        start.cast::<i32>().add(1).write(context.cu_device());
        location.assume_init()
    }
}

fn properties(context: &CudaContext) -> CUmemAllocationProp {
    let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
    let start = properties.as_mut_ptr();
    // SAFETY: a C struct for which zeros are the defaults; the fields without a zero value are set.
    unsafe {
        (&raw mut (*start).type_).write(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED);
        (&raw mut (*start).requestedHandleTypes).write(AS_FILE);
        (&raw mut (*start).location).write(location(context));
        properties.assume_init()
    }
}

impl Physical {
    /// At least `bytes` bytes on `device`.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        device.bind()?;
        let properties = properties(device.context());
        let (mut unit, mut handle) = (0usize, 0);
        let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: pointers to live values.
        let found =
            unsafe { sys::cuMemGetAllocationGranularity(&mut unit, &properties, recommended) };
        status("cuMemGetAllocationGranularity", found)?;
        let bytes = (bytes.max(1) as usize).checked_next_multiple_of(unit.max(1));
        let bytes = bytes.ok_or_else(|| Error::Cuda {
            call: "cuMemCreate",
            code: None,
            detail: "more bytes than there are addresses".into(),
        })?;
        // SAFETY: pointers to live values.
        status("cuMemCreate", unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) })?;
        Ok(Physical { handle, bytes: bytes as u64, context: Arc::clone(device.context()) })
    }

    /// Memory that another process, or this one, has handed over; `device` will use it.
    pub(crate) fn import(device: &Device, file: &OwnedFd, bytes: u64) -> Result<Self> {
        device.bind()?;
        let mut handle = 0;
        let number = file.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: the driver takes the number of an open file in place of a pointer.
        let imported = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, number, AS_FILE) };
        status("cuMemImportFromShareableHandle", imported)?;
        Ok(Physical { handle, bytes, context: Arc::clone(device.context()) })
    }

    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let mut file = -1i32;
        // SAFETY: for this type of handle the driver writes an int.
        let exported = unsafe {
            sys::cuMemExportToShareableHandle((&raw mut file).cast(), self.handle, AS_FILE, 0)
        };
        status("cuMemExportToShareableHandle", exported)?;
        // SAFETY: a new file that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Gives it an address on its context's GPU, wherever the memory itself is.
    pub(crate) fn map(self) -> Result<Mapping> {
        let bytes = self.bytes as usize;
        let mut address = 0;
        // SAFETY: a pointer to a live value.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) };
        status("cuMemAddressReserve", reserved)?;
        // From here on an early return undoes what was done.
        let mut mapping = Mapping { address, mapped: false, memory: self };
        // SAFETY: the addresses are reserved and empty, the handle is alive and so long.
        let mapped = unsafe { sys::cuMemMap(address, bytes, 0, mapping.memory.handle, 0) };
        status("cuMemMap", mapped)?;
        mapping.mapped = true;
        let access = CUmemAccessDesc {
            location: location(&mapping.memory.context),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses have just been mapped.
        status("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &access, 1) })?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    /// Nobody uses it any more: the owner of this value sees to that.
    fn drop(&mut self) {
        let context = &self.memory.context;
        context.record_err(context.bind_to_thread());
        let bytes = self.memory.bytes as usize;
        if self.mapped {
            // SAFETY: mapped by `map`, unmapped nowhere else.
            context.record_err(unsafe { sys::cuMemUnmap(self.address, bytes) }.result());
        }
        // SAFETY: reserved by `map`, freed nowhere else.
        context.record_err(unsafe { sys::cuMemAddressFree(self.address, bytes) }.result());
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: created or imported here, released nowhere else.
        self.context.record_err(unsafe { sys::cuMemRelease(self.handle) }.result());
    }
}
