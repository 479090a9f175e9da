//! What this binary was built with: the tools, and the compiled kernels as facts, or why there are none.
//!
//! What belongs here: the build script's findings, and the list of kernels; what a kernel is, [`kernels`](crate::kernels)
//! says. Invariant: the list is what is in this binary, in the order in which the C side numbers it; nothing here needs a
//! device; without kernels every answer is the error that names the places where the build looked.

use std::sync::OnceLock;

use super::ffi::{self, kernels_built};
use super::generated;
use crate::error::Result;
use crate::kernels::Kernel;

/// What the kernels in this binary were built with.
///
/// ```
/// if let Ok(built) = overlap_gemm::cuda::build_info() {
///     println!("CUDA {}, CUTLASS {}", built.toolkit, built.cutlass);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildInfo {
    /// The version of the CUDA toolkit: `13.0.88`.
    pub toolkit: &'static str,
    /// The version of CUTLASS: `4.2.0`.
    pub cutlass: &'static str,
    /// The names of the compiled kernels: one for each width of each row of `csrc/kernels.txt`.
    pub instances: &'static [&'static str],
}

/// What the kernels in this binary were built with, or why there are none.
///
/// ```
/// match overlap_gemm::cuda::build_info() {
///     Ok(built) => println!("{} kernels", built.instances.len()),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub fn build_info() -> Result<BuildInfo> {
    let (toolkit, cutlass, instances) = generated::BUILT_WITH;
    kernels_built().map(|()| BuildInfo { toolkit, cutlass, instances })
}

/// The kernels in this binary, or why there are none.
///
/// ```
/// match overlap_gemm::cuda::kernels() {
///     Ok(kernels) => kernels.iter().for_each(|kernel| println!("{kernel}")),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub fn kernels() -> Result<&'static [Kernel]> {
    static KERNELS: OnceLock<Result<Vec<Kernel>>> = OnceLock::new();
    match KERNELS.get_or_init(read) {
        Ok(kernels) => Ok(kernels),
        Err(error) => Err(error.clone()),
    }
}

fn read() -> Result<Vec<Kernel>> {
    kernels_built()?;
    (0..ffi::kernel_count()?).map(ffi::kernel_info).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_listed_or_the_build_is_named() {
        match kernels() {
            Ok(kernels) => {
                assert!(!kernels.is_empty());
                for (index, kernel) in kernels.iter().enumerate() {
                    assert_eq!(kernel.tiling(1).check(), Ok(()), "{kernel}");
                    assert_eq!(kernel.elements.check(), Ok(()), "{kernel}");
                    assert!(kernel.tile_k > 0 && kernel.max_splits > 0, "{kernel:?}");
                    // What is predicted of a name is what was compiled under it.
                    assert_eq!(Kernel::from_name(&kernel.name).as_ref(), Some(kernel));
                    let same = |other: &Kernel| other.name == kernel.name;
                    assert_eq!(kernels.iter().position(same), Some(index), "{kernel} twice");
                }
            }
            Err(error) => assert_eq!(kernels_built(), Err(error)),
        }
    }
}
