//! What may move between threads and what may be shared: part of the API, so it is held here.

use overlap_gemm::Error;
use overlap_gemm::element::bf16;
use overlap_gemm::exercise::Exercise;
use overlap_gemm::host::{
    Aborter, AllGatherGemm, AllReduce, AsyncGemm, AsyncInput, ChunkWriter, GemmAllReduce, Product,
    Rank, Shard, Stream,
};
use overlap_gemm::plan::{Plan, Problem, Schedule, TileOrder};

fn send<T: Send>() {}
fn send_and_sync<T: Send + Sync>() {}

#[test]
fn operations_move_and_plans_are_shared() {
    // One thread at a time enqueues, any thread may.
    send::<(AllGatherGemm<bf16>, AsyncGemm<bf16>, AsyncInput<bf16>, Product<'_, bf16, bf16>)>();
    send::<(GemmAllReduce<bf16>, AllReduce<bf16>)>();
    send_and_sync::<(Problem, Plan, TileOrder, Schedule, Exercise, Error)>();
    send_and_sync::<(Rank, Stream, Aborter, ChunkWriter<bf16>, Shard<'_, bf16>)>();
}

#[cfg(feature = "group")]
#[test]
fn groups_are_shared() {
    use overlap_gemm::group::{Group, GroupOptions, Launch, Member, Secret};
    send_and_sync::<(Group, GroupOptions, Launch, Member, Secret)>();
}

#[cfg(feature = "cuda")]
#[test]
fn operations_on_gpus_and_what_they_take_move() {
    use overlap_gemm::cuda::*;
    // Any thread may enqueue; with `&mut self` one at a time.
    send_and_sync::<(Device, Gemm, AsyncGemm, Signals, ChunkWait, Aborter)>();
    send_and_sync::<(AllGather, AllGatherGemm, GemmReduceScatter, GemmAllReduce)>();
    send_and_sync::<(ReduceScatter, AllReduce, SymmetricMemory, SharedWorkspace, SignalPad)>();
    send_and_sync::<(StepRecord, TileRecord, TileRecords, DeviceInfo, BuildInfo)>();
    send_and_sync::<(CollectiveOptions, GemmOptions, RawOperands, Shard<'_>)>();
    send_and_sync::<(nccl::Nccl, nccl::Communicator)>();
}
