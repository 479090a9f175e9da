//! The look-up of a problem, which need not be in the table.
//!
//! What belongs here: the choice between the three kinds of answers. Invariant: the answer follows from the table and the
//! problem alone; no part of it was refused by [`Fits`].
//!
//! An entry for the same problem is used unchanged; so is the nearest entry of the same kind of problem, if it is within
//! [`FARTHEST`]. Otherwise the cost model decides: every way has a prediction (`predict`) with every promising
//! kernel. The fastest is used, but the fused step of the rules keeps its place unless another leads by [`LEAD`]. Where the
//! rules copy and a kernel could push, the kernel has that place.

use std::fmt;

use super::candidates::{kernels_for, predicted_us, ways};
use super::entry::{Entry, Family, Multiplying, Shape, Times};
use crate::kernels::{Kernel, all_kernels};
use crate::plan::{Engine, Problem, Strategy, Way};
use crate::predict::Machine;

/// The largest distance of the nearest entry, in doublings ([`Shape::distance`]): M, N and K together differ by 19 %. Problems of
/// the shipped table are farther apart; there a neighbour's winner was slower than the choice of the cost model.
pub const FARTHEST: f64 = 0.25;
/// The lead that another plan needs over the rules' fused step: of many similar candidates, the best prediction belongs to the
/// one that its prediction flatters most.
const LEAD: f64 = 0.06;
/// Has the place of the rules' copies: it takes as long in a graph as outside, but with captured copies a step took 16 to
/// 63 µs longer on some machines (benches/results/2026-11-25-h100x2-family.md).
const PUSHED: Way = Way { strategy: Strategy::Fused, engine: Engine::PUSHING, pieces: 1 };

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The GPU of every rank, as the driver calls it.
    pub gpu: &'a str,
    /// Its SMs.
    pub sms: u32,
    /// The problem.
    pub problem: &'a Problem,
}

/// The choices that the caller can carry out and has left open.
pub trait Fits {
    /// The available kernels.
    fn kernels(&self) -> &[Kernel];
    /// Whether the rows can travel this way.
    fn way(&self, way: &Way) -> bool;
    /// Whether this kernel can multiply with these parameters, in the order of this strategy.
    fn multiplying(&self, strategy: Strategy, multiplying: &Multiplying) -> bool;
}

/// All kernels that can be compiled, with the default options: to look at a table without kernels.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Fits for Anything {
    fn kernels(&self) -> &[Kernel] {
        all_kernels()
    }

    fn way(&self, _: &Way) -> bool {
        true
    }

    fn multiplying(&self, _: Strategy, multiplying: &Multiplying) -> bool {
        let kernel = Kernel::from_name(&multiplying.kernel);
        kernel.is_none_or(|kernel| kernel.fast_accumulation || !kernel.elements.a.is_fp8())
    }
}

/// The source of an answer.
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
    let most_rows = asked.problem.shards().most_rows();
    let possible = |way: &Way| way.pieces <= most_rows && fits.way(way);
    let near = nearest(entries, &Family::of(asked.problem, asked.gpu), Shape::of(asked.problem));
    let measured = near.into_iter().find_map(|entry| measured(entry, asked, &possible, fits));
    measured.or_else(|| modelled(asked, &possible, fits))
}

/// Entries of that kind of problem that are near enough, the nearest first.
fn nearest<'a>(entries: &'a [Entry], family: &Family, shape: Shape) -> Vec<&'a Entry> {
    let distance = |entry: &Entry| entry.shape.distance(shape);
    let is_near = |entry: &&Entry| entry.family == *family && distance(entry) <= FARTHEST;
    let mut near: Vec<&Entry> = entries.iter().filter(is_near).collect();
    near.sort_by(|one, other| {
        distance(one).total_cmp(&distance(other)).then(one.shape.cmp(&other.shape))
    });
    near
}

/// Whether every rank has as many rows as any, but for the last.
fn is_even(problem: &Problem) -> bool {
    problem.shards().most_rows() == problem.m().div_ceil(problem.ranks().max(1))
}

/// The measured plan, if its rows can travel so; without its kernel if that does not fit.
fn measured(
    entry: &Entry,
    asked: &Asked<'_>,
    possible: &dyn Fn(&Way) -> bool,
    fits: &dyn Fits,
) -> Option<Answer> {
    let Entry { shape, driver, way, multiplying, us, .. } = entry;
    let is_it = *shape == Shape::of(asked.problem) && is_even(asked.problem);
    possible(way).then(|| Answer {
        way: *way,
        multiplying: Some(multiplying.clone())
            .filter(|multiplying| fits.multiplying(way.strategy, multiplying)),
        source: if is_it { Source::Tuned(*us) } else { Source::Nearest(*shape, *us) },
        driver: Some(driver.clone()),
    })
}

/// The fastest plan, by predictions alone.
fn modelled(asked: &Asked<'_>, possible: &dyn Fn(&Way) -> bool, fits: &dyn Fits) -> Option<Answer> {
    let machine = Machine::h200().with_sms(asked.sms);
    let mut all = ways(asked.problem);
    all.retain(possible);
    // What the rules plan for a fused step, as far as that was left open: its way and its kernel come first.
    let usual = all.iter().find(|way| way.strategy == Strategy::Fused).copied();
    let may_push = usual != Some(PUSHED) && all.contains(&PUSHED);
    let mut best: Option<(f64, f64, Way, Option<Multiplying>)> = None;
    for strategy in Strategy::ALL {
        let mut of_order = all.iter().filter(|way| way.strategy == strategy).peekable();
        let (Some(_), Ok(part)) = (of_order.peek(), strategy.part_of(asked.problem)) else {
            continue;
        };
        let list =
            |sms, may: &dyn Fn(&Multiplying) -> bool| kernels_for(&part, fits.kernels(), sms, may);
        let mut kernels = list(asked.sms, &|one| fits.multiplying(strategy, one));
        // Where kernels are not the table's to choose, the one that the cost model takes is reckoned with.
        let is_open = !kernels.is_empty();
        if !is_open {
            kernels = list(asked.sms, &|one| Anything.multiplying(strategy, one));
            kernels.truncate(1);
        }
        // Beside a kernel that pushes, a product may have fewer SMs: then others are the fastest.
        let further = |way: &Way| match way.engine {
            Engine::Kernel { blocks } if is_open && strategy == Strategy::Fused => {
                let sms = asked.sms.saturating_sub(blocks);
                let mut further = list(sms, &|one| fits.multiplying(strategy, one));
                further.retain(|one| !kernels.contains(one));
                further
            }
            _ => Vec::new(),
        };
        let candidates = of_order.flat_map(|way| {
            let all = kernels.iter().cloned().chain(further(way));
            all.map(move |one| (way, one)).collect::<Vec<_>>()
        });
        for (way, multiplying) in candidates {
            let kernel = fits.kernels().iter().find(|kernel| kernel.name == multiplying.kernel);
            let us = kernel.and_then(|kernel| {
                predicted_us(&machine, asked.problem, kernel, *way, &multiplying)
            });
            let Some(us) = us else { continue };
            let is_usual = Some(*way) == usual && Some(&multiplying) == kernels.first();
            let keeps_its_place = if may_push { *way == PUSHED } else { is_usual };
            let score = us.ln() - if keeps_its_place { LEAD } else { 0.0 };
            // Among equals the first.
            if best.as_ref().is_none_or(|(least, ..)| score < *least) {
                best = Some((score, us, *way, is_open.then_some(multiplying)));
            }
        }
    }
    let (_, us, way, multiplying) = best?;
    Some(Answer { way, multiplying, source: Source::Modelled { us }, driver: None })
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
