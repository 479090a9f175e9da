//! What binds to CUDA: the driver, device memory, and the C functions of `csrc/overlap_gemm.h`.
//!
//! What belongs here: what neither signals nor gathers nor multiplies by itself. Invariant: nothing here uses another
//! folder of `cuda`; a status of the driver or of the C side becomes an [`Error`] before it leaves.
//!
//! - `ffi`: the whole border to the device code (`bindings` is generated); `build_info`: what the kernels were built with,
//!   and which there are;
//! - `device`: which GPUs there are; `vmm`: memory that processes can hand each other; `host_words`: memory that the
//!   device reads and writes while a kernel runs; `workspace`: memory that a product needs for itself; `records`:
//!   when each tile was computed, as the device writes it down;
//! - `stream_ops`: what streams do without a kernel; `uses`: streams that may still touch some memory.

use cudarc::driver::DriverError;

use crate::error::{Error, Result};

#[allow(
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    unreachable_pub,
    reason = "generated from csrc/overlap_gemm.h, which documents and keeps the C names"
)]
pub(crate) mod bindings;
pub(crate) mod build_info;
pub mod device;
pub(crate) mod ffi;
pub(crate) mod host_words;
pub(crate) mod records;
pub(crate) mod stream_ops;
pub(crate) mod uses;
pub(crate) mod vmm;
pub(crate) mod workspace;

#[cfg_attr(
    overlap_gemm_kernels,
    expect(dead_code, reason = "REASON is for a binary without kernels")
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/build_info.rs"));

    /// The toolkit, CUTLASS and the kernels.
    pub(super) const BUILT_WITH: (&str, &str, &[&str]) = (TOOLKIT, CUTLASS, INSTANCES);
    /// Why there are no kernels.
    pub(super) const REASON: &str = NOT_BUILT;
}

/// What a call of the driver returned. Only for errors of the driver itself: their text comes from it.
pub(crate) trait Driver<T> {
    /// A failure as an [`Error`] that names the call.
    fn in_call(self, call: &'static str) -> Result<T>;
}

impl<T> Driver<T> for std::result::Result<T, DriverError> {
    fn in_call(self, call: &'static str) -> Result<T> {
        self.map_err(|error| Error::Cuda {
            call,
            code: Some(error.0 as u32),
            detail: error.to_string(),
        })
    }
}
