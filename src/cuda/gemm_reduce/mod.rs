//! GEMM + reduce-scatter and GEMM + all-reduce between GPUs: every rank multiplies its slice of K, and gets the sums of its own
//! rows of D, or of all.
//!
//! What belongs here: the operations that users call; sending and waiting are `movers`'s, multiplying is `product`'s, adding up is
//! a kernel's (`csrc/reduce.cu`). Here are the calls; beside are `planning` (what comes before the first step) and `steps`
//! (what one enqueues, step by step of the schedule). Invariant: everything slow or refusable happens in
//! [`GemmReduce::plan`]; a step enqueues, never waits, and can be captured into a graph. There is no silent fallback.

mod planning;
mod steps;

use std::fmt::Write as _;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use self::planning::Sum;
use crate::cuda::movers::gather::{Follower, Gatherer, OwnRows};
use crate::cuda::product::operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Plan, Reduction, Scaling, Schedule, Way};

/// One rank's GEMM + reduce-scatter, planned once and enqueued many times. Collective: all ranks make the same calls in
/// the same order.
///
/// Each rank holds a slice of K: all M rows of A over it, and the weight's part. The problem's K is that of one rank, its
/// shards say which rows of D a rank gets, and its D is that rank's rows. The sums of another rank's rows leave when they have
/// been computed, by copy engines, while the next rank's are computed; the own rows come last. Where ranks get few rows, one
/// kernel behind the product sends, waits and adds up ([`Engine::Kernel`](crate::plan::Engine::Kernel)). The result does
/// not depend on what arrives first: sums are added in the order of the ranks, in `f32`.
///
/// Unlike on threads, a rank's own sums are rounded to the type of partials ([`Reduction`]), like the others'. With partials
/// in `f32` nothing is rounded before the end.
///
/// ```no_run
/// use std::sync::Arc;
/// use overlap_gemm::cuda::cudarc::driver::DevicePtr;
/// use overlap_gemm::cuda::{
///     Device, GatherOptions, GemmOptions, GemmReduceScatter, RawOperands, Shard,
/// };
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::{Group, GroupOptions};
/// use overlap_gemm::plan::{Problem, Reduction};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // One process a rank, started by torchrun, mpirun, srun or `overlap-gemm launch`.
/// let group = Arc::new(Group::from_env(&GroupOptions::default())?);
/// let device = Device::open(group.rank() as usize)?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 8192, 3584).ranks(group.ranks().into()).build()?;
/// let (options, gemm) = (GatherOptions::default(), GemmOptions::default());
/// let sum = Reduction::default();
/// let mut layer =
///     GemmReduceScatter::plan(&group, &device, &problem, None, &options, &gemm, sum)?;
/// println!("{}", layer.explain());
///
/// // All rows of A over this rank's slice of K; its own rows of the output.
/// let a = stream.clone_htod(&vec![bf16::ONE; 4096 * 3584])?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 8192 * 3584])?;
/// let d = stream.alloc_zeros::<bf16>(4096 / group.ranks() as usize * 8192)?;
/// let [a_at, b_at, d_at] =
///     [a.device_ptr(&stream).0, b.device_ptr(&stream).0, d.device_ptr(&stream).0];
/// for _step in 0..10 {
///     // SAFETY: this device's memory, as long as the problem says; it outlives the steps.
///     unsafe {
///         layer.enqueue(&stream, Shard::at(a_at), &[RawOperands::of_gathered(b_at, d_at)])?;
///     }
/// }
/// layer.synchronize(&stream)?; // errors of all ranks surface here
/// # Ok(())
/// # }
/// ```
pub type GemmReduceScatter = GemmReduce<false>;

/// One rank's GEMM + all-reduce, planned once and enqueued many times: a [`GemmReduceScatter`] of which every rank gets all rows.
///
/// D, and C, have all rows. The results of all ranks are equal bit for bit: all add up the same numbers in the same order. Each
/// rank sends its sums to all others, in one shot, so this is for few rows. The problem's shards say in which order a rank
/// computes the rows.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use overlap_gemm::cuda::{Device, GatherOptions, GemmAllReduce, GemmOptions, RawOperands, Shard};
/// # use overlap_gemm::group::{Group, GroupOptions};
/// # use overlap_gemm::plan::{Problem, Reduction};
/// # fn step(a: u64, b: u64, d: u64) -> Result<(), Box<dyn std::error::Error>> {
/// # let group = Arc::new(Group::from_env(&GroupOptions::default())?);
/// # let device = Device::open(group.rank() as usize)?;
/// let problem = Problem::builder(64, 8192, 3584).ranks(group.ranks().into()).build()?;
/// let (options, gemm) = (GatherOptions::default(), GemmOptions::default());
/// let sum = Reduction::default();
/// let mut layer = GemmAllReduce::plan(&group, &device, &problem, None, &options, &gemm, sum)?;
/// let stream = device.new_stream()?;
/// // SAFETY: 64 rows of A, 8192 of B and 64 of D, of this device's memory; they outlive the step.
/// unsafe { layer.enqueue(&stream, Shard::at(a), &[RawOperands::of_gathered(b, d)])? };
/// layer.synchronize(&stream)?;
/// # Ok(())
/// # }
/// ```
pub type GemmAllReduce = GemmReduce<true>;

/// What [`GemmReduceScatter`] and [`GemmAllReduce`] have in common; `ALL`: every rank gets all rows.
#[derive(Debug)]
pub struct GemmReduce<const ALL: bool> {
    gatherer: Gatherer,
    sums: Vec<Sum>,
    reduction: Reduction,
}

impl<const ALL: bool> GemmReduce<ALL> {
    /// What was planned: chunks, transfers, the largest problem.
    pub fn planned(&self) -> &Plan {
        self.gatherer.plan()
    }

    /// The group whose ranks reduce.
    pub fn group(&self) -> &Arc<Group> {
        self.gatherer.group()
    }

    /// How it is carried out.
    pub fn way(&self) -> Way {
        self.planned().way()
    }

    /// How the ranks' sums are added up.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// What was chosen, and why, in words.
    pub fn explain(&self) -> String {
        let mut text = format!("{}: {}\n", self.way().strategy, self.gatherer.why());
        let (chunks, partials) = (self.planned().chunks().len(), self.reduction.partials.element());
        // Writing to a String does not fail.
        let _ =
            writeln!(text, "sums: {chunks} chunks in {partials}, moved by {}", self.way().engine);
        for Sum { problem, product, .. } in &self.sums {
            let _ = writeln!(
                text,
                "{problem}: {}, {} SMs, swizzle {}, K in {} slices",
                product.kernel,
                product.sm_count(),
                product.choice.swizzle,
                product.choice.splits
            );
        }
        text
    }

    /// Enqueues a step on `stream` and returns: multiplies all rows of A by each product's B, and adds up all ranks' sums
    /// of the rows that this rank gets.
    ///
    /// `a` has all rows, and says how many of them each rank owns in this step. The operands name B, D and what goes with
    /// them, C of the same rows as D among it ([`RawOperands::of_gathered`]). alpha, beta, C, bias and activation apply to
    /// the total, once. A step that fails ends all the same, with every D undefined: [`GemmReduce::check`]
    /// says so.
    ///
    /// In a graph: capture two steps, or an even number, so that both buffers take turns; with one, every step waits until
    /// all ranks are done with the one before. All ranks have to capture the same. Once a step was captured, all are
    /// on that stream.
    ///
    /// # Safety
    /// What is named is this device's memory, as long as the problems and the rows of the step say, until the step has
    /// ended (in a graph: while it may be launched). The outputs overlap nothing else. This value outlives every graph that has
    /// a step of it, and such graphs are launched on the stream of its other steps.
    pub unsafe fn enqueue(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<()> {
        if operands.len() != self.sums.len() {
            let remedy = "give operands for each planned product";
            let (got, expected) = (operands.len(), self.sums.len());
            return Err(Error::mismatch("the number of operands", got, expected, remedy));
        }
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
        self.gatherer.check_stream(stream)?;
        self.sums.iter().try_for_each(|sum| sum.product.check_stream(stream))?;
        // A stays where it is.
        let own = OwnRows { rows: None, scales: 0 };
        // SAFETY: nothing is named.
        let begun = unsafe { self.gatherer.begin(stream, &shape, own, Follower::Other) };
        let enqueued = begun.and_then(|step| {
            // SAFETY: the caller's promise.
            unsafe { self.carry_out(stream, &step, &calls) }?;
            self.gatherer.end(stream, &step)
        });
        // The others wait for a step that was begun: they learn of the failure.
        enqueued.inspect_err(|error| self.gatherer.fail(error))
    }

    /// Waits for `stream`, and says whether all went well: [`GemmReduce::check`].
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.gatherer.synchronize(stream)
    }

    /// An error if a step failed, here or elsewhere: ask when the stream is through. After an error every output since
    /// the last good check is undefined, and the operation is over on all ranks: a new step returns
    /// [`Error::Over`](crate::Error::Over). Its group is over, too: form a new one.
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

    /// Ends the operation, here and on all other ranks.
    pub fn abort(&mut self, reason: &str) {
        self.gatherer.abort(reason);
    }
}
