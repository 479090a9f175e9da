//! NCCL, loaded at run time: the way for GPUs that do not reach each other's memory, and the usual one to
//! compare with.
//!
//! What belongs here: a communicator that ends, and what it is asked for: gathering, and adding up. Beside is the
//! `library`. NCCL's kernels know no limit: wait for them through this crate ([`Communicator::wait`]),
//! which ends them.
//! Invariants: all calls on a communicator are made under one lock, by which it can be ended from any thread; all ranks
//! make the same calls in the same order.
//!
//! `cudarc` has bindings for NCCL, too. They look for names that neither pip nor a run-time package
//! installs, cannot be told of a file, and panic where it is not found.

mod library;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUdeviceptr};

use crate::cuda::sys::Driver;
use crate::cuda::sys::device::Device;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::group::{Group, News};
use crate::sync::lock;
use library::{BYTES, Config, Handle, Id, SUCCESS, SUM, data_type};
pub use library::{NCCL_VARIABLE, Nccl};

/// A buffer with a part of each rank.
///
/// ```no_run
/// use overlap_gemm::cuda::nccl::Parts;
///
/// /// Rank 0 has the first 4096 bytes of a buffer, rank 1 the next 1024.
/// fn parts(address: u64) -> Parts {
///     Parts { address, of_ranks: vec![(0, 4096), (4096, 1024)] }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Parts {
    /// Where this rank has the buffer.
    pub address: CUdeviceptr,
    /// Where the part of each rank starts, in bytes from there, and how long it is: the same on all ranks.
    pub of_ranks: Vec<(u64, u64)>,
}

impl Parts {
    /// Where the first part starts, and how long each is, where all are equally long and follow each other.
    fn alike(&self) -> Option<(u64, u64)> {
        let (first, bytes) = *self.of_ranks.first()?;
        let mut parts = (0u64..).zip(&self.of_ranks);
        let alike = parts.all(|(rank, part)| *part == (first + rank * bytes, bytes));
        alike.then_some((first, bytes))
    }
}

/// All ranks of a group, as NCCL knows them. Ends with its group.
///
/// ```no_run
/// use std::time::Duration;
/// use overlap_gemm::cuda::Device;
/// use overlap_gemm::cuda::nccl::{Communicator, Nccl};
/// use overlap_gemm::group::GroupOptions;
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let limit = Duration::from_secs(30);
/// let nccl = Communicator::join(&Nccl::load(None)?, &group, &device, limit)?;
/// println!("NCCL {:?}", nccl.version());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    group: Arc<Group>,
    device: Device,
    shared: Arc<Shared>,
}

/// The live communicator; null once it has ended.
#[derive(Debug)]
struct Shared(Mutex<SendHandle>);

#[derive(Debug)]
struct SendHandle(Handle);

// SAFETY: NCCL's communicators belong to no thread; calls on one are made under its lock.
unsafe impl Send for SendHandle {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SendHandle> {
        lock(&self.0)
    }

    /// Ends the communicator, once, on a thread of its own: NCCL waits there until its kernels have ended and all
    /// graphs with its work are gone, which may be the caller's.
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
    /// Makes a communicator of all ranks of `group`. Collective; `limit` is the timeout of each wait for other ranks. When
    /// the group ends, so does the communicator.
    pub fn join(
        nccl: &Arc<Nccl>,
        group: &Arc<Group>,
        device: &Device,
        limit: Duration,
    ) -> Result<Self> {
        Self::make(nccl, group, device, limit, false)
    }

    /// [`Communicator::join`] with blocking calls, NCCL's default mode, for comparisons. A call takes some 50 µs less of the
    /// host's time, but may wait for ever for a rank that is gone.
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
        // A rank without one says so: the others would wait.
        let told = if found.is_ok() { &id.0[..] } else { &[] };
        let ids = group.all_gather("NCCL's id", told, limit)?;
        found?;
        let told =
            |_| Error::Cuda { call: "ncclGetUniqueId", code: None, detail: "no id came".into() };
        id = Id(ids[0].as_slice().try_into().map_err(told)?);
        let (ranks, rank) = (group.ranks() as c_int, group.rank() as c_int);
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::new(blocking));
        // SAFETY: pointers to live values; all ranks call it with one id; the context is current.
        let made = unsafe { (nccl.init)(&mut handle, ranks, id, rank, &mut config) };
        let shared = Arc::new(Shared(Mutex::new(SendHandle(handle))));
        let joined = Communicator {
            nccl: Arc::clone(nccl),
            group: Arc::clone(group),
            device: device.clone(),
            shared,
        };
        nccl.outcome("ncclCommInitRankConfig", made)?;
        let nccl = Arc::clone(nccl);
        group.tell(&joined.shared, move |shared, news| {
            if let News::Ended(_) = news {
                shared.abort(&nccl);
            }
        });
        joined.settle("ncclCommInitRankConfig", limit)?;
        Ok(joined)
    }

    /// Which NCCL it is: `(2, 28, 9)`.
    pub fn version(&self) -> (u32, u32, u32) {
        self.nccl.version()
    }

    /// Enqueues gathering into several buffers, in place: the own parts are there.
    ///
    /// # Safety
    /// Every part is memory of this device, on all ranks alike, until the stream is through.
    pub unsafe fn all_gather(&self, buffers: &[Parts], stream: &CudaStream) -> Result<()> {
        buffers.iter().try_for_each(|buffer| self.check_parts(buffer))?;
        self.enqueue(stream, |handle| {
            let gather = |buffer| {
                // SAFETY: the caller's promise; the communicator is live and locked.
                unsafe { self.gather_one(handle, buffer, stream) }
            };
            buffers.iter().try_for_each(gather)
        })
    }

    /// Enqueues adding up all ranks' buffers of `element`s, which are bf16, f16 or f32: `to` gets the sums of this rank's part.
    ///
    /// NCCL adds in an order of its own, and rounds to `element` between additions.
    /// [`compare_in_partials`](crate::reference::compare_in_partials) allows for that.
    ///
    /// # Safety
    /// Every part of `from` is memory of this device, with the same parts on all ranks, and `to` is as long as this rank's
    /// part, until the stream is through. `to` is that part, or overlaps nothing of `from`.
    pub unsafe fn reduce_scatter(
        &self,
        from: &Parts,
        to: CUdeviceptr,
        element: ElementType,
        stream: &CudaStream,
    ) -> Result<()> {
        self.check_parts(from)?;
        let places = from.of_ranks.iter().flat_map(|&(offset, bytes)| [offset, bytes]);
        let kind = added_up(element, places.chain([from.address, to]))?;
        self.enqueue(stream, |handle| {
            // SAFETY: the caller's promise; the communicator is live and locked.
            unsafe { self.add_up(handle, from, to, kind, stream) }
        })
    }

    /// Enqueues adding up all ranks' `bytes` of `element`s, which are bf16, f16 or f32: every rank gets all sums at `to`. NCCL
    /// adds as in [`Communicator::reduce_scatter`].
    ///
    /// # Safety
    /// Both are memory of this device, as long on all ranks, until the stream is through. They are the same, or overlap
    /// nothing of each other.
    pub unsafe fn all_reduce(
        &self,
        from: CUdeviceptr,
        to: CUdeviceptr,
        bytes: u64,
        element: ElementType,
        stream: &CudaStream,
    ) -> Result<()> {
        let (kind, size) = added_up(element, [from, to, bytes])?;
        self.enqueue(stream, |handle| {
            let (from, to) = (from as *const c_void, to as *mut c_void);
            let (nccl, count, stream) = (&self.nccl, (bytes / size) as usize, stream.cu_stream());
            // SAFETY: the caller's promise; the communicator is live and locked.
            let status = unsafe { (nccl.all_reduce)(from, to, count, kind, SUM, handle, stream) };
            nccl.outcome("ncclAllReduce", status)
        })
    }

    fn check_parts(&self, buffer: &Parts) -> Result<()> {
        let (got, ranks) = (buffer.of_ranks.len(), self.group.ranks() as usize);
        if got == ranks {
            return Ok(());
        }
        let (what, remedy) = ("the number of a buffer's parts", "give a part of each rank");
        Err(Error::mismatch(what, got, ranks, remedy))
    }

    /// Makes calls on the live, locked communicator, as one group of NCCL's.
    fn enqueue(&self, stream: &CudaStream, calls: impl FnOnce(Handle) -> Result<()>) -> Result<()> {
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
        let enqueued = calls(handle.0);
        // SAFETY: takes nothing. Ends the group, also after a failure.
        let ended = nccl.outcome("ncclGroupEnd", unsafe { (nccl.group_end)() });
        drop(handle);
        enqueued.and(ended)?;
        self.settle("ncclGroupEnd", Duration::from_secs(60))
    }

    /// # Safety
    /// As for [`Communicator::all_gather`]; `handle` is live, and held.
    unsafe fn gather_one(&self, handle: Handle, buffer: &Parts, stream: &CudaStream) -> Result<()> {
        let (nccl, own) = (&self.nccl, self.group.rank() as usize);
        let at = |offset: u64| (buffer.address + offset) as *mut c_void;
        let stream = stream.cu_stream();
        if let Some((first, bytes)) = buffer.alike() {
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

    /// # Safety
    /// As for [`Communicator::reduce_scatter`]; `handle` is live, and held.
    unsafe fn add_up(
        &self,
        handle: Handle,
        from: &Parts,
        to: CUdeviceptr,
        (kind, size): (c_int, u64),
        stream: &CudaStream,
    ) -> Result<()> {
        let (nccl, own) = (&self.nccl, self.group.rank() as c_int);
        let at = |offset: u64| (from.address + offset) as *const c_void;
        let (to, stream) = (to as *mut c_void, stream.cu_stream());
        if let Some((first, bytes)) = from.alike() {
            let (from, count) = (at(first), (bytes / size) as usize);
            // SAFETY: the caller's promise.
            let status =
                unsafe { (nccl.reduce_scatter)(from, to, count, kind, SUM, handle, stream) };
            return nccl.outcome("ncclReduceScatter", status);
        }
        for (rank, &(offset, bytes)) in (0..).zip(&from.of_ranks) {
            if bytes == 0 {
                continue;
            }
            let (from, count) = (at(offset), (bytes / size) as usize);
            // Only the rank that gets the sums needs room for them.
            let to = if rank == own { to } else { std::ptr::null_mut() };
            // SAFETY: the caller's promise.
            let status = unsafe { (nccl.reduce)(from, to, count, kind, SUM, rank, handle, stream) };
            nccl.outcome("ncclReduce", status)?;
        }
        Ok(())
    }

    /// Waits for `stream`, up to the limit. If the stream is not done then, this ends the group, and with it the communicator,
    /// so that the stream ends. NCCL does not say which rank is late.
    pub fn wait(&self, stream: &CudaStream, limit: Duration) -> Result<()> {
        self.device.bind()?;
        let through = || {
            self.state("NCCL")?;
            // SAFETY: a live stream of this device.
            match unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result() {
                Ok(()) => Ok(true),
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                Err(error) => Err(error).in_call("cuStreamQuery"),
            }
        };
        self.wait_until("NCCL's collective", limit, through)?;
        self.state("NCCL").map(drop)
    }

    /// Ends it, here, and soon: work under way completes, with undefined results. The other ranks
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

/// NCCL's name of a type that it adds up, and its size; `places` are addresses and lengths, each of whole elements.
fn added_up(element: ElementType, places: impl IntoIterator<Item = u64>) -> Result<(c_int, u64)> {
    let kind = data_type(element).ok_or_else(|| Error::Unsupported {
        what: format!("adding up {element} by NCCL"),
        why: "sums between ranks are bf16, f16 or f32".into(),
        remedy: "give sums of one of these types",
    })?;
    let size = u64::from(element.size());
    if let Some(bytes) = places.into_iter().find(|place| !place.is_multiple_of(size)) {
        let what = "a part of what NCCL adds up";
        let remedy = "let parts begin and end between elements";
        return Err(Error::Misaligned { what, bytes, multiple_of: size, remedy });
    }
    Ok((kind, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_adds_up_whole_elements_of_types_that_it_knows() {
        assert_eq!(added_up(ElementType::Bf16, [4096, 2]).map(|(_, size)| size), Ok(2));
        let text = added_up(ElementType::E4m3, []).unwrap_err().to_string();
        assert!(text.starts_with("adding up e4m3 by NCCL"), "{text}");
        let error = added_up(ElementType::F32, [4096, 6]).unwrap_err();
        assert!(matches!(error, Error::Misaligned { bytes: 6, multiple_of: 4, .. }), "{error}");
    }
}
