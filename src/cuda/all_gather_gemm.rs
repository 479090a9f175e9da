//! All-gather + GEMM between GPUs: every rank brings a shard of A and gets D = A · B of the whole A.
//!
//! What belongs here: the operation that users call; gathering is [`gather`](super::gather)'s, multiplying
//! `product`'s. Invariant: everything slow or refusable happens in [`AllGatherGemm::plan`]; a step
//! enqueues, never waits, and can be captured into a graph. There is no silent fallback.

use std::fmt::Write as _;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::call::Input;
use super::choice::Choice;
use super::device::Device;
use super::gather::{Engine, Follower, GatherOptions, Gatherer, OwnRows, Purpose, Step};
use super::kernels::Kernel;
use super::operands::RawOperands;
use super::options::GemmOptions;
use super::product::Product;
use super::reach::obstacle;
use super::records::TileRecords;
use super::step_record::StepRecord;
use super::strategy::{Strategy, choose};
use super::tuned::{self, Open};
use super::workspace::is_capturing;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Plan, Problem, Scaling, TileOrder};
use crate::tune::Tuning;

/// What one rank brings to a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shard<'a> {
    rows: Option<&'a [u32]>,
    at: Option<CUdeviceptr>,
    scales: CUdeviceptr,
}

impl<'a> Shard<'a> {
    /// The rows are in their slot: [`AllGatherGemm::local_shard`].
    pub fn in_place() -> Self {
        Shard::default()
    }

    /// The rows are at `address`, as far apart as the problem's `lda` says, and are copied from there.
    pub fn at(address: CUdeviceptr) -> Self {
        Shard { at: Some(address), ..Shard::default() }
    }

    /// The rows of every rank in this step, the same on all ranks (default: as planned).
    #[must_use]
    pub fn rows(mut self, rows: &'a [u32]) -> Self {
        self.rows = Some(rows);
        self
    }

    /// The scales of this rank's rows, for [`Scaling::Rows`]: one f32 each.
    #[must_use]
    pub fn scales(mut self, address: CUdeviceptr) -> Self {
        self.scales = address;
        self
    }
}

/// One rank's all-gather + GEMM, planned once and enqueued many times. Collective: all ranks make the same
/// calls in the same order.
///
/// A product that waits keeps its SMs. So where several operations are under way on one GPU, on streams of
/// their own, each needs a limit ([`GemmOptions::with_sm_limit`]) that leaves the others some: the kernel that
/// begins another's step could not run else, and both would wait until their limits.
///
/// ```no_run
/// use std::sync::Arc;
/// use overlap_gemm::cuda::cudarc::driver::DevicePtr;
/// use overlap_gemm::cuda::{
///     AllGatherGemm, Device, GatherOptions, GemmOptions, RawOperands, Shard, Strategy,
/// };
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::{Group, GroupOptions};
/// use overlap_gemm::plan::Problem;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One process a rank, started by torchrun, mpirun, srun or `overlap-gemm launch`.
/// let group = Arc::new(Group::from_env(&GroupOptions::default())?);
/// let device = Device::open(group.rank() as usize)?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 3584, 8192).ranks(group.ranks().into()).build()?;
/// let gather = GatherOptions::default();
/// let gemm = GemmOptions::default().with_constant_b(true); // weights, which no kernel writes meanwhile
/// let mut layer =
///     AllGatherGemm::plan(&group, &device, &problem, Strategy::Auto, &gather, &gemm)?;
/// println!("{}", layer.explain());
///
/// let rows = 4096 / group.ranks() as usize;
/// let shard = stream.clone_htod(&vec![bf16::ONE; rows * 8192])?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 3584 * 8192])?;
/// let d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// let [shard_at, b_at, d_at] =
///     [shard.device_ptr(&stream).0, b.device_ptr(&stream).0, d.device_ptr(&stream).0];
/// for _step in 0..10 {
///     // SAFETY: this device's memory, as long as the problem says; it outlives the steps.
///     unsafe {
///         layer.enqueue(&stream, Shard::at(shard_at), &[RawOperands::of_gathered(b_at, d_at)])?;
///     }
/// }
/// layer.synchronize(&stream)?; // whatever went wrong on any rank is said here
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AllGatherGemm {
    gatherer: Gatherer,
    products: Vec<Product>,
    strategy: Strategy,
    why: String,
    latest: Option<u32>,
}

impl AllGatherGemm {
    /// Plans the operation: all ranks call it, with the same. Returns when all have.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        strategy: Strategy,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        Self::plan_all(group, device, std::slice::from_ref(problem), strategy, gather, gemm)
    }

    /// [`AllGatherGemm::plan`] for several products of the same gathered A: problems that differ in N, in
    /// B's layout and in D, and in nothing else.
    pub fn plan_all(
        group: &Arc<Group>,
        device: &Device,
        problems: &[Problem],
        strategy: Strategy,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        Self::plan_tuned(group, device, problems, strategy, gather, gemm, Tuning::found())
    }

    /// [`AllGatherGemm::plan_all`] by a table of one's own, the same on all ranks, in place of [`Tuning::found`].
    ///
    /// With [`Strategy::Auto`] the table decides whatever `gather` and `gemm` leave open, if it has anything near
    /// the problem; what they fix is never replaced. [`AllGatherGemm::explain`] says what it was.
    pub fn plan_tuned(
        group: &Arc<Group>,
        device: &Device,
        problems: &[Problem],
        strategy: Strategy,
        gather: &GatherOptions,
        gemm: &GemmOptions,
        tuning: &Tuning,
    ) -> Result<Self> {
        let first = check_alike(problems)?;
        let asked = strategy;
        let in_the_way = obstacle(group, device, gather.first_limit)?;
        let open = Open { problems, strategy, gather, gemm, in_the_way: in_the_way.is_some() };
        let advice = tuned::advise(tuning, device.info(), &open);
        let (strategy, gather, gemm) = (advice.strategy, &advice.gather, &advice.gemm);
        let planned: Result<Vec<_>> = problems
            .iter()
            .map(|problem| Product::plan(device, &part_of(problem, strategy)?, gemm))
            .collect();
        let tiling = match &planned {
            Ok(products) => Ok(products[0].kernel.tiling(products[0].choice.swizzle)),
            Err(error) => Err(error.clone()),
        };
        // What a table has decided is in it, so that ranks with different tables notice.
        let kind = format!("all-gather + GEMM {asked:?} {strategy:?} {problems:?} {gemm:?}");
        let piecewise = matches!(strategy, Strategy::Fused | Strategy::Pipelined);
        let purpose = Purpose { kind: &kind, tiling, piecewise };
        let gatherer = Gatherer::join(group, device, first, &purpose, gather)?;
        let products = planned?;
        let (strategy, why) = choose(strategy, gatherer.engine());
        let why = advice.explain(why);
        tracing::debug!(rank = group.rank(), problem = %first, ?strategy, why, "planned all-gather + GEMM");
        Ok(AllGatherGemm { gatherer, products, strategy, why, latest: None })
    }

    /// What was planned: chunks, transfers, the largest problem.
    pub fn planned(&self) -> &Plan {
        self.gatherer.plan()
    }

    /// The group whose ranks gather.
    pub fn group(&self) -> &Arc<Group> {
        self.gatherer.group()
    }

    /// How it is carried out: never [`Strategy::Auto`].
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Who moves the rows: never [`Engine::Auto`].
    pub fn engine(&self) -> Engine {
        self.gatherer.engine()
    }

    /// The kernel of the first product.
    pub fn kernel(&self) -> &'static Kernel {
        self.products[0].kernel
    }

    /// How the first product runs it.
    pub fn choice(&self) -> Choice {
        self.products[0].choice
    }

    /// What was chosen, and why, in words.
    pub fn explain(&self) -> String {
        let mut text = format!("{:?}: {}\n", self.strategy, self.why);
        let plan = self.gatherer.plan();
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "rows: {} chunks, moved by {}",
            plan.chunks().len(),
            match self.gatherer.engine() {
                Engine::CopyEngines { streams } => format!("copy engines on {streams} streams"),
                Engine::Kernel { blocks } =>
                    format!("a kernel of {blocks} blocks before the product"),
                Engine::Nccl => "NCCL".into(),
                Engine::Auto => "nobody".into(),
            }
        );
        for product in &self.products {
            let _ = writeln!(
                text,
                "{}: {}, {} SMs, swizzle {}, K in {} slices",
                product.problem,
                product.kernel,
                product.sm_count(),
                product.choice.swizzle,
                product.choice.splits
            );
        }
        text
    }

    /// The order in which the first product computes the tiles of a step as planned.
    pub fn tile_order(&self) -> Result<TileOrder> {
        self.gatherer.plan().tile_order(self.gatherer.group().rank())
    }

    /// A buffer for the records of one step's product: [`RawOperands::records`].
    pub fn records(&self, product: usize) -> Result<TileRecords> {
        match self.products.get(product) {
            Some(product) => product.records(),
            None => {
                let most = self.products.len() as u64 - 1;
                let remedy = "products count from 0";
                Err(Error::out_of_range("the product", product as u64, 0, most, remedy))
            }
        }
    }

    /// Where this rank's rows of the next step belong, and for how many bytes there is room: rows `lda`
    /// apart. What writes there comes behind the latest step on its stream.
    pub fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<(CUdeviceptr, u64)> {
        self.gatherer.local_shard(rows)
    }

    /// The gathered A of the latest step, rows `lda` apart, and its row scales. In the order of the stream
    /// it stays until the next step.
    pub fn gathered(&self) -> Option<(CUdeviceptr, CUdeviceptr)> {
        self.latest.map(|buffer| self.gatherer.gathered(buffer))
    }

    /// Enqueues a step on `stream` and returns: gathers this and all other ranks' rows, and computes each
    /// planned product of them.
    ///
    /// The operands name B, D and what goes with them; A and its row scales are the gathered ones
    /// ([`RawOperands::of_gathered`]). A step that fails ends all the same, with every D undefined:
    /// [`AllGatherGemm::check`] says so.
    ///
    /// In a graph: capture two steps, or an even number, so that both buffers take turns; with one, every
    /// step waits until all ranks are done with the one before. All ranks have to capture the same. Once a
    /// step was captured, all are on that stream.
    ///
    /// # Safety
    /// What is named is this device's memory, as long as the problems and the rows of the step say, until the
    /// step has ended (in a graph: while it may be launched). The outputs overlap nothing else. This value
    /// outlives every graph that has a step of it, and such graphs are launched on the stream of its
    /// other steps.
    pub unsafe fn enqueue(
        &mut self,
        stream: &Arc<CudaStream>,
        shard: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<()> {
        if operands.len() != self.products.len() {
            let remedy = "give operands for each planned product";
            let (got, expected) = (operands.len(), self.products.len());
            return Err(Error::mismatch("the number of operands", got, expected, remedy));
        }
        let shape = self.gatherer.shape(shard.rows)?;
        let problem = shape.plan.problem();
        let own_rows = problem.shards().rows(self.gatherer.group().rank()).len();
        let scaled = problem.scaling() == Scaling::Rows && own_rows > 0;
        if scaled != (shard.scales != 0) {
            let remedy = "give scales of the rank's rows exactly if the problem scales by rows";
            let word = |there: bool| if there { "there" } else { "absent" };
            let (got, expected) = (word(shard.scales != 0), word(scaled));
            return Err(Error::mismatch("the scales of the shard", got, expected, remedy));
        }
        // Whatever can be refused is refused before any rank hears of the step.
        let m = problem.m();
        let buffer = self.gatherer.next_buffer();
        let operands: Vec<RawOperands> = (self.products.iter().zip(operands))
            .map(|(product, operands)| self.whole(product, operands, buffer, m))
            .collect::<Result<_>>()?;
        self.gatherer.check_stream(stream)?;
        self.gatherer.check_rows(&shape, shard.at)?;
        self.products.iter().try_for_each(|product| product.check_stream(stream))?;
        let own = OwnRows { rows: shard.at, scales: shard.scales };
        let follower = match self.strategy {
            Strategy::Fused => {
                Follower::Product { constant_b: self.products[0].options.constant_b }
            }
            _ => Follower::Other,
        };
        // SAFETY: the caller's promise.
        let begun = unsafe { self.gatherer.begin(stream, &shape, own, follower) };
        let enqueued = begun.and_then(|step| {
            self.latest = Some(step.buffer);
            // SAFETY: the caller's promise, and the gathered rows are as long as planned.
            unsafe { self.multiply(stream, &step, &operands) }?;
            self.gatherer.end(stream, &step)
        });
        // The others count on a step that was begun: they are told.
        enqueued.inspect_err(|error| self.gatherer.fail(error))
    }

    /// Buffers and events for [`AllGatherGemm::enqueue_recorded`], for one step.
    pub fn step_record(&self) -> Result<StepRecord> {
        let tiles = self.products.iter().map(Product::records).collect::<Result<_>>()?;
        StepRecord::new(self.gatherer.device(), self.gatherer.group().rank(), tiles)
    }

    /// [`AllGatherGemm::enqueue`], keeping when each tile and each push by a copy engine or a kernel was: for looking
    /// at, as it costs the step some microseconds. Not in graphs, nor for [`Strategy::Pipelined`].
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue`]; `record` lives until the step has ended.
    pub unsafe fn enqueue_recorded(
        &mut self,
        stream: &Arc<CudaStream>,
        shard: Shard<'_>,
        operands: &[RawOperands],
        record: &mut StepRecord,
    ) -> Result<()> {
        let refused = |what: &str, why: &str, remedy| {
            Err(Error::Unsupported { what: what.into(), why: why.into(), remedy })
        };
        if self.strategy == Strategy::Pipelined {
            let why = "each rank's rows are a product of their own";
            return refused("recording a pipelined step", why, "record a fused step");
        }
        if is_capturing(stream)? {
            let why = "a graph's steps have one record between them";
            return refused("recording a captured step", why, "enqueue it outside of a capture");
        }
        let mut recorded = operands.to_vec();
        for (operands, tiles) in recorded.iter_mut().zip(&record.tiles) {
            operands.records = tiles.address(stream);
        }
        self.gatherer.mark_pushes();
        // SAFETY: the caller's promise, and records are as long as the products want them.
        let enqueued = unsafe { self.enqueue(stream, shard, &recorded) };
        record.marks = self.gatherer.take_marks();
        enqueued?;
        record.end(stream)
    }

    /// The operands with the gathered A of a step of `m` rows.
    fn whole(
        &self,
        product: &Product,
        operands: &RawOperands,
        buffer: u32,
        m: u32,
    ) -> Result<RawOperands> {
        let by_rows = product.problem.scaling() == Scaling::Rows;
        let own =
            [("A", operands.a != 0), ("the row scales of A", by_rows && operands.scale_a != 0)];
        for (what, there) in own {
            if there {
                let remedy = "name it by the shard: RawOperands::of_gathered leaves it out";
                return Err(Error::mismatch(what, "there", "absent", remedy));
            }
        }
        let (rows, scales) = self.gatherer.gathered(buffer);
        let scale_a = if by_rows { scales } else { operands.scale_a };
        let whole = RawOperands { a: rows, scale_a, ..*operands };
        let checked = if self.strategy == Strategy::Pipelined { whole } else { whole.rows(m) };
        checked.check(&product.problem, &product.options)?;
        Ok(whole)
    }

    /// # Safety
    /// As for [`AllGatherGemm::enqueue`].
    unsafe fn multiply(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        operands: &[RawOperands],
    ) -> Result<()> {
        let m = step.shape.plan.problem().m();
        match self.strategy {
            Strategy::Pipelined => {
                // SAFETY: the caller's promise.
                return unsafe { self.multiply_by_rank(stream, step, operands) };
            }
            Strategy::Sequential => self.gatherer.await_all(stream, step)?,
            Strategy::Auto | Strategy::Fused => {}
        }
        let mut input = match self.strategy {
            Strategy::Sequential => None,
            _ => Some(self.gatherer.input(stream, step)?),
        };
        for (product, operands) in self.products.iter().zip(operands) {
            // SAFETY: the caller's promise.
            unsafe { product.enqueue_raw(stream, &operands.rows(m), input.as_ref()) }?;
            input = input.map(Input::after_another);
        }
        Ok(())
    }

    /// The rows of each rank in turn, its own first.
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue`].
    unsafe fn multiply_by_rank(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        operands: &[RawOperands],
    ) -> Result<()> {
        let (own, ranks) = (self.gatherer.group().rank(), self.gatherer.group().ranks());
        let shards = step.shape.plan.problem().shards();
        for rank in (0..ranks).map(|round| (own + round) % ranks) {
            let rows = shards.rows(rank);
            if rows.is_empty() {
                continue;
            }
            if rank != own {
                self.gatherer.await_rank(stream, step, rank)?;
            }
            for (product, operands) in self.products.iter().zip(operands) {
                // As many at a time as were planned for one rank: in this step it may have more.
                let most = product.problem.m();
                for first in rows.clone().step_by(most as usize) {
                    let count = (rows.end - first).min(most);
                    let part = rows_of(&product.problem, operands, first).rows(count);
                    // SAFETY: the caller's promise, for some of the rows.
                    unsafe { product.enqueue_raw(stream, &part, None) }?;
                }
            }
        }
        Ok(())
    }

    /// Waits for `stream`, and says whether all went well: [`AllGatherGemm::check`].
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.gatherer.synchronize(stream)
    }

    /// An error if a step failed, here or elsewhere: ask when the stream is through. After an error every
    /// output since the last good check is undefined, and the operation is over on all ranks; its group,
    /// too: form a new one.
    pub fn check(&mut self) -> Result<()> {
        self.gatherer.check()
    }

    /// Ends the operation, here and on all other ranks.
    pub fn abort(&mut self, reason: &str) {
        self.gatherer.abort(reason);
    }
}

/// The operands of the rows from `first` on.
fn rows_of(problem: &Problem, operands: &RawOperands, first: u32) -> RawOperands {
    let elements = problem.elements();
    let at = |start: CUdeviceptr, pitch: u32, size: u32| {
        start + u64::from(first) * u64::from(pitch) * u64::from(size)
    };
    let d = |start| at(start, problem.ldd(), elements.d.size());
    let by_rows = problem.scaling() == Scaling::Rows;
    RawOperands {
        a: at(operands.a, problem.lda(), elements.a.size()),
        d: d(operands.d),
        c: if operands.c == 0 { 0 } else { d(operands.c) },
        scale_a: if by_rows { at(operands.scale_a, 1, 4) } else { operands.scale_a },
        ..*operands
    }
}

/// What one product of a strategy has to do at most.
fn part_of(problem: &Problem, strategy: Strategy) -> Result<Problem> {
    match strategy {
        Strategy::Pipelined => problem.truncated(problem.shards().most_rows()),
        _ => Ok(problem.clone()),
    }
}

/// The first of problems that are products of one A.
fn check_alike(problems: &[Problem]) -> Result<&Problem> {
    let Some(first) = problems.first() else {
        let remedy = "plan at least one product";
        return Err(Error::mismatch("the number of problems", 0, "at least 1", remedy));
    };
    for (index, problem) in problems.iter().enumerate() {
        let a =
            |of: &Problem| (of.shards().clone(), of.k(), of.lda(), of.elements().a, of.scaling());
        if a(problem) != a(first) {
            let remedy = "give all problems the same shards, K, lda, element type of A and scaling";
            let what = format!("the A of problem {index}");
            return Err(Error::mismatch(what, problem, format!("that of {first}"), remedy));
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_rank_start_where_they_lie() {
        let problem = Problem::builder(100, 48, 64).shards(&[40, 60]).lda(80).ldd(56);
        let problem = problem.build().unwrap();
        let whole = RawOperands { a: 1600, ..RawOperands::of_gathered(16, 3200) }.c(6400, 1.0);
        let part = rows_of(&problem, &whole, 40);
        assert_eq!((part.a, part.b), (1600 + 40 * 80 * 2, 16));
        assert_eq!((part.d, part.c), (3200 + 40 * 56 * 2, 6400 + 40 * 56 * 2));
    }
}
