//! A few words of host memory that the device reads and writes while a kernel runs.
//!
//! What belongs here: the abort word with the ranks that have left, and the failure record, pinned and
//! mapped, and the atomics that order them. Invariant: the memory is freed once, when nobody on this side holds it; code that
//! hands its address to a kernel holds it until that kernel has ended.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, result, sys};

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
const BYTES: usize = RECORD_AT + 128;

/// The words, on the host and as the device sees them.
#[derive(Debug)]
pub(crate) struct HostWords {
    start: NonNull<u8>,
    device_start: u64,
    context: Arc<CudaContext>,
}

// SAFETY: the memory belongs to the process, not to a thread; all access is through atomics.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

impl HostWords {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        device.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current.
        let start = unsafe { result::malloc_host(BYTES, flags) }.in_call("cuMemHostAlloc")?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            let detail = "it returned no address".into();
            return Err(Error::Cuda { call: "cuMemHostAlloc", code: None, detail });
        };
        // From here on an early return frees it.
        let context = Arc::clone(device.context());
        let mut words = HostWords { start, device_start: 0, context };
        // SAFETY: the memory is this long, and nobody else knows of it.
        unsafe { start.as_ptr().write_bytes(0, BYTES) };
        // SAFETY: the address is that of mapped host memory, and the other of a live integer.
        unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut words.device_start, start.as_ptr().cast(), 0)
        }
        .result()
        .in_call("cuMemHostGetDevicePointer")?;
        Ok(words)
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
        debug_assert!(offset + 4 <= BYTES && offset.is_multiple_of(4));
        // SAFETY: inside the allocation and aligned, since pages are; it lives as long as `self`, and
        // this process touches it through atomics only.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: from `malloc_host`, freed nowhere else.
        self.context.record_err(unsafe { result::free_host(self.start.as_ptr().cast()) });
    }
}
