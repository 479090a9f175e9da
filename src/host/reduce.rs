//! Reduce-scatter and all-reduce: every rank has sums of all rows, and gets the totals of its own rows, or of all.
//!
//! What belongs here: the reductions for their own sake. With the product that computes the sums they are
//! [`GemmReduce`](super::GemmReduce), and totals are added up as there. Invariant: a step has copied the caller's sums before it stores
//! a total, which may take their place.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::compute::Stream;
use super::control::Aborter;
use super::gemm_reduce::reduce;
use super::group::Rank;
use super::member::Member;
use super::operands::Product;
use super::products::settle_in;
use super::sums::Sums;
use super::world::StepShape;
use crate::element::Element;
use crate::error::Result;
use crate::fit::{ALL_ROWS, OWN_ROWS, check_len, check_type, d_lens};
use crate::plan::{Operation, Plan, PlanOptions, Problem, Reduction, Step};
use crate::trace::Timeline;

/// One rank's reduce-scatter, planned once and enqueued many times: of sums in `S`, to totals in `D`.
///
/// Sums are added in the order of the ranks, in `f32`: the result does not depend on what arrives first.
///
/// Collective: the ranks of a group plan the same operations in the same order, and enqueue the
/// same steps. Each rank runs on its own thread. After a failed step, later calls return [`Error::Over`](crate::Error::Over): plan
/// again.
///
/// ```
/// use overlap_gemm::Result;
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::host::{Group, Rank, ReduceScatter, Stream};
/// use overlap_gemm::plan::{PlanOptions, Reduction};
///
/// fn one_rank(rank: Rank) -> Result<()> {
///     // Rank 0 gets three rows of 16 columns, rank 1 one.
///     let (rows, columns) = ([3, 1], 16);
///     let (options, sum) = (PlanOptions::default(), Reduction::default());
///     let mut reduce = ReduceScatter::<bf16>::plan(&rank, &rows, columns, options, sum)?;
///
///     // This rank's sums of all rows, and the totals of its own.
///     let mut sums = [bf16::from_f32(1.0 + rank.rank() as f32); 4 * 16];
///     let mut totals = vec![bf16::ZERO; rows[rank.rank() as usize] as usize * 16];
///     let stream = Stream::for_ranks(2);
///     reduce.enqueue(&stream, None, &sums, &mut totals)?;
///     assert!(totals.iter().all(|total| total.to_f32() == 1.0 + 2.0));
///
///     // The totals of this rank's rows take the place of its sums of them.
///     reduce.enqueue_in_place(&stream, None, &mut sums)?;
///     let own = if rank.rank() == 0 { 0..3 * 16 } else { 3 * 16..4 * 16 };
///     assert_eq!(sums[own], totals);
///     Ok(())
/// }
///
/// let ranks = Group::local(2)?;
/// std::thread::scope(|scope| {
///     let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| one_rank(rank))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
/// })?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type ReduceScatter<S, D = S> = Reduce<false, S, D>;

/// One rank's all-reduce, planned once and enqueued many times: a [`ReduceScatter`] of which every rank gets all rows.
///
/// The results of all ranks are equal bit for bit. Each rank sends its sums to all others, and adds up all rows, in one shot.
///
/// ```
/// use overlap_gemm::host::{AllReduce, Group, Stream};
/// use overlap_gemm::plan::{Partials, PlanOptions, Reduction};
///
/// let sum = Reduction { partials: Partials::F32, ..Reduction::default() };
/// let plan = |rank| AllReduce::<f32>::plan(rank, &[2], 3, PlanOptions::default(), sum);
/// let mut reduce = plan(&Group::local(1)?[0])?;
/// let (sums, mut totals) = ([1.0; 6], [0.0; 6]);
/// reduce.enqueue(&Stream::new(1)?, None, &sums, &mut totals)?;
/// assert_eq!(totals, sums); // of one rank
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type AllReduce<S, D = S> = Reduce<true, S, D>;

/// What [`ReduceScatter`] and [`AllReduce`] have in common; `ALL`: every rank gets all rows.
///
/// ```
/// use overlap_gemm::host::Reduce;
///
/// /// How many chunks the sums of either operation travel in.
/// fn chunks<const ALL: bool>(operation: &Reduce<ALL, f32>) -> u32 {
///     operation.planned().chunks().len()
/// }
/// ```
#[derive(Debug)]
pub struct Reduce<const ALL: bool, S, D = S> {
    member: Member<Sums>,
    types: PhantomData<fn(S) -> D>,
}

impl<const ALL: bool, S: Element, D: Element> Reduce<ALL, S, D> {
    const OPERATION: Operation = if ALL { Operation::AllReduce } else { Operation::ReduceScatter };

    /// Plans the operation on one rank. Every rank calls this, with equal arguments; no rank waits for another here.
    ///
    /// The shard of rank r is `rows[r]` rows of `columns` elements. A step may have other rows, if neither their sum nor the
    /// largest shard exceeds the planned one. `S` is the type `reduction.partials`; `D` is bf16, f16 or f32. Nothing is multiplied, so
    /// the options' strategy and tiles change no result.
    pub fn plan(
        rank: &Rank,
        rows: &[u32],
        columns: u32,
        options: PlanOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        check_type::<S>("the sums", reduction.partials.element())?;
        let problem = Problem::of_totals(rows, columns, D::TYPE)?;
        let options = PlanOptions { operation: Self::OPERATION, ..options };
        let member = Member::join_reduction(rank, Plan::new(&problem, options)?, reduction)?;
        Ok(Reduce { member, types: PhantomData })
    }

    /// The plan.
    pub fn planned(&self) -> &Plan {
        &self.member.planned().plan
    }

    /// One step: adds up all ranks' sums of the rows that this rank gets, and stores the totals in `d`. `rows[r]` is the number
    /// of rows of rank r in this step, the same on all ranks (`None`: as planned).
    ///
    /// `sums` are this rank's sums of all rows, packed; `d` is packed, too. A step that fails fills `d` with NaN.
    pub fn enqueue(
        &mut self,
        stream: &Stream,
        rows: Option<&[u32]>,
        sums: &[S],
        d: &mut [D],
    ) -> Result<()> {
        let shape = self.shape(rows, sums)?;
        let problem = shape.plan.problem();
        let own = shape.plan.output_rows(self.member.rank()).len() as u32;
        let remedy = if ALL { ALL_ROWS } else { OWN_ROWS };
        check_len("D", d.len(), d_lens(problem, own), remedy)?;
        self.step(stream, &shape, &mut (sums, d), |(sums, _)| sums, |(_, d)| d)
    }

    /// A handle that ends the operation from any thread.
    pub fn aborter(&self) -> Aborter {
        self.member.aborter()
    }

    /// Waits until everything this rank began to send has been sent.
    pub fn flush(&self) -> Result<()> {
        self.member.flush()
    }

    /// Takes this rank's record of the steps so far, if the group records: of the transfers.
    ///
    /// Call [`Reduce::flush`] first, so that the record includes the last ones.
    pub fn take_timeline(&mut self) -> Timeline {
        self.member.take_timeline()
    }

    /// The plan of a step with these rows, once the sums fit it.
    fn shape(&self, rows: Option<&[u32]>, sums: &[S]) -> Result<Arc<StepShape>> {
        let shape = self.member.shape(rows)?;
        let problem = shape.plan.problem();
        check_len("the sums", sums.len(), d_lens(problem, problem.m()), ALL_ROWS)?;
        Ok(shape)
    }

    /// One step, whose sums and totals lie in `memory`.
    fn step<M: ?Sized>(
        &mut self,
        stream: &Stream,
        shape: &Arc<StepShape>,
        memory: &mut M,
        sums: impl Fn(&M) -> &[S],
        totals: impl Fn(&mut M) -> &mut [D],
    ) -> Result<()> {
        let (rank, end) = (self.member.rank(), self.member.ender());
        let problem = shape.plan.problem();
        let step = |memory: &mut M| {
            self.member.begin(shape, &[])?;
            bring(&self.member, shape, sums(memory))?;
            self.member.push(shape, problem.n() as usize)?;
            self.member.carry_out(shape, |member, step| {
                if let Step::Reduce { chunk } = *step {
                    let totals = &mut [Product::new(&[] as &[S], totals(memory))];
                    reduce(member, *stream, shape, chunk, slice::from_ref(problem), totals)?;
                }
                Ok(Vec::new())
            })?;
            self.member.check()
        };
        let poison = |memory: &mut M| totals(memory).fill(D::POISON);
        let settled = settle_in(rank, memory, step, poison, end);
        settled.inspect_err(|error| self.member.end_with(error))
    }
}

impl<const ALL: bool, S: Element> Reduce<ALL, S> {
    /// [`Reduce::enqueue`] in place: the totals, which have the type of the sums, overwrite the sums of the same rows. The other
    /// rows stay as they are.
    ///
    /// ```
    /// use overlap_gemm::element::bf16;
    /// use overlap_gemm::host::{AllReduce, Group, Rank, Stream};
    /// use overlap_gemm::plan::{PlanOptions, Reduction};
    ///
    /// fn one_rank(rank: Rank) -> overlap_gemm::Result<()> {
    ///     let (options, sum) = (PlanOptions::default(), Reduction::default());
    ///     let mut reduce = AllReduce::<bf16>::plan(&rank, &[2, 2], 8, options, sum)?;
    ///     let mut sums = [bf16::ONE; 4 * 8];
    ///     reduce.enqueue_in_place(&Stream::for_ranks(2), None, &mut sums)?;
    ///     assert_eq!(sums, [bf16::from_f32(2.0); 4 * 8]);
    ///     Ok(())
    /// }
    /// # let threads: Vec<_> = Group::local(2)?.into_iter().map(|rank| std::thread::spawn(|| one_rank(rank))).collect();
    /// # threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))?;
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn enqueue_in_place(
        &mut self,
        stream: &Stream,
        rows: Option<&[u32]>,
        sums: &mut [S],
    ) -> Result<()> {
        let shape = self.shape(rows, sums)?;
        let own = elements(&shape, shape.plan.output_rows(self.member.rank()));
        self.step(stream, &shape, sums, |sums| sums, |sums| &mut sums[own.clone()])
    }
}

/// Where these rows lie in packed sums.
fn elements(shape: &StepShape, rows: Range<u32>) -> Range<usize> {
    let columns = shape.plan.problem().n() as usize;
    rows.start as usize * columns..rows.end as usize * columns
}

/// Copies the caller's sums to where a product would have computed them, and signals them to the pusher.
fn bring<S: Element>(member: &Member<Sums>, shape: &StepShape, sums: &[S]) -> Result<()> {
    let own = member.memory().own(member.rank(), member.epoch());
    member.endpoint(shape).publish(&mut member.watch(), |chunk, _| {
        let rows = shape.plan.chunks().rows(chunk);
        let sums = &sums[elements(shape, rows.clone())];
        // SAFETY: the pusher reads these rows only after `Summed`, which comes after this. It has sent what the buffer held before:
        // the step's beginning awaited that; in an all-reduce, the previous step could end only when all others had used it.
        // The workers of an earlier step that read them have been joined.
        let own = unsafe { own.rows_mut(rows) };
        own.iter_mut().zip(sums).for_each(|(own, sum)| *own = sum.widen());
    })
}
