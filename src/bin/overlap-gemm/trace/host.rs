//! A step on threads.

use std::num::NonZero;

use overlap_gemm::exercise::Exercise;
use overlap_gemm::host::{GroupOptions, Link, Stream};
use overlap_gemm::plan::{ClusterShape, PlanOptions, Problem, TileShape, Tiling};

use super::{Args, Shown};
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Rows of each rank's output that are compared with the reference.
const COMPARED_ROWS: u32 = 64;
/// The last of them is shown.
const STEPS: usize = 3;

pub(super) fn run(args: &Args, problem: Problem, interrupt: Interrupt) -> Result<Shown, Failure> {
    let most = problem.shards().most_rows();
    let chunks = args.chunks.unwrap_or(4.min(most));
    // A tile of a chunk's height waits for that chunk alone.
    let rows = most.div_ceil(chunks.max(1)).clamp(16, 256);
    let tile = TileShape { m: rows, n: 256 };
    let tiling = Tiling { tile, cluster: ClusterShape { m: 1, n: 1 }, swizzle: 1 };
    let options = PlanOptions { chunks_per_shard: Some(chunks), tiling };
    let link = args.link.map(|megabytes| Link::of_rate(1e6 * megabytes));
    let workers = Stream::for_ranks(problem.ranks()).workers();
    let exercise = Exercise {
        group: GroupOptions { link, record: true, ..GroupOptions::default() },
        steps: vec![problem.shards().to_rows(); STEPS],
        fresh_inputs: false,
        workers,
        compared_rows: COMPARED_ROWS,
        ..Exercise::new(&problem, options, args.seed)
    };
    let outcome = exercise.run(&|| interrupt.check().is_err());
    interrupt.check()?;
    let outcome = outcome?;
    if let Some(complaint) = outcome.report.complaint() {
        return Err(Failure::CheckFailed(complaint));
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let last = outcome.timeline.tiles.iter().map(|tile| tile.epoch).max().unwrap_or_default();
    let timeline = outcome.timeline.of_epoch(last);
    Ok(Shown {
        on: format!("threads of this machine, {cores} cores"),
        planned: format!("{chunks} chunks a rank, tiles of {rows} × 256, {workers} workers a rank"),
        problem,
        summaries: timeline.summaries(),
        timeline,
    })
}
