//! The decisive test, on GPUs: whoever breaks one step of the schedule breaks what runs by it, as predicted.
//!
//! What belongs here: the mutants that streams of copies, the product's table of chunks and the beginning's table of
//! ranks can carry out. Two of the list are the device code's own: it waits for all consumers at once, and acknowledges
//! the step before (`begin_step` in `csrc/gather.cu`); their mutants are in `tests/mutants.toml`. One depends on how long a
//! copy takes. Invariant: a mutant that is to go wrong does so within some steps; in each, another rank is late, so that each
//! rank's faults meet ranks that already wait for it.

use std::time::Duration;

use super::all_gather_gemm::Work;
use crate::gpu::case::Case;
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, one_kernel};
use crate::mutants::{Caught, MUTANTS, Mutant};
use overlap_gemm::plan::Engine;
use overlap_gemm::random::Random;

/// Rows of D for each row of a mutant's world: several tiles.
const ROWS: u32 = 256;
/// Steps in which a mutant may go wrong.
const STEPS: usize = 20;
/// How long a mutant that hangs is waited for.
const LIMIT: Duration = Duration::from_secs(2);
/// How late one rank is: longer than any step takes.
const LATE: Duration = Duration::from_millis(50);

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_mutant_of_a_schedule_is_caught_as_predicted() {
    let on_gpus = |mutant: &&Mutant| mutant.on_gpus;
    assert!(MUTANTS.iter().filter(on_gpus).count() >= 8);
    for mutant in MUTANTS.iter().filter(on_gpus) {
        let seen = on_ranks(mutant.rows.len() as u32, |rank| run(&rank, mutant));
        let found = Caught::by_ranks(&seen);
        assert_eq!(found, mutant.run(), "{}: {seen:?}", mutant.name);
        println!("{}: {found:?}, as predicted", mutant.name);
    }
}

/// What becomes of this rank.
fn run(rank: &Rank, mutant: &Mutant) -> Caught {
    let rows: Vec<u32> = mutant.rows.iter().map(|rows| rows * ROWS).collect();
    let kernel = one_kernel();
    let mut case = Case::new(kernel, rows.iter().map(|rows| u64::from(*rows)).sum(), 256, 8192);
    case.options.sm_limit = Some(rank.sms);
    let mut random = Random::new(97);
    let mut work = Work::new(rank, &case, &rows, &mut random);
    let options = options(Engine::CopyEngines { streams: 1 });
    let options = options.with_pieces(1).with_timeouts(PATIENCE, LIMIT);
    let mut layer = work.fused(rank, &options);
    let mut seen = Caught::Nothing;
    for step in 0..=STEPS {
        if step == 1 && mutant.rank == rank.rank() as usize {
            // SAFETY: the test's ranks expect wrong rows, and their memory outlives the steps.
            let changed = unsafe { layer.change_schedule(|schedule| mutant.change(schedule)) };
            assert!(changed.unwrap(), "{} finds no step to change", mutant.name);
        }
        work.renew(rank, &mut random);
        // The checks of the step before end at different times.
        if rank.group.barrier("a step of a mutant", PATIENCE).is_err() {
            break;
        }
        if step > 0 && rank.rank() as usize == step % mutant.rows.len() {
            std::thread::sleep(LATE);
        }
        work.enqueue(rank, &mut layer, None);
        if layer.synchronize(&rank.gpu.stream).is_err() {
            seen = Caught::Hang;
            break;
        }
        if !work.is_right(rank, &mut random) {
            assert!(step > 0, "wrong before anything was changed");
            seen = Caught::WrongRows;
        }
    }
    rank.through();
    seen
}
