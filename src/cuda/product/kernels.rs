//! The compiled kernels, as facts.
//!
//! What belongs here: the list; what a kernel is, [`kernels`](crate::kernels) says. Invariant: the list is what
//! is in this binary, in the order in which the C side numbers it; nothing here needs a device.

use std::sync::OnceLock;

use crate::cuda::sys::ffi;
use crate::error::Result;
use crate::kernels::Kernel;

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
    crate::cuda::sys::build_info::kernels_built()?;
    (0..ffi::kernel_count()).map(ffi::kernel_info).collect()
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
            Err(error) => assert_eq!(crate::cuda::sys::build_info::kernels_built(), Err(error)),
        }
    }
}
