//! A step on GPUs, as one rank of several.
//!
//! Invariant: all ranks do the same in the same order; the step is one of many in a steady loop.

use std::slice;
use std::sync::Arc;

use overlap_gemm::Error;
use overlap_gemm::cuda::{CollectiveOptions, GemmOptions};
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::plan::{Operation, Problem, Strategy};
use overlap_gemm::trace::Timeline;

use super::{Args, SEED, Shown};
use crate::bench::gpu::check::{Adder, Check};
use crate::bench::gpu::driver::Gpu;
use crate::bench::gpu::inputs::Pools;
use crate::bench::gpu::ranks::checks::{room_for_totals, whose_inputs};
use crate::bench::gpu::ranks::contenders::{Place, Summing, plan_whole};
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
    let (operation, rank) = (args.operation.map(Operation::from).unwrap_or_default(), group.rank());
    let mut pools = Pools::new(SEED);
    let inputs = pools.inputs(whose_inputs(operation, rank), gpu, problem, gpu.l2_bytes()?)?;
    let sets = common_sets(group, slice::from_ref(&inputs))?;
    let totals = room_for_totals(gpu, operation, problem, rank, sets)?;
    let own = operation.output_rows(problem, rank);
    let check = match operation.reduces() {
        true => Check::of_total(&pools, problem, own, sets, SEED),
        false => Check::new(&pools, problem, &inputs, sets, SEED),
    };
    let place = Place { gpu, group, problem, inputs: &inputs, set: check.set };
    let summing = Summing { place, operation, totals: &totals };
    let mut options = CollectiveOptions::default();
    options.pieces = args.chunks;
    options.strategy = match (args.sequential, operation) {
        (true, _) => Some(Strategy::Sequential),
        (false, Operation::AllGatherGemm) => Some(Strategy::Fused),
        (false, _) => None,
    };
    let gemm = GemmOptions::default().with_constant_b(true);
    let mut step = plan_whole(summing, &options, &gemm)?()?;
    let d = totals.get(check.set).unwrap_or(&inputs.sets[check.set].d);
    let checked = check.run_into(gpu, d, &[d], Adder::Own, |set| step.enqueue(set))?;
    step.check()?;
    if let Some(wrong) = wrong_anywhere(group, checked.err())? {
        return Err(Failure::CheckFailed(wrong));
    }
    interrupt.check()?;
    let own = step.record(gpu, check.set)?;
    let ranks = all_values(group, "the record of a step", &own)?;
    let chunks = step.planned().chunks();
    let timeline = Timeline::of_ranks(ranks, |chunk| chunks.rank_of(chunk));
    if rank != 0 {
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
