//! Reductions between ranks on GPUs, with and without a product. One binary, for each has all kernels in it.
#![cfg(feature = "cuda")]

#[path = "common/gpu/mod.rs"]
mod gpu;
#[path = "common/mutants.rs"]
mod mutants;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/scenes.rs"]
mod scenes;
#[path = "common/totals.rs"]
mod totals;

#[path = "gpu_reduce/alone.rs"]
mod alone;
#[path = "gpu_reduce/columns.rs"]
mod columns;
#[path = "gpu_reduce/faults.rs"]
mod faults;
#[path = "gpu_reduce/graphs.rs"]
mod graphs;
#[path = "gpu_reduce/lost_ranks.rs"]
mod lost_ranks;
#[path = "gpu_reduce/nccl.rs"]
mod nccl;
#[path = "gpu_reduce/recorded.rs"]
mod recorded;
#[path = "gpu_reduce/results.rs"]
mod results;
#[path = "gpu_reduce/schedule_mutants.rs"]
mod schedule_mutants;
#[path = "gpu_reduce/shared_workspace.rs"]
mod shared_workspace;
#[path = "gpu_reduce/slices.rs"]
mod slices;
#[path = "gpu_reduce/tuned.rs"]
mod tuned;
#[path = "gpu_reduce/who_shares.rs"]
mod who_shares;
#[path = "gpu_reduce/work.rs"]
mod work;
#[path = "gpu_reduce/world.rs"]
mod world;
