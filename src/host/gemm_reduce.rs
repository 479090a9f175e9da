//! GEMM + reduce-scatter and GEMM + all-reduce: every rank multiplies its slice of K, and gets the sums of its own rows of D,
//! or of all.
//!
//! Invariant: what a rank stores follows from the ranks' sums alone, not from what arrives first. Which rows are whose, and who
//! sends what, is the plan's.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::compute::{Grid, Operand, Stream, TileJob, run_rows, run_tiles};
use super::control::Aborter;
use super::group::Rank;
use super::member::Member;
use super::memory::OutputCells;
use super::operands::{Product, Shard};
use super::products;
use super::sums::Sums;
use super::tile::ProductView;
use super::world::StepShape;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{ALL_ROWS, a_lens, check_len, check_scales, check_types};
use crate::plan::{Epilogue, Operation, Plan, PlanOptions, Problem, Reduction, Step};
use crate::trace::{TileEvent, Timeline};

/// One rank's GEMM + reduce-scatter, planned once and enqueued many times.
///
/// Each rank holds a slice of K: all M rows of A over it, and the weight's part. The problem's K is that of one rank, and its
/// shards say which rows of D a rank gets. The sums of the others' rows leave as soon as a chunk of them is computed, while the
/// rank computes the next; the own rows come last. The result does not depend on what arrives first (see [`Reduction`]).
/// [`ProblemBuilder::batches`](crate::plan::ProblemBuilder::batches) gives each rank its rows of every batch, dimension 1 of
/// three; [`ProblemBuilder::scatter_columns`](crate::plan::ProblemBuilder::scatter_columns) its columns of all rows.
///
/// Collective: the ranks of a group plan the same operations in the same order, and enqueue the
/// same steps. Each rank runs on its own thread. After a failed step, later calls return [`Error::Over`]: plan again.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::Result;
/// use overlap_gemm::host::{GemmReduceScatter, Group, Rank, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem, Reduction};
///
/// fn one_rank(rank: Rank, problem: &Problem) -> Result<()> {
///     let (options, reduction) = (PlanOptions::default(), Reduction::default());
///     let mut layer = GemmReduceScatter::<f32>::plan(&rank, problem, options, reduction)?;
///     // All rows of A and the weight (N×K), over this rank's slice of K; its own rows of the output.
///     let a = [1.0 + rank.rank() as f32; 8 * 32];
///     let (weight, mut output) = ([0.5; 16 * 32], [0.0; 4 * 16]);
///     layer.enqueue(&Stream::for_ranks(2), &a[..], &weight, &mut output)?;
///     // 32 products of 0.5 with each of 1 and 2.
///     assert_eq!(output, [32.0 * 0.5 * (1.0 + 2.0); 4 * 16]);
///     Ok(())
/// }
///
/// let problem = Problem::builder(8, 16, 32).elements(F32, F32, F32).ranks(2).build()?;
/// let ranks = Group::local(2)?;
/// std::thread::scope(|scope| {
///     let spawn = |rank| scope.spawn(|| one_rank(rank, &problem));
///     let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
/// })?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type GemmReduceScatter<A, B = A, D = A> = GemmReduce<false, A, B, D>;

/// One rank's GEMM + all-reduce, planned once and enqueued many times: a [`GemmReduceScatter`] of which every rank gets all
/// rows.
///
/// All ranks give the same alpha, beta, C (of all rows), bias and activation; then their results are equal bit for bit. In two shots each
/// rank adds up the rows of its shard, and sends what D becomes to all others. With
/// [`Strategy::Sequential`](crate::plan::Strategy::Sequential) there is one shot, for few rows: each rank sends its sums to all others,
/// and adds up all rows. Own sums are rounded to the type of [partials](crate::plan::Partials), like others'.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{GemmAllReduce, Group, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem, Reduction};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).ranks(2).build()?;
/// std::thread::scope(|scope| {
///     let one_rank = |rank| {
///         let (options, sum) = (PlanOptions::default(), Reduction::default());
///         let mut layer = GemmAllReduce::<f32>::plan(&rank, &problem, options, sum)?;
///         let mut d = [0.0; 2];
///         layer.enqueue(&Stream::new(1)?, &[1.0, 2.0, 3.0, 4.0][..], &[1.0, 1.0], &mut d)?;
///         assert_eq!(d, [6.0, 14.0]); // twice 1 + 2, and 3 + 4
///         Ok(())
///     };
///     let threads: Vec<_> =
///         Group::local(2)?.into_iter().map(|rank| scope.spawn(move || one_rank(rank))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
/// })?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type GemmAllReduce<A, B = A, D = A> = GemmReduce<true, A, B, D>;

/// What [`GemmReduceScatter`] and [`GemmAllReduce`] have in common; `ALL`: every rank gets all rows.
///
/// ```
/// use overlap_gemm::host::GemmReduce;
///
/// /// How many chunks the sums of either operation travel in.
/// fn chunks<const ALL: bool>(operation: &GemmReduce<ALL, f32>) -> u32 {
///     operation.planned().chunks().len()
/// }
/// ```
#[derive(Debug)]
pub struct GemmReduce<const ALL: bool, A, B = A, D = A> {
    member: Member<Sums>,
    types: PhantomData<fn(A, B) -> D>,
}

impl<const ALL: bool, A: Element, B: Element, D: Element> GemmReduce<ALL, A, B, D> {
    const OPERATION: Operation =
        if ALL { Operation::GemmAllReduce } else { Operation::GemmReduceScatter };

    /// Plans the operation on one rank. Every rank calls this; no rank waits for another here.
    pub fn plan(
        rank: &Rank,
        problem: &Problem,
        options: PlanOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        check_types::<A, B, D>(problem)?;
        let options = PlanOptions { operation: Self::OPERATION, ..options };
        let member = Member::join_reduction(rank, Plan::new(problem, options)?, reduction)?;
        Ok(GemmReduce { member, types: PhantomData })
    }

    /// The plan.
    pub fn planned(&self) -> &Plan {
        &self.member.planned().plan
    }

    /// One step with one product: `d` = the rows that this rank gets of the sum over all ranks of their A times their `b`: its
    /// own; in an all-reduce, all.
    ///
    /// `a` has all rows of this step, over this rank's slice of K.
    pub fn enqueue<'a>(
        &mut self,
        stream: &Stream,
        a: impl Into<Shard<'a, A>>,
        b: &[B],
        d: &mut [D],
    ) -> Result<()> {
        self.enqueue_all(stream, a, &mut [Product::new(b, d)])
    }

    /// One step with several products of the same A; together they have at most as many columns as were planned. All ranks
    /// give products of the same columns, in the same order: the first product's sums are added to the first's.
    pub fn enqueue_all<'a>(
        &mut self,
        stream: &Stream,
        a: impl Into<Shard<'a, A>>,
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let input = a.into();
        let shape = self.member.shape(input.rows)?;
        let problem = shape.plan.problem();
        let rows = self.check_input(problem, &input)?;
        let own = shape.plan.output_rows(self.member.rank()).len() as u32;
        let problems = products::check_products(&shape.plan, problem, own, products)?;
        let columns: u64 = problems.iter().map(|problem| u64::from(problem.columns_of_b())).sum();
        let most = self.planned().problem().columns_of_b().into();
        let what = "the columns of all products together";
        let remedy = "plan with N of all products of a step together";
        Error::check_range(what, columns, 1..=most, remedy)?;
        let operand = Operand::Given { rows, lda: problem.lda(), scales: input.scales };

        let (rank, end) = (self.member.rank(), self.member.ender());
        let step = |products: &mut [Product<'_, B, D>]| {
            self.step(*stream, &shape, operand, &problems, products)
        };
        let settled = products::settle(rank, &problems, products, step, end);
        settled.inspect_err(|error| self.member.end_with(error))
    }

    /// A handle that ends the operation from any thread.
    pub fn aborter(&self) -> Aborter {
        self.member.aborter()
    }

    /// Waits until everything this rank began to send has been sent.
    pub fn flush(&self) -> Result<()> {
        self.member.flush()
    }

    /// Takes this rank's record of the steps so far, if the group records.
    ///
    /// Call [`GemmReduce::flush`] first, so that the record includes the last transfers.
    pub fn take_timeline(&mut self) -> Timeline {
        self.member.take_timeline()
    }

    /// The rows of A, once they and their scales fit the step.
    fn check_input<'a>(&self, problem: &Problem, input: &Shard<'a, A>) -> Result<&'a [A]> {
        let Some(rows) = input.at else {
            return Err(Error::Unsupported {
                what: "an input in place".into(),
                why: "a reduction reads A where the caller has it".into(),
                remedy: "pass the rows with Shard::at",
            });
        };
        let m = problem.rows_of_a();
        check_len("A", rows.len(), a_lens(problem, m), ALL_ROWS)?;
        let scales = problem.scaling().count(m);
        check_scales("the scales of A", input.scales, scales)?;
        Ok(rows)
    }

    fn step(
        &mut self,
        stream: Stream,
        shape: &Arc<StepShape>,
        a: Operand<'_, A>,
        problems: &[Problem],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let columns: Vec<u32> = problems.iter().map(Problem::n).collect();
        self.member.begin(shape, &columns)?;
        self.member.push(shape, columns.iter().map(|n| *n as usize).sum())?;
        self.member.carry_out(shape, |member, step| match step {
            Step::Multiply { rows, pivot, .. } => {
                // A product waits for nothing, so nothing else would notice that others have failed.
                member.check()?;
                multiply(member, stream, shape, a, (rows, *pivot), problems, products)
            }
            Step::Reduce { chunk } => {
                reduce(member, stream, shape, *chunk, problems, products)?;
                Ok(Vec::new())
            }
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } => Ok(Vec::new()),
        })?;
        self.member.check()
    }
}

/// What a rank does in every reduction.
impl Member<Sums> {
    /// Joins the operation, of which all ranks have planned the same reduction.
    pub(super) fn join_reduction(rank: &Rank, plan: Plan, reduction: Reduction) -> Result<Self> {
        let member = Member::join(rank, plan, |plan| Sums::new(plan, reduction))?;
        let others = member.memory().reduction();
        if others != reduction {
            let remedy = "plan the same reduction on every rank";
            let (got, expected) = (format!("{reduction:?}"), format!("{others:?}"));
            let error = Error::mismatch("the reduction", got, expected, remedy);
            member.fail_all(error.clone());
            return Err(error);
        }
        Ok(member)
    }

    /// The plan of a step with these rows, for which the slots are large enough.
    pub(super) fn shape(&self, rows: Option<&[u32]>) -> Result<Arc<StepShape>> {
        let shape = self.planned().with_rows(rows)?;
        let most = shape.plan.most_output_rows();
        let planned = self.planned().plan.most_output_rows();
        let remedy = "plan for the most rows that a rank gets in any step";
        Error::check_range("the rows that one rank gets in this step", most, 0..=planned, remedy)?;
        Ok(shape)
    }
}

/// The own sums of some rows, of all products side by side.
fn multiply<A: Element, B: Element, D: Element>(
    member: &Member<Sums>,
    stream: Stream,
    shape: &StepShape,
    a: Operand<'_, A>,
    (rows, pivot): (&Range<u32>, u32),
    problems: &[Problem],
    products: &[Product<'_, B, D>],
) -> Result<Vec<TileEvent>> {
    let (rank, epoch) = (member.rank(), member.epoch());
    let sums = member.memory().own(rank, epoch);
    let views: Vec<ProductView<'_, B, f32>> = first_columns(problems)
        .zip(problems)
        .zip(products)
        .map(|((first_column, problem), product)| ProductView {
            problem,
            b: product.b,
            // SAFETY: the pusher reads rows only after `Summed`, which comes after this product. It has sent what the
            // buffer held before: the step's beginning awaited that; in an all-reduce, the previous step could end only
            // when all others had used it. The own rows were read by workers of an earlier step, which this thread has
            // joined.
            d: unsafe { OutputCells::of_buffer(sums, first_column) },
            scales: product.scales,
            // `reduce` applies the product's, once.
            epilogue: Epilogue::default(),
            amax: None,
        })
        .collect();
    let job = TileJob {
        a,
        products: &views,
        rank,
        epoch,
        rows: rows.clone(),
        grid: Grid::new(&shape.plan, pivot, problems.iter().map(Problem::n))?,
        record: member.recording(),
    };
    run_tiles(stream, &job, || |_, _| Ok(()))
}

/// Adds up all ranks' sums of a chunk, and applies each product's epilogue to the total; or stores the total that another rank
/// has sent.
pub(super) fn reduce<B: Element, D: Element>(
    member: &Member<Sums>,
    stream: Stream,
    shape: &StepShape,
    chunk: u32,
    problems: &[Problem],
    products: &mut [Product<'_, B, D>],
) -> Result<()> {
    let (rank, epoch, sums) = (member.rank(), member.epoch(), member.memory());
    let (plan, chunks) = (&shape.plan, shape.plan.chunks());
    let owner = chunks.rank_of(chunk);
    let adds_up = plan.added_up(rank).contains(&chunk);
    let first = plan.output_rows(rank).start;
    let additions = plan.additions(rank, owner, sums.reduction().partials);
    let outputs = products::views(problems, products);
    run_rows(stream, chunks.rows(chunk), |row, total| {
        let local = row - first;
        for (first_column, output) in first_columns(problems).zip(&outputs) {
            let n = output.problem.n();
            let columns = first_column as usize..(first_column + n) as usize;
            // SAFETY: each row of the output is one worker's. The schedule has awaited every rank's sums of this chunk, or its
            // total; these are overwritten after this step only. The own sums are of this thread's past, and nobody else reads
            // those of own rows. The pusher reads the total in their place behind `Summed`, which comes after this.
            unsafe {
                let d = output.d.row_part(local, 0..n);
                if !adds_up {
                    let arrived = sums.arrived_total([rank, owner], epoch, local, columns);
                    d.iter_mut().zip(arrived).for_each(|(d, total)| *d = D::narrow(*total));
                    continue;
                }
                sums.add_up(rank, epoch, [row, local], columns.clone(), &additions, total);
                let start = output.d.place(local, 0);
                for (column, (d, sum)) in d.iter_mut().zip(&*total).enumerate() {
                    *d = D::narrow(output.epilogue.apply(*sum, start + column, column));
                }
                if plan.sends_totals(rank, owner) {
                    sums.put_total(rank, epoch, row, columns, d.iter().map(|d| d.widen()));
                }
            }
        }
    })
}

/// Where each product's columns begin in the sums.
fn first_columns(problems: &[Problem]) -> impl Iterator<Item = u32> {
    problems.iter().scan(0, |next, problem| {
        let first = *next;
        *next += problem.n();
        Some(first)
    })
}
