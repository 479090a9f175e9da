//! A product to try: which kernel, which sizes and pitches, how it is run.
//!
//! What belongs here: plain values, and drawing them. Invariant: whatever is drawn here, its kernel can
//! compute; two cases that print alike are alike.

use std::fmt;

use overlap_gemm::ElementType;
use overlap_gemm::cuda::{Activation, GemmOptions, Kernel};
use overlap_gemm::plan::{BLayout, ElementTypes, Problem, ProblemBuilder, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Accumulation;

use super::inputs::factor;

/// One product.
#[derive(Clone, Debug)]
pub struct Case {
    pub kernel: &'static Kernel,
    /// Of D: the kernel's, but of a reduction, whose kernels store partial sums.
    pub d: ElementType,
    pub size: [u64; 3],
    /// Of A, B and D, in units of 16 bytes beyond what alignment asks for.
    pub pads: [u64; 3],
    pub scaling: Scaling,
    pub gated: bool,
    /// In a reduce-scatter; M is theirs together.
    pub batches: u64,
    /// In a reduce-scatter: N is all ranks' columns together, and M the rows of each.
    pub scatter_columns: bool,
    pub options: GemmOptions,
    pub alpha: f32,
    pub beta: f32,
    /// 1 unless D is fp8.
    pub scale_d: f32,
    pub rows: Option<u32>,
}

impl Case {
    /// A case of that kernel: `n` is rounded up to what TMA can store.
    pub fn new(kernel: &'static Kernel, m: u64, n: u64, k: u64) -> Case {
        let unit = 16 / u64::from(kernel.elements.d.size());
        let options = GemmOptions::default()
            .with_kernel(kernel.name.as_str())
            .with_fast_accumulation(kernel.fast_accumulation)
            .with_splits(1);
        Case {
            kernel,
            d: kernel.elements.d,
            size: [m, n.next_multiple_of(unit), k],
            pads: [0; 3],
            scaling: Scaling::None,
            gated: false,
            batches: 1,
            scatter_columns: false,
            options,
            alpha: 1.0,
            beta: 0.0,
            scale_d: 1.0,
            rows: None,
        }
    }

    /// The same with a gated product, if the kernel can: `n` is rounded up to pairs of blocks and to what TMA asks of D, and there
    /// is no C.
    pub fn gated(mut self) -> Case {
        self.gated = self.kernel.gates;
        if self.gated {
            let unit = 2 * 16 / u64::from(self.d.size());
            self.size[1] = self.size[1].next_multiple_of(unit.max(16));
            self.options.c = false;
        }
        self
    }

    pub fn padded(mut self, pads: [u64; 3]) -> Case {
        self.pads = pads;
        self
    }

    pub fn with(mut self, change: impl FnOnce(GemmOptions) -> GemmOptions) -> Case {
        self.options = change(self.options);
        self
    }

    /// The most splits that the kernel can cut this K into.
    pub fn most_splits(&self) -> u32 {
        let steps = (self.size[2] as u32).div_ceil(self.kernel.tile_k);
        self.kernel.max_splits.min(steps)
    }

    pub fn problem(&self) -> Problem {
        self.builder(1).build().unwrap()
    }

    /// The problem whose rows, of one batch, are spread over so many ranks.
    pub fn sharded(&self, rows: &[u32]) -> Problem {
        self.builder(rows.len() as u64).shards(rows).build().unwrap()
    }

    /// How the kernel's sums come about, which the bound of the reference depends on.
    pub fn accumulation(&self) -> Accumulation {
        match (self.kernel.elements.a.is_fp8(), self.options.fast_accumulation) {
            (false, _) => Accumulation::F32,
            (true, true) => Accumulation::Fp8,
            (true, false) => Accumulation::Fp8Promoted,
        }
    }

    fn builder(&self, ranks: u64) -> ProblemBuilder {
        let [m, n, k] = self.size;
        let types = ElementTypes { d: self.d, ..self.kernel.elements };
        let pitch = |row: u64, pad: u64, element: ElementType| {
            let unit = 16 / u64::from(element.size());
            row.next_multiple_of(unit) + pad * unit
        };
        let b_row = if self.kernel.b_layout == BLayout::Nk { k } else { n };
        let d_row = match (self.gated, self.scatter_columns) {
            (true, _) => n / 2,
            (_, true) => n / ranks,
            _ => n,
        };
        Problem::builder(m, n, k)
            .elements(types.a, types.b, types.d)
            .b_layout(self.kernel.b_layout)
            .lda(pitch(k, self.pads[0], types.a))
            .ldb(pitch(b_row, self.pads[1], types.b))
            .ldd(pitch(d_row, self.pads[2], types.d))
            .scaling(self.scaling)
            .gated(self.gated)
            .batches(self.batches)
            .scatter_columns(self.scatter_columns)
    }

    /// A few tiles, the last of them cut off, one after the other on one cluster, with all that the
    /// kernel can do: small enough for tools that slow a kernel down a thousandfold.
    pub fn small(kernel: &'static Kernel) -> Case {
        let [m, n, k] = [kernel.tile.m, kernel.tile.n, 2 * kernel.tile_k].map(|size| size + 8);
        let mut case = Case::new(kernel, m.into(), n.into(), k.into()).padded([1, 2, 3]);
        if kernel.elements.a.is_fp8() {
            case.scaling = Scaling::Rows;
        }
        case.options.activation = Activation::Silu;
        (case.options.bias, case.options.c) = (true, true);
        // With 1, kernels that can add C to their sums.
        case.alpha = if kernel.adds_others { 1.0 } else { 0.75 };
        case.beta = -1.5;
        case.scale_d = if case.d.is_fp8() { 0.5 } else { 1.0 };
        case.options.splits = Some(case.most_splits().min(2));
        case.options.sm_limit = Some(kernel.cluster_size());
        case
    }

    /// Anything within the size: sizes that are multiples of nothing, pitches, epilogue, how it is run.
    pub fn random(kernel: &'static Kernel, most: u64, random: &mut Random) -> Case {
        let mut size = || random.within(1..=most);
        let mut case = Case::new(kernel, size(), size(), size());
        case.pads = [0; 3].map(|_| random.within(0..=3) * random.within(0..=1));
        if kernel.elements.a.is_fp8() {
            case.scaling = random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]);
        }
        case.options.activation = random.choose(&Activation::ALL);
        case.options.bias = random.within(0..=1) == 1;
        case.options.c = random.within(0..=1) == 1;
        (case.alpha, case.beta) = (factor(random), factor(random));
        if case.d.is_fp8() {
            case.scale_d = factor(random);
        }
        case.options.splits = Some(random.within(1..=case.most_splits().into()) as u32);
        // Tests write B long before; the promise holds.
        case.options.constant_b = random.within(0..=1) == 1;
        if random.within(0..=4) == 0 {
            case = case.gated();
        }
        if random.within(0..=1) == 1 {
            case.options.swizzle = Some(random.within(1..=9) as u32);
        }
        if random.within(0..=2) == 0 {
            let least = kernel.cluster_size().into();
            case.options.sm_limit = Some(random.within(least..=100) as u32);
        }
        case
    }
}

/// The kernel, then everything.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self:?}", self.kernel)
    }
}
