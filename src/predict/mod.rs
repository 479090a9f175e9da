//! The predicted time of a step, from a plan and a machine's figures, by discrete events.
//!
//! [`estimate()`] predicts the end of a step and its waits; [`timeline()`] predicts the time of every tile, transfer
//! and addition, as the [`Timeline`] that executors record, so that both can be drawn side by side.
//!
//! ```text
//!  Problem ──► Setup ───────► Plan, Schedule ──┬──► transfers   arrival of the rows, or sums
//!  m n k       strategy, kernel                │       │
//!  ranks       engine, pieces                  └──► step        tiles of each worker
//!                                                      │
//!  Machine: link, copies, kernels ─────────────────────┴──► Estimate, Timeline
//! ```
//!
//! Invariant: arithmetic only. No clock, no device, no feature: equal arguments give equal results everywhere. The
//! orders are the plan's own ([`TileOrder`](crate::plan::TileOrder), [`Schedule`](crate::plan::Schedule)); only
//! times are predicted here. `docs/predicting.md` compares them with measurements.
//!
//! The fused step on eight H200, with the whole link and with half of it:
//!
//! ```
//! use overlap_gemm::plan::{Problem, Strategy};
//! use overlap_gemm::predict::{Machine, Setup, estimate};
//!
//! let problem = Problem::builder(4096, 3584, 8192).ranks(8).build()?;
//! let took = |machine: &Machine, setup: Setup| -> overlap_gemm::Result<f64> {
//!     Ok(estimate(machine, &setup.plan(&problem)?, &setup)?.total.as_secs_f64() * 1e6)
//! };
//! let usual = |machine: &Machine, strategy| Setup::usual(machine, &problem, strategy);
//! let (whole, half) = (Machine::h200(), Machine::h200().with_link(190.0));
//! let plain = took(&whole, Setup::gemm(&whole, &problem)?)?;
//! let fused = took(&whole, usual(&whole, Strategy::Fused)?)?;
//! let sequential = took(&whole, usual(&whole, Strategy::Sequential)?)?;
//! assert!(plain < fused && fused < sequential, "{plain} {fused} {sequential}");
//! assert!(took(&half, usual(&half, Strategy::Fused)?)? > fused);
//! # Ok::<(), overlap_gemm::Error>(())
//! ```

mod limits;
mod machine;
mod senders;
mod setup;
mod step;
mod transfers;

use std::time::Duration;

use serde::Serialize;

pub use machine::Machine;
pub use setup::{Setup, ranked, ways_of_sums};

use crate::error::{Error, Result};
use crate::plan::{Engine, Operation, Plan};
use crate::trace::{Timeline, TransferEvent};
use senders::Sums;
use step::{Outcome, Step, duration};
use transfers::Transfers;

/// A step's time and its parts, on the rank that ends last.
///
/// ```
/// use overlap_gemm::plan::{Problem, Strategy};
/// use overlap_gemm::predict::{Machine, Setup, estimate};
///
/// let machine = Machine::h200();
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let setup = Setup::usual(&machine, &problem, Strategy::Sequential)?;
/// let estimate = estimate(&machine, &setup.plan(&problem)?, &setup)?;
/// assert!(estimate.gathered < estimate.total);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Estimate {
    /// From the end of the previous step to the end of this one.
    pub total: Duration,
    /// When the first tile could be computed.
    pub first_tile: Duration,
    /// When the last rows, or sums, arrived.
    pub gathered: Duration,
    /// The mean time that a worker waited for rows after the first tile.
    pub waited: Duration,
    /// The mean time that the link's traffic cost a worker.
    pub slowed: Duration,
    /// From the end of the first worker to that of the last.
    pub tail: Duration,
}

/// How long a step of `plan` takes under `setup`, whose kernel the plan has to be cut for ([`Setup::plan`]).
///
/// Costs some microseconds to some hundred, by the number of tiles whose rows are not there from the beginning; with
/// unequal shards, so much for each rank. What would take more than a few seconds is refused.
///
/// ```
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::predict::{Machine, Setup, estimate};
///
/// let (machine, problem) = (Machine::h200(), Problem::builder(4096, 3584, 8192).build()?);
/// let product = Setup::gemm(&machine, &problem)?;
/// println!("{:?}", estimate(&machine, &product.plan(&problem)?, &product)?.total);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn estimate(machine: &Machine, plan: &Plan, setup: &Setup) -> Result<Estimate> {
    check(machine, plan, setup)?;
    limits::check_estimate(plan, setup)?;
    let (transfers, idle) = settle(machine, plan, setup)?;
    let step = Step { machine, plan, setup, transfers: &transfers, idle };
    let mut slowest = (0, Outcome::default());
    let mut ends = Vec::new();
    for rank in limits::to_compute(plan, transfers.alike()) {
        let outcome = step.run(rank, None)?;
        ends.push(outcome.end);
        if outcome.end > slowest.1.end {
            slowest = (rank, outcome);
        }
    }
    let (rank, mut outcome) = slowest;
    if plan.options().operation.is_all_reduce() {
        // All ranks do the same work in other orders. Who ends a step late receives more of the next one's sums in time, so
        // that a step takes the mean.
        outcome.end = mean(&ends);
    }
    Ok(outcome.estimate(last_arrival(&transfers, plan, rank)))
}

/// When every tile, every transfer and every addition of `ranks` would be in a step of `plan` under `setup`.
///
/// ```
/// use overlap_gemm::plan::{Problem, Strategy};
/// use overlap_gemm::predict::{Machine, Setup, timeline};
///
/// let machine = Machine::h200();
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let setup = Setup::usual(&machine, &problem, Strategy::Fused)?;
/// let timeline = timeline(&machine, &setup.plan(&problem)?, &setup, 0..2)?;
/// println!("{}", timeline.summaries()[0]);
/// let picture = timeline.to_svg("what should happen");
/// # assert!(picture.contains("rank 1"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn timeline(
    machine: &Machine,
    plan: &Plan,
    setup: &Setup,
    ranks: std::ops::Range<u32>,
) -> Result<Timeline> {
    check(machine, plan, setup)?;
    if let Some(last) = ranks.clone().last() {
        plan.problem().shards().check_rank(last)?;
    }
    limits::check_timeline(plan, setup, &ranks)?;
    let (transfers, idle) = settle(machine, plan, setup)?;
    let step = Step { machine, plan, setup, transfers: &transfers, idle };
    let mut timeline = Timeline::default();
    for rank in ranks {
        step.run(rank, Some(&mut timeline))?;
        if setup.operation == Operation::Gemm {
            continue;
        }
        timeline.transfers.extend(transfers.received(rank).into_iter().map(|sent| TransferEvent {
            from: sent.from,
            to: sent.to,
            epoch: 0,
            chunk: sent.chunk,
            begin: duration(sent.begin),
            signalled: duration(sent.signalled),
        }));
    }
    Ok(timeline)
}

/// How often products are computed to know when a reduction's sums leave: each time what is left of an error is some tenth
/// of it.
const TIMES: u32 = 4;

/// All transfers of a step, and the time behind the last product, in which nothing is multiplied. Sums travel behind the
/// products that compute them, which the traffic slows in turn: each is computed until both agree. A gather waits for no
/// product.
fn settle<'a>(machine: &Machine, plan: &'a Plan, setup: &Setup) -> Result<(Transfers<'a>, f64)> {
    let (mut transfers, mut idle) = (Transfers::new(machine, plan), 0.0);
    if !plan.options().operation.reduces() {
        return Ok((transfers, idle));
    }
    let row_bytes = f64::from(plan.problem().n()) * f64::from(setup.kernel.elements.d.size());
    for _ in 0..TIMES {
        let step = Step { machine, plan, setup, transfers: &transfers, idle };
        let ranks = limits::to_compute(plan, transfers.alike());
        let outcomes = ranks.map(|rank| step.run(rank, None)).collect::<Result<Vec<Outcome>>>()?;
        idle = mean(&outcomes.iter().map(|outcome| outcome.idle).collect::<Vec<_>>());
        let complete: Vec<_> = outcomes.into_iter().map(|outcome| outcome.complete).collect();
        transfers = Transfers::of_sums(machine, plan, &Sums { row_bytes, complete: &complete });
    }
    Ok((transfers, idle))
}

/// When the last rows, or sums, arrive on `rank`.
fn last_arrival(transfers: &Transfers<'_>, plan: &Plan, rank: u32) -> f64 {
    let at = match plan.options().operation {
        Operation::Gemm => Vec::new(),
        of if of.reduces() => transfers.sums_at(rank).into_values().collect(),
        _ => transfers.ready(rank),
    };
    at.into_iter().fold(0.0, f64::max)
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

impl Outcome {
    fn estimate(&self, gathered: f64) -> Estimate {
        let mean = |all: f64| duration(all / self.workers.max(1) as f64);
        Estimate {
            total: duration(self.end),
            first_tile: duration(self.first_tile),
            gathered: duration(gathered),
            waited: mean(self.waited),
            slowed: mean(self.slowed),
            tail: duration(self.tail),
        }
    }
}

fn check(machine: &Machine, plan: &Plan, setup: &Setup) -> Result<()> {
    let made = setup.plan(plan.problem())?;
    if made.options() != plan.options() {
        let remedy = "make the plan with Setup::plan";
        let text = |plan: &Plan| format!("{:?}", plan.options());
        return Err(Error::mismatch("the plan's options", text(plan), text(&made), remedy));
    }
    let unknown = match setup.way.engine {
        Engine::Thread => Some(("threads", "the cost model knows GPUs")),
        Engine::Nccl if setup.operation.reduces() => {
            Some(("sums that NCCL adds up", "the cost model knows NCCL's gathers alone"))
        }
        _ => None,
    };
    if let Some((what, why)) = unknown {
        let (what, why) = (format!("predicting {what}"), why.into());
        let remedy = "predict copy engines or a kernel, or NCCL in an all-gather";
        return Err(Error::Unsupported { what, why, remedy });
    }
    let remedy = "cut K into no more slices than the kernel can";
    Error::check_range("the number of splits", setup.splits, 1..=setup.kernel.max_splits, remedy)?;
    machine.check(&setup.kernel)
}

#[cfg(test)]
mod reduction_tests;
#[cfg(test)]
mod tests;
