//! `overlap-gemm trace`: one step as a timeline, on GPUs or on threads: as a picture, for trace viewers, and in numbers.
//!
//! What belongs here: the arguments, and what is shown. `gpu` and `host` run the step. Invariant: the step that is shown is
//! one of many in a row, and its result was compared with the reference.

#[cfg(feature = "cuda")]
mod gpu;
mod host;

use std::fmt;
use std::path::PathBuf;

use overlap_gemm::plan::Problem;
use overlap_gemm::trace::{RankSummary, Timeline};
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::{OutputArgs, Target};
use crate::problem_args::ProblemArgs;

/// Record one step, tile by tile and chunk by chunk, on GPUs (under `launch`, torchrun, mpirun or srun) or on threads
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    problem: ProblemArgs,

    /// Chunks a rank [default: as an operation chooses]
    #[arg(long)]
    chunks: Option<u32>,

    /// Run on threads of this machine, not on GPUs
    #[arg(long)]
    host: bool,

    /// What a rank sends in a second, in MB [default: as fast as memory is]
    #[arg(long, value_name = "MB", requires = "host")]
    link: Option<f64>,

    /// Streams that push by copy engines [default: by size]
    #[arg(long, conflicts_with_all = ["host", "blocks"])]
    streams: Option<u32>,

    /// Blocks of a kernel that pushes [default: by size]
    #[arg(long, conflicts_with = "host")]
    blocks: Option<u32>,

    /// The kernel, by name [default: as an operation chooses]
    #[arg(long, value_name = "NAME", conflicts_with = "host")]
    kernel: Option<String>,

    /// All rows first, then the product
    #[arg(long, conflicts_with = "host")]
    sequential: bool,

    /// Draw the step into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the step into this file as trace events, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,

    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

/// The most workers of a rank that are drawn as text.
const MOST_LINES: u32 = 16;

/// What is shown.
#[derive(Serialize)]
struct Shown {
    /// Where it ran.
    on: String,
    problem: Problem,
    /// What was planned, in words.
    planned: String,
    summaries: Vec<RankSummary>,
    timeline: Timeline,
}

/// Runs some steps, and shows one.
pub fn run(args: &Args) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let problem = args.problem.problem()?;
    // Only rank 0 writes.
    let writes = args.host || is_first();
    let output = writes.then(|| args.output.open()).transpose()?;
    let open = |path: &Option<PathBuf>| match path {
        Some(path) if writes => Target::open(path).map(Some),
        _ => Ok(None),
    };
    let (svg, events) = (open(&args.svg)?, open(&args.events)?);
    let shown = match args.host {
        true => Some(host::run(args, problem, interrupt)?),
        false => on_gpus(args, problem, interrupt)?,
    };
    let (Some(shown), Some(output)) = (shown, output) else { return Ok(()) };
    if let Some(svg) = svg {
        let title = format!("{}: one step, on {}", shown.problem, shown.on);
        svg.write(|file| file.write_all(shown.timeline.to_svg(&title).as_bytes()))?;
    }
    if let Some(events) = events {
        events.write(|file| file.write_all(shown.timeline.to_trace_events().as_bytes()))?;
    }
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

/// Whether this process is rank 0, or no rank at all.
fn is_first() -> bool {
    overlap_gemm::group::Launch::from_env().map_or(true, |place| place.rank == 0)
}

#[cfg(feature = "cuda")]
fn on_gpus(args: &Args, problem: Problem, interrupt: Interrupt) -> Result<Option<Shown>, Failure> {
    gpu::run(args, problem, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: &Args, _: Problem, _: Interrupt) -> Result<Option<Shown>, Failure> {
    let reason =
        "it was built without the feature `cuda`: build with --features cuda, or use --host";
    Err(overlap_gemm::Error::KernelsNotBuilt { reason: reason.into() }.into())
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\non {}\n{}\n", self.problem, self.on, self.planned.trim_end())?;
        // A GPU's SMs are too many for lines of text: --svg shows them.
        if self.summaries.iter().all(|rank| rank.workers <= MOST_LINES) {
            writeln!(f, "{}", self.timeline.to_text(72))?;
        }
        self.summaries.iter().try_for_each(|rank| writeln!(f, "{rank}"))
    }
}
