//! The same steps on both executors: what GPUs compute is what threads on the host compute, up to the last
//! rounding.
//!
//! Their sums go in other orders, in f32; D is rounded once. So two elements are neighbours at most.

use std::time::Duration;

use crate::gpu::ranks::on_ranks;
use overlap_gemm::cuda::cudarc::driver::DevicePtr as _;
use overlap_gemm::cuda::{self, GatherOptions, GemmOptions, RawOperands, Shard};
use overlap_gemm::element::bf16;
use overlap_gemm::host::{self, Group, Stream};
use overlap_gemm::plan::{PlanOptions, Problem, Strategy};
use overlap_gemm::random::Random;

const PATIENCE: Duration = Duration::from_secs(20);
/// Of the smallest element that is rounded: a part in 2⁷ is one step of bf16 at its coarsest.
const STEP: f32 = 1.0 / 128.0;
/// What f32 sums of these lengths may differ by.
const SUM: f32 = 1e-3;

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn both_executors_compute_the_same() {
    let mut random = Random::new(91);
    for round in 0..12 {
        let ranks = random.within(1..=5) as u32;
        let rows: Vec<u32> = (0..ranks).map(|_| random.within(0..=90) as u32).collect();
        let m = rows.iter().map(|rows| u64::from(*rows)).sum::<u64>();
        if m == 0 {
            continue;
        }
        let (n, k) = (8 * random.within(1..=40), 8 * random.within(1..=64));
        let problem = Problem::builder(m, n, k).shards(&rows).build().unwrap();
        let a: Vec<bf16> = random.elements(m * k);
        let b: Vec<Vec<bf16>> = (0..ranks).map(|_| random.elements(n * k)).collect();
        let own = |rank: u32| {
            let rows = problem.shards().rows(rank);
            &a[rows.start as usize * k as usize..rows.end as usize * k as usize]
        };

        let host: Vec<Vec<bf16>> = std::thread::scope(|scope| {
            let threads: Vec<_> = Group::local(ranks)
                .unwrap()
                .into_iter()
                .map(|rank| {
                    let (problem, b, own) = (&problem, &b, &own);
                    scope.spawn(move || {
                        let number = rank.rank();
                        let mut d = vec![bf16::NAN; (m * n) as usize];
                        let options = PlanOptions::default();
                        let mut layer =
                            host::AllGatherGemm::<bf16>::plan(&rank, problem, options).unwrap();
                        let stream = Stream::for_ranks(ranks);
                        layer.enqueue(&stream, own(number), &b[number as usize], &mut d).unwrap();
                        d
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });

        for strategy in [Strategy::Fused, Strategy::Sequential] {
            let gpus = on_ranks(ranks, |rank| {
                let (number, stream) = (rank.rank(), &rank.gpu.stream);
                let options = GatherOptions::default().with_timeouts(PATIENCE, PATIENCE);
                let options = rank.that_fit(&options, &problem);
                let gemm = GemmOptions::default().with_sm_limit(rank.sms);
                let device = &rank.gpu.device;
                let mut layer = cuda::AllGatherGemm::plan(
                    &rank.group,
                    device,
                    &problem,
                    Some(strategy),
                    &options,
                    &gemm,
                )
                .unwrap();
                // One more, so that a rank without rows has an address, too.
                let shard = rank.gpu.upload(&[own(number), &[bf16::ZERO]].concat());
                let b = rank.gpu.upload(&b[number as usize]);
                let d = rank.gpu.upload(&vec![bf16::NAN; (m * n) as usize]);
                let at = |slice: &cuda::cudarc::driver::CudaSlice<bf16>| slice.device_ptr(stream).0;
                let operands = RawOperands::of_gathered(at(&b), at(&d));
                // SAFETY: as long as the problem says; kept until the stream is through.
                unsafe { layer.enqueue(stream, Shard::at(at(&shard)), &[operands]) }.unwrap();
                layer.synchronize(stream).unwrap();
                let d = rank.gpu.download(&d);
                rank.through();
                d
            });
            for (rank, (gpu, host)) in gpus.iter().zip(&host).enumerate() {
                for (at, (gpu, host)) in gpu.iter().zip(host).enumerate() {
                    let (gpu, host) = (gpu.to_f32(), host.to_f32());
                    let near = (gpu - host).abs() <= STEP * gpu.abs().max(host.abs()) + SUM;
                    assert!(
                        near,
                        "{problem}, rank {rank}, element {at}: {gpu}, on the host {host}"
                    );
                }
            }
        }
        println!("round {round}: {problem}, rows {rows:?}: the same");
    }
}
