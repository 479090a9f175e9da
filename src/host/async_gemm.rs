//! GEMM on an input that producers deliver chunk by chunk.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::compute::{Grid, Operand, Stream, TileJob, run_tiles};
use super::input::AsyncInput;
use super::operands::Product;
use super::products;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{check_scales, check_types};
use crate::plan::{Plan, PlanOptions, Problem, Timeouts};
use crate::trace::{TileEvent, Timeline};

/// D = A · B where A arrives while it is multiplied.
///
/// The problem's shards give the rows of each source; `pivot` is the source that is expected
/// first. Producers publish chunks through [`ChunkWriter`](crate::host::ChunkWriter)s from any
/// threads, in any order; the product follows the order it was planned for and waits, tile by tile.
///
/// ```
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::host::Stream;
/// use overlap_gemm::host::AsyncGemm;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(128, 32, 16).ranks(2).build()?;
/// let mut gemm = AsyncGemm::<bf16>::plan(&problem, PlanOptions::default(), 0)?;
/// let mut input = gemm.input()?;
/// let weight = vec![bf16::ONE; 32 * 16];
/// let mut output = vec![bf16::ZERO; 128 * 32];
///
/// let writer = input.writer();
/// let producer = std::thread::spawn(move || {
///     for chunk in (0..writer.plan().chunks().len()).rev() {
///         let rows = writer.plan().chunks().rows(chunk);
///         let data = vec![bf16::from_f32(chunk as f32); rows.len() * 16];
///         writer.publish(0, chunk, &data)?; // copies, then signals
///     }
///     Ok::<(), overlap_gemm::Error>(())
/// });
/// // Begins at once, and computes each tile as soon as its chunks have arrived.
/// gemm.enqueue(&Stream::new(1)?, &mut input, &weight, &mut output)?;
/// producer.join().expect("no panic")?;
/// assert_eq!(output[127 * 32].to_f32(), 16.0); // chunk 1, 16 products of 1
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncGemm<A, B = A, D = A> {
    plan: Plan,
    pivot: u32,
    timeouts: Timeouts,
    record: Option<Instant>,
    tiles: Vec<TileEvent>,
    types: PhantomData<fn(A, B) -> D>,
}

impl<A: Element, B: Element, D: Element> AsyncGemm<A, B, D> {
    /// Plans the product; the chunks of source `pivot` are expected first.
    pub fn plan(problem: &Problem, options: PlanOptions, pivot: u32) -> Result<Self> {
        check_types::<A, B, D>(problem)?;
        problem.shards().check_rank(pivot)?;
        let plan = Plan::new(problem, options)?;
        let (timeouts, tiles) = (Timeouts::default(), Vec::new());
        Ok(AsyncGemm { plan, pivot, timeouts, record: None, tiles, types: PhantomData })
    }

    /// How long a step waits for a chunk, and a producer for a buffer; for inputs made after this.
    #[must_use]
    pub fn with_timeouts(mut self, first: Duration, steady: Duration) -> Self {
        self.timeouts = Timeouts::new(first, steady);
        self
    }

    /// Records a timeline from now on.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.record = Some(Instant::now());
        self
    }

    /// What was planned.
    pub fn planned(&self) -> &Plan {
        &self.plan
    }

    /// An input for this product: two buffers, so that one is filled while the other is read.
    pub fn input(&self) -> Result<AsyncInput<A>> {
        AsyncInput::new(&self.plan, self.timeouts)
    }

    /// One step: `d` = the input's next A times `b`.
    pub fn enqueue(
        &mut self,
        stream: &Stream,
        input: &mut AsyncInput<A>,
        b: &[B],
        d: &mut [D],
    ) -> Result<()> {
        let m = self.plan.problem().m();
        self.enqueue_all(stream, input, m, &[], &mut [Product::new(b, d)])
    }

    /// One step of the first `m` rows, with several products; `scales` is the scale of A for
    /// [`Scaling::Tensor`](crate::plan::Scaling::Tensor) and empty otherwise (row scales arrive with their chunks).
    pub fn enqueue_all(
        &mut self,
        stream: &Stream,
        input: &mut AsyncInput<A>,
        m: u32,
        scales: &[f32],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let problem = self.plan.problem();
        if input.plan() != &self.plan {
            let remedy = "make the input with this operation's `input`";
            let (got, expected) = (input.plan().problem(), problem);
            return Err(Error::mismatch("the plan of the input", got, expected, remedy));
        }
        let remedy = "plan for the largest M that any step will have";
        Error::check_range("m of this step", m, 1..=problem.m(), remedy)?;
        check_scales("the scales of A", scales, problem.scaling().count(0))?;
        let problems = products::check_products(&self.plan, &problem.truncated(m)?, m, products)?;

        let end = input.ender();
        let step = |products: &mut [Product<'_, B, D>]| {
            self.step(*stream, input, m, scales, &problems, products)
        };
        let settled = products::settle(0, &problems, products, step, end);
        settled.inspect_err(|error| input.end_with(error))
    }

    /// Takes the record of the steps so far.
    pub fn take_timeline(&mut self) -> Timeline {
        Timeline { tiles: std::mem::take(&mut self.tiles), ..Timeline::default() }
    }

    fn step(
        &mut self,
        stream: Stream,
        input: &mut AsyncInput<A>,
        m: u32,
        scales: &[f32],
        problems: &[Problem],
        products: &mut [Product<'_, B, D>],
    ) -> Result<()> {
        let epoch = input.begin()?;
        let input = &*input;
        let job = TileJob {
            a: Operand::Arriving { rows: input.rows(), tensor_scale: scales.first() },
            products: &products::views(problems, products),
            rank: self.pivot,
            epoch,
            rows: 0..m,
            grid: Grid::new(&self.plan, self.pivot, problems.iter().map(Problem::n))?,
            record: self.record,
        };
        let events = run_tiles(stream, &job, || {
            let mut watch = input.watch();
            move |tile, chunks| {
                watch.tile = Some(tile);
                input.await_chunks(chunks, m, &mut watch)
            }
        })?;
        self.tiles.extend(events);
        Ok(())
    }
}
