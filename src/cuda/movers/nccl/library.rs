//! NCCL's library: the functions that are used here, as `nccl.h` declares them.
//!
//! Invariant: the functions stay valid as long as the library is held, which is beside them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use crate::element::ElementType;
use crate::error::{Error, Result};

/// Names the library's file.
pub const NCCL_VARIABLE: &str = "OVERLAP_GEMM_NCCL";

pub(super) type Status = c_int;
pub(super) const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;
/// `ncclInt8`: elements of all types are gathered as bytes.
pub(super) const BYTES: c_int = 0;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// `ncclDataType_t` of what is added up; `None` for a type that this crate does not ask NCCL to add.
pub(super) fn data_type(element: ElementType) -> Option<c_int> {
    match element {
        ElementType::F16 => Some(6),
        ElementType::F32 => Some(7),
        ElementType::Bf16 => Some(9),
        _ => None,
    }
}

pub(super) type Handle = *mut c_void;
type From = *const c_void;
type To = *mut c_void;
type Gather = unsafe extern "C" fn(From, To, usize, c_int, Handle, CUstream) -> Status;
/// With a root, or with how to add up.
type Directed = unsafe extern "C" fn(From, To, usize, c_int, c_int, Handle, CUstream) -> Status;
type Reduce =
    unsafe extern "C" fn(From, To, usize, c_int, c_int, c_int, Handle, CUstream) -> Status;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Id(pub(super) [u8; 128]);

/// `ncclConfig_t` as it was in 2.17: later versions take it as it is, by its size.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cluster: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
    net: *const c_char,
    split_share: c_int,
}

impl Config {
    /// `blocking`: calls return when they are done on the host's side, which is quick, as long as all ranks are
    /// there. Else each is done by a thread of NCCL's own, which takes some 50 µs, and can be given up.
    pub(super) fn new(blocking: bool) -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: blocking.into(),
            cluster: UNDEFINED,
            least_blocks: UNDEFINED,
            most_blocks: UNDEFINED,
            net: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// The functions that are used here. The library stays loaded until the process ends: NCCL's threads outlive its communicators, and
/// CUDA calls it when a graph with its work has gone.
///
/// ```no_run
/// use overlap_gemm::cuda::nccl::Nccl;
///
/// println!("NCCL {:?}", Nccl::load(None)?.version());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Nccl {
    pub(super) unique: unsafe extern "C" fn(*mut Id) -> Status,
    pub(super) init: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status,
    pub(super) all_gather: Gather,
    pub(super) broadcast: Directed,
    pub(super) reduce_scatter: Directed,
    pub(super) all_reduce: Directed,
    pub(super) reduce: Reduce,
    pub(super) group_start: unsafe extern "C" fn() -> Status,
    pub(super) group_end: unsafe extern "C" fn() -> Status,
    pub(super) state: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    pub(super) abort: unsafe extern "C" fn(Handle) -> Status,
    pub(super) words: unsafe extern "C" fn(Status) -> *const c_char,
    version: (u32, u32, u32),
}

impl Nccl {
    /// Loads it: from `file`, else from the file that [`NCCL_VARIABLE`] names, else as the loader finds
    /// `libnccl.so.2`.
    pub fn load(file: Option<&Path>) -> Result<Arc<Nccl>> {
        let named = || std::env::var_os(NCCL_VARIABLE).map(PathBuf::from);
        let name = file.map(Path::to_owned).or_else(named);
        let name = name.unwrap_or_else(|| PathBuf::from("libnccl.so.2"));
        let missing = |error: libloading::Error| Error::NoDevice {
            reason: format!(
                "NCCL is not there ({error}): install it (pip install nvidia-nccl-cu13) and name its file by \
                 {NCCL_VARIABLE}, or add its folder to LD_LIBRARY_PATH"
            ),
        };
        // SAFETY: NCCL's initialisers ask for nothing.
        let library = unsafe { Library::new(name) }.map_err(missing)?;
        macro_rules! function {
            ($symbol:literal: $type:ty) => {
                // SAFETY: the types are those of nccl.h, and the library is never unloaded.
                *unsafe { library.get::<$type>(concat!($symbol, "\0").as_bytes()) }
                    .map_err(missing)?
            };
        }
        let version = function!("ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> Status);
        let mut number = 0;
        // SAFETY: a pointer to a live integer.
        unsafe { version(&mut number) };
        let number = number.unsigned_abs();
        let functions = Nccl {
            unique: function!("ncclGetUniqueId": unsafe extern "C" fn(*mut Id) -> Status),
            init: function!("ncclCommInitRankConfig":
                unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status),
            all_gather: function!("ncclAllGather": Gather),
            broadcast: function!("ncclBroadcast": Directed),
            reduce_scatter: function!("ncclReduceScatter": Directed),
            all_reduce: function!("ncclAllReduce": Directed),
            reduce: function!("ncclReduce": Reduce),
            group_start: function!("ncclGroupStart": unsafe extern "C" fn() -> Status),
            group_end: function!("ncclGroupEnd": unsafe extern "C" fn() -> Status),
            state: function!("ncclCommGetAsyncError":
                unsafe extern "C" fn(Handle, *mut Status) -> Status),
            abort: function!("ncclCommAbort": unsafe extern "C" fn(Handle) -> Status),
            words: function!("ncclGetErrorString":
                unsafe extern "C" fn(Status) -> *const c_char),
            version: (number / 10_000, number / 100 % 100, number % 100),
        };
        std::mem::forget(library);
        Ok(Arc::new(functions))
    }

    /// Which NCCL it is: `(2, 28, 9)`.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    pub(super) fn outcome(&self, call: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the function returns a static string.
        let words = unsafe { CStr::from_ptr((self.words)(status)) };
        let detail = words.to_string_lossy().into_owned();
        Err(Error::Cuda { call, code: Some(status.unsigned_abs()), detail })
    }
}
