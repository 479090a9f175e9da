//! The measuring, on one GPU.
//!
//! [`case`] is the course of one case; the rest are its parts: `inputs` (random matrices, rotated),
//! `check` (right or wrong), `timing` (loops and turns), the contenders `own`, `trickle` and
//! `cublaslt`, `machine` (where it ran) and `driver` (the few calls that everyone makes). [`ranks`] is
//! the bench of several GPUs, on the same parts; so is `tune`. Invariant:
//! what was measured is shown, also when a later case ends the bench.

mod case;
pub mod check;
mod cublaslt;
pub mod driver;
pub mod inputs;
mod machine;
mod own;
pub mod ranks;
pub mod timing;
mod trickle;

use std::time::Instant;

use super::bars;
use super::command;
use super::gemm::{Launch, Wanted, Who};
use super::results::{Method, Outcome, Results};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;
use case::Bench;
use cublaslt::Cublaslt;
use driver::Gpu;
use inputs::Pools;
use machine::Gauge;
pub use ranks::run as run_ranks;
use timing::Watch;

/// Runs all cases and shows what they gave.
pub fn run(wanted: &Wanted, output: Output, interrupt: Interrupt) -> Result<(), Failure> {
    let begin = Instant::now();
    let gpu = Gpu::open(wanted.device)?;
    own::check_names(&wanted.kernels)?;
    let cublaslt = match wanted.contenders.contains(&Who::Cublaslt) {
        true => Some(Cublaslt::open(&gpu, wanted.cublaslt.as_deref())?),
        false => None,
    };
    let gauge = Gauge::new(&gpu)?;
    let machine = machine::describe(&gpu, &gauge, cublaslt.as_deref())?;
    let (l2_bytes, watch) = (machine.l2_bytes, Watch::new(&gpu)?);
    let bench = Bench { gpu: &gpu, wanted, cublaslt, l2_bytes, watch, gauge, interrupt };

    let mut pools = Pools::new(wanted.seed);
    let bar = progress::bar(wanted.cases.len() as u64, "cases", &output);
    bar.tick();
    let (mut cases, mut broken) = (Vec::new(), None);
    for case in &wanted.cases {
        match bench.run(case, &mut pools) {
            Ok(result) => cases.push(result),
            Err(failure) => {
                broken = Some(failure);
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let results = Results {
        command: command(),
        version: env!("CARGO_PKG_VERSION"),
        machine,
        method: method(wanted),
        verdicts: bars::judge(&cases),
        cases,
        seconds: begin.elapsed().as_secs_f64(),
        ended_early: broken.as_ref().map(Failure::to_string),
    };
    match broken {
        Some(failure) if results.cases.is_empty() => return Err(failure),
        _ => output.write(&results, |stdout| write!(stdout, "{results}"))?,
    }
    let mut wrong = results.cases.iter().flat_map(|case| case.failures());
    if let Some(first) = wrong.next() {
        let more = wrong.count();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        return Err(Failure::CheckFailed(format!("{first}{more}")));
    }
    match broken {
        Some(failure) => Err(failure),
        None => nobody_ran(&results).map_or(Ok(()), |why| Err(Failure::Usage(why))),
    }
}

/// Why own products took no part, if they did in no case at all.
fn nobody_ran(results: &Results) -> Option<String> {
    let mut why = None;
    let own = results.cases.iter().flat_map(|case| &case.contenders);
    for contender in own.filter(|contender| contender.who == Who::Own) {
        match &contender.outcome {
            Outcome::Absent(reason) => why = Some(reason.clone()),
            _ => return None,
        }
    }
    why
}

fn method(wanted: &Wanted) -> Method {
    Method {
        rounds: wanted.rounds,
        target_ms: wanted.target_ms,
        launch: match wanted.launch {
            Launch::Graph => "CUDA graphs",
            Launch::Plain => "launched one by one",
        },
        seed: wanted.seed,
        checked: wanted.check,
        fast_accumulation: wanted.fast_accumulation,
        sm_limit: wanted.sm_limit,
        chunks: wanted.chunks,
        trickle_bytes_per_second: wanted.trickle_bytes_per_second,
    }
}
