//! The memory of a shared workspace: no more than the largest operation takes, for operations that come and go; and which may not
//! share.
//!
//! What belongs here: what planning and dropping operations does; steps of different ones: `shared_workspace`. Invariant: a refusal
//! ends nothing.

use std::sync::Arc;

use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{DevicePtr as _, result};
use overlap_gemm::cuda::{
    AllGather, AllGatherGemm, CollectiveOptions, GemmOptions, GemmReduceScatter, Operands,
    RawOperands, Shard,
};
use overlap_gemm::element::bf16;
use overlap_gemm::group::Group;
use overlap_gemm::plan::{Engine, Problem, Reduction, Strategy};
use overlap_gemm::random::Random;

use super::shared_workspace::{COPIES, KERNEL, ROW, workspace};
use crate::gpu::PATIENCE;
use crate::gpu::inputs::{random_bytes, read_bytes};
use crate::gpu::ranks::{on_ranks, options};

/// 80 layers of two shapes take the memory of the larger, and 5 % of it.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn layers_take_the_memory_of_the_largest() {
    const LAYERS: usize = 80;
    on_ranks(2, |rank| {
        let (group, device) = (&rank.group, &rank.gpu.device);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let problem = |n, k| Problem::builder(8192, n, k).ranks(2).build().unwrap();
        let (wide, narrow) = (problem(3584, 8192), problem(8192, 3584));
        let plan_up =
            |options: &_| AllGatherGemm::plan(group, device, &wide, options, &gemm).unwrap();
        let (plain, sum) = (options(COPIES), Reduction::default());
        let plan_down = |options: &CollectiveOptions| {
            let pipelined = options.clone().with_strategy(Strategy::Pipelined);
            GemmReduceScatter::plan(group, device, &narrow, &pipelined, &gemm, sum).unwrap()
        };
        let free = || {
            group.barrier("nobody allocates", PATIENCE).unwrap();
            device.context().bind_to_thread().unwrap();
            let free = result::mem_get_info().unwrap().0;
            group.barrier("measured", PATIENCE).unwrap();
            free
        };
        // What the first plans of a process take, kernels for example.
        drop((plan_up(&plain), plan_down(&plain)));
        let mut before = free();
        // Of both ranks, if they share the GPU.
        let mut taken = || {
            let now = free();
            std::mem::replace(&mut before, now).saturating_sub(now)
        };
        let up = plan_up(&plain);
        let of_up = taken();
        drop(up);
        taken();
        let down = plan_down(&plain);
        let largest = taken().max(of_up);
        drop(down);
        taken();
        let shared = plain.with_workspace(&workspace(&rank));
        let mut layers: Vec<_> =
            (0..LAYERS).map(|_| (plan_up(&shared), plan_down(&shared))).collect();
        let together = taken();
        println!("one of its own: {largest} bytes, {LAYERS} layers: {together}");
        assert!(together <= largest + largest / 20, "{together} bytes, and {largest}");

        let mut random = Random::of_stream(44, rank.rank().into());
        let mut numbers = |count: u64| rank.gpu.upload(&random.elements::<bf16>(count));
        let (stream, shard) = (&rank.gpu.stream, numbers(4096 * 8192));
        let weights = [numbers(3584 * 8192), numbers(8192 * 3584)];
        let mut hidden = rank.gpu.upload(&vec![bf16::NAN; 8192 * 3584]);
        let mut first = None;
        for (up, down) in &mut layers {
            let mut d = rank.gpu.upload(&vec![bf16::NAN; 4096 * 8192]);
            up.enqueue(stream, [Operands::new(&shard, &weights[0], &mut hidden)]).unwrap();
            down.enqueue(stream, [Operands::new(&hidden, &weights[1], &mut d)]).unwrap();
            down.synchronize(stream).unwrap();
            up.check().unwrap();
            let d = rank.gpu.download(&d);
            assert!(d.iter().all(|value| value.is_finite()));
            assert!(*first.get_or_insert_with(|| d.clone()) == d, "layers with the same numbers");
        }
        rank.through();
    });
}

/// An operation that is dropped in a step leaves rows that nobody waits for.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_operation_that_is_dropped_in_a_step_ends_the_others() {
    on_ranks(2, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let options = options(KERNEL).with_workspace(&workspace);
        let (group, device) = (&rank.group, &rank.gpu.device);
        let plan = || AllGather::plan(group, device, &[8, 8], ROW, &options).unwrap();
        let [mut dropped, mut other] = [plan(), plan()];
        let own = rank.gpu.upload(&random_bytes(rank.rank(), 0, 8 * ROW));
        // SAFETY: kept until the stream is through.
        unsafe { dropped.start(stream, None, Some(own.device_ptr(stream).0)) }.unwrap();
        rank.group.barrier("all are in the step", PATIENCE).unwrap();
        drop(dropped);
        let error = other.check().unwrap_err().to_string();
        assert!(error.contains("an operation was dropped in a step"), "{error}");
        rank.through();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_cannot_share_is_refused() {
    on_ranks(2, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let (group, device) = (&rank.group, &rank.gpu.device);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let shared = options(KERNEL).with_strategy(Strategy::Fused).with_workspace(&workspace);
        let plan = |group, options| AllGatherGemm::plan(group, device, &problem, options, &gemm);
        let mut layer = plan(group, &shared).unwrap();
        let refused = |result: Result<(), Error>, expected: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        let in_place = "rows in place in a shared workspace";
        refused(layer.local_shard(None).map(|_| ()), in_place);
        let [b, d] = [64 * 64, 64 * 64].map(|count| rank.gpu.upload(&vec![bf16::ONE; count]));
        let operands = [RawOperands::of_gathered(b.device_ptr(stream).0, d.device_ptr(stream).0)];
        // SAFETY: refused before anything is enqueued.
        refused(unsafe { layer.enqueue_raw(stream, Shard::in_place(), &operands) }, in_place);
        let by_nccl = shared.clone().with_engine(Engine::Nccl).with_strategy(Strategy::Sequential);
        let plan_nccl = plan(group, &by_nccl);
        refused(plan_nccl.map(|_| ()), "NCCL in a shared workspace");
        let other = Arc::new(Group::local(1).unwrap().remove(0));
        refused(plan(&other, &shared).map(|_| ()), "the group of the workspace is another");

        // A step that has not ended; the refusal ends nothing.
        let mut gather = AllGather::plan(
            group,
            device,
            &[8, 8],
            ROW,
            &options(KERNEL).with_workspace(&workspace),
        )
        .unwrap();
        let own = rank.gpu.upload(&random_bytes(rank.rank(), 0, 8 * ROW));
        let shard = || Some(own.device_ptr(stream).0);
        // SAFETY: kept until the stream is through.
        unsafe { gather.start(stream, None, shard()) }.unwrap();
        let rows = || Shard::at(own.device_ptr(stream).0);
        // SAFETY: refused.
        refused(
            unsafe { layer.enqueue_raw(stream, rows(), &operands) },
            "the step before is not ended",
        );
        assert_eq!(layer.gathered(), None);
        let at = gather.finish(stream).unwrap();
        gather.synchronize(stream).unwrap();
        // SAFETY: so many bytes lie there, and the stream is through.
        let got = unsafe { read_bytes(at, 16 * ROW as usize) };
        assert!(got == [0, 1].map(|from| random_bytes(from, 0, 8 * ROW)).concat());
        // SAFETY: kept until the stream is through; a shard of 32 rows is shorter.
        unsafe { layer.enqueue_raw(stream, rows(), &operands) }.unwrap();
        layer.synchronize(stream).unwrap();
        assert!(layer.gathered().is_some());
        rank.through();
    });
}

/// Operations come and go: their words are used again, when no rank has them any more.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn operations_come_and_go() {
    /// More than there are words for.
    const PLANS: u64 = 1100;
    on_ranks(2, |rank| {
        let workspace = workspace(&rank);
        let options = options(KERNEL).with_workspace(&workspace);
        let (group, device, stream) = (&rank.group, &rank.gpu.device, &rank.gpu.stream);
        let mut kept = None;
        for number in 0..PLANS {
            let mut gather = AllGather::plan(group, device, &[8, 8], ROW, &options).unwrap();
            let own = rank.gpu.upload(&random_bytes(rank.rank(), number, 8 * ROW));
            // SAFETY: kept until the stream is through.
            unsafe { gather.start(stream, None, Some(own.device_ptr(stream).0)) }.unwrap();
            let at = gather.finish(stream).unwrap();
            gather.synchronize(stream).unwrap();
            // SAFETY: so many bytes lie there, and the stream is through.
            let got = unsafe { read_bytes(at, 16 * ROW as usize) };
            assert!(got == [0, 1].map(|from| random_bytes(from, number, 8 * ROW)).concat());
            // One rank drops it before the next plan, the other behind it.
            kept = (rank.rank() == 1).then_some(gather);
        }
        drop(kept);
        assert!(workspace.bytes() <= 6 << 20, "{} bytes", workspace.bytes());
        rank.through();
    });
}
