//! The demo on threads.
//!
//! A copy in memory is too fast to show an overlap, so the demo slows it: it times the step with an unlimited
//! link, then sets the rate of the link so that the transfer takes as long as that step. Invariant: both are the
//! same operation on the same numbers; only the link differs.

use std::time::Duration;

use overlap_gemm::host::Link;
use overlap_gemm::plan::Problem;

use super::{Args, Shown, Source, Time};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, describe_machine, link, usual_options};

/// Steps before the timed ones.
const WARM_UP: usize = 1;

pub(super) fn run(args: &Args, interrupt: Interrupt) -> Result<Shown, Failure> {
    let wanted = link(args.link)?;
    let (m, n, k) = (args.m.unwrap_or(1024), args.n.unwrap_or(512), args.k.unwrap_or(1024));
    let problem = Problem::builder(m, n, k).ranks(args.ranks).build()?;
    let count = WARM_UP + args.steps as usize;
    let options = usual_options(&problem, args.chunks(&problem));
    let steps = Steps::new(&problem, options, count, args.seed);
    let timed = |link: Option<Link>| steps.record(link, interrupt);

    let sent = problem.row_bytes(&problem.shards().rows(0)) * u128::from(problem.ranks() - 1);
    let mut report = timed(None)?;
    let compute = median(&report.step_times);
    // One rank sends nothing; any rate is right.
    let as_long_as_computing = || Link::of_rate((sent as f64 / compute.as_secs_f64()).max(1.0));
    let set = if wanted.is_some() { Source::SetByRate } else { Source::SetEqual };
    let link = wanted.unwrap_or_else(as_long_as_computing);
    let slowed = timed(Some(link))?;
    let rate = link.bytes_per_second;
    let step = median(&slowed.step_times);
    let transfer = Duration::try_from_secs_f64(sent as f64 / rate).unwrap_or(Duration::MAX);
    report.report.merge(&slowed.report);

    let sum = compute + transfer;
    let ms = |time: Duration| 1e3 * time.as_secs_f64();
    let hidden = sum.saturating_sub(step).as_secs_f64() / transfer.min(compute).as_secs_f64();
    let time = |name, what, time, source| Time { name, ms: ms(time), source, what };
    Ok(Shown {
        on: "host",
        device: describe_machine(Some(link)),
        link_bytes_per_second: Some(rate),
        times: vec![
            time("compute", "compute (link unlimited)", compute, Source::Measured),
            time("transfer", "transfer (rows of a rank over the link)", transfer, set),
            time("sequential", "one after the other", sum, Source::Sum),
            time("overlapped", "overlapped", step, Source::Measured),
        ],
        hidden: (problem.ranks() > 1).then(|| hidden.clamp(0.0, 1.0)),
        product_tflops: None,
        problem,
        report: report.report,
        timeline: slowed.timeline,
    })
}

fn median(times: &[Duration]) -> Duration {
    let mut timed: Vec<_> = times.iter().skip(WARM_UP).copied().collect();
    timed.sort();
    timed.get(timed.len() / 2).copied().unwrap_or_default()
}
