//! The look-up of a problem, which need not be in the table.
//!
//! What belongs here: the choice between the three kinds of answers. Invariant: the answer follows from the table and the
//! problem alone; no part of it was refused by [`Fits`].
//!
//! An entry for the same problem is used unchanged; so is the nearest entry of the same kind of problem, if it is within
//! [`FARTHEST`]. Otherwise the cost model decides: every way of a gather has a prediction (`predict`) with every promising
//! kernel. The fastest is used, but the fused step of the rules keeps its place unless another leads by [`LEAD`]. Every way of a
//! reduction has a prediction with the kernel that is chosen for it; [`predict::ranked`](crate::predict::ranked) takes one.

use std::fmt;

use super::asked::{Asked, Fits};
use super::candidates::{Candidate, candidates, usual_of_reductions};
use super::entry::{Entry, Family, Multiplying, Shape, Times};
use crate::kernels::Kernel;
use crate::plan::{Operation, Partials, Problem, Strategy, Way};
use crate::predict::Setup;

/// The largest distance of the nearest entry, in doublings ([`Shape::distance`]): M, N and K together differ by 19 %. Of
/// 113 all-gather + GEMMs farther apart, a neighbour's winner was slower than the choice of the cost model.
const FARTHEST: f64 = 0.25;
/// The lead that another plan needs over the rules' fused step: of many similar candidates, the best prediction belongs to the
/// one that its prediction flatters most.
const LEAD: f64 = 0.06;

/// The source of an answer.
///
/// ```
/// use overlap_gemm::plan::{Operation, Partials, Problem};
/// use overlap_gemm::tune::{Anything, Asked, Source, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let (operation, partials) = (Operation::AllGatherGemm, Partials::Bf16);
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, operation, problem: &problem, partials };
/// let answer = Tuning::none().look_up(&asked, &Anything).expect("there is a kernel for it");
/// assert!(matches!(answer.source, Source::Modelled { .. }));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// This problem was measured.
    Tuned(Times),
    /// This near problem was measured.
    Nearest(Shape, Times),
    /// The cost model's choice: neither the problem nor one near it was measured.
    Modelled {
        /// The predicted time of a step, in µs.
        us: f64,
        /// The open ways of a reduction that were not chosen, with their predicted times.
        others: Vec<(Way, f64)>,
    },
}

/// An answer.
///
/// ```
/// use overlap_gemm::plan::{Operation, Partials, Problem};
/// use overlap_gemm::tune::{Anything, Asked, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let (operation, partials) = (Operation::AllGatherGemm, Partials::Bf16);
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, operation, problem: &problem, partials };
/// let answer = Tuning::none().look_up(&asked, &Anything).expect("there is a kernel for it");
/// println!("{}", answer.way);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Strategy, engine and pieces.
    pub way: Way,
    /// The kernel; `None`: the caller has to choose, for each product.
    pub multiplying: Option<Multiplying>,
    /// The source.
    pub source: Source,
    /// The driver of the measurement, if any.
    pub driver: Option<String>,
}

impl Answer {
    /// The setup of a step of `operation` by this answer; `None`: the caller chooses the kernel, or the kernel is unknown.
    pub fn setup(&self, operation: Operation) -> Option<Setup> {
        let multiplying = self.multiplying.as_ref()?;
        Some(multiplying.setup(operation, self.way, Kernel::from_name(&multiplying.kernel)?))
    }
}

impl fmt::Display for Answer {
    /// `tuned: measured for this problem, 431.4 µs in graphs`; `nearest: measured for 4096×3584×8192, 431.4 µs in graphs`;
    /// `modelled: predicted to take 402.0 µs, nothing like it is in a table`; of a reduction: `modelled: predicted to take 43.3 µs;
    /// sequential, copy engines on one stream, 1 piece: 79.8`, and so on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = match &self.source {
            Source::Tuned(us) => {
                f.write_str("tuned: measured for this problem")?;
                *us
            }
            Source::Nearest(shape, us) => {
                write!(f, "nearest: measured for {shape}")?;
                *us
            }
            Source::Modelled { us, others } => {
                write!(f, "modelled: predicted to take {us:.1} µs")?;
                if others.is_empty() {
                    f.write_str(", nothing like it is in a table")?;
                }
                others.iter().try_for_each(|(way, us)| write!(f, "; {way}: {us:.1}"))?;
                Times::default()
            }
        };
        for (us, how) in [(measured.graph, "in graphs"), (measured.plain, "one by one")] {
            if let Some(us) = us {
                write!(f, ", {us:.1} µs {how}")?;
            }
        }
        if self.multiplying.is_none() {
            f.write_str("; the kernel by the cost model")?;
        }
        Ok(())
    }
}

/// The answer of `entries`. `None`: no kernel computes the problem, or no way fits.
pub(super) fn look_up(entries: &[Entry], asked: &Asked<'_>, fits: &dyn Fits) -> Option<Answer> {
    let Asked { gpu, operation, problem, partials, .. } = *asked;
    let (family, shape) = (Family::of(operation, problem, gpu), Shape::of(problem));
    let most_rows = problem.shards().most_rows();
    // Batches are more and smaller products, and sums in f32 are twice the bytes: nobody has measured such steps.
    let along_rows = problem.batches() == 1 && !problem.scatters_columns();
    let is_alike = along_rows && partials == Partials::Bf16;
    let distance = |entry: &Entry| entry.shape.distance(shape);
    let near = entries.iter().filter(|entry| {
        let Entry { family: of, way, .. } = entry;
        let is_near = *of == family && distance(entry) <= FARTHEST;
        is_alike && is_near && way.pieces <= most_rows && fits.way(way)
    });
    let nearest = near.min_by(|one, other| {
        distance(one).total_cmp(&distance(other)).then(one.shape.cmp(&other.shape))
    });
    match nearest {
        Some(entry) => Some(measured(entry, problem, fits)),
        None => modelled(asked, fits),
    }
}

/// Whether no rank has more rows than if they were divided evenly.
fn is_even(problem: &Problem) -> bool {
    problem.shards().most_rows() == problem.m().div_ceil(problem.ranks().max(1))
}

/// The measured plan; without its kernel if that does not fit.
fn measured(entry: &Entry, problem: &Problem, fits: &dyn Fits) -> Answer {
    let Entry { shape, driver, way, multiplying, us, .. } = entry.clone();
    let is_it = shape == Shape::of(problem) && is_even(problem);
    Answer {
        way,
        multiplying: multiplying.filter(|one| fits.multiplying(&way, one)),
        source: if is_it { Source::Tuned(us) } else { Source::Nearest(shape, us) },
        driver: Some(driver),
    }
}

/// The fastest plan, by predictions alone.
fn modelled(asked: &Asked<'_>, fits: &dyn Fits) -> Option<Answer> {
    let answer = |Candidate { way, multiplying, us }, others| Answer {
        way,
        multiplying: multiplying.filter(|one| fits.multiplying(&way, one)),
        source: Source::Modelled { us, others },
        driver: None,
    };
    if asked.operation.reduces() {
        let mut all = usual_of_reductions(asked, fits).into_iter();
        let first = all.next()?;
        return Some(answer(first, all.map(|Candidate { way, us, .. }| (way, us)).collect()));
    }
    let all = candidates(asked, fits);
    // What the rules plan for a fused step, as far as that was left open.
    let usual = all.iter().find(|one| one.way.strategy == Strategy::Fused);
    let score = |one: &&Candidate| one.us.ln() - if Some(*one) == usual { LEAD } else { 0.0 };
    // Among equals the first.
    let best = all.iter().min_by(|one, other| score(one).total_cmp(&score(other)))?;
    Some(answer(best.clone(), Vec::new()))
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
