//! All-gather + GEMM between GPUs: every rank brings a shard of A and gets D = A · B of the whole A.
//!
//! What belongs here: the operation that users call; gathering is `movers`'s, multiplying
//! `product`'s. Beside are `tuned` (what a table decides of a plan) and `recorded` (steps that keep when what was done).
//! Invariants: everything slow or refusable happens in [`AllGatherGemm::plan`]; a rank that cannot plan a product says so
//! where all agree on the gather, so that none waits for it. A step enqueues, never waits, and can be captured into a graph;
//! no product reads a row before something on its stream, or the product itself, has waited for it. There is no silent
//! fallback.

mod recorded;
mod tuned;

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use self::tuned::Open;
use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::choose;
use crate::cuda::movers::gather::joining::Purpose;
use crate::cuda::movers::gather::{Begun, Follower, Gatherer, OwnRows};
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::product::held::{Guards, HeldStep, Rows};
use crate::cuda::product::matrix::{DeviceMatrixMut, PlannedMatrix};
use crate::cuda::product::operands::Operands;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::cuda::product::{Product, check_alike, check_operands};
use crate::cuda::sys::device::Device;
use crate::cuda::sys::ffi::Input;
use crate::cuda::sys::stream_ops::{PitchedRows, copy_rows, refuse_capture};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::check_type;
use crate::group::Group;
use crate::kernels::{Choice, Kernel};
use crate::plan::{Operation, Plan, Problem, Scaling, Schedule, Strategy, Way};
use crate::tune::Tuning;

/// One rank's all-gather + GEMM, planned once and enqueued many times. Collective: all ranks make the same
/// calls in the same order.
///
/// One operation serves all layers of the same shapes: B and D are given with each step. A plan allocates two buffers for the
/// gathered A on each rank.
///
/// A product that waits for rows keeps its SMs, so two such products on two streams could deadlock across ranks. If two steps of a
/// process do not fit on its GPU together, the later one therefore waits, on the GPU, for the earlier one. All ranks must enqueue the
/// steps of all operations, streams and groups in the same order. To run steps at the same time, limit each product's SMs
/// ([`with_sm_limit`](crate::cuda::GemmOptions::with_sm_limit)). The library does not order graph launches, nor steps of two groups if
/// ranks of one may share a GPU ([`shared_devices`](crate::group::GroupOptions::shared_devices)): limit their products' SMs, or make
/// one stream wait for the other.
///
/// ```no_run
/// use std::sync::Arc;
/// use overlap_gemm::cuda::{AllGatherGemm, Device, CollectiveOptions, GemmOptions, Operands};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::Problem;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One process a rank, started by torchrun, mpirun, srun or `overlap-gemm launch`.
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 3584, 8192).ranks(group.ranks().into()).build()?;
/// let options = CollectiveOptions::default();
/// let gemm = GemmOptions::default().with_constant_b(true); // weights: all writes have ended before the first step
/// let mut layer = AllGatherGemm::plan(&group, &device, &problem, &options, &gemm)?;
/// println!("{}", layer.explain());
///
/// let rows = 4096 / group.ranks() as usize;
/// let shard = stream.clone_htod(&vec![bf16::ONE; rows * 8192])?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 3584 * 8192])?;
/// let mut d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// for _step in 0..10 {
///     layer.enqueue(&stream, [Operands::new(&shard, &b, &mut d)])?;
/// }
/// layer.synchronize(&stream)?; // errors of all ranks surface here
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AllGatherGemm {
    gatherer: Gatherer,
    products: Vec<Product>,
    why: String,
}

impl AllGatherGemm {
    /// Collective, with equal arguments. Blocks until all ranks have planned; the timeout is `options.timeouts.first`, or the
    /// workspace's. A call that is refused on one rank fails on all, and the group lives on. A timeout or a failed allocation ends it.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        options: &CollectiveOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        Self::plan_all(group, device, &[(problem.clone(), gemm.clone())], options)
    }

    /// [`AllGatherGemm::plan`] for several products of the same gathered A, each with options of its own. Their problems
    /// have the same shards, K, row stride of A, element type of A and scaling.
    ///
    /// ```no_run
    /// use overlap_gemm::cuda::{Activation, AllGatherGemm, CollectiveOptions, Device, GemmOptions};
    /// use overlap_gemm::group::GroupOptions;
    /// use overlap_gemm::plan::Problem;
    ///
    /// let (group, device) = Device::join(&GroupOptions::default())?;
    /// let of_columns = |n| Problem::builder(4096, n, 8192).ranks(group.ranks().into()).build();
    /// let gate = GemmOptions::default().with_activation(Activation::Silu);
    /// let products = [(of_columns(3584)?, gate), (of_columns(1024)?, GemmOptions::default())];
    /// let options = CollectiveOptions::default();
    /// let layer = AllGatherGemm::plan_all(&group, &device, &products, &options)?;
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn plan_all(
        group: &Arc<Group>,
        device: &Device,
        products: &[(Problem, GemmOptions)],
        options: &CollectiveOptions,
    ) -> Result<Self> {
        Self::plan_tuned(group, device, products, options, Tuning::found())
    }

    /// [`AllGatherGemm::plan_all`] by the caller's table, the same on all ranks, instead of [`Tuning::found`].
    ///
    /// Without a strategy the table decides all that the options leave open, if it has anything near
    /// the problem; what they fix is never replaced. [`AllGatherGemm::explain`] says what it was.
    pub fn plan_tuned(
        group: &Arc<Group>,
        device: &Device,
        products: &[(Problem, GemmOptions)],
        options: &CollectiveOptions,
        tuning: &Tuning,
    ) -> Result<Self> {
        let obstacle = obstacle(group, device, options.timeouts.first)?;
        let refuse = |error| Gatherer::refuse(group, options, error);
        let first = check_alike(products).map_err(refuse)?;
        let open = Open { products, options, in_the_way: obstacle.is_some() };
        let advice = tuned::advise(tuning, device.info(), &open);
        let (asked, options, products) = (options.strategy, &advice.options, &advice.products);
        let strategy = options.strategy;
        let (way, why) = choose(options, first, obstacle.as_deref()).map_err(refuse)?;
        let is_beside = way.strategy == Strategy::Fused && first.ranks() > 1;
        let planned: Result<Vec<_>> = (products.iter().enumerate())
            .map(|(index, (problem, gemm))| {
                // Undecided, a step would be fused.
                let part = strategy.unwrap_or_default().part_of(problem)?;
                // Products behind the first begin when all is pushed.
                let beside = (is_beside && index == 0).then_some(way);
                Product::plan_beside_push(device, &part, gemm, beside)
            })
            .collect();
        let planned = planned.map_err(refuse)?;
        let tiling = planned[0].tiling();
        // What a table has decided is in it, so that ranks with different tables notice.
        let kind = format!("all-gather + GEMM {asked:?} {products:?}");
        let operation = Operation::AllGatherGemm;
        let purpose = Purpose { kind: &kind, tiling, operation, way, sums: None };
        let mut gatherer = Gatherer::join(group, device, first, &purpose, options)?;
        let (why, way) = (advice.explain(why), gatherer.plan.way());
        gatherer.note_products(planned.iter().map(Product::occupied_sms).max().unwrap_or(0));
        tracing::debug!(rank = group.rank(), problem = %first, %way, why, "planned all-gather + GEMM");
        Ok(AllGatherGemm { gatherer, products: planned, why })
    }

    /// What was planned: chunks, transfers, the largest problem.
    pub fn planned(&self) -> &Plan {
        &self.gatherer.plan
    }

    /// How it is carried out.
    pub fn way(&self) -> Way {
        self.planned().way()
    }

    /// The kernel of the first product.
    pub fn kernel(&self) -> &'static Kernel {
        self.products[0].kernel
    }

    /// How the first product runs it.
    pub fn choice(&self) -> Choice {
        self.products[0].choice
    }

    /// SMs that the first product may occupy: the caller's limit; otherwise all, or all but those of the kernel that pushes
    /// this rank's rows.
    pub fn sm_count(&self) -> u32 {
        self.products[0].sm_count()
    }

    /// What was chosen, and why, in words: the strategy, how rows move, and how each product is computed. Of 2048×3584×8192
    /// on two H200:
    ///
    /// ```text
    /// fused: each tile waits only for its own rows; no other strategy was measurably faster
    /// rows: 4 chunks, moved by copy engines on one stream
    /// 2048×3584×8192 (bf16 × bf16 → bf16) on 2 ranks: bf16_bf16_bf16_nk_128x224x64_2x1_cooperative, 132 SMs, swizzle 8, K in 1 slices
    /// ```
    ///
    /// [`CollectiveOptions`] and [`GemmOptions`](crate::cuda::GemmOptions) ask for something else.
    pub fn explain(&self) -> String {
        let (Way { strategy, engine, .. }, chunks) = (self.way(), self.planned().chunks().len());
        let products = self.products.iter().map(|product| product.explain(&product.problem));
        let spans = match self.planned().chunks().spans() {
            1 => String::new(),
            spans => format!(" in {spans} spans of columns"),
        };
        format!("{strategy}: {}\nrows: {chunks} chunks, moved by {engine}{spans}\n", self.why)
            + &products.collect::<String>()
    }

    /// The address and the size in bytes of the slot for this rank's rows of the next step, with row stride `lda`. Steps alternate
    /// between two slots: ask before each step, with its `rows`. A kernel that writes there must follow the latest step in the
    /// order of that step's stream.
    ///
    /// ```no_run
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, CudaSlice};
    /// # use overlap_gemm::cuda::{AllGatherGemm, RawOperands, Shard};
    /// # use overlap_gemm::element::bf16;
    /// # use std::sync::Arc;
    /// # fn step(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, b: &CudaSlice<bf16>, d: &mut CudaSlice<bf16>,
    /// #     write_rows: impl Fn(u64)) -> overlap_gemm::Result<()> {
    /// let (slot, _bytes) = layer.local_shard(None)?;
    /// write_rows(slot); // a kernel on `stream`
    /// let ((b, _read), (d, _written)) = (b.device_ptr(stream), d.device_ptr_mut(stream));
    /// let operands = [RawOperands::of_gathered(b, d)];
    /// // SAFETY: the guards keep B and D until the stream has used them.
    /// unsafe { layer.enqueue_raw(stream, Shard::in_place(), &operands) }
    /// # }
    /// ```
    pub fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<(CUdeviceptr, u64)> {
        self.gatherer.local_shard(rows)
    }

    /// The addresses of the latest step's gathered A, with row stride `lda`, and of its row scales (0 if none are gathered). Work on
    /// the step's stream may read both until the next step. `None` before the first step, and in a shared workspace after a step of
    /// another operation. The latest step is the one that was enqueued or captured last: for a graph's steps, ask in the capture.
    pub fn gathered(&self) -> Option<(CUdeviceptr, CUdeviceptr)> {
        self.gatherer.latest().map(|(_, buffer)| self.gatherer.gathered(buffer))
    }

    /// Enqueues a copy of the latest step's gathered A to the first rows of `to`, with row stride `lda` and without row scales,
    /// for work after the next step, such as the weight gradient. `stream` must be the step's. After a captured step the call is
    /// refused: the host does not know which step is the latest. A failed step leaves undefined rows: [`AllGatherGemm::check`]
    /// returns the error.
    ///
    /// ```no_run
    /// # use overlap_gemm::Result;
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
    /// # use overlap_gemm::cuda::{AllGatherGemm, Operands};
    /// # use overlap_gemm::element::bf16;
    /// # use std::sync::Arc;
    /// # fn step(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, [shard, b]: [&CudaSlice<bf16>; 2],
    /// #     d: &mut CudaSlice<bf16>, kept: &mut CudaSlice<bf16>) -> Result<()> {
    /// layer.enqueue(stream, [Operands::new(shard, b, d)])?;
    /// layer.copy_gathered(stream, kept)?; // M × K numbers, or as many as planned
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_gathered<'a, A: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        to: impl Into<DeviceMatrixMut<'a, A>>,
    ) -> Result<()> {
        let (latest, problem) = (self.gatherer.latest(), self.planned().problem());
        let planned = problem.elements().a;
        check_type::<A>("the gathered A", planned)?;
        let Some((step, buffer)) = latest.filter(|_| self.gatherer.is_latest_stream(stream)) else {
            let remedy = "copy A on the stream of its step, before another step in its memory and before graphs";
            return Err(Error::mismatch("the gathered A", "not available", "available", remedy));
        };
        refuse_capture(stream)?;
        let (to, rows) = (to.into(), PlannedMatrix::a(problem, [step.m(), problem.m()]));
        to.check("the copy of A", rows, self.gatherer.device.context())?;
        let size = u64::from(planned.size());
        let rows_at = |start| PitchedRows { start, pitch: u64::from(problem.lda()) * size };
        let (row_bytes, count) = (u64::from(problem.k()) * size, step.m().into());
        let mut guards = Guards::new(stream);
        let (from, to) = (self.gatherer.gathered(buffer).0, to.write(&mut guards)?);
        // SAFETY: both are so long; a slice stays allocated until the work that its event records is done, the gathered rows stay
        // until the next step, which comes behind this on the stream; other memory is its owner's promise.
        unsafe { copy_rows(stream, rows_at(to), rows_at(from), row_bytes, count) }
    }

    /// Enqueues a step on `stream` and returns: gathers this and all other ranks' rows, and computes each
    /// planned product of them.
    ///
    /// `operands` has one entry for each planned product, all with the same A: this rank's rows. D has all rows. A failed step still
    /// ends, with every D undefined: [`AllGatherGemm::check`] returns the error. This call refuses a capture; use
    /// [`AllGatherGemm::enqueue_raw`] in graphs.
    pub fn enqueue<'a, A: Element, B: Element, D: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        operands: impl IntoIterator<Item = Operands<'a, A, B, D>>,
    ) -> Result<()> {
        let operands: Vec<_> = operands.into_iter().collect();
        check_operands(operands.len(), self.products.len())?;
        let shape = self.gatherer.shape(operands[0].ranks_rows)?;
        let [a, d] = self.gatherer.row_counts(&shape);
        self.gatherer.check_stream(stream)?;
        let problems = self.products.iter().map(|product| &product.problem);
        let context = self.gatherer.device.context();
        let scales = if self.gatherer.has_replicated_scales() { d } else { a };
        let held = HeldStep::new(operands, problems, context, Rows { a, scales, d }, stream)?;
        // SAFETY: the memory belongs to this device and is as long as the problems and the rows say; D is borrowed mutably. Slices
        // stay allocated until the work that their events record is done, other memory is its owner's promise; the step uses
        // them in the order of the stream. Pushes read the rows from this operation's own memory.
        unsafe { self.enqueue_raw(stream, held.shard, &held.raw) }
    }

    /// [`AllGatherGemm::enqueue`] for memory that is not `cudarc`'s, and rows that are in place.
    ///
    /// The operands name B, D and what goes with them; A and its row scales are the gathered ones
    /// ([`RawOperands::of_gathered`]).
    ///
    /// In a graph: capture an even number of steps, so that the two buffers alternate. With an odd number, the first step of each
    /// launch waits until all ranks have finished the step before. All ranks must capture and launch the same steps in the same
    /// order. After a capture, all steps stay on its stream.
    ///
    /// ```no_run
    /// # use std::{error::Error, sync::Arc};
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, sys};
    /// # use overlap_gemm::cuda::{AllGatherGemm, RawOperands, Shard};
    /// # use overlap_gemm::element::bf16;
    /// # fn replay(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, shard: &CudaSlice<bf16>, b: &CudaSlice<bf16>,
    /// #     d: &mut CudaSlice<bf16>) -> Result<(), Box<dyn Error>> {
    /// // Before the capture: cudarc makes the stream wait for earlier uses of the slices.
    /// let shard = Shard::at(shard.device_ptr(stream).0);
    /// let operands = [RawOperands::of_gathered(b.device_ptr(stream).0, d.device_ptr_mut(stream).0)];
    ///
    /// stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    /// for _step in 0..2 {
    ///     // SAFETY: the slices and the layer outlive the graph, which is launched on this stream.
    ///     unsafe { layer.enqueue_raw(stream, shard, &operands)? };
    /// }
    /// let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.expect("two steps");
    /// graph.launch()?; // with the shard's current contents
    /// layer.synchronize(stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// All addresses are this device's memory, of the lengths that the problems and the step's rows require, until the
    /// step ends (graphs: while they may be launched). The outputs overlap nothing else. This value
    /// outlives every graph that has a step of it, and such graphs are launched on the stream of its
    /// other steps.
    pub unsafe fn enqueue_raw(
        &mut self,
        stream: &Arc<CudaStream>,
        shard: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<()> {
        check_operands(operands.len(), self.products.len())?;
        let shape = self.gatherer.shape(shard.rows)?;
        let problem = shape.plan.problem();
        let own_rows = problem.shards().rows(self.gatherer.group.rank()).len();
        let replicated = self.gatherer.has_replicated_scales();
        let by_rows = problem.scaling() == Scaling::Rows;
        // A rank without rows may name the scales of those that it was planned for.
        if !by_rows || own_rows > 0 || replicated {
            shard.check_scales(by_rows)?;
        }
        // All refusals come before any rank learns of the step.
        let m = problem.m();
        let (rows, gathered) = self.gatherer.gathered(self.gatherer.course.next_buffer);
        let a = (rows, if replicated { shard.scales } else { gathered });
        let operands: Vec<RawOperands> = (self.products.iter().zip(operands))
            .map(|(product, operands)| Self::whole(product, operands, a, m))
            .collect::<Result<_>>()?;
        self.gatherer.check_stream(stream)?;
        self.gatherer.check_rows(&shape, shard.at)?;
        self.products.iter().try_for_each(|product| product.check_stream(stream))?;
        let own = OwnRows { rows: shard.at, scales: shard.scales };
        let follower = match shape.waits_by_itself() {
            true => Follower::Product { constant_b: self.products[0].options.constant_b },
            false => Follower::Other,
        };
        // SAFETY: the caller's promise.
        let begun = unsafe { self.gatherer.begin(stream, &shape, own, follower) };
        let enqueued = begun.and_then(|step| {
            // SAFETY: the caller's promise, and the gathered rows are as long as planned.
            unsafe { self.multiply(stream, &step, &operands) }?;
            self.gatherer.end(stream, &step)
        });
        // The others wait for a step that was begun: they learn of the failure.
        enqueued.inspect_err(|error| self.gatherer.fail(error))
    }

    /// The operands with the gathered A of a step of `m` rows, and its row scales.
    fn whole(
        product: &Product,
        operands: &RawOperands,
        (rows, scales): (CUdeviceptr, CUdeviceptr),
        m: u32,
    ) -> Result<RawOperands> {
        let whole = operands.with_a(&product.problem, rows, scales)?;
        whole.rows(m.min(product.problem.m())).check(&product.problem, &product.options)?;
        Ok(whole)
    }

    /// What the schedule multiplies, behind what it awaits.
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue_raw`].
    unsafe fn multiply(
        &self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        operands: &[RawOperands],
    ) -> Result<()> {
        for compute in &step.shape.computes {
            self.gatherer.await_rows(stream, step, compute)?;
            let mut input = match compute.by_tile {
                true => Some(self.gatherer.input(stream, step)?),
                false => None,
            };
            for (product, operands) in self.products.iter().zip(operands) {
                let rows = compute.rows.clone();
                // SAFETY: the caller's promise.
                unsafe { product.enqueue_rows(stream, operands, rows, input.as_ref()) }?;
                input = input.map(Input::after_another);
            }
        }
        Ok(())
    }

    /// Blocks until all work on `stream` has ended, then returns what [`AllGatherGemm::check`] returns.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.gatherer.synchronize(stream)
    }

    /// Returns an error if a step of this operation failed on any rank, or a step of another operation of the group on this rank.
    /// It never blocks: it tells of every step that has ended on a stream that you have synchronised with, and perhaps of later ones.
    /// So synchronise before you rely on `Ok`, and call it for each operation. After an error every output since the last such `Ok` is
    /// undefined, and the operation and its group are over on all ranks: a new step returns [`Error::Over`](crate::Error::Over).
    /// Form a new group and plan again.
    pub fn check(&mut self) -> Result<()> {
        self.gatherer.check()
    }

    /// Changes this rank's schedule of steps that have the planned rows, so that a test sees what becomes of it.
    ///
    /// # Safety
    /// No step is under way, and nothing that a later step computes is relied on.
    #[doc(hidden)]
    pub unsafe fn change_schedule(
        &mut self,
        change: impl FnOnce(&mut Schedule) -> bool,
    ) -> Result<bool> {
        self.gatherer.change_schedule(change)
    }

    /// Ends this operation, its group and the group's other operations, on all ranks: steps under way give up. From another
    /// thread: [`Group::abort`].
    pub fn abort(&mut self, reason: &str) {
        self.gatherer.abort(reason);
    }
}
