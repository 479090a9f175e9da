//! Reductions between GPUs: every rank multiplies its slice of K, or has sums already, and gets the totals of its own rows of
//! D, or of all.
//!
//! What belongs here: the operations that users call; sending and waiting are `movers`'s, multiplying is `product`'s, adding up
//! is a kernel's (`csrc/reduce.cu`), NCCL's or, fused, a product's. Here are the calls with a product, and what all have in common;
//! beside are `alone` (without a product), `planning`, `choice` (the way), `steps` (what a call enqueues, step by step of the schedule)
//! and `recorded` (steps that keep when what was done).
//! Invariants: everything slow or refusable happens in [`GemmReduce::plan`]; a rank that cannot plan a product says so where
//! all agree on the operation, so that none waits for it. A step enqueues, never waits, and can be captured into a graph.
//! There is no silent fallback.

pub(crate) mod alone;
mod choice;
mod planning;
mod recorded;
mod steps;

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use self::steps::Call;
use crate::cuda::exchange::step_shape::StepShape;
use crate::cuda::movers::gather::{Follower, Gatherer, OwnRows};
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::movers::step_record::StepRecord;
use crate::cuda::product::held::{HeldStep, Rows};
use crate::cuda::product::operands::Operands;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::cuda::product::{Product, check_operands};
use crate::cuda::sys::device::Device;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Operation, Plan, Problem, Reduction, Scaling, Schedule, Way};
use crate::tune::Tuning;

/// One rank's GEMM + reduce-scatter, planned once and enqueued many times. Collective: all ranks make the same calls in
/// the same order.
///
/// Each rank holds a slice of K: those columns of all M rows of A, and that part of the weight. The problem's K is the width of
/// one rank's slice, its shards say which rows of D each rank gets, and a rank's operand D has only these rows. Copy engines send
/// the sums of one rank's rows while the next rank's are computed; this rank's own rows are computed last.
/// In a fused step ([`Strategy::Fused`](crate::plan::Strategy::Fused): D and partials in bf16, no scales) the product of the own
/// rows adds the other ranks' sums; otherwise a kernel after that product adds them. If ranks get few rows, one kernel after the
/// product waits for all ranks' sums, reads them from the ranks' memory and adds them
/// ([`Engine::Kernel`](crate::plan::Engine::Kernel)). The result does not depend on what arrives first: sums are added
/// in the order of the ranks, in `f32`; in a fused step first this rank's own, then the others' in that order.
///
/// If GPUs do not reach each other's memory, or if it is asked for, NCCL adds up all sums behind one product, in an order of its own
/// ([`Engine::Nccl`](crate::plan::Engine::Nccl) says what that means for the result).
///
/// A plan allocates two buffers for a rank's sums, and two for those that copy engines bring. Steps on several streams: as in
/// [`AllGatherGemm`](crate::cuda::AllGatherGemm).
///
/// Unlike on threads, a rank's own sums are rounded to the type of partials ([`Reduction`]), like the others', unless the step
/// is fused. With partials in `f32` nothing is rounded before the end.
///
/// An input of three dimensions, batches × sequence × K, is a matrix of batches · sequence rows. If each shard has whole batches,
/// the sums are scattered along the batches, dimension 0. [`ProblemBuilder::batches`](crate::plan::ProblemBuilder::batches)
/// scatters them along the sequence, dimension 1: each rank gets its rows of every batch.
/// [`ProblemBuilder::scatter_columns`](crate::plan::ProblemBuilder::scatter_columns) scatters them along the last dimension: each
/// rank gets columns of all rows. Nothing is copied for either. But a product ends with a rank's rows of a batch, or with its
/// columns, so there are more and smaller products.
///
/// A tensor-parallel MLP without its activation; `examples/gpu_tensor_parallel_mlp.rs` is a whole one:
///
/// ```no_run
/// use overlap_gemm::cuda::{
///     AllGatherGemm, CollectiveOptions, Device, GemmOptions, GemmReduceScatter, Operands,
/// };
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::{Problem, Reduction};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let (stream, ranks) = (device.new_stream()?, u64::from(group.ranks()));
/// // A token has 4096 numbers, a rank's slice of the hidden layer 1792.
/// let gathered = Problem::builder(2048, 1792, 4096).ranks(ranks).build()?;
/// let summed = Problem::builder(2048, 4096, 1792).ranks(ranks).build()?;
/// let (options, sum) = (CollectiveOptions::default(), Reduction::default());
/// let gemm = GemmOptions::default().with_constant_b(true);
/// let mut up = AllGatherGemm::plan(&group, &device, &gathered, &options, &gemm)?;
/// let mut down = GemmReduceScatter::plan(&group, &device, &summed, &options, &gemm, sum)?;
///
/// let own = gathered.shards().rows(group.rank()).len();
/// let tokens = stream.clone_htod(&vec![bf16::ONE; own * 4096])?;
/// let weight = stream.clone_htod(&vec![bf16::ONE; 4096 * 1792])?;
/// let (w_up, w_down) = (&weight, &weight);
/// let mut hidden = stream.alloc_zeros::<bf16>(2048 * 1792)?;
/// let mut output = stream.alloc_zeros::<bf16>(own * 4096)?;
/// for _step in 0..10 {
///     up.enqueue(&stream, [Operands::new(&tokens, w_up, &mut hidden)])?;
///     down.enqueue(&stream, [Operands::new(&hidden, w_down, &mut output)])?;
/// }
/// up.synchronize(&stream)?;
/// down.synchronize(&stream)?;
/// # Ok(())
/// # }
/// ```
pub type GemmReduceScatter = GemmReduce<false>;

/// One rank's GEMM + all-reduce, planned once and enqueued many times: a [`GemmReduceScatter`] of which every rank gets all
/// rows.
///
/// D, and C, have all rows. If all ranks give the same alpha, beta, C, bias and activation, their results are equal bit for bit.
/// Fused, there are two shots: the products of a rank's own rows add the others' sums, as in a fused [`GemmReduceScatter`], and the rank
/// sends these rows of D to all others, chunk by chunk. Then no rank may have more rows in a step than the largest planned shard.
/// By a kernel behind the product ([`Engine::Kernel`](crate::plan::Engine::Kernel)), steps of few rows have one shot: each rank adds
/// up all rows. Steps of more rows have two, if there are three to eleven ranks, one product and a D of 16 bits an element
/// ([`Plan::has_two_shots`]). Otherwise there is one shot. The problem's shards say which rows are whose, and in which order a rank computes them.
///
/// ```no_run
/// use overlap_gemm::cuda::{CollectiveOptions, Device, GemmAllReduce, GemmOptions, Operands};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::{Problem, Reduction};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(64, 4096, 1792).ranks(group.ranks().into()).build()?;
/// let (options, gemm) = (CollectiveOptions::default(), GemmOptions::default());
/// let mut down =
///     GemmAllReduce::plan(&group, &device, &problem, &options, &gemm, Reduction::default())?;
///
/// let a = stream.clone_htod(&vec![bf16::ONE; 64 * 1792])?;
/// let weight = stream.clone_htod(&vec![bf16::ONE; 4096 * 1792])?;
/// let mut all = stream.alloc_zeros::<bf16>(64 * 4096)?;
/// down.enqueue(&stream, [Operands::new(&a, &weight, &mut all)])?;
/// down.synchronize(&stream)?;
/// # Ok(())
/// # }
/// ```
pub type GemmAllReduce = GemmReduce<true>;

/// What [`GemmReduceScatter`] and [`GemmAllReduce`] have in common; `ALL`: every rank gets all rows.
///
/// ```no_run
/// use overlap_gemm::cuda::GemmReduce;
///
/// /// How the sums of either operation travel.
/// fn describe<const ALL: bool>(operation: &GemmReduce<ALL>) -> String {
///     operation.way().to_string()
/// }
/// ```
pub type GemmReduce<const ALL: bool> = Reduce<ALL, true>;

/// What all reductions have in common. `ALL`: every rank gets all rows. `GEMM`: sums are products; else the caller has them.
///
/// ```no_run
/// use overlap_gemm::cuda::Reduce;
///
/// /// How the sums of any reduction travel.
/// fn describe<const ALL: bool, const GEMM: bool>(operation: &Reduce<ALL, GEMM>) -> String {
///     operation.way().to_string()
/// }
/// ```
#[derive(Debug)]
pub struct Reduce<const ALL: bool, const GEMM: bool> {
    gatherer: Gatherer,
    sums: Vec<Sum>,
    reduction: Reduction,
    why: String,
}

/// Sums of some columns, and what becomes of them.
#[derive(Debug)]
struct Sum {
    /// As the caller planned it: D is what becomes of the total.
    problem: Problem,
    options: GemmOptions,
    /// Multiplies rows of A into this rank's sums, and does nothing else; `None`: the caller has the sums.
    product: Option<Product>,
    /// Fused: multiplies rows of A, adds the other ranks' sums, and makes D of the total.
    adding: Option<Product>,
    /// Where its columns start in a row of all products' sums, in bytes.
    column: u64,
}

impl<const ALL: bool> Reduce<ALL, true> {
    /// Collective, with equal arguments. Blocks until all ranks have planned; the timeout is `options.timeouts.first`, or the
    /// workspace's. A call that is refused on one rank fails on all, and the group lives on. A timeout or a failed allocation ends it.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        options: &CollectiveOptions,
        gemm: &GemmOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        let products = [(problem.clone(), gemm.clone())];
        Self::plan_all(group, device, &products, options, reduction)
    }

    /// [`plan`](Self::plan) for several products of the same A, each with options of its own. Their problems
    /// have the same shards, K, row stride of A, element type of A and scaling.
    pub fn plan_all(
        group: &Arc<Group>,
        device: &Device,
        products: &[(Problem, GemmOptions)],
        options: &CollectiveOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        Self::plan_tuned(group, device, products, options, reduction, Tuning::found())
    }

    /// [`plan_all`](Self::plan_all) by the caller's table, the same on all ranks, instead of [`Tuning::found`]; as
    /// [`AllGatherGemm::plan_tuned`](crate::cuda::AllGatherGemm::plan_tuned).
    pub fn plan_tuned(
        group: &Arc<Group>,
        device: &Device,
        products: &[(Problem, GemmOptions)],
        options: &CollectiveOptions,
        reduction: Reduction,
        tuning: &Tuning,
    ) -> Result<Self> {
        Self::join(group, device, products, options, reduction, tuning)
    }

    /// Enqueues a step on `stream` and returns: multiplies all rows of A by each product's B, and adds up all ranks' sums
    /// of the rows that this rank gets.
    ///
    /// There are operands for each planned product. A has all rows, the same in all of them; D, and C, have the rows that this
    /// rank gets. alpha, beta, C, bias and activation apply to the total, once. A step that fails ends all the same, with every
    /// D undefined: [`Reduce::check`] says so.
    pub fn enqueue<'a, A: Element, B: Element, D: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        operands: impl IntoIterator<Item = Operands<'a, A, B, D>>,
    ) -> Result<()> {
        let operands: Vec<_> = operands.into_iter().collect();
        check_operands(operands.len(), self.sums.len())?;
        let [a, d] = self.row_counts(operands[0].ranks_rows)?;
        self.gatherer.check_stream(stream)?;
        let problems = self.sums.iter().map(|sum| &sum.problem);
        let context = self.gatherer.device.context();
        let held = HeldStep::new(operands, problems, context, Rows { a, scales: a, d }, stream)?;
        // SAFETY: as in `AllGatherGemm::enqueue`; pushes read sums in this operation's own memory, and D, and a step ends, on the
        // stream, when its rows of D have been sent.
        unsafe { self.enqueue_raw(stream, held.shard, &held.raw) }
    }

    /// [`Reduce::enqueue`] for memory that is not `cudarc`'s.
    ///
    /// `a` gives the address of all rows of A ([`Shard::at`]) and each rank's number of rows in this step ([`Shard::rows`]). The
    /// operands give the other addresses, C with the same rows as D ([`RawOperands::of_gathered`]).
    ///
    /// In a graph: as [`AllGatherGemm::enqueue_raw`](crate::cuda::AllGatherGemm::enqueue_raw).
    ///
    /// # Safety
    /// All addresses are this device's memory, of the lengths that the problems and the step's rows require, until the step
    /// ends (graphs: while they may be launched). The outputs overlap nothing else. This value outlives every graph that has
    /// a step of it, and such graphs are launched on the stream of its other steps.
    pub unsafe fn enqueue_raw(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_step(stream, a, operands, None) }
    }

    /// [`GemmReduce::enqueue_raw`], recorded if there is a record.
    ///
    /// # Safety
    /// As for [`GemmReduce::enqueue_raw`], and the record has room for the step.
    unsafe fn enqueue_step(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
        record: Option<&mut StepRecord>,
    ) -> Result<()> {
        check_operands(operands.len(), self.sums.len())?;
        let Some(rows) = a.at else {
            return Err(Error::Unsupported {
                what: "an input in place".into(),
                why: "a reduction reads A where the caller has it".into(),
                remedy: "pass the rows with Shard::at",
            });
        };
        self.gatherer.check_owned(a.rows)?;
        let shape = self.gatherer.shape(a.rows)?;
        let problem = shape.plan.problem();
        a.check_scales(problem.scaling() == Scaling::Rows)?;
        // All refusals come before any rank learns of the step.
        let calls = (self.sums.iter().zip(operands))
            .map(|(sum, operands)| self.call(sum, operands, (rows, a.scales), problem))
            .collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller's promise; A stays where it is, and sums have their buffer.
        unsafe { self.step(stream, &shape, None, &calls, record) }
    }
}

impl<const ALL: bool, const GEMM: bool> Reduce<ALL, GEMM> {
    const OPERATION: Operation = match (ALL, GEMM) {
        (false, true) => Operation::GemmReduceScatter,
        (true, true) => Operation::GemmAllReduce,
        (false, false) => Operation::ReduceScatter,
        (true, false) => Operation::AllReduce,
    };

    /// All rows, and those that this rank gets: in this step, and the most that were planned.
    fn row_counts(&mut self, rows: Option<&[u32]>) -> Result<[[u32; 2]; 2]> {
        let (shape, rank) = (self.gatherer.shape(rows)?, self.gatherer.group.rank());
        let (planned, step) = (&self.gatherer.plan, &shape.plan);
        let own = step.output_rows(rank).len() as u32;
        Ok([
            [step.problem().rows_of_a(), planned.problem().rows_of_a()],
            [own, planned.most_output_rows().max(own)],
        ])
    }

    /// The type of the sums that ranks send or read.
    fn sum_type(&self) -> ElementType {
        self.reduction.partials.element()
    }

    /// What was planned: chunks, transfers, the largest problem.
    pub fn planned(&self) -> &Plan {
        &self.gatherer.plan
    }

    /// How it is carried out.
    pub fn way(&self) -> Way {
        self.planned().way()
    }

    /// What was chosen, and why, in words: the strategy, the measurement or what each way is predicted to take, how sums move, and how
    /// each product is computed. Of a reduce-scatter of 256×8192×3584 on four H200:
    ///
    /// ```text
    /// sequential: modelled: predicted to take 43.3 µs; sequential, copy engines on one stream, 1 piece: 79.8; pipelined, …
    /// sums: 4 chunks in bf16, moved by a kernel of 64 blocks
    /// 256×8192×3584 (bf16 × bf16 → bf16) on 4 ranks: bf16_bf16_bf16_nk_128x128x64_2x1_pingpong, 132 SMs, swizzle 1, K in 1 slices
    /// ```
    ///
    /// [`CollectiveOptions`] and [`GemmOptions`](crate::cuda::GemmOptions) ask for something else.
    pub fn explain(&self) -> String {
        let (Way { strategy, engine, .. }, why) = (self.way(), &self.why);
        let (chunks, partials) = (self.planned().chunks().len(), self.sum_type());
        let product = |product: &Product| product.explain(&product.problem);
        let products = self.sums.iter().flat_map(|sum| sum.product.iter().chain(&sum.adding));
        format!("{strategy}: {why}\nsums: {chunks} chunks in {partials}, moved by {engine}\n")
            + &products.map(product).collect::<String>()
    }

    /// Enqueues a step; `sums`: where the caller has this rank's, if it has.
    ///
    /// # Safety
    /// That of the operation.
    unsafe fn step(
        &mut self,
        stream: &Arc<CudaStream>,
        shape: &Arc<StepShape>,
        sums: Option<CUdeviceptr>,
        calls: &[Call],
        record: Option<&mut StepRecord>,
    ) -> Result<()> {
        self.gatherer.check_stream(stream)?;
        let mut products = self.sums.iter().flat_map(|sum| sum.product.iter().chain(&sum.adding));
        products.try_for_each(|product| product.check_stream(stream))?;
        let own = OwnRows { rows: sums, scales: 0 };
        // SAFETY: the caller's promise.
        let begun = unsafe { self.gatherer.begin(stream, shape, own, Follower::Other) };
        let enqueued = begun.and_then(|step| {
            // SAFETY: the caller's promise.
            let enqueued = unsafe { self.carry_out(stream, &step, calls, record) };
            // Copies that were enqueued may still read the caller's memory.
            let enqueued = enqueued.inspect_err(|_| self.gatherer.await_copies(stream));
            enqueued.and_then(|()| self.gatherer.end(stream, &step))
        });
        // The others wait for a step that was begun: they learn of the failure.
        enqueued.inspect_err(|error| self.gatherer.fail(error))
    }

    /// Blocks until all work on `stream` has ended, then returns what [`check`](Self::check) returns.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.gatherer.synchronize(stream)
    }

    /// An error if a step failed, here or elsewhere: [`AllGatherGemm::check`](crate::cuda::AllGatherGemm::check).
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
