//! `overlap-gemm trace`: one step as a timeline, on GPUs or on threads: as a picture and in numbers.
//!
//! What belongs here: the arguments, the output, and a step on threads; `gpu` runs one on GPUs. Invariant: the shown step is
//! one of many in a row, and its result was compared with the reference.

#[cfg(feature = "cuda")]
mod gpu;

use std::fmt;

use overlap_gemm::plan::{Operation, Plan, Problem};
use overlap_gemm::trace::{RankSummary, Timeline};
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, check_link, describe_machine, drawn_options, link};
use crate::output::DrawnArgs;
use crate::problem_args::{ProblemArgs, What, with_product};

/// Record one step, tile by tile and chunk by chunk, on GPUs (under `launch`, torchrun, mpirun or srun) or on threads
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    problem: ProblemArgs,

    /// Operation [default: all-gather-gemm]
    #[arg(long, value_enum, value_parser = with_product())]
    operation: Option<What>,

    /// Chunks of each rank's rows [default: the operation's choice]
    #[arg(long)]
    chunks: Option<u32>,

    /// Run on threads of this machine, not on GPUs
    #[arg(long)]
    host: bool,

    /// Rate of the link on threads: MB that a rank sends in a second [default: unlimited]
    #[arg(long, value_name = "MB", requires = "host", allow_negative_numbers = true)]
    link: Option<f64>,

    /// Let transfers and products follow each other
    #[arg(long, conflicts_with = "host")]
    sequential: bool,

    #[command(flatten)]
    output: DrawnArgs,
}

/// The seed of the random numbers.
const SEED: u64 = 1;

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
    let shown = match args.host {
        true => Some(on_threads(args, problem, interrupt)?),
        false => on_gpus(args, problem, interrupt).map_err(Failure::or_host)?,
    };
    let (Some(shown), Some((output, picture))) = (shown, output) else { return Ok(()) };
    let title = format!("{}: one step, on {}", shown.problem, shown.on);
    picture.write(|| shown.timeline.to_svg(&title))?;
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

/// Whether this process is rank 0, or no rank at all.
fn is_first() -> bool {
    overlap_gemm::group::Launch::from_env().map_or(true, |place| place.rank == 0)
}

/// The last of some steps on threads.
fn on_threads(args: &Args, problem: Problem, interrupt: Interrupt) -> Result<Shown, Failure> {
    const STEPS: usize = 3;
    let operation = args.operation.map(Operation::from).unwrap_or_default();
    let options = drawn_options(&problem, operation, args.chunks);
    let steps = Steps::new(&problem, options, STEPS, SEED);
    let link = link(args.link)?;
    check_link(&Plan::new(&problem, options)?, link)?;
    let outcome = steps.record(link, interrupt)?;
    if let Some(complaint) = outcome.report.complaint() {
        return Err(Failure::CheckFailed(complaint));
    }
    Ok(Shown {
        on: describe_machine(link),
        planned: steps.describe(),
        problem,
        summaries: outcome.timeline.summaries(),
        timeline: outcome.timeline,
    })
}

#[cfg(feature = "cuda")]
fn on_gpus(args: &Args, problem: Problem, interrupt: Interrupt) -> Result<Option<Shown>, Failure> {
    gpu::run(args, problem, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn on_gpus(_: &Args, _: Problem, _: Interrupt) -> Result<Option<Shown>, Failure> {
    Err(Failure::without_cuda())
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
