//! GEMM + reduce-scatter and GEMM + all-reduce: every rank multiplies its slice of K, and gets the sums of its own rows of D,
//! or of all.
//!
//! Invariant: what a rank stores follows from the ranks' sums alone, not from what arrives first. Which rows are whose, and who
//! sends what, is the plan's.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::compute::{Operand, Stream, run_rows};
use super::control::Aborter;
use super::group::Rank;
use super::memory::OutputCells;
use super::operands::{Product, Shard};
use super::products::{self, StepInput};
use super::sums::Sums;
use super::tile::ProductView;
use super::world::{Member, StepShape, buffer_of};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{ALL_ROWS, a_lens, check_len, check_scales, check_type, scale_count};
use crate::plan::{Epilogue, Operation, Plan, PlanOptions, Problem, Reduction, Step};
use crate::trace::{TileEvent, Timeline};

/// One rank's GEMM + reduce-scatter, planned once and enqueued many times.
///
/// Each rank holds a slice of K: all M rows of A over it, and the weight's part. The problem's K is that of one rank, and its
/// shards say which rows of D a rank gets. The sums of the others' rows leave as soon as a chunk of them is computed, while the
/// rank computes the next; the own rows come last. The result does not depend on what arrives first (see [`Reduction`]).
///
/// Collective: the ranks of a group plan the same operations in the same order, and enqueue the
/// same steps. Each rank runs on its own thread. After an error, later calls return [`Error::Over`]: plan again.
///
/// ```
/// use overlap_gemm::Result;
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::host::{GemmReduceScatter, Group, Rank, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem, Reduction};
///
/// const RANKS: u32 = 4;
/// const M: usize = 256;
/// const N: usize = 96;
/// const K: usize = 64; // of one rank
///
/// fn one_rank(rank: Rank, problem: &Problem) -> Result<()> {
///     let (options, reduction) = (PlanOptions::default(), Reduction::default());
///     let mut layer = GemmReduceScatter::<bf16>::plan(&rank, problem, options, reduction)?;
///     let stream = Stream::for_ranks(RANKS);
///
///     // All rows of A and the weight (N×K), over this rank's slice of K; its own rows of the output.
///     let a = vec![bf16::from_f32(1.0 + rank.rank() as f32); M * K];
///     let weight = vec![bf16::from_f32(0.5); N * K];
///     let mut output = vec![bf16::ZERO; M / 4 * N];
///     layer.enqueue(&stream, &a, &weight, &mut output)?;
///
///     // 64 products of 0.5 with each of 1, 2, 3 and 4.
///     assert_eq!(output[0].to_f32(), 64.0 * 0.5 * (1.0 + 2.0 + 3.0 + 4.0));
///     Ok(())
/// }
///
/// let problem = Problem::builder(M as u64, N as u64, K as u64).ranks(RANKS.into()).build()?;
/// let ranks = Group::local(RANKS)?;
/// std::thread::scope(|scope| {
///     let spawn = |rank| scope.spawn(|| one_rank(rank, &problem));
///     let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
/// })?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type GemmReduceScatter<A, B = A, D = A> = GemmReduce<false, A, B, D>;

/// One rank's GEMM + all-reduce, planned once and enqueued many times: a [`GemmReduceScatter`] of which every rank gets all rows.
///
/// The results of all ranks are equal bit for bit: all add up the same numbers in the same order, their own as others' rounded to
/// the type of [partials](crate::plan::Partials). Each rank sends its sums to all others, in one shot, so this is for few rows.
/// The problem's shards say in which order a rank computes the rows.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::Result;
/// use overlap_gemm::host::{GemmAllReduce, Group, Rank, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem, Reduction};
///
/// fn one_rank(rank: Rank, problem: &Problem) -> Result<()> {
///     let (options, reduction) = (PlanOptions::default(), Reduction::default());
///     let mut layer = GemmAllReduce::<f32>::plan(&rank, problem, options, reduction)?;
///     let (a, weight, mut output) = ([1.0; 8 * 32], [0.5; 16 * 32], [0.0; 8 * 16]);
///     layer.enqueue(&Stream::for_ranks(2), &a[..], &weight, &mut output)?;
///     assert_eq!(output, [2.0 * 32.0 * 0.5; 8 * 16]);
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
pub type GemmAllReduce<A, B = A, D = A> = GemmReduce<true, A, B, D>;

/// What [`GemmReduceScatter`] and [`GemmAllReduce`] have in common; `ALL`: every rank gets all rows.
#[derive(Debug)]
pub struct GemmReduce<const ALL: bool, A, B = A, D = A> {
    member: Member<Sums>,
    planned: Arc<StepShape>,
    /// The latest step's shape, if its slots were read.
    latest: Option<Arc<StepShape>>,
    tiles: Vec<TileEvent>,
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
        check_type::<A>("A", problem.elements().a)?;
        check_type::<B>("B", problem.elements().b)?;
        check_type::<D>("D", problem.elements().d)?;
        let options = PlanOptions { operation: Self::OPERATION, ..options };
        let planned = StepShape::new(Plan::new(problem, options)?, rank.rank());
        let member = Member::join(rank, &planned.plan, || Sums::new(&planned.plan, reduction))?;
        let others = member.memory().reduction();
        if others != reduction {
            let remedy = "plan the same reduction on every rank";
            let (got, expected) = (format!("{reduction:?}"), format!("{others:?}"));
            let error = Error::mismatch("the reduction", got, expected, remedy);
            member.fail_all(error.clone());
            return Err(error);
        }
        tracing::debug!(rank = rank.rank(), %problem, "planned {}", Self::OPERATION);
        let (latest, tiles, types) = (None, Vec::new(), PhantomData);
        Ok(GemmReduce { member, planned, latest, tiles, types })
    }

    /// The plan.
    pub fn planned(&self) -> &Plan {
        &self.planned.plan
    }

    /// One step with one product: `d` = this rank's rows of the sum over all ranks of their A times their `b`.
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
        let shape = self.shape(input.rows)?;
        let (problem, tiling) = (shape.plan.problem(), shape.plan.options().tiling);
        let rows = self.check_input(problem, &input)?;
        let own = shape.plan.output_rows(self.member.rank()).len() as u32;
        let problems = products::check_products(problem, own, tiling, products)?;
        let columns: u64 = problems.iter().map(|problem| u64::from(problem.n())).sum();
        let most = self.planned.plan.problem().n().into();
        if columns > most {
            let remedy = "plan with N of all products of a step together";
            let what = "the columns of all products together";
            return Err(Error::out_of_range(what, columns, 1, most, remedy));
        }
        let operand = Operand::Given { rows, lda: problem.lda(), scales: input.scales };

        let end = self.member.ender();
        let settled = products::settle(
            &problems,
            products,
            |products| self.step(*stream, &shape, operand, &problems, products),
            end,
        );
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
        Timeline { tiles: std::mem::take(&mut self.tiles), transfers: self.member.take_transfers() }
    }

    /// The plan of a step with these rows, for which the slots are large enough.
    fn shape(&self, rows: Option<&[u32]>) -> Result<Arc<StepShape>> {
        let shape = self.planned.with_rows(rows)?;
        let (most, planned) = (shape.plan.most_output_rows(), self.planned.plan.most_output_rows());
        if most > planned {
            let remedy = "plan for the most rows that a rank gets in any step";
            let what = "the rows that one rank gets in this step";
            return Err(Error::out_of_range(what, most.into(), 0, planned.into(), remedy));
        }
        Ok(shape)
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
        check_len("A", rows.len(), a_lens(problem, problem.m()), ALL_ROWS)?;
        let scales = scale_count(problem.scaling(), problem.m());
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
        let latest = self.latest.take();
        let columns: Vec<u32> = problems.iter().map(Problem::n).collect();
        self.member.prepare(shape, &columns, |member| {
            if let Some(latest) = latest.filter(|_| member.poisons()) {
                let rows = latest.plan.output_rows(member.rank()).len() as u32;
                // SAFETY: this rank's threads have read the slots. It announces that after this; in an all-reduce, nobody
                // writes them before this rank has sent sums of the next step.
                unsafe { member.memory().poison(member.rank(), buffer_of(member.epoch()), rows) };
            }
        })?;
        self.member.advance();
        self.member.push(shape, columns.iter().map(|n| *n as usize).sum())?;
        for step in self.member.endpoint(shape).after_opening() {
            let endpoint = self.member.endpoint(shape);
            match step {
                Step::Multiply { rows, pivot, .. } => {
                    // A product waits for nothing, so nothing else would notice that others have failed.
                    self.member.check()?;
                    let events =
                        self.multiply(stream, shape, a, (rows, *pivot), problems, products)?;
                    self.tiles.extend(events);
                }
                Step::Post { word, to, age } => {
                    endpoint.post(*word, *to, endpoint.epoch.wrapping_sub(*age));
                }
                Step::Await { word, age } => {
                    let waited = endpoint.await_word(*word, *age, &mut self.member.watch());
                    waited.inspect_err(|error| self.member.fail(error.clone()))?;
                }
                Step::Reduce { chunk } => {
                    let rows = shape.plan.chunks().rows(*chunk);
                    self.reduce(stream, shape, rows, problems, products)?;
                }
                // The pusher's.
                Step::Move { .. } => {}
            }
        }
        self.latest = Some(Arc::clone(shape));
        self.member.check()
    }

    /// The own sums of some rows, of all products side by side.
    fn multiply(
        &self,
        stream: Stream,
        shape: &StepShape,
        a: Operand<'_, A>,
        (rows, pivot): (&Range<u32>, u32),
        problems: &[Problem],
        products: &[Product<'_, B, D>],
    ) -> Result<Vec<TileEvent>> {
        let member = &self.member;
        let sums = member.memory().own(member.rank(), buffer_of(member.epoch()));
        let views: Vec<ProductView<'_, B, f32>> = first_columns(problems)
            .zip(problems)
            .zip(products)
            .map(|((first_column, problem), product)| ProductView {
                b: product.b,
                ldb: problem.ldb(),
                b_layout: problem.b_layout(),
                n: problem.n(),
                k: problem.k(),
                // SAFETY: the pusher reads others' rows only after `Summed`, which comes after this product; it has sent what
                // the buffer held before: the step's beginning awaited that; in an all-reduce, the step before it did, for
                // which all others had received it. The own rows were read by workers of an
                // earlier step, which this thread has joined.
                d: unsafe { OutputCells::of_buffer(sums, first_column) },
                scales: product.scales,
                // `reduce` applies the product's, once.
                epilogue: Epilogue::default(),
            })
            .collect();
        let step = StepInput {
            plan: &shape.plan,
            a,
            rank: member.rank(),
            pivot,
            epoch: member.epoch(),
            rows: rows.clone(),
            record: member.recording(),
        };
        products::compute_views(stream, step, problems, &views, || |_, _| Ok(()))
    }

    /// Adds up all ranks' sums of some of the own rows, and applies each product's epilogue to the total.
    fn reduce(
        &self,
        stream: Stream,
        shape: &StepShape,
        rows: Range<u32>,
        problems: &[Problem],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let (owner, buffer) = (self.member.rank(), buffer_of(self.member.epoch()));
        let first = shape.plan.output_rows(owner).start;
        let outputs = products.iter_mut().zip(problems);
        let outputs: Vec<(OutputCells<'_, D>, Epilogue<'_, D>)> = outputs
            .map(|(product, problem)| {
                (OutputCells::new(product.d, problem.ldd()), product.epilogue)
            })
            .collect();
        run_rows(stream, rows, |row, total| {
            for ((first_column, problem), (output, epilogue)) in
                first_columns(problems).zip(problems).zip(&outputs)
            {
                let (columns, at) = (first_column as usize, [row, row - first]);
                let columns = columns..columns + problem.n() as usize;
                // SAFETY: the schedule has awaited every rank's sums of this chunk, and the own ones are of this thread's
                // past; they are overwritten after this step only. Each row of the output is one worker's.
                unsafe {
                    self.member.memory().add_up(owner, buffer, at, columns, total);
                    let start = output.place(row - first, 0);
                    let output = output.row_part(row - first, 0..problem.n());
                    for (column, (d, sum)) in output.iter_mut().zip(&*total).enumerate() {
                        *d = D::narrow(epilogue.apply(*sum, start + column, column));
                    }
                }
            }
        })
    }
}

/// Where each product's columns begin in the sums.
fn first_columns(problems: &[Problem]) -> impl Iterator<Item = u32> {
    problems.iter().scan(0, |next, problem| {
        let first = *next;
        *next += problem.n();
        Some(first)
    })
}
