//! Products whose input does not come: the limit, the abort, and that life goes on after them.
//!
//! What belongs here: what [`Signals`](overlap_gemm::cuda::Signals) report. A failed product ends by
//! itself, is named with rank, chunk, epoch and tile, and leaves the context and the signals fit for the
//! next step. How long it takes is looked at only so far that nobody waits for ever.

use std::time::{Duration, Instant};

use crate::gpu::arrival::{Arrival, in_spans, shuffled};
use crate::gpu::case::Case;
use crate::gpu::{PATIENCE, on_every_kernel};
use overlap_gemm::Error;
use overlap_gemm::plan::{Chunks, Shards, Tile};
use overlap_gemm::random::Random;

/// Sizes that are drawn are at most this.
const MOST: u64 = 700;

/// The chunk and the tile that an error names: `chunk 3 (for tile (0, 2))`.
fn named(text: &str) -> (u32, Tile) {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let numbers: Vec<u32> = numbers.map(|part| part.parse().unwrap()).collect();
    (numbers[0], Tile { m: numbers[1], n: numbers[2] })
}

/// A step in which all goes well.
fn good_step(arrival: &mut Arrival, random: &mut Random) {
    arrival.begin_step(random);
    arrival.enqueue();
    arrival.deliver_all(random, 50);
    arrival.check(random);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_chunk_that_never_comes_ends_the_product_and_is_named() {
    on_every_kernel(21, |gpu, kernel, random| {
        let case = Case::random(kernel, MOST, random);
        let mut arrival = Arrival::new(gpu, &case, u32::MAX - 1, random);
        good_step(&mut arrival, random);
        for _ in 0..3 {
            // The first of these steps has epoch 0: the epochs have just wrapped.
            let limit = Duration::from_millis(random.within(100..=300));
            let spans = arrival.chunks.spans();
            let last_part = u64::from(arrival.chunks.signals()) - 1;
            let missing_part = random.within(0..=last_part) as u32;
            let missing = missing_part / spans;
            arrival.begin_step(random);
            let epoch = arrival.signals.epoch();
            arrival = arrival.with_limit(limit);
            gpu.stream.synchronize().unwrap();
            let begin = Instant::now();
            arrival.enqueue();
            let order = shuffled(&arrival.chunks, random).into_iter();
            order.filter(|&part| part != missing_part).for_each(|part| arrival.deliver(part));
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

            // Where the chunk's rows would have gone, nothing looks like a result.
            arrival.call.fetch(&gpu.stream);
            let numbers = arrival.call.numbers_in(arrival.chunks.rows(missing));
            assert_eq!(numbers, 0, "{case:?}: {error}");

            arrival = arrival.with_limit(PATIENCE);
            // The chunk that did not come is a step behind now, and catches up.
            good_step(&mut arrival, random);
        }
    });
}

/// Blocks of a cluster fetch tiles for each other. One that gives up still hands over what the others need, and where it
/// cannot, they say that their results are none: in the first step of each round some chunks never come, in the
/// others they come about when the limit is over.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn outputs_of_a_failed_product_are_right_or_nan() {
    on_every_kernel(25, |gpu, kernel, random| {
        let (rows, columns) = (kernel.tile.m * kernel.cluster.m, kernel.tile.n * kernel.cluster.n);
        for spans in [1, 2, 4] {
            // Whole tiles, or a last one of any rows and columns: then some blocks of a cluster may load nothing of it.
            let is_odd = random.within(0..=1);
            let mut cut = |extent: u32| {
                2 * u64::from(extent) - random.within(0..=u64::from(extent) - 1) * is_odd
            };
            // More of K in each span than fits into the stages that are filled while a chunk is missing. A slice of four
            // spans has two of them at least.
            let k = 10 * u64::from(kernel.tile_k * spans.max(2));
            let mut case = Case::new(kernel, cut(rows), cut(columns), k);
            let most_splits = u64::from(case.most_splits().min(2));
            case.options.splits = Some(random.within(1..=most_splits) as u32);
            let shards = Shards::even(case.size[0] as u32, 1).unwrap();
            let chunks = Chunks::even(&shards, (2 * kernel.cluster.m).max(2)).unwrap();
            let chunks = in_spans(chunks, &case.problem(), spans);
            let mut arrival = Arrival::with_chunks(gpu, &case, &chunks, 0, 0, random);
            let mut failures = 0;
            for step in 0..8 {
                let limit = Duration::from_micros(random.within(1000..=3000));
                arrival = arrival.with_limit(limit);
                arrival.begin_step(random);
                let mut missing = shuffled(&chunks, random);
                // At least one comes, and one does not.
                let early = missing.split_off(random.within(1..=missing.len() as u64 - 1) as usize);
                early.into_iter().for_each(|part| arrival.deliver(part));
                arrival.copies.synchronize().unwrap();
                arrival.enqueue();
                if step % 4 > 0 {
                    std::thread::sleep(
                        limit.mul_f64(0.9) - Duration::from_micros(random.within(0..=200)),
                    );
                    missing.into_iter().for_each(|part| arrival.deliver(part));
                }
                gpu.stream.synchronize().unwrap();
                failures += u32::from(arrival.signals.check().is_err());
                arrival.check_right_or_nan();
            }
            assert!(failures >= 2, "{failures}");
            arrival = arrival.with_limit(PATIENCE);
            good_step(&mut arrival, random);
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_abort_from_another_thread_ends_the_product() {
    on_every_kernel(22, |gpu, kernel, random| {
        let case = Case::random(kernel, MOST, random);
        let mut arrival = Arrival::new(gpu, &case, 0, random);
        for _ in 0..3 {
            arrival.begin_step(random);
            arrival.enqueue();
            let aborter = arrival.signals.aborter();
            let wait = Duration::from_micros(random.within(0..=5000));
            let begin = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
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
            good_step(&mut arrival, random);
        }
    });
}

/// A product of which everything has arrived does not look at the abort word: it has nothing to wait for.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_abort_does_not_spoil_what_need_not_wait() {
    on_every_kernel(23, |gpu, kernel, random| {
        let mut arrival = Arrival::new(gpu, &Case::random(kernel, 300, random), 0, random);
        arrival.advance();
        arrival.post_all();
        gpu.stream.synchronize().unwrap();
        arrival.signals.aborter().abort();
        arrival.enqueue();
        arrival.check(random);
    });
}

/// Dropping everything while the product still waits: the drop waits for the limit, and nothing breaks.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn signals_that_are_dropped_early_outlive_the_product() {
    on_every_kernel(24, |gpu, kernel, random| {
        let case = Case::random(kernel, 300, random);
        let arrival = Arrival::new(gpu, &case, 0, random);
        let mut arrival = arrival.with_limit(Duration::from_millis(200));
        arrival.begin_step(random);
        arrival.enqueue();
        let Arrival { signals, call, gemm, .. } = arrival;
        drop(signals);
        gpu.stream.synchronize().unwrap();
        drop((call, gemm));
        good_step(&mut Arrival::new(gpu, &case, 0, random), random);
    });
}
