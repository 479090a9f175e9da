//! Execution on GPUs (feature `cuda`).
//!
//! What belongs here: everything that needs a CUDA driver or the compiled kernels. Below it, `plan`
//! says what happens in which order and knows no executor. The operations take device memory and a
//! stream, enqueue, and return; those of [`host`](crate::host) have the same names, take slices and compute.
//!
//! The operations, a file or a folder each:
//!
//! - [`AllGatherGemm`]: every rank brings its rows and multiplies all ranks' rows; a [`Schedule`](crate::plan::Schedule) fixes
//!   the order, a [table](crate::tune) or the cost model the rest; [`AllGather`]: without the product;
//! - [`GemmReduceScatter`]: every rank multiplies its slice of K, and gets the sums of its own rows; [`GemmAllReduce`]: of all;
//!   [`ReduceScatter`] and [`AllReduce`]: without the product;
//! - [`Gemm`]: a plain product; [`AsyncGemm`]: one whose input arrives chunk by chunk; [`ChunkWait`]: the same for a kernel of
//!   your own.
//!
//! What they stand on, each folder using only those before it (`docs/architecture.md` has the table):
//!
//! - `sys`: what binds to CUDA: the border to the device code, devices, memory;
//! - `product`: a planned product: kernels and their choice, options, operands;
//! - `exchange`: what ranks exchange: memory that all reach, signals and epochs, where everything lies, agreement;
//! - `movers`: how rows and sums travel: copy engines, a kernel, NCCL.
//!
//! Two things may be absent where a binary of this feature runs, and neither stops it from
//! starting. The *driver* is loaded at run time: without one, [`devices`] and
//! [`Device::open`] return [`Error::NoDevice`](crate::Error::NoDevice). The *kernels* are compiled
//! when the crate is built: if that machine had no CUDA toolkit, [`kernels_built`], [`Device::open`]
//! (of a Hopper GPU) and every plan return [`Error::KernelsNotBuilt`](crate::Error::KernelsNotBuilt)
//! with the places where the build looked (the repository's
//! `docs/building-cuda.md` says how it looks). Nothing in here panics for want of either.
//!
//! # Memory and streams of other libraries
//!
//! Calls take any `cudarc` slice or view on the device, for example a candle tensor's. Other code may have opened its
//! `CudaContext`: every one stands for the device's primary context. A context that has no stream but the default one does not
//! track who uses its memory: calls on another stream refuse that memory. [`DeviceMatrix::from_raw`] takes a matrix in other memory
//! (bias and scales are slices: `cudarc` wraps an address as one), and `cudarc` wraps a raw stream as a `CudaStream`. The owner keeps
//! the memory until the step has ended, and the stream until the operations that used it are dropped:
//!
//! ```no_run
//! use overlap_gemm::cuda::cudarc::driver::sys;
//! use overlap_gemm::cuda::{Device, DeviceMatrix, DeviceMatrixMut, Gemm, Operands};
//! use overlap_gemm::element::bf16;
//!
//! /// D of M×N numbers is at `d`, A at `a`, B at `b`, each of them packed.
//! fn multiply(
//!     gemm: &Gemm,
//!     device: &Device,
//!     stream: sys::CUstream,
//!     [a, b, d]: [sys::CUdeviceptr; 3],
//!     [m, n, k]: [u64; 3],
//! ) -> overlap_gemm::Result<()> {
//!     // SAFETY: the stream is of the device's primary context, and its owner keeps it.
//!     let stream = unsafe { device.context().wrap_borrowed_stream(stream) };
//!     // SAFETY: the memory is the device's and so long, and its owner keeps it until the stream has used it.
//!     let (a, b, d) = unsafe {
//!         let input = |address, rows| DeviceMatrix::<bf16>::from_raw(address, rows, k);
//!         (input(a, m), input(b, n), DeviceMatrixMut::<bf16>::from_raw(d, m, n))
//!     };
//!     gemm.enqueue(&stream, Operands::new(a, b, d))
//! }
//! ```
//!
//! # Threads
//!
//! Everything here but [`Operands`], matrices and a [`KernelInput`] may move to another thread. Calls with `&self`, such as
//! [`Gemm::enqueue`], may come from several threads at once. Calls of a collective operation take `&mut self`; each rank, a thread
//! or a process, has an operation of its own.
//!
//! One context for both CUDA APIs: this crate calls the driver through `cudarc`, the kernels are
//! launched through CUDA's runtime (linked statically). Both mean the device's *primary context*;
//! the runtime finds it because every function here makes it current on the calling thread first.

mod all_gather;
mod all_gather_gemm;
mod async_gemm;
mod exchange;
mod gemm;
mod gemm_reduce;
mod movers;
mod product;
mod sys;

// The operations.
#[doc(inline)]
pub use self::{
    all_gather::AllGather,
    all_gather_gemm::AllGatherGemm,
    async_gemm::AsyncGemm,
    gemm::Gemm,
    gemm_reduce::alone::{AllReduce, ReduceScatter},
    gemm_reduce::{GemmAllReduce, GemmReduce, GemmReduceScatter, Reduce},
};

// What they are asked for, and what they multiply.
#[doc(inline)]
pub use self::{
    movers::options::CollectiveOptions,
    movers::step_record::StepRecord,
    product::matrix::{DeviceMatrix, DeviceMatrixMut},
    product::operands::Operands,
    product::options::GemmOptions,
    product::raw_operands::RawOperands,
    product::shard::Shard,
};
#[doc(inline)]
pub use crate::plan::Activation;

// Signals, and memory that all ranks reach.
#[doc(inline)]
pub use self::{
    exchange::chunk_wait::{ChunkWait, KernelInput},
    exchange::shared_workspace::SharedWorkspace,
    exchange::signal_pad::{MAX_CHANNELS, SignalPad},
    exchange::signals::{self, Aborter, Signals},
    exchange::symmetric::SymmetricMemory,
    movers::nccl,
};

// Devices, kernels, and what this binary was built with.
#[doc(inline)]
pub use self::{
    sys::build_info::{BuildInfo, build_info, kernels},
    sys::device::{self, Device, DeviceInfo, devices},
    sys::ffi::{MAX_AWAITED_CHUNKS, kernels_built},
};
#[doc(inline)]
pub use crate::kernels::{Choice, Kernel};

// What happened, and when.
#[doc(inline)]
pub use self::sys::records::{TileRecord, TileRecords};

/// The `cudarc` that this module's signatures mention (streams, slices, contexts).
pub use cudarc;
