//! The compiled kernels, as facts.
//!
//! What belongs here: what a kernel is, for whoever chooses or lists one. Invariant: the list is what
//! is in this binary, in the order in which the C side numbers it; nothing here needs a device.

use std::fmt;
use std::sync::OnceLock;

use super::ffi;
use crate::error::Result;
use crate::plan::{BLayout, ClusterShape, ElementTypes, TileShape, Tiling};

/// What one compiled kernel is. Matrices are as the caller sees them: a kernel that computes the
/// transposed product has its tile turned back here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// `bf16_bf16_nk_128x256_2x1`: what [`GemmOptions::kernel`](super::GemmOptions::kernel) takes.
    pub name: String,
    /// The element types of A, B and D (also of C and of the bias).
    pub elements: ElementTypes,
    /// How B lies in memory.
    pub b_layout: BLayout,
    /// Rows and columns of D in one tile.
    pub tile: TileShape,
    /// K in one step.
    pub tile_k: u32,
    /// Tiles of one cluster of thread blocks.
    pub cluster: ClusterShape,
    /// Whether two groups of warps work on different tiles in turn, or both on one.
    pub pingpong: bool,
    /// Whether it computes D transposed, so that few rows fill the tensor cores.
    pub transposed: bool,
    /// Whether fp8 sums stay in the tensor cores for all of K, or are added up in f32 every 128.
    pub fast_accumulation: bool,
    /// The most slices of K it can work on at a time.
    pub max_splits: u32,
}

impl Kernel {
    /// How it cuts and sweeps the output.
    pub fn tiling(&self, swizzle: u32) -> Tiling {
        Tiling { tile: self.tile, cluster: self.cluster, swizzle }
    }

    /// Thread blocks of one cluster, and so the fewest SMs that it runs on.
    pub fn cluster_size(&self) -> u32 {
        self.cluster.m.saturating_mul(self.cluster.n).max(1)
    }

    /// Whether it computes products of these types and this layout, summed this way. How fp8 sums are
    /// kept is no question for wider types.
    pub fn serves(&self, elements: ElementTypes, layout: BLayout, fast_accumulation: bool) -> bool {
        let sums = !elements.a.is_fp8() || self.fast_accumulation == fast_accumulation;
        self.elements == elements && self.b_layout == layout && sums
    }

    /// What [`Kernel::serves`] looks at, in words.
    pub(super) fn kind(&self) -> String {
        kind(self.elements, self.b_layout, self.fast_accumulation)
    }
}

/// Types, layout and accumulation in words: `e4m3 × e4m3 → bf16 (B as N×K, fast accumulation)`.
pub(super) fn kind(elements: ElementTypes, layout: BLayout, fast_accumulation: bool) -> String {
    let ElementTypes { a, b, d } = elements;
    let layout = match layout {
        BLayout::Nk => "B as N×K",
        BLayout::Kn => "B as K×N",
    };
    let sums = match (a.is_fp8(), fast_accumulation) {
        (false, _) => "",
        (true, true) => ", fast accumulation",
        (true, false) => ", f32 accumulation",
    };
    format!("{a} × {b} → {d} ({layout}{sums})")
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
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
    super::kernels_built()?;
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
                    let same = |other: &Kernel| other.name == kernel.name;
                    assert_eq!(kernels.iter().position(same), Some(index), "{kernel} twice");
                }
            }
            Err(error) => assert_eq!(super::super::kernels_built(), Err(error)),
        }
    }
}
