//! Steps over `cudarc`'s memory: computed as over addresses, and checked where addresses cannot be.
//!
//! Invariant: buffers are dropped as soon as a step is enqueued, while it waits for the other ranks; `cudarc` keeps them until
//! the stream is through.

use crate::gpu::ranks::{Rank, on_ranks, options};
use overlap_gemm::ElementType;
use overlap_gemm::cuda::cudarc::driver::sys;
use overlap_gemm::cuda::{AllGatherGemm, Gemm, GemmOptions, Operands};
use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::plan::{Engine, Problem, Scaling, Strategy};
use overlap_gemm::random::Random;

const N: [u64; 2] = [96, 160];
const K: u64 = 128;
const ROWS: [u32; 3] = [40, 60, 100];
const STEPS: u32 = 20;

/// Two products of one A.
fn problems(rows: &[u32]) -> [Problem; 2] {
    let m = rows.iter().map(|&rows| u64::from(rows)).sum();
    N.map(|n| Problem::builder(m, n, K).shards(rows).build().unwrap())
}

/// Small whole numbers, so that every kernel's sums are exact.
fn numbers(count: u64, random: &mut Random) -> Vec<bf16> {
    (0..count).map(|_| bf16::from_f32(random.within(0..=4) as f32 - 2.0)).collect()
}

fn layer(rank: &Rank, problems: &[Problem], gemm: &GemmOptions) -> AllGatherGemm {
    let options = rank.that_fit(&options(Engine::CopyEngines { streams: 1 }), &problems[0]);
    let (group, device) = (&rank.group, &rank.gpu.device);
    let products: Vec<_> = problems.iter().map(|problem| (problem.clone(), gemm.clone())).collect();
    AllGatherGemm::plan_all(group, device, &products, &options.with_strategy(Strategy::Fused))
        .unwrap()
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_over_slices_are_right_though_the_slices_are_gone() {
    on_ranks(3, |rank| {
        let (gpu, stream) = (&rank.gpu, &rank.gpu.stream);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let mut layer = layer(&rank, &problems(&ROWS), &gemm);
        // The same on all ranks.
        let mut random = Random::new(17);
        for step in 0..STEPS {
            // In every third step all ranks have other rows.
            let rows = if step % 3 == 2 { [100, 40, 50] } else { ROWS };
            let problems = problems(&rows);
            let a = numbers(u64::from(problems[0].m()) * K, &mut random);
            let weights = N.map(|n| gpu.upload(&numbers(n * K, &mut random)));
            let own = problems[0].shards().rows(rank.rank());
            let shard =
                gpu.upload(&a[own.start as usize * K as usize..own.end as usize * K as usize]);
            let mut outputs = problems
                .each_ref()
                .map(|problem| gpu.upload(&vec![bf16::NAN; problem.d_len() as usize]));
            let [first, second] = &mut outputs;
            let operands = [(&weights[0], first), (&weights[1], second)];
            let operands = operands.map(|(b, d)| Operands::new(&shard, b, d).ranks_rows(&rows));
            layer.enqueue(stream, operands).unwrap();
            drop(shard);
            let mut copied = gpu.upload(&vec![bf16::NAN; a.len()]);
            layer.copy_gathered(stream, &mut copied).unwrap();
            layer.synchronize(stream).unwrap();
            assert!(gpu.download(&copied) == a, "the gathered A of step {step}");

            let a = gpu.upload(&a);
            for ((problem, b), seen) in problems.iter().zip(&weights).zip(&outputs) {
                let mut expected = gpu.upload(&vec![bf16::NAN; problem.d_len() as usize]);
                let plain = Gemm::plan(&gpu.device, problem, &gemm).unwrap();
                plain.enqueue(stream, Operands::new(&a, b, &mut expected)).unwrap();
                let [seen, expected] = [seen, &expected].map(|d| gpu.download(d));
                assert!(seen == expected, "step {step}, {problem}");
                assert!(seen.iter().all(|value| value.is_finite()), "step {step}, {problem}");
            }
        }
        rank.through();
    });
}

/// Scales of all rows, which each rank has, or of its own rows, which are gathered: as planned, else refused.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn row_scales_are_replicated_or_gathered_as_planned() {
    const ROWS: [u32; 2] = [32, 48];
    const M: usize = 80;
    on_ranks(2, |rank| {
        let (gpu, stream) = (&rank.gpu, &rank.gpu.stream);
        let (group, device) = (&rank.group, &gpu.device);
        let (a, d) = (ElementType::E4m3, ElementType::Bf16);
        let problem = Problem::builder(M as u64, N[0], K).shards(&ROWS).elements(a, a, d);
        let problem = problem.scaling(Scaling::Rows).build().unwrap();
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let options = options(Engine::Kernel { blocks: 2 }).with_strategy(Strategy::Fused);
        let plan =
            |problem, options: &_| AllGatherGemm::plan(group, device, problem, options, &gemm);
        let unscaled = problems(&ROWS)[0].clone();
        let error = plan(&unscaled, &options.clone().with_replicated_row_scales(true)).unwrap_err();
        assert!(error.to_string().starts_with("replicated row scales of"), "{error}");

        // The same on all ranks.
        let mut random = Random::new(18);
        let mut fp8 = |count: u64| random.elements::<F8E4M3>(count);
        let (a, b) = (fp8(M as u64 * K), gpu.upload(&fp8(N[0] * K)));
        let mut scales = |count: usize| -> Vec<f32> {
            (0..count).map(|_| random.within(1..=8) as f32 / 4.0).collect()
        };
        let (all, columns) = (scales(M), gpu.upload(&scales(N[0] as usize)));
        let own = problem.shards().rows(rank.rank());
        let own = own.start as usize..own.end as usize;
        let shard = gpu.upload(&a[own.start * K as usize..own.end * K as usize]);
        let [of_own, of_all] = [&all[own.clone()], &all[..]].map(|scales| gpu.upload(scales));
        let blank = || gpu.upload(&vec![bf16::NAN; M * N[0] as usize]);
        let (whole, mut expected) = (gpu.upload(&a), blank());
        let plain = Gemm::plan(device, &problem, &gemm).unwrap();
        let operands = Operands::new(&whole, &b, &mut expected).scales(&of_all, &columns);
        plain.enqueue(stream, operands).unwrap();
        for replicated in [false, true] {
            let options = options.clone().with_replicated_row_scales(replicated);
            let mut layer = plan(&problem, &options).unwrap();
            let (right, wrong) = if replicated { (&of_all, &of_own) } else { (&of_own, &of_all) };
            let mut d = blank();
            let operands = Operands::new(&shard, &b, &mut d).scales(wrong, &columns);
            let error = layer.enqueue(stream, [operands]).unwrap_err().to_string();
            assert!(error.starts_with("the length of the scales of A is"), "{error}");
            let operands = Operands::new(&shard, &b, &mut d).scales(right, &columns);
            layer.enqueue(stream, [operands]).unwrap();
            layer.synchronize(stream).unwrap();
            let [seen, expected] = [&d, &expected].map(|d| gpu.download(d));
            assert!(seen == expected && seen.iter().all(|value| value.is_finite()), "{replicated}");
            // A rank without rows may bring as many scales as ever.
            let mut d = blank();
            let operands = Operands::new(&shard, &b, &mut d).scales(right, &columns);
            if !replicated {
                layer.enqueue(stream, [operands.ranks_rows(&[ROWS[0], 0])]).unwrap();
                layer.synchronize(stream).unwrap();
                let first = ROWS[0] as usize * N[0] as usize;
                assert!(gpu.download(&d)[..first] == expected[..first]);
            }
        }
        rank.through();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn slices_that_do_not_fit_are_refused_before_any_rank_hears_of_the_step() {
    on_ranks(2, |rank| {
        let (gpu, stream) = (&rank.gpu, &rank.gpu.stream);
        let rows = [32, 48];
        let problem = &problems(&rows)[0];
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let mut layer = layer(&rank, std::slice::from_ref(problem), &gemm);
        let zeros = |elements: u64| stream.alloc_zeros::<bf16>(elements as usize).unwrap();
        let own = u64::from(rows[rank.rank() as usize]);
        let (shard, whole, b) = (zeros(own * K), zeros(80 * K), zeros(N[0] * K));
        let (mut d, mut short) = (zeros(80 * N[0]), zeros(79 * N[0]));
        let floats = stream.alloc_zeros::<f32>((own * K) as usize).unwrap();
        let mut records = Gemm::plan(&gpu.device, problem, &gemm).unwrap().records().unwrap();
        let mut refused = |operands: Operands<'_, bf16, bf16, bf16>, expected: &str| {
            let error = layer.enqueue(stream, [operands]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        refused(Operands::new(&whole, &b, &mut d), "the length of A is 10240, but must be ");
        refused(Operands::new(&b, &whole, &mut d), "the length of A is 12288, but must be ");
        refused(
            Operands::new(&shard, &whole, &mut d),
            "the length of B is 10240, but must be 12288",
        );
        refused(Operands::new(&shard, &b, &mut short), "the length of D is 7584, but must be 7680");
        refused(Operands::new(&shard, &b, &mut d).rows(80), "`rows` of the operands of a step");
        let recorded = Operands::new(&shard, &b, &mut d).records(&mut records);
        refused(recorded, "`records` of the operands of a step");
        refused(Operands::new(&shard, &b, &mut d).bias(&b), "the length of the bias is 12288");
        refused(Operands::new(&shard, &b, &mut d).ranks_rows(&[80]), "the number of shards is 1");
        let none: [Operands<'_, bf16, bf16, bf16>; 0] = [];
        let error = layer.enqueue(stream, none).unwrap_err().to_string();
        assert!(error.starts_with("the number of operands is 0, but must be 1"), "{error}");
        let error = layer.enqueue(stream, [Operands::new(&floats, &b, &mut d)]).unwrap_err();
        assert!(error.to_string().contains("f32"), "{error}");

        // A graph may be launched when the slices are gone.
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let error = layer.enqueue(stream, [Operands::new(&shard, &b, &mut d)]).unwrap_err();
        stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        assert!(error.to_string().starts_with("a call with slices, in a graph,"), "{error}");

        let mut copied = zeros(80 * K);
        let error = layer.copy_gathered(stream, &mut copied).unwrap_err().to_string();
        assert!(error.starts_with("the gathered A is not available"), "{error}");
        layer.enqueue(stream, [Operands::new(&shard, &b, &mut d)]).unwrap();
        let other = rank.with_new_stream().gpu.stream;
        assert_eq!(layer.copy_gathered(&other, &mut copied).unwrap_err().to_string(), error);
        let error = layer.copy_gathered(stream, &mut d).unwrap_err().to_string();
        assert!(error.starts_with("the length of the copy of A is 7680"), "{error}");
        let mut floats = stream.alloc_zeros::<f32>((80 * K) as usize).unwrap();
        let error = layer.copy_gathered(stream, &mut floats).unwrap_err().to_string();
        assert!(error.starts_with("the element type of the gathered A is f32"), "{error}");
        layer.copy_gathered(stream, &mut copied).unwrap();
        // A shorter step fills the first rows.
        layer.enqueue(stream, [Operands::new(&shard, &b, &mut d).ranks_rows(&[16, 24])]).unwrap();
        let mut copied = stream.clone_htod(&vec![bf16::NAN; 80 * K as usize]).unwrap();
        layer.copy_gathered(stream, &mut copied).unwrap();
        layer.synchronize(stream).unwrap();
        let end = gpu.download(&copied).into_iter().position(|value| value.is_nan());
        assert_eq!(end, Some(40 * K as usize));
        rank.through();
    });
}
