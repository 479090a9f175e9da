//! Products whose input does not come: the limit, the abort, and that life goes on after them.
//!
//! What belongs here: what [`Signals`](overlap_gemm::cuda::Signals) report. A failed product ends by
//! itself, is named with rank, chunk, epoch and tile, and leaves the context and the signals fit for the
//! next step. How long it takes is looked at only so far that nobody waits for ever.
#![cfg(feature = "cuda")]

#[path = "common/arrival.rs"]
mod arrival;
#[path = "common/gpu.rs"]
mod gpu;

use std::time::{Duration, Instant};

use arrival::{Arrival, Number, PATIENCE, dawdle, shuffled};
use gpu::{Case, Gpu, tried_kernels};
use overlap_gemm::Error;
use overlap_gemm::plan::Tile;
use overlap_gemm::random::Random;

fn on_every_kernel(
    seed: u64,
    mut run: impl FnMut(&Gpu, &'static overlap_gemm::cuda::Kernel, &mut Random),
) {
    let gpu = Gpu::untracked();
    for kernel in tried_kernels() {
        run(&gpu, kernel, &mut Random::new(seed));
        println!("{kernel}");
    }
}

/// The chunk and the tile that an error names: `chunk 3 (for tile (0, 2))`.
fn named(text: &str) -> (u32, Tile) {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let numbers: Vec<u32> = numbers.map(|part| part.parse().unwrap()).collect();
    (numbers[0], Tile { m: numbers[1], n: numbers[2] })
}

/// A step in which all goes well.
fn good_step<A: Number, B: Number, D: Number>(
    gpu: &Gpu,
    arrival: &mut Arrival<A, B, D>,
    random: &mut Random,
) {
    arrival.renew(gpu, random);
    arrival.signals.advance(&gpu.stream).unwrap();
    arrival.enqueue(gpu);
    for chunk in shuffled(&arrival.chunks, random) {
        dawdle(random, 50);
        arrival.copy(chunk);
        arrival.signals.write(&arrival.copies, chunk).unwrap();
    }
    arrival.check(gpu, random);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_chunk_that_never_comes_ends_the_product_and_is_named() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, u32::MAX - 1, random);
        good_step(gpu, &mut arrival, random);
        for _ in 0..3 {
            // The first of these steps has epoch 0: the epochs have just wrapped.
            let limit = Duration::from_millis(random.within(100..=300));
            let missing = random.within(0..=u64::from(arrival.chunks.len()) - 1) as u32;
            arrival.renew(gpu, random);
            arrival.signals.advance(&gpu.stream).unwrap();
            let epoch = arrival.signals.epoch();
            let gemm = arrival.gemm;
            arrival.gemm = gemm.with_timeouts(limit, limit);
            gpu.stream.synchronize().unwrap();
            let begin = Instant::now();
            arrival.enqueue(gpu);
            for chunk in shuffled(&arrival.chunks, random) {
                if chunk != missing {
                    arrival.copy(chunk);
                    arrival.signals.write(&arrival.copies, chunk).unwrap();
                }
            }
            gpu.stream.synchronize().unwrap();
            let took = begin.elapsed();
            assert!(took >= limit && took < 2 * limit, "limit {limit:?}, took {took:?}");

            let error = arrival.signals.check().unwrap_err();
            let order = arrival.gemm.tile_order();
            let Error::PeerTimeout {
                rank,
                peer,
                awaited,
                epoch: expected,
                epoch_seen,
                limit: named_limit,
            } = &error
            else {
                panic!("{error:?}");
            };
            let (chunk, tile) = named(awaited);
            assert_eq!((*rank, *peer), (order.pivot_rank(), arrival.chunks.rank_of(missing)));
            assert_eq!((chunk, *expected, *named_limit), (missing, epoch, limit), "{error}");
            assert_eq!(*epoch_seen, epoch.wrapping_sub(1), "{error}");
            assert!(order.chunks_of(tile).contains(&missing), "{error}");
            assert_eq!(arrival.signals.check(), Ok(()), "told once");

            let gemm = arrival.gemm;
            arrival.gemm = gemm.with_timeouts(PATIENCE, PATIENCE);
            // The chunk that did not come is a step behind now, and catches up.
            good_step(gpu, &mut arrival, random);
        }
    }
    on_every_kernel(21, |gpu, kernel, random| {
        let case = Case::random(kernel, 700, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_abort_from_another_thread_ends_the_product() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        for _ in 0..3 {
            arrival.renew(gpu, random);
            arrival.signals.advance(&gpu.stream).unwrap();
            arrival.enqueue(gpu);
            let aborter = arrival.signals.aborter();
            let wait = Duration::from_micros(random.within(0..=5000));
            let begin = Instant::now();
            std::thread::scope(|scope| {
                let aborter = aborter.clone();
                scope.spawn(move || {
                    std::thread::sleep(wait);
                    aborter.abort();
                });
                gpu.stream.synchronize().unwrap();
            });
            // It did not wait for its limit; how much sooner it ended is for a bench to say.
            assert!(begin.elapsed() < PATIENCE / 4, "{:?}", begin.elapsed());
            assert!(aborter.is_set());
            let error = arrival.signals.check().unwrap_err();
            let rank = arrival.gemm.tile_order().pivot_rank();
            assert!(
                matches!(&error, Error::Aborted { rank: told, .. } if *told == rank),
                "{error:?}"
            );
            assert!(error.to_string().contains("asked to while it waited for chunk "), "{error}");
            aborter.clear();
            good_step(gpu, &mut arrival, random);
        }
    }
    on_every_kernel(22, |gpu, kernel, random| {
        let case = Case::random(kernel, 700, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

/// A product of which everything has arrived does not look at the abort word: it has nothing to wait for.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_abort_does_not_spoil_what_need_not_wait() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.signals.post_all(&gpu.stream).unwrap();
        gpu.stream.synchronize().unwrap();
        arrival.signals.aborter().abort();
        arrival.enqueue(gpu);
        arrival.check(gpu, random);
    }
    on_every_kernel(23, |gpu, kernel, random| {
        let case = Case::random(kernel, 300, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

/// Dropping everything while the product still waits: the drop waits for the limit, and nothing breaks.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn signals_that_are_dropped_early_outlive_the_product() {
    let gpu = Gpu::untracked();
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        let limit = Duration::from_millis(200);
        let Arrival { gemm, .. } = arrival;
        arrival.gemm = gemm.with_timeouts(limit, limit);
        arrival.poison(gpu);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.enqueue(gpu);
        let Arrival { signals, device, d, gemm, .. } = arrival;
        drop(signals);
        gpu.stream.synchronize().unwrap();
        drop((device, d, gemm));
        let mut next = Arrival::<A, B, D>::new(gpu, case, 0, random);
        good_step(gpu, &mut next, random);
    }
    let mut random = Random::new(24);
    for kernel in tried_kernels() {
        let case = Case::random(kernel, 300, &mut random);
        for_types!(kernel.elements, run(&gpu, &case, &mut random));
    }
}
