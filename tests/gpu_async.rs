//! Products on one GPU whose input arrives while they run. One binary, for each has all kernels in it.
#![cfg(feature = "cuda")]

#[path = "common/gpu/mod.rs"]
mod gpu;

#[path = "gpu_async/arriving.rs"]
mod arriving;
#[path = "gpu_async/faults.rs"]
mod faults;
#[path = "gpu_async/streams.rs"]
mod streams;
