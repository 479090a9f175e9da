//! What the kernels in this binary were built with, or why there are none.
//!
//! What belongs here: the build script's findings, and whether the objects fit the declarations. Invariant: without
//! kernels every answer is the error that names the places where the build looked.

use super::{ffi, generated};
use crate::error::Result;

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
    let (toolkit, cutlass, instances) = generated::BUILT_WITH;
    kernels_built().map(|()| BuildInfo { toolkit, cutlass, instances })
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
    ffi::check_abi()
}
