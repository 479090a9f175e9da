//! Memory of one GPU that can be handed to other processes, and addresses at which it is mapped.
//!
//! What belongs here: the driver's virtual memory management, each thing owned by the value that frees it.
//! Invariant: a mapping holds the memory that it shows, which only grows; memory lives until the last mapping and handle of
//! it, in whichever process, is gone. So no rank can take memory from under another.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::Driver;
use super::device::Device;
use crate::error::{Error, Result};
use crate::sync::lock;

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

/// Addresses of this GPU. From the first one on, memory is mapped there that it may read and write.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) address: CUdeviceptr,
    reserved: u64,
    /// One behind the other.
    memory: Mutex<Vec<Physical>>,
    context: Arc<CudaContext>,
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

/// `bytes`, rounded up to what memory of `device` is made and mapped in.
pub(crate) fn in_whole_pages(device: &Device, bytes: u64) -> Result<u64> {
    device.bind()?;
    let (mut page, properties) = (0usize, properties(device.context()));
    let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: pointers to live values.
    let found = unsafe { sys::cuMemGetAllocationGranularity(&mut page, &properties, recommended) };
    status("cuMemGetAllocationGranularity", found)?;
    bytes.max(1).checked_next_multiple_of((page as u64).max(1)).ok_or_else(|| Error::Cuda {
        call: "cuMemCreate",
        code: None,
        detail: "more bytes than there are addresses".into(),
    })
}

impl Physical {
    /// At least `bytes` bytes on `device`.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<Self> {
        let bytes = in_whole_pages(device, bytes)?;
        let (properties, mut handle) = (properties(device.context()), 0);
        // SAFETY: pointers to live values.
        let made = unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties, 0) };
        status("cuMemCreate", made)?;
        Ok(Physical { handle, bytes, context: Arc::clone(device.context()) })
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
}

impl Mapping {
    /// `bytes` addresses on `device`, whole pages, with no memory yet.
    pub(crate) fn reserve(device: &Device, bytes: u64) -> Result<Self> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: a pointer to a live value.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        status("cuMemAddressReserve", reserved)?;
        let context = Arc::clone(device.context());
        Ok(Mapping { address, reserved: bytes, memory: Mutex::default(), context })
    }

    /// Maps `memory`, of this GPU or of another, behind what is mapped already.
    pub(crate) fn append(&self, memory: Physical) -> Result<()> {
        let mut parts = self.lock();
        let mapped = length(&parts);
        if memory.bytes > self.reserved - mapped {
            let most = self.reserved - mapped;
            let (what, remedy) = ("the memory to be mapped, in bytes,", "reserve more addresses");
            return Err(Error::out_of_range(what, memory.bytes, 0, most, remedy));
        }
        let (start, bytes) = (self.address + mapped, memory.bytes as usize);
        // SAFETY: the addresses are reserved and empty, the handle is alive and so long.
        status("cuMemMap", unsafe { sys::cuMemMap(start, bytes, 0, memory.handle, 0) })?;
        // From here on the drop unmaps it.
        parts.push(memory);
        let access = CUmemAccessDesc {
            location: location(&self.context),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses have just been mapped.
        status("cuMemSetAccess", unsafe { sys::cuMemSetAccess(start, bytes, &access, 1) })
    }

    /// How many bytes are mapped.
    pub(crate) fn bytes(&self) -> u64 {
        length(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Physical>> {
        lock(&self.memory)
    }
}

fn length(parts: &[Physical]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}

impl Drop for Mapping {
    /// Nobody uses it any more: the owner of this value sees to that.
    fn drop(&mut self) {
        let context = Arc::clone(&self.context);
        context.record_err(context.bind_to_thread());
        let mut start = self.address;
        for part in self.lock().iter() {
            // SAFETY: mapped by `append`, unmapped nowhere else.
            context.record_err(unsafe { sys::cuMemUnmap(start, part.bytes as usize) }.result());
            start += part.bytes;
        }
        let reserved = self.reserved as usize;
        // SAFETY: reserved by `reserve`, freed nowhere else.
        context.record_err(unsafe { sys::cuMemAddressFree(self.address, reserved) }.result());
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: created or imported here, released nowhere else.
        self.context.record_err(unsafe { sys::cuMemRelease(self.handle) }.result());
    }
}
