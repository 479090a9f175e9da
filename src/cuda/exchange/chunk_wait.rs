//! How a kernel waits for the chunks of an input: a product of this crate, or a kernel of the caller's own.
//!
//! What belongs here: which signals, in which order, and for how long. Invariant: `Signals` knows each waiter before its kernel
//! is enqueued, so that an error can describe a failure.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cudarc::driver::CudaStream;

use super::chunk_table::{ChunkTable, check_count};
use super::signals::Signals;
use super::waiters::Waiter;
use crate::cuda::sys::ffi::{Input, MAX_EXTENT};
use crate::cuda::sys::stream_ops::is_capturing;
use crate::error::{Error, Result};
use crate::plan::{Chunks, Problem, Timeouts};

/// What a kernel of your own needs to wait for chunks as [`AsyncGemm`](crate::cuda::AsyncGemm) does: with the same signals,
/// time limits, abort and failures.
///
/// The kernel includes this crate's headers: `chunk_signal.cuh` waits, `async_input_scheduler.cuh` has the order of tiles. A
/// dependent's build script finds their folder in `DEP_OVERLAP_GEMM_INCLUDE`: see "Kernels of your own" in the repository's
/// `docs/building-cuda.md`.
///
/// ```no_run
/// # use overlap_gemm::cuda::{ChunkWait, Device, Signals};
/// # use overlap_gemm::plan::{Chunks, Problem};
/// # unsafe fn launch_mine(_input: *const std::ffi::c_void) {}
/// # let device = Device::open(0)?;
/// # let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 3584, 8192).ranks(8).build()?;
/// let chunks = Chunks::even(problem.shards(), 2)?;
/// let wait = ChunkWait::plan(&problem, &chunks, 0)?;
/// let signals = Signals::new(&device, chunks.signals())?;
///
/// // A step. Producers write the signals, as for `AsyncGemm`.
/// signals.advance(&stream)?;
/// let input = wait.input(&stream, &signals)?;
/// // SAFETY: it launches a kernel on `stream` that does with `input` what the headers say.
/// unsafe { launch_mine(input.as_ptr()) };
/// stream.synchronize()?;
/// signals.check()?; // a chunk that did not come in time is named here
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ChunkWait {
    table: ChunkTable,
    first_limit: Duration,
    waiter: Waiter,
    /// A step has been enqueued, and not just captured.
    begun: AtomicBool,
}

/// An `og_gemm_input` of `csrc/overlap_gemm.h`: see [`ChunkWait::input`].
///
/// ```no_run
/// use overlap_gemm::cuda::{ChunkWait, Signals};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use std::{ffi::c_void, sync::Arc};
///
/// fn launch(
///     wait: &ChunkWait,
///     stream: &Arc<CudaStream>,
///     signals: &Signals,
///     mine: unsafe extern "C" fn(*const c_void),
/// ) -> overlap_gemm::Result<()> {
///     let input = wait.input(stream, signals)?;
///     // SAFETY: it launches a kernel that does with `input` what the headers say.
///     unsafe { mine(input.as_ptr()) };
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct KernelInput<'a>(Input<'a>);

impl ChunkWait {
    /// For A of `problem`, which arrives in `chunks`, at most [`MAX_AWAITED_CHUNKS`](crate::cuda::MAX_AWAITED_CHUNKS); those of
    /// `pivot_rank` are expected first. The signal of chunk c is in slot c; with [`Chunks::in_spans`] each span has one, that of span s in
    /// slot c · spans + s.
    pub fn plan(problem: &Problem, chunks: &Chunks, pivot_rank: u32) -> Result<Self> {
        ChunkWait::check(problem, chunks, pivot_rank)?;
        Ok(ChunkWait {
            table: ChunkTable::new(chunks, problem, pivot_rank, |chunk| chunk),
            first_limit: Timeouts::default().first,
            waiter: Waiter {
                rank: pivot_rank,
                limit: Timeouts::default().steady,
                chunks: chunks.clone(),
                of_sums: false,
            },
            begun: AtomicBool::new(false),
        })
    }

    pub(crate) fn check(problem: &Problem, chunks: &Chunks, pivot_rank: u32) -> Result<()> {
        chunks.shards().check_rank(pivot_rank)?;
        Error::check_range("m", problem.m(), 1..=MAX_EXTENT, "split the product into several")?;
        if chunks.shards().m() != problem.m() {
            let remedy = "make the chunks of shards whose rows sum to m";
            let (got, expected) = (chunks.shards().m(), problem.m());
            return Err(Error::mismatch("the sum of all chunks' rows", got, expected, remedy));
        }
        check_count(chunks)
    }

    /// How many rows arrive; an error if these chunks are not of an A such as that problem's.
    pub(crate) fn check_fits(&self, problem: &Problem) -> Result<u32> {
        let (chunks, remedy) = (&self.waiter.chunks, "plan it for a problem with the product's K");
        let (got, expected) = (self.table.span_bytes, chunks.span_bytes(problem));
        if chunks.spans() > 1 && u64::try_from(got) != Ok(expected) {
            let what = "the bytes of a span of columns that is awaited";
            return Err(Error::mismatch(what, got, expected, remedy));
        }
        Ok(chunks.shards().m())
    }

    /// The timeout of a tile's wait for its chunks, or for the next span of them: `first` (default: 60 s) in the first step, when
    /// peers may still be starting, `steady` (default: 10 s) in later steps and in graphs.
    #[must_use]
    pub fn with_timeouts(mut self, first: Duration, steady: Duration) -> Self {
        (self.first_limit, self.waiter.limit) = (first, steady);
        self
    }

    /// The `og_gemm_input` of the kernel that you launch next on `stream`: what it waits for, and where it says why it gave up.
    /// Pass it to `make_chunk_table` and `make_order` of the headers.
    pub fn input<'a>(
        &'a self,
        stream: &Arc<CudaStream>,
        signals: &'a Signals,
    ) -> Result<KernelInput<'a>> {
        let input = self.await_by(stream, signals)?;
        self.note_enqueued(stream)?;
        Ok(KernelInput(input))
    }

    /// The same for a product of this crate; [`ChunkWait::note_enqueued`] comes behind it.
    pub(crate) fn await_by(
        &self,
        stream: &Arc<CudaStream>,
        signals: &Signals,
    ) -> Result<Input<'_>> {
        signals.signal_address(self.waiter.chunks.signals().saturating_sub(1))?;
        signals.device.check_stream(stream)?;
        let captured = signals.note_capture(stream)?;
        let mut waiter = self.waiter.clone();
        // Relaxed: calls at the same time may both be patient.
        if !self.begun.load(Ordering::Relaxed) && !captured {
            waiter.limit = self.first_limit;
        }
        let limit = waiter.limit;
        signals.note_waiter(signals.epoch(), captured, waiter);
        signals.input(stream, &self.table, limit)
    }

    /// From now on a wait is a steady one; a capture is no step yet.
    pub(crate) fn note_enqueued(&self, stream: &CudaStream) -> Result<()> {
        if !self.begun.load(Ordering::Relaxed) && !is_capturing(stream)? {
            self.begun.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl KernelInput<'_> {
    /// Its address, a `const og_gemm_input *` that is valid until this value is moved or dropped. A launch copies it into
    /// kernel parameters; the memory that it points to stays until the signals are dropped and the stream's work has ended.
    pub fn as_ptr(&self) -> *const c_void {
        (&raw const self.0.words).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Shards;

    #[test]
    fn chunks_that_do_not_fit_are_named() {
        let problem = Problem::builder(1024, 64, 64).build().unwrap();
        let refused = |rows: u32, chunks: u32, pivot: u32| {
            let chunks = Chunks::even(&Shards::even(rows, 2).unwrap(), chunks).unwrap();
            ChunkWait::plan(&problem, &chunks, pivot).unwrap_err().to_string()
        };
        let error = refused(1000, 4, 0);
        assert!(
            error.starts_with("the sum of all chunks' rows is 1000, but must be 1024"),
            "{error}"
        );
        let error = refused(1024, 129, 0);
        assert!(error.starts_with("the number of chunks is 258, but must be between 1 and 256"));
        assert!(refused(1024, 4, 2).starts_with("rank is 2"));
    }

    #[test]
    fn spans_of_another_k_are_refused() {
        let of_k = |k| Problem::builder(1024, 64, k).ranks(2).build().unwrap();
        let chunks = Chunks::even(of_k(8192).shards(), 1).unwrap().in_spans(4).unwrap();
        let wait = ChunkWait::plan(&of_k(8192), &chunks, 0).unwrap();
        assert_eq!(wait.check_fits(&of_k(8192)), Ok(1024));
        let text = wait.check_fits(&of_k(4096)).unwrap_err().to_string();
        let expected = "the bytes of a span of columns that is awaited is 4096, but must be 2048";
        assert!(text.starts_with(expected), "{text}");
    }
}
