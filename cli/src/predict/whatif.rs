//! Numbers of ranks side by side: every strategy's time, and the exposed part of the gather.
//!
//! Invariant: compared steps have the same problem and the same machine; a ratio is to the plain product, a lower bound of
//! every step with a gather.

use std::fmt;
use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::plan::{Engine, Problem, Strategy};
use overlap_gemm::predict::{Estimate, Machine, Setup, estimate};
use overlap_gemm::tune::{Anything, Asked, Tuning};
use serde::Serialize;

/// Everything that was asked.
#[derive(Serialize)]
pub struct Shown {
    machine: Machine,
    cases: Vec<Case>,
}

/// One number of ranks.
#[derive(Serialize)]
struct Case {
    problem: String,
    ranks: u32,
    m: u32,
    n: u32,
    k: u32,
    /// Bytes that each rank receives.
    received_bytes: u64,
    predictions: Vec<Prediction>,
}

/// One strategy, or what the library would choose of all.
#[derive(Serialize)]
struct Prediction {
    /// It is what `auto` takes where no table speaks of the problem.
    auto: bool,
    strategy: String,
    engine: Engine,
    pieces: u32,
    kernel: String,
    swizzle: u32,
    splits: u32,
    total_us: f64,
    over_plain: f64,
    /// What of the gather shows: the time over that of the plain product.
    exposed_us: f64,
    first_tile_us: f64,
    gathered_us: f64,
    waited_us: f64,
    slowed_us: f64,
    tail_us: f64,
}

/// Predicts every strategy for every problem, each as the rules plan it; `fix` changes that. `with_auto` adds what the library
/// would choose of all.
pub fn predict(
    machine: Machine,
    problems: &[Problem],
    fix: impl Fn(Setup, &Problem) -> Setup,
    with_auto: bool,
) -> Result<Shown> {
    let case = |problem: &Problem| -> Result<Case> {
        let mut predictions: Vec<Prediction> = Vec::new();
        let mut add = |setup: &Setup, auto: bool| -> Result<()> {
            let estimate = estimate(&machine, &setup.plan(problem)?, setup)?;
            let plain = predictions.first().map_or(us(estimate.total), |plain| plain.total_us);
            predictions.push(Prediction { auto, ..Prediction::new(setup, &estimate, plain) });
            Ok(())
        };
        add(&fix(Setup::gemm(&machine, problem)?, problem), false)?;
        for strategy in Strategy::ALL {
            add(&fix(Setup::usual(&machine, problem, strategy)?, problem), false)?;
        }
        let sequential = Setup::usual(&machine, problem, Strategy::Sequential)?;
        add(&sequential.with_engine(Engine::Nccl, problem), false)?;
        if let Some(setup) = with_auto.then(|| auto(&machine, problem)).flatten() {
            add(&setup, true)?;
        }
        let received = problem.row_bytes(&(0..problem.m() - problem.shards().rows(0).end));
        Ok(Case {
            problem: problem.to_string(),
            ranks: problem.ranks(),
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            received_bytes: u64::try_from(received).unwrap_or(u64::MAX),
            predictions,
        })
    };
    Ok(Shown { machine, cases: problems.iter().map(case).collect::<Result<_>>()? })
}

/// What the library chooses by its model alone, which knows the SMs and takes every link for an H200's. One rank has no choice.
fn auto(machine: &Machine, problem: &Problem) -> Option<Setup> {
    let asked = Asked { gpu: "NVIDIA H200", sms: machine.sms, problem };
    let several = problem.ranks() > 1;
    several.then(|| Tuning::none().look_up(&asked, &Anything)).flatten()?.setup()
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Prediction {
    fn new(setup: &Setup, estimate: &Estimate, plain: f64) -> Self {
        let total_us = us(estimate.total);
        Prediction {
            auto: false,
            strategy: super::name(setup),
            engine: setup.way.engine,
            pieces: setup.way.pieces,
            kernel: setup.kernel.name.clone(),
            swizzle: setup.swizzle,
            splits: setup.splits,
            total_us,
            over_plain: total_us / plain,
            exposed_us: total_us - plain,
            first_tile_us: us(estimate.first_tile),
            gathered_us: us(estimate.gathered),
            waited_us: us(estimate.waited),
            slowed_us: us(estimate.slowed),
            tail_us: us(estimate.tail),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { sms, link_gbps, peer_gbps, .. } = self.machine;
        write!(f, "predicted for GPUs of {sms} SMs with {link_gbps} GB/s in each direction")?;
        if peer_gbps < link_gbps {
            write!(f, ", {peer_gbps} GB/s to each other one")?;
        }
        writeln!(f, "; µs a step in a steady loop\n")?;
        for case in &self.cases {
            let megabytes = case.received_bytes as f64 / 1e6;
            writeln!(f, "{}: {megabytes:.1} MB to each", case.problem)?;
            let titles = ["µs", "÷ plain", "exposed", "all rows", "waited", "slowed", "tail"];
            write!(f, "  {:<18}", "")?;
            for title in titles {
                write!(f, " {title:>10}")?;
            }
            writeln!(f, "  kernel, moved by")?;
            for it in &case.predictions {
                let name = match it.engine {
                    _ if it.auto => format!("auto ({})", it.strategy),
                    Engine::Nccl => format!("{} (NCCL)", it.strategy),
                    _ => it.strategy.clone(),
                };
                write!(f, "  {name:<18} {:>10.1} {:>10.3}", it.total_us, it.over_plain)?;
                for time in [it.exposed_us, it.gathered_us, it.waited_us, it.slowed_us, it.tail_us]
                {
                    write!(f, " {time:>10.1}")?;
                }
                write!(f, "  {}", it.kernel)?;
                match &*it.strategy {
                    "plain" => writeln!(f)?,
                    _ => {
                        let s = if it.pieces == 1 { "" } else { "s" };
                        writeln!(f, ", {} in {} piece{s}", it.engine, it.pieces)?;
                    }
                }
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "exposed: time minus that of the plain product; all rows: from the step's start to the last rows; waited: \
             mean time of a worker\nwaiting for rows after its first tile; slowed: its mean loss to the link's traffic; \
             tail: from the first worker's end to the last's"
        )?;
        if self.cases.iter().flat_map(|case| &case.predictions).any(|it| it.auto) {
            writeln!(
                f,
                "auto: the library's choice by these predictions, for a problem without a table entry nearby"
            )?;
        }
        Ok(())
    }
}
