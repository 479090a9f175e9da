//! `overlap-gemm demo`: all-gather + GEMM on several ranks, checked, timed and drawn.
//!
//! Uses the GPU if this binary has kernels and the machine a Hopper GPU, else threads; `--on` overrides
//! that. Only threads overlap here: the GPU gathers, then multiplies. Invariants: no time is shown
//! for a wrong result; every time is marked as measured, set or computed.

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

/// Run all-gather + GEMM on several ranks, check the results, and draw one step
///
/// On threads the demo sets the rate of the link so that the transfer takes as long as the measured computation, and
/// measures how much of it the overlapped step hides.
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

    /// Chunks of each rank's rows, which travel one by one [default: up to 4]
    #[arg(long)]
    chunks: Option<u32>,

    /// Rate of the link on threads: MB that a rank sends in a second [default: set so that the transfer takes as long
    /// as the computation]
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

    /// Seed of the random numbers
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

/// The result of a demo.
#[derive(Serialize)]
struct Shown {
    /// `host` or `gpu`.
    on: &'static str,
    /// The machine, in words.
    device: String,
    problem: Problem,
    /// The rate of the link between ranks, where the demo or `--link` sets it.
    link_bytes_per_second: Option<f64>,
    /// In the order in which they are shown.
    times: Vec<Time>,
    /// The hidden part of the time that could be hidden, 0 to 1, where the step overlaps.
    hidden: Option<f64>,
    /// TFLOP/s of the product alone, where it was timed alone.
    product_tflops: Option<f64>,
    report: Report,
    timeline: Timeline,
}

/// A time of a step.
#[derive(Serialize)]
struct Time {
    name: &'static str,
    ms: f64,
    source: Source,
    /// Its meaning, for the text.
    #[serde(skip)]
    what: &'static str,
}

/// How a time came about.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    Measured,
    /// By the rate of the link, which the demo sets so that the transfer takes as long as the computation.
    SetEqual,
    /// By the rate of the link in `--link`.
    SetByRate,
    Sum,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Measured => "measured",
            Source::SetEqual => "set equal to compute, by the rate of the link",
            Source::SetByRate => "set by --link",
            Source::Sum => "sum of the two",
        })
    }
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
    let title = format!("{}: one step, on {}", shown.problem, shown.device);
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
        write!(f, "{}\non {}", self.problem, self.device)?;
        if let Some(rate) = self.link_bytes_per_second {
            write!(f, "; a link of {:.0} MB/s a rank", rate / 1e6)?;
        }
        writeln!(f, "\n")?;
        for Time { what, ms, source, .. } in &self.times {
            writeln!(f, "  {what:<40} {ms:>10.3} ms  {source}")?;
        }
        let Report { compared, worst_fraction, relative_error, .. } = self.report;
        let percent = 100.0 * worst_fraction;
        match (self.problem.ranks(), self.hidden, self.product_tflops) {
            (1, _, None) => writeln!(f, "\none rank alone: nothing to gather")?,
            (_, hidden, tflops) => {
                if let Some(hidden) = hidden {
                    writeln!(f, "\n{:.0} % of what could hide was hidden", 100.0 * hidden)?;
                }
                if let Some(tflops) = tflops {
                    writeln!(
                        f,
                        "\nthe product runs at {tflops:.0} TFLOP/s, after the gather; nothing overlaps here"
                    )?;
                }
            }
        }
        writeln!(
            f,
            "checked: {compared} results against f64, all right \
             (worst error {percent:.0} % of its bound, relative error {relative_error:.1e})\n"
        )?;
        writeln!(f, "one step:\n{}", self.timeline.to_text(72))?;
        self.timeline.summaries().iter().try_for_each(|rank| writeln!(f, "{rank}"))
    }
}
