//! What the table says of a problem that may not be in it.
//!
//! What belongs here: which entries are near, and who is chosen. Invariant: the answer follows from the table and the question
//! alone; nothing in it was refused by [`Fits`].
//!
//! What was measured is taken as it was found. For another problem, every way that rows may travel and every promising
//! kernel has a prediction (`predict`), which is corrected by how far off predictions were at the nearest entries
//! ([`correction`](super::correction)). The quickest is taken; one that is little known has to be quicker by as much as
//! is not known of it, and the fused step of the rules keeps its place unless another leads by [`LEAD`].

use std::fmt;

use super::candidates::{Candidate, kernels_for, part_of, predicted_us, ways};
use super::correction::{Corrected, Correction, Seen};
use super::entry::{Entry, Family, Gathering, Measured, Multiplying, Order, Place};
use crate::plan::Problem;
use crate::predict::{Kernel, Machine, all_kernels};

/// Entries farther away than this say nothing: a side that is eight times as long.
const FARTHEST: f64 = 3.0;
/// How many of the nearest are looked at.
const NEAR: usize = 8;
/// How much of what is not known of a candidate counts against it.
const CAUTION: f64 = 1.0;
/// How much quicker another has to be, doubts included, than what the rules plan for a fused step: of many candidates that
/// are as quick, the one that is predicted best is the one that the prediction flatters most.
const LEAD: f64 = 0.06;

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The GPU of every rank, as the driver calls it.
    pub gpu: &'a str,
    /// Its SMs.
    pub sms: u32,
    /// What is to be gathered and multiplied.
    pub problem: &'a Problem,
}

/// Whether every rank has as many rows as any, but for the last.
pub(super) fn is_even(problem: &Problem) -> bool {
    problem.shards().most_rows() == problem.m().div_ceil(problem.ranks().max(1))
}

/// What whoever asks can do, and has left open.
pub trait Fits {
    /// The kernels there are.
    fn kernels(&self) -> &[Kernel];
    /// Whether rows can travel so.
    fn gathering(&self, gathering: &Gathering) -> bool;
    /// Whether this kernel can multiply so, in that order.
    fn multiplying(&self, order: Order, multiplying: &Multiplying) -> bool;
}

/// Whatever can be compiled, and is what is usually asked for: to look at a table where no kernels are.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Fits for Anything {
    fn kernels(&self) -> &[Kernel] {
        all_kernels()
    }

    fn gathering(&self, _: &Gathering) -> bool {
        true
    }

    fn multiplying(&self, _: Order, multiplying: &Multiplying) -> bool {
        let kernel = Kernel::from_name(&multiplying.kernel);
        kernel.is_none_or(|kernel| kernel.fast_accumulation || !kernel.elements.a.is_fp8())
    }
}

/// Where an answer comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// This very problem was measured.
    Tuned(Box<Measured>),
    /// Predicted, and corrected by what was measured of others, the nearest first.
    Interpolated {
        /// Which others.
        from: Vec<Place>,
        /// What a step should take, in µs.
        us: f64,
    },
    /// Predicted: nothing near was measured.
    Modelled {
        /// What a step should take, in µs.
        us: f64,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// How rows should travel.
    pub gathering: Gathering,
    /// What should multiply; `None`: whoever asks has to choose.
    pub multiplying: Option<Multiplying>,
    /// Where it comes from.
    pub source: Source,
    /// The drivers that it was measured with, each once.
    pub drivers: Vec<String>,
}

impl fmt::Display for Answer {
    /// `tuned: measured for this problem, 431.4 µs in graphs`; `interpolated: predicted to take
    /// 402.0 µs, corrected by 4096×3584×8192, …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Tuned(measured) => {
                f.write_str("tuned: measured for this problem")?;
                for (time, how) in [(measured.graph, "in graphs"), (measured.plain, "one by one")] {
                    if let Some(time) = time {
                        write!(f, ", {:.1} µs {how}", time.us)?;
                    }
                }
            }
            Source::Interpolated { from, us } => {
                write!(f, "interpolated: predicted to take {us:.1} µs, corrected by ")?;
                for (nth, place) in from.iter().enumerate() {
                    let separator = if nth == 0 { "" } else { ", " };
                    write!(f, "{separator}{}", place.shape)?;
                    if from.get(nth + 1).is_none_or(|next| next.ranks != place.ranks) {
                        write!(f, " on {} GPUs", place.ranks)?;
                    }
                }
            }
            Source::Modelled { us } => {
                write!(f, "modelled: predicted to take {us:.1} µs, nothing like it is in a table")?;
            }
        }
        if self.multiplying.is_none() {
            f.write_str("; the kernel by the cost model")?;
        }
        Ok(())
    }
}

/// What `entries` say. `None`: there is no kernel for it, or no way that
/// fits.
pub(super) fn look_up(entries: &[Entry], asked: &Asked<'_>, fits: &dyn Fits) -> Option<Answer> {
    let most_rows = asked.problem.shards().most_rows();
    let possible = |way: &Gathering| way.pieces <= most_rows && fits.gathering(way);
    let (of, place) = (Family::of(asked.problem, asked.gpu), Place::of(asked.problem));
    let mut alike = entries.iter().filter(|entry| entry.family.is_like(&of));
    let exact = alike.find(|entry| entry.place() == place && is_even(asked.problem));
    if let Some(answer) = exact.and_then(|entry| tuned(entry, &possible, fits)) {
        return Some(answer);
    }
    let mut near = nearest(entries, &of, place);
    near.truncate(NEAR);
    expected(&near, asked, &possible, fits)
}

/// Those of that kind, on whatever number of ranks, that are near enough to say something, the nearest first.
pub(super) fn nearest<'a>(entries: &'a [Entry], of: &Family, place: Place) -> Vec<&'a Entry> {
    let distance = |entry: &Entry| entry.place().distance(place);
    let is_near = |entry: &&Entry| entry.family.is_like(of) && distance(entry) <= FARTHEST;
    let mut near: Vec<&Entry> = entries.iter().filter(is_near).collect();
    near.sort_by(|one, other| {
        distance(one).total_cmp(&distance(other)).then(one.place().cmp(&other.place()))
    });
    near
}

/// The best of what was measured that fits; if no kernel does, the best way to gather.
fn tuned(entry: &Entry, possible: &dyn Fn(&Gathering) -> bool, fits: &dyn Fits) -> Option<Answer> {
    let ways = || entry.measured.iter().filter(|one| possible(&one.gathering));
    let whole = ways().find(|one| fits.multiplying(one.gathering.order, &one.multiplying));
    let one = whole.or_else(|| ways().find(|one| one.by_model)).or_else(|| ways().next())?;
    Some(Answer {
        gathering: one.gathering,
        multiplying: whole.map(|one| one.multiplying.clone()),
        source: Source::Tuned(Box::new(one.clone())),
        drivers: vec![entry.driver.clone()],
    })
}

/// The one that should be quickest, by predictions and how far off they were near by.
fn expected(
    near: &[&Entry],
    asked: &Asked<'_>,
    possible: &dyn Fn(&Gathering) -> bool,
    fits: &dyn Fits,
) -> Option<Answer> {
    let machine = Machine::h200().with_sms(asked.sms);
    let place = Place::of(asked.problem);
    let facts = |name: &str| {
        let here = fits.kernels().iter().find(|kernel| kernel.name == name);
        here.cloned().or_else(|| Kernel::from_name(name))
    };
    let seen = seen(near, &machine, &facts);
    let from = near.iter().map(|entry| entry.place());
    let from: Vec<Place> =
        from.filter(|place| seen.iter().any(|one| one.place == *place)).collect();
    let correction = Correction::of(seen);

    let gatherings = open_ways(asked.problem, possible, near);
    // What the rules plan for a fused step, as far as that was left open: its way and its kernel come first.
    let usual = gatherings.iter().find(|way| way.order == Order::Fused).copied();
    let mut best: Option<(f64, f64, Gathering, Option<Multiplying>)> = None;
    for order in [Order::Fused, Order::Pipelined, Order::Sequential] {
        let mut of_order = gatherings.iter().filter(|way| way.order == order).peekable();
        let (Some(_), Some(part)) = (of_order.peek(), part_of(asked.problem, order)) else {
            continue;
        };
        let list =
            |may: &dyn Fn(&Multiplying) -> bool| kernels_for(&part, fits.kernels(), asked.sms, may);
        let mut kernels = list(&|one| fits.multiplying(order, one));
        // Where kernels are not the table's to choose, the one that the cost model takes is reckoned with.
        let is_open = !kernels.is_empty();
        if is_open {
            add_sweeps(&mut kernels, near, order, fits);
        } else {
            kernels = list(&|one| Anything.multiplying(order, one));
            kernels.truncate(1);
        }
        for (way, multiplying) in of_order.flat_map(|way| kernels.iter().map(move |one| (way, one)))
        {
            let what = Candidate { gathering: *way, multiplying };
            let kernel = facts(&multiplying.kernel);
            let us = kernel.and_then(|kernel| predicted_us(&machine, asked.problem, &kernel, what));
            let Some(us) = us else { continue };
            let Corrected { by, doubt } = correction.at(place, what);
            let is_usual = Some(*way) == usual && Some(multiplying) == kernels.first();
            let lead = if is_usual { LEAD } else { 0.0 };
            let score = us.ln() + by + CAUTION * doubt - lead;
            // Among equals the first.
            if best.as_ref().is_none_or(|(least, ..)| score < *least) {
                best = Some((score, us * by.exp(), *way, is_open.then(|| multiplying.clone())));
            }
        }
    }
    let (_, us, gathering, multiplying) = best?;
    let source = match from.is_empty() {
        true => Source::Modelled { us },
        false => Source::Interpolated { from, us },
    };
    Some(Answer { gathering, multiplying, source, drivers: drivers(near) })
}

/// Adds the sweeps of these kernels that did well near by.
fn add_sweeps(kernels: &mut Vec<Multiplying>, near: &[&Entry], order: Order, fits: &dyn Fits) {
    for entry in near {
        let finalists = entry.measured.iter().filter(|one| one.is_finalist(&entry.measured));
        for one in finalists.filter(|one| one.gathering.order == order) {
            let swept = &one.multiplying;
            let is_like = |other: &Multiplying| {
                Multiplying { swizzle: swept.swizzle, ..other.clone() } == *swept
            };
            let is_new = kernels.iter().any(is_like) && !kernels.contains(swept);
            if is_new && fits.multiplying(order, swept) {
                kernels.push(swept.clone());
            }
        }
    }
}

/// Ways that make sense for this size; where a caller has left none of those, what was tried near by.
fn open_ways(
    problem: &Problem,
    possible: &dyn Fn(&Gathering) -> bool,
    near: &[&Entry],
) -> Vec<Gathering> {
    let mut all = ways(problem);
    all.retain(|way| possible(way));
    if all.is_empty() {
        let tried = near.iter().flat_map(|entry| &entry.measured).map(|one| one.gathering);
        all.extend(tried.filter(|way| possible(way)));
    }
    all
}

/// How far off predictions of what was measured are.
fn seen<'a>(
    near: &[&'a Entry],
    machine: &Machine,
    facts: &dyn Fn(&str) -> Option<Kernel>,
) -> Vec<Seen<'a>> {
    let mut all = Vec::new();
    for (nth, entry) in near.iter().enumerate() {
        let Some(problem) = entry.problem() else { continue };
        let first = all.len();
        for one in &entry.measured {
            let what = Candidate { gathering: one.gathering, multiplying: &one.multiplying };
            let kernel = facts(&one.multiplying.kernel);
            let us = kernel.and_then(|kernel| predicted_us(machine, &problem, &kernel, what));
            let Some(us) = us else { continue };
            let (residual, place) = ((one.us() / us).ln(), entry.place());
            let is_final = one.is_finalist(&entry.measured);
            all.push(Seen { problem: nth, place, what, residual, is_final });
        }
        // What all have in common says nothing of who is quickest; so residuals begin around zero.
        let mean = all[first..].iter().map(|one| one.residual).sum::<f64>();
        let mean = mean / (all.len() - first).max(1) as f64;
        all[first..].iter_mut().for_each(|one| one.residual -= mean);
    }
    all
}

fn drivers(entries: &[&Entry]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for entry in entries {
        if !all.contains(&entry.driver) {
            all.push(entry.driver.clone());
        }
    }
    all
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
