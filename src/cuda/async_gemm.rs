//! GEMM on an input that arrives chunk by chunk while it is multiplied, on one GPU.
//!
//! What belongs here: the product that waits. The order in which it computes is
//! [`TileOrder`]'s; whom it waits for is [`Signals`]' affair. Invariant: the chunk table, the kernel
//! and its memory are made in [`AsyncGemm::plan`]; [`AsyncGemm::enqueue`] neither allocates nor waits,
//! and can be captured into a graph.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;

use crate::cuda::exchange::chunk_wait::ChunkWait;
use crate::cuda::exchange::signals::Signals;
use crate::cuda::product::Product;
use crate::cuda::product::operands::RawOperands;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::records::TileRecords;
use crate::error::{Error, Result};
use crate::kernels::{Choice, Kernel};
use crate::plan::{Chunks, Problem, TileOrder};

/// D = A · B where A arrives while it is multiplied.
///
/// The product walks its tiles in the order in which chunks are expected, the shard of `pivot_rank`
/// first, and each tile waits for the chunks that its rows touch. If chunks arrive much faster than they are multiplied, use
/// [`Chunks::early`]: the product then reads B less often. The code that delivers A sets
/// [`Signals`]; the protocol is described [there](crate::cuda::signals).
///
/// ```no_run
/// use overlap_gemm::cuda::{AsyncGemm, Device, GemmOptions, RawOperands, Signals};
/// use overlap_gemm::cuda::cudarc::driver::DevicePtr;
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::plan::{Chunks, Problem};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open(0)?;
/// let (stream, copies) = (device.new_stream()?, device.new_stream()?);
/// let problem = Problem::builder(4096, 3584, 8192).ranks(8).build()?;
/// let chunks = Chunks::even(problem.shards(), 2)?;
/// let gemm = AsyncGemm::plan(&device, &problem, &chunks, 0, &GemmOptions::default())?;
/// let signals = Signals::new(&device, chunks.signals())?;
///
/// let input = vec![bf16::ONE; 4096 * 8192]; // pinned memory would be faster
/// let mut a = stream.alloc_zeros::<bf16>(4096 * 8192)?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 3584 * 8192])?;
/// let d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// let addresses =
///     [a.device_ptr(&stream).0, b.device_ptr(&stream).0, d.device_ptr(&stream).0];
///
/// // A step: a new epoch, then the chunks in the order they are needed, then the product.
/// signals.advance(&stream)?;
/// copies.join(&stream)?;
/// for chunk in chunks.need_order(0) {
///     let rows = chunks.rows(chunk);
///     let part = rows.start as usize * 8192..rows.end as usize * 8192;
///     copies.memcpy_htod(&input[part.clone()], &mut a.slice_mut(part))?;
///     signals.write(&copies, chunk)?; // after the copy, on its stream; needs no SM
/// }
/// let [a_address, b_address, d_address] = addresses;
/// // SAFETY: all three are on this device and as long as the problem says, and outlive the product.
/// unsafe {
///     gemm.enqueue_raw(&stream, &RawOperands::new(a_address, b_address, d_address), &signals)?;
/// }
/// stream.synchronize()?;
/// signals.check()?; // a chunk that did not come in time is named here
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncGemm {
    product: Product,
    order: TileOrder,
    wait: ChunkWait,
}

impl AsyncGemm {
    /// Chooses and loads a kernel for `problem` whose A arrives in `chunks`; those of `pivot_rank` are
    /// expected first. The signal of chunk c is in slot c; with [`Chunks::in_spans`] each span has one, that of span s in slot
    /// c · spans + s.
    ///
    /// M is the planned one in every call: another M has other chunks, and another plan. Plans are cheap
    /// once a kernel is loaded.
    pub fn plan(
        device: &Device,
        problem: &Problem,
        chunks: &Chunks,
        pivot_rank: u32,
        options: &GemmOptions,
    ) -> Result<Self> {
        let wait = ChunkWait::plan(problem, chunks, pivot_rank)?;
        let product = Product::plan(device, problem, options)?;
        let order = TileOrder::new(chunks, problem.n(), product.tiling(), pivot_rank)?;
        Ok(AsyncGemm { product, order, wait })
    }

    /// The part of [`AsyncGemm::plan`] that needs no device.
    pub fn check(
        problem: &Problem,
        chunks: &Chunks,
        pivot_rank: u32,
        options: &GemmOptions,
    ) -> Result<()> {
        ChunkWait::check(problem, chunks, pivot_rank)?;
        Product::check(problem, options)
    }

    /// As [`ChunkWait::with_timeouts`].
    #[must_use]
    pub fn with_timeouts(mut self, first: Duration, steady: Duration) -> Self {
        self.wait = self.wait.with_timeouts(first, steady);
        self
    }

    /// The problem that was planned.
    pub fn problem(&self) -> &Problem {
        &self.product.problem
    }

    /// The kernel that carries it out.
    pub fn kernel(&self) -> &'static Kernel {
        self.product.kernel
    }

    /// How the kernel is run.
    pub fn choice(&self) -> Choice {
        self.product.choice
    }

    /// The order in which the kernel computes its tiles.
    pub fn tile_order(&self) -> &TileOrder {
        &self.order
    }

    /// A buffer for the records of one call: [`RawOperands::records`].
    pub fn records(&self) -> Result<TileRecords> {
        self.product.records()
    }

    /// Enqueues the product on `stream` and returns. It waits on the device, for the signals of the
    /// epoch that [`Signals::advance`] has begun. It takes addresses alone: `cudarc` would let
    /// the product wait for everything that was enqueued on A before, and nothing would overlap.
    ///
    /// A product that gives up (a limit, an abort) ends all the same; [`Signals::check`] says so once
    /// the stream is through, and D is undefined.
    ///
    /// # Safety
    /// As for [`Gemm::enqueue_raw`](crate::cuda::Gemm::enqueue_raw), except that the chunks of A (and their
    /// row scales) may be written until their signals are.
    pub unsafe fn enqueue_raw(
        &self,
        stream: &Arc<CudaStream>,
        operands: &RawOperands,
        signals: &Signals,
    ) -> Result<()> {
        let planned = self.problem().m();
        if let Some(rows) = operands.rows.filter(|rows| *rows != planned) {
            let remedy = "plan another AsyncGemm with the chunks of these rows";
            return Err(Error::mismatch("the number of rows", rows, planned, remedy));
        }
        self.product.device.check_stream(stream)?;
        let input = self.wait.await_by(stream, signals)?;
        // SAFETY: the caller's promise, and `signals` keeps what `input` names alive until the stream is
        // through.
        unsafe { self.product.enqueue_raw(stream, operands, Some(&input)) }?;
        self.wait.note_enqueued(stream)
    }
}
