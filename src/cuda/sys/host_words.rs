//! A few words of host memory that the device reads and writes while a kernel runs, and that other ranks' hosts may read.
//!
//! What belongs here: the abort word with the ranks that have left, and the failure record, pinned and
//! mapped, and the atomics that order them. Invariants: the memory is freed once, when nobody on this side holds it; code that
//! hands its address to a kernel holds it until that kernel has ended. Looking at the words waits for nothing.
//!
//! The words are in a file without a name, for CUDA cannot share pinned memory that it has allocated. Another process reads them
//! also when this one has ended.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, sys};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Driver;
use super::bindings::{OG_ABORT_ASKED, OG_ABORT_LEFT, og_failure, og_failure_kind};
use super::device::Device;
use crate::error::{Error, Result};
use crate::group::News;
use crate::plan::MAX_RANKS;

/// Where the ranks that have left are, a bit each.
const LEFT_AT: usize = 4;
/// Where the failure record starts: in a line apart from the words that are polled.
const RECORD_AT: usize = (LEFT_AT + MAX_RANKS as usize / 8).next_multiple_of(128);
/// The smallest page there is.
const BYTES: usize = 4096;
const _: () = assert!(RECORD_AT + size_of::<og_failure>() <= BYTES);

/// One rank's words, as this process sees them.
#[derive(Debug)]
pub(crate) struct Page(NonNull<u8>);

// SAFETY: the memory belongs to the process, not to a thread; all access is through atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// This rank's words, on the host and as the device sees them.
#[derive(Debug)]
pub(crate) struct HostWords {
    page: Page,
    device_start: u64,
    context: Arc<CudaContext>,
}

impl Page {
    /// The words of the rank whose file this is: [`HostWords::with_file`].
    pub(crate) fn of(file: BorrowedFd<'_>) -> Result<Self> {
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the system chooses.
        let start = unsafe { mmap(null_mut(), BYTES, access, shared, file, 0) };
        let start = start.map_err(|errno| refused("mmap", errno.into()))?;
        let none = || refused("mmap", io::Error::other("it returned no address"));
        NonNull::new(start.cast()).map(Page).ok_or_else(none)
    }

    /// What a kernel that gave up has written. `chunk` is the chunk, or the rank, at fault.
    pub(crate) fn failure(&self) -> Option<og_failure> {
        let word = |offset: usize| self.word(RECORD_AT + offset);
        // Acquire: `kind` is written last, with release at system scope.
        let kind = word(offset_of!(og_failure, kind)).load(Ordering::Acquire);
        if kind == og_failure_kind::OG_FAILURE_NONE.0 {
            return None;
        }
        let load = |offset| word(offset).load(Ordering::Relaxed);
        Some(og_failure {
            chunk: load(offset_of!(og_failure, chunk)),
            signal: load(offset_of!(og_failure, signal)),
            epoch: load(offset_of!(og_failure, epoch)),
            tile_m: load(offset_of!(og_failure, tile_m)),
            tile_n: load(offset_of!(og_failure, tile_n)),
            kind,
            ..og_failure::default()
        })
    }

    /// Whether that rank gave up: others' results may be wrong. If a stream of this process has ended, and took something that the
    /// rank sent or signalled after it gave up, this is true: the rank's kernel sets the word before a fence of the whole system
    /// (`tell_that_rows_may_be_torn` in `csrc/beginning.cuh`), what it sends comes behind that fence, and the caller has waited for
    /// the stream that took it.
    pub(crate) fn has_given_up(&self) -> bool {
        // Acquire: what is read after it was there when the rank gave up.
        self.word(RECORD_AT + offset_of!(og_failure, gave_up)).load(Ordering::Acquire) != 0
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= BYTES && offset.is_multiple_of(4));
        // SAFETY: inside the mapping and aligned, since pages are; it lives as long as `self`, and
        // every process touches it through atomics only.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: from `mmap`, unmapped nowhere else. It fails for no mapping of that kind.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

impl HostWords {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Self::with_file(device).map(|(words, _)| words)
    }

    /// Words that other ranks on this machine may read, and the file that says where they are: [`Page::of`].
    pub(crate) fn with_file(device: &Device) -> Result<(Self, OwnedFd)> {
        device.bind()?;
        let file = memfd_create("overlap-gemm", MemfdFlags::CLOEXEC)
            .map_err(|errno| refused("memfd_create", errno.into()))?;
        // Its bytes are zero.
        ftruncate(&file, BYTES as u64).map_err(|errno| refused("ftruncate", errno.into()))?;
        let page = Page::of(file.as_fd())?;
        let start = page.0.as_ptr().cast();
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the context is current; BYTES are mapped there, and they stay until `drop` has unregistered them.
        unsafe { sys::cuMemHostRegister_v2(start, BYTES, flags) }
            .result()
            .in_call("cuMemHostRegister")?;
        // From here on an early return unregisters it.
        let context = Arc::clone(device.context());
        let mut words = HostWords { page, device_start: 0, context };
        // SAFETY: the address is that of mapped host memory, and the other of a live integer.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut words.device_start, start, 0) }
            .result()
            .in_call("cuMemHostGetDevicePointer")?;
        Ok((words, file))
    }

    /// The abort word and the ranks that have left, for the device.
    pub(crate) fn abort_address(&self) -> u64 {
        self.device_start
    }

    /// The failure record, for the device.
    pub(crate) fn failure_address(&self) -> u64 {
        self.device_start + RECORD_AT as u64
    }

    /// Raises or lowers the abort word.
    pub(crate) fn set_abort(&self, abort: bool) {
        // Release, for what the caller did before; pairs with the acquires of the kernels that look at it.
        if abort {
            self.word(0).fetch_or(OG_ABORT_ASKED, Ordering::Release);
        } else {
            self.word(0).fetch_and(!OG_ABORT_ASKED, Ordering::Release);
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        // Relaxed: an answer for the caller; it orders nothing.
        self.word(0).load(Ordering::Relaxed) & OG_ABORT_ASKED != 0
    }

    /// Passes on what becomes of the group.
    pub(crate) fn hear(&self, news: &News) {
        match news {
            News::Ended(_) => self.set_abort(true),
            News::Left(rank) => self.set_left(*rank),
        }
    }

    /// Says that `rank` has left properly, and that all that it wrote is there.
    fn set_left(&self, rank: u32) {
        if rank >= MAX_RANKS {
            return;
        }
        // Release, both: pair with the acquires of the kernels' looks at these words, behind which they look at
        // that rank's words once more.
        let word = self.word(LEFT_AT + 4 * (rank / 32) as usize);
        word.fetch_or(1 << (rank % 32), Ordering::Release);
        self.word(0).fetch_or(OG_ABORT_LEFT, Ordering::Release);
    }

    /// [`Page::failure`] of this rank.
    pub(crate) fn failure(&self) -> Option<og_failure> {
        self.page.failure()
    }

    /// The same since the last call of this.
    pub(crate) fn take_failure(&self) -> Option<og_failure> {
        let failure = self.failure();
        if failure.is_some() {
            let kind = self.word(RECORD_AT + offset_of!(og_failure, kind));
            // Relaxed: no kernel loads it, and callers look one after the other, under a lock.
            kind.store(og_failure_kind::OG_FAILURE_NONE.0, Ordering::Relaxed);
        }
        failure
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.page.word(offset)
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: registered by `new`, unregistered nowhere else, and unmapped after this.
        let unregistered = unsafe { sys::cuMemHostUnregister(self.page.0.as_ptr().cast()) };
        self.context.record_err(unregistered.result());
    }
}

fn refused(call: &'static str, error: io::Error) -> Error {
    Error::Cuda { call, code: None, detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_that_has_the_file_sees_what_a_kernel_writes() {
        let file = memfd_create("words", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let [own, other] = [(); 2].map(|()| Page::of(file.as_fd()).unwrap());
        assert!(!other.has_given_up() && other.failure().is_none());
        let at = |offset| own.word(RECORD_AT + offset);
        at(offset_of!(og_failure, gave_up)).store(1, Ordering::Release);
        assert!(other.has_given_up() && other.failure().is_none());
        at(offset_of!(og_failure, chunk)).store(3, Ordering::Relaxed);
        let kind = og_failure_kind::OG_FAILURE_LAYOUT.0;
        at(offset_of!(og_failure, kind)).store(kind, Ordering::Release);
        drop((own, file));
        let failure = other.failure().unwrap();
        assert_eq!((failure.chunk, failure.kind), (3, kind));
    }
}
