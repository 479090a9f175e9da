//! A problem with everything decided: the value that executors carry out.
//!
//! Invariant: a `Plan` is immutable and complete. Two ranks that hold equal plans agree on every
//! chunk, every transfer and every wait.

use super::chunks::{Chunks, MAX_CHUNKS};
use super::problem::Problem;
use super::tiles::{ClusterShape, TileOrder, TileShape, Tiling};
use super::transfers::Transfers;
use crate::error::{Error, Result};

/// What may be chosen when a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Chunks a shard. `None`: up to four, none smaller than a tile is high.
    pub chunks_per_shard: Option<u32>,
    /// How the output is cut and swept.
    pub tiling: Tiling,
}

impl Default for PlanOptions {
    /// 256×128 tiles, four unit rows swept together: good on host threads, sane anywhere.
    fn default() -> Self {
        let tiling = Tiling {
            tile: TileShape { m: 256, n: 128 },
            cluster: ClusterShape { m: 1, n: 1 },
            swizzle: 4,
        };
        PlanOptions { chunks_per_shard: None, tiling }
    }
}

/// A problem, its chunks, its transfers and each rank's tile order.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    problem: Problem,
    options: PlanOptions,
    transfers: Transfers,
}

impl Plan {
    /// Decides.
    pub fn new(problem: &Problem, options: PlanOptions) -> Result<Self> {
        options.tiling.check()?;
        let chunks = match options.chunks_per_shard {
            Some(count) => Chunks::even(problem.shards(), count)?,
            None => Chunks::even(
                problem.shards(),
                default_chunks(problem.shards().most_rows(), options.tiling),
            )?,
        };
        let transfers = Transfers::new(&chunks);
        Ok(Plan { problem: problem.clone(), options, transfers })
    }

    /// The same plan for a step with other rows a rank, no more in all than this one's M.
    ///
    /// A rank keeps at most as many chunks as the most that a rank has here.
    pub fn for_rows(&self, rows: &[u32]) -> Result<Self> {
        let problem = self.problem.with_shards(rows)?;
        if problem.m() > self.problem.m() {
            let remedy = "plan for the largest M that any step will have";
            let (m, most) = (problem.m().into(), self.problem.m().into());
            return Err(Error::out_of_range("m of this step", m, 1, most, remedy));
        }
        let shards = problem.shards().to_rows();
        let with_rows = shards.iter().filter(|&&rows| rows > 0).count() as u32;
        let per_shard = self.chunks().most_per_rank().min(problem.shards().most_rows());
        // Rows that were one rank's may now be many ranks', each with as many chunks.
        let per_shard = per_shard.min((MAX_CHUNKS / with_rows).max(1));
        let transfers = Transfers::new(&Chunks::even(problem.shards(), per_shard)?);
        let options = PlanOptions { chunks_per_shard: Some(per_shard), ..self.options };
        Ok(Plan { problem, options, transfers })
    }

    /// What is computed.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What was chosen.
    pub fn options(&self) -> PlanOptions {
        self.options
    }

    /// The pieces that travel.
    pub fn chunks(&self) -> &Chunks {
        self.transfers.chunks()
    }

    /// Who sends what to whom, in which order.
    pub fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// What one rank needs to know of it.
    pub fn of_rank(&self, rank: u32) -> Result<RankPlan<'_>> {
        self.problem.shards().check_rank(rank)?;
        Ok(RankPlan { plan: self, rank })
    }

    /// The order in which `rank` computes an output of the problem's N columns.
    pub fn tile_order(&self, rank: u32) -> Result<TileOrder> {
        TileOrder::new(self.chunks(), self.problem.n(), self.options.tiling, rank)
    }
}

/// A [`Plan`] as one rank sees it: to print and to write, where all ranks would be too much.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(4096, 512, 256).ranks(4).build()?;
/// let plan = Plan::new(&problem, PlanOptions::default())?;
/// println!("{}", plan.of_rank(2)?);
/// assert!(plan.of_rank(4).is_err());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlan<'a> {
    plan: &'a Plan,
    rank: u32,
}

impl<'a> RankPlan<'a> {
    /// The plan of all ranks.
    pub fn plan(self) -> &'a Plan {
        self.plan
    }

    /// Which rank.
    pub fn rank(self) -> u32 {
        self.rank
    }
}

/// Enough pieces that the first tiles need not wait for a whole shard, none smaller than a tile is
/// high: a piece costs a signal and a transfer, and one that completes no tile buys nothing.
fn default_chunks(most_rows: u32, tiling: Tiling) -> u32 {
    (most_rows / tiling.tile.m.max(64)).clamp(1, 4)
}
