//! The properties of a kernel: to choose one, to list them, and to predict its time.
//!
//! What belongs here: the properties, their names, and the list of all kernels that can be compiled
//! (`csrc/kernels.txt`). Invariant: nothing here needs a compiled kernel or a device; a name determines all properties of a
//! kernel.

use std::fmt;
use std::sync::OnceLock;

use crate::plan::{BLayout, ClusterShape, ElementTypes, GATE_COLUMNS, Problem, TileShape, Tiling};

/// The build's own reader of `csrc/kernels.txt`.
#[path = "../../build/table.rs"]
#[allow(dead_code, reason = "the build script uses all of it, this a part")]
mod table;

/// The most slices of K that any kernel works on at a time: `OG_MAX_SPLITS` of `csrc/overlap_gemm.h`.
const MAX_SPLITS: u32 = 16;

/// The properties of one kernel. Matrices are as the caller sees them: a kernel that computes the
/// transposed product has its tile turned back here.
///
/// ```
/// use overlap_gemm::kernels::Kernel;
///
/// let kernel = Kernel::from_name("bf16_bf16_bf16_nk_128x256x64_2x1_cooperative");
/// let kernel = kernel.expect("it can be compiled");
/// assert_eq!((kernel.tile.m, kernel.cluster_size(), kernel.pingpong), (128, 2, false));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// `bf16_bf16_bf16_nk_128x256x64_2x1_cooperative`: a name for `GemmOptions::kernel`.
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
    /// Whether it can add other ranks' sums to its own, as a fused reduction does.
    pub adds_others: bool,
    /// Whether it computes [gated](crate::plan::ProblemBuilder::gated) products.
    pub gates: bool,
}

impl Kernel {
    /// The kernel of that name; `None` if no kernel has it.
    ///
    /// ```
    /// use overlap_gemm::kernels::Kernel;
    ///
    /// let kernel = Kernel::from_name("bf16_bf16_bf16_nk_64x128x64_1x2_cooperative_transposed").unwrap();
    /// assert_eq!((kernel.tile.m, kernel.cluster.n, kernel.max_splits), (64, 2, 16));
    /// assert_eq!(Kernel::from_name("bf16"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Self> {
        let mut words = name.split('_');
        let mut element = || words.next()?.parse().ok();
        let elements = ElementTypes { a: element()?, b: element()?, d: element()? };
        let b_layout = match words.next()? {
            "nk" => BLayout::Nk,
            "kn" => BLayout::Kn,
            _ => return None,
        };
        let mut extents = || -> Option<Vec<u32>> {
            words.next()?.split('x').map(|extent| extent.parse().ok()).collect()
        };
        let ([m, n, tile_k], [cluster_m, cluster_n]) =
            (extents()?.try_into().ok()?, extents()?.try_into().ok()?);
        let pingpong = match words.next()? {
            "pingpong" => true,
            "cooperative" => false,
            _ => return None,
        };
        let [mut transposed, mut fast_accumulation] = [false; 2];
        for option in words {
            match option {
                "transposed" => transposed = true,
                "fast" => fast_accumulation = true,
                _ => return None,
            }
        }
        // As `kCanSplit` in csrc/gemm_sm90.cuh.
        let outputs = u64::from(m) * u64::from(n);
        let splits = !pingpong && outputs <= 128 * 128;
        // As `adds_others` in csrc/tile_store.cuh.
        let groups = if pingpong { 1 } else { 2 };
        let adds_others = elements.d.size() == 2 && outputs <= 128 * 128 * groups;
        // As `gates` there: where two groups of warps share a tile, they share its rows if they can.
        let shared = if !pingpong && !m.is_multiple_of(128) { n / 2 } else { n };
        let gates = transposed || shared.is_multiple_of(2 * GATE_COLUMNS);
        let kernel = Kernel {
            name: name.to_owned(),
            elements,
            b_layout,
            tile: TileShape { m, n },
            tile_k,
            cluster: ClusterShape { m: cluster_m, n: cluster_n },
            pingpong,
            transposed,
            fast_accumulation,
            max_splits: if splits { MAX_SPLITS } else { 1 },
            adds_others,
            gates,
        };
        // Tensor cores compute 64 rows by some eights of columns at a time; the other way round where D is transposed.
        let (rows, columns) = if transposed { (n, m) } else { (m, n) };
        let is_tile = rows.is_multiple_of(64) && columns.is_multiple_of(8);
        let is_one = elements.check().is_ok() && kernel.tiling(1).check().is_ok() && tile_k > 0;
        (is_tile && is_one).then_some(kernel)
    }

    /// How it cuts and sweeps the output.
    pub fn tiling(&self, swizzle: u32) -> Tiling {
        Tiling { tile: self.tile, cluster: self.cluster, swizzle }
    }

    /// Thread blocks of one cluster, and so the fewest SMs that it runs on.
    pub fn cluster_size(&self) -> u32 {
        self.cluster.m.saturating_mul(self.cluster.n).max(1)
    }

    /// Whether it computes products of this problem's types and layout, gated or not, summed this way. How fp8 sums are
    /// kept is no question for wider types.
    pub fn serves(&self, problem: &Problem, fast_accumulation: bool) -> bool {
        let sums = !problem.elements().a.is_fp8() || self.fast_accumulation == fast_accumulation;
        self.computes(problem) && sums
    }

    /// The same, however fp8 sums are kept.
    pub(crate) fn computes(&self, problem: &Problem) -> bool {
        let gates = self.gates || !problem.is_gated();
        self.elements == problem.elements() && self.b_layout == problem.b_layout() && gates
    }

    /// What [`Kernel::serves`] looks at but for gates, in words.
    #[cfg(feature = "cuda")]
    pub(crate) fn kind(&self) -> String {
        kind(self.elements, self.b_layout, self.fast_accumulation)
    }
}

/// Types, layout and accumulation in words: `e4m3 × e4m3 → bf16 (B as N×K, fast accumulation)`.
pub(crate) fn kind(elements: ElementTypes, layout: BLayout, fast_accumulation: bool) -> String {
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

/// Every kernel that can be compiled (`OVERLAP_GEMM_KERNELS=all`), including those not in this binary.
///
/// ```
/// let all = overlap_gemm::kernels::all_kernels();
/// assert!(all.iter().any(|kernel| kernel.name == "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong"));
/// ```
pub fn all_kernels() -> &'static [Kernel] {
    static ALL: OnceLock<Vec<Kernel>> = OnceLock::new();
    ALL.get_or_init(|| {
        let rows = table::read(include_str!("../../csrc/kernels.txt"), "all");
        let rows = rows.unwrap_or_default(); // a test reads the same text
        rows.iter().filter_map(|row| Kernel::from_name(&row.name)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_kernel() {
        let text = include_str!("../../csrc/kernels.txt");
        let rows = table::read(text, "all").unwrap();
        let names: Vec<_> = all_kernels().iter().map(|kernel| kernel.name.as_str()).collect();
        let rows: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        assert!(rows.len() > 50, "{rows:?}");
        assert_eq!(names, rows);
    }

    #[test]
    fn the_device_code_has_the_same_limits() {
        let header = include_str!("../../csrc/overlap_gemm.h");
        assert!(header.contains(&format!("#define OG_MAX_SPLITS {MAX_SPLITS}\n")));
        let sources = include_str!("../../csrc/gemm_sm90.cuh");
        assert!(sources.contains("kCanSplit = !kPingpong && kTileM * kTileN <= 128 * 128;"));
        let sources = include_str!("../../csrc/tile_store.cuh");
        assert!(sources.contains("return kByTma && kTileM * width <= 128 * 128 * kGroups;"));
        assert!(sources.contains("kTransposed || width / kGroupsN % kPairColumns == 0;"));
    }

    #[test]
    fn what_is_no_kernel_has_no_name() {
        let good = "e4m3_e4m3_bf16_nk_128x128x128_2x1_pingpong_fast";
        assert!(Kernel::from_name(good).unwrap().fast_accumulation);
        for bad in [
            "",
            "e4m3_e4m3_f32_nk_128x128x128_2x1_pingpong_fast",
            "e4m3_e4m3_bf16_nm_128x128x128_2x1_pingpong_fast",
            "e4m3_e4m3_bf16_nk_128x128_2x1_pingpong_fast",
            "e4m3_e4m3_bf16_nk_128x128x0_2x1_pingpong_fast",
            "e4m3_e4m3_bf16_nk_128x128x128_0x1_pingpong_fast",
            "e4m3_e4m3_bf16_nk_1x1x1_1x1_cooperative",
            "e4m3_e4m3_bf16_nk_128x4x128_1x1_cooperative",
            "e4m3_e4m3_bf16_nk_64x32x128_1x1_cooperative_transposed",
            "e4m3_e4m3_bf16_nk_128x128x128_2x1_pingpong_slow",
            "e4m3_e4m3_bf16_nk_128x128x128_2x1",
        ] {
            assert_eq!(Kernel::from_name(bad), None, "{bad}");
        }
    }
}
