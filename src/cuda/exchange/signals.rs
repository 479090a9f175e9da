//! The signals that a product waits for: one word for each chunk, or for each span of its columns, on the device.
//!
//! What belongs here: the memory of the chunk protocol on one GPU, and the ways to write it.
//!
//! # The protocol
//!
//! A **step** has an **epoch**: a number in device memory that grows by one a step and may wrap. A
//! signal is *ready* when `signal − epoch ≥ 0` in wrapping arithmetic (`(i32)(signal - epoch) >= 0`), so
//! nothing is ever reset. A step is:
//!
//! 1. [`Signals::advance`] on the stream of the products: in its order, the products of the step before
//!    have ended, so the epoch is constant while a product runs;
//! 2. producers write each chunk and then its signal, the chunks in any order and on any stream, but after
//!    the step before has read the buffer that they write to;
//! 3. products that wait ([`AsyncGemm`](crate::cuda::AsyncGemm)), enqueued before or after the producers'
//!    work.
//!
//! A signal is written *after* its data, in one of three ways:
//!
//! - [`Signals::post`]: a kernel of one thread writes it. It works in graphs, but needs an SM: enqueue it before the product,
//!   or keep SMs free with a limit.
//! - [`Signals::write`]: the stream itself writes it. That needs no SM, but does not work in graphs.
//! - Code of your own, a kernel or another process, stores the epoch ([`Signals::epoch_address`]) to the signal's word
//!   ([`Signals::signal_address`]), with release at system scope. A memset does not do: it orders nothing. The words may be
//!   yours ([`Signals::at`]), in [`SymmetricMemory`], for example: then a peer writes chunk and word by
//!   [`SymmetricMemory::put`] and [`SymmetricMemory::post`].
//!
//! Enqueue transfers on other streams than the product: a transfer behind the product on one stream would wait for it,
//! while the product waits for the transfer's signal.
//!
//! Invariant: all that a kernel may still touch is alive: a value dropped too early waits for its
//! streams first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::chunk_table::ChunkTable;
use super::symmetric::SymmetricMemory;
use super::waiters::{Failures, Waiter};
use super::words::{EPOCH_AT, SIGNALS_AT, STOP_AT, WORD};
use crate::cuda::sys::bindings::og_gemm_input;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::ffi::{Input, kernels_built};
use crate::cuda::sys::host_words::HostWords;
use crate::cuda::sys::stream_ops::{self, is_capturing};
use crate::cuda::sys::uses::Uses;
use crate::cuda::sys::{Driver, ffi};
use crate::error::{Error, Result};
use crate::plan::MAX_CHUNKS;

/// The signals of the chunks that arrive on one GPU, and the epoch that its steps expect.
///
/// See the [module](self) for the protocol. A step that failed leaves this usable: later epochs are not
/// disturbed. Dropping waits for the work that was enqueued with it.
///
/// ```no_run
/// use overlap_gemm::cuda::{Device, Signals};
///
/// let device = Device::open(0)?;
/// let stream = device.new_stream()?;
/// let signals = Signals::new(&device, 8)?;
/// signals.advance(&stream)?; // a step begins,
/// signals.post(&stream, 3)?; // and chunk 3 has arrived
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Signals {
    pub(crate) device: Device,
    /// The words before the signals.
    start: CUdeviceptr,
    /// The first signal: behind them, or the caller's.
    signals: CUdeviceptr,
    /// Where steps are given up.
    stop: CUdeviceptr,
    /// Whose memory it is, if not this value's own.
    shared: Option<Arc<SymmetricMemory>>,
    slots: u32,
    /// The words on the host that kernels look at and write to.
    pub(crate) host: Arc<HostWords>,
    epoch: AtomicU32,
    pub(crate) uses: Uses,
    pub(crate) failures: Arc<Failures>,
}

/// A limit, as the device takes it.
pub(crate) fn timeout_ns(limit: Duration) -> u64 {
    /// Far from overflowing the timer, and longer than anybody waits.
    const FOREVER: u64 = 1 << 62;
    u64::try_from(limit.as_nanos()).unwrap_or(FOREVER).min(FOREVER)
}

impl Signals {
    /// `slots` signals; the first step has epoch 1.
    pub fn new(device: &Device, slots: u32) -> Result<Self> {
        Signals::with_epoch(device, slots, 0)
    }

    /// As if epoch `start` had been the last step: the first one has `start + 1`, which may wrap.
    #[doc(hidden)]
    pub fn with_epoch(device: &Device, slots: u32, start: u32) -> Result<Self> {
        Signals::made(device, None, slots, start)
    }

    /// Signals in the caller's memory: `slots` words of 32 bits at address `words`, which this GPU reaches and any producer may
    /// write. `start` is the epoch before the first step: a word that holds it, or an older epoch, is not ready. A producer stores
    /// the step's epoch: `start` + 1 in the first step, then one more in each.
    ///
    /// ```no_run
    /// # use overlap_gemm::cuda::{Device, Signals, SymmetricMemory};
    /// # use overlap_gemm::group::GroupOptions;
    /// # use std::time::Duration;
    /// # let (group, device) = Device::join(&GroupOptions::default())?;
    /// # use overlap_gemm::cuda::cudarc::driver::result;
    /// // A of 64 MiB, and behind it a word for each of eight chunks.
    /// let memory = SymmetricMemory::new(&group, &device, (64 << 20) + 32, Duration::from_secs(30))?;
    /// let words = memory.own_address() + (64 << 20);
    /// // SAFETY: the words are this rank's, in memory that outlives the signals; nobody uses them yet.
    /// let signals = unsafe {
    ///     result::memcpy_htod_sync(words, &[0u32; 8])?;
    ///     Signals::at(&device, words, 8, 0)?
    /// };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The words stay as long as this value, and as long as a graph with products that wait for them.
    pub unsafe fn at(device: &Device, words: CUdeviceptr, slots: u32, start: u32) -> Result<Self> {
        if words == 0 || !words.is_multiple_of(WORD) {
            let remedy = "give the address of words of 32 bits";
            return Err(Error::mismatch(
                "the address of the signals",
                words,
                "one of a word",
                remedy,
            ));
        }
        Signals::made(device, Some(words), slots, start)
    }

    fn made(device: &Device, theirs: Option<CUdeviceptr>, slots: u32, start: u32) -> Result<Self> {
        let remedy = "give a slot for each chunk";
        Error::check_range("the number of signal slots", slots, 1..=MAX_CHUNKS, remedy)?;
        kernels_built()?;
        device.bind()?;
        // SAFETY: `bind` has made the device's context current.
        unsafe { ffi::signals_prepare() }?;
        let host = Arc::new(HostWords::new(device)?);
        let own = if theirs.is_some() { 0 } else { slots };
        let mut words = vec![0u32; (SIGNALS_AT + own) as usize];
        words[EPOCH_AT as usize..].fill(start);
        // SAFETY: the context is current.
        let memory =
            unsafe { result::malloc_sync(size_of_val(words.as_slice())) }.in_call("cuMemAlloc")?;
        let (device, epoch) = (device.clone(), AtomicU32::new(start));
        let signals = Signals {
            device,
            start: memory,
            signals: theirs.unwrap_or(memory + u64::from(SIGNALS_AT) * WORD),
            stop: memory + u64::from(STOP_AT) * WORD,
            shared: None,
            slots,
            failures: Failures::at(&host),
            host,
            epoch,
            uses: Uses::default(),
        };
        // SAFETY: the memory is as long as the words, and nobody else knows of it.
        unsafe { result::memcpy_htod_sync(memory, &words) }.in_call("cuMemcpyHtoD")?;
        // The call does not promise that the memory has been written when it returns.
        signals.device.context().synchronize().in_call("cuCtxSynchronize")?;
        Ok(signals)
    }

    /// Signals at `at`, in this rank's part of `memory`, which holds zeros there and, from the epoch on, the
    /// epoch before the first; steps are given up at `stop`. A gather writes them by itself: where a kernel pushes, they have several words each, which
    /// [`Signals::signal_address`] does not know.
    pub(crate) fn shared(
        device: &Device,
        memory: &Arc<SymmetricMemory>,
        host: HostWords,
        [at, stop]: [CUdeviceptr; 2],
        slots: u32,
        start: u32,
    ) -> Result<Self> {
        device.bind()?;
        // SAFETY: `bind` has made the device's context current.
        unsafe { ffi::signals_prepare() }?;
        let host = Arc::new(host);
        Ok(Signals {
            device: device.clone(),
            start: at,
            signals: at + u64::from(SIGNALS_AT) * WORD,
            stop,
            shared: Some(Arc::clone(memory)),
            slots,
            failures: Failures::at(&host),
            host,
            epoch: AtomicU32::new(start),
            uses: Uses::default(),
        })
    }

    /// The current epoch as the host counts it, without the steps of graph launches.
    pub fn epoch(&self) -> u32 {
        // Relaxed: a count; what it is used for is enqueued on streams that the caller orders.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Blocks until all work on `stream` has ended, returns the epoch in device memory, and sets the host's
    /// count ([`Signals::epoch`]) to it.
    pub fn read_epoch(&self, stream: &Arc<CudaStream>) -> Result<u32> {
        let stream = self.begin(stream)?;
        stream_ops::synchronize(stream)?;
        let mut epoch = [0u32];
        // SAFETY: one word of this value's memory; the copy is over when the call returns.
        unsafe { result::memcpy_dtoh_sync(&mut epoch, self.epoch_address()) }
            .in_call("cuMemcpyDtoH")?;
        self.epoch.store(epoch[0], Ordering::Relaxed);
        Ok(epoch[0])
    }

    /// Begins a step, in the order of `stream`: adds 1 to the epoch on the device, with a kernel of one
    /// thread. Can be captured.
    pub fn advance(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let stream = self.begin(stream)?;
        let captured = self.uses.note_capture(stream)?;
        // SAFETY: `begin` has made the context current; the word lives until the stream is through.
        unsafe { ffi::epoch_advance(self.epoch_address(), stream) }?;
        if !captured {
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Signals that all earlier work of `stream` is done: a kernel of one thread sets `slot` to the epoch in device memory. It must
    /// run after the step's [`Signals::advance`]. Can be captured.
    pub fn post(&self, stream: &Arc<CudaStream>, slot: u32) -> Result<()> {
        self.post_some(stream, self.signal_address(slot)?, 1)
    }

    /// [`Signals::post`] for all slots at once.
    pub fn post_all(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.post_some(stream, self.signals, self.slots)
    }

    fn post_some(&self, stream: &Arc<CudaStream>, first: CUdeviceptr, count: u32) -> Result<()> {
        let stream = self.begin(stream)?;
        self.uses.note_capture(stream)?;
        // SAFETY: `begin` has made the context current; the words live until the stream is through.
        unsafe { ffi::signal_post(first, count, self.epoch_address(), stream) }
    }

    /// [`Signals::post`] without a kernel: after its earlier work, the stream itself writes the epoch that
    /// the host has counted ([`Signals::epoch`]). Needs no SM. A capture is refused: each replay would write
    /// the epoch of the capture.
    pub fn write(&self, stream: &Arc<CudaStream>, slot: u32) -> Result<()> {
        let address = self.signal_address(slot)?;
        let stream = self.begin(stream)?;
        if is_capturing(stream)? {
            return Err(Error::Unsupported {
                what: "writing a signal by the stream, in a graph,".into(),
                why: "each replay would write the epoch of the capture".into(),
                remedy: "use Signals::post",
            });
        }
        // SAFETY: one of the signals, which live until the stream is through.
        unsafe { stream_ops::write(stream, address, self.epoch()) }
    }

    /// Where the signal in `slot` is, for other producers.
    pub fn signal_address(&self, slot: u32) -> Result<CUdeviceptr> {
        let remedy = "make the Signals with a slot for each chunk";
        Error::check_range("the slot", slot, 0..=self.slots - 1, remedy)?;
        Ok(self.signals + u64::from(slot) * WORD)
    }

    /// Where the epoch is, for other producers: read it, do not write it.
    pub fn epoch_address(&self) -> CUdeviceptr {
        self.word_address(EPOCH_AT)
    }

    /// Ends waiting products from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter { host: Arc::clone(&self.host) }
    }

    /// Returns an error if a product gave up, after a timeout for example, since the last call. It never blocks: synchronise with the
    /// stream before you rely on `Ok`. After an error the product's D is undefined.
    pub fn check(&self) -> Result<()> {
        self.failures.take()
    }

    /// How a product on `stream` is to wait; to be asked before it is enqueued, behind [`Signals::note_waiter`].
    pub(crate) fn input<'a>(
        &self,
        stream: &Arc<CudaStream>,
        table: &'a ChunkTable,
        limit: Duration,
    ) -> Result<Input<'a>> {
        self.begin(stream)?;
        let words = og_gemm_input {
            pivot_row: table.pivot_row,
            early_chunks: table.early_chunks,
            share_bits: table.span_bits,
            span_bits: table.span_bits,
            span_bytes: table.span_bytes,
            signals: self.signals as *const _,
            epoch: self.epoch_address() as *const _,
            stop: self.stop as *mut _,
            abort: self.host.abort_address() as *const _,
            failure: self.host.failure_address() as *mut _,
            timeout_ns: timeout_ns(limit),
            ..og_gemm_input::default()
        };
        Ok(Input::new(&table.chunks, words))
    }

    /// Notes that `waiter` waits for signals from `epoch` on. Of a graph's replays nobody counts the epochs: it waits in all.
    pub(crate) fn note_waiter(&self, epoch: u32, captured: bool, waiter: Waiter) {
        self.failures.note_waiter(epoch, captured, waiter);
    }

    /// Whether `stream` is being captured; if so, this memory stays as long as the process.
    pub(crate) fn note_capture(&self, stream: &CudaStream) -> Result<bool> {
        self.uses.note_capture(stream)
    }

    /// Notes that `stream` will touch this memory, and makes the context current.
    pub(crate) fn begin<'a>(&self, stream: &'a Arc<CudaStream>) -> Result<&'a Arc<CudaStream>> {
        self.uses.begin(&self.device, stream)
    }

    fn word_address(&self, word: u32) -> CUdeviceptr {
        self.start + u64::from(word) * WORD
    }
}

impl Drop for Signals {
    /// Waits for every stream that may still touch the memory: products end within their limits. Where graphs may,
    /// too, memory of its own is left where it is; whose memory it shares says what becomes of that.
    fn drop(&mut self) {
        let context = Arc::clone(self.device.context());
        let in_graphs = self.shared.is_none() && self.uses.are_in_graphs();
        if self.uses.wait().is_err() || in_graphs {
            // Nothing is freed under a kernel that may still run.
            std::mem::forget((Arc::clone(&self.host), self.shared.clone()));
            return;
        }
        if self.shared.is_some() {
            return;
        }
        context.record_err(context.bind_to_thread());
        // SAFETY: allocated by `malloc_sync`, freed nowhere else, and all uses are over. Words of the caller's stay.
        context.record_err(unsafe { result::free_sync(self.start) });
    }
}

/// Ends waiting products from any thread: see [`Signals::aborter`].
///
/// ```no_run
/// use overlap_gemm::cuda::{Device, Signals};
///
/// let signals = Signals::new(&Device::open(0)?, 8)?;
/// let aborter = signals.aborter();
/// std::thread::spawn(move || aborter.abort());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Aborter {
    host: Arc<HostWords>,
}

impl Aborter {
    /// Products that wait give up, those of later steps too, until [`Aborter::clear`].
    pub fn abort(&self) {
        self.host.set_abort(true);
    }

    /// Lets products wait again. Call it when the aborted products have ended; one that missed the abort would go on waiting.
    pub fn clear(&self) {
        self.host.set_abort(false);
    }

    /// Whether products that wait give up.
    pub fn is_set(&self) -> bool {
        self.host.is_aborted()
    }
}
