//! Gathers that NCCL carries out. It takes one rank a GPU, so there are as many ranks as GPUs; NCCL has to be
//! there (OVERLAP_GEMM_NCCL names its file).
//!
//! Invariant: as with other engines: what comes out is what the product of the whole A is, and who is late or gone
//! is told in time, though NCCL's kernels know no limit.

use std::time::{Duration, Instant};

use crate::all_gather_gemm::{Work, replay};
use crate::gpu::case::Case;
use crate::gpu::ranks::{self, Rank, on_ranks};
use crate::gpu::{PATIENCE, captured, one_kernel, tried_kernels};
use overlap_gemm::Error;
use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions, devices};
use overlap_gemm::plan::{Engine, Scaling, Strategy};
use overlap_gemm::random::Random;

fn ranks() -> u32 {
    devices().unwrap().len() as u32
}

fn options(limit: Duration) -> CollectiveOptions {
    ranks::options(Engine::Nccl).with_timeouts(PATIENCE, limit)
}

fn plan(rank: &Rank, case: &Case, rows: &[u32], limit: Duration) -> AllGatherGemm {
    let (problem, gather) = (case.sharded(rows), options(limit));
    let (group, device) = (&rank.group, &rank.gpu.device);
    AllGatherGemm::plan(group, device, &problem, &gather, &case.options).unwrap()
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn gathered_products_are_right() {
    let ranks = ranks();
    let kernels = tried_kernels();
    let bf16 = kernels.iter().find(|kernel| !kernel.transposed && !kernel.elements.a.is_fp8());
    let fp8 = kernels.iter().find(|kernel| !kernel.transposed && kernel.elements.a.is_fp8());
    for kernel in bf16.into_iter().chain(fp8) {
        let mut case = Case::new(kernel, 600, 256, 320).padded([1, 0, 1]);
        if kernel.elements.a.is_fp8() {
            case.scaling = Scaling::Rows;
        }
        on_ranks(ranks, |rank| {
            let mut random = Random::new(101);
            let even = vec![600 / ranks; ranks as usize];
            let mut other = even.clone();
            other[0] -= 96;
            let mut layer = plan(&rank, &case, &even, PATIENCE);
            let way = layer.way();
            assert_eq!((way.engine, way.strategy), (Engine::Nccl, Strategy::Sequential));
            let mut work = Work::new(&rank, &case, &even, &mut random);
            // Alike, others, alike, twice the same.
            for rows in [None, Some(&other[..]), None, None] {
                work.renew(&rank, &mut random);
                work.enqueue(&rank, &mut layer, rows);
                layer.synchronize(&rank.gpu.stream).unwrap();
                work.check(&rank, work.step(rows).m(), &mut random);
            }
        });
        println!("{kernel}: right");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn graphs_replay() {
    let ranks = ranks();
    let kernel = one_kernel();
    let case = Case::new(kernel, 512, 256, 256);
    on_ranks(ranks, |rank| {
        let (mut random, stream) = (Random::new(102), &rank.gpu.stream);
        let rows = vec![512 / ranks; ranks as usize];
        let mut layer = plan(&rank, &case, &rows, PATIENCE);
        let mut work = [Work::new(&rank, &case, &rows, &mut random)];
        work[0].enqueue(&rank, &mut layer, None);
        stream.synchronize().unwrap();
        let graph = captured(stream, false, || {
            (0..2).for_each(|_| work[0].enqueue(&rank, &mut layer, None));
        });
        replay(&rank, &mut layer, &[(graph, 512)], &mut work, 20, &mut random);
    });
}

/// A rank that sleeps beyond the limit: whoever waits is told in time, and its context still works.
#[test]
#[ignore = "needs 2 Hopper GPUs and NCCL"]
fn a_late_rank_is_noticed() {
    const LIMIT: Duration = Duration::from_secs(1);
    let ranks = ranks();
    assert!(ranks > 1, "with one GPU nobody waits");
    let kernel = one_kernel();
    let case = Case::new(kernel, 512, 256, 256);
    on_ranks(ranks, |rank| {
        let stream = &rank.gpu.stream;
        let rows = vec![512 / ranks; ranks as usize];
        let mut layer = plan(&rank, &case, &rows, LIMIT);
        let work = Work::new(&rank, &case, &rows, &mut Random::new(103));
        let (shard, operands) = (work.shard(&rank, None), work.operands(&rank));
        // SAFETY: the call's own memory, and the stream is awaited before it goes.
        let step =
            |layer: &mut AllGatherGemm| unsafe { layer.enqueue_raw(stream, shard, &[operands]) };
        step(&mut layer).unwrap();
        layer.synchronize(stream).unwrap();
        rank.group.barrier("one is late", PATIENCE).unwrap();
        let begin = Instant::now();
        if rank.rank() == 0 {
            std::thread::sleep(2 * LIMIT);
            assert!(step(&mut layer).is_err());
        } else {
            step(&mut layer).unwrap();
            let error = layer.synchronize(stream).unwrap_err();
            let after = begin.elapsed();
            println!("rank {}: {error} after {after:?}", rank.rank());
            assert!(after < LIMIT * 11 / 10, "{after:?}");
            assert!(matches!(error, Error::Absent { .. } | Error::Aborted { .. }), "{error:?}");
        }
        drop(layer);
        stream.synchronize().unwrap();
        assert_eq!(rank.gpu.download(&rank.gpu.upload(&[1u32, 2, 3])), [1, 2, 3]);
    });
}
