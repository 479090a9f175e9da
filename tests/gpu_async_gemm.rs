//! Products whose input arrives while they run.
//!
//! What belongs here: [`cuda::AsyncGemm`](overlap_gemm::cuda::AsyncGemm) and
//! [`Signals`] from the outside, where everything goes well: nothing is read early, the order is the
//! planned one, epochs go on and wrap, in graphs too. What happens when chunks do not come is in
//! `gpu_async_faults.rs`. Chunks that have not arrived hold NaN; results have to be, bit for bit, what
//! the same kernel computes without signals, and the reference has to agree.
#![cfg(feature = "cuda")]

#[path = "common/arrival.rs"]
mod arrival;
#[path = "common/gpu.rs"]
mod gpu;

use std::collections::BTreeMap;

use arrival::{Arrival, Number, dawdle, random_chunks, random_pivot, shuffled};
use gpu::{Case, Gpu, compare, tried_kernels};
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use overlap_gemm::cuda::{AsyncGemm, GemmOptions, Operands, Signals, kernels_built};
use overlap_gemm::plan::{Chunks, Problem, Scaling, Shards};
use overlap_gemm::random::Random;

/// A product of random size and epilogue.
fn random_case(kernel: &'static overlap_gemm::cuda::Kernel, random: &mut Random) -> Case {
    Case::random(kernel, 700, random)
}

fn on_every_kernel(
    seed: u64,
    rounds: u32,
    mut run: impl FnMut(&Gpu, &'static overlap_gemm::cuda::Kernel, &mut Random),
) {
    let gpu = Gpu::untracked();
    for kernel in tried_kernels() {
        let mut random = Random::new(seed);
        for _ in 0..rounds {
            run(&gpu, kernel, &mut random);
        }
        println!("{kernel}: {rounds} rounds");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn nothing_is_read_before_its_signal() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        for _ in 0..2 {
            arrival.renew(gpu, random);
            arrival.signals.advance(&gpu.stream).unwrap();
            arrival.enqueue(gpu);
            // The product is running by now or soon; another thread delivers, late and in any order.
            let order = shuffled(&arrival.chunks, random);
            let mut delays = Random::new(random.next_u64());
            std::thread::scope(|scope| {
                let arrival = &mut arrival;
                scope.spawn(move || {
                    for chunk in order {
                        dawdle(&mut delays, 300);
                        arrival.copy(chunk);
                        arrival.signals.write(&arrival.copies, chunk).unwrap();
                    }
                });
            });
            arrival.check(gpu, random);
        }
    }
    on_every_kernel(1, 8, |gpu, kernel, random| {
        let case = random_case(kernel, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

/// The copy stream is filled at once, behind the product, and posts with kernels: they need an SM.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn copies_and_posts_overtake_a_product_that_leaves_sms_free() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 7, random);
        arrival.renew(gpu, random);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.copies.join(&gpu.stream).unwrap();
        arrival.enqueue(gpu);
        for chunk in shuffled(&arrival.chunks, random) {
            arrival.copy(chunk);
            arrival.signals.post(&arrival.copies, chunk).unwrap();
        }
        arrival.check(gpu, random);
    }
    on_every_kernel(2, 6, |gpu, kernel, random| {
        let mut case = random_case(kernel, random);
        let most = u64::from(gpu.device.info().sm_count) - 8;
        case.options.sm_limit = Some(random.within(kernel.cluster_size().into()..=most) as u32);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

/// The mutant without the wait: signals that are set before the data is there. The comparison has to
/// notice, or the tests above would prove nothing.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn mutant_signal_before_data_is_caught() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        arrival.renew(gpu, random);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.signals.post_all(&gpu.stream).unwrap();
        arrival.enqueue(gpu);
        gpu.stream.synchronize().unwrap();
        assert_eq!(arrival.signals.check(), Ok(()));
        let d = gpu.download(&arrival.d);
        let rows: Vec<u32> = (0..arrival.problem.m().min(8)).collect();
        let report = compare(&arrival.problem, case, &arrival.inputs, &d, &rows);
        assert_eq!(report.wrong, report.compared, "{case:?}: NaN went unnoticed: {report:?}");
    }
    on_every_kernel(3, 1, |gpu, kernel, random| {
        let case = Case::new(kernel, random.within(100..=400), 256, 256);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn tiles_are_computed_in_the_planned_order() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        let mut records = arrival.gemm.records().unwrap();
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.signals.post_all(&gpu.stream).unwrap();
        let Arrival { gemm, signals, device, d, .. } = &mut arrival;
        let mut view = d.slice_mut(..);
        let operands = device.operands(case, &mut view).records(&mut records);
        gemm.enqueue(&gpu.stream, operands, signals).unwrap();
        let records = records.read(&gpu.stream).unwrap();

        let (order, splits) = (arrival.gemm.tile_order(), u64::from(arrival.gemm.choice().splits));
        assert_eq!(records.len() as u64, order.tile_count() * splits, "{case:?}");
        let mut by_sm = BTreeMap::<u32, Vec<_>>::new();
        let mut seen = std::collections::BTreeSet::new();
        for record in records {
            assert_eq!(Some(record.index / splits), order.index_of(record.tile()), "{record:?}");
            assert!(seen.insert(record.index), "twice: {record:?}");
            let last = order.chunks_of(record.tile()).last();
            assert_eq!(record.waited_for(), last, "{record:?}");
            assert!(record.wait_begin <= record.ready && record.ready <= record.done, "{record:?}");
            by_sm.entry(record.sm).or_default().push((record.index, record.wait_begin));
        }
        // Each SM takes its tiles in that order, too.
        for (sm, mut tiles) in by_sm {
            tiles.sort_unstable();
            assert!(tiles.is_sorted_by_key(|(_, begin)| *begin), "SM {sm}: {tiles:?}");
        }
        arrival.check_exact(gpu);
    }
    on_every_kernel(4, 16, |gpu, kernel, random| {
        let mut case = random_case(kernel, random);
        if random.within(0..=1) == 0 {
            // Few SMs: each has many tiles.
            case.options.sm_limit = Some(random.within(kernel.cluster_size().into()..=8) as u32);
        }
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn epochs_wrap() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        for start in [u32::MAX - 2, i32::MAX as u32 - 2] {
            let mut arrival = Arrival::<A, B, D>::new(gpu, case, start, random);
            for step in 0..6 {
                arrival.renew(gpu, random);
                arrival.signals.advance(&gpu.stream).unwrap();
                assert_eq!(arrival.signals.epoch(), start.wrapping_add(step + 1));
                arrival.enqueue(gpu);
                for chunk in shuffled(&arrival.chunks, random) {
                    dawdle(random, 100);
                    arrival.copy(chunk);
                    arrival.signals.write(&arrival.copies, chunk).unwrap();
                }
                arrival.check_exact(gpu);
                let epoch = arrival.signals.read_epoch(&gpu.stream).unwrap();
                assert_eq!(epoch, start.wrapping_add(step + 1));
            }
        }
    }
    on_every_kernel(5, 1, |gpu, kernel, random| {
        let case = random_case(kernel, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_hundred_replays_with_new_inputs_and_epochs_are_exact() {
    const REPLAYS: u32 = 200;
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let start = u32::MAX - REPLAYS / 2;
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, start, random);
        let stream = &gpu.stream;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        arrival.signals.advance(stream).unwrap();
        arrival.enqueue(gpu);
        let refused = arrival.signals.write(stream, 0).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        assert_eq!(arrival.signals.epoch(), start, "a capture runs nothing");

        for replay in 0..REPLAYS {
            arrival.renew(gpu, random);
            graph.launch().unwrap();
            // The product waits in the graph; chunks come from outside of it.
            let epoch = start.wrapping_add(replay + 1);
            for chunk in shuffled(&arrival.chunks, random) {
                if replay % 4 == 0 {
                    dawdle(random, 50);
                }
                arrival.copy(chunk);
                let address = arrival.signals.signal_address(chunk).unwrap();
                let copies = arrival.copies.cu_stream();
                // SAFETY: a live stream, and a word of device memory of `signals`.
                unsafe { sys::cuStreamWriteValue32_v2(copies, address, epoch, 0) }
                    .result()
                    .unwrap();
            }
            arrival.check_exact(gpu);
        }
        assert_eq!(arrival.signals.read_epoch(stream).unwrap(), start.wrapping_add(REPLAYS));
    }
    let gpu = Gpu::untracked();
    let mut random = Random::new(6);
    for kernel in tried_kernels() {
        let mut case = Case::new(kernel, 300, 200, 300);
        case.options.splits = Some(case.most_splits().min(2));
        // `check_exact` runs the plain product between the replays.
        for_types!(kernel.elements, run(&gpu, &case, &mut random));
        println!("{kernel}: {REPLAYS} replays");
    }
}

/// A graph of a whole step: its epoch, its copies and posts, its product.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn whole_steps_replay() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        let mut staging = gpu.upload(&arrival.inputs.a);
        let stream = &gpu.stream;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        arrival.signals.advance(stream).unwrap();
        for chunk in shuffled(&arrival.chunks, random) {
            let (rows, lda) = (arrival.chunks.rows(chunk), arrival.problem.lda() as usize);
            let part = rows.start as usize * lda..(rows.end as usize * lda).min(staging.len());
            let mut to = arrival.device.a.slice_mut(part.clone());
            stream.memcpy_dtod(&staging.slice(part), &mut to).unwrap();
            arrival.signals.post(stream, chunk).unwrap();
        }
        arrival.enqueue(gpu);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        for _ in 0..20 {
            arrival.renew(gpu, random);
            stream.memcpy_htod(&arrival.inputs.a, &mut staging).unwrap();
            graph.launch().unwrap();
            arrival.check_exact(gpu);
        }
    }
    on_every_kernel(7, 1, |gpu, kernel, random| {
        let case = Case { scaling: Scaling::None, ..random_case(kernel, random) };
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_plans_on_two_streams_at_once() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let half = gpu.device.info().sm_count / 2;
        let case = case.clone().with(|options| options.with_sm_limit(half));
        let stream = gpu.device.new_stream().unwrap();
        let gpus = [Gpu { device: gpu.device.clone(), stream }, {
            Gpu { device: gpu.device.clone(), stream: gpu.stream.clone() }
        }];
        let mut both = gpus.each_ref().map(|gpu| Arrival::<A, B, D>::new(gpu, &case, 0, random));
        for _ in 0..5 {
            for (gpu, arrival) in gpus.iter().zip(&mut both) {
                arrival.renew(gpu, random);
                arrival.signals.advance(&gpu.stream).unwrap();
            }
            for (gpu, arrival) in gpus.iter().zip(&both) {
                arrival.enqueue(gpu);
            }
            // Both are waiting; one thread each delivers.
            std::thread::scope(|scope| {
                for arrival in &mut both {
                    let mut random = Random::new(random.next_u64());
                    scope.spawn(move || {
                        for chunk in shuffled(&arrival.chunks, &mut random) {
                            dawdle(&mut random, 100);
                            arrival.copy(chunk);
                            arrival.signals.write(&arrival.copies, chunk).unwrap();
                        }
                    });
                }
            });
            for (gpu, arrival) in gpus.iter().zip(&mut both) {
                arrival.check_exact(gpu);
            }
        }
    }
    on_every_kernel(8, 1, |gpu, kernel, random| {
        let case = random_case(kernel, random);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn chunks_find_their_signals_in_any_slots() {
    let gpu = Gpu::untracked();
    let kernel = tried_kernels()[0];
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let mut arrival = Arrival::<A, B, D>::new(gpu, case, 0, random);
        let count = arrival.chunks.len();
        let slots: Vec<u32> = (0..count).map(|chunk| 3 * (count - chunk)).collect();
        let pivot = arrival.gemm.tile_order().pivot_rank();
        let plan = || {
            AsyncGemm::plan(&gpu.device, &arrival.problem, &arrival.chunks, pivot, &case.options)
        };
        arrival.gemm = plan().unwrap().with_slots(&slots).unwrap();
        assert!(plan().unwrap().with_slots(&slots[1..]).is_err());

        // As many slots as chunks are too few now.
        // SAFETY: refused before anything is enqueued.
        let few = unsafe {
            arrival.gemm.enqueue_raw(&gpu.stream, &arrival.operands(gpu), &arrival.signals)
        };
        assert!(few.unwrap_err().to_string().starts_with("the slot is "));
        arrival.signals = Signals::new(&gpu.device, 3 * count + 1).unwrap();
        arrival.renew(gpu, random);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.enqueue(gpu);
        for chunk in shuffled(&arrival.chunks, random) {
            arrival.copy(chunk);
            arrival.signals.write(&arrival.copies, slots[chunk as usize]).unwrap();
        }
        arrival.check_exact(gpu);
    }
    let mut random = Random::new(9);
    let case = random_case(kernel, &mut random);
    for_types!(kernel.elements, run(&gpu, &case, &mut random));
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn as_many_chunks_as_there_may_be() {
    fn run<A: Number, B: Number, D: Number>(gpu: &Gpu, case: &Case, random: &mut Random) {
        let shards = Shards::even(case.size[0] as u32, 4).unwrap();
        let chunks = Chunks::even(&shards, 64).unwrap();
        assert_eq!(chunks.len(), overlap_gemm::cuda::MAX_CHUNKS);
        let mut arrival = Arrival::<A, B, D>::with_chunks(gpu, case, &chunks, 2, 0, random);
        arrival.renew(gpu, random);
        arrival.signals.advance(&gpu.stream).unwrap();
        arrival.enqueue(gpu);
        for chunk in shuffled(&arrival.chunks, random) {
            arrival.copy(chunk);
            arrival.signals.write(&arrival.copies, chunk).unwrap();
        }
        arrival.check_exact(gpu);
    }
    on_every_kernel(10, 1, |gpu, kernel, random| {
        let case = Case::new(kernel, random.within(256..=700), 264, 300);
        for_types!(kernel.elements, run(gpu, &case, random));
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn tracked_buffers_are_right_if_not_overlapped() {
    let gpu = Gpu::open();
    let problem = Problem::builder(256, 256, 256).build().unwrap();
    let chunks = Chunks::even(&Shards::even(256, 2).unwrap(), 2).unwrap();
    let gemm = AsyncGemm::plan(&gpu.device, &problem, &chunks, 1, &GemmOptions::default()).unwrap();
    let signals = Signals::new(&gpu.device, 4).unwrap();
    let one = overlap_gemm::element::bf16::ONE;
    let (a, b) = (gpu.upload(&vec![one; 256 * 256]), gpu.upload(&vec![one; 256 * 256]));
    let mut d = gpu.upload(&vec![overlap_gemm::element::bf16::NAN; 256 * 256]);
    signals.advance(&gpu.stream).unwrap();
    signals.post_all(&gpu.stream).unwrap();
    let short = Operands::new(&a, &b, &mut d).rows(255);
    let error = gemm.enqueue(&gpu.stream, short, &signals).unwrap_err();
    assert!(error.to_string().starts_with("the number of rows is 255"), "{error}");
    gemm.enqueue(&gpu.stream, Operands::new(&a, &b, &mut d), &signals).unwrap();
    assert!(gpu.download(&d).iter().all(|x| x.to_f32() == 256.0));
    assert_eq!(signals.check(), Ok(()));
}

#[test]
fn random_chunks_are_what_the_tests_need() {
    let mut random = Random::new(11);
    let (mut empty, mut several) = (false, false);
    for _ in 0..200 {
        let m = random.within(1..=700) as u32;
        let chunks = random_chunks(m, &mut random);
        assert!((1..=16).contains(&chunks.len()) && chunks.shards().m() == m);
        assert!(random_pivot(&chunks, &mut random) < chunks.shards().ranks());
        let mut order = shuffled(&chunks, &mut random);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..chunks.len()));
        empty |= chunks.shards().to_rows().contains(&0);
        several |= chunks.len() > 8;
    }
    assert!(empty && several);
}

#[test]
fn without_kernels_a_product_that_waits_is_refused_too() {
    let problem = Problem::builder(64, 64, 64).build().unwrap();
    let chunks = Chunks::even(problem.shards(), 4).unwrap();
    let checked = AsyncGemm::check(&problem, &chunks, 0, &GemmOptions::default());
    assert_eq!(checked, kernels_built());
}
