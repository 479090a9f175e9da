//! Execution on GPUs (feature `cuda`).
//!
//! What belongs here: everything that needs a CUDA driver or the compiled kernels. Below it, `plan`
//! says what happens in which order and knows no executor. The operations take device memory and a
//! stream, enqueue, and return; those of [`host`](crate::host) have the same names, take slices and compute. The modules, what a user calls
//! first:
//!
//! - [`all_gather_gemm`]: every rank brings rows and multiplies those of all, by the [`Schedule`](crate::plan::Schedule) of a
//!   strategy and by what `tuned` finds in a [table](crate::tune); [`all_gather`]: without the product; [`gather`]: what both are asked for, and how rows travel; [`symmetric`]: memory that all
//!   ranks reach; [`signal_pad`]: signals between their GPUs, for protocols of one's own;
//! - [`gemm`]: a product whose input is there; [`async_gemm`]: one whose input arrives chunk by chunk;
//! - [`signals`]: how chunks are said to be there, and the protocol of it;
//! - [`operands`], [`options`], [`records`], [`step_record`]: operands, options and timing records;
//! - [`kernels`](mod@kernels), [`choice`]: what was compiled, and which of it serves a problem;
//! - [`device`]: which GPUs there are, and whether this crate can use them;
//! - [`nccl`]: NCCL, for GPUs that do not reach each other; `reach`: which do;
//! - `product`: what both products share: planning and calling; `shape`: which sizes kernels take;
//!   `workspace`: memory that a product needs for itself; `host_words`: memory that the device reads
//!   and writes while a kernel runs; `vmm`: memory that processes can hand each other; `stream_ops`: what streams do
//!   without a kernel; `uses`: streams that may still touch some memory;
//! - `ffi`, `call`, `chunk_table`: the C functions of `csrc/overlap_gemm.h`, the whole border to the device code.
//!
//! Two things may be absent where a binary of this feature runs, and neither stops it from
//! starting. The *driver* is loaded at run time: without one, [`devices`] and
//! [`Device::open`] return [`Error::NoDevice`]. The *kernels* are compiled
//! when the crate is built: if that machine had no CUDA toolkit, [`kernels_built`] and every plan
//! return [`Error::KernelsNotBuilt`] with the places where the build looked (the repository's
//! `docs/building-cuda.md` says how it looks). Nothing in here panics for want of either.
//!
//! One context for both CUDA APIs: this crate calls the driver through `cudarc`, the kernels are
//! launched through CUDA's runtime (linked statically). Both mean the device's *primary context*;
//! the runtime finds it because every function here makes it current on the calling thread first.

pub mod all_gather;
pub mod all_gather_gemm;
pub mod async_gemm;
mod call;
pub mod choice;
mod chunk_table;
pub mod device;
#[cfg_attr(not(overlap_gemm_kernels), path = "ffi_missing.rs")]
mod ffi;
pub mod gather;
pub mod gemm;
mod host_words;
pub mod kernels;
pub mod nccl;
pub mod operands;
pub mod options;
mod product;
mod reach;
pub mod records;
mod shape;
pub mod signal_pad;
pub mod signals;
pub mod step_record;
mod stream_ops;
pub mod symmetric;
mod tuned;
mod uses;
mod vmm;
mod workspace;

pub use all_gather::AllGather;
pub use all_gather_gemm::{AllGatherGemm, Shard};
pub use async_gemm::AsyncGemm;
pub use choice::{Choice, choose, ranked};
pub use device::{Device, DeviceInfo, devices};
pub use gather::GatherOptions;
pub use gemm::Gemm;
pub use kernels::{Kernel, kernels};
pub use operands::{Operands, RawOperands};
pub use options::{Activation, GemmOptions};
pub use records::{TileRecord, TileRecords};
pub use shape::{MAX_EXTENT, MAX_SPLITS};
pub use signal_pad::{MAX_CHANNELS, SignalPad};
pub use signals::{Aborter, Signals};
pub use step_record::StepRecord;
pub use symmetric::SymmetricMemory;

use crate::error::{Error, Result};

/// The `cudarc` that this module's signatures mention (streams, slices, contexts).
pub use cudarc;

mod generated {
    include!(concat!(env!("OUT_DIR"), "/build_info.rs"));

    /// Gives the build script's constants the types that the rest of the crate uses.
    pub(super) const INFO: super::BuildInfo =
        super::BuildInfo { toolkit: TOOLKIT, cutlass: CUTLASS, instances: INSTANCES };
    pub(super) const REASON: &str = NOT_BUILT;
}

/// The most chunks a product waits for: they travel as parameters of the kernel.
pub const MAX_CHUNKS: u32 = 256;

/// The most pieces of a shard that one kernel pushes, for the same reason.
pub const MAX_PUSHED: u32 = 32;

/// What the kernels in this binary were built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildInfo {
    /// The version of the CUDA toolkit: `13.0.88`.
    pub toolkit: &'static str,
    /// The version of CUTLASS: `4.2.0`.
    pub cutlass: &'static str,
    /// The names of the compiled kernels, as the files in `csrc/instances` are called.
    pub instances: &'static [&'static str],
}

/// What the kernels in this binary were built with, or why there are none.
pub fn build_info() -> Result<BuildInfo> {
    kernels_built().map(|()| generated::INFO)
}

/// Whether the kernels are in this binary; the error says where the build looked for a toolkit.
///
/// ```
/// match overlap_gemm::cuda::kernels_built() {
///     Ok(()) => println!("{:?}", overlap_gemm::cuda::build_info()?),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn kernels_built() -> Result<()> {
    if cfg!(overlap_gemm_kernels) {
        ffi::check_abi()
    } else {
        Err(Error::KernelsNotBuilt { reason: generated::REASON.into() })
    }
}

/// A failed driver call. Only for errors that the driver itself returned: their text comes from it.
fn driver_error(call: &'static str, error: cudarc::driver::DriverError) -> Error {
    Error::Cuda { call, detail: error.to_string() }
}
