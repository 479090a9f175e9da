//! A step on GPUs, as one rank of several.
//!
//! Invariant: all ranks do the same in the same order; the step is one of many in a steady loop.

use std::slice;
use std::sync::Arc;

use overlap_gemm::Error;
use overlap_gemm::cuda::{CollectiveOptions, GemmOptions};
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::plan::{Problem, Strategy};
use overlap_gemm::trace::Timeline;

use super::{Args, SEED, Shown};
use crate::bench::gpu::check::Check;
use crate::bench::gpu::driver::Gpu;
use crate::bench::gpu::inputs::Pools;
use crate::bench::gpu::ranks::contenders::{Gathered, Place, Step as _};
use crate::bench::gpu::ranks::entrant::wrong_anywhere;
use crate::bench::gpu::ranks::exchange::{all_values, common_sets};
use crate::bench::gpu::ranks::told;
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// What is shown, on rank 0.
pub(super) fn run(
    args: &Args,
    problem: Problem,
    interrupt: Interrupt,
) -> Result<Option<Shown>, Failure> {
    let (group, gpu) = Gpu::join(&GroupOptions::default().shared_devices(true))?;
    if group.ranks() != problem.ranks() {
        return Err(Error::Mismatch {
            what: "the number of ranks".into(),
            got: problem.ranks().to_string(),
            expected: group.ranks().to_string(),
            remedy: "give --ranks as many as were launched",
        }
        .into());
    }
    told(&group, one_step(args, &problem, &gpu, &group, interrupt))
}

fn one_step(
    args: &Args,
    problem: &Problem,
    gpu: &Gpu,
    group: &Arc<Group>,
    interrupt: Interrupt,
) -> Result<Option<Shown>, Failure> {
    let mut pools = Pools::new(SEED);
    let inputs = pools.inputs(0, gpu, problem, gpu.l2_bytes()?)?;
    let sets = common_sets(group, slice::from_ref(&inputs))?;
    let check = Check::new(&pools, problem, &inputs, sets, SEED);
    let place = Place { gpu, group, problem, inputs: &inputs, set: check.set };
    let strategy = if args.sequential { Strategy::Sequential } else { Strategy::Fused };
    let mut gather = CollectiveOptions::default().with_strategy(strategy);
    gather.pieces = args.chunks;
    let gemm = GemmOptions::default().with_constant_b(true);
    let mut step = Gathered::plan(place, &gather, &gemm)?;
    let checked = check.run(gpu, &inputs, |set| step.enqueue(set))?;
    step.check()?;
    if let Some(wrong) = wrong_anywhere(group, checked.err())? {
        return Err(Failure::CheckFailed(wrong));
    }
    interrupt.check()?;
    let own = step.record()?;
    let ranks = all_values(group, "the record of a step", &own)?;
    let chunks = step.planned().chunks();
    let timeline = Timeline::of_ranks(ranks, |chunk| chunks.rank_of(chunk));
    if group.rank() != 0 {
        return Ok(None);
    }
    Ok(Some(Shown {
        on: format!("{} × {}", group.ranks(), gpu.device.info().name),
        planned: step.describe(),
        summaries: timeline.summaries(),
        timeline,
        problem: problem.clone(),
    }))
}
