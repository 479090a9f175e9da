//! A step on threads: the last of [`STEPS`].

use overlap_gemm::plan::{Operation, PlanOptions, Problem};

use super::{Args, SEED, Shown};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, check_link, describe_machine, link, usual_chunks, usual_options};

/// The last of them is shown.
const STEPS: usize = 3;

pub(super) fn run(args: &Args, problem: Problem, interrupt: Interrupt) -> Result<Shown, Failure> {
    let chunks = args.chunks.unwrap_or_else(|| usual_chunks(&problem));
    let operation = args.operation.map(Operation::from).unwrap_or_default();
    let options = PlanOptions { operation, ..usual_options(&problem, chunks) };
    let steps = Steps::new(&problem, options, STEPS, SEED);
    let link = link(args.link)?;
    check_link(&problem, options, link)?;
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
