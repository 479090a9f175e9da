//! The measuring, on one GPU.
//!
//! [`case`] is the course of one case; the rest are its parts: `inputs` (random matrices, rotated),
//! `check` (right or wrong), `timing` (loops and turns), the contenders `own` and `cublaslt`,
//! `power` (watts and clocks) and `driver` (the few calls that everyone makes). [`ranks`] is
//! the bench of several GPUs, on the same parts; so is `tune`. Invariant:
//! what was measured is shown, also when a later case ends the bench.

mod case;
pub mod check;
pub mod cublaslt;
pub mod driver;
pub mod inputs;
mod own;
mod power;
pub mod ranks;
pub mod timing;

use super::cases::Case;
use super::gemm::Args;
use super::machine::Machine;
use super::report::{Row, Run};
use super::wanted::Contender;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;
use case::Bench;
use cublaslt::Cublaslt;
use driver::Gpu;
use inputs::Pools;
use power::Meter;
pub use ranks::run as run_ranks;
use timing::Watch;

/// Runs all cases and shows what they gave.
pub fn run(
    args: &Args,
    cases: &[Case],
    mut output: Output,
    interrupt: Interrupt,
) -> Result<(), Failure> {
    let gpu = Gpu::open(0)?;
    let cublaslt = match args.contenders.contains(&Contender::Cublaslt) {
        true => Some(Cublaslt::open(&gpu)?),
        false => None,
    };
    let machine = Machine::of_gpus(&gpu, cublaslt.as_deref())?;
    let (l2_bytes, watch) = (machine.l2_bytes, Watch::new(&gpu)?);
    let meter = Meter::open(&gpu);
    let bench = Bench { gpu: &gpu, args, cublaslt, l2_bytes, watch, meter, interrupt };

    let mut pools = Pools::new(args.common.seed);
    let bar = progress::bar(cases.len() as u64, "cases", &output);
    bar.tick();
    let run = Run::begin(machine, 1, 0, args.common.rounds());
    let mut run = Run { unchecked: args.no_check, ..run };
    let outcome = cases.iter().try_for_each(|case| {
        let (report, steps) = bench.run(case, &mut pools)?;
        run.steps = if run.cases.is_empty() { steps } else { run.steps.min(steps) };
        run.cases.push(report);
        bar.inc(1);
        run.keep(&mut output)
    });
    bar.finish_and_clear();
    let nobody = nobody_ran(&run);
    run.end(output, outcome)?;
    nobody.map_or(Ok(()), |why| Err(Failure::Usage(why)))
}

/// Why own products took no part, if they did in no case at all.
fn nobody_ran(run: &Run) -> Option<String> {
    let rows = run.cases.iter().flat_map(|case| &case.rows);
    let own: Vec<&Row> = rows.filter(|row| row.who == Contender::Own.name()).collect();
    match own.iter().all(|row| row.absent.is_some()) {
        true => own.last()?.absent.clone(),
        false => None,
    }
}
