//! Products whose input arrives while they run: a product that waits, and who delivers to it.
//!
//! Invariant: what has not arrived is NaN, so that a product that read it early cannot go unnoticed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::CudaStream;
use overlap_gemm::cuda::{AsyncGemm, Gemm, RawOperands, Signals};
use overlap_gemm::plan::{Chunks, Problem, Shards};
use overlap_gemm::random::Random;

use super::call::{Call, call};
use super::case::Case;
use super::inputs::{self, shards, some_rows};
use super::{Gpu, PATIENCE};

/// Up to five shards, unequal, some empty, each in up to four chunks, 16 at most; half of the time in spans of columns.
fn random_chunks(problem: &Problem, random: &mut Random) -> Chunks {
    let ranks = random.within(1..=5) as u32;
    let rows = shards(problem.m().into(), ranks, random);
    let most = if ranks == 1 { 16 } else { 3 };
    let count = |&rows: &u32, random: &mut Random| {
        if rows == 0 { 0 } else { random.within(1..=rows.min(most).into()) as u32 }
    };
    let counts: Vec<u32> = rows.iter().map(|rows| count(rows, random)).collect();
    let chunks = Chunks::with_counts(&Shards::of_rows(&rows).unwrap(), &counts).unwrap();
    // Expected early or not, they may come at any time.
    let chunks = if random.within(0..=1) == 0 { chunks.early() } else { chunks };
    let spans = if random.within(0..=1) == 0 { 1 } else { 1 << random.within(1..=3) };
    in_spans(chunks, problem, spans)
}

/// In so many spans, or fewer: where K is short, nobody waits for the last ones.
pub fn in_spans(chunks: Chunks, problem: &Problem, most: u32) -> Chunks {
    let chunks = chunks.in_spans(most).unwrap();
    let is_short = chunks.columns(problem, most - 1).is_empty();
    if is_short { in_spans(chunks, problem, most / 2) } else { chunks }
}

/// All parts in random order: part p is span p mod S of chunk p / S, of S spans.
pub fn shuffled(chunks: &Chunks, random: &mut Random) -> Vec<u32> {
    inputs::shuffled(0..chunks.signals(), random)
}

/// A product that waits, its buffers, and the same product without signals to compare with.
pub struct Arrival {
    pub case: Case,
    pub problem: Problem,
    pub chunks: Chunks,
    pub gemm: AsyncGemm,
    pub signals: Signals,
    pub copies: Arc<CudaStream>,
    pub call: Box<dyn Call>,
    gpu: Gpu,
    plain: Gemm,
}

impl Arrival {
    /// The product of a case with random chunks; `start` is the epoch before the first step.
    pub fn new(gpu: &Gpu, case: &Case, start: u32, random: &mut Random) -> Self {
        let chunks = random_chunks(&case.problem(), random);
        // Any of the ranks, those without rows too.
        let pivot = random.within(0..=u64::from(chunks.shards().ranks()) - 1) as u32;
        Arrival::with_chunks(gpu, case, &chunks, pivot, start, random)
    }

    /// The product on the GPU's stream; all of A is there already.
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
        Arrival {
            case: case.clone(),
            chunks: chunks.clone(),
            gemm,
            signals: Signals::with_epoch(&gpu.device, chunks.signals(), start).unwrap(),
            copies: gpu.device.new_stream().unwrap(),
            call: call(gpu, case, random),
            gpu: gpu.clone(),
            plain: Gemm::plan(&gpu.device, &problem, options).unwrap(),
            problem,
        }
    }

    /// The same with another limit of waiting.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.gemm = self.gemm.with_timeouts(limit, limit);
        self
    }

    /// Begins a step: another epoch, and new numbers of which nothing has arrived.
    pub fn begin_step(&mut self, random: &mut Random) {
        self.renew(random);
        self.advance();
    }

    /// New numbers for A (and its row scales); NaN for both on the device, and for D.
    pub fn renew(&mut self, random: &mut Random) {
        self.call.renew_a(random);
        self.call.poison_a(&self.gpu.stream);
        self.call.poison_d(&self.gpu.stream);
    }

    /// The next epoch.
    pub fn advance(&self) {
        self.signals.advance(&self.gpu.stream).unwrap();
    }

    /// Says that all chunks are there, on the product's own stream.
    pub fn post_all(&self) {
        self.signals.post_all(&self.gpu.stream).unwrap();
    }

    pub fn operands(&self) -> RawOperands {
        self.call.addresses(&self.gpu.stream)
    }

    /// Enqueues the product on the GPU's stream.
    pub fn enqueue(&self) {
        // SAFETY: the buffers are of this problem, and each test waits for the stream before they go.
        unsafe { self.gemm.enqueue_raw(&self.gpu.stream, &self.operands(), &self.signals) }
            .unwrap();
    }

    /// The rows and columns of A that are one part: see [`shuffled`].
    pub fn part(&self, part: u32) -> (Range<u32>, Range<u32>) {
        let spans = self.chunks.spans();
        (self.chunks.rows(part / spans), self.chunks.columns(&self.problem, part % spans))
    }

    /// Copies one part to the device, on the copy stream.
    pub fn copy(&mut self, part: u32) {
        let (rows, columns) = self.part(part);
        self.call.copy_part(rows, columns, &self.copies);
    }

    /// Copies one part, and says so.
    pub fn deliver(&mut self, part: u32) {
        self.copy(part);
        self.signals.write(&self.copies, part).unwrap();
    }

    /// Delivers all parts in random order, after up to `pause` microseconds each.
    pub fn deliver_all(&mut self, random: &mut Random, pause: u64) {
        for part in shuffled(&self.chunks, random) {
            dawdle(random, pause);
            self.deliver(part);
        }
    }

    /// What was computed has to be, bit for bit, what the same kernel computes without signals.
    pub fn check_exact(&mut self) {
        let stream = &self.gpu.stream;
        stream.synchronize().unwrap();
        self.copies.synchronize().unwrap();
        assert_eq!(self.signals.check(), Ok(()), "{:?}", self.case);
        self.call.fetch(stream);
        self.call.check_written(self.problem.m());
        self.call.poison_d(stream);
        // SAFETY: as for `enqueue`.
        unsafe { self.plain.enqueue_raw(stream, &self.operands()) }.unwrap();
        self.call.fetch(stream);
        assert_eq!(self.call.difference(), None, "{:?}, {:?}", self.case, self.chunks);
    }

    /// Of a step that failed: an output is what it would be if all chunks had come, or NaN.
    pub fn check_right_or_nan(&mut self) {
        let stream = &self.gpu.stream;
        stream.synchronize().unwrap();
        self.call.fetch(stream);
        self.call.copy_part(0..self.problem.m(), 0..self.problem.k(), &self.copies);
        self.copies.synchronize().unwrap();
        self.call.poison_d(stream);
        // SAFETY: as for `enqueue`.
        unsafe { self.plain.enqueue_raw(stream, &self.operands()) }.unwrap();
        self.call.fetch(stream);
        assert_eq!(self.call.wrong_numbers(), 0, "{:?}, {:?}", self.case, self.chunks);
    }

    /// [`Arrival::check_exact`], and the reference agrees.
    pub fn check(&mut self, random: &mut Random) {
        self.check_exact();
        let report = self.call.report(&some_rows(self.problem.m(), random));
        assert_eq!(report.wrong, 0, "{:?}, {:?}: {report:?}", self.case, self.chunks);
    }
}

/// Sleeps up to `most` microseconds.
pub fn dawdle(random: &mut Random, most: u64) {
    std::thread::sleep(Duration::from_micros(random.within(0..=most)));
}
