//! `overlap-gemm demo`: all-gather + GEMM, or a reduction, on threads, checked, timed and drawn.
//!
//! A copy in memory is too fast to show an overlap, so the demo slows it: it times the step with an unlimited link, then
//! sets the rate of the link so that the transfer takes as long as that step. Invariants: both are the same operation on the
//! same numbers; no time is shown for a wrong result; every time is marked as measured, set or computed.

use std::fmt;
use std::time::Duration;

use overlap_gemm::host::Link;
use overlap_gemm::plan::{Operation, Plan, Problem};
use overlap_gemm::reference::Report;
use overlap_gemm::trace::Timeline;
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, bytes_sent, describe_machine, drawn_options};
use crate::output::DrawnArgs;
use crate::problem_args::{What, with_product};
use crate::statistics::median;

/// Run all-gather + GEMM, or a reduction, on threads, check the results, and draw one step
///
/// The demo sets the rate of the link between ranks so that the transfer takes as long as the measured computation, and
/// measures how much of it the overlapped step hides. On GPUs, trace shows a step.
#[derive(clap::Args)]
pub struct Args {
    /// Rows of A, over all ranks
    #[arg(long, default_value_t = 1024)]
    m: u64,

    /// Columns of each rank's B and D
    #[arg(long, default_value_t = 512)]
    n: u64,

    /// Columns of A; of each rank's, where sums travel
    #[arg(long, default_value_t = 1024)]
    k: u64,

    /// Number of ranks
    #[arg(long, default_value_t = 4)]
    ranks: u64,

    /// Operation
    #[arg(long, value_enum, value_parser = with_product(), default_value_t = What::AllGatherGemm)]
    operation: What,

    /// Chunks of each rank's rows, which travel one by one [default: up to 4]
    #[arg(long)]
    chunks: Option<u32>,

    /// Steps to time
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,

    #[command(flatten)]
    output: DrawnArgs,
}

/// Steps before the timed ones.
const WARM_UP: usize = 1;

/// The result of a demo.
#[derive(Serialize)]
struct Shown {
    /// The machine, in words.
    device: String,
    problem: Problem,
    operation: Operation,
    /// The rate of the link between ranks, which the demo sets.
    link_bytes_per_second: f64,
    /// Measured, over a link without limit.
    compute_ms: f64,
    /// Set equal to the computation, by the rate of the link.
    transfer_ms: f64,
    /// Measured, over this link.
    overlapped_ms: f64,
    /// The hidden part of the time that could be hidden, 0 to 1; nothing for one rank.
    hidden: Option<f64>,
    report: Report,
    timeline: Timeline,
}

/// Runs the demo and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (output, picture) = args.output.open()?;
    let interrupt = Interrupt::install()?;
    let shown = args.measure(interrupt)?;
    interrupt.check()?;
    if let Some(complaint) = shown.report.complaint() {
        return Err(Failure::CheckFailed(complaint));
    }
    let title = format!("{}: one step, on {}", shown.problem, shown.device);
    picture.write(|| shown.timeline.to_svg(&title))?;
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

impl Args {
    fn measure(&self, interrupt: Interrupt) -> Result<Shown, Failure> {
        let problem = Problem::builder(self.m, self.n, self.k).ranks(self.ranks).build()?;
        let operation = Operation::from(self.operation);
        let options = drawn_options(&problem, operation, self.chunks);
        let steps = Steps::new(&problem, options, WARM_UP + self.steps as usize, 1);

        let unlimited = steps.record(None, interrupt)?;
        let compute = median_of(&unlimited.step_times);
        let sent = bytes_sent(&Plan::new(&problem, options)?);
        // One rank sends nothing; any rate is right.
        let rate = (sent as f64 / compute.as_secs_f64()).max(1.0);
        let slowed = steps.record(Some(Link::of_rate(rate)), interrupt)?;
        let step = median_of(&slowed.step_times);
        let transfer = Duration::try_from_secs_f64(sent as f64 / rate).unwrap_or(Duration::MAX);
        let mut report = unlimited.report;
        report.merge(&slowed.report);

        let saved = (compute + transfer).saturating_sub(step).as_secs_f64();
        let hidden = saved / transfer.min(compute).as_secs_f64();
        let ms = |time: Duration| 1e3 * time.as_secs_f64();
        Ok(Shown {
            device: describe_machine(Some(Link::of_rate(rate))),
            link_bytes_per_second: rate,
            compute_ms: ms(compute),
            transfer_ms: ms(transfer),
            overlapped_ms: ms(step),
            hidden: (problem.ranks() > 1).then(|| hidden.clamp(0.0, 1.0)),
            problem,
            operation,
            report,
            timeline: slowed.timeline,
        })
    }
}

/// Of the steps behind the first ones.
fn median_of(times: &[Duration]) -> Duration {
    let timed: Vec<f64> = times.iter().skip(WARM_UP).map(Duration::as_secs_f64).collect();
    Duration::from_secs_f64(median(&timed).unwrap_or_default())
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operation != Operation::default() {
            writeln!(f, "{}", self.operation)?;
        }
        writeln!(f, "{}\non {}\n", self.problem, self.device)?;
        let travels = if self.operation.reduces() { "sums" } else { "rows" };
        let transfer = format!("transfer ({travels} of a rank over the link)");
        for (what, ms, source) in [
            ("compute (link unlimited)", self.compute_ms, "measured"),
            (&transfer, self.transfer_ms, "set equal to compute, by the rate of the link"),
            ("one after the other", self.compute_ms + self.transfer_ms, "sum of the two"),
            ("overlapped", self.overlapped_ms, "measured"),
        ] {
            writeln!(f, "  {what:<40} {ms:>10.3} ms  {source}")?;
        }
        match self.hidden {
            Some(hidden) => writeln!(
                f,
                "\n{:.0} % of the transfer time was hidden (of the part that can be hidden)",
                100.0 * hidden
            )?,
            None => writeln!(f, "\none rank alone: nothing to send")?,
        }
        let Report { compared, worst_fraction, relative_error, .. } = self.report;
        let percent = 100.0 * worst_fraction;
        writeln!(
            f,
            "checked: {compared} results against f64, all right \
             (worst error {percent:.0} % of its bound, relative error {relative_error:.1e})\n"
        )?;
        writeln!(f, "one step:\n{}", self.timeline.to_text(72))?;
        self.timeline.summaries().iter().try_for_each(|rank| writeln!(f, "{rank}"))
    }
}
