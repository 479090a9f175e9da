//! All-gather + GEMM: every rank passes a shard of A and gets D = A · B of the whole A.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::compute::{Operand, Stream};
use super::control::Aborter;
use super::gather::{Gatherer, OwnRows};
use super::group::Rank;
use super::operands::{Product, Shard};
use super::products::{self, StepInput};
use super::world::StepShape;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{OWN_ROWS, a_lens, check_len, check_scales, check_type, scale_count};
use crate::plan::{Lane, Operation, Plan, PlanOptions, Problem, Scaling, Step, Word};
use crate::trace::{TileEvent, Timeline};

/// One rank's all-gather + GEMM, planned once and enqueued many times.
///
/// Collective: the ranks of a group plan the same operations in the same order, and enqueue the
/// same steps. Each rank runs on its own thread. After an error, later calls return [`Error::Over`]: plan again.
///
/// ```
/// use overlap_gemm::Result;
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::host::{AllGatherGemm, Group, Rank, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// const RANKS: u32 = 4;
/// const M: usize = 256;
/// const N: usize = 96;
/// const K: usize = 64;
///
/// fn one_rank(rank: Rank, problem: &Problem) -> Result<()> {
///     // Plan once: memory, signals, the schedule.
///     let mut layer = AllGatherGemm::<bf16>::plan(&rank, problem, PlanOptions::default())?;
///     let stream = Stream::for_ranks(RANKS);
///
///     // This rank's rows of A, its own weight (N×K), its own output (M×N).
///     let shard = vec![bf16::from_f32(1.0 + rank.rank() as f32); M / 4 * K];
///     let weight = vec![bf16::from_f32(0.5); N * K];
///     let mut output = vec![bf16::ZERO; M * N];
///
///     // Enqueue many times, with the shard's current contents.
///     for _step in 0..3 {
///         layer.enqueue(&stream, &shard, &weight, &mut output)?;
///     }
///
///     // Row 200 is one of rank 3's: 64 products of 4.0 and 0.5.
///     assert_eq!(output[200 * N].to_f32(), 64.0 * 4.0 * 0.5);
///     // The gathered A can be read until the next step.
///     let gathered = layer.gathered().expect("a step has completed");
///     assert_eq!(gathered.row(64)[0].to_f32(), 2.0);
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
#[derive(Debug)]
pub struct AllGatherGemm<A, B = A, D = A> {
    gatherer: Gatherer<A>,
    planned: Arc<StepShape>,
    tiles: Vec<TileEvent>,
    types: PhantomData<fn(B) -> D>,
}

/// The gathered A of the latest step.
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
        check_type::<A>("A", problem.elements().a)?;
        check_type::<B>("B", problem.elements().b)?;
        check_type::<D>("D", problem.elements().d)?;
        let options = PlanOptions { operation: Operation::AllGatherGemm, ..options };
        let planned = StepShape::new(Plan::new(problem, options)?, rank.rank());
        let gatherer = Gatherer::join(rank, &planned.plan)?;
        tracing::debug!(rank = rank.rank(), %problem, "planned all-gather + GEMM");
        Ok(AllGatherGemm { gatherer, planned, tiles: Vec::new(), types: PhantomData })
    }

    /// The plan.
    pub fn planned(&self) -> &Plan {
        &self.planned.plan
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
    pub fn enqueue_all<'a>(
        &mut self,
        stream: &Stream,
        shard: impl Into<Shard<'a, A>>,
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let shard = shard.into();
        let shape = self.planned.with_rows(shard.rows)?;
        self.check_shard(&shape.plan, &shard)?;
        let tiling = shape.plan.options().tiling;
        let problem = shape.plan.problem();
        let problems = products::check_products(problem, problem.m(), tiling, products)?;

        let end = self.gatherer.ender();
        let settled = products::settle(
            &problems,
            products,
            |products| self.step(stream, &shape, &shard, &problems, products),
            end,
        );
        settled.inspect_err(|error| self.gatherer.end_with(error))
    }

    /// The slot of this rank's shard in the next step's gathered A: rows packed, K elements each.
    ///
    /// A producer that writes here saves the copy; the step is then enqueued with
    /// [`Shard::in_place`] and the same `rows`. The previous contents of the slot are unspecified.
    pub fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<&mut [A]> {
        let shape = self.planned.with_rows(rows)?;
        self.gatherer.local_shard(&shape)
    }

    /// The gathered A of the latest step; `None` before the first and after one that failed.
    pub fn gathered(&self) -> Option<Gathered<'_, A>> {
        let (elements, m) = self.gatherer.gathered()?;
        Some(Gathered { elements, m, k: self.planned.plan.problem().k() })
    }

    /// A handle that ends the operation from any thread.
    pub fn aborter(&self) -> Aborter {
        self.gatherer.aborter()
    }

    /// Waits until everything this rank began to send has been sent.
    pub fn flush(&self) -> Result<()> {
        self.gatherer.flush()
    }

    /// Takes this rank's record of the steps so far, if the group records.
    ///
    /// Call [`AllGatherGemm::flush`] first, so that the record includes the last transfers.
    pub fn take_timeline(&mut self) -> Timeline {
        Timeline {
            tiles: std::mem::take(&mut self.tiles),
            transfers: self.gatherer.take_transfers(),
        }
    }

    fn check_shard(&self, shape: &Plan, shard: &Shard<'_, A>) -> Result<()> {
        let problem = shape.problem();
        let own = problem.shards().rows(self.gatherer.rank()).len() as u32;
        match shard.at {
            Some(rows) => check_len("the shard", rows.len(), a_lens(problem, own), OWN_ROWS)?,
            None if self.gatherer.is_lent() => {}
            None => {
                let remedy = "write the shard through `local_shard` before each step in place";
                let (got, expected) = ("not taken", "taken for this step");
                return Err(Error::mismatch("the local shard", got, expected, remedy));
            }
        }
        check_scales("the scales of A", shard.scales, scale_count(problem.scaling(), own))
    }

    fn step(
        &mut self,
        stream: &Stream,
        shape: &Arc<StepShape>,
        shard: &Shard<'_, A>,
        problems: &[Problem],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        self.gatherer.begin(shape)?;
        self.gatherer.send(shape, OwnRows { rows: shard.at, scales: shard.scales })?;
        let gatherer = &self.gatherer;
        let tensor_scale = match shape.plan.problem().scaling() {
            Scaling::Tensor => shard.scales.first(),
            Scaling::None | Scaling::Rows => None,
        };
        let row_scales = gatherer.row_scales();
        for step in shape.schedule.lane(Lane::Compute) {
            match step {
                Step::Await { word: Word::Landed { chunk }, .. } => {
                    let mut watch = gatherer.watch();
                    gatherer.await_chunks(shape, std::iter::once(*chunk), &mut watch)?;
                }
                Step::Multiply { rows, pivot, awaits } => {
                    let step = StepInput {
                        plan: &shape.plan,
                        a: Operand::Arriving { rows: gatherer.rows(), row_scales, tensor_scale },
                        rank: gatherer.rank(),
                        pivot: *pivot,
                        epoch: gatherer.epoch(),
                        rows: rows.clone(),
                        record: gatherer.recording(),
                    };
                    let events = products::compute(*stream, step, problems, products, || {
                        let mut watch = gatherer.watch();
                        move |tile, chunks: Range<u32>| {
                            watch.tile = Some(tile);
                            let awaited = chunks.filter(|chunk| awaits.contains(chunk));
                            gatherer.await_chunks(shape, awaited, &mut watch)
                        }
                    })?;
                    self.tiles.extend(events);
                }
                // `begin` and `send` have carried these out.
                Step::Await { .. } | Step::Post { .. } | Step::Move { .. } => {}
                // A reduce-scatter's.
                Step::Reduce { .. } => {}
            }
        }
        self.gatherer.complete(shape);
        Ok(())
    }
}
