//! Every compiled kernel against an f64 reference, and what happens where there is no GPU.
//!
//! What belongs here: [`cuda::Gemm`](overlap_gemm::cuda::Gemm) from the outside: sizes, pitches, ways to
//! run, streams, graphs, refusals. Epilogues are in `gpu_gemm/epilogue.rs`. Tests that need a GPU are ignored
//! unless asked for (`cargo test --features cuda -- --ignored`, or `scripts/stage-gpu` for a machine
//! without cargo); the others run everywhere. Inputs are random, outputs are poisoned with NaN before,
//! and what surrounds D must come back untouched.
#![cfg(feature = "cuda")]

#[path = "gpu_gemm/epilogue.rs"]
mod epilogue;
#[path = "common/gpu/mod.rs"]
mod gpu;

use std::sync::atomic::{AtomicUsize, Ordering};

use gpu::call::{call, check};
use gpu::case::Case;
use gpu::inputs::random_rows;
use gpu::plain::{run, run_cases};
use gpu::{
    Gpu, captured, in_parallel, on_all_cores, on_every_kernel, share_of_rounds, tried_kernels,
};
use overlap_gemm::Error;
use overlap_gemm::cuda::{
    self, Device, DeviceMatrix, DeviceMatrixMut, Gemm, GemmOptions, Kernel, Operands,
};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::Problem;
use overlap_gemm::random::Random;

const SEED: u64 = 0x6a09_e667_f3bc_c908;

/// Kernels that cannot cut K have nothing to show there.
fn on_kernels_that_cut_k(run: impl Fn(&Gpu, &'static Kernel, &mut Random)) {
    let mut tried = 0;
    on_every_kernel(SEED, |gpu, kernel, random| {
        if kernel.max_splits > 1 {
            run(gpu, kernel, random);
            tried += 1;
        }
    });
    assert!(tried > 0, "none of these kernels cuts K");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn whole_tiles() {
    run_cases(SEED, |kernel, _| {
        let tile = [kernel.tile.m, kernel.tile.n, kernel.tile_k].map(u64::from);
        let cluster = [kernel.cluster.m, kernel.cluster.n].map(u64::from);
        let of = |m: u64, n: u64, k: u64| {
            let [rows, columns] = [m * tile[0] * cluster[0], n * tile[1] * cluster[1]];
            Case::new(kernel, rows, columns, k * tile[2])
        };
        vec![of(1, 1, 1), of(2, 2, 3), of(3, 1, 8)]
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sizes_that_no_tile_divides() {
    run_cases(SEED, |kernel, _| {
        let of = |m, n, k| Case::new(kernel, m, n, k);
        vec![
            of(1, 8, 8),
            of(1, 8, 1),
            of(7, 264, 72),
            of(129, 264, 65),
            of(300, 504, 700),
            of(1000, 8, 1),
        ]
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn pitches_longer_than_rows() {
    run_cases(SEED, |kernel, _| {
        let of = |m, n, k, pads| Case::new(kernel, m, n, k).padded(pads);
        vec![
            of(128, 256, 64, [1, 2, 3]),
            of(300, 520, 136, [5, 0, 7]),
            of(77, 500, 333, [0, 9, 1]),
            of(200, 300, 512, [64, 128, 256]),
        ]
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn random_products() {
    run_cases(SEED, |kernel, random| {
        let rounds = share_of_rounds(kernel, 24);
        // The widths of one kernel draw other cases.
        let mut random =
            Random::of_stream(random.next_u64(), (kernel.tile.m + kernel.tile.n).into());
        (0..rounds).map(|_| Case::random(kernel, 700, &mut random)).collect()
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_number_of_splits_gives_the_same() {
    run_cases(SEED, |kernel, random| {
        let k = u64::from(kernel.tile_k) * 17 + random.within(1..=40);
        let (m, n) = (random.within(1..=200), random.within(8..=600));
        let case = Case::new(kernel, m, n, k);
        (2..=case.most_splits())
            .map(|splits| case.clone().with(|o| o.with_splits(splits)))
            .collect()
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn fewer_sms_and_other_sweeps_give_the_same() {
    run_cases(SEED, |kernel, random| {
        let least = kernel.cluster_size();
        let case = Case::new(kernel, random.within(300..=700), random.within(300..=700), 200);
        let limits =
            [least, least + 1, 16, 77].map(|limit| case.clone().with(|o| o.with_sm_limit(limit)));
        let sweeps = [1, 2, 3, 7, 64].map(|swizzle| case.clone().with(|o| o.with_swizzle(swizzle)));
        limits.into_iter().chain(sweeps).collect()
    });
}

/// One cluster computes five units, each longer than all stages together: so each begins in another stage, and of two groups of
/// warps that take turns, each begins in other laps.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn one_cluster_goes_round_the_stages() {
    run_cases(SEED, |kernel, _| {
        let rows = u64::from(kernel.tile.m * kernel.cluster.m);
        let case = Case::new(kernel, 4 * rows + 1, 40, 17 * u64::from(kernel.tile_k) - 8);
        vec![case.with(|o| o.with_sm_limit(kernel.cluster_size()))]
    });
}

/// The last blocks of a cluster that has blocks along both sides compute nothing, and share stages with those that do.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn d_fills_clusters_along_neither_side() {
    let both_sides = |kernel: &Kernel| kernel.cluster.m > 1 && kernel.cluster.n > 1;
    run_cases(SEED, |kernel, random| {
        if !both_sides(kernel) {
            return Vec::new();
        }
        let mut size = |tile: u32, blocks: u32| {
            let (tile, blocks) = (u64::from(tile), u64::from(blocks));
            tile * blocks * random.within(0..=2) + random.within(1..=tile * (blocks - 1))
        };
        let k = 17 * u64::from(kernel.tile_k) - 8;
        let case = |_| {
            let [m, n] =
                [size(kernel.tile.m, kernel.cluster.m), size(kernel.tile.n, kernel.cluster.n)];
            Case::new(kernel, m, n, k).with(|o| o.with_sm_limit(kernel.cluster_size()))
        };
        (0..12).map(case).collect()
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn fewer_rows_than_planned() {
    run_cases(SEED, |kernel, random| {
        let planned = random.within(200..=600);
        let case = Case::new(kernel, planned, 264, 96);
        [1, 2, 17, 128, 129, planned - 1, planned]
            .map(|rows| Case { rows: Some(rows as u32), ..case.clone() })
            .into()
    });
}

/// The workspace of the slices is left as the next call needs it, whichever rows that has.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn rows_vary_while_k_is_cut() {
    on_kernels_that_cut_k(|gpu, kernel, random| {
        let case = Case::new(kernel, 900, 2000, 1000);
        let case = case.clone().with(|options| options.with_splits(case.most_splits().min(3)));
        let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
        let mut call = call(gpu, &case, random);
        for rows in [900, 100, 900, 513, 700, 1, 900] {
            call.renew(&gpu.stream, random);
            call.poison_d(&gpu.stream);
            let operands = call.addresses(&gpu.stream).rows(rows);
            // SAFETY: the call's own memory, which outlives the look at it.
            unsafe { gemm.enqueue_raw(&gpu.stream, &operands) }.unwrap();
            check(&mut *call, &gpu.stream, &case, rows, random);
        }
    });
}

/// What `run-gpu-tests --sanitize` runs: two launches a kernel, and two of a gated product.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn small_products_for_the_sanitizer() {
    on_every_kernel(SEED, |gpu, kernel, random| {
        run(gpu, &Case::small(kernel), random);
        if kernel.gates {
            run(gpu, &Case::small(kernel).gated(), random);
        }
    });
}

/// The kernel that is chosen, on sizes that a layer has.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn chosen_kernels_at_real_sizes() {
    let device = Device::open(0).unwrap();
    println!("{:?}, {:?}", device.info(), cuda::build_info().unwrap());
    let sizes = [(2048, 3584, 8192), (4096, 1792, 4096), (16, 3584, 8192), (1, 4096, 4096)];
    let cases = sizes.map(|(m, n, k)| {
        let problem = Problem::builder(m, n, k).build().unwrap();
        let chosen = Gemm::plan(&device, &problem, &GemmOptions::default()).unwrap();
        Case { options: GemmOptions::default(), ..Case::new(chosen.kernel(), m, n, k) }
    });
    in_parallel(&cases, |gpu, at, case| run(gpu, case, &mut Random::of_stream(SEED, at as u64)));
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn any_thread_may_enqueue() {
    let device = Device::open(0).unwrap();
    // One that has a workspace, if there is any: its uses have to be ordered over the streams.
    let kernels = tried_kernels();
    let kernel = kernels.iter().max_by_key(|kernel| kernel.max_splits).unwrap();
    let case = Case::new(kernel, 512, 512, 512);
    let case = case.clone().with(|options| options.with_splits(case.most_splits().min(2)));
    let gemm = Gemm::plan(&device, &case.problem(), &case.options).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (device, gemm, case) = (&device, &gemm, &case);
            // A thread on which no context is current, with a stream of its own.
            scope.spawn(move || {
                let mut random = Random::of_stream(SEED, seed);
                let gpu = Gpu::of(device);
                let mut call = call(&gpu, case, &mut random);
                for _ in 0..10 {
                    call.enqueue(gemm, &gpu.stream);
                }
                check(&mut *call, &gpu.stream, case, 512, &mut random);
            });
        }
    });
}

/// Each gets a part of the SMs. Whoever adds up the slices of a tile holds its SM until they are there, so
/// none may wait for a slice whose block has not got an SM yet.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_products_that_cut_k_share_the_gpu() {
    on_kernels_that_cut_k(|gpu, kernel, random| {
        let case = Case::new(kernel, 700, 2000, 1000);
        // Numbers that do not divide the number of clusters.
        for splits in [3, 5, 7].map(|splits: u32| splits.min(case.most_splits())) {
            let case = case.clone().with(|options| options.with_splits(splits));
            let mut both = [gpu.clone(), Gpu::of(&gpu.device)].map(|gpu| {
                let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
                let call = call(&gpu, &case, random);
                (gpu, gemm, call)
            });
            for _ in 0..50 {
                for (gpu, gemm, call) in &mut both {
                    call.enqueue(gemm, &gpu.stream);
                }
            }
            for (gpu, _, mut call) in both {
                check(&mut *call, &gpu.stream, &case, 700, random);
            }
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_captured_product_replays_on_new_inputs() {
    on_every_kernel(99, |gpu, kernel, random| {
        let stream = &gpu.stream;
        let case = Case::new(kernel, 300, 520, 1000);
        let case = case.clone().with(|options| options.with_splits(case.most_splits().min(3)));
        let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
        let mut call = call(gpu, &case, random);
        let operands = call.addresses(stream);

        // The strictest mode: an allocation or a wait in `enqueue` would end the capture with an error.
        // SAFETY: the buffers are of this problem and outlive the graph's last launch.
        let enqueue = || unsafe { gemm.enqueue_raw(stream, &operands) }.unwrap();
        let graph = captured(stream, true, enqueue);
        let mut replay = || {
            call.renew(stream, random);
            call.poison_d(stream);
            graph.launch().unwrap();
            call.fetch(stream);
            call.check_written(300);
            let report = call.report(&[0, 127, 128, 255, 256, 299]);
            assert_eq!(report.wrong, 0, "{case:?}: {report:?}");
        };
        (0..5).for_each(|_| replay());
        if gemm.choice().splits > 1 {
            // The graph may be launched at any time, so another stream may not use the workspace.
            let other = gpu.device.new_stream().unwrap();
            // SAFETY: as above; and nothing is enqueued.
            let error = unsafe { gemm.enqueue_raw(&other, &operands) }.unwrap_err();
            assert!(error.to_string().contains("plan another product for the graph"), "{error}");
        }
        // The plan goes, its workspace stays: what is allocated now lies elsewhere.
        drop(gemm);
        let _others: Vec<_> = (0..16).map(|_| stream.clone_htod(&vec![0xffu8; 1 << 18])).collect();
        replay();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn buffers_that_do_not_fit_are_refused() {
    let gpu = Gpu::open();
    let (stream, problem) = (&gpu.stream, Problem::builder(64, 64, 64).build().unwrap());
    let gemm = Gemm::plan(&gpu.device, &problem, &GemmOptions::default()).unwrap();
    let longer = gpu.upload(&vec![bf16::ZERO; 64 * 64 + 8]);
    let full = longer.slice(..64 * 64);
    let mut d = gpu.upload(&vec![bf16::from_f32(7.0); 64 * 64]);

    let short = full.slice(..64 * 64 - 1);
    let error = gemm.enqueue(stream, Operands::new(&short, &full, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("the length of A is 4095"), "{error}");
    for (a, b, named) in [(&longer.slice(..), &full, "A"), (&full, &longer.slice(..), "B")] {
        let error = gemm.enqueue(stream, Operands::new(a, b, &mut d)).unwrap_err();
        let text = format!("the length of {named} is 4104, but must be 4096");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    let odd = longer.slice(1..64 * 64 + 1);
    let error = gemm.enqueue(stream, Operands::new(&full, &odd, &mut d)).unwrap_err();
    assert!(matches!(error, Error::Misaligned { multiple_of: 16, .. }), "{error}");
    let bias = full.slice(..64);
    let error = gemm.enqueue(stream, Operands::new(&full, &full, &mut d).bias(&bias)).unwrap_err();
    assert!(error.to_string().starts_with("the bias is there, but must be absent"), "{error}");
    let error = gemm.enqueue(stream, Operands::new(&full, &full, &mut d).rows(65)).unwrap_err();
    assert!(error.to_string().starts_with("the number of rows is 65"), "{error}");
    let floats = gpu.upload(&vec![0f32; 64 * 64]);
    let error = gemm.enqueue(stream, Operands::new(&floats, &full, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("the element type of A is f32"), "{error}");
    let transposed = DeviceMatrix::new(&full, 32, 128);
    let error = gemm.enqueue(stream, Operands::new(transposed, &full, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("the columns of A is 128, but must be 64"), "{error}");
    let fewer = DeviceMatrixMut::new(&mut d, 63, 64);
    let error = gemm.enqueue(stream, Operands::new(&full, &full, fewer)).unwrap_err();
    assert!(error.to_string().starts_with("the rows of D is 63"), "{error}");
    let alone = Operands::new(&full, &full, &mut d).ranks_rows(&[64]);
    let error = gemm.enqueue(stream, alone).unwrap_err();
    assert!(
        error.to_string().contains("`ranks_rows` of the operands of a product alone"),
        "{error}"
    );
    let wide = Problem::builder(4096, 4096, 64).build().unwrap();
    let wide = Gemm::plan(&gpu.device, &wide, &GemmOptions::default()).unwrap();
    let mut records = wide.records().unwrap();
    let other = Operands::new(&full, &full, &mut d).records(&mut records);
    let error = gemm.enqueue(stream, other).unwrap_err();
    assert!(error.to_string().starts_with("the length of the tile records is"), "{error}");
    let options = GemmOptions::default().with_sm_limit(100_000);
    let error = Gemm::plan(&gpu.device, &problem, &options).map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("the SM limit is 100000"), "{error}");
    let per_thread = gpu.device.context().per_thread_stream();
    let error = gemm.enqueue(&per_thread, Operands::new(&full, &full, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("the per-thread default stream"), "{error}");

    // Nothing was enqueued by any of it.
    assert!(gpu.download(&d).iter().all(|x| x.to_f32() == 7.0));
}

/// The check of the check: had the kernel read stale input, the comparison would have said so.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn the_reference_catches_a_wrong_product() {
    on_every_kernel(42, |gpu, kernel, random| {
        let case = Case::new(kernel, 256, 256, 1024);
        let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
        let mut call = call(gpu, &case, random);
        call.enqueue(&gemm, &gpu.stream);
        call.fetch(&gpu.stream);
        assert_eq!(call.report(&[0, 255]).wrong, 0, "{case:?}");
        // As if the kernel had read one K step of one row before it arrived.
        call.forget(255, 512..512 + 64);
        let report = call.report(&[0, 255]);
        assert!(report.wrong > 64, "{case:?}: a stale K step went all but unnoticed: {report:?}");
    });
}

#[test]
fn every_case_has_its_turn_and_a_failure_names_its_own() {
    let cases: Vec<usize> = (0..100).collect();
    let turns = cases.iter().map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
    let count = |_: &(), at: usize, case: &usize| {
        assert_eq!(at, *case);
        turns[at].fetch_add(1, Ordering::Relaxed);
    };
    on_all_cores(&cases, || (), count);
    assert!(turns.iter().all(|turns| turns.load(Ordering::Relaxed) == 1), "{turns:?}");

    let bad = || on_all_cores(&cases, || (), |_, _, case| assert!(*case != 42, "the reason"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(bad)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("failed, ") && text.ends_with("\n42"), "{text}");
}

#[test]
fn random_inputs_are_what_the_tests_need() {
    let numbers = random_rows::<bf16>(&mut Random::new(SEED), 100, 1000, 1008);
    assert_eq!(numbers.len(), 99 * 1008 + 1000);
    let (rows, gaps): (Vec<_>, Vec<_>) = numbers.chunks(1008).map(|row| row.split_at(1000)).unzip();
    assert!(gaps.concat().iter().all(|gap| gap.is_nan()));
    let rows: Vec<f32> = rows.concat().into_iter().map(bf16::to_f32).collect();
    let mean_of = |power| rows.iter().map(|x| x.powi(power)).sum::<f32>() / rows.len() as f32;
    assert!(mean_of(1).abs() < 0.1 && (mean_of(2) - 1.0).abs() < 0.1);
    // No two rows are alike, nor a row and its neighbour a step of K further.
    assert!(rows.chunks(1000).is_sorted_by(|a, b| a != b));
    assert!(rows.windows(65).filter(|some| some[0] == some[64]).count() < rows.len() / 100);
}

#[test]
fn without_a_gpu_every_door_says_so() {
    let Err(error) = cuda::devices() else { return };
    assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
    assert!(error.to_string().starts_with("no usable GPU: "), "{error}");
    for ordinal in [0, 1, usize::MAX] {
        assert_eq!(Device::open(ordinal).map(|_| ()), Err(error.clone()));
    }
}

/// An error that the caller's own call has left for `cudaGetLastError` is still there after a step, and is not taken for the
/// step's.
#[cfg(overlap_gemm_kernels)]
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_error_that_the_caller_has_yet_to_see_stays() {
    unsafe extern "C" {
        fn cudaSetDevice(device: i32) -> i32;
        fn cudaPeekAtLastError() -> i32;
    }
    let gpu = Gpu::open();
    let case = Case::new(tried_kernels()[0], 128, 128, 128);
    let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
    let mut call = call(&gpu, &case, &mut Random::new(1));
    let signals = cuda::Signals::new(&gpu.device, 1).unwrap();
    // SAFETY: refused, for there are not so many devices; what is current stays so.
    let pending = unsafe { cudaSetDevice(1 << 20) };
    assert_ne!(pending, 0);
    let check = |what: &str| {
        // SAFETY: it has no requirements.
        assert_eq!(unsafe { cudaPeekAtLastError() }, pending, "{what}");
    };
    call.enqueue(&gemm, &gpu.stream);
    check("behind a product");
    signals.advance(&gpu.stream).unwrap();
    check("behind a new epoch");
    signals.post_all(&gpu.stream).unwrap();
    check("behind signals");
    gpu.stream.synchronize().unwrap();
}
