//! The operands of one call on both sides, and the comparison of what came out.
//!
//! What belongs here: memory and numbers; who computes, and when, is `plain.rs`'s and `arrival.rs`'s.
//! Outputs are compared with `reference`, whose bound follows from K and the formats. For wide types it
//! assumes that accumulation loses at most one unit roundoff of f32 for each product. Tensor cores may
//! truncate instead of round (twice the error a step) but take 16 products a step, so there is room.
//! Invariant: D is NaN before a product, between guards that no product may touch.

use std::ops::Range;
use std::sync::Arc;

use overlap_gemm::Element;
use overlap_gemm::cuda::cudarc::driver::sys::{self, CUdeviceptr};
use overlap_gemm::cuda::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
};
use overlap_gemm::cuda::{AsyncGemm, Gemm, Operands, RawOperands, Signals, TileRecords};
use overlap_gemm::plan::{Problem, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Epilogue, Reference, Report};

use super::Gpu;
use super::case::Case;
use super::inputs::{CHECKED_ROWS, Inputs, some_rows};

/// Elements before and after D that no kernel may touch: a multiple of 16, to keep D aligned.
const GUARD: usize = 1024;

/// A part of A: the same bytes of some rows.
pub struct Part {
    start: usize,
    width: usize,
    rows: usize,
    pitch: usize,
}

/// Where the start of A is, to copy from.
pub enum From {
    Host(*const u8),
    Device(CUdeviceptr),
}

impl Part {
    pub fn of(problem: &Problem, rows: &Range<u32>, columns: &Range<u32>) -> Part {
        let size = problem.elements().a.size() as usize;
        let pitch = problem.lda() as usize * size;
        Part {
            start: rows.start as usize * pitch + columns.start as usize * size,
            width: columns.len() * size,
            rows: rows.len(),
            pitch,
        }
    }

    /// Copies the part of one A to the same place of another.
    ///
    /// # Safety
    /// Both are as large as the problem says, and stay until the stream is through.
    pub unsafe fn copy(&self, stream: &CudaStream, to: CUdeviceptr, from: From) {
        let (kind, host, device) = match from {
            From::Host(from) => {
                (sys::CUmemorytype::CU_MEMORYTYPE_HOST, from.wrapping_add(self.start), 0)
            }
            From::Device(from) => (
                sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                std::ptr::null(),
                from + self.start as u64,
            ),
        };
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: kind,
            srcHost: host.cast(),
            srcDevice: device,
            srcArray: std::ptr::null_mut(),
            srcPitch: self.pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to + self.start as u64,
            dstArray: std::ptr::null_mut(),
            dstPitch: self.pitch,
            WidthInBytes: self.width,
            Height: self.rows,
        };
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result().unwrap();
    }
}

/// One call's operands, whatever their types.
pub trait Call: Send {
    /// New numbers for all inputs, on this side and on the device.
    fn renew(&mut self, stream: &Arc<CudaStream>, random: &mut Random);
    /// New numbers for A and its row scales, on this side only.
    fn renew_a(&mut self, random: &mut Random);
    /// NaN for A and its row scales on the device.
    fn poison_a(&mut self, stream: &Arc<CudaStream>);
    /// D as it is before a product.
    fn poison_d(&mut self, stream: &Arc<CudaStream>);
    /// Copies some columns of some rows of A to the device; with the first column, the scales of the rows.
    fn copy_part(&mut self, rows: Range<u32>, columns: Range<u32>, stream: &Arc<CudaStream>);
    /// Where some rows of A lie, in bytes from its start.
    fn bytes_of(&self, rows: Range<u32>) -> Range<usize>;
    /// A on this side, as bytes.
    fn bytes(&self) -> &[u8];
    /// As if part of a row of A had not been there when it was multiplied.
    fn forget(&mut self, row: usize, columns: Range<usize>);

    /// The addresses, for calls that nobody tracks.
    fn addresses(&self, stream: &CudaStream) -> RawOperands;
    fn enqueue(&mut self, gemm: &Gemm, stream: &Arc<CudaStream>);
    fn enqueue_recorded(
        &mut self,
        gemm: &AsyncGemm,
        stream: &Arc<CudaStream>,
        signals: &Signals,
        records: &TileRecords,
    );

    /// Takes a look at D, when `stream` is through; the look before is kept.
    fn fetch(&mut self, stream: &Arc<CudaStream>);
    /// What surrounds D is as it was, its first `rows` rows are written, the others are not.
    fn check_written(&self, rows: u32);
    /// How many of these rows' outputs are numbers.
    fn numbers_in(&self, rows: Range<u32>) -> usize;
    /// Where the last two looks are not the same, bit for bit.
    fn difference(&self) -> Option<String>;
    /// How many numbers of the look before the last are others in the last one.
    fn wrong_numbers(&self) -> usize;
    /// How these rows compare with the reference.
    fn report(&self, rows: &[u32]) -> Report;
    /// Where D is fp8: the largest output of a first product of so many rows was noted, and no other.
    fn check_amax(&self, stream: &Arc<CudaStream>, rows: u32);
}

/// The call of a case with random inputs, in the types of its kernel.
pub fn call(gpu: &Gpu, case: &Case, random: &mut Random) -> Box<dyn Call> {
    let problem = case.problem();
    macro_rules! of {
        ($a:ty, $b:ty, $d:ty) => {{
            let inputs = Inputs::random(case, &problem, problem.m(), random);
            Box::new(Buffers::<$a, $b, $d>::new(gpu, case, &problem, problem.m(), inputs))
        }};
    }
    overlap_gemm::element::of_types!(
        case.kernel.elements,
        of,
        panic!("no kernel can have the types of {}", case.kernel.name)
    )
}

/// What comes out of a product of so many rows, when the stream is through.
pub fn check(
    call: &mut dyn Call,
    stream: &Arc<CudaStream>,
    case: &Case,
    rows: u32,
    random: &mut Random,
) -> Report {
    call.fetch(stream);
    call.check_written(rows);
    let report = call.report(&some_rows(rows, random));
    assert_eq!(report.wrong, 0, "{rows} rows of {case:?}: {report:?}");
    report
}

/// A type that lives on both sides.
pub trait Number: Element<Addend: DeviceRepr> + DeviceRepr {}
impl<T: Element<Addend: DeviceRepr> + DeviceRepr> Number for T {}

/// The memory of one call on both sides.
pub struct Buffers<A, B, D: Element> {
    case: Case,
    problem: Problem,
    pub inputs: Inputs<A, B, D>,
    device: Uploaded<A, B, D>,
    /// D and its guards, as before a product.
    blank: Vec<D>,
    d: CudaSlice<D>,
    /// Where D is fp8.
    amax: Option<CudaSlice<f32>>,
    /// The last look at D and its guards, and the one before.
    looks: [Vec<D>; 2],
}

/// The inputs on the device.
struct Uploaded<A, B, D: Element> {
    a: CudaSlice<A>,
    b: CudaSlice<B>,
    c: Option<CudaSlice<D::Addend>>,
    bias: Option<CudaSlice<D::Addend>>,
    scales: Option<[CudaSlice<f32>; 2]>,
    /// Unless it is 1.
    scale_d: Option<CudaSlice<f32>>,
}

impl<A: Number, B: Number, D: Number> Buffers<A, B, D> {
    /// With a D of `d_rows` rows.
    pub fn new(
        gpu: &Gpu,
        case: &Case,
        problem: &Problem,
        d_rows: u32,
        inputs: Inputs<A, B, D>,
    ) -> Self {
        let scales = [&inputs.a_scales, &inputs.b_scales];
        let device = Uploaded {
            a: gpu.upload(&inputs.a),
            b: gpu.upload(&inputs.b),
            c: inputs.c.as_ref().map(|c| gpu.upload(c)),
            bias: inputs.bias.as_ref().map(|bias| gpu.upload(bias)),
            scales: (problem.scaling() != Scaling::None).then(|| scales.map(|s| gpu.upload(s))),
            scale_d: (case.scale_d != 1.0).then(|| gpu.upload(&[case.scale_d])),
        };
        let blank = blank::<D>(problem, d_rows);
        let (d, looks) = (gpu.upload(&blank), Default::default());
        let amax = D::TYPE.is_fp8().then(|| gpu.upload(&[0.0]));
        let (case, problem) = (case.clone(), problem.clone());
        Buffers { case, problem, inputs, device, blank, d, amax, looks }
    }

    /// Other numbers, on both sides.
    pub fn replace(&mut self, stream: &Arc<CudaStream>, inputs: Inputs<A, B, D>) {
        self.inputs = inputs;
        let (inputs, device) = (&self.inputs, &mut self.device);
        stream.memcpy_htod(&inputs.a, &mut device.a).unwrap();
        stream.memcpy_htod(&inputs.b, &mut device.b).unwrap();
        for (from, to) in [(&inputs.c, &mut device.c), (&inputs.bias, &mut device.bias)] {
            from.iter().zip(to).for_each(|(from, to)| stream.memcpy_htod(from, to).unwrap());
        }
        if let Some([a, b]) = &mut device.scales {
            stream.memcpy_htod(&inputs.a_scales, a).unwrap();
            stream.memcpy_htod(&inputs.b_scales, b).unwrap();
        }
        stream.synchronize().unwrap();
    }

    fn reference(&self) -> Reference<'_, A, B> {
        let Inputs { a, b, a_scales, b_scales, .. } = &self.inputs;
        let reference = Reference::new(&self.problem, a, b, a_scales, b_scales).unwrap();
        reference.with_accumulation(self.case.accumulation())
    }

    /// The elements of A that some rows are.
    fn elements_of(&self, rows: &Range<u32>) -> Range<usize> {
        let lda = self.problem.lda() as usize;
        rows.start as usize * lda..(rows.end as usize * lda).min(self.inputs.a.len())
    }

    fn epilogue(&self) -> Epilogue<'_, D> {
        let Case { alpha, beta, scale_d, ref options, .. } = self.case;
        let (c, bias) = (self.inputs.c.as_deref(), self.inputs.bias.as_deref());
        Epilogue { alpha, beta, c, bias, activation: options.activation, scale_d }
    }

    fn inner(&self) -> Range<usize> {
        GUARD..self.blank.len() - GUARD
    }

    /// D as last looked at.
    pub fn last_d(&self) -> &[D] {
        &self.looks[0][self.inner()]
    }

    /// Its rows.
    pub fn rows(&self) -> impl Iterator<Item = &[D]> {
        let (n, ldd) = (self.problem.d_columns() as usize, self.problem.ldd() as usize);
        self.last_d().chunks(ldd).map(move |row| &row[..n])
    }
}

impl<A: Number, B: Number, D: Number> Call for Buffers<A, B, D> {
    fn renew(&mut self, stream: &Arc<CudaStream>, random: &mut Random) {
        let inputs = Inputs::random(&self.case, &self.problem, self.problem.m(), random);
        self.replace(stream, inputs);
    }

    fn renew_a(&mut self, random: &mut Random) {
        self.inputs.renew_a(&self.problem, random);
    }

    fn poison_a(&mut self, stream: &Arc<CudaStream>) {
        stream.memcpy_htod(&vec![A::POISON; self.inputs.a.len()], &mut self.device.a).unwrap();
        if let (Scaling::Rows, Some([to, _])) = (self.problem.scaling(), &mut self.device.scales) {
            stream.memcpy_htod(&vec![f32::NAN; self.inputs.a_scales.len()], to).unwrap();
        }
        stream.synchronize().unwrap();
    }

    fn poison_d(&mut self, stream: &Arc<CudaStream>) {
        stream.memcpy_htod(&self.blank, &mut self.d).unwrap();
        stream.synchronize().unwrap();
    }

    fn copy_part(&mut self, rows: Range<u32>, columns: Range<u32>, stream: &Arc<CudaStream>) {
        let part = Part::of(&self.problem, &rows, &columns);
        let (to, _used) = self.device.a.device_ptr_mut(stream);
        // SAFETY: the part lies within A on both sides; this side stays until the stream is through.
        unsafe { part.copy(stream, to, From::Host(self.inputs.a.as_ptr().cast())) };
        if columns.start > 0 {
            return;
        }
        if let (Scaling::Rows, Some([to, _])) = (self.problem.scaling(), &mut self.device.scales) {
            let part = rows.start as usize..rows.end as usize;
            let mut to = to.slice_mut(part.clone());
            stream.memcpy_htod(&self.inputs.a_scales[part], &mut to).unwrap();
        }
    }

    fn bytes_of(&self, rows: Range<u32>) -> Range<usize> {
        let part = self.elements_of(&rows);
        part.start * size_of::<A>()..part.end * size_of::<A>()
    }

    fn bytes(&self) -> &[u8] {
        let a = self.inputs.a.as_slice();
        // SAFETY: the elements are numbers without padding, and borrowed for as long.
        unsafe { std::slice::from_raw_parts(a.as_ptr().cast(), size_of_val(a)) }
    }

    fn forget(&mut self, row: usize, columns: Range<usize>) {
        let start = row * self.problem.lda() as usize;
        self.inputs.a[start..][columns].fill(A::narrow(0.0));
    }

    fn addresses(&self, stream: &CudaStream) -> RawOperands {
        let address = |slice: &CudaSlice<D::Addend>| slice.device_ptr(stream).0;
        let Uploaded { a, b, c, bias, scales, scale_d } = &self.device;
        let d = self.d.device_ptr(stream).0 + (GUARD * size_of::<D>()) as u64;
        let (a, b) = (a.device_ptr(stream).0, b.device_ptr(stream).0);
        let mut operands = RawOperands::new(a, b, d).alpha(self.case.alpha);
        if let Some(c) = c {
            operands = operands.c(address(c), self.case.beta);
        }
        if let Some(bias) = bias {
            operands = operands.bias(address(bias));
        }
        if let Some([a, b]) = scales {
            operands = operands.scales(a.device_ptr(stream).0, b.device_ptr(stream).0);
        }
        let one =
            |slice: &Option<CudaSlice<f32>>| slice.as_ref().map_or(0, |it| it.device_ptr(stream).0);
        operands.scale_d(one(scale_d)).amax(one(&self.amax))
    }

    fn enqueue(&mut self, gemm: &Gemm, stream: &Arc<CudaStream>) {
        let inner = self.inner();
        let mut d = self.d.slice_mut(inner);
        let mut operands = operands(&self.case, &self.device, &mut d);
        if let Some(amax) = &mut self.amax {
            operands = operands.amax(amax);
        }
        gemm.enqueue(stream, operands).unwrap();
    }

    fn enqueue_recorded(
        &mut self,
        gemm: &AsyncGemm,
        stream: &Arc<CudaStream>,
        signals: &Signals,
        records: &TileRecords,
    ) {
        let operands = self.addresses(stream).records(records.address(stream));
        // SAFETY: this device's memory, which outlives the call, as do the records.
        unsafe { gemm.enqueue_raw(stream, &operands, signals) }.unwrap();
    }

    fn fetch(&mut self, stream: &Arc<CudaStream>) {
        self.looks.swap(0, 1);
        self.looks[0].resize(self.d.len(), D::POISON);
        stream.memcpy_dtoh(&self.d, &mut self.looks[0]).unwrap();
        stream.synchronize().unwrap();
    }

    fn check_written(&self, rows: u32) {
        let (case, guard) = (&self.case, guard::<D>().widen());
        let (n, ldd) = (self.problem.d_columns() as usize, self.problem.ldd() as usize);
        let (look, inner) = (&self.looks[0], self.inner());
        let check_guards = |what: &str, elements: &[D]| {
            let touched = elements.iter().position(|element| element.widen() != guard);
            assert_eq!(touched, None, "{case:?}: {what} was overwritten");
        };
        check_guards("what comes before D", &look[..inner.start]);
        check_guards("what comes behind D", &look[inner.end..]);
        for (at, row) in look[inner].chunks(ldd).enumerate() {
            check_guards(&format!("what comes behind row {at} of D"), &row[n..]);
            let written = at < rows as usize;
            let wrong = row[..n].iter().position(|element| element.widen().is_nan() == written);
            let found = if written { "NaN" } else { "written" };
            assert_eq!(wrong, None, "{case:?}: in row {at} of D, this column is {found}");
        }
    }

    fn numbers_in(&self, rows: Range<u32>) -> usize {
        let rows = self.rows().take(rows.end as usize).skip(rows.start as usize);
        rows.flatten().filter(|element| !element.widen().is_nan()).count()
    }

    fn difference(&self) -> Option<String> {
        let [last, before] = &self.looks;
        assert_eq!(last.len(), before.len(), "{:?}: two looks are needed", self.case);
        let bits = |element: &D| element.widen().to_bits();
        let at = last.iter().zip(before).position(|(a, b)| bits(a) != bits(b))?;
        let (place, ldd) = (at.wrapping_sub(GUARD), self.problem.ldd() as usize);
        let (row, column) = (place / ldd, place % ldd);
        let (was, is) = (before[at].widen(), last[at].widen());
        Some(format!("D[{row}, {column}] was {was} before, and is {is} now"))
    }

    fn wrong_numbers(&self) -> usize {
        let [last, before] = &self.looks;
        let is_wrong = |(right, number): &(&D, &D)| {
            !number.widen().is_nan() && number.widen().to_bits() != right.widen().to_bits()
        };
        last.iter().zip(before).filter(is_wrong).count()
    }

    fn report(&self, rows: &[u32]) -> Report {
        let rows = rows.iter().copied();
        self.reference().compare_with(self.last_d(), rows, self.epilogue()).unwrap()
    }

    fn check_amax(&self, stream: &Arc<CudaStream>, rows: u32) {
        let Some(amax) = &self.amax else { return };
        let amax = stream.clone_dtoh(amax).unwrap()[0];
        let outputs = self.rows().take(rows as usize).flatten();
        let largest = outputs.fold(0f32, |largest, x| largest.max(x.widen().abs()));
        // Scaling and rounding keep the order.
        let rounded = D::narrow(amax * self.case.scale_d.abs()).widen();
        assert_eq!(rounded, largest, "{:?}: amax is {amax}", self.case);
        if rows <= CHECKED_ROWS as u32 {
            let bounds = self.reference().amax(0..rows, self.epilogue()).unwrap();
            assert!(bounds.contains(&amax.into()), "{:?}: {amax}, {bounds:?}", self.case);
        }
    }
}

/// The operands of a case in `cudarc`'s memory.
fn operands<'a, A: Number, B: Number, D: Number>(
    case: &Case,
    device: &'a Uploaded<A, B, D>,
    d: &'a mut overlap_gemm::cuda::cudarc::driver::CudaViewMut<'_, D>,
) -> Operands<'a, A, B, D> {
    let mut operands = Operands::new(&device.a, &device.b, d).alpha(case.alpha);
    if let Some(c) = &device.c {
        operands = operands.c(c, case.beta);
    }
    if let Some(bias) = &device.bias {
        operands = operands.bias(bias);
    }
    if let Some([a, b]) = &device.scales {
        operands = operands.scales(a, b);
    }
    if let Some(scale) = &device.scale_d {
        operands = operands.scale_d(scale);
    }
    match case.rows {
        Some(rows) => operands.rows(rows),
        None => operands,
    }
}

/// The operands of a product whose A is gathered, and its row scales with it.
pub fn of_gathered(mut operands: RawOperands, scaling: Scaling) -> RawOperands {
    operands.a = 0;
    if scaling == Scaling::Rows {
        operands.scale_a = 0;
    }
    operands
}

/// A guarded, poisoned D of so many rows.
fn blank<D: Element>(problem: &Problem, rows: u32) -> Vec<D> {
    let (n, ldd) = (problem.d_columns() as usize, problem.ldd() as usize);
    let len = (rows as usize - 1) * ldd + n;
    let mut d = vec![guard::<D>(); GUARD + len + GUARD];
    d[GUARD..][..len].chunks_mut(ldd).for_each(|row| row[..n].fill(D::POISON));
    d
}

/// What surrounds D: a number that no test computes.
fn guard<D: Element>() -> D {
    D::narrow(-23456.0)
}
