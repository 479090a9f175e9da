//! A problem with all choices made: the value that executors carry out.
//!
//! Invariant: a `Plan` is immutable and complete. Two ranks that hold equal plans agree on every
//! chunk, every word and every wait: [`Plan::schedule`] follows from it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chunks::{Chunks, MAX_CHUNKS};
use super::operation::Operation;
use super::problem::Problem;
use super::tiles::{ClusterShape, TileShape, Tiling};
use super::way::{Engine, MAX_PUSHED, Strategy, Way, rows_come_early};
use crate::error::{Error, Result};

/// Bytes that a GPU moves in about the time of a second shot by a kernel: of a fence, a signal and a wait.
const SECOND_SHOT: u64 = 1 << 20;

/// The choices of a plan.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Strategy};
///
/// let problem = Problem::builder(4096, 512, 256).ranks(4).build()?;
/// let options = PlanOptions::new().with_strategy(Strategy::Sequential).with_pieces(2);
/// assert_eq!(Plan::new(&problem, options)?.chunks().len(), 8);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanOptions {
    /// The operation.
    pub operation: Operation,
    /// The order of gathering and multiplying.
    pub strategy: Strategy,
    /// The engine that moves the rows.
    pub engine: Engine,
    /// Chunks of a shard. `None`: up to four, none smaller than the height of a tile; one with NCCL.
    pub pieces: Option<u32>,
    /// How the output is cut and swept.
    pub tiling: Tiling,
}

impl PlanOptions {
    /// On threads, fused: 256×128 tiles, four unit rows swept together.
    pub const fn new() -> Self {
        PlanOptions {
            operation: Operation::AllGatherGemm,
            strategy: Strategy::Fused,
            engine: Engine::Thread,
            pieces: None,
            tiling: Tiling {
                tile: TileShape { m: 256, n: 128 },
                cluster: ClusterShape { m: 1, n: 1 },
                swizzle: 4,
            },
        }
    }

    /// Sets the order of gathering and multiplying.
    #[must_use]
    pub const fn with_strategy(self, strategy: Strategy) -> Self {
        PlanOptions { strategy, ..self }
    }

    /// Sets the engine that moves the rows.
    #[must_use]
    pub const fn with_engine(self, engine: Engine) -> Self {
        PlanOptions { engine, ..self }
    }

    /// Chunks per shard.
    #[must_use]
    pub const fn with_pieces(self, pieces: u32) -> Self {
        PlanOptions { pieces: Some(pieces), ..self }
    }

    /// How the output is cut and swept.
    #[must_use]
    pub const fn with_tiling(self, tiling: Tiling) -> Self {
        PlanOptions { tiling, ..self }
    }
}

impl Default for PlanOptions {
    /// [`PlanOptions::new`].
    fn default() -> Self {
        PlanOptions::new()
    }
}

/// A problem, its chunks, and each rank's schedule and tile order.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(4096, 512, 256).ranks(4).build()?;
/// let plan = Plan::new(&problem, PlanOptions::default())?;
/// assert_eq!(plan.chunks().len(), 16);
/// println!("{plan}");
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "super::serial::ReadPlan")]
pub struct Plan {
    problem: Problem,
    options: PlanOptions,
    chunks: Chunks,
    /// Whether there are several products: a kernel does not send their totals.
    of_several_products: bool,
}

impl Plan {
    /// Makes all choices; an error if they do not fit the problem or each other.
    pub fn new(problem: &Problem, options: PlanOptions) -> Result<Self> {
        Plan::with_spans(problem, options, u32::MAX)
    }

    /// The same with chunks of no more than `most_spans` spans.
    pub(super) fn with_spans(
        problem: &Problem,
        options: PlanOptions,
        most_spans: u32,
    ) -> Result<Self> {
        options.tiling.check()?;
        options.operation.check(options.strategy, options.engine)?;
        problem.check_scatter(options.operation)?;
        problem.check_gated_tiles(options.tiling.tile.n)?;
        problem.check_gate(options.operation)?;
        problem.elements().check_reduced(options.operation)?;
        let pieces = match (options.pieces, options.engine) {
            (Some(pieces), _) => pieces,
            (None, Engine::Nccl) => 1,
            (None, _) => default_pieces(problem.shards().most_rows(), options.tiling),
        };
        let strategy = options.operation.strategy(options.strategy);
        Way { strategy, engine: options.engine, pieces }.check()?;
        let chunks = chunks_of(problem, &options, pieces, most_spans)?;
        Ok(Plan { problem: problem.clone(), options, chunks, of_several_products: false })
    }

    /// The same plan for several products of one A, of which the problem is the first.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn of_several_products(self) -> Self {
        Plan { of_several_products: true, ..self }
    }

    /// The same plan for a step with other rows of each rank, with at most this plan's M in total.
    ///
    /// No rank gets more chunks than the largest number of chunks of a rank in this plan, nor chunks of more spans.
    ///
    /// ```
    /// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
    ///
    /// let problem = Problem::builder(4096, 512, 256).ranks(2).build()?;
    /// let step = Plan::new(&problem, PlanOptions::default())?.for_rows(&[100, 28])?;
    /// assert_eq!(step.problem().m(), 128);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn for_rows(&self, rows: &[u32]) -> Result<Self> {
        let problem = self.problem.with_shards(rows)?;
        let remedy = "plan for the largest M that any step will have";
        let (m, most) = (problem.rows_of_a(), self.problem.rows_of_a());
        Error::check_range("m of this step", m, 1..=most, remedy)?;
        let shards = problem.shards().to_rows();
        let with_rows = shards.iter().filter(|&&rows| rows > 0).count() as u32;
        let per_shard = self.chunks().most_per_rank().min(problem.shards().most_rows());
        // Rows of one rank may now belong to many ranks, each with as many chunks.
        let per_shard = per_shard.min((MAX_CHUNKS / with_rows).max(1));
        let chunks = chunks_of(&problem, &self.options, per_shard, self.chunks.spans())?;
        let options = PlanOptions { pieces: Some(per_shard), ..self.options };
        Ok(Plan { problem, options, chunks, ..*self })
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The options.
    pub fn options(&self) -> PlanOptions {
        self.options
    }

    /// The pieces that travel.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// Strategy, engine and pieces, as they are carried out: without a product the strategy is sequential.
    pub fn way(&self) -> Way {
        let PlanOptions { operation, strategy, engine, .. } = self.options;
        let strategy = operation.strategy(strategy);
        Way { strategy, engine, pieces: self.chunks.most_per_rank() }
    }

    /// The part of one rank, to print and to write.
    pub fn of_rank(&self, rank: u32) -> Result<RankPlan<'_>> {
        self.problem.shards().check_rank(rank)?;
        Ok(RankPlan { plan: self, rank })
    }

    /// The rows of D that `rank` gets: in a reduce-scatter its own, else all.
    pub fn output_rows(&self, rank: u32) -> Range<u32> {
        self.options.operation.output_rows(&self.problem, rank)
    }

    /// The chunks whose signals lie side by side, where `owner` has the rows of some of them.
    pub(crate) fn signalled(&self, owner: u32) -> Range<u32> {
        match self.options.operation.is_all_reduce() {
            true => 0..self.chunks.len(),
            false => self.chunks.of_rank(owner),
        }
    }

    /// Whether the product of a chunk of a rank's own rows adds up.
    pub(crate) fn products_add_up(&self) -> bool {
        let PlanOptions { operation, strategy, engine, .. } = self.options;
        operation.products_add_up(strategy, engine)
    }

    /// Whether a kernel reads all ranks' sums where they lie: nothing but totals is sent.
    pub(crate) fn reads_in_place(&self) -> bool {
        let PlanOptions { operation, engine, .. } = self.options;
        operation.reduces() && matches!(engine, Engine::Kernel { .. })
    }

    /// Whether what `rank` sends of the rows of `owner` is their total.
    pub(crate) fn sends_totals(&self, rank: u32, owner: u32) -> bool {
        self.has_two_shots() && owner == rank && self.problem.ranks() > 1
    }

    /// Whether an all-reduce has two shots: each rank adds up its own rows, and sends their totals to all others. In one
    /// shot, every rank gets the other ranks' sums of all rows, and adds up all rows itself. On GPUs, a fused all-reduce has
    /// two shots. By a kernel it has two if there is one product, a D of 16 bits and at most 11 ranks, and if two shots are
    /// estimated to take less time. The estimate assumes shards of equal size.
    pub fn has_two_shots(&self) -> bool {
        let PlanOptions { operation, strategy, engine, .. } = self.options;
        operation.is_all_reduce()
            && match engine {
                Engine::Kernel { .. } => self.gains_by_two_shots(),
                _ if operation.is_alone() => false,
                Engine::Thread => strategy != Strategy::Sequential,
                _ => self.products_add_up(),
            }
    }

    /// Whether a kernel should add up its rank's own rows alone, and send the totals.
    fn gains_by_two_shots(&self) -> bool {
        // Of sums that are signalled, totals that are sent, and totals that are stored: one for each other rank.
        let runs = 3 * (self.problem.ranks() - 1);
        let is_possible = !self.of_several_products
            && self.problem.elements().d.size() == 2
            && runs <= MAX_PUSHED;
        is_possible && self.problem.m() > self.rows_in_one_shot()
    }

    /// The rows of an all-reduce by a kernel that take about as long in two shots as in one, with 16 bits for each sum.
    pub(crate) fn rows_in_one_shot(&self) -> u32 {
        let (ranks, row) = (u64::from(self.problem.ranks()), 2 * u64::from(self.problem.n()));
        // One shot reads (W − 1) · rows, two shots move 2 · (W − 1) ÷ W · rows.
        let saved = (ranks - 1) * (ranks.max(2) - 2) * row;
        let rows = (SECOND_SHOT * ranks).checked_div(saved);
        rows.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(u32::MAX)
    }

    /// The chunks whose sums `rank` adds up.
    pub(crate) fn added_up(&self, rank: u32) -> Range<u32> {
        match self.options.operation {
            operation if !operation.reduces() => 0..0,
            operation if operation.is_all_reduce() && !self.has_two_shots() => 0..self.chunks.len(),
            _ => self.chunks.of_rank(rank),
        }
    }

    /// The most rows of D that a rank gets.
    pub(crate) fn most_output_rows(&self) -> u32 {
        self.options.operation.most_output_rows(&self.problem)
    }
}

/// One rank's part of a [`Plan`]: to print and to write, where all ranks would be too much.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let plan = Plan::new(&problem, PlanOptions::default())?;
/// println!("{}", plan.of_rank(1)?);
/// assert!(plan.of_rank(2).is_err());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlan<'a> {
    pub(super) plan: &'a Plan,
    pub(super) rank: u32,
}

/// Those of a product that waits for rows are expected early if there are columns enough, and may come in spans.
fn chunks_of(
    problem: &Problem,
    options: &PlanOptions,
    pieces: u32,
    most_spans: u32,
) -> Result<Chunks> {
    let chunks = Chunks::even(problem.shards(), pieces)?;
    let waits =
        options.operation == Operation::AllGatherGemm && options.strategy == Strategy::Fused;
    if !waits {
        return Ok(chunks);
    }
    let way = Way { strategy: options.strategy, engine: options.engine, pieces };
    let chunks = chunks.in_spans(way.spans(problem).min(most_spans))?;
    Ok(if rows_come_early(problem) { chunks.early() } else { chunks })
}

/// Enough pieces that the first tiles need not wait for a whole shard, none smaller than the height of a
/// tile: a piece costs a signal and a transfer, and one that completes no tile gains nothing.
fn default_pieces(most_rows: u32, tiling: Tiling) -> u32 {
    (most_rows / tiling.tile.m.max(64)).clamp(1, 4)
}
