//! The look-up of a problem, which need not be in the table.
//!
//! What belongs here: the choice between the three kinds of answers. Invariant: the answer follows from the table and the
//! problem alone; no part of it was refused by [`Fits`].
//!
//! An entry for the same problem is used unchanged; so is the nearest entry of the same kind of problem, if it is within
//! [`FARTHEST`]. Otherwise the cost model decides: every way has a prediction (`predict`) with every promising
//! kernel. The fastest is used, but the fused step of the rules keeps its place unless another leads by [`LEAD`].

use std::fmt;

use super::asked::{Asked, Fits};
use super::candidates::{Candidate, candidates};
use super::entry::{Entry, Family, Multiplying, Shape, Times};
use crate::kernels::Kernel;
use crate::plan::{Problem, Strategy, Way};
use crate::predict::Setup;

/// The largest distance of the nearest entry, in doublings ([`Shape::distance`]): M, N and K together differ by 19 %. Of
/// 113 problems farther apart, a neighbour's winner was slower than the choice of the cost model.
const FARTHEST: f64 = 0.25;
/// The lead that another plan needs over the rules' fused step: of many similar candidates, the best prediction belongs to the
/// one that its prediction flatters most.
const LEAD: f64 = 0.06;

/// The source of an answer.
///
/// ```
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::tune::{Anything, Asked, Source, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, problem: &problem };
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
    },
}

/// An answer.
///
/// ```
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::tune::{Anything, Asked, Tuning};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, problem: &problem };
/// let answer = Tuning::none().look_up(&asked, &Anything).expect("there is a kernel for it");
/// println!("{}", answer.way);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Strategy, engine and pieces.
    pub way: Way,
    /// The kernel; `None`: the caller has to choose.
    pub multiplying: Option<Multiplying>,
    /// The source.
    pub source: Source,
    /// The driver of the measurement, if any.
    pub driver: Option<String>,
}

impl Answer {
    /// The setup of a step by this answer; `None`: the caller chooses the kernel, or the kernel is unknown.
    pub fn setup(&self) -> Option<Setup> {
        let multiplying = self.multiplying.as_ref()?;
        Some(multiplying.setup(self.way, Kernel::from_name(&multiplying.kernel)?))
    }
}

impl fmt::Display for Answer {
    /// `tuned: measured for this problem, 431.4 µs in graphs`; `nearest: measured for 4096×3584×8192, 431.4 µs in graphs`;
    /// `modelled: predicted to take 402.0 µs, nothing like it is in a table`.
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
            Source::Modelled { us } => {
                write!(f, "modelled: predicted to take {us:.1} µs, nothing like it is in a table")?;
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
    let (family, shape) = (Family::of(asked.problem, asked.gpu), Shape::of(asked.problem));
    let most_rows = asked.problem.shards().most_rows();
    let distance = |entry: &Entry| entry.shape.distance(shape);
    let near = entries.iter().filter(|entry| {
        let Entry { family: of, way, .. } = entry;
        *of == family && distance(entry) <= FARTHEST && way.pieces <= most_rows && fits.way(way)
    });
    let nearest = near.min_by(|one, other| {
        distance(one).total_cmp(&distance(other)).then(one.shape.cmp(&other.shape))
    });
    match nearest {
        Some(entry) => Some(measured(entry, asked.problem, fits)),
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
        multiplying: Some(multiplying).filter(|one| fits.multiplying(way.strategy, one)),
        source: if is_it { Source::Tuned(us) } else { Source::Nearest(shape, us) },
        driver: Some(driver),
    }
}

/// The fastest plan, by predictions alone.
fn modelled(asked: &Asked<'_>, fits: &dyn Fits) -> Option<Answer> {
    let all = candidates(asked, fits);
    // What the rules plan for a fused step, as far as that was left open.
    let usual = all.iter().find(|one| one.way.strategy == Strategy::Fused);
    let score = |one: &&Candidate| one.us.ln() - if Some(*one) == usual { LEAD } else { 0.0 };
    // Among equals the first.
    let best = all.iter().min_by(|one, other| score(one).total_cmp(&score(other)))?;
    let Candidate { way, multiplying, us } = best.clone();
    Some(Answer {
        way,
        multiplying: Some(multiplying).filter(|one| fits.multiplying(way.strategy, one)),
        source: Source::Modelled { us },
        driver: None,
    })
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
