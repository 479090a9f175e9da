//! Steps on threads of this machine, for timing and drawing.
//!
//! Invariant: all results are compared with the reference, and the outcome names wrong ranks.

use std::fs;

use overlap_gemm::exercise::{Exercise, Outcome};
use overlap_gemm::host::{GroupOptions, Link, Stream};
use overlap_gemm::plan::{
    Operation, Plan, PlanOptions, Problem, Reduction, TileShape, Tiling, Timeouts,
};

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::statistics::median;

/// Rows of each rank's output that are compared with the reference.
const COMPARED_ROWS: u32 = 64;

/// The options of a step to draw, by default with up to four chunks a rank: a tile is as high as a chunk where possible, so
/// that it waits for that chunk alone.
pub fn drawn_options(problem: &Problem, operation: Operation, chunks: Option<u32>) -> PlanOptions {
    let most = problem.shards().most_rows();
    let chunks = chunks.unwrap_or(most.min(4));
    let tiling = Tiling::of_tile(most.div_ceil(chunks.max(1)).clamp(16, 256), 256);
    PlanOptions { operation, ..PlanOptions::new().with_pieces(chunks).with_tiling(tiling) }
}

/// The library's options for a problem, with the number of chunks.
pub fn default_options(problem: &Problem) -> Result<PlanOptions, Failure> {
    let plan = Plan::new(problem, PlanOptions::default())?;
    Ok(PlanOptions { pieces: Some(plan.chunks().most_per_rank()), ..plan.options() })
}

/// Steps that can be run, over links of any rate.
pub struct Steps {
    exercise: Exercise,
}

impl Steps {
    /// `count` steps of a problem with these options.
    pub fn new(problem: &Problem, options: PlanOptions, count: usize, seed: u64) -> Steps {
        let exercise = Exercise {
            steps: vec![problem.shards().to_rows(); count],
            fresh_inputs: false,
            workers: Stream::for_ranks(problem.ranks()).workers(),
            compared_rows: COMPARED_ROWS,
            ..Exercise::new(problem, options, seed)
        };
        Steps { exercise }
    }

    /// The same with that many worker threads a rank.
    pub fn with_workers(mut self, workers: u32) -> Steps {
        self.exercise.workers = workers;
        self
    }

    /// The same with rows that lie in their slot before a step begins.
    pub fn in_place(mut self) -> Steps {
        self.exercise.in_place = true;
        self
    }

    /// Runs them and records the last step.
    pub fn record(&self, link: Option<Link>, interrupt: Interrupt) -> Result<Outcome, Failure> {
        let outcome =
            self.run(GroupOptions { link, record: true, ..GroupOptions::default() }, interrupt)?;
        let last = outcome.timeline.tiles.iter().map(|tile| tile.epoch).max().unwrap_or_default();
        Ok(Outcome { timeline: outcome.timeline.of_epoch(last), ..outcome })
    }

    /// Runs them without recording.
    fn time(&self, link: Option<Link>, interrupt: Interrupt) -> Result<Outcome, Failure> {
        self.run(GroupOptions { link, ..GroupOptions::default() }, interrupt)
    }

    fn run(&self, group: GroupOptions, interrupt: Interrupt) -> Result<Outcome, Failure> {
        let exercise = Exercise { group, ..self.exercise.clone() };
        let outcome = exercise.run(&|| interrupt.check().is_err());
        interrupt.check()?;
        Ok(outcome?)
    }

    /// The options in words.
    pub fn describe(&self) -> String {
        let PlanOptions { pieces, tiling, .. } = self.exercise.options;
        let chunks = pieces.unwrap_or(1);
        let (TileShape { m, n }, workers) = (tiling.tile, self.exercise.workers);
        let s = |count| if count == 1 { "" } else { "s" };
        let mut text = format!("{chunks} chunk{} a rank, tiles of {m} × {n}, ", s(chunks));
        if tiling.swizzle > 1 {
            text += &format!("swizzle {}, ", tiling.swizzle);
        }
        text + &format!("{workers} worker{} a rank", s(workers))
    }
}

/// Runs all at once, each over its own link. The time of a step in microseconds, that of the slowest: the median over all steps
/// but the first, which finds cold caches. Or what was wrong with a result.
pub fn time_together(
    all: &[Steps],
    link: Option<Link>,
    interrupt: Interrupt,
) -> Result<Result<f64, String>, Failure> {
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let start = |steps| scope.spawn(move || Steps::time(steps, link, interrupt));
        let threads: Vec<_> = all.iter().map(start).collect();
        let unwind = |panic| std::panic::resume_unwind(panic);
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(unwind)).collect()
    });
    let mut slowest: Vec<f64> = Vec::new();
    for outcome in outcomes {
        let outcome = outcome?;
        if let Some(complaint) = outcome.report.complaint() {
            return Ok(Err(complaint));
        }
        slowest.resize(outcome.step_times.len(), 0.0);
        for (slowest, time) in slowest.iter_mut().zip(outcome.step_times) {
            *slowest = slowest.max(1e6 * time.as_secs_f64());
        }
    }
    Ok(median(slowest.get(1..).unwrap_or_default()).ok_or("it took no steps".into()))
}

/// Refuses a process that a launcher started as one of several: each would take all cores.
pub fn check_place() -> Result<(), Failure> {
    match overlap_gemm::group::Launch::from_env() {
        Ok(place) if place.ranks > 1 => Err(Failure::Usage(format!(
            "--host: all ranks are threads of one process, but this is one of {} that were launched: start one process",
            place.ranks
        ))),
        _ => Ok(()),
    }
}

/// A link of that many MB a second.
pub fn link(megabytes: Option<f64>) -> Result<Option<Link>, Failure> {
    match megabytes {
        Some(rate) if !(rate.is_finite() && rate > 0.0) => {
            let why = format!("--link: {rate} MB a second is not a rate: give a number above zero");
            Err(Failure::Usage(why))
        }
        rate => Ok(rate.map(|rate| Link::of_rate(1e6 * rate))),
    }
}

/// Refuses a link on which one chunk takes longer than the timeout of a rank that waits for it.
pub fn check_link(plan: &Plan, link: Option<Link>) -> Result<(), Failure> {
    let Some(rate) = rate_of(link) else { return Ok(()) };
    let (problem, options) = (plan.problem(), plan.options());
    let limit = Timeouts::default().steady.as_secs_f64();
    let (rows, chunks) = (problem.shards().most_rows(), options.pieces.unwrap_or(1));
    let of_chunk = rows.div_ceil(chunks.max(1));
    let sums = bytes_of(problem, options.operation, of_chunk);
    let totals = if plan.has_two_shots() { bytes_of_totals(problem, of_chunk) } else { 0 };
    let chunk = sums.max(totals);
    let least = chunk as f64 / limit;
    if rate >= least {
        return Ok(());
    }
    let sent = bytes_sent(plan);
    let (rate, least) = (rate / 1e6, least.ceil() / 1e6);
    Err(Failure::Usage(format!(
        "--link: a rank sends {sent} bytes a step of {problem} in {chunks} chunks, and at {rate} MB a second one of them takes \
         longer than the {limit} s that ranks wait for one: give at least {least}, or a smaller problem"
    )))
}

/// The most bytes that a rank sends in a step.
pub fn bytes_sent(plan: &Plan) -> u128 {
    let (problem, operation) = (plan.problem(), plan.options().operation);
    let bytes = |rows| bytes_of(problem, operation, rows);
    let (shards, others) = (problem.shards(), u128::from(problem.ranks().saturating_sub(1)));
    if plan.has_two_shots() {
        // The sums of the others' rows, and the totals of its own to each of them.
        let own = shards.most_rows();
        bytes(problem.m() - own) + bytes_of_totals(problem, own) * others
    } else if operation.is_all_reduce() {
        bytes(problem.m()) * others
    } else if operation.reduces() {
        bytes(problem.m() - shards.to_rows().into_iter().min().unwrap_or(0))
    } else {
        bytes(shards.most_rows()) * others
    }
}

/// The bytes of that many rows of D.
fn bytes_of_totals(problem: &Problem, rows: u32) -> u128 {
    u128::from(rows) * u128::from(problem.n()) * u128::from(problem.elements().d.size())
}

/// The bytes that a rank sends for this number of rows: rows of A, or sums in the type of partials.
fn bytes_of(problem: &Problem, operation: Operation, rows: u32) -> u128 {
    let sum = u128::from(Reduction::default().partials.element().size());
    match operation {
        _ if operation.reduces() => u128::from(rows) * u128::from(problem.n()) * sum,
        _ => problem.row_bytes(&(0..rows)),
    }
}

/// Bytes a second of a link, if it is not as fast as memory.
pub fn rate_of(link: Option<Link>) -> Option<f64> {
    link.map(|link| link.bytes_per_second)
}

/// The number of threads that can run at once.
pub fn cores() -> u32 {
    Stream::for_ranks(1).workers()
}

/// The name of the processor, if the system has it.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The machine and the link in words.
pub fn describe_machine(link: Option<Link>) -> String {
    let link = match rate_of(link) {
        Some(rate) => format!("a link of {:.0} MB/s a rank", rate / 1e6),
        None => "a link as fast as memory".into(),
    };
    format!("threads of this machine, {} cores; {link}", cores())
}
