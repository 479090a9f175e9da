//! What the tests of products that wait share: an input that arrives, chunk by chunk.
//!
//! Invariant: what has not arrived is NaN, so that a product that read it early cannot go unnoticed.

#![allow(dead_code)] // each test file uses its share

use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::Element;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use overlap_gemm::cuda::{AsyncGemm, Gemm, RawOperands, Signals};
use overlap_gemm::plan::{Chunks, Problem, Scaling, Shards};
use overlap_gemm::random::Random;

use crate::gpu::{Case, Gpu, Inputs, Uploaded, addresses};

/// Longer than any test takes; a test that hangs ends with an error.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A type that lives on both sides.
pub trait Number: Element + DeviceRepr {}
impl<T: Element + DeviceRepr> Number for T {}

/// Up to five shards, unequal, some empty, each in up to four chunks, 16 at most.
pub fn random_chunks(m: u32, random: &mut Random) -> Chunks {
    let ranks = random.within(1..=5) as usize;
    let mut cuts: Vec<u32> = (1..ranks).map(|_| random.within(0..=m.into()) as u32).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([m]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let rows: Vec<u32> = starts.zip(ends).map(|(start, end)| end - start).collect();
    let most = if ranks == 1 { 16 } else { 3 };
    let count = |&rows: &u32, random: &mut Random| {
        if rows == 0 { 0 } else { random.within(1..=rows.min(most).into()) as u32 }
    };
    let counts: Vec<u32> = rows.iter().map(|rows| count(rows, random)).collect();
    Chunks::with_counts(&Shards::of_rows(&rows).unwrap(), &counts).unwrap()
}

/// Any of the chunks' ranks, those without rows too.
pub fn random_pivot(chunks: &Chunks, random: &mut Random) -> u32 {
    random.within(0..=u64::from(chunks.shards().ranks()) - 1) as u32
}

/// All chunks in random order.
pub fn shuffled(chunks: &Chunks, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..chunks.len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.within(0..=last as u64) as usize);
    }
    order
}

/// A product that waits, its buffers, and the same product without signals to compare with.
pub struct Arrival<A, B, D> {
    pub case: Case,
    pub problem: Problem,
    pub chunks: Chunks,
    pub gemm: AsyncGemm,
    pub signals: Signals,
    pub copies: Arc<CudaStream>,
    pub inputs: Inputs<A, B, D>,
    pub device: Uploaded<A, B, D>,
    pub d: CudaSlice<D>,
    plain: Gemm,
}

impl<A: Number, B: Number, D: Number> Arrival<A, B, D> {
    /// The product of a case with random chunks; `start` is the epoch before the first step.
    pub fn new(gpu: &Gpu, case: &Case, start: u32, random: &mut Random) -> Self {
        let chunks = random_chunks(case.size[0] as u32, random);
        let pivot = random_pivot(&chunks, random);
        Arrival::with_chunks(gpu, case, &chunks, pivot, start, random)
    }

    pub fn with_chunks(
        gpu: &Gpu,
        case: &Case,
        chunks: &Chunks,
        pivot: u32,
        start: u32,
        random: &mut Random,
    ) -> Self {
        let (problem, options) = (case.problem(), &case.options);
        let gemm = AsyncGemm::plan(&gpu.device, &problem, chunks, pivot, options)
            .unwrap()
            .with_timeouts(PATIENCE, PATIENCE);
        let plain = Gemm::plan(&gpu.device, &problem, options).unwrap();
        let inputs = Inputs::random(&problem, random);
        Arrival {
            case: case.clone(),
            chunks: chunks.clone(),
            gemm,
            signals: Signals::with_epoch(&gpu.device, chunks.len(), start).unwrap(),
            copies: gpu.device.new_stream().unwrap(),
            device: Uploaded::new(gpu, &inputs),
            d: gpu.upload(&vec![D::POISON; problem.d_len() as usize]),
            inputs,
            plain,
            problem,
        }
    }

    /// New numbers for A on the host (and its row scales); NaN for both on the device, and for D.
    pub fn renew(&mut self, gpu: &Gpu, random: &mut Random) {
        let fresh = Inputs::<A, B, D>::random(&self.problem, random);
        self.inputs.a = fresh.a;
        if self.problem.scaling() == Scaling::Rows {
            self.inputs.a_scales = fresh.a_scales;
        }
        self.poison(gpu);
    }

    /// NaN for A and its row scales on the device, and for D.
    pub fn poison(&mut self, gpu: &Gpu) {
        let stream = &gpu.stream;
        stream.memcpy_htod(&vec![A::POISON; self.inputs.a.len()], &mut self.device.a).unwrap();
        stream.memcpy_htod(&vec![D::POISON; self.d.len()], &mut self.d).unwrap();
        if let (Scaling::Rows, Some([scales, _])) =
            (self.problem.scaling(), &mut self.device.scales)
        {
            stream.memcpy_htod(&vec![f32::NAN; self.inputs.a_scales.len()], scales).unwrap();
        }
        stream.synchronize().unwrap();
    }

    pub fn operands(&self, gpu: &Gpu) -> RawOperands {
        addresses(gpu, &self.case, &self.device, &self.d)
    }

    /// Enqueues the product on the GPU's stream.
    pub fn enqueue(&self, gpu: &Gpu) {
        // SAFETY: the buffers are of this problem, and each test waits for the stream before they go.
        unsafe { self.gemm.enqueue_raw(&gpu.stream, &self.operands(gpu), &self.signals) }.unwrap();
    }

    /// Copies one chunk (and its row scales) to the device, on the copy stream.
    pub fn copy(&mut self, chunk: u32) {
        let (rows, lda) = (self.chunks.rows(chunk), self.problem.lda() as usize);
        let end = (rows.end as usize * lda).min(self.inputs.a.len());
        let part = rows.start as usize * lda..end;
        let mut to = self.device.a.slice_mut(part.clone());
        self.copies.memcpy_htod(&self.inputs.a[part], &mut to).unwrap();
        if let (Scaling::Rows, Some([scales, _])) =
            (self.problem.scaling(), &mut self.device.scales)
        {
            let part = rows.start as usize..rows.end as usize;
            let mut to = scales.slice_mut(part.clone());
            self.copies.memcpy_htod(&self.inputs.a_scales[part], &mut to).unwrap();
        }
    }

    /// What was computed has to be, bit for bit, what the same kernel computes without signals.
    pub fn check_exact(&mut self, gpu: &Gpu) {
        gpu.stream.synchronize().unwrap();
        self.copies.synchronize().unwrap();
        assert_eq!(self.signals.check(), Ok(()), "{:?}", self.case);
        let got = gpu.download(&self.d);
        gpu.stream.memcpy_htod(&vec![D::POISON; self.d.len()], &mut self.d).unwrap();
        // SAFETY: as for `enqueue`.
        unsafe { self.plain.enqueue_raw(&gpu.stream, &self.operands(gpu)) }.unwrap();
        let expected = gpu.download(&self.d);
        let (n, ldd) = (self.problem.n() as usize, self.problem.ldd() as usize);
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            if at % ldd >= n {
                continue;
            }
            let (row, column) = (at / ldd, at % ldd);
            let (got, expected) = (got.widen(), expected.widen());
            assert!(
                got.to_bits() == expected.to_bits() && !got.is_nan(),
                "{:?}, {:?}: D[{row}, {column}] is {got}, without signals {expected}",
                self.case,
                self.chunks
            );
        }
    }

    /// [`Arrival::check_exact`], and the reference agrees.
    pub fn check(&mut self, gpu: &Gpu, random: &mut Random) {
        self.check_exact(gpu);
        let d = gpu.download(&self.d);
        let rows = crate::gpu::some_rows(self.problem.m(), random);
        let report = crate::gpu::compare(&self.problem, &self.case, &self.inputs, &d, &rows);
        assert_eq!(report.wrong, 0, "{:?}: {report:?}", self.case);
    }
}

/// Sleeps up to `most` microseconds.
pub fn dawdle(random: &mut Random, most: u64) {
    std::thread::sleep(Duration::from_micros(random.within(0..=most)));
}
