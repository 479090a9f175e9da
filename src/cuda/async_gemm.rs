//! GEMM on an input that arrives chunk by chunk while it is multiplied, on one GPU.
//!
//! What belongs here: the product that waits. The order in which it computes is
//! [`TileOrder`]'s; whom it waits for is [`Signals`]' affair. Invariant: the chunk table, the kernel
//! and its memory are made in [`AsyncGemm::plan`]; [`AsyncGemm::enqueue`] never waits, and
//! [`AsyncGemm::enqueue_raw`] can be captured into a graph.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaStream;

use crate::cuda::exchange::chunk_wait::ChunkWait;
use crate::cuda::exchange::signals::Signals;
use crate::cuda::product::held::one_a;
use crate::cuda::product::operands::Operands;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::{Product, check_alike, check_operands};
use crate::cuda::sys::device::Device;
use crate::cuda::sys::records::TileRecords;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::{Choice, Kernel};
use crate::plan::{Chunks, Problem, Scaling, TileOrder};

/// D = A · B where A arrives while it is multiplied.
///
/// The product walks its tiles in the order in which chunks are expected, the shard of `pivot_rank`
/// first, and each tile waits for the chunks that its rows touch. If chunks arrive much faster than they are multiplied, use
/// [`Chunks::early`]: the product then reads B less often. The code that delivers A sets
/// [`Signals`]; the protocol is described [there](crate::cuda::signals).
///
/// ```no_run
/// use overlap_gemm::cuda::cudarc::driver::DevicePtr;
/// use overlap_gemm::cuda::{AsyncGemm, Device, DeviceMatrix, GemmOptions, Operands, Signals};
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
/// let mut d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// // SAFETY: `a` has 4096 × 8192 numbers and outlives the product. A chunk is written before its signal.
/// let arriving =
///     unsafe { DeviceMatrix::<bf16>::from_raw(a.device_ptr(&stream).0, 4096, 8192) };
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
/// gemm.enqueue(&stream, [Operands::new(arriving, &b, &mut d)], None, &signals)?;
/// stream.synchronize()?;
/// signals.check()?; // a chunk that did not come in time is named here
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncGemm {
    products: Vec<Product>,
    order: TileOrder,
    wait: ChunkWait,
}

impl AsyncGemm {
    /// Chooses and loads a kernel for `problem` whose A arrives in `chunks`; those of `pivot_rank` are
    /// expected first. The signal of chunk c is in slot c; with [`Chunks::in_spans`] each span has one, that of span s in slot
    /// c · spans + s.
    ///
    /// The planned M is the largest: calls of fewer rows have chunks of their own: `wait` of [`AsyncGemm::enqueue`].
    pub fn plan(
        device: &Device,
        problem: &Problem,
        chunks: &Chunks,
        pivot_rank: u32,
        options: &GemmOptions,
    ) -> Result<Self> {
        let products = [(problem.clone(), options.clone())];
        Self::plan_all(device, &products, chunks, pivot_rank)
    }

    /// [`AsyncGemm::plan`] for several products of the same A, each with options of its own. Their problems
    /// have the same shards, K, row stride of A, element type of A and scaling.
    pub fn plan_all(
        device: &Device,
        products: &[(Problem, GemmOptions)],
        chunks: &Chunks,
        pivot_rank: u32,
    ) -> Result<Self> {
        let first = check_alike(products)?;
        let wait = ChunkWait::plan(first, chunks, pivot_rank)?;
        let products: Vec<_> = (products.iter())
            .map(|(problem, options)| Product::plan(device, problem, options))
            .collect::<Result<_>>()?;
        let order = TileOrder::new(chunks, first.n(), products[0].tiling(), pivot_rank)?;
        Ok(AsyncGemm { products, order, wait })
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

    /// The problem of the first product.
    pub fn problem(&self) -> &Problem {
        &self.products[0].problem
    }

    /// The kernel of the first product.
    pub fn kernel(&self) -> &'static Kernel {
        self.products[0].kernel
    }

    /// How the first product runs it.
    pub fn choice(&self) -> Choice {
        self.products[0].choice
    }

    /// The order in which the first product computes its tiles, of the planned rows.
    pub fn tile_order(&self) -> &TileOrder {
        &self.order
    }

    /// A buffer for the records of the first product's calls: [`RawOperands::records`].
    pub fn records(&self) -> Result<TileRecords> {
        self.products[0].records()
    }

    /// Enqueues the products on `stream` and returns. On the device, they wait for the signals of the epoch that
    /// [`Signals::advance`] began. There are operands for each planned product, all with the same A. `wait` has the chunks of this
    /// call's rows, if these are fewer than planned (`None`: as planned).
    ///
    /// A is a [`DeviceMatrix::from_raw`](crate::cuda::DeviceMatrix::from_raw). A slice is refused: `cudarc` would order copies into
    /// it and the product, one behind the other. The same holds for row scales that arrive: these need
    /// [`AsyncGemm::enqueue_all_raw`].
    ///
    /// After a timeout or an abort the products still end, with D undefined: [`Signals::check`] returns the error when the
    /// stream's work has ended. This call refuses a capture; use [`AsyncGemm::enqueue_raw`] in graphs.
    pub fn enqueue<'a, A: Element, B: Element, D: Element>(
        &self,
        stream: &Arc<CudaStream>,
        operands: impl IntoIterator<Item = Operands<'a, A, B, D>>,
        wait: Option<&ChunkWait>,
        signals: &Signals,
    ) -> Result<()> {
        let operands: Vec<_> = operands.into_iter().collect();
        check_operands(operands.len(), self.products.len())?;
        let m = wait.unwrap_or(&self.wait).check_fits(self.problem())?;
        operands.iter().try_for_each(|operands| {
            operands.a.check_may_arrive()?;
            check_rows(operands.rows, m)
        })?;
        let held: Vec<_> = (self.products.iter().zip(operands))
            .map(|(product, operands)| product.hold(stream, operands.rows(m)))
            .collect::<Result<_>>()?;
        one_a(&held, self.problem().scaling() == Scaling::Rows)?;
        let raw: Vec<_> = held.iter().map(|held| held.raw).collect();
        // SAFETY: the memory belongs to this device and is as long as the problem and the rows say. Slices stay allocated until
        // the work that their events record is done; other memory is its owner's promise.
        unsafe { self.enqueue_all_raw(stream, &raw, wait, signals) }
    }

    /// [`AsyncGemm::enqueue`] of the only planned product and all planned rows, by addresses.
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
        check_rows(operands.rows, self.problem().m())?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_all_raw(stream, &[*operands], None, signals) }
    }

    /// [`AsyncGemm::enqueue_raw`] of all planned products, or of fewer rows than planned. There are operands for each product,
    /// with the same A. `wait` has the chunks of this call's rows (`None`: as planned).
    ///
    /// ```no_run
    /// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
    /// # use overlap_gemm::cuda::{AsyncGemm, ChunkWait, RawOperands, Signals};
    /// # use overlap_gemm::plan::{Chunks, Problem};
    /// # use std::sync::Arc;
    /// # fn fewer(gemm: &AsyncGemm, stream: &Arc<CudaStream>, signals: &Signals, a: u64, b: u64, d: u64)
    /// #     -> overlap_gemm::Result<()> {
    /// // Once for each number of rows.
    /// let problem = Problem::builder(1024, 3584, 8192).ranks(8).build()?;
    /// let wait = ChunkWait::plan(&problem, &Chunks::even(problem.shards(), 2)?, 0)?;
    ///
    /// // SAFETY: the addresses are this device's memory, as long as `problem` says, and stay until the product has ended.
    /// unsafe { gemm.enqueue_all_raw(stream, &[RawOperands::new(a, b, d)], Some(&wait), signals) }
    /// # }
    /// ```
    ///
    /// # Safety
    /// As for [`AsyncGemm::enqueue_raw`], for each product.
    pub unsafe fn enqueue_all_raw(
        &self,
        stream: &Arc<CudaStream>,
        operands: &[RawOperands],
        wait: Option<&ChunkWait>,
        signals: &Signals,
    ) -> Result<()> {
        check_operands(operands.len(), self.products.len())?;
        let wait = wait.unwrap_or(&self.wait);
        let rows = wait.check_fits(self.problem())?;
        // All refusals come before the first product is enqueued.
        for (product, operands) in self.products.iter().zip(operands) {
            operands.rows(rows).check(&product.problem, &product.options)?;
            product.check_stream(stream)?;
        }
        let mut input = wait.await_by(stream, signals)?;
        for (product, operands) in self.products.iter().zip(operands) {
            let operands = operands.rows(rows);
            // SAFETY: the caller's promise, and `signals` keeps what `input` names alive until the stream is through.
            unsafe { product.enqueue_raw(stream, &operands, Some(&input)) }?;
            input = input.after_another();
        }
        wait.note_enqueued(stream)
    }
}

/// An error if a call asks for other rows than those that arrive.
fn check_rows(asked: Option<u32>, arriving: u32) -> Result<()> {
    let Some(asked) = asked.filter(|asked| *asked != arriving) else { return Ok(()) };
    let remedy =
        "give a `ChunkWait` with the chunks of these rows to `enqueue` or `enqueue_all_raw`";
    Err(Error::mismatch("the number of rows", asked, arriving, remedy))
}
