//! Signals between ranks' GPUs, at points that the caller chooses: for the caller's protocols on
//! [`SymmetricMemory`].
//!
//! What belongs here: put, wait, barrier, as kernels of one warp. The caller decides what a signal means.
//! Invariants: what a stream did before it put a signal is visible to every stream that has waited for that signal; counts
//! only grow, so nothing is reset, and graphs may be launched again and again; every wait ends, at the latest with the limit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use super::given_up::GivenUp;
use super::signals::timeout_ns;
use super::symmetric::SymmetricMemory;
use crate::cuda::sys::bindings::{OG_PAD_HEADER, og_failure_kind, og_pad};
use crate::cuda::sys::device::Device;
use crate::cuda::sys::host_words::HostWords;
use crate::cuda::sys::uses::Uses;
use crate::cuda::sys::{Driver, ffi};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::sync::lock;

/// The most channels that a pad has.
pub const MAX_CHANNELS: u32 = 1024;

/// One rank's handle on signals between the ranks' GPUs. Collective: all ranks create it; for each `wait` the peer calls `put`
/// once. The caller orders a rank's calls on one channel: on one stream, or on streams that it synchronises.
///
/// ```no_run
/// use std::time::Duration;
/// use overlap_gemm::cuda::{Device, SignalPad, SymmetricMemory};
/// use overlap_gemm::group::GroupOptions;
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let limit = Duration::from_secs(30);
/// let memory = SymmetricMemory::new(&group, &device, 1 << 20, limit)?;
/// let pad = SignalPad::new(&group, &device, 1, limit)?;
///
/// // This rank's first KiB to the second KiB of the next one.
/// let next = (group.rank() + 1) % group.ranks();
/// let before = (group.rank() + group.ranks() - 1) % group.ranks();
/// // SAFETY: the memory outlives the copy.
/// unsafe { memory.put(&stream, next, 1024, memory.own_address(), 1024)? };
/// pad.put(&stream, next, 0)?;
/// pad.wait(&stream, before, 0)?;
/// // ... work that reads the second KiB ...
/// stream.synchronize().expect("the stream is through");
/// pad.check()?; // whether all came in time
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct SignalPad {
    group: Arc<Group>,
    device: Device,
    memory: Arc<SymmetricMemory>,
    /// Where the addresses of all ranks' words are.
    table_at: CUdeviceptr,
    host: Arc<HostWords>,
    given_up: GivenUp,
    channels: u32,
    limit: Duration,
    /// Where steps are given up that come before what the pad orders; 0: nowhere.
    stop: CUdeviceptr,
    uses: Uses,
    failed: Mutex<Option<Error>>,
}

impl SignalPad {
    /// Creates `channels` independent channels, the same number on all ranks. Blocks until all ranks have called
    /// it. `limit` is the timeout of each wait, here and later.
    pub fn new(
        group: &Arc<Group>,
        device: &Device,
        channels: u32,
        limit: Duration,
    ) -> Result<Self> {
        ffi::kernels_built()?;
        let remedy = "use few channels: each is as good for many signals, one after the other";
        Error::check_range("the number of channels", channels, 1..=MAX_CHANNELS, remedy)?;
        let words = OG_PAD_HEADER + 3 * channels * group.ranks();
        // Behind the words: where each rank's are. In memory of its own this table would take 32 MiB, a block of the driver's pool.
        let table_offset = (u64::from(words) * size_of::<u32>() as u64).next_multiple_of(8);
        let bytes = table_offset + u64::from(group.ranks()) * size_of::<CUdeviceptr>() as u64;
        let memory = SymmetricMemory::new(group, device, bytes, limit)?;
        let made = Self::make(group, device, memory, table_offset, channels, limit);
        let pad = made.inspect_err(|error| group.abort(&format!("no signal pad: {error}")))?;
        // Nobody may signal before the words are zero.
        group.barrier("a signal pad is there", limit)?;
        Ok(pad)
    }

    fn make(
        group: &Arc<Group>,
        device: &Device,
        memory: SymmetricMemory,
        table_offset: u64,
        channels: u32,
        limit: Duration,
    ) -> Result<Self> {
        device.bind()?;
        // SAFETY: `bind` has made the device's context current.
        unsafe { ffi::signals_prepare() }?;
        // SAFETY: this rank's part is so long, and nobody else uses it before the barrier.
        unsafe { result::memset_d8_sync(memory.own_address(), 0, memory.bytes() as usize) }
            .in_call("cuMemsetD8")?;
        let table_at = memory.own_address() + table_offset;
        // SAFETY: as above, and `bytes` in `new` has room for the table.
        unsafe { result::memcpy_htod_sync(table_at, &memory.addresses()?) }
            .in_call("cuMemcpyHtoD")?;
        // Neither call promises that the memory has been written when it returns.
        device.context().synchronize().in_call("cuCtxSynchronize")?;
        let (host, file) = HostWords::with_file(device)?;
        let host = Arc::new(host);
        group.tell(&host, HostWords::hear);
        let given_up = GivenUp::exchange(group, &file, limit)?;
        let (group, device) = (Arc::clone(group), device.clone());
        Ok(SignalPad {
            group,
            device,
            memory: Arc::new(memory),
            table_at,
            host,
            given_up,
            channels,
            limit,
            stop: 0,
            uses: Uses::default(),
            failed: Mutex::default(),
        })
    }

    /// A rank that has given up a step, as its `stop` says, tells all others before it signals them. The stop stays as long as this.
    pub(crate) fn behind_steps(mut self, stop: CUdeviceptr) -> Self {
        self.stop = stop;
        self
    }

    /// Signals `peer`, after everything that `stream` did before.
    pub fn put(&self, stream: &Arc<CudaStream>, peer: u32, channel: u32) -> Result<()> {
        self.memory.address(peer)?;
        self.meet(stream, Some(peer), channel, true, false)
    }

    /// Makes `stream` wait for the next signal of `peer`: the n-th wait waits for the n-th put.
    pub fn wait(&self, stream: &Arc<CudaStream>, peer: u32, channel: u32) -> Result<()> {
        self.memory.address(peer)?;
        self.meet(stream, Some(peer), channel, false, true)
    }

    /// Makes `stream` wait until all ranks' streams have come here. What they did before is then seen.
    ///
    /// ```no_run
    /// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
    /// # use overlap_gemm::cuda::SignalPad;
    /// # use std::sync::Arc;
    /// # fn step(pad: &SignalPad, stream: &Arc<CudaStream>, read_peers_rows: impl Fn()) -> overlap_gemm::Result<()> {
    /// read_peers_rows(); // a kernel on `stream`
    /// pad.barrier(stream, 0)?;
    /// // Work on `stream` may now overwrite what peers have read.
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&self, stream: &Arc<CudaStream>, channel: u32) -> Result<()> {
        self.meet(stream, None, channel, true, true)
    }

    /// Returns an error if a wait ended without its signal, on this rank or on another: that rank's stream went on. It never
    /// blocks: it looks at every wait that has ended on a stream that you have synchronised with, and perhaps at later ones. After an
    /// error, later waits return at once, and all ranks get it: form a new group.
    pub fn check(&self) -> Result<()> {
        let mut failed = lock(&self.failed);
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let (rank, limit) = (self.group.rank(), self.limit);
        let Some(found) = self.host.take_failure() else {
            self.group.check()?;
            return match self.given_up.first() {
                None => Ok(()),
                Some((peer, _)) => {
                    let reason = format!(
                        "rank {peer} gave up a step or a wait, and went on: its operations' checks say why"
                    );
                    Err(Error::Aborted { rank, reason })
                }
            };
        };
        let error = match (og_failure_kind(found.kind), self.group.check()) {
            // A rank that is gone explains more than that somebody asked to stop.
            (og_failure_kind::OG_FAILURE_ABORTED, Err(ended)) => ended,
            (og_failure_kind::OG_FAILURE_ABORTED, Ok(())) => {
                let reason = format!("asked to while it waited for rank {}", found.chunk);
                Error::Aborted { rank, reason }
            }
            (og_failure_kind::OG_FAILURE_LEFT, _) => {
                Error::PeerLost { rank, peer: found.chunk, before: "a wait for its signal".into() }
            }
            _ => Error::PeerTimeout {
                rank,
                peer: found.chunk,
                awaited: "a signal".into(),
                epoch: found.epoch,
                epoch_seen: found.signal,
                limit,
            },
        };
        self.group.abort(&error.to_string());
        *failed = Some(error.clone());
        Err(error)
    }

    fn meet(
        &self,
        stream: &Arc<CudaStream>,
        peer: Option<u32>,
        channel: u32,
        puts: bool,
        waits: bool,
    ) -> Result<()> {
        let remedy = "make the pad with more channels";
        Error::check_range("the channel", channel, 0..=self.channels - 1, remedy)?;
        let stream = self.uses.begin(&self.device, stream)?;
        self.uses.note_capture(stream)?;
        let pad = og_pad {
            words: self.table_at as *const _,
            own: self.memory.own_address() as *mut _,
            ranks: self.group.ranks() as i32,
            rank: self.group.rank() as i32,
            channels: self.channels as i32,
            reserved: 0,
            stop: self.stop as *const _,
            abort: self.host.abort_address() as *const _,
            failure: self.host.failure_address() as *mut _,
            timeout_ns: timeout_ns(self.limit),
        };
        // SAFETY: `begin` has made the context current; all ranks have such words, which live until the streams
        // that use them are through.
        unsafe { ffi::pad_meet(&pad, channel, peer, puts, waits, stream) }
    }
}

impl Drop for SignalPad {
    /// Waits for every stream that may still touch the words: waits end within their limit. Where graphs may, too, or
    /// a context is lost, the words (a page and a little) are left where they are.
    fn drop(&mut self) {
        let context = Arc::clone(self.device.context());
        context.record_err(context.bind_to_thread());
        let over = self.uses.wait();
        if over.is_err() || self.uses.are_in_graphs() {
            std::mem::forget((Arc::clone(&self.host), Arc::clone(&self.memory)));
        }
    }
}
