//! Gathers that NCCL carries out. It takes one rank a GPU, so there are as many ranks as GPUs; NCCL has to be
//! there (OVERLAP_GEMM_NCCL names its file).
//!
//! Invariant: as with other engines: what comes out is what the product of the whole A is, and who is late or gone
//! is told in time, though NCCL's kernels know no limit.

use std::time::{Duration, Instant};

use crate::gpu::call::call;
use crate::gpu::case::Case;
use crate::gpu::inputs::some_rows;
use crate::gpu::ranks::{Rank, on_ranks};
use crate::gpu::tried_kernels;
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use overlap_gemm::cuda::{AllGatherGemm, GatherOptions, Shard, devices};
use overlap_gemm::plan::{Engine, Scaling, Strategy};
use overlap_gemm::random::Random;

const PATIENCE: Duration = Duration::from_secs(30);

fn ranks() -> u32 {
    devices().unwrap().len() as u32
}

fn options(limit: Duration) -> GatherOptions {
    let options = GatherOptions::default().with_engine(Engine::Nccl).with_poison(true);
    options.with_timeouts(PATIENCE, limit)
}

fn plan(rank: &Rank, case: &Case, rows: &[u32], limit: Duration) -> AllGatherGemm {
    let (problem, gather) = (case.sharded(rows), options(limit));
    let (group, device) = (&rank.group, &rank.gpu.device);
    AllGatherGemm::plan(group, device, &problem, None, &gather, &case.options).unwrap()
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
            let mut call = call(&rank.gpu, &case, &mut random);
            let stream = &rank.gpu.stream;
            // Alike, others, alike, twice the same.
            for rows in [None, Some(&other[..]), None, None] {
                let problem = case.sharded(&even);
                let problem =
                    rows.map_or(problem.clone(), |rows| problem.with_shards(rows).unwrap());
                let own = problem.shards().rows(rank.rank());
                call.renew_a(&mut random);
                call.copy_rows(0..600, stream);
                call.poison_d(stream);
                let mut operands = call.addresses(stream);
                let pitch = u64::from(problem.lda()) * u64::from(problem.elements().a.size());
                let mut shard = Shard::at(operands.a + u64::from(own.start) * pitch);
                operands.a = 0;
                if problem.scaling() == Scaling::Rows {
                    shard = shard.scales(operands.scale_a + 4 * u64::from(own.start));
                    operands.scale_a = 0;
                }
                let shard = match rows {
                    Some(rows) => shard.rows(rows),
                    None => shard,
                };
                // SAFETY: the call's own memory, and the stream is awaited.
                unsafe { layer.enqueue(stream, shard, &[operands]) }.unwrap();
                layer.synchronize(stream).unwrap();
                call.fetch(stream);
                call.check_written(problem.m());
                let report = call.report(&some_rows(problem.m(), &mut random));
                assert_eq!(report.wrong, 0, "{case:?}: {report:?}");
            }
        });
        println!("{kernel}: right");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn graphs_replay() {
    let ranks = ranks();
    let kernel = tried_kernels().into_iter().find(|kernel| !kernel.transposed).unwrap();
    let case = Case::new(kernel, 512, 256, 256);
    on_ranks(ranks, |rank| {
        let (mut random, stream) = (Random::new(102), &rank.gpu.stream);
        let rows = vec![512 / ranks; ranks as usize];
        let mut layer = plan(&rank, &case, &rows, PATIENCE);
        let mut call = call(&rank.gpu, &case, &mut random);
        let mut operands = call.addresses(stream);
        let pitch = 256 * u64::from(kernel.elements.a.size());
        let shard = Shard::at(operands.a + u64::from(rank.rank() * rows[0]) * pitch);
        operands.a = 0;
        // SAFETY: the call's own memory, which outlives the graph.
        let mut step = || unsafe { layer.enqueue(stream, shard, &[operands]) }.unwrap();
        step();
        stream.synchronize().unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        step();
        step();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        for _ in 0..20 {
            call.renew_a(&mut random);
            call.copy_rows(0..512, stream);
            call.poison_d(stream);
            graph.launch().unwrap();
            layer.synchronize(stream).unwrap();
            call.fetch(stream);
            let report = call.report(&[0, 1, 255, 256, 511]);
            assert_eq!(report.wrong, 0, "{report:?}");
        }
    });
}

/// What needs to see rows before all are there is refused, on every rank.
#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn waiting_for_rows_is_refused() {
    let ranks = ranks();
    let kernel = tried_kernels().into_iter().find(|kernel| !kernel.transposed).unwrap();
    let case = Case::new(kernel, 512, 256, 256);
    on_ranks(ranks, |rank| {
        let rows = vec![512 / ranks; ranks as usize];
        let (problem, gather) = (case.sharded(&rows), options(PATIENCE));
        let (group, device) = (&rank.group, &rank.gpu.device);
        for strategy in [Strategy::Fused, Strategy::Pipelined] {
            let planned = AllGatherGemm::plan(
                group,
                device,
                &problem,
                Some(strategy),
                &gather,
                &case.options,
            );
            let error = planned.map(drop).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        }
        plan(&rank, &case, &rows, PATIENCE);
    });
}

/// A rank that sleeps beyond the limit: whoever waits is told in time, and its context still works.
#[test]
#[ignore = "needs 2 Hopper GPUs and NCCL"]
fn a_late_rank_is_noticed() {
    const LIMIT: Duration = Duration::from_secs(1);
    let ranks = ranks();
    assert!(ranks > 1, "with one GPU nobody waits");
    let kernel = tried_kernels().into_iter().find(|kernel| !kernel.transposed).unwrap();
    let case = Case::new(kernel, 512, 256, 256);
    on_ranks(ranks, |rank| {
        let stream = &rank.gpu.stream;
        let rows = vec![512 / ranks; ranks as usize];
        let mut layer = plan(&rank, &case, &rows, LIMIT);
        let call = call(&rank.gpu, &case, &mut Random::new(103));
        let mut operands = call.addresses(stream);
        let shard = Shard::at(operands.a);
        operands.a = 0;
        // SAFETY: the call's own memory, and the stream is awaited before it goes.
        let step = |layer: &mut AllGatherGemm| unsafe { layer.enqueue(stream, shard, &[operands]) };
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
