//! Steps right behind kernels of the same stream that make what they read, with nothing in between.
//!
//! What belongs here: what a step must not read before the kernels before it have ended. Such a kernel is a
//! product on few SMs: it lets the next kernel start when it has loaded all that it needs, and ends late. Rows are in
//! place, since a copy would keep the two apart. What is made differs from step to step.

use std::sync::Arc;

use crate::gpu::captured;
use crate::gpu::ranks::{Rank, on_gpus, on_ranks, options};
use overlap_gemm::cuda::cudarc::driver::sys::CUdeviceptr;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, result};
use overlap_gemm::cuda::{AllGatherGemm, Gemm, GemmOptions, RawOperands, Shard};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Engine, Problem, Strategy};
use overlap_gemm::random::Random;

const ENGINES: [Engine; 3] = [
    Engine::CopyEngines { streams: 1 },
    Engine::CopyEngines { streams: 4 },
    Engine::Kernel { blocks: 4 },
];
const RANKS: u32 = 2;
/// Of A and B.
const M: u64 = 256;
const N: u64 = 1024;
const K: u64 = 512;
/// The K of the products that make what steps read.
const INNER: u64 = 1024;
const STEPS: usize = 40;

/// Makes one of two matrices of `rows` rows of K elements, by a product on few SMs.
struct Maker {
    gemm: Gemm,
    factors: [CudaSlice<bf16>; 2],
    other: CudaSlice<bf16>,
}

impl Maker {
    /// The same on every rank, if `random` is; `factor_rows` rows of either factor.
    fn new(rank: &Rank, rows: u64, factor_rows: u64, random: &mut Random) -> Maker {
        let mut upload = |len: u64| rank.gpu.upload(&random.elements::<bf16>(len));
        let factors = [upload(factor_rows * INNER), upload(factor_rows * INNER)];
        let other = upload(K * INNER);
        let problem = Problem::builder(rows, K, INNER).build().unwrap();
        let few = GemmOptions::default().with_sm_limit(8);
        let gemm = Gemm::plan(&rank.gpu.device, &problem, &few).unwrap();
        Maker { gemm, factors, other }
    }

    /// From row `first` of factor `which` on, to `to`.
    fn make(&self, stream: &Arc<CudaStream>, which: usize, first: u64, to: CUdeviceptr) {
        let factor = at(&self.factors[which], stream) + first * INNER * 2;
        let operands = RawOperands::new(factor, at(&self.other, stream), to);
        // SAFETY: as long as the problem says, kept until the stream is through.
        unsafe { self.gemm.enqueue_raw(stream, &operands) }.unwrap();
    }
}

fn at(slice: &CudaSlice<bf16>, stream: &Arc<CudaStream>) -> CUdeviceptr {
    slice.device_ptr(stream).0
}

fn problem() -> Problem {
    Problem::builder(M, N, K).ranks(RANKS.into()).build().unwrap()
}

fn fused(rank: &Rank, engine: Engine, gemm: &GemmOptions) -> AllGatherGemm {
    let options = options(engine).with_strategy(Strategy::Fused).with_poison(false);
    let (group, device) = (&rank.group, &rank.gpu.device);
    AllGatherGemm::plan(group, device, &problem(), &options, gemm).unwrap()
}

fn step(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, b: CUdeviceptr, d: CUdeviceptr) {
    let operands = [RawOperands::of_gathered(b, d)];
    // SAFETY: as long as the problem says, kept until the stream is through.
    unsafe { layer.enqueue_raw(stream, Shard::in_place(), &operands) }.unwrap();
}

/// The product of an A that is there, by the same kernel.
fn expected(rank: &Rank, gemm: &GemmOptions, a: CUdeviceptr, b: CUdeviceptr) -> Vec<bf16> {
    let stream = &rank.gpu.stream;
    let d = blank(rank);
    let plain = Gemm::plan(&rank.gpu.device, &problem(), gemm).unwrap();
    // SAFETY: as long as the problem says, kept until the stream is through.
    unsafe { plain.enqueue_raw(stream, &RawOperands::new(a, b, at(&d, stream))) }.unwrap();
    stream.synchronize().unwrap();
    rank.gpu.download(&d)
}

/// An output that nobody has written.
fn blank(rank: &Rank) -> CudaSlice<bf16> {
    rank.gpu.upload(&vec![bf16::NAN; (M * N) as usize])
}

/// A fused operation whose rows a maker makes, and what has to come out of either of them.
struct MadeRows {
    maker: Maker,
    b: CudaSlice<bf16>,
    expected: [Vec<bf16>; 2],
    layer: AllGatherGemm,
    /// The first of this rank's rows.
    own: u64,
}

impl MadeRows {
    fn new(rank: &Rank, engine: Engine, seed: u64) -> MadeRows {
        let (stream, mut random) = (&rank.gpu.stream, Random::new(seed));
        let b = rank.gpu.upload(&random.elements::<bf16>(N * K));
        let shard = M / u64::from(RANKS);
        let maker = Maker::new(rank, shard, M, &mut random);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms).with_constant_b(true);
        let a = rank.gpu.upload(&vec![bf16::NAN; (M * K) as usize]);
        let expected = [0, 1].map(|which| {
            for first in [0, shard] {
                maker.make(stream, which, first, at(&a, stream) + first * K * 2);
            }
            expected(rank, &gemm, at(&a, stream), at(&b, stream))
        });
        assert!(expected[0] != expected[1]);
        let layer = fused(rank, engine, &gemm);
        let own = u64::from(problem().shards().rows(rank.rank()).start);
        MadeRows { maker, b, expected, layer, own }
    }
}

/// Where nothing was promised of B, it is not read before it is there.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn b_may_come_from_the_kernel_before() {
    for engine in ENGINES {
        on_ranks(RANKS, |rank| {
            let (stream, mut random) = (&rank.gpu.stream, Random::new(95));
            let a = rank.gpu.upload(&random.elements::<bf16>(M * K));
            let maker = Maker::new(&rank, N, N, &mut random);
            let b = rank.gpu.upload(&vec![bf16::NAN; (N * K) as usize]);
            let b = at(&b, stream);
            let gemm = GemmOptions::default().with_sm_limit(rank.sms);
            let expected = [0, 1].map(|which| {
                maker.make(stream, which, 0, b);
                expected(&rank, &gemm, at(&a, stream), b)
            });
            assert!(expected[0] != expected[1]);
            let mut layer = fused(&rank, engine, &gemm);
            let outputs: Vec<_> = (0..STEPS).map(|_| blank(&rank)).collect();
            let own = problem().shards().rows(rank.rank());
            for (number, d) in outputs.iter().enumerate() {
                if number < 2 {
                    // Once for each buffer; there they stay.
                    let (slot, bytes) = layer.local_shard(None).unwrap();
                    let from = at(&a, stream) + u64::from(own.start) * K * 2;
                    // SAFETY: the slot is so long, and so are the rows.
                    unsafe {
                        result::memcpy_dtod_async(slot, from, bytes as usize, stream.cu_stream())
                    }
                    .unwrap();
                }
                maker.make(stream, number % 2, 0, b);
                step(&mut layer, stream, b, at(d, stream));
            }
            layer.synchronize(stream).unwrap();
            for (number, d) in outputs.iter().enumerate() {
                assert!(rank.gpu.download(d) == expected[number % 2], "step {number}");
            }
        });
        println!("{engine:?}: right");
    }
}

/// Rows that a kernel puts in place right before the step are neither read nor sent before they are there, though
/// the product may start at once behind copy engines, for B is constant; launched one by one, and in graphs, whose branches
/// need a GPU to themselves.
#[test]
#[ignore = "needs 2 Hopper GPUs"]
fn rows_may_come_from_the_kernel_before() {
    for engine in ENGINES {
        on_gpus(RANKS, |rank| {
            let stream = &rank.gpu.stream;
            let MadeRows { maker, b, expected, mut layer, own } = MadeRows::new(&rank, engine, 96);
            let b = at(&b, stream);
            let outputs: Vec<_> = (0..STEPS).map(|_| blank(&rank)).collect();
            // Two steps with either: then each buffer has other rows than two steps ago.
            let which = |number: usize| number / 2 % 2;
            let enqueue_all = |layer: &mut AllGatherGemm| {
                for (number, d) in outputs.iter().enumerate() {
                    let (slot, _) = layer.local_shard(None).unwrap();
                    maker.make(stream, which(number), own, slot);
                    step(layer, stream, b, at(d, stream));
                }
            };
            let check = |layer: &mut AllGatherGemm| {
                layer.synchronize(stream).unwrap();
                for (number, d) in outputs.iter().enumerate() {
                    assert!(rank.gpu.download(d) == expected[which(number)], "step {number}");
                }
            };
            enqueue_all(&mut layer);
            check(&mut layer);
            let graph = captured(stream, false, || enqueue_all(&mut layer));
            for _ in 0..5 {
                for d in &outputs {
                    let bytes = (M * N * 2) as usize;
                    // SAFETY: the output is so long.
                    unsafe {
                        result::memset_d8_async(at(d, stream), 0xff, bytes, stream.cu_stream())
                    }
                    .unwrap();
                }
                graph.launch().unwrap();
                check(&mut layer);
            }
        });
        println!("{engine:?}: right");
    }
}

/// A graph of one step, launched again and again: every step has the buffer of the one before, whose signals are still there
/// when it begins, and other rows in it.
#[test]
#[ignore = "needs 2 Hopper GPUs"]
fn a_graph_of_one_step_reads_the_rows_of_each_launch() {
    for engine in ENGINES {
        on_gpus(RANKS, |rank| {
            let stream = &rank.gpu.stream;
            let MadeRows { maker, b, expected, mut layer, own } = MadeRows::new(&rank, engine, 97);
            let b = at(&b, stream);
            let outputs: Vec<_> = (0..STEPS).map(|_| blank(&rank)).collect();
            let (d, bytes) = (blank(&rank), (M * N * 2) as usize);
            // Once as it is, which loads what there is to load.
            let (slot, _) = layer.local_shard(None).unwrap();
            maker.make(stream, 0, own, slot);
            step(&mut layer, stream, b, at(&d, stream));
            layer.synchronize(stream).unwrap();
            let (slot, _) = layer.local_shard(None).unwrap();
            let graph = captured(stream, false, || step(&mut layer, stream, b, at(&d, stream)));
            for (number, output) in outputs.iter().enumerate() {
                maker.make(stream, number % 2, own, slot);
                graph.launch().unwrap();
                let (from, to) = (at(&d, stream), at(output, stream));
                // SAFETY: both are so long, and kept until the stream is through.
                unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.unwrap();
            }
            layer.synchronize(stream).unwrap();
            for (number, output) in outputs.iter().enumerate() {
                assert!(rank.gpu.download(output) == expected[number % 2], "step {number}");
            }
        });
        println!("{engine:?}: right");
    }
}
