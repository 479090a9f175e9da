//! Products whose input arrives while they run.
//!
//! What belongs here: [`cuda::AsyncGemm`](overlap_gemm::cuda::AsyncGemm) and
//! [`Signals`] from the outside, where everything goes well: nothing is read early, the order is the
//! planned one, epochs go on and wrap, in graphs too. What happens when chunks do not come is in
//! `faults.rs`. Chunks, and spans of their columns, that have not arrived hold NaN; results have to be, bit for bit, what
//! the same kernel computes without signals, and the reference has to agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gpu::arrival::{Arrival, dawdle, in_spans, shuffled};
use crate::gpu::call::{From, Part};
use crate::gpu::case::Case;
use crate::gpu::{Gpu, PATIENCE, captured, on_every_kernel};
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{DevicePtr, sys};
use overlap_gemm::cuda::{
    Activation, AsyncGemm, ChunkWait, DeviceMatrix, DeviceMatrixMut, Gemm, GemmOptions, Operands,
    RawOperands, Signals, kernels_built,
};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Chunks, Problem, Scaling, Shards};
use overlap_gemm::random::Random;

/// Sizes that are drawn are at most this.
const MOST: u64 = 700;

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn nothing_is_read_before_its_signal() {
    on_every_kernel(1, |gpu, kernel, random| {
        for _ in 0..8 {
            let case = Case::random(kernel, MOST, random);
            let mut arrival = Arrival::new(gpu, &case, 0, random);
            for _ in 0..2 {
                arrival.begin_step(random);
                arrival.enqueue();
                // The product is running by now or soon; another thread delivers, late and in any order.
                let mut delays = Random::new(random.next_u64());
                std::thread::scope(|scope| {
                    scope.spawn(|| arrival.deliver_all(&mut delays, 300));
                });
                arrival.check(random);
            }
        }
    });
}

/// The copy stream is filled at once, behind the product, and posts with kernels: they need an SM.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn copies_and_posts_overtake_a_product_that_leaves_sms_free() {
    on_every_kernel(2, |gpu, kernel, random| {
        let most = u64::from(gpu.device.info().sm_count) - 8;
        for _ in 0..6 {
            let mut case = Case::random(kernel, MOST, random);
            let limit = random.within(kernel.cluster_size().into()..=most);
            case.options.sm_limit = Some(limit as u32);
            let mut arrival = Arrival::new(gpu, &case, 7, random);
            arrival.begin_step(random);
            arrival.copies.join(&gpu.stream).unwrap();
            arrival.enqueue();
            for part in shuffled(&arrival.chunks, random) {
                arrival.copy(part);
                arrival.signals.post(&arrival.copies, part).unwrap();
            }
            arrival.check(random);
        }
    });
}

/// A slice of K that the first span has nothing of finds the row scales all the same.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn row_scales_come_with_the_first_span_of_columns() {
    on_every_kernel(7, |gpu, kernel, random| {
        if kernel.max_splits == 1 || !kernel.elements.a.is_fp8() {
            return;
        }
        let (m, k) = (random.within(100..=400), 8 * u64::from(kernel.tile_k));
        let mut case = Case::new(kernel, m, 256, k);
        case.scaling = Scaling::Rows;
        case.options.splits = Some(random.within(2..=4) as u32);
        let chunks = Chunks::even(&Shards::even(m as u32, 1).unwrap(), 2).unwrap();
        let chunks = in_spans(chunks, &case.problem(), 4);
        assert!(chunks.spans() > 1);
        let mut arrival = Arrival::with_chunks(gpu, &case, &chunks, 0, 0, random);
        for _ in 0..3 {
            arrival.begin_step(random);
            arrival.enqueue();
            let is_first = |part: &u32| part.is_multiple_of(chunks.spans());
            let (first, others): (Vec<_>, Vec<_>) =
                shuffled(&chunks, random).into_iter().partition(is_first);
            others.into_iter().for_each(|part| arrival.deliver(part));
            arrival.copies.synchronize().unwrap();
            // Until the other slices have been multiplied.
            std::thread::sleep(Duration::from_micros(300));
            first.into_iter().for_each(|part| arrival.deliver(part));
            arrival.check(random);
        }
    });
}

/// The mutant without the wait: signals that are set before the data is there. The comparison has to
/// notice, or the tests above would prove nothing.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn mutant_signal_before_data_is_caught() {
    on_every_kernel(3, |gpu, kernel, random| {
        let case = Case::new(kernel, random.within(100..=400), 256, 256);
        let mut arrival = Arrival::new(gpu, &case, 0, random);
        arrival.begin_step(random);
        arrival.post_all();
        arrival.enqueue();
        arrival.call.fetch(&gpu.stream);
        assert_eq!(arrival.signals.check(), Ok(()));
        let rows: Vec<u32> = (0..arrival.problem.m().min(8)).collect();
        let report = arrival.call.report(&rows);
        assert_eq!(report.wrong, report.compared, "{case:?}: NaN went unnoticed: {report:?}");
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn tiles_are_computed_in_the_planned_order() {
    fn check(gpu: &Gpu, mut arrival: Arrival, case: &Case) {
        let stream = &gpu.stream;
        let records = arrival.gemm.records().unwrap();
        arrival.advance();
        arrival.post_all();
        let Arrival { gemm, signals, call, .. } = &mut arrival;
        call.enqueue_recorded(gemm, stream, signals, &records);
        let records = records.read(stream).unwrap();

        let (order, splits) = (gemm.tile_order(), u64::from(gemm.choice().splits));
        assert_eq!(records.len() as u64, order.tile_count() * splits, "{case:?}");
        let (mut by_sm, mut seen) = (BTreeMap::<u32, Vec<_>>::new(), BTreeSet::new());
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
        arrival.check_exact();
    }
    on_every_kernel(4, |gpu, kernel, random| {
        for _ in 0..16 {
            let mut case = Case::random(kernel, MOST, random);
            if random.within(0..=1) == 0 {
                // Few SMs: each has many tiles.
                let limit = random.within(kernel.cluster_size().into()..=8);
                case.options.sm_limit = Some(limit as u32);
            }
            check(gpu, Arrival::new(gpu, &case, 0, random), &case);
        }
        // Chunks of one rank, expected early: two rows of units sweep together, each of which ends in another chunk.
        let [rows, columns] =
            [kernel.tile.m * kernel.cluster.m, kernel.tile.n * kernel.cluster.n].map(u64::from);
        let mut case = Case::new(kernel, 4 * rows, 3 * columns, 2 * u64::from(kernel.tile_k));
        case.options.swizzle = Some(2);
        let shards = Shards::even(4 * rows as u32, 1).unwrap();
        for chunks in [Chunks::even(&shards, 8), Chunks::even(&shards, 8).map(Chunks::early)] {
            let chunks = chunks.unwrap();
            check(gpu, Arrival::with_chunks(gpu, &case, &chunks, 0, 0, random), &case);
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn epochs_wrap() {
    on_every_kernel(5, |gpu, kernel, random| {
        let case = Case::random(kernel, MOST, random);
        for start in [u32::MAX - 2, i32::MAX as u32 - 2] {
            let mut arrival = Arrival::new(gpu, &case, start, random);
            for step in 1..=6 {
                arrival.begin_step(random);
                assert_eq!(arrival.signals.epoch(), start.wrapping_add(step));
                arrival.enqueue();
                arrival.deliver_all(random, 100);
                arrival.check_exact();
                let epoch = arrival.signals.read_epoch(&gpu.stream).unwrap();
                assert_eq!(epoch, start.wrapping_add(step));
            }
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_hundred_replays_with_new_inputs_and_epochs_are_exact() {
    const REPLAYS: u32 = 200;
    on_every_kernel(6, |gpu, kernel, random| {
        let mut case = Case::new(kernel, 300, 200, 300);
        case.options.splits = Some(case.most_splits().min(2));
        let start = u32::MAX - REPLAYS / 2;
        let mut arrival = Arrival::new(gpu, &case, start, random);
        let stream = &gpu.stream;
        let graph = captured(stream, true, || {
            arrival.advance();
            arrival.enqueue();
            let refused = arrival.signals.write(stream, 0).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        });
        assert_eq!(arrival.signals.epoch(), start, "a capture runs nothing");

        for replay in 0..REPLAYS {
            arrival.renew(random);
            graph.launch().unwrap();
            // The product waits in the graph; chunks come from outside of it.
            let epoch = start.wrapping_add(replay + 1);
            for part in shuffled(&arrival.chunks, random) {
                if replay % 4 == 0 {
                    dawdle(random, 50);
                }
                arrival.copy(part);
                let address = arrival.signals.signal_address(part).unwrap();
                let copies = arrival.copies.cu_stream();
                // SAFETY: a live stream, and a word of device memory of `signals`.
                unsafe { sys::cuStreamWriteValue32_v2(copies, address, epoch, 0) }
                    .result()
                    .unwrap();
            }
            // Runs the plain product between the replays.
            arrival.check_exact();
        }
        assert_eq!(arrival.signals.read_epoch(stream).unwrap(), start.wrapping_add(REPLAYS));
    });
}

/// A graph of a whole step: its epoch, its copies and posts, its product.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn whole_steps_replay() {
    on_every_kernel(7, |gpu, kernel, random| {
        let case = Case { scaling: Scaling::None, ..Case::random(kernel, MOST, random) };
        let mut arrival = Arrival::new(gpu, &case, 0, random);
        let mut staging = gpu.upload(arrival.call.bytes());
        let stream = &gpu.stream;
        let (from, to) = (staging.device_ptr(stream).0, arrival.operands().a);
        let graph = captured(stream, true, || {
            arrival.advance();
            for part in shuffled(&arrival.chunks, random) {
                let (rows, columns) = arrival.part(part);
                let copied = Part::of(&arrival.problem, &rows, &columns);
                // SAFETY: both buffers are A's, and outlive the graph's last launch.
                unsafe { copied.copy(stream, to, From::Device(from)) };
                arrival.signals.post(stream, part).unwrap();
            }
            arrival.enqueue();
        });
        for _ in 0..20 {
            arrival.renew(random);
            stream.memcpy_htod(arrival.call.bytes(), &mut staging).unwrap();
            graph.launch().unwrap();
            arrival.check_exact();
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_plans_on_two_streams_at_once() {
    on_every_kernel(8, |gpu, kernel, random| {
        let half = gpu.device.info().sm_count / 2;
        let case = Case::random(kernel, MOST, random).with(|options| options.with_sm_limit(half));
        let gpus = [Gpu::of(&gpu.device), gpu.clone()];
        let mut both = gpus.each_ref().map(|gpu| Arrival::new(gpu, &case, 0, random));
        for _ in 0..5 {
            both.iter_mut().for_each(|arrival| arrival.begin_step(random));
            both.iter().for_each(Arrival::enqueue);
            // Both are waiting; one thread each delivers.
            std::thread::scope(|scope| {
                for arrival in &mut both {
                    let mut random = Random::new(random.next_u64());
                    scope.spawn(move || arrival.deliver_all(&mut random, 100));
                }
            });
            both.iter_mut().for_each(Arrival::check_exact);
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn as_many_chunks_as_there_may_be() {
    on_every_kernel(10, |gpu, kernel, random| {
        let case = Case::new(kernel, random.within(256..=MOST), 264, 300);
        let shards = Shards::even(case.size[0] as u32, 4).unwrap();
        let chunks = Chunks::even(&shards, 64).unwrap();
        assert_eq!(chunks.len(), overlap_gemm::cuda::MAX_AWAITED_CHUNKS);
        let mut arrival = Arrival::with_chunks(gpu, &case, &chunks, 2, 0, random);
        arrival.begin_step(random);
        arrival.enqueue();
        arrival.deliver_all(random, 0);
        arrival.check_exact();
    });
}

/// What `run-gpu-tests --sanitize` runs: three steps a kernel. Its tools may hold up every other call
/// while a kernel runs, so chunks come before the product; what does not come then never does.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn small_steps_for_the_sanitizer() {
    on_every_kernel(12, |gpu, kernel, random| {
        let case = Case::small(kernel);
        let chunks = Chunks::even(&Shards::even(case.size[0] as u32, 2).unwrap(), 2).unwrap();
        let mut arrival = Arrival::with_chunks(gpu, &case, &chunks, 1, 0, random);
        for _ in 0..2 {
            arrival.begin_step(random);
            arrival.deliver_all(random, 0);
            arrival.copies.synchronize().unwrap();
            arrival.enqueue();
            arrival.check(random);
        }
        arrival.begin_step(random);
        let mut arrival = arrival.with_limit(Duration::from_millis(1));
        arrival.enqueue();
        gpu.stream.synchronize().unwrap();
        let error = arrival.signals.check().unwrap_err();
        assert!(matches!(error, Error::PeerTimeout { .. }), "{error:?}");
        arrival.call.fetch(&gpu.stream);
        assert_eq!(arrival.call.numbers_in(0..arrival.problem.m()), 0, "{case:?}");
    });
}

/// Two products of one A, each with options of its own; calls of fewer rows have other chunks. The results are those of plain
/// products, bit for bit.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn several_products_of_rows_that_vary_are_right() {
    let gpu = Gpu::open();
    let (stream, copies) = (&gpu.stream, gpu.device.new_stream().unwrap());
    let random = &mut Random::new(21);
    let (most, k) = (640u64, 768);
    let activated = GemmOptions::default().with_activation(Activation::Silu).with_bias(true);
    let widths = [256, 384];
    let products = |m| {
        let problem = |n| Problem::builder(m, n, k).ranks(2).build().unwrap();
        [(problem(widths[0]), GemmOptions::default()), (problem(widths[1]), activated.clone())]
    };
    let chunks =
        |problem: &Problem| in_spans(Chunks::even(problem.shards(), 3).unwrap(), problem, 2);
    let largest = products(most);
    let gemm = AsyncGemm::plan_all(&gpu.device, &largest, &chunks(&largest[0].0), 1).unwrap();
    let gemm = gemm.with_timeouts(PATIENCE, PATIENCE);
    let plain = largest
        .each_ref()
        .map(|(problem, options)| Gemm::plan(&gpu.device, problem, options).unwrap());
    let signals = Signals::new(&gpu.device, chunks(&largest[0].0).signals()).unwrap();
    let numbers = |count: u64, random: &mut Random| -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(random.within(0..=32) as f32 / 16.0 - 1.0)).collect()
    };
    let blank = |count: u64| stream.clone_htod(&vec![bf16::NAN; count as usize]).unwrap();
    let b = widths.map(|n| stream.clone_htod(&numbers(n * k, random)).unwrap());
    let bias = stream.clone_htod(&numbers(widths[1], random)).unwrap();

    for m in [most, 200, 6, 513, 200, most] {
        let [(problem, _), _] = products(m);
        let chunks = chunks(&problem);
        let wait = (m < most).then(|| {
            let wait = ChunkWait::plan(&problem, &chunks, 1).unwrap();
            wait.with_timeouts(PATIENCE, PATIENCE)
        });
        let a = numbers(m * k, random);
        let (arrived, whole) = (blank(m * k), stream.clone_htod(&a).unwrap());
        let [mut d, mut expected] = [(); 2].map(|()| widths.map(|n| blank(m * n)));
        let to = arrived.device_ptr(stream).0;
        // SAFETY: it is so long; chunks are written before their signals; below the stream is waited for.
        let arriving = unsafe { DeviceMatrix::<bf16>::from_raw(to, m, k) };
        let [first, second] = &mut d;
        let operands = [
            Operands::new(arriving, &b[0], first),
            Operands::new(arriving, &b[1], second).bias(&bias),
        ];
        signals.advance(stream).unwrap();
        copies.join(stream).unwrap();
        gemm.enqueue(stream, operands, wait.as_ref(), &signals).unwrap();
        for part in shuffled(&chunks, random) {
            let spans = chunks.spans();
            let columns = chunks.columns(&problem, part % spans);
            let part_of_a = Part::of(&problem, &chunks.rows(part / spans), &columns);
            // SAFETY: both are A of this problem, and the streams are waited for below.
            unsafe { part_of_a.copy(&copies, to, From::Host(a.as_ptr().cast())) };
            signals.write(&copies, part).unwrap();
        }
        copies.synchronize().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(signals.check(), Ok(()));
        for nth in 0..2 {
            let operands = Operands::new(&whole, &b[nth], &mut expected[nth]).rows(m as u32);
            let operands = if nth == 1 { operands.bias(&bias) } else { operands };
            plain[nth].enqueue(stream, operands).unwrap();
            let bits = |of| -> Vec<u16> {
                stream.clone_dtoh(of).unwrap().into_iter().map(bf16::to_bits).collect()
            };
            let (got, expected) = (bits(&d[nth]), bits(&expected[nth]));
            assert!(expected.iter().all(|bits| bf16::from_bits(*bits).is_finite()));
            assert!(got == expected, "product {nth} of {m} rows");
        }
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn other_rows_than_planned_and_too_few_signals_are_refused() {
    let gpu = Gpu::open();
    let problem = Problem::builder(256, 256, 256).build().unwrap();
    let chunks = Chunks::even(&Shards::even(256, 2).unwrap(), 2).unwrap();
    let gemm = AsyncGemm::plan(&gpu.device, &problem, &chunks, 1, &GemmOptions::default()).unwrap();
    let signals = Signals::new(&gpu.device, 4).unwrap();
    let whole = RawOperands::new(16, 16, 16);
    let few = Signals::new(&gpu.device, 3).unwrap();
    for slots in [0, overlap_gemm::plan::MAX_CHUNKS + 1] {
        let text = Signals::new(&gpu.device, slots).map(drop).unwrap_err().to_string();
        assert!(text.starts_with(&format!("the number of signal slots is {slots}")), "{text}");
    }
    // SAFETY: refused before any address is used.
    let errors = unsafe {
        let short = gemm.enqueue_raw(&gpu.stream, &whole.rows(255), &signals);
        [short, gemm.enqueue_raw(&gpu.stream, &whole, &few)].map(|error| error.unwrap_err())
    };
    let texts = errors.map(|error| error.to_string());
    assert!(texts[0].starts_with("the number of rows is 255"), "{texts:?}");
    assert!(texts[1].starts_with("the slot is 3"), "{texts:?}");
    // SAFETY: as above.
    let (input, d) = unsafe {
        let d = DeviceMatrixMut::<bf16>::from_raw(16, 256, 256);
        (DeviceMatrix::<bf16>::from_raw(16, 256, 256), d)
    };
    let short = Operands::new(input, input, d).rows(255);
    let error = gemm.enqueue(&gpu.stream, [short], None, &signals).unwrap_err();
    assert!(error.to_string().starts_with("the number of rows is 255"), "{error}");
    let mut matrix = gpu.stream.alloc_zeros::<bf16>(256 * 256).unwrap();
    let slice = gpu.stream.alloc_zeros::<bf16>(256 * 256).unwrap();
    let operands = Operands::new(&slice, input, &mut matrix);
    let error = gemm.enqueue(&gpu.stream, [operands], None, &signals).unwrap_err();
    assert!(error.to_string().contains("an A that is a slice of `cudarc`"), "{error}");

    let wait = |m, k| {
        let problem = Problem::builder(m, 256, k).build().unwrap();
        let chunks = Chunks::even(problem.shards(), 2).unwrap().in_spans(2).unwrap();
        ChunkWait::plan(&problem, &chunks, 0).unwrap()
    };
    let refused = |operands: &[RawOperands], wait| {
        // SAFETY: as above.
        unsafe { gemm.enqueue_all_raw(&gpu.stream, operands, Some(&wait), &signals) }
            .unwrap_err()
            .to_string()
    };
    let longer = refused(&[whole], wait(256, 4096));
    assert!(
        longer.starts_with("the bytes of a span of columns that is awaited is 4096"),
        "{longer}"
    );
    let more = refused(&[whole], wait(300, 256));
    assert!(more.contains("300"), "{more}");
    let two = refused(&[whole, whole], wait(256, 256));
    assert!(two.starts_with("the number of operands is 2"), "{two}");
}

#[test]
fn without_kernels_a_product_that_waits_is_refused_too() {
    let problem = Problem::builder(64, 64, 64).build().unwrap();
    let chunks = Chunks::even(problem.shards(), 4).unwrap();
    let checked = AsyncGemm::check(&problem, &chunks, 0, &GemmOptions::default());
    assert_eq!(checked, kernels_built());
}
