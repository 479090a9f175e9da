//! NCCL's all-gather as a contender: the few functions it takes, found in the library at run time.
//!
//! Invariant: the functions stay valid as long as the library is held; a communicator is used by one
//! stream, in the same order on all ranks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use libloading::Library;
use overlap_gemm::cuda::cudarc::driver::sys::CUstream;
use overlap_gemm::group::Group;
use overlap_gemm::{Error, Result};

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

/// `ncclInt8`: bytes are gathered, whatever they mean.
const BYTES: c_int = 0;

type Status = c_int;
type AllGatherFn =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, *mut c_void, CUstream) -> Status;

/// A communicator of all ranks.
pub struct Nccl {
    communicator: *mut c_void,
    all_gather: AllGatherFn,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
    version: String,
    _library: Library,
}

impl Nccl {
    /// Loads the library and joins all ranks; the GPU's context is current.
    pub fn join(group: &Group, file: Option<&Path>) -> Result<Nccl> {
        let name = file.unwrap_or(Path::new("libnccl.so.2"));
        let missing = |error: libloading::Error| Error::NoDevice {
            reason: format!("NCCL is not there ({error}): name its file with --nccl"),
        };
        // SAFETY: NCCL's initialisers ask for nothing.
        let library = unsafe { Library::new(name) }.map_err(missing)?;
        macro_rules! function {
            ($symbol:literal: $type:ty) => {
                // SAFETY: the types are those of nccl.h, and the library is held beside the copies.
                *unsafe { library.get::<$type>(concat!($symbol, "\0").as_bytes()) }
                    .map_err(missing)?
            };
        }
        let unique = function!("ncclGetUniqueId": unsafe extern "C" fn(*mut Id) -> Status);
        let init = function!("ncclCommInitRank":
            unsafe extern "C" fn(*mut *mut c_void, c_int, Id, c_int) -> Status);
        let version = function!("ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> Status);
        let mut number = 0;
        // SAFETY: a pointer to a live integer.
        unsafe { version(&mut number) };
        let mut nccl = Nccl {
            communicator: std::ptr::null_mut(),
            all_gather: function!("ncclAllGather": AllGatherFn),
            group_start: function!("ncclGroupStart": unsafe extern "C" fn() -> Status),
            group_end: function!("ncclGroupEnd": unsafe extern "C" fn() -> Status),
            destroy: function!("ncclCommDestroy": unsafe extern "C" fn(*mut c_void) -> Status),
            error: function!("ncclGetErrorString":
                unsafe extern "C" fn(Status) -> *const c_char),
            version: format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
            _library: library,
        };
        let mut id = Id([0; 128]);
        if group.rank() == 0 {
            // SAFETY: a pointer to a live value.
            nccl.outcome("ncclGetUniqueId", unsafe { unique(&mut id) })?;
        }
        let ids = group.all_gather("NCCL's id", &id.0, Duration::from_secs(60))?;
        let told = |_| Error::Cuda { call: "ncclGetUniqueId", detail: "no id came".into() };
        id = Id(ids[0].as_slice().try_into().map_err(told)?);
        let (ranks, rank) = (group.ranks() as c_int, group.rank() as c_int);
        // SAFETY: a pointer to a live value; all ranks call it with one id.
        let made = unsafe { init(&mut nccl.communicator, ranks, id, rank) };
        nccl.outcome("ncclCommInitRank", made)?;
        Ok(nccl)
    }

    /// Which NCCL it is.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Enqueues the gathering of several buffers in place: `(start, bytes of each rank)`.
    ///
    /// # Safety
    /// Each buffer is device memory for as many bytes from every rank, the own ones in their place.
    pub unsafe fn all_gather(
        &self,
        rank: u32,
        buffers: &[(u64, u64)],
        stream: CUstream,
    ) -> Result<()> {
        // SAFETY: takes nothing.
        self.outcome("ncclGroupStart", unsafe { (self.group_start)() })?;
        for &(start, bytes) in buffers {
            let own = (start + u64::from(rank) * bytes) as *const c_void;
            let (all, count) = (start as *mut c_void, bytes as usize);
            // SAFETY: the caller's promise; the communicator is live.
            let enqueued =
                unsafe { (self.all_gather)(own, all, count, BYTES, self.communicator, stream) };
            self.outcome("ncclAllGather", enqueued)?;
        }
        // SAFETY: takes nothing.
        self.outcome("ncclGroupEnd", unsafe { (self.group_end)() })
    }

    fn outcome(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static string.
        let words = unsafe { CStr::from_ptr((self.error)(status)) };
        Err(Error::Cuda { call, detail: words.to_string_lossy().into_owned() })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if !self.communicator.is_null() {
            // SAFETY: made by `join`, destroyed nowhere else; the streams are through.
            unsafe { (self.destroy)(self.communicator) };
        }
    }
}
