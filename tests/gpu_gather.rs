//! Gathers between ranks on GPUs. One binary, for each has all kernels in it.
#![cfg(feature = "cuda")]

#[path = "common/gpu/mod.rs"]
mod gpu;
#[path = "common/mutants.rs"]
mod mutants;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/scenes.rs"]
mod scenes;

#[path = "gpu_gather/all_gather.rs"]
mod all_gather;
#[path = "gpu_gather/all_gather_gemm.rs"]
mod all_gather_gemm;
#[path = "gpu_gather/concurrent.rs"]
mod concurrent;
#[path = "gpu_gather/faults.rs"]
mod faults;
#[path = "gpu_gather/kernels_before.rs"]
mod kernels_before;
#[path = "gpu_gather/many_steps.rs"]
mod many_steps;
#[path = "gpu_gather/nccl.rs"]
mod nccl;
#[path = "gpu_gather/recorded.rs"]
mod recorded;
#[path = "gpu_gather/schedule_mutants.rs"]
mod schedule_mutants;
#[path = "gpu_gather/signal_pad.rs"]
mod signal_pad;
#[path = "gpu_gather/slices.rs"]
mod slices;
#[path = "gpu_gather/symmetric.rs"]
mod symmetric;
#[path = "gpu_gather/tuned.rs"]
mod tuned;
