//! Reductions over `cudarc`'s memory: computed as over addresses, and checked.

use crate::gpu::PATIENCE;
use crate::gpu::ranks::{Rank, on_ranks};
use overlap_gemm::ElementType;
use overlap_gemm::cuda::{CollectiveOptions, GemmOptions, GemmReduce, Operands, Reduce};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Engine, Problem, Reduction, Strategy};
use overlap_gemm::random::Random;

const ROWS: [u32; 3] = [64, 16, 48];
const M: u64 = 128;
const N: u64 = 96;
const K: u64 = 64;

/// Small whole numbers, so that every order of additions gives the same.
fn numbers(count: u64, random: &mut Random) -> Vec<bf16> {
    (0..count).map(|_| bf16::from_f32(random.within(0..=4) as f32 - 2.0)).collect()
}

fn total_of_slices<const ALL: bool>(rank: &Rank) {
    let (gpu, stream) = (&rank.gpu, &rank.gpu.stream);
    let problem = Problem::builder(M, N, K).shards(&ROWS).build().unwrap();
    let options = CollectiveOptions::default().with_engine(Engine::CopyEngines { streams: 1 });
    let options = options.with_strategy(Strategy::Sequential);
    let options = rank.that_fit(&options.with_timeouts(PATIENCE, PATIENCE), &problem);
    let gemm = GemmOptions::default().with_sm_limit(rank.sms).with_c(true);
    let (group, device) = (&rank.group, &gpu.device);
    let sum = Reduction::default();
    let mut layer = GemmReduce::<ALL>::plan(group, device, &problem, &options, &gemm, sum).unwrap();
    let gets = if ALL { 0..M as u32 } else { problem.shards().rows(rank.rank()) };
    for step in 0..6 {
        // Every rank knows all ranks' numbers.
        let mut random = Random::new(step);
        let all = ROWS.map(|_| (numbers(M * K, &mut random), numbers(N * K, &mut random)));
        let (a, b) = &all[rank.rank() as usize];
        let (a, b) = (gpu.upload(a), gpu.upload(b));
        let len = gets.len() * N as usize;
        let c = gpu.upload(&numbers(len as u64, &mut Random::new(100 + step)));
        let mut d = gpu.upload(&vec![bf16::NAN; len]);
        let error = layer.enqueue(stream, [Operands::new(&b, &b, &mut d).c(&c, 1.0)]).unwrap_err();
        assert!(
            error.to_string().starts_with("the length of A is 6144, but must be 8192"),
            "{error}"
        );
        layer.enqueue(stream, [Operands::new(&a, &b, &mut d).c(&c, 1.0)]).unwrap();
        drop((a, b));
        layer.synchronize(stream).unwrap();
        let (seen, c) = (gpu.download(&d), gpu.download(&c));
        for (at, row) in gets.clone().enumerate() {
            for column in 0..N as usize {
                let dot = |(a, b): &(Vec<bf16>, Vec<bf16>)| -> f32 {
                    let of = |values: &[bf16], line: usize, k: usize| {
                        values[line * K as usize + k].to_f32()
                    };
                    (0..K as usize).map(|k| of(a, row as usize, k) * of(b, column, k)).sum()
                };
                let place = at * N as usize + column;
                // Each rank's sums are rounded to bf16 on their way, to themselves: at most 256.
                let expected = all.iter().map(dot).sum::<f32>() + c[place].to_f32();
                assert_eq!(seen[place], bf16::from_f32(expected), "step {step}, {row}, {column}");
            }
        }
    }
    rank.through();
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_of_slices_are_right_though_the_slices_are_gone() {
    on_ranks(3, |rank| total_of_slices::<false>(&rank));
    on_ranks(3, |rank| total_of_slices::<true>(&rank));
}

fn total_of_sums<const ALL: bool>(rank: &Rank, engine: Engine) {
    let (gpu, stream) = (&rank.gpu, &rank.gpu.stream);
    let problem = Problem::builder(M, N, K).shards(&ROWS).build().unwrap();
    let options =
        CollectiveOptions::default().with_engine(engine).with_timeouts(PATIENCE, PATIENCE);
    let options = rank.that_fit(&options, &problem);
    let (group, device, d, sum) =
        (&rank.group, &gpu.device, ElementType::Bf16, Reduction::default());
    let mut layer =
        Reduce::<ALL, false>::plan(group, device, &ROWS, N as u32, d, &options, sum).unwrap();
    let gets = if ALL { 0..M as u32 } else { problem.shards().rows(rank.rank()) };
    let gets = gets.start as usize * N as usize..gets.end as usize * N as usize;
    for step in 0..12 {
        let mut random = Random::new(step);
        let all = ROWS.map(|_| numbers(M * N, &mut random));
        let mut sums = gpu.upload(&all[rank.rank() as usize]);
        let mut d = gpu.upload(&vec![bf16::NAN; gets.len()]);
        let seen = if step % 2 == 0 {
            if !ALL {
                let error = layer.enqueue(stream, None, &d, &mut sums).unwrap_err().to_string();
                assert!(error.starts_with("the length of the sums is"), "{error}");
            }
            layer.enqueue(stream, None, &sums, &mut d).unwrap();
            drop(sums);
            layer.synchronize(stream).unwrap();
            gpu.download(&d)
        } else {
            layer.enqueue_in_place(stream, None, &mut sums).unwrap();
            layer.synchronize(stream).unwrap();
            gpu.download(&sums)[gets.clone()].to_vec()
        };
        for (seen, at) in seen.iter().zip(gets.clone()) {
            let total: f32 = all.iter().map(|sums| sums[at].to_f32()).sum();
            assert_eq!(seen.to_f32(), total, "step {step}, element {at}");
        }
    }
    let floats = stream.alloc_zeros::<f32>((M * N) as usize).unwrap();
    let mut d = gpu.upload(&vec![bf16::NAN; gets.len()]);
    let error = layer.enqueue(stream, None, &floats, &mut d).unwrap_err().to_string();
    assert!(error.starts_with("the element type of the sums is f32, but must be bf16"), "{error}");
    rank.through();
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_of_sums_in_slices_are_right_in_place_and_elsewhere() {
    for engine in [Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 8 }] {
        on_ranks(3, |rank| total_of_sums::<false>(&rank, engine));
        on_ranks(3, |rank| total_of_sums::<true>(&rank, engine));
    }
}
