//! All-gather + GEMM: every rank passes a shard of A and gets D = A · B of the whole A.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::compute::{Grid, Operand, Stream, TileJob, run_tiles};
use super::control::Aborter;
use super::gather::{GatheredMemory, publish};
use super::group::Rank;
use super::member::Member;
use super::operands::{Product, Shard};
use super::products;
use super::world::StepShape;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{OWN_ROWS, a_lens, check_len, check_scales, check_types};
use crate::plan::{Operation, Plan, PlanOptions, Problem, Scaling, Step};
use crate::trace::Timeline;

/// One rank's all-gather + GEMM, planned once and enqueued many times.
///
/// Collective: the ranks of a group plan the same operations in the same order, and enqueue the
/// same steps. Each rank runs on its own thread. After a failed step, later calls return [`Error::Over`]: plan again.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::Result;
/// use overlap_gemm::host::{AllGatherGemm, Group, Rank, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// fn one_rank(rank: Rank, problem: &Problem) -> Result<()> {
///     // Plan once: memory, signals, the schedule.
///     let mut layer = AllGatherGemm::<f32>::plan(&rank, problem, PlanOptions::default())?;
///     // This rank's rows of A, its own weight (N×K), its own output (M×N).
///     let shard = [1.0 + rank.rank() as f32; 4 * 32];
///     let (weight, mut output) = ([0.5; 16 * 32], [0.0; 8 * 16]);
///     // Enqueue many times, with the shard's current contents.
///     for _step in 0..3 {
///         layer.enqueue(&Stream::for_ranks(2), &shard[..], &weight, &mut output)?;
///     }
///     // Row 5 is one of rank 1's: 32 products of 2.0 and 0.5.
///     assert_eq!(output[5 * 16], 32.0 * 2.0 * 0.5);
///     // The gathered A can be read until the next step.
///     assert_eq!(layer.gathered().expect("a step has completed").row(5)[0], 2.0);
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
#[derive(Debug)]
pub struct AllGatherGemm<A, B = A, D = A> {
    member: Member<GatheredMemory<A>>,
    /// The own slot of the next step has been lent out to be written in place.
    lent: bool,
    types: PhantomData<fn(B) -> D>,
}

/// The gathered A of the latest step.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{AllGatherGemm, Group, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let mut layer = AllGatherGemm::<f32>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
/// let (a, b, mut d) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0], [0.0; 2]);
/// layer.enqueue(&Stream::new(1)?, &a[..], &b, &mut d)?;
/// let gathered = layer.gathered().expect("there was a step");
/// assert_eq!((gathered.m(), gathered.row(1)), (2, &[3.0, 4.0][..]));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a, A> {
    elements: &'a [A],
    m: u32,
    k: u32,
}

impl<'a, A> Gathered<'a, A> {
    /// All rows, packed.
    pub fn elements(&self) -> &'a [A] {
        self.elements
    }

    /// The number of rows.
    pub fn m(&self) -> u32 {
        self.m
    }

    /// One row; empty if there is no such row.
    pub fn row(&self, row: u32) -> &'a [A] {
        let (row, k) = (row as usize, self.k as usize);
        self.elements.chunks_exact(k).nth(row).unwrap_or(&[])
    }
}

impl<A: Element, B: Element, D: Element> AllGatherGemm<A, B, D> {
    /// Plans the operation on one rank. Every rank calls this; no rank waits for another here.
    pub fn plan(rank: &Rank, problem: &Problem, options: PlanOptions) -> Result<Self> {
        check_types::<A, B, D>(problem)?;
        let options = PlanOptions { operation: Operation::AllGatherGemm, ..options };
        let member = Member::join(rank, Plan::new(problem, options)?, GatheredMemory::new)?;
        Ok(AllGatherGemm { member, lent: false, types: PhantomData })
    }

    /// The plan.
    pub fn planned(&self) -> &Plan {
        &self.member.planned().plan
    }

    /// One step with one product: gathers this and all other ranks' rows, and sets `d` to the
    /// gathered A times `b`.
    pub fn enqueue<'a>(
        &mut self,
        stream: &Stream,
        shard: impl Into<Shard<'a, A>>,
        b: &[B],
        d: &mut [D],
    ) -> Result<()> {
        self.enqueue_all(stream, shard, &mut [Product::new(b, d)])
    }

    /// One step with several products of the same gathered A.
    ///
    /// ```
    /// # use overlap_gemm::element::bf16;
    /// # use overlap_gemm::host::{AllGatherGemm, Group, Product, Stream};
    /// # use overlap_gemm::plan::{PlanOptions, Problem};
    /// # let problem = Problem::builder(8, 16, 32).build()?;
    /// # let mut layer = AllGatherGemm::<bf16>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
    /// # let (shard, q, kv) = ([bf16::ONE; 8 * 32], [bf16::ONE; 16 * 32], [bf16::ONE; 4 * 32]);
    /// let (mut queries, mut others) = ([bf16::ZERO; 8 * 16], [bf16::ZERO; 8 * 4]);
    /// // The second product has 4 columns instead of the planned 16.
    /// let mut products = [Product::new(&q, &mut queries), Product::new(&kv, &mut others).n(4)];
    /// layer.enqueue_all(&Stream::new(1)?, &shard[..], &mut products)?;
    /// assert_eq!(others[0].to_f32(), 32.0);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn enqueue_all<'a>(
        &mut self,
        stream: &Stream,
        shard: impl Into<Shard<'a, A>>,
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let shard = shard.into();
        let shape = self.member.planned().with_rows(shard.rows)?;
        let problem = shape.plan.problem();
        self.check_shard(problem, &shard)?;
        let problems = products::check_products(&shape.plan, problem, problem.m(), products)?;

        let (rank, end) = (self.member.rank(), self.member.ender());
        let step = |products: &mut [Product<'_, B, D>]| {
            self.step(*stream, &shape, &shard, &problems, products)
        };
        let settled = products::settle(rank, &problems, products, step, end);
        settled.inspect_err(|error| self.member.end_with(error))
    }

    /// The slot of this rank's shard in the next step's gathered A: rows packed, K elements each.
    ///
    /// A producer that writes here saves the copy; the step is then enqueued with
    /// [`Shard::in_place`] and the same `rows`. The previous contents of the slot are unspecified.
    ///
    /// ```
    /// # use overlap_gemm::element::bf16;
    /// # use overlap_gemm::host::{AllGatherGemm, Group, Shard, Stream};
    /// # use overlap_gemm::plan::{PlanOptions, Problem};
    /// # let problem = Problem::builder(8, 16, 32).build()?;
    /// # let mut layer = AllGatherGemm::<bf16>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
    /// # let (stream, b, mut d) = (Stream::new(1)?, [bf16::ONE; 16 * 32], [bf16::ZERO; 8 * 16]);
    /// layer.local_shard(None)?.fill(bf16::ONE); // before each step
    /// layer.enqueue(&stream, Shard::in_place(), &b, &mut d)?;
    /// assert_eq!(d[0].to_f32(), 32.0);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<&mut [A]> {
        let shape = self.member.planned().with_rows(rows)?;
        if let Err(error) = self.member.prepare(&shape, &[]) {
            self.member.end_with(&error);
            return Err(error);
        }
        self.lent = true;
        let (rank, next) = (self.member.rank(), self.member.epoch().wrapping_add(1));
        let own = shape.plan.problem().shards().rows(rank);
        // SAFETY: `prepare` awaited the end of this slot's last use; peers write other rows of the
        // buffer, by the shards that all ranks agreed on; own workers run only in a later call.
        Ok(unsafe { self.member.memory().of(rank, next).rows.rows_mut(own) })
    }

    /// The gathered A of the latest step; `None` before the first, after one that failed, and from
    /// [`AllGatherGemm::local_shard`] on until the next step is complete.
    ///
    /// It is borrowed, so the next step cannot overwrite it while it is read:
    ///
    /// ```compile_fail,E0502
    /// # use overlap_gemm::Result;
    /// # use overlap_gemm::element::bf16;
    /// # use overlap_gemm::host::{AllGatherGemm, Stream};
    /// fn next(layer: &mut AllGatherGemm<bf16>, shard: &[bf16], b: &[bf16], d: &mut [bf16]) -> Result<()> {
    ///     let gathered = layer.gathered().expect("a step has completed");
    ///     layer.enqueue(&Stream::new(1)?, shard, b, d)?;
    ///     assert_eq!(gathered.row(0)[0], bf16::ONE);
    ///     Ok(())
    /// }
    /// ```
    pub fn gathered(&self) -> Option<Gathered<'_, A>> {
        let problem = self.member.latest()?.plan.problem();
        let buffer = self.member.memory().of(self.member.rank(), self.member.epoch());
        // SAFETY: the step is complete, so all rows were acquired by a worker of this rank that the
        // caller has joined; they are overwritten only after the next step begins, which takes `&mut`.
        let elements = unsafe { buffer.rows.rows(0..problem.m()) };
        Some(Gathered { elements, m: problem.m(), k: problem.k() })
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
    /// Call [`AllGatherGemm::flush`] first, so that the record includes the last transfers.
    pub fn take_timeline(&mut self) -> Timeline {
        self.member.take_timeline()
    }

    fn check_shard(&self, problem: &Problem, shard: &Shard<'_, A>) -> Result<()> {
        let own = problem.shards().rows(self.member.rank()).len() as u32;
        match shard.at {
            Some(rows) => check_len("the shard", rows.len(), a_lens(problem, own), OWN_ROWS)?,
            None if self.lent => {}
            None => {
                let remedy = "write the shard through `local_shard` before each step in place";
                let (got, expected) = ("not taken", "taken for this step");
                return Err(Error::mismatch("the local shard", got, expected, remedy));
            }
        }
        check_scales("the scales of A", shard.scales, problem.scaling().count(own))
    }

    fn step(
        &mut self,
        stream: Stream,
        shape: &Arc<StepShape>,
        shard: &Shard<'_, A>,
        problems: &[Problem],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        self.member.begin(shape, &[])?;
        self.lent = false;
        publish(&self.member, shape, shard)?;
        self.member.push(shape, 0)?;
        let tensor_scale = match shape.plan.problem().scaling() {
            Scaling::Tensor => shard.scales.first(),
            Scaling::None | Scaling::Rows => None,
        };
        let views = products::views(problems, products);
        self.member.carry_out(shape, |member, step| {
            // Nothing is reduced.
            let Step::Multiply { rows, pivot, awaits } = step else { return Ok(Vec::new()) };
            let (rank, epoch) = (member.rank(), member.epoch());
            let job = TileJob {
                a: Operand::Arriving { rows: member.memory().of(rank, epoch), tensor_scale },
                products: &views,
                rank,
                epoch,
                rows: rows.clone(),
                grid: Grid::new(&shape.plan, *pivot, problems.iter().map(Problem::n))?,
                record: member.recording(),
            };
            run_tiles(stream, &job, || {
                let mut watch = member.watch();
                move |tile, chunks: Range<u32>| {
                    watch.tile = Some(tile);
                    let awaited = chunks.filter(|chunk| awaits.contains(chunk));
                    member.await_chunks(shape, awaited, &mut watch)
                }
            })
        })
    }
}
