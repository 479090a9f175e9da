//! Runs all-gather + GEMM, GEMM + reduce-scatter or GEMM + all-reduce on all ranks with random numbers, and compares every
//! rank with the reference.
//!
//! For tests, the command line, and anyone who wants to see an installation compute something right. `drawn` draws an
//! exercise, `layer` is the operation of one rank, `numbers` its inputs and their comparison. Invariant: an [`Exercise`] is
//! data; running it twice gives the same numbers (not the same order of events), so a failing one can be kept and run again.

mod drawn;
mod layer;
mod numbers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::element::{Element, of_types};
use crate::error::{Error, Result};
use crate::host::{Aborter, Group, GroupOptions, Rank, Stream, check_memory};
use crate::plan::{ElementTypes, PlanOptions, Problem, Reduction};
use crate::reference::Report;
use crate::trace::Timeline;
use layer::Layer;
use numbers::Numbers;

/// What is run.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 48, 32).ranks(3).build()?;
/// let outcome = Exercise::new(&problem, PlanOptions::default(), 1).run(&|| false)?;
/// assert_eq!(outcome.report.complaint(), None);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Exercise {
    /// The largest step.
    pub problem: Problem,
    /// The operation and how it is planned: an all-gather + GEMM, a GEMM + reduce-scatter or a GEMM + all-reduce.
    pub options: PlanOptions,
    /// How a reduction adds up.
    pub reduction: Reduction,
    /// How the ranks are joined.
    pub group: GroupOptions,
    /// The rows of every rank, step by step.
    pub steps: Vec<Vec<u32>>,
    /// New inputs in every step, each of them checked; otherwise the same ones, checked at the end.
    pub fresh_inputs: bool,
    /// The shard is written in place, not copied in; not in a reduction, which reads A where it is.
    pub in_place: bool,
    /// Threads that compute a rank's tiles.
    pub workers: u32,
    /// How many rows of each output are compared; they are spread over all rows.
    pub compared_rows: u32,
    /// Where the numbers begin.
    pub seed: u64,
}

/// What came of it.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
///
/// let outcome = Exercise::random(7)?.run(&|| false)?;
/// println!("{} results, worst error {} of its bound", outcome.report.compared, outcome.report.worst_fraction);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
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
            reduction: Reduction::default(),
            group: GroupOptions::default(),
            steps: vec![problem.rows_of_ranks()],
            fresh_inputs: true,
            in_place: false,
            workers: 1,
            compared_rows: u32::MAX,
            seed,
        }
    }

    /// Runs all ranks on threads of their own. `interrupted` is polled, and ends the run early.
    pub fn run(&self, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<Outcome> {
        let types = self.problem.elements();
        macro_rules! run {
            ($a:ty, $b:ty, $d:ty) => {
                self.run_typed::<$a, $b, $d>(interrupted)
            };
        }
        // No problem of other types exists; say which are admitted all the same.
        of_types!(types, run, types.check().map(|()| Outcome::default()))
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
        let inputs = bytes(problem.a_len(problem.rows_of_a()), a.size())
            + bytes(problem.b_len(), b.size() + size_of::<f64>() as u32);
        // A rank of a reduction compares with what all ranks multiply.
        let compared = if self.reduces() { 1 + u128::from(problem.ranks()) } else { 1 };
        let a_rank = inputs * compared + bytes(problem.d_len(), d.size());
        check_memory("the matrices of all ranks", a_rank * u128::from(problem.ranks()))
    }

    fn reduces(&self) -> bool {
        self.options.operation.reduces()
    }

    /// All steps of one rank.
    fn run_rank<A: Element, B: Element, D: Element>(
        &self,
        rank: &Rank,
        watched: impl FnOnce(Aborter),
    ) -> Result<Outcome> {
        let mut layer = Layer::<A, B, D>::plan(self, rank)?;
        let rank = rank.rank();
        if rank == 0 {
            watched(layer.aborter());
        }
        let stream = Stream::new(self.workers)?;
        let mut outcome = Outcome::default();
        let mut numbers = None;
        for (step, rows) in self.steps.iter().enumerate() {
            let shape = self.problem.with_shards(rows)?;
            let drawn = if self.fresh_inputs { step as u64 } else { 0 };
            let kept = numbers.take().filter(|_| !self.fresh_inputs);
            let mut now = kept.unwrap_or_else(|| Numbers::draw(self, &shape, drawn, rank));
            if self.in_place {
                layer.fill_slot(rows, &shape, rank, &now)?;
            }
            let begin = Instant::now();
            layer.step(self, &stream, rows, &shape, rank, &mut now)?;
            outcome.step_times.push(begin.elapsed());
            if self.fresh_inputs || step + 1 == self.steps.len() {
                outcome.report.merge(&now.compare(self, &shape, drawn, rank)?);
                layer.compare_gathered(&shape, &now.a)?;
            }
            numbers = Some(now);
        }
        layer.flush()?;
        outcome.timeline = layer.take_timeline();
        Ok(outcome)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operation, Partials, Strategy};

    /// Every reduction in every strategy; two steps.
    fn exercises() -> impl Iterator<Item = Exercise> {
        let f32 = crate::element::ElementType::F32;
        let problem = Problem::builder(12, 10, 16).elements(f32, f32, f32).shards(&[4, 3, 5]);
        let problem = problem.build().unwrap();
        let operations = [Operation::GemmAllReduce, Operation::GemmReduceScatter];
        let all = operations.map(|operation| Strategy::ALL.map(|strategy| (operation, strategy)));
        all.into_iter().flatten().map(move |(operation, strategy)| {
            let options = PlanOptions { operation, strategy, ..PlanOptions::default() };
            let steps = vec![vec![4, 3, 5], vec![5, 0, 4]];
            Exercise { steps, ..Exercise::new(&problem, options, 3) }
        })
    }

    /// The report, where rank 1 does what another exercise says.
    fn report_with(exercise: &Exercise, other: &Exercise) -> Report {
        let mut report = Report::default();
        std::thread::scope(|scope| {
            let run = |rank: Rank| {
                let it = if rank.rank() == 1 { other } else { exercise };
                scope.spawn(move || it.run_rank::<f32, f32, f32>(&rank, |_| ()).unwrap().report)
            };
            let threads: Vec<_> = Group::local(3).unwrap().into_iter().map(run).collect();
            threads.into_iter().for_each(|thread| report.merge(&thread.join().unwrap()));
        });
        report
    }

    #[test]
    fn a_rank_with_other_numbers_is_noticed() {
        for right in exercises() {
            let report = report_with(&right, &right);
            let ranks = if right.options.operation == Operation::GemmAllReduce { 3 } else { 1 };
            assert_eq!((report.wrong, report.compared), (0, ranks * (12 + 9) * 10), "{right:?}");
            // Its own K-slice differs from what all others compare with, and theirs from what it does.
            let report = report_with(&right, &Exercise { seed: 4, ..right.clone() });
            assert!(report.wrong > report.compared * 9 / 10, "{report:?} of {right:?}");
        }
    }

    #[test]
    fn partial_sums_are_within_their_own_bound_alone() {
        for exercise in exercises() {
            let coarse = exercise.run(&|| false).unwrap().report;
            assert_eq!((exercise.reduction.partials, coarse.wrong), (Partials::Bf16, 0));
            let reduction = Reduction { partials: Partials::F32, average: false };
            let exact = Exercise { reduction, ..exercise.clone() }.run(&|| false).unwrap().report;
            assert_eq!(exact.wrong, 0);
            // The coarse ones are no exact ones.
            assert!(coarse.max_error > 100.0 * exact.max_error, "{coarse:?}, {exact:?}");
        }
    }

    #[test]
    fn what_no_exercise_runs_is_refused() {
        let mut exercise = exercises().last().unwrap();
        exercise.in_place = true;
        let error = exercise.run(&|| false).unwrap_err().to_string();
        assert!(error.contains("an input in place"), "{error}");
        exercise.options.operation = Operation::AllGather;
        let error = exercise.run(&|| false).unwrap_err().to_string();
        assert!(error.contains("AllGather") && error.contains("GemmReduceScatter"), "{error}");
    }
}
