//! `overlap-gemm demo`: all-gather + GEMM on several ranks, checked, timed and drawn.
//!
//! Picks the GPU if this binary has kernels and a Hopper GPU is there, else threads; `--on` decides
//! otherwise. Only threads overlap here: the GPU gathers, then multiplies. Invariant: no time is shown
//! for a result that is wrong.

#[cfg(feature = "cuda")]
mod gpu;
mod host;

use std::fmt;

use overlap_gemm::plan::Problem;
use overlap_gemm::reference::Report;
use overlap_gemm::trace::Timeline;
use serde::Serialize;

use crate::drawing::DrawingArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::usual_chunks;
use crate::output::{OutputArgs, check_apart};

/// Run all-gather + GEMM on several ranks, check the result, and show what happened when
#[derive(clap::Args)]
pub struct Args {
    /// Rows of A, over all ranks [default: 1024 on threads, 4096 on a GPU]
    #[arg(long)]
    m: Option<u64>,

    /// Columns of each rank's B and D [default: 512 on threads, 3584 on a GPU]
    #[arg(long)]
    n: Option<u64>,

    /// Columns of A [default: 1024 on threads, 8192 on a GPU]
    #[arg(long)]
    k: Option<u64>,

    /// Number of ranks
    #[arg(long, default_value_t = 4)]
    ranks: u64,

    /// Chunks a rank, the pieces of A that travel one by one [default: up to 4]
    #[arg(long)]
    chunks: Option<u32>,

    /// What a rank sends in a second, in MB [default: on threads, such that sending takes about as
    /// long as computing; a GPU has its own link]
    #[arg(long, value_name = "MB", allow_negative_numbers = true)]
    link: Option<f64>,

    /// Steps to time
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,

    /// Where to run
    #[arg(long, value_enum, default_value_t = On::Auto)]
    on: On,

    #[command(flatten)]
    drawing: DrawingArgs,

    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    /// The chunks that were asked for, else four, or as many as the largest shard has rows.
    fn chunks(&self, problem: &Problem) -> u32 {
        self.chunks.unwrap_or_else(|| usual_chunks(problem))
    }
}

/// Where to run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum On {
    /// A Hopper GPU if there is one and this binary has kernels, else threads
    Auto,
    /// Threads of this machine: shows the overlap
    Host,
    /// A Hopper GPU, which gathers, then multiplies; `trace` shows the fused step
    Gpu,
}

/// What is shown.
#[derive(Serialize)]
struct Shown {
    /// Where it ran.
    on: String,
    /// What ran.
    problem: String,
    /// Name and milliseconds, in the order in which they are shown.
    times: Vec<(&'static str, f64)>,
    /// What the times mean, in a sentence.
    verdict: String,
    report: Report,
    timeline: Timeline,
}

/// Runs the demo and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    check_apart(args.drawing.named().into_iter().chain([args.output.named()]))?;
    let output = args.output.open()?;
    let drawing = args.drawing.open()?;
    let interrupt = Interrupt::install()?;
    let shown = match args.on {
        On::Host => host::run(args, interrupt)?,
        On::Gpu => on_gpu(args, interrupt)?,
        On::Auto if gpu_is_ready() => on_gpu(args, interrupt)?,
        On::Auto => host::run(args, interrupt)?,
    };
    interrupt.check()?;
    if let Some(complaint) = shown.report.complaint() {
        return Err(Failure::CheckFailed(complaint));
    }
    let title = format!("{}: one step, on {}", shown.problem, shown.on);
    drawing.write(&title, &shown.timeline)?;
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

#[cfg(feature = "cuda")]
fn gpu_is_ready() -> bool {
    overlap_gemm::cuda::kernels_built().is_ok() && overlap_gemm::cuda::Device::open(0).is_ok()
}

#[cfg(not(feature = "cuda"))]
fn gpu_is_ready() -> bool {
    false
}

#[cfg(feature = "cuda")]
fn on_gpu(args: &Args, interrupt: Interrupt) -> Result<Shown, Failure> {
    gpu::run(args, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &Args, _: Interrupt) -> Result<Shown, Failure> {
    let reason = "it was built without the feature `cuda`: build with --features cuda, \
                  or use --on host";
    Err(overlap_gemm::Error::KernelsNotBuilt { reason: reason.into() }.into())
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\non {}\n", self.problem, self.on)?;
        for (name, ms) in &self.times {
            writeln!(f, "  {name:<36} {ms:>10.3} ms")?;
        }
        let Report { compared, worst_fraction, relative_error, .. } = self.report;
        let percent = 100.0 * worst_fraction;
        writeln!(f, "\n{}", self.verdict)?;
        writeln!(
            f,
            "checked: {compared} results against f64, all right \
             (worst error {percent:.0} % of its bound, relative error {relative_error:.1e})\n"
        )?;
        writeln!(f, "one step:\n{}", self.timeline.to_text(72))?;
        self.timeline.summaries().iter().try_for_each(|rank| writeln!(f, "{rank}"))
    }
}
