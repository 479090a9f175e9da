//! What the GPU tests share: problems for a kernel, random matrices, guarded outputs, the comparison.
//!
//! Outputs are compared with `reference`, whose bound follows from K and the formats. For wide types it
//! assumes that accumulation loses at most one unit roundoff of f32 for each product. Tensor cores may
//! truncate instead of round (twice the error a step) but take 16 products a step, so there is room.

#![allow(dead_code)] // each test file uses its share

use std::sync::Arc;

use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use overlap_gemm::cuda::{
    Activation, Device, Gemm, GemmOptions, Kernel, MAX_SPLITS, Operands, RawOperands, kernels,
};
use overlap_gemm::plan::{BLayout, Problem, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Accumulation, Epilogue, Reference, Report};
use overlap_gemm::{Element, ElementType};

/// Elements before and after D that no kernel may touch: a multiple of 16, to keep D aligned.
pub const GUARD: usize = 1024;

/// Rows of D that are compared; the first, the last and those at tile borders are among them.
pub const CHECKED_ROWS: usize = 64;

/// Runs `$run::<A, B, D>($($argument),*)` for the Rust types of some element types.
#[macro_export]
macro_rules! for_types {
    ($types:expr, $run:ident($($argument:expr),* $(,)?)) => {{
        use overlap_gemm::ElementType::{Bf16, E4m3, E5m2, F16, F32};
        use overlap_gemm::element::{F8E4M3, F8E5M2, bf16, f16};
        match ($types.a, $types.b, $types.d) {
            (Bf16, Bf16, Bf16) => $run::<bf16, bf16, bf16>($($argument),*),
            (Bf16, Bf16, F16) => $run::<bf16, bf16, f16>($($argument),*),
            (Bf16, Bf16, F32) => $run::<bf16, bf16, f32>($($argument),*),
            (F16, F16, Bf16) => $run::<f16, f16, bf16>($($argument),*),
            (F16, F16, F16) => $run::<f16, f16, f16>($($argument),*),
            (F16, F16, F32) => $run::<f16, f16, f32>($($argument),*),
            (E4m3, E4m3, Bf16) => $run::<F8E4M3, F8E4M3, bf16>($($argument),*),
            (E4m3, E4m3, F16) => $run::<F8E4M3, F8E4M3, f16>($($argument),*),
            (E4m3, E5m2, Bf16) => $run::<F8E4M3, F8E5M2, bf16>($($argument),*),
            (E4m3, E5m2, F16) => $run::<F8E4M3, F8E5M2, f16>($($argument),*),
            (E5m2, E4m3, Bf16) => $run::<F8E5M2, F8E4M3, bf16>($($argument),*),
            (E5m2, E4m3, F16) => $run::<F8E5M2, F8E4M3, f16>($($argument),*),
            other => panic!("no kernel can have the types {other:?}"),
        }
    }};
}

/// A GPU, and the kernels to try on it: all, or those whose names hold `OVERLAP_GEMM_TEST_KERNEL`.
pub struct Gpu {
    pub device: Device,
    pub stream: Arc<CudaStream>,
}

impl Gpu {
    pub fn open() -> Gpu {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        Gpu { device, stream }
    }

    /// A GPU on which `cudarc` does not order buffers by events: the test does it by streams.
    pub fn untracked() -> Gpu {
        let device = Device::open(0).unwrap();
        // SAFETY: the tests that call this keep their buffers until their streams are through.
        unsafe { device.context().disable_event_tracking() };
        let stream = device.new_stream().unwrap();
        Gpu { device, stream }
    }

    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        let slice = self.stream.clone_htod(values).unwrap();
        self.stream.synchronize().unwrap();
        slice
    }

    pub fn download<T: DeviceRepr>(&self, slice: &CudaSlice<T>) -> Vec<T> {
        let values = self.stream.clone_dtoh(slice).unwrap();
        self.stream.synchronize().unwrap();
        values
    }
}

/// The kernels to try.
pub fn tried_kernels() -> Vec<&'static Kernel> {
    let wanted = std::env::var("OVERLAP_GEMM_TEST_KERNEL").unwrap_or_default();
    let all = kernels().unwrap().iter().filter(|kernel| kernel.name.contains(&wanted));
    let all: Vec<_> = all.collect();
    assert!(!all.is_empty(), "no kernel's name contains '{wanted}'");
    all
}

/// One product to try: sizes, how much longer than its row each pitch is, how it is run.
#[derive(Clone, Debug)]
pub struct Case {
    pub kernel: &'static Kernel,
    pub size: [u64; 3],
    /// Of A, B and D, in units of 16 bytes beyond what alignment asks for.
    pub pads: [u64; 3],
    pub scaling: Scaling,
    pub options: GemmOptions,
    pub alpha: f32,
    pub beta: f32,
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
            size: [m, n.next_multiple_of(unit), k],
            pads: [0; 3],
            scaling: Scaling::None,
            options,
            alpha: 1.0,
            beta: 0.0,
            rows: None,
        }
    }

    pub fn padded(mut self, pads: [u64; 3]) -> Case {
        self.pads = pads;
        self
    }

    pub fn with(mut self, change: impl FnOnce(GemmOptions) -> GemmOptions) -> Case {
        self.options = change(self.options);
        self
    }

    /// A random number of splits that the kernel can cut this K into.
    pub fn most_splits(&self) -> u32 {
        let steps = (self.size[2] as u32).div_ceil(self.kernel.tile_k);
        self.kernel.max_splits.min(steps).min(MAX_SPLITS)
    }

    pub fn problem(&self) -> Problem {
        let [m, n, k] = self.size;
        let types = self.kernel.elements;
        let pitch = |row: u64, pad: u64, element: ElementType| {
            let unit = 16 / u64::from(element.size());
            row.next_multiple_of(unit) + pad * unit
        };
        let b_row = if self.kernel.b_layout == BLayout::Nk { k } else { n };
        Problem::builder(m, n, k)
            .elements(types.a, types.b, types.d)
            .b_layout(self.kernel.b_layout)
            .lda(pitch(k, self.pads[0], types.a))
            .ldb(pitch(b_row, self.pads[1], types.b))
            .ldd(pitch(n, self.pads[2], types.d))
            .scaling(self.scaling)
            .build()
            .unwrap()
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
        case.options.splits = Some(random.within(1..=case.most_splits().into()) as u32);
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

/// A factor of either sign that is not so small that outputs become subnormal numbers of f16.
pub fn factor(random: &mut Random) -> f32 {
    let size = 0.25 + 1.75 * random.fraction() as f32;
    if random.within(0..=1) == 0 { size } else { -size }
}

/// Nearly normal, mean 0, deviation 1: the sum of three uniform numbers.
pub fn matrix<T: Element>(random: &mut Random, len: u64) -> Vec<T> {
    (0..len).map(|_| T::narrow(random.signed() + random.signed() + random.signed())).collect()
}

/// Rows of such numbers, with NaN between them, which nobody may read.
fn rows<T: Element>(random: &mut Random, rows: u32, columns: u32, leading: u32) -> Vec<T> {
    let (columns, leading) = (columns as usize, leading as usize);
    let mut all = vec![T::POISON; (rows as usize - 1) * leading + columns];
    for row in all.chunks_mut(leading) {
        row[..columns].copy_from_slice(&matrix(random, columns as u64));
    }
    all
}

/// The inputs of one call on the host.
#[derive(Clone, Debug)]
pub struct Inputs<A, B, D> {
    pub a: Vec<A>,
    pub b: Vec<B>,
    pub c: Vec<D>,
    pub bias: Vec<D>,
    pub a_scales: Vec<f32>,
    pub b_scales: Vec<f32>,
}

impl<A: Element, B: Element, D: Element> Inputs<A, B, D> {
    pub fn random(problem: &Problem, random: &mut Random) -> Self {
        let scales = |lines: u32, random: &mut Random| match problem.scaling() {
            Scaling::None => Vec::new(),
            Scaling::Tensor => vec![factor(random)],
            Scaling::Rows => (0..lines).map(|_| factor(random)).collect(),
        };
        let (b_rows, b_columns) = problem.b_extent();
        Inputs {
            a: rows(random, problem.m(), problem.k(), problem.lda()),
            b: rows(random, b_rows, b_columns, problem.ldb()),
            c: rows(random, problem.m(), problem.n(), problem.ldd()),
            bias: matrix(random, problem.n().into()),
            a_scales: scales(problem.m(), random),
            b_scales: scales(problem.n(), random),
        }
    }
}

/// Rows worth looking at: the ends, tile borders, and random others.
pub fn some_rows(m: u32, random: &mut Random) -> Vec<u32> {
    if m as usize <= CHECKED_ROWS {
        return (0..m).collect();
    }
    let mut rows = vec![0, 15, 16, 63, 64, 127, 128, 255, 256, m / 128 * 128, m - 1];
    rows.retain(|&row| row < m);
    while rows.len() < CHECKED_ROWS {
        rows.push((random.next_u64() % u64::from(m)) as u32);
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Compares rows of D with the reference, on several threads.
pub fn compare<A: Element, B: Element, D: Element>(
    problem: &Problem,
    case: &Case,
    inputs: &Inputs<A, B, D>,
    d: &[D],
    rows: &[u32],
) -> Report {
    let Inputs { a, b, c, bias, a_scales, b_scales } = inputs;
    let accumulation = match (problem.elements().a.is_fp8(), case.options.fast_accumulation) {
        (false, _) => Accumulation::F32,
        (true, true) => Accumulation::Fp8,
        (true, false) => Accumulation::Fp8Promoted,
    };
    let reference =
        Reference::new(problem, a, b, a_scales, b_scales).unwrap().with_accumulation(accumulation);
    let epilogue = Epilogue {
        alpha: case.alpha,
        beta: case.beta,
        c: case.options.c.then_some(c),
        bias: case.options.bias.then_some(bias),
        activation: case.options.activation,
    };
    let threads = std::thread::available_parallelism().map_or(4, |cores| cores.get()).min(16);
    let mut all = Report::default();
    std::thread::scope(|scope| {
        let parts = rows.chunks(rows.len().div_ceil(threads).max(1));
        let part = |part: &'_ [u32]| {
            let rows = part.to_vec();
            scope.spawn(move || reference.compare_with(d, rows, epilogue).unwrap())
        };
        let workers: Vec<_> = parts.map(part).collect();
        workers.into_iter().for_each(|worker| all.merge(&worker.join().unwrap()));
    });
    all
}

/// What no output may differ by as a whole, relative to the norm of all: rounding to D, and far below
/// what a missing or doubled K step of 64 would show as, √(64 / K).
pub fn check_norm(case: &Case, report: &Report) {
    // fp8 sums are cut off at 2⁻¹³ of the largest addend, 33 addends a step.
    let sums = if case.kernel.elements.a.is_fp8() { 33.0 / 8192.0 } else { 1e-5 };
    let allowed = 2.0 * case.kernel.elements.d.unit_roundoff() + sums;
    // Where almost all outputs are 0 after the activation, the norm says nothing.
    let informative = case.options.activation == Activation::None && !case.options.c;
    assert!(!informative || report.relative_error < allowed, "{case:?}: {report:?}");
}

/// A guarded, poisoned D on the host.
pub fn poisoned<D: Element>(problem: &Problem) -> Vec<D> {
    let (m, n, ldd) = (problem.m() as usize, problem.n() as usize, problem.ldd() as usize);
    let mut d = vec![guard::<D>(); GUARD + problem.d_len() as usize + GUARD];
    for row in 0..m {
        d[GUARD + row * ldd..][..n].fill(D::POISON);
    }
    d
}

/// What surrounds D: a number that no test computes.
fn guard<D: Element>() -> D {
    D::narrow(-23456.0)
}

/// What surrounds D has to be as it was, the first `rows` rows have to be written, the others not.
pub fn check_guards<D: Element>(problem: &Problem, case: &Case, after: &[D], rows: u32) {
    let (m, n, ldd) = (problem.m() as usize, problem.n() as usize, problem.ldd() as usize);
    let guard = guard::<D>().widen();
    for (at, value) in after.iter().enumerate() {
        let place = at.checked_sub(GUARD).map(|at| (at / ldd, at % ldd));
        let value = value.widen();
        match place.filter(|&(row, column)| row < m && column < n) {
            None => assert_eq!(value, guard, "{case:?}: element {at} around D was overwritten"),
            Some((row, column)) if row < rows as usize => {
                assert!(!value.is_nan(), "{case:?}: D[{row}, {column}] is NaN");
            }
            Some((row, column)) => {
                assert!(value.is_nan(), "{case:?}: D[{row}, {column}] was written");
            }
        }
    }
}

/// Inputs on the device.
pub struct Uploaded<A, B, D> {
    pub a: CudaSlice<A>,
    pub b: CudaSlice<B>,
    pub c: CudaSlice<D>,
    pub bias: CudaSlice<D>,
    pub scales: Option<[CudaSlice<f32>; 2]>,
}

impl<A: Element + DeviceRepr, B: Element + DeviceRepr, D: Element + DeviceRepr> Uploaded<A, B, D> {
    pub fn new(gpu: &Gpu, inputs: &Inputs<A, B, D>) -> Self {
        let scaled = !inputs.a_scales.is_empty();
        Uploaded {
            a: gpu.upload(&inputs.a),
            b: gpu.upload(&inputs.b),
            c: gpu.upload(&inputs.c),
            bias: gpu.upload(&inputs.bias),
            scales: scaled.then(|| [gpu.upload(&inputs.a_scales), gpu.upload(&inputs.b_scales)]),
        }
    }

    /// The case's operands that are read; `d` is that of the call.
    pub fn operands<'a>(
        &'a self,
        case: &Case,
        d: &'a mut overlap_gemm::cuda::cudarc::driver::CudaViewMut<'_, D>,
    ) -> Operands<'a, A, B, D> {
        let mut operands = Operands::new(&self.a, &self.b, d).alpha(case.alpha);
        if case.options.c {
            operands = operands.c(&self.c, case.beta);
        }
        if case.options.bias {
            operands = operands.bias(&self.bias);
        }
        if let Some([a, b]) = &self.scales {
            operands = operands.scales(a, b);
        }
        match case.rows {
            Some(rows) => operands.rows(rows),
            None => operands,
        }
    }
}

/// Runs one case through one plan, twice, with different inputs, and checks everything.
pub fn run<A, B, D>(gpu: &Gpu, case: &Case, random: &mut Random)
where
    A: Element + DeviceRepr,
    B: Element + DeviceRepr,
    D: Element + DeviceRepr,
{
    let problem = case.problem();
    let gemm = Gemm::plan(&gpu.device, &problem, &case.options).unwrap();
    let rows = case.rows.unwrap_or(problem.m());
    for round in 0..2 {
        let inputs = Inputs::<A, B, D>::random(&problem, random);
        let uploaded = Uploaded::new(gpu, &inputs);
        let mut d = gpu.upload(&poisoned::<D>(&problem));
        let mut middle = d.slice_mut(GUARD..GUARD + problem.d_len() as usize);
        gemm.enqueue(&gpu.stream, uploaded.operands(case, &mut middle)).unwrap();
        let after = gpu.download(&d);
        check_guards(&problem, case, &after, rows);
        let d = &after[GUARD..GUARD + problem.d_len() as usize];
        let report = compare(&problem, case, &inputs, d, &some_rows(rows, random));
        assert_eq!(report.wrong, 0, "{case:?}: {report:?}");
        check_norm(case, &report);
        let Case { kernel, size: [m, n, k], options, scaling, .. } = case;
        println!(
            "{kernel:32} {m:>5} × {n:>5} × {k:>5}  round {round}  sms {:>3}  splits {:>2}  swizzle {:>2}  \
             {:9} {}{}{:6}  max error {:.2e} ({:5.1} % of the bound)  relative {:.2e}",
            gemm.sm_count(),
            gemm.choice().splits,
            gemm.choice().swizzle,
            format!("{:?}", options.activation),
            if options.bias { "+bias " } else { "" },
            if options.c { "+C " } else { "" },
            format!("{scaling:?}"),
            report.max_error,
            100.0 * report.worst_fraction,
            report.relative_error
        );
    }
}

/// The addresses of a case's operands, for the calls that nobody tracks.
pub fn addresses<A, B, D>(
    gpu: &Gpu,
    case: &Case,
    uploaded: &Uploaded<A, B, D>,
    d: &CudaSlice<D>,
) -> RawOperands {
    use overlap_gemm::cuda::cudarc::driver::DevicePtr;
    let stream = &gpu.stream;
    let mut operands = RawOperands::new(
        uploaded.a.device_ptr(stream).0,
        uploaded.b.device_ptr(stream).0,
        d.device_ptr(stream).0,
    )
    .alpha(case.alpha);
    if case.options.c {
        operands = operands.c(uploaded.c.device_ptr(stream).0, case.beta);
    }
    if case.options.bias {
        operands = operands.bias(uploaded.bias.device_ptr(stream).0);
    }
    if let Some([a, b]) = &uploaded.scales {
        operands = operands.scales(a.device_ptr(stream).0, b.device_ptr(stream).0);
    }
    operands
}
