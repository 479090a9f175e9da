//! Numbers of ranks one below the other: every strategy's time, and that of the plain GEMM.
//!
//! Invariant: all times are of the same machine. The plain GEMM is the first prediction of a case and a lower bound of the
//! others, because they also gather.

use std::fmt;
use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy};
use overlap_gemm::predict::{Machine, Setup, estimate};
use overlap_gemm::tune::{Anything, Asked, Tuning};
use serde::Serialize;

/// All numbers of ranks.
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

/// One strategy.
#[derive(Serialize)]
struct Prediction {
    /// The library's choice by these predictions, for a problem without a table entry nearby.
    auto: bool,
    strategy: String,
    engine: Engine,
    pieces: u32,
    kernel: String,
    swizzle: u32,
    splits: u32,
    total_us: f64,
    first_tile_us: f64,
    gathered_us: f64,
    waited_us: f64,
    slowed_us: f64,
    tail_us: f64,
}

/// Predicts every strategy for every problem, each as the rules plan it, and the library's choice.
pub fn predict(machine: Machine, problems: &[Problem]) -> Result<Shown> {
    let case = |problem: &Problem| -> Result<Case> {
        let mut setups = vec![Setup::gemm(&machine, problem)?];
        for strategy in Strategy::ALL {
            setups.push(Setup::usual(&machine, problem, strategy)?);
        }
        let sequential = Setup::usual(&machine, problem, Strategy::Sequential)?;
        setups.push(sequential.with_engine(Engine::Nccl, problem));
        let predictions = setups.iter().map(|setup| (setup, false));
        let auto = auto(&machine, problem);
        let predictions = predictions.chain(auto.iter().map(|setup| (setup, true)));
        let predictions =
            predictions.map(|(setup, auto)| Prediction::new(&machine, problem, setup, auto));
        let received = problem.row_bytes(&(0..problem.m() - problem.shards().rows(0).end));
        Ok(Case {
            problem: problem.to_string(),
            ranks: problem.ranks(),
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            received_bytes: u64::try_from(received).unwrap_or(u64::MAX),
            predictions: predictions.collect::<Result<_>>()?,
        })
    };
    Ok(Shown { machine, cases: problems.iter().map(case).collect::<Result<_>>()? })
}

/// The library's choice by its model alone, which knows the SMs and assumes an H200's link. One rank has no choice.
fn auto(machine: &Machine, problem: &Problem) -> Option<Setup> {
    let asked = Asked { gpu: "NVIDIA H200", sms: machine.sms, problem };
    let several = problem.ranks() > 1;
    several.then(|| Tuning::none().look_up(&asked, &Anything)).flatten()?.setup()
}

impl Prediction {
    fn new(machine: &Machine, problem: &Problem, setup: &Setup, auto: bool) -> Result<Self> {
        let estimate = estimate(machine, &setup.plan(problem)?, setup)?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Ok(Prediction {
            auto,
            strategy: match setup.operation {
                Operation::Gemm => "plain".into(),
                _ => setup.way.strategy.to_string(),
            },
            engine: setup.way.engine,
            pieces: setup.way.pieces,
            kernel: setup.kernel.name.clone(),
            swizzle: setup.swizzle,
            splits: setup.splits,
            total_us: us(estimate.total),
            first_tile_us: us(estimate.first_tile),
            gathered_us: us(estimate.gathered),
            waited_us: us(estimate.waited),
            slowed_us: us(estimate.slowed),
            tail_us: us(estimate.tail),
        })
    }

    fn heading(&self) -> &str {
        match self.engine {
            _ if self.auto => "auto",
            Engine::Nccl => "NCCL first",
            _ => &self.strategy,
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
        let problems = self.cases.iter().map(|case| case.problem.chars().count());
        let width = problems.max().unwrap_or(0);
        // All cases have the same predictions; one of a single rank lacks the last.
        let longest = self.cases.iter().max_by_key(|case| case.predictions.len());
        let headings = longest.iter().flat_map(|case| &case.predictions).map(Prediction::heading);
        write!(f, "{:width$} {:>11}", "", "MB to each")?;
        headings.clone().try_for_each(|heading| write!(f, " {heading:>10}"))?;
        writeln!(f)?;
        for case in &self.cases {
            write!(f, "{:width$} {:>11.1}", case.problem, case.received_bytes as f64 / 1e6)?;
            for it in &case.predictions {
                write!(f, " {:>10.1}", it.total_us)?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "\nplain: the GEMM alone, with A already gathered; auto: the library's choice by these predictions"
        )
    }
}
