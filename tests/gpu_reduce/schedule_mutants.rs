//! The decisive test, on GPUs: whoever breaks one step of a reduction's schedule breaks what runs by it, as predicted.
//!
//! What belongs here: the mutants that streams of copies, the waits for sums and the beginning's table of ranks can carry
//! out. The device code itself waits for all consumers, and acknowledges the step before (`begin_step` in
//! `csrc/gather.cu`). A signal before its data is noticed only if the copy takes longer than the owner's look; a product that
//! is repeated writes what is there already. Invariant: in each step another rank is late, so that each rank's faults
//! meet ranks that already wait for it.

use std::time::Duration;

use super::world::World;
use crate::gpu::PATIENCE;
use crate::gpu::ranks::{Rank, on_ranks};
use crate::mutants::{
    Caught, KERNEL_MUTANTS, Mutant, REDUCE_MUTANTS, TWO_SHOT_MUTANTS, two_shot_mutants_of_a_kernel,
};

/// Rows of D for each row of a mutant's world: several tiles.
const ROWS: u32 = 256;
/// Steps in which a mutant may go wrong.
const STEPS: u64 = 12;
/// How long a mutant that hangs is waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// How late one rank is: longer than any step takes.
const LATE: Duration = Duration::from_millis(50);

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_mutant_of_a_reduction_is_caught_as_predicted() {
    let by_copies: Vec<_> = REDUCE_MUTANTS.iter().filter(|mutant| mutant.on_gpus).collect();
    let by_kernel: Vec<_> = KERNEL_MUTANTS.iter().filter(|mutant| mutant.on_gpus).collect();
    assert!(by_copies.len() >= 8 && by_kernel.len() >= 4);
    every_one_is_caught(&by_copies, |world| world);
    every_one_is_caught(&by_copies, |world| world.fused());
    every_one_is_caught(&by_kernel, |world| world.by_kernel(8));
    let in_two_shots: Vec<_> = TWO_SHOT_MUTANTS.iter().filter(|mutant| mutant.on_gpus).collect();
    assert!(in_two_shots.len() >= 6);
    every_one_is_caught(&in_two_shots, |world| World { all: true, ..world.fused() });
    let mut by_kernel = two_shot_mutants_of_a_kernel();
    // All totals come at about the same time, when the last rank's sums have come; `totals_unawaited` in tests/mutants.toml waits
    // for none.
    by_kernel.retain(|mutant| mutant.name != "drops the wait for a total");
    every_one_is_caught(&by_kernel, |mut world| {
        world.cases[0].size[2] = 512;
        world.in_two_shots_by_kernel(8)
    });
}

fn every_one_is_caught(mutants: &[&Mutant], way: impl Fn(World) -> World + Sync) {
    for mutant in mutants {
        let seen = on_ranks(mutant.rows.len() as u32, |rank| run(&rank, mutant, &way));
        let found = Caught::by_ranks(&seen);
        assert_eq!(found, mutant.run(), "{}: {seen:?}", mutant.name);
        println!("{}: {found:?}, as predicted", mutant.name);
    }
}

/// What becomes of this rank.
fn run(rank: &Rank, mutant: &Mutant, way: impl Fn(World) -> World) -> Caught {
    let rows: Vec<u32> = mutant.rows.iter().map(|rows| rows * ROWS).collect();
    let mut world = way(World::new(&rows, 256, 8192));
    world.options = world.options.with_pieces(1).with_timeouts(PATIENCE, LIMIT);
    let mut layer = world.plan(rank);
    let mut work = world.work(rank, 0);
    let mut seen = Caught::Nothing;
    for step in 0..=STEPS {
        if step == 1 && mutant.rank == rank.rank() as usize {
            // SAFETY: the test's ranks expect wrong rows, and their memory outlives the steps.
            let changed = unsafe { layer.change_schedule(|schedule| mutant.change(schedule)) };
            assert!(changed.unwrap(), "{} finds no step to change", mutant.name);
        }
        work.renew(rank, step);
        // The checks of the step before end at different times.
        if rank.group.barrier("a step of a mutant", PATIENCE).is_err() {
            break;
        }
        if step > 0 && rank.rank() as usize == step as usize % mutant.rows.len() {
            std::thread::sleep(LATE);
        }
        let enqueued = work.enqueue(rank, &mut layer, None);
        if enqueued.and_then(|()| layer.synchronize(&rank.gpu.stream)).is_err() {
            seen = Caught::Hang;
            break;
        }
        work.fetch(rank);
        if !work.is_right(rank) {
            assert!(step > 0, "wrong before anything was changed");
            seen = Caught::WrongRows;
        }
    }
    rank.through();
    seen
}
