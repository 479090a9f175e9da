//! NCCL, loaded at run time: the way for GPUs that do not reach each other's memory, and the usual one to
//! compare with.
//!
//! What belongs here: the few functions that gathering takes, and a communicator that ends. NCCL's kernels know
//! no limit: whoever waits for them does so through this crate ([`Communicator::wait`]), which ends them.
//! Invariants: the functions stay valid as long as the library is held; all calls on a communicator are made
//! under one lock, by which it can be ended from any thread; all ranks make the same calls in the same
//! order.
//!
//! `cudarc` has bindings for NCCL, too. They look for names that neither pip nor a run-time package
//! installs, cannot be told of a file, and panic where it is not found.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use libloading::Library;

use crate::cuda::sys::device::Device;
use crate::cuda::sys::driver_error;
use crate::error::{Error, Result};
use crate::group::Group;

/// Names the library's file.
pub const NCCL_VARIABLE: &str = "OVERLAP_GEMM_NCCL";

type Status = c_int;
const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;
/// `ncclInt8`: bytes are gathered, whatever they mean.
const BYTES: c_int = 0;

type Handle = *mut c_void;
type Gather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, CUstream) -> Status;
type Broadcast = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Handle,
    CUstream,
) -> Status;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

/// `ncclConfig_t` as it was in 2.17: later versions take it as it is, by its size.
#[repr(C)]
struct Config {
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
    fn new(blocking: bool) -> Self {
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

/// The library, and the functions that are used here.
#[derive(Debug)]
pub struct Nccl {
    unique: unsafe extern "C" fn(*mut Id) -> Status,
    init: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status,
    all_gather: Gather,
    broadcast: Broadcast,
    group_start: unsafe extern "C" fn() -> Status,
    group_end: unsafe extern "C" fn() -> Status,
    state: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    abort: unsafe extern "C" fn(Handle) -> Status,
    words: unsafe extern "C" fn(Status) -> *const c_char,
    version: (u32, u32, u32),
    _library: Library,
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
                // SAFETY: the types are those of nccl.h, and the library is held beside the copies.
                *unsafe { library.get::<$type>(concat!($symbol, "\0").as_bytes()) }
                    .map_err(missing)?
            };
        }
        let version = function!("ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> Status);
        let mut number = 0;
        // SAFETY: a pointer to a live integer.
        unsafe { version(&mut number) };
        let number = number.unsigned_abs();
        Ok(Arc::new(Nccl {
            unique: function!("ncclGetUniqueId": unsafe extern "C" fn(*mut Id) -> Status),
            init: function!("ncclCommInitRankConfig":
                unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut Config) -> Status),
            all_gather: function!("ncclAllGather": Gather),
            broadcast: function!("ncclBroadcast": Broadcast),
            group_start: function!("ncclGroupStart": unsafe extern "C" fn() -> Status),
            group_end: function!("ncclGroupEnd": unsafe extern "C" fn() -> Status),
            state: function!("ncclCommGetAsyncError":
                unsafe extern "C" fn(Handle, *mut Status) -> Status),
            abort: function!("ncclCommAbort": unsafe extern "C" fn(Handle) -> Status),
            words: function!("ncclGetErrorString":
                unsafe extern "C" fn(Status) -> *const c_char),
            version: (number / 10_000, number / 100 % 100, number % 100),
            _library: library,
        }))
    }

    /// Which NCCL it is: `(2, 28, 9)`.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    fn outcome(&self, call: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the function returns a static string.
        let words = unsafe { CStr::from_ptr((self.words)(status)) };
        Err(Error::Cuda { call, detail: words.to_string_lossy().into_owned() })
    }
}

/// What one buffer gathers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Where this rank has the buffer.
    pub address: CUdeviceptr,
    /// Where the part of each rank starts, in bytes from there, and how long it is: the same on all ranks.
    pub of_ranks: Vec<(u64, u64)>,
}

/// All ranks of a group, as NCCL knows them. Ends with its group.
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    group: Arc<Group>,
    device: Device,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Null once it has ended.
    handle: Mutex<SendHandle>,
}

#[derive(Debug)]
struct SendHandle(Handle);

// SAFETY: NCCL's communicators belong to no thread; calls on one are made under its lock.
unsafe impl Send for SendHandle {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SendHandle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the communicator, once, on a thread of its own: NCCL waits there until its kernels have ended and all
    /// graphs with its work are gone, which may be those of whoever calls this.
    /// Where there is no thread to be had, the communicator stays.
    fn abort(&self, nccl: &Arc<Nccl>) -> Option<std::thread::JoinHandle<()>> {
        // The lock may be held for as long as NCCL's calls take, which are short where they do not block.
        let handle = std::mem::replace(&mut *self.lock(), SendHandle(std::ptr::null_mut()));
        if handle.0.is_null() {
            return None;
        }
        let nccl = Arc::clone(nccl);
        let end = move || {
            let SendHandle(handle) = { handle };
            // SAFETY: a live communicator that nobody else has any more.
            unsafe { (nccl.abort)(handle) };
        };
        std::thread::Builder::new().name("overlap-gemm ends NCCL".into()).spawn(end).ok()
    }
}

impl Communicator {
    /// Joins all ranks of `group`, of which all call this. Ends with the group.
    pub fn join(
        nccl: &Arc<Nccl>,
        group: &Arc<Group>,
        device: &Device,
        limit: Duration,
    ) -> Result<Self> {
        Self::make(nccl, group, device, limit, false)
    }

    /// [`Communicator::join`] in the mode that others use NCCL in: a call takes some 50 µs less of the host's time,
    /// and may wait for ever for a rank that is gone. For comparisons.
    pub fn join_without_limits(
        nccl: &Arc<Nccl>,
        group: &Arc<Group>,
        device: &Device,
    ) -> Result<Self> {
        Self::make(nccl, group, device, Duration::from_secs(600), true)
    }

    fn make(
        nccl: &Arc<Nccl>,
        group: &Arc<Group>,
        device: &Device,
        limit: Duration,
        blocking: bool,
    ) -> Result<Self> {
        device.bind()?;
        let mut id = Id([0; 128]);
        let mut found = Ok(());
        if group.rank() == 0 {
            // SAFETY: a pointer to a live value.
            found = nccl.outcome("ncclGetUniqueId", unsafe { (nccl.unique)(&mut id) });
        }
        // None is told as such: the others would wait.
        let told = if found.is_ok() { &id.0[..] } else { &[] };
        let ids = group.all_gather("NCCL's id", told, limit)?;
        found?;
        let told = |_| Error::Cuda { call: "ncclGetUniqueId", detail: "no id came".into() };
        id = Id(ids[0].as_slice().try_into().map_err(told)?);
        let (ranks, rank) = (group.ranks() as c_int, group.rank() as c_int);
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::new(blocking));
        // SAFETY: pointers to live values; all ranks call it with one id; the context is current.
        let made = unsafe { (nccl.init)(&mut handle, ranks, id, rank, &mut config) };
        let shared = Arc::new(Shared { handle: Mutex::new(SendHandle(handle)) });
        let joined = Communicator {
            nccl: Arc::clone(nccl),
            group: Arc::clone(group),
            device: device.clone(),
            shared,
        };
        nccl.outcome("ncclCommInitRankConfig", made)?;
        let nccl = Arc::clone(nccl);
        group.on_end_tell(&joined.shared, move |shared, _| drop(shared.abort(&nccl)));
        joined.settle("ncclCommInitRankConfig", limit)?;
        Ok(joined)
    }

    /// Which NCCL it is: `(2, 28, 9)`.
    pub fn version(&self) -> (u32, u32, u32) {
        self.nccl.version
    }

    /// Enqueues gathering into several buffers, in place: the own parts are there.
    ///
    /// # Safety
    /// Every part is memory of this device, on all ranks alike, until the stream is through.
    pub unsafe fn all_gather(&self, buffers: &[Parts], stream: &CudaStream) -> Result<()> {
        let ranks = self.group.ranks() as usize;
        if let Some(odd) = buffers.iter().find(|buffer| buffer.of_ranks.len() != ranks) {
            let (what, remedy) = ("the number of a buffer's parts", "give a part of each rank");
            return Err(Error::mismatch(what, odd.of_ranks.len(), ranks, remedy));
        }
        self.device.check_stream(stream)?;
        self.device.bind()?;
        let nccl = &self.nccl;
        let handle = self.shared.lock();
        if handle.0.is_null() {
            drop(handle);
            return Err(self.ended());
        }
        // SAFETY: takes nothing.
        nccl.outcome("ncclGroupStart", unsafe { (nccl.group_start)() })?;
        let mut enqueued = Ok(());
        for buffer in buffers {
            // SAFETY: the caller's promise; the communicator is live and locked.
            enqueued = enqueued.and(unsafe { self.gather_one(handle.0, buffer, stream) });
        }
        // SAFETY: takes nothing. Ends the group whatever has become of it.
        let ended = nccl.outcome("ncclGroupEnd", unsafe { (nccl.group_end)() });
        drop(handle);
        enqueued.and(ended)?;
        self.settle("ncclGroupEnd", Duration::from_secs(60))
    }

    /// # Safety
    /// As for [`Communicator::all_gather`]; `handle` is live, and held.
    unsafe fn gather_one(&self, handle: Handle, buffer: &Parts, stream: &CudaStream) -> Result<()> {
        let (nccl, own) = (&self.nccl, self.group.rank() as usize);
        let (first, bytes) = buffer.of_ranks[0];
        let mut parts = (0u64..).zip(&buffer.of_ranks);
        let alike = parts.all(|(rank, part)| *part == (first + rank * bytes, bytes));
        let at = |offset: u64| (buffer.address + offset) as *mut c_void;
        let stream = stream.cu_stream();
        if alike {
            let from = at(buffer.of_ranks[own].0);
            let (to, count) = (at(first), bytes as usize);
            // SAFETY: the caller's promise.
            let status = unsafe { (nccl.all_gather)(from, to, count, BYTES, handle, stream) };
            return nccl.outcome("ncclAllGather", status);
        }
        for (rank, &(offset, bytes)) in (0..).zip(&buffer.of_ranks) {
            if bytes == 0 {
                continue;
            }
            let (place, count) = (at(offset), bytes as usize);
            // SAFETY: the caller's promise.
            let status =
                unsafe { (nccl.broadcast)(place, place, count, BYTES, rank, handle, stream) };
            nccl.outcome("ncclBroadcast", status)?;
        }
        Ok(())
    }

    /// Waits for `stream`, up to the limit; who is late then is not known. Ends the communicator where the
    /// stream is not through, so that it comes through.
    pub fn wait(&self, stream: &CudaStream, limit: Duration) -> Result<()> {
        self.device.bind()?;
        let through = || {
            self.state("NCCL")?;
            // SAFETY: a live stream of this device.
            match unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result() {
                Ok(()) => Ok(true),
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                Err(error) => Err(driver_error("cuStreamQuery", error)),
            }
        };
        self.wait_until("NCCL's all-gather", limit, through)?;
        self.check()
    }

    /// An error if NCCL has found one, or the communicator has ended.
    pub fn check(&self) -> Result<()> {
        self.state("NCCL").map(drop)
    }

    /// Ends it, here, and soon: whatever is under way comes through, with nothing that is right. The other ranks
    /// have to end theirs, too, as they do when the group ends.
    pub fn abort(&self) {
        self.shared.abort(&self.nccl);
    }

    /// Whether NCCL has done what it was asked to do, on the host's side.
    fn state(&self, call: &'static str) -> Result<bool> {
        let handle = self.shared.lock();
        if handle.0.is_null() {
            drop(handle);
            return Err(self.ended());
        }
        let mut state = SUCCESS;
        // SAFETY: a live communicator, locked, and a pointer to a live value.
        let asked = unsafe { (self.nccl.state)(handle.0, &mut state) };
        self.nccl.outcome(call, asked)?;
        self.nccl.outcome(call, state)?;
        Ok(state == SUCCESS)
    }

    fn settle(&self, call: &'static str, limit: Duration) -> Result<()> {
        self.wait_until(call, limit, || self.state(call))
    }

    /// Ends the communicator where the limit is over first.
    fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        done: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let begin = Instant::now();
        while !done()? {
            if begin.elapsed() > limit {
                let own = self.group.rank();
                let absent = (0..self.group.ranks()).filter(|rank| *rank != own).collect();
                let error = Error::Absent { rank: own, absent, what: what.into(), limit };
                // Ends this communicator, too.
                self.group.abort(&error.to_string());
                self.abort();
                return Err(error);
            }
            if begin.elapsed() > Duration::from_millis(1) {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn ended(&self) -> Error {
        let rank = self.group.rank();
        match self.group.check() {
            Err(error) => error,
            Ok(()) => Error::Aborted { rank, reason: "NCCL's communicator has ended".into() },
        }
    }
}

impl Drop for Communicator {
    /// Aborts, also where all went well: what else there is to end a communicator waits for all ranks to do so.
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(10);
        let context = self.device.context();
        context.record_err(context.bind_to_thread());
        let Some(ending) = self.shared.abort(&self.nccl) else { return };
        let begin = Instant::now();
        while !ending.is_finished() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(200));
        }
        // What is still ending then waits for a graph that somebody keeps.
    }
}
