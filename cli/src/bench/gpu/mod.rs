//! The measuring, on one GPU.
//!
//! [`case`] is the course of one case; the rest are its parts: `inputs` (random matrices, rotated),
//! `check` (right or wrong), `timing` (loops and turns), the contenders `own` and `cublaslt`,
//! `power` (watts and clocks), `machine` (where it ran) and `driver` (the few calls that everyone makes). [`ranks`] is
//! the bench of several GPUs, on the same parts; so is `tune`. Invariant:
//! what was measured is shown, also when a later case ends the bench.

mod case;
pub mod check;
mod cublaslt;
pub mod driver;
pub mod inputs;
mod machine;
mod own;
mod power;
pub mod ranks;
pub mod timing;

use super::report::{Row, Run, Shown};
use super::wanted::{Multiplier, Products};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::progress;
use case::Bench;
use cublaslt::Cublaslt;
use driver::Gpu;
use inputs::Pools;
use power::Meter;
pub use ranks::run as run_ranks;
use timing::Watch;

/// Runs all cases and shows what they gave.
pub fn run(wanted: &Products, mut shown: Shown, interrupt: Interrupt) -> Result<(), Failure> {
    let gpu = Gpu::open(wanted.device)?;
    own::check_names(&wanted.kernels)?;
    let cublaslt = match wanted.contenders.contains(&Multiplier::Cublaslt) {
        true => Some(Cublaslt::open(&gpu, wanted.cublaslt.as_deref())?),
        false => None,
    };
    let machine = machine::describe(&gpu, cublaslt.as_deref())?;
    let (l2_bytes, watch) = (machine.l2_bytes, Watch::new(&gpu)?);
    let meter = Meter::open(&gpu);
    let bench = Bench { gpu: &gpu, wanted, cublaslt, l2_bytes, watch, meter, interrupt };

    let mut pools = Pools::new(wanted.seed);
    let bar = progress::bar(wanted.cases.len() as u64, "cases", &shown.output);
    bar.tick();
    let mut run = Run { unchecked: !wanted.check, ..Run::begin(machine, 1, 0, wanted.rounds) };
    let outcome = wanted.cases.iter().try_for_each(|case| {
        let (report, steps) = bench.run(case, &mut pools)?;
        run.steps = if run.cases.is_empty() { steps } else { run.steps.min(steps) };
        run.cases.push(report);
        bar.inc(1);
        shown.keep(&run)
    });
    bar.finish_and_clear();
    let nobody = nobody_ran(&run);
    shown.end(run, outcome)?;
    nobody.map_or(Ok(()), |why| Err(Failure::Usage(why)))
}

/// Why own products took no part, if they did in no case at all.
fn nobody_ran(run: &Run) -> Option<String> {
    let rows = run.cases.iter().flat_map(|case| &case.rows);
    let own: Vec<&Row> = rows.filter(|row| row.who == Multiplier::Own.name()).collect();
    match own.iter().all(|row| row.absent.is_some()) {
        true => own.last()?.absent.clone(),
        false => None,
    }
}
