//! Runs all-gather + GEMM on all ranks with random numbers, and compares every rank with the
//! reference.
//!
//! For tests, the command line, and anyone who wants to see an installation compute something
//! right. Invariant: an [`Exercise`] is data; running it twice gives the same numbers (not the same
//! order of events), so a failing one can be kept and run again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::element::{Element, ElementType, F8E4M3, F8E5M2, bf16, f16};
use crate::error::{Error, Result};
use crate::fit::scale_count;
use crate::host::{
    Aborter, AllGatherGemm, Group, GroupOptions, Link, Product, Rank, Shard, Stream, check_memory,
};
use crate::plan::{
    BLayout, ClusterShape, ElementTypes, PlanOptions, Problem, Scaling, Strategy, TileShape, Tiling,
};
use crate::random::Random;
use crate::reference::{Reference, Report};
use crate::trace::Timeline;

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Exercise {
    /// The largest step.
    pub problem: Problem,
    /// How it is planned.
    pub options: PlanOptions,
    /// How the ranks are joined.
    pub group: GroupOptions,
    /// The rows of every rank, step by step.
    pub steps: Vec<Vec<u32>>,
    /// New inputs in every step, each of them checked; otherwise the same ones, checked at the end.
    pub fresh_inputs: bool,
    /// The shard is written in place, not copied in.
    pub in_place: bool,
    /// Threads that compute a rank's tiles.
    pub workers: u32,
    /// How many rows of each output are compared; they are spread over all rows.
    pub compared_rows: u32,
    /// Where the numbers begin.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The comparison of all ranks and steps.
    pub report: Report,
    /// What happened when, if the group records.
    pub timeline: Timeline,
    /// How long the slowest rank took, step by step; where rows are written in place, without that.
    pub step_times: Vec<Duration>,
}

impl Exercise {
    /// One step of `problem`, as planned, all rows compared.
    pub fn new(problem: &Problem, options: PlanOptions, seed: u64) -> Self {
        Exercise {
            problem: problem.clone(),
            options,
            group: GroupOptions::default(),
            steps: vec![problem.shards().to_rows()],
            fresh_inputs: true,
            in_place: false,
            workers: 1,
            compared_rows: u32::MAX,
            seed,
        }
    }

    /// A random small exercise: types, sizes, layouts, shards (some empty), chunks, tiles, scales,
    /// several steps of varying M, delays, and an epoch that may wrap on the way.
    ///
    /// ```
    /// use overlap_gemm::exercise::Exercise;
    /// let outcome = Exercise::random(42)?.run(&|| false)?;
    /// assert_eq!(outcome.report.wrong, 0);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn random(seed: u64) -> Result<Self> {
        let mut random = Random::of_stream(seed, 0);
        let ranks = random.within(1..=6) as usize;
        let steps: Vec<Vec<u32>> =
            (0..random.within(1..=5)).map(|_| random_rows(&mut random, ranks)).collect();
        let total = |rows: &Vec<u32>| rows.iter().sum::<u32>();
        let largest = steps.iter().max_by_key(|rows| total(rows)).cloned().unwrap_or_default();
        let types = random.choose(&ADMITTED);
        let b_layout = random.choose(&[BLayout::Nk, BLayout::Kn]);
        let (n, k) = (random.within(1..=90), random.within(1..=110));
        let b_columns = if b_layout == BLayout::Nk { k } else { n };
        let mut pad = || random.choose(&[0, 0, 1, 7]);
        let (lda, ldb, ldd) = (k + pad(), b_columns + pad(), n + pad());
        let scaling = match types.a.is_fp8() {
            true => random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let problem = Problem::builder(total(&largest).into(), n, k)
            .shards(&largest)
            .elements(types.a, types.b, types.d)
            .b_layout(b_layout)
            .lda(lda)
            .ldb(ldb)
            .ldd(ldd)
            .scaling(scaling)
            .build()?;
        let most = u64::from(problem.shards().most_rows());
        let mut extent = |most| random.within(1..=most) as u32;
        let tiling = Tiling {
            tile: TileShape { m: extent(40), n: extent(40) },
            cluster: ClusterShape { m: extent(3), n: extent(3) },
            swizzle: extent(8),
        };
        let pieces = Some(extent(most.min(6)));
        let strategy = random.choose(&Strategy::ALL);
        let options = PlanOptions { strategy, pieces, tiling, ..PlanOptions::default() };
        let jitter = Duration::from_micros(random.within(0..=200));
        let link = Link { bytes_per_second: 1e12, jitter, seed };
        let group = GroupOptions {
            link: random.choose(&[None, Some(link)]),
            poison: random.choose(&[true, false]),
            // Often so close to the wrap that the steps cross it.
            first_epoch: random.choose(&[0, u32::MAX - 2, i32::MAX as u32 - 2, seed as u32]),
            ..GroupOptions::default()
        };
        Ok(Exercise {
            problem,
            options,
            group,
            steps,
            fresh_inputs: true,
            in_place: random.choose(&[true, false]),
            workers: random.choose(&[1, 1, 2, 3]),
            compared_rows: u32::MAX,
            seed,
        })
    }

    /// Runs all ranks on threads of their own. `interrupted` is polled, and ends the run early.
    pub fn run(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<Outcome> {
        use ElementType::*;
        let ElementTypes { a, b, d } = self.problem.elements();
        match (a, b, d) {
            (Bf16, Bf16, Bf16) => self.run_typed::<bf16, bf16, bf16>(interrupted),
            (Bf16, Bf16, F16) => self.run_typed::<bf16, bf16, f16>(interrupted),
            (Bf16, Bf16, F32) => self.run_typed::<bf16, bf16, f32>(interrupted),
            (F16, F16, Bf16) => self.run_typed::<f16, f16, bf16>(interrupted),
            (F16, F16, F16) => self.run_typed::<f16, f16, f16>(interrupted),
            (F16, F16, F32) => self.run_typed::<f16, f16, f32>(interrupted),
            (F32, F32, F32) => self.run_typed::<f32, f32, f32>(interrupted),
            (E4m3, E4m3, Bf16) => self.run_typed::<F8E4M3, F8E4M3, bf16>(interrupted),
            (E4m3, E4m3, F16) => self.run_typed::<F8E4M3, F8E4M3, f16>(interrupted),
            (E4m3, E5m2, Bf16) => self.run_typed::<F8E4M3, F8E5M2, bf16>(interrupted),
            (E4m3, E5m2, F16) => self.run_typed::<F8E4M3, F8E5M2, f16>(interrupted),
            (E5m2, E4m3, Bf16) => self.run_typed::<F8E5M2, F8E4M3, bf16>(interrupted),
            (E5m2, E4m3, F16) => self.run_typed::<F8E5M2, F8E4M3, f16>(interrupted),
            // No problem of other types exists; say which are admitted all the same.
            _ => self.problem.elements().check().map(|()| Outcome::default()),
        }
    }

    fn run_typed<A: Element, B: Element, D: Element>(
        &self,
        interrupted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Outcome> {
        self.check_memory()?;
        let ranks = Group::local_with(self.problem.ranks(), self.group)?;
        let finished = AtomicBool::new(false);
        let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
            let (finished, exercise) = (&finished, self);
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|rank| {
                    scope.spawn(move || {
                        let watched = |aborter: Aborter| {
                            scope.spawn(move || watch(&aborter, interrupted, finished));
                        };
                        exercise.run_rank::<A, B, D>(&rank, watched)
                    })
                })
                .collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            // Relaxed: the watchers only end by it. Before any panic goes on: the scope waits for them.
            finished.store(true, Ordering::Relaxed);
            let unwind = |panic| std::panic::resume_unwind(panic);
            ended.into_iter().map(|outcome| outcome.unwrap_or_else(unwind)).collect()
        });
        // The rank that failed returns the reason; the others return that it left or that their step was aborted.
        let consequence = |error: &&Error| match error {
            Error::Aborted { .. } | Error::Over { .. } => 2,
            Error::PeerLost { .. } => 1,
            _ => 0,
        };
        let errors = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        if let Some(error) = errors.min_by_key(consequence) {
            return Err(error.clone());
        }
        let mut all = Outcome::default();
        outcomes.into_iter().flatten().for_each(|outcome| all.merge(outcome));
        Ok(all)
    }

    /// An error if the matrices, and the wide B of the reference, are too much for this machine.
    fn check_memory(&self) -> Result<()> {
        let problem = &self.problem;
        let bytes = |len: u64, size: u32| u128::from(len) * u128::from(size);
        let ElementTypes { a, b, d } = problem.elements();
        let a_rank = bytes(problem.a_len(problem.m()), a.size())
            + bytes(problem.b_len(), b.size() + size_of::<f64>() as u32)
            + bytes(problem.d_len(), d.size());
        check_memory("the matrices of all ranks", a_rank * u128::from(problem.ranks()))
    }

    /// All steps of one rank.
    fn run_rank<A: Element, B: Element, D: Element>(
        &self,
        rank: &Rank,
        watched: impl FnOnce(Aborter),
    ) -> Result<Outcome> {
        let mut op = AllGatherGemm::<A, B, D>::plan(rank, &self.problem, self.options)?;
        if rank.rank() == 0 {
            watched(op.aborter());
        }
        let stream = Stream::new(self.workers)?;
        let mut outcome = Outcome::default();
        let mut numbers = None;
        for (step, rows) in self.steps.iter().enumerate() {
            let shape = self.problem.with_shards(rows)?;
            let drawn = if self.fresh_inputs { step as u64 } else { 0 };
            let kept = numbers.take().filter(|_| !self.fresh_inputs);
            let mut now = kept
                .unwrap_or_else(|| Numbers::<A, B, D>::draw(&shape, self.seed, drawn, rank.rank()));
            if self.in_place {
                fill_slot(&mut op, rows, &shape, rank.rank(), &now)?;
            }
            let begin = Instant::now();
            self.step(&mut op, &stream, rows, &shape, rank.rank(), &mut now)?;
            outcome.step_times.push(begin.elapsed());
            if self.fresh_inputs || step + 1 == self.steps.len() {
                outcome.report.merge(&now.compare(&shape, self.compared_rows)?);
                compare_gathered(&op, &shape, &now.a)?;
            }
            numbers = Some(now);
        }
        op.flush()?;
        outcome.timeline = op.take_timeline();
        Ok(outcome)
    }

    /// One step of one rank.
    fn step<A: Element, B: Element, D: Element>(
        &self,
        op: &mut AllGatherGemm<A, B, D>,
        stream: &Stream,
        rows: &[u32],
        shape: &Problem,
        rank: u32,
        numbers: &mut Numbers<A, B, D>,
    ) -> Result<()> {
        let own = shape.shards().rows(rank);
        let scales = match shape.scaling() {
            Scaling::Rows => &numbers.a_scales[own.start as usize..own.end as usize],
            Scaling::None | Scaling::Tensor => &numbers.a_scales[..],
        };
        let input = match self.in_place {
            true => Shard::in_place(),
            false => Shard::at(shard_of(&numbers.a, shape, rank)),
        };
        let product = Product::new(&numbers.b, &mut numbers.d).scales(&numbers.b_scales);
        op.enqueue_all(stream, input.rows(rows).scales(scales), &mut [product])
    }
}

/// The admitted types, as [`Exercise::random`] draws them.
const ADMITTED: [ElementTypes; 8] = {
    use ElementType::*;
    const fn types(a: ElementType, b: ElementType, d: ElementType) -> ElementTypes {
        ElementTypes { a, b, d }
    }
    [
        types(Bf16, Bf16, Bf16),
        types(Bf16, Bf16, F32),
        types(F16, F16, F16),
        types(F16, F16, F32),
        types(F32, F32, F32),
        types(E4m3, E4m3, Bf16),
        types(E4m3, E5m2, F16),
        types(E5m2, E4m3, Bf16),
    ]
};

/// Rows for every rank, some of them none, at least one in all.
fn random_rows(random: &mut Random, ranks: usize) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..ranks)
        .map(|_| {
            let most = random.choose(&[0, 3, 40, 40, 40]);
            random.within(0..=most) as u32
        })
        .collect();
    if rows.iter().all(|&rows| rows == 0) {
        rows[ranks - 1] = 1;
    }
    rows
}

/// The matrices and scales of one step on one rank. A is the whole of it, the same on every rank.
struct Numbers<A, B, D> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    b: Vec<B>,
    b_scales: Vec<f32>,
    d: Vec<D>,
}

/// A rank's rows of A, without the padding of the last one.
fn shard_of<'a, A>(a: &'a [A], shape: &Problem, rank: u32) -> &'a [A] {
    let own = shape.shards().rows(rank);
    let begin = own.start as usize * shape.lda() as usize;
    if own.is_empty() { &[] } else { &a[begin..begin + shape.a_len(own.len() as u32) as usize] }
}

/// Writes a rank's rows where the next step expects them, as a producer would before the step.
fn fill_slot<A: Element, B: Element, D: Element>(
    op: &mut AllGatherGemm<A, B, D>,
    rows: &[u32],
    shape: &Problem,
    rank: u32,
    numbers: &Numbers<A, B, D>,
) -> Result<()> {
    let (k, lda) = (shape.k() as usize, shape.lda() as usize);
    let shard = shard_of(&numbers.a, shape, rank);
    for (row, slot) in op.local_shard(Some(rows))?.chunks_exact_mut(k).enumerate() {
        slot.copy_from_slice(&shard[row * lda..row * lda + k]);
    }
    Ok(())
}

impl<A: Element, B: Element, D: Element> Numbers<A, B, D> {
    fn draw(shape: &Problem, seed: u64, step: u64, rank: u32) -> Self {
        let mut shared = Random::of_stream(seed, step << 16);
        let mut own = Random::of_stream(seed, step << 16 | u64::from(rank + 1));
        Numbers {
            a: shared.elements(shape.a_len(shape.m())),
            a_scales: shared.scales(scale_count(shape.scaling(), shape.m())),
            b: own.elements(shape.b_len()),
            b_scales: own.scales(scale_count(shape.scaling(), shape.n())),
            d: vec![D::POISON; shape.d_len() as usize],
        }
    }

    fn compare(&self, shape: &Problem, most_rows: u32) -> Result<Report> {
        let stride = shape.m().div_ceil(most_rows.clamp(1, shape.m())) as usize;
        let rows = (0..shape.m()).rev().step_by(stride);
        Reference::new(shape, &self.a, &self.b, &self.a_scales, &self.b_scales)?
            .compare(&self.d, rows)
    }
}

/// An error unless the gathered A is, bit for bit, what the ranks brought.
fn compare_gathered<A: Element, B: Element, D: Element>(
    op: &AllGatherGemm<A, B, D>,
    shape: &Problem,
    a: &[A],
) -> Result<()> {
    let remedy = "report this as a bug, with the seed";
    let Some(gathered) = op.gathered() else {
        return Err(Error::mismatch("the gathered A", "absent", "there after a step", remedy));
    };
    for row in 0..shape.m() {
        let begin = row as usize * shape.lda() as usize;
        let brought = &a[begin..begin + shape.k() as usize];
        let bits = |x: &A| x.widen().to_bits();
        if !gathered.row(row).iter().map(bits).eq(brought.iter().map(bits)) {
            let what = format!("row {row} of the gathered A");
            return Err(Error::mismatch(what, "different", "what its rank brought", remedy));
        }
    }
    Ok(())
}

/// Aborts the operation when interrupted; ends when it has finished.
fn watch(aborter: &Aborter, interrupted: &dyn Fn() -> bool, finished: &AtomicBool) {
    while !finished.load(Ordering::Relaxed) {
        if interrupted() {
            aborter.abort("interrupted");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        self.report.merge(&other.report);
        self.timeline.merge(other.timeline);
        self.step_times.resize(self.step_times.len().max(other.step_times.len()), Duration::ZERO);
        for (slowest, time) in self.step_times.iter_mut().zip(other.step_times) {
            *slowest = time.max(*slowest);
        }
    }
}
