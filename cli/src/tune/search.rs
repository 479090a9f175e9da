//! The candidates for one problem, and the order in which they are tried.
//!
//! What belongs here: arithmetic over candidates and times; a [`Track`] measures. Invariant: all ranks try the same
//! candidates, because all see the same times. A candidate with a wrong result is never tried again. The chosen candidate
//! ran in the last heat, beside the plan without a table, in loops of the same length.
//!
//! There are thousands of combinations. So the search varies one part after the other, each time from the best so far:
//!
//! ```text
//!   ways     how rows travel (strategy, engine, pieces), with the cost model's kernel         ≤ 12
//!   kernels  the cost model's next best ones, for the best two ways                         ≤ 9
//!   sweeps   other swizzles, the best kernel for the next ways                              ≤ 5
//!   finals   the best five and the plan without a table: longer loops, more rounds
//! ```
//!
//! Each heat runs the best so far again. Its times are scaled so that the best has its former time, because clocks drift
//! from heat to heat.

use overlap_gemm::plan::{Strategy, Way};
use overlap_gemm::tune::Multiplying;

use super::ranking::{Measured, Time};
use crate::statistics::{Summary, median};

/// A plan and a kernel to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub way: Way,
    pub multiplying: Multiplying,
    /// The kernel is the cost model's choice.
    pub by_model: bool,
    /// This is the plan without a table.
    pub untuned: bool,
}

/// How thoroughly candidates are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heat {
    pub name: &'static str,
    pub rounds: usize,
    /// How long a loop lasts, at least.
    pub loop_ms: f64,
    /// A candidate that takes this many times as long as the fastest in the first loop is dropped.
    pub give_up: f64,
}

/// How loops are launched, in the order in which times are listed: in graphs, one by one.
pub const WAYS_TO_LAUNCH: usize = 2;

/// The outcome of one candidate in one heat.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Microseconds a step, round by round; empty for a way of launching that is not measured.
    Timed([Vec<f64>; WAYS_TO_LAUNCH]),
    /// It was wrong, or refused: why.
    Failed(String),
}

/// Measures candidates. An error ends the search; `None`: it is time to stop.
pub trait Track<E> {
    /// Runs all of them, interleaved.
    fn run(&mut self, candidates: &[Candidate], heat: Heat) -> Result<Option<Vec<Outcome>>, E>;
}

/// What is known of a problem before anything is measured.
pub struct Known {
    /// The plan without a table.
    pub untuned: Candidate,
    /// How rows may travel.
    pub ways: Vec<Way>,
    /// Rows of the largest shard.
    pub most_rows: u32,
    /// The kernels of one product of all rows, the cost model's choice first; one for each number of slices.
    pub whole: Vec<Multiplying>,
    /// Those of a product of one rank's rows.
    pub of_rank: Vec<Multiplying>,
    /// Rows of all ranks.
    pub m: u32,
}

/// The outcome of the search.
#[derive(Debug, Default)]
pub struct Found {
    /// The timed candidates: the one to take first, then the others in order.
    pub measured: Vec<Measured>,
    /// The others, and why they have no times.
    pub failed: Vec<(Candidate, String)>,
}

/// Three rounds, for the median of two is no more than their mean, and one loop in some dozens is an outlier.
const SHORT: Heat = Heat { name: "ways", rounds: 3, loop_ms: 15.0, give_up: 1.3 };
const FINAL: Heat = Heat { name: "finals", rounds: 7, loop_ms: 40.0, give_up: f64::INFINITY };
/// How many heats there are.
pub const HEATS: u64 = 4;
/// Candidates in the finals, besides the plan without a table.
const FINALISTS: usize = 5;
/// Further kernels for the best way and for the next.
const KERNELS: [usize; 2] = [6, 3];
/// The second best way is given kernels if it is no farther behind than this.
const CLOSE: f64 = 1.06;

/// Finds the best; `None`: it was time to stop before anything was found.
pub fn search<E>(known: &Known, track: &mut impl Track<E>) -> Result<Option<Found>, E> {
    let mut search = Search { known, track, found: Found::default() };
    // The plan without a table, the same way with the cost model's kernel if that is another, and the others.
    let mut first = vec![known.untuned.clone()];
    first.extend(known.ways.iter().map(|way| search.by_model(*way)));
    let done = search.heat(first, SHORT)?
        && {
            let next = search.kernels();
            search.heat(next, Heat { name: "kernels", ..SHORT })?
        }
        && {
            let next = search.sweeps();
            search.heat(next, Heat { name: "sweeps", ..SHORT })?
        }
        && {
            let finalists = search.finalists();
            search.finals(finalists)?
        };
    Ok(done.then_some(search.found))
}

struct Search<'a, T> {
    known: &'a Known,
    track: &'a mut T,
    found: Found,
}

impl<T> Search<'_, T> {
    /// A way with the kernel that the cost model chooses for it.
    fn by_model(&self, way: Way) -> Candidate {
        let untuned = &self.known.untuned;
        let multiplying = match self.known.kernels(way.strategy).first() {
            Some(first) => first.clone(),
            None => untuned.multiplying.clone(),
        };
        Candidate { way, multiplying, by_model: true, untuned: false }
    }

    /// Ways to gather, the best first, that are close to the best.
    fn close_ways(&self) -> Vec<Way> {
        let all = Measured::in_order(self.found.measured.clone());
        let mut ways = Vec::new();
        for one in &all {
            if one.ratio(&all) <= CLOSE && !ways.contains(&one.way) {
                ways.push(one.way);
            }
        }
        ways
    }

    /// Other kernels, for the best ways.
    fn kernels(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        for (way, most) in self.close_ways().into_iter().zip(KERNELS) {
            let mut taken: Vec<&Multiplying> = Vec::new();
            for next in self.known.kernels(way.strategy).iter().skip(1) {
                // Numbers of slices that differ a little differ little.
                let same = taken.iter().filter(|taken| taken.kernel == next.kernel).count();
                if taken.len() < most && same < 2 {
                    taken.push(next);
                }
            }
            all.extend(taken.into_iter().map(|multiplying| Candidate {
                way,
                multiplying: multiplying.clone(),
                by_model: false,
                untuned: false,
            }));
        }
        all
    }

    /// Other sweeps of the best so far, and its kernel for the next best ways.
    fn sweeps(&self) -> Vec<Candidate> {
        let all = Measured::in_order(self.found.measured.clone());
        let Some(best) = all.first() else { return Vec::new() };
        let of = |way, multiplying| Candidate { way, multiplying, by_model: false, untuned: false };
        let Multiplying { tile, cluster, .. } = best.multiplying;
        let rows = match best.way.strategy {
            Strategy::Pipelined => self.known.most_rows,
            _ => self.known.m,
        };
        let units = rows.div_ceil(tile.m.saturating_mul(cluster.m).max(1));
        // More rows together than there are sweep no differently.
        let useful =
            [1, 4, 8, 16].into_iter().filter(|swizzle| *swizzle == 1 || swizzle / 2 < units);
        let mut next: Vec<_> = useful
            .map(|swizzle| of(best.way, Multiplying { swizzle, ..best.multiplying.clone() }))
            .collect();
        let ways = self.close_ways().into_iter();
        let same_order = ways.filter(|way| way.strategy == best.way.strategy).skip(1).take(2);
        next.extend(same_order.map(|way| of(way, best.multiplying.clone())));
        next
    }

    /// The best, and the plan without a table.
    fn finalists(&self) -> Vec<Candidate> {
        let all = Measured::in_order(self.found.measured.clone());
        let untuned = all.iter().skip(FINALISTS).find(|one| one.untuned);
        all.iter().take(FINALISTS).chain(untuned).map(candidate_of).collect()
    }

    fn is_known(&self, candidate: &Candidate) -> bool {
        self.found.measured.iter().any(|one| candidate.is(one))
            || self.found.failed.iter().any(|(one, _)| one.is_same(candidate))
    }

    /// Measures what is new among `candidates`, beside the best so far. `false`: it is time to stop.
    fn heat<E>(&mut self, candidates: Vec<Candidate>, heat: Heat) -> Result<bool, E>
    where
        T: Track<E>,
    {
        let mut new: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            if !self.is_known(&candidate) && !new.iter().any(|other| other.is_same(&candidate)) {
                new.push(candidate);
            }
        }
        if new.is_empty() {
            return Ok(true);
        }
        let best = Measured::in_order(self.found.measured.clone()).into_iter().next();
        let beside = best.as_ref().map(candidate_of);
        let all: Vec<Candidate> = beside.into_iter().chain(new).collect();
        let Some(outcomes) = self.track.run(&all, heat)? else { return Ok(false) };
        let mut outcomes = all.into_iter().zip(outcomes);
        let mut scale = [1.0; WAYS_TO_LAUNCH];
        if let Some(best) = best
            && let Some((candidate, outcome)) = outcomes.next()
        {
            match times(&outcome) {
                Ok(now) => scale = scales(&best, &now),
                Err(why) => self.found.fails(candidate, why),
            }
        }
        for (candidate, outcome) in outcomes {
            match times(&outcome) {
                Ok(times) => self.found.measured.push(measured(candidate, times, scale)),
                Err(why) => self.found.fails(candidate, why),
            }
        }
        Ok(true)
    }

    /// Measures `finalists` once more and for longer. `false`: it is time to stop.
    fn finals<E>(&mut self, finalists: Vec<Candidate>) -> Result<bool, E>
    where
        T: Track<E>,
    {
        if finalists.is_empty() {
            return Ok(true);
        }
        let Some(outcomes) = self.track.run(&finalists, FINAL)? else { return Ok(false) };
        let found = &mut self.found;
        let mut drift = [Vec::new(), Vec::new()];
        let mut last = Vec::new();
        for (candidate, outcome) in finalists.into_iter().zip(outcomes) {
            match times(&outcome) {
                Ok(now) => {
                    let before = found.measured.iter().find(|one| candidate.is(one));
                    for (way, scale) in
                        before.map(|before| scales(before, &now)).iter().flatten().enumerate()
                    {
                        drift[way].push(1.0 / scale);
                    }
                    last.push(measured(candidate, now, [1.0; WAYS_TO_LAUNCH]));
                }
                Err(why) => found.fails(candidate, why),
            }
        }
        let drift = drift.map(|each| median(&each).unwrap_or(1.0));
        let is_last = |one: &Measured| last.iter().any(|last| candidate_of(last).is(one));
        found.measured.retain(|one| !is_last(one));
        for one in &mut found.measured {
            for (time, drift) in [&mut one.graph, &mut one.plain].into_iter().zip(drift) {
                *time = time.map(|time| Time::new(time.us * drift, time.spread, time.rounds));
            }
        }
        found.measured.extend(last);
        found.measured = Measured::in_order(std::mem::take(&mut found.measured));
        Ok(true)
    }
}

impl Found {
    /// Removes a candidate with a wrong result, also if an earlier heat timed it.
    fn fails(&mut self, candidate: Candidate, why: String) {
        self.measured.retain(|one| !candidate.is(one));
        self.failed.push((candidate, why));
    }
}

impl Candidate {
    /// Whether the two are carried out alike.
    fn is_same(&self, other: &Candidate) -> bool {
        (&self.way, &self.multiplying) == (&other.way, &other.multiplying)
    }

    /// Whether that is what was measured.
    fn is(&self, one: &Measured) -> bool {
        (&self.way, &self.multiplying) == (&one.way, &one.multiplying)
    }
}

impl Known {
    /// The kernels of one product in that order.
    fn kernels(&self, strategy: Strategy) -> &[Multiplying] {
        if strategy == Strategy::Pipelined { &self.of_rank } else { &self.whole }
    }
}

fn candidate_of(measured: &Measured) -> Candidate {
    Candidate {
        way: measured.way,
        multiplying: measured.multiplying.clone(),
        by_model: measured.by_model,
        untuned: measured.untuned,
    }
}

type Times = [Option<Time>; WAYS_TO_LAUNCH];

/// Medians, or why there are none.
fn times(outcome: &Outcome) -> Result<Times, String> {
    match outcome {
        Outcome::Failed(why) => Err(why.clone()),
        Outcome::Timed(rounds) => {
            let time = |rounds: &Vec<f64>| {
                let summary = Summary::of(rounds)?;
                let good = summary.median.is_finite() && summary.median > 0.0;
                good.then(|| Time::new(summary.median, summary.spread(), rounds.len() as u32))
            };
            let times = [time(&rounds[0]), time(&rounds[1])];
            match times {
                [None, None] => Err("it was not timed".into()),
                times => Ok(times),
            }
        }
    }
}

/// The factors that make times of now comparable with those before.
fn scales(before: &Measured, now: &Times) -> [f64; WAYS_TO_LAUNCH] {
    let scale = |before: Option<Time>, now: Option<Time>| match (before, now) {
        (Some(before), Some(now)) => before.us / now.us,
        _ => 1.0,
    };
    [scale(before.graph, now[0]), scale(before.plain, now[1])]
}

fn measured(candidate: Candidate, times: Times, scale: [f64; WAYS_TO_LAUNCH]) -> Measured {
    let Candidate { way, multiplying, by_model, untuned } = candidate;
    let scaled = |way: usize| {
        times[way].map(|time| Time::new(time.us * scale[way], time.spread, time.rounds))
    };
    let (graph, plain) = (scaled(0), scaled(1));
    Measured { way, multiplying, by_model, untuned, graph, plain }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
