//! GEMM + reduce-scatter when a rank does not come, leaves, does something else, or is asked to stop.
//!
//! What belongs here: what each rank is told, and that nothing of a failed step passes for a result. Ranks are threads;
//! those that are killed or stopped are processes (`lost_ranks`).
//! Invariant: no rank waits for ever.

use std::time::Duration;

use overlap_gemm::Error;
use overlap_gemm::plan::{self, Schedule, Strategy, Word};

use super::work::Step;
use super::world::{Layer, World};
use crate::gpu::PATIENCE;
use crate::gpu::ranks::{Rank, on_gpus, on_ranks};

const RANKS: u32 = 3;
const LAST: u32 = RANKS - 1;
/// What a step waits for a rank that does not come.
const LIMIT: Duration = Duration::from_secs(1);

/// What the others are told after three good steps, when the last rank does `odd`; and how many outputs of theirs are numbers.
/// By copy engines, by products that add up, in two shots, and by a kernel, also in two shots.
fn stage(
    limit: Duration,
    odd: impl Fn(&World, Rank, Operation) + Sync,
) -> [Vec<(Error, usize)>; 5] {
    let world = world(&[100, 60, 90], limit);
    let two_shots = World { all: true, ..world.clone().fused() };
    let kernels = [world.clone().by_kernel(4), world.clone().in_two_shots_by_kernel(4)];
    let [kernel, two_shots_by_kernel] = kernels;
    [world.clone(), world.fused(), two_shots, kernel, two_shots_by_kernel].map(|world| {
        let told: Vec<_> =
            on_ranks(RANKS, |rank| play(&world, rank, &odd)).into_iter().flatten().collect();
        assert_eq!(told.len(), LAST as usize);
        told
    })
}

fn world(rows: &[u32], limit: Duration) -> World {
    let mut world = World::new(rows, 128, 256);
    // A slot then holds the sums of an older step: numbers, which a total must not become.
    world.options = world.options.with_poison(false).with_timeouts(PATIENCE, limit);
    world
}

/// One rank's part: `None` for the last.
fn play(
    world: &World,
    rank: Rank,
    odd: impl Fn(&World, Rank, Operation),
) -> Option<(Error, usize)> {
    let mut layer = world.plan(&rank);
    let mut work = world.work(&rank, 0);
    (0..3).for_each(|step| work.step(&rank, &mut layer, step, None));
    work.renew(&rank, 3);
    rank.group.barrier("the fault", PATIENCE).unwrap();
    if rank.rank() + 1 == world.ranks() {
        odd(world, rank, Operation { layer, work });
        return None;
    }
    let step = work.enqueue(&rank, &mut layer, None);
    let told = step.and_then(|()| layer.synchronize(&rank.gpu.stream)).unwrap_err();
    assert!(layer.check().is_err(), "a failure stays");
    let next = work.enqueue(&rank, &mut layer, None);
    assert!(matches!(next, Err(Error::Over { .. })), "no step follows a failure: {next:?}");
    work.fetch(&rank);
    let bits = work.bits(&rank);
    Some((told, bits.into_iter().filter(|bits| !f32::from_bits(*bits).is_nan()).count()))
}

/// The last rank's.
struct Operation {
    layer: Layer,
    work: Box<dyn Step>,
}

fn sleep() {
    std::thread::sleep(Duration::from_millis(300));
}

/// Each error is of one kind or says that the other rank has failed so, and one is of that kind.
fn check(told: &[(Error, usize)], is_kind: impl Fn(&Error) -> bool) {
    for (error, numbers) in told {
        assert!(is_kind(error) || matches!(error, Error::Aborted { .. }), "{error}");
        assert_eq!(*numbers, 0, "outputs of a failed step: {error}");
    }
    assert!(told.iter().any(|(error, _)| is_kind(error)), "{told:?}");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_never_comes_is_named() {
    let told = stage(LIMIT, |_, rank, operation| {
        // It keeps its place until the others have given up.
        while rank.group.check().is_ok() {
            sleep();
        }
        drop(operation);
    });
    let is_named = |error: &Error| match error {
        Error::PeerTimeout { peer, awaited, .. } => {
            assert_eq!((*peer, awaited.as_str()), (LAST, "sums of its rows"));
            true
        }
        _ => false,
    };
    told.iter().for_each(|told| check(told, is_named));
}

/// Freeing what the rank has waits for all work on its GPU: the others must not wait for it there.
#[test]
#[ignore = "needs 2 Hopper GPUs"]
fn a_rank_that_leaves_is_named() {
    let world = world(&[100, 60], PATIENCE);
    for world in [world.clone(), world.clone().fused(), world.by_kernel(16)] {
        let told = on_gpus(2, |rank| {
            play(&world, rank, |_, rank, operation| {
                sleep();
                drop((operation, rank));
            })
        });
        let told: Vec<_> = told.into_iter().flatten().collect();
        check(&told, |error| matches!(error, Error::PeerLost { peer: 1, .. }));
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_abort_ends_a_step_that_waits() {
    let told = stage(PATIENCE, |_, _, mut operation| {
        sleep();
        operation.layer.abort("a person wants it");
    });
    told.iter()
        .for_each(|told| check(told, |error| error.to_string().contains("a person wants it")));
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ranks_with_other_rows_are_refused() {
    let told = stage(LIMIT, |_, rank, operation| {
        let Operation { mut layer, work } = operation;
        let step = work.enqueue(&rank, &mut layer, Some(&[90, 70, 90]));
        let told = step.and_then(|()| layer.synchronize(&rank.gpu.stream)).unwrap_err();
        let is_told = matches!(told, Error::Mismatch { .. } | Error::Aborted { .. });
        assert!(is_told || matches!(told, Error::PeerTimeout { .. }), "{told}");
    });
    // Sums of other rows may have come before anybody compared: D is undefined, and no rank calls it right.
    for (error, _) in told.iter().flatten() {
        let is_told = matches!(error, Error::Mismatch { .. } | Error::Aborted { .. });
        assert!(is_told || matches!(error, Error::PeerTimeout { .. }), "{error}");
    }
}

/// Rank 1 never says that it has sent its sums. Rank 0, which owns all rows, gives up, and what it sends is no total: rank 1 has all
/// words of its step, but takes it for no result. A kernel that gives up sends none.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn the_total_of_a_rank_that_gave_up_is_no_result() {
    let by_copies = World { all: true, ..world(&[100, 0], LIMIT).fused() };
    no_rank_takes_it_for_a_result(&by_copies);
    no_rank_takes_it_for_a_result(&world(&[100, 0, 0], LIMIT).in_two_shots_by_kernel(4));
}

fn no_rank_takes_it_for_a_result(world: &World) {
    let is_kernel = world.strategy == Strategy::Sequential;
    let told = on_ranks(world.ranks(), |rank| {
        let mut layer = world.plan(&rank);
        let mut work = world.work(&rank, 0);
        (0..2).for_each(|step| work.step(&rank, &mut layer, step, None));
        if rank.rank() == 1 {
            let forget = |schedule: &mut Schedule| {
                let says = |step: &plan::Step| {
                    matches!(step, plan::Step::Post { word: Word::Partial { .. }, .. })
                };
                let before = schedule.steps.len();
                schedule.steps.retain(|(_, step)| !says(step));
                schedule.steps.len() < before
            };
            // SAFETY: no step is under way, and the memory outlives the next one, which fails.
            assert!(unsafe { layer.change_schedule(forget) }.unwrap());
        }
        work.renew(&rank, 2);
        rank.group.barrier("the fault", PATIENCE).unwrap();
        if rank.rank() != 0 {
            // It still waits when rank 0 has given up.
            sleep();
        }
        work.enqueue(&rank, &mut layer, None).unwrap();
        // Rank 1 hears of it by the words alone.
        while rank.rank() == 0 && rank.group.check().is_ok() {
            sleep();
        }
        let told = layer.synchronize(&rank.gpu.stream).unwrap_err();
        let is_told = match told {
            Error::PeerTimeout { .. } => rank.rank() == 0 || is_kernel,
            Error::Aborted { .. } => rank.rank() != 0,
            _ => false,
        };
        assert!(is_told, "{told}");
        rank.through();
        told
    });
    // What is not sent is waited for.
    let waited = |error: &Error| matches!(error, Error::PeerTimeout { .. });
    assert_eq!(told[1..].iter().any(waited), is_kernel, "{told:?}");
}
