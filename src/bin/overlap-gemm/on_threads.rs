//! Steps on threads of this machine, recorded: for whoever times or draws one.
//!
//! Invariant: a tile is as high as a chunk where it can be, so that it waits for that chunk alone; results were compared
//! with the reference when steps are handed out, and who was wrong is in the outcome.

use std::num::NonZero;

use overlap_gemm::exercise::{Exercise, Outcome};
use overlap_gemm::host::{GroupOptions, Link, Stream};
use overlap_gemm::plan::{ClusterShape, PlanOptions, Problem, TileShape, Tiling};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Rows of each rank's output that are compared with the reference.
const COMPARED_ROWS: u32 = 64;

/// Chunks a rank where nobody asks for another number: four, or as many as the largest shard has rows.
pub fn usual_chunks(problem: &Problem) -> u32 {
    4.min(problem.shards().most_rows())
}

/// Steps that can be run, over links of any rate.
pub struct Steps {
    exercise: Exercise,
    tile: TileShape,
    chunks: u32,
}

impl Steps {
    /// So many steps of a problem, with so many chunks a rank.
    pub fn new(problem: &Problem, chunks: u32, count: usize, seed: u64) -> Steps {
        let rows = problem.shards().most_rows().div_ceil(chunks.max(1)).clamp(16, 256);
        let tile = TileShape { m: rows, n: 256 };
        let tiling = Tiling { tile, cluster: ClusterShape { m: 1, n: 1 }, swizzle: 1 };
        let options = PlanOptions { chunks_per_shard: Some(chunks), tiling };
        let exercise = Exercise {
            steps: vec![problem.shards().to_rows(); count],
            fresh_inputs: false,
            workers: Stream::for_ranks(problem.ranks()).workers(),
            compared_rows: COMPARED_ROWS,
            ..Exercise::new(problem, options, seed)
        };
        Steps { exercise, tile, chunks }
    }

    /// Runs them; of the timeline only the last step is kept.
    pub fn run(&self, link: Option<Link>, interrupt: Interrupt) -> Result<Outcome, Failure> {
        let group = GroupOptions { link, record: true, ..GroupOptions::default() };
        let exercise = Exercise { group, ..self.exercise.clone() };
        let outcome = exercise.run(&|| interrupt.check().is_err());
        interrupt.check()?;
        let outcome = outcome?;
        let last = outcome.timeline.tiles.iter().map(|tile| tile.epoch).max().unwrap_or_default();
        Ok(Outcome { timeline: outcome.timeline.of_epoch(last), ..outcome })
    }

    /// How they are cut, in words.
    pub fn describe(&self) -> String {
        let (TileShape { m, n }, workers) = (self.tile, self.exercise.workers);
        format!("{} chunks a rank, tiles of {m} × {n}, {workers} workers a rank", self.chunks)
    }
}

/// Where they run, in words.
pub fn describe_machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    format!("threads of this machine, {cores} cores")
}
