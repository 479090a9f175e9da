//! Measuring for a table on threads of this machine, in one process.
//!
//! What belongs here: what is tried on threads, and how a heat is run; what is tried after what is [`search`](super::search)'s.
//! Invariant: as on GPUs, nothing is chosen whose result was wrong, and everybody has a turn in each round.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use overlap_gemm::host::Link;
use overlap_gemm::plan::{MAX_TILE_EXTENT, Problem, TileShape};
use overlap_gemm::tune::{
    Entry, Family, Gathering, Multiplying, Order, Shape, Tuning, record, thread_options,
    threads_name,
};

use super::course::{Clock, Had, Outcome, REFUSED, Stopped, had, tell_elsewhere};
use super::search::{self, Candidate, HEATS, Heat, Known, Track, search};
use super::{Launches, Wanted};
use crate::bench::cases::{Case, spread};
use crate::bench::turns::turn;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{
    Steps, check_link, cores, default_options, processor_name, rate_of, time_together,
};
use crate::output::Output;
use crate::progress;

/// Tiles that are tried, beside the default.
const TILES: [(u32, u32); 6] =
    [(64, 256), (128, 128), (128, 256), (256, 256), (64, 128), (32, 512)];
/// Numbers of chunks a rank.
const CHUNKS: [u32; 4] = [1, 2, 4, 8];
/// How much longer loops are than on GPUs: other programs share the cores, and take them for milliseconds.
const LONGER: f64 = 4.0;
/// Steps of a loop, at least and at most.
const STEPS: [usize; 2] = [3, 200];

/// Where it is measured: on so many ranks, with that link between them.
#[derive(Clone, Copy)]
pub struct Place {
    pub ranks: u32,
    pub link: Option<Link>,
}

impl Place {
    fn name(self) -> String {
        threads_name(cores(), rate_of(self.link))
    }
}

/// Measures all problems.
pub fn run(
    wanted: &Wanted,
    place: Place,
    output: Output,
    interrupt: Interrupt,
) -> Result<(), Failure> {
    // Whatever cannot be is refused before anything is written.
    for case in &wanted.cases {
        // Among all that is tried are shards in one piece.
        check_link(&spread(&case.problem, place.ranks)?, 1, place.link)?;
    }
    // Nothing is lost to a path that cannot be.
    record(&wanted.file, &[])?;
    let table = Tuning::from_file(&wanted.file)?;
    let (threads, processor) = (place.name(), processor_name());
    let (mut todo, mut elsewhere) = (Vec::new(), 0);
    for case in &wanted.cases {
        let problem = spread(&case.problem, place.ranks)?;
        let had = had(&table, &problem, &threads, &processor, Launches::Plain);
        elsewhere += usize::from(had == Had::Elsewhere);
        if wanted.again || had != Had::All {
            todo.push((case, problem));
        }
    }
    tell_elsewhere(elsewhere, "on another processor");
    let bar = progress::bar(todo.len() as u64 * HEATS, "heats", &output);
    bar.tick();
    let clock = Clock::new(wanted.minutes);
    let mut outcome = Outcome::default();
    for (nth, (case, problem)) in (0u64..).zip(&todo) {
        // A heat with nothing new in it is left out.
        bar.set_position(nth * HEATS);
        let ahead = outcome.longest;
        let mut one = OneProblem {
            place,
            problem,
            seed: wanted.seed,
            clock: &clock,
            interrupt,
            bar: &bar,
            stopped: None,
        };
        outcome.stopped = one.stops(ahead);
        if outcome.stopped.is_some() {
            break;
        }
        measure(&mut one, case, wanted, &mut outcome)?;
    }
    bar.finish_and_clear();
    outcome.end(wanted, wanted.cases.len() - todo.len(), &clock, Some(output))
}

/// Measures one problem, and keeps what came out.
fn measure(
    one: &mut OneProblem<'_>,
    case: &Case,
    wanted: &Wanted,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let problem = one.problem;
    let found = match search(&known(problem)?, one) {
        Err(Failure::Interrupted) => {
            outcome.stopped = Some(Stopped::Interrupted);
            None
        }
        found => {
            outcome.stopped = one.stopped;
            found?
        }
    };
    let Some(found) = found else { return Ok(()) };
    outcome.longest = outcome.longest.max(begin.elapsed());
    outcome.fail(case, found.failed);
    if found.measured.is_empty() {
        return Ok(());
    }
    let entry = Entry {
        family: Family::of(problem, &one.place.name()),
        shape: Shape::of(problem),
        sms: cores(),
        // Nothing lies between threads and the processor.
        driver: processor_name(),
        crate_version: env!("CARGO_PKG_VERSION").into(),
        measured: found.measured,
    };
    Ok(outcome.add(entry.sorted(), Some(&wanted.file), one.bar)?)
}

/// What is chosen without a table, and what else may be.
fn known(problem: &Problem) -> Result<Known, Failure> {
    let usual = default_options(problem)?;
    let (tile, swizzle) = (usual.tiling.tile, usual.tiling.swizzle);
    let most_rows = problem.shards().most_rows();
    let pieces = usual.chunks_per_shard.unwrap_or(1);
    let fused = |pieces| Gathering::on_threads(Order::Fused, pieces);
    let mut ways: Vec<Gathering> =
        CHUNKS.into_iter().filter(|pieces| *pieces <= most_rows).map(fused).collect();
    // Where a tile has all rows, every step waits for all.
    if (tile.m + 1..=MAX_TILE_EXTENT).contains(&problem.m()) {
        ways.push(Gathering::on_threads(Order::Sequential, 1));
    }
    let others = TILES.map(|(m, n)| TileShape { m, n });
    let tiles = [tile].into_iter().chain(others.into_iter().filter(|other| *other != tile));
    let whole: Vec<_> = tiles.map(|tile| Multiplying::on_threads(tile, swizzle)).collect();
    let untuned = Candidate {
        gathering: fused(pieces),
        multiplying: Multiplying::on_threads(tile, swizzle),
        by_model: true,
        untuned: true,
    };
    Ok(Known { untuned, ways, most_rows, whole, of_rank: Vec::new(), m: problem.m() })
}

/// One problem.
struct OneProblem<'a> {
    place: Place,
    problem: &'a Problem,
    seed: u64,
    clock: &'a Clock,
    interrupt: Interrupt,
    bar: &'a ProgressBar,
    stopped: Option<Stopped>,
}

impl OneProblem<'_> {
    /// Whether to stop before something that takes as long as `ahead`.
    fn stops(&self, ahead: Duration) -> Option<Stopped> {
        match self.interrupt.check() {
            Err(_) => Some(Stopped::Interrupted),
            Ok(()) => self.clock.is_up(ahead).then_some(Stopped::TimeIsUp),
        }
    }

    /// Microseconds a step, in a loop of so many; or what is wrong.
    fn time(&self, candidate: &Candidate, steps: usize) -> Result<Result<f64, String>, Failure> {
        let Candidate { gathering, multiplying, .. } = candidate;
        let Some(options) = thread_options(gathering, multiplying, self.problem, cores()) else {
            return Ok(Err(format!("{REFUSED}threads cannot carry it out")));
        };
        let steps = Steps::new(self.problem, options, 1 + steps, self.seed).in_place();
        time_together(&[steps], self.place.link, self.interrupt)
    }
}

impl Track<Failure> for OneProblem<'_> {
    fn run(
        &mut self,
        candidates: &[Candidate],
        heat: Heat,
    ) -> Result<Option<Vec<search::Outcome>>, Failure> {
        let mut first = Vec::new();
        for candidate in candidates {
            self.stopped = self.stops(Duration::ZERO);
            if self.stopped.is_some() {
                return Ok(None);
            }
            first.push(self.time(candidate, STEPS[0])?);
        }
        let least = first.iter().flatten().copied().fold(f64::INFINITY, f64::min).max(1.0);
        let steps =
            ((1e3 * LONGER * heat.loop_ms / least).ceil() as usize).clamp(STEPS[0], STEPS[1]);
        let is_far = |us: &f64| *us > heat.give_up * least;
        let going: Vec<usize> = (0..candidates.len())
            .filter(|nth| first[*nth].as_ref().is_ok_and(|us| !is_far(us)))
            .collect();
        // Who goes no further has its first time.
        let mut outcomes: Vec<Result<Vec<f64>, String>> =
            first.into_iter().map(|first| first.map(|us| vec![us])).collect();
        going.iter().for_each(|nth| outcomes[*nth] = Ok(Vec::new()));
        for round in 0..heat.rounds {
            for turn in turn(round, going.len()) {
                self.stopped = self.stops(Duration::ZERO);
                if self.stopped.is_some() {
                    return Ok(None);
                }
                let nth = going[turn];
                if let Ok(times) = &mut outcomes[nth] {
                    match self.time(&candidates[nth], steps)? {
                        Ok(us) => times.push(us),
                        Err(why) => outcomes[nth] = Err(why),
                    }
                }
            }
        }
        self.bar.inc(1);
        self.bar.set_message(format!("{}, {}", Shape::of(self.problem), heat.name));
        let outcome = |outcome| match outcome {
            Ok(plain) => search::Outcome::Timed([Vec::new(), plain]),
            Err(why) => search::Outcome::Failed(why),
        };
        Ok(Some(outcomes.into_iter().map(outcome).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_can_be_carried_out() {
        for (m, ranks) in [(1u64, 2), (100, 3), (1024, 4), (50_000, 2)] {
            let problem = Problem::builder(m, 64, 32).ranks(ranks).build().unwrap();
            let Known { untuned, ways, whole, .. } = known(&problem).unwrap();
            assert_eq!(untuned.multiplying, whole[0]);
            assert!(ways.iter().any(|way| way.order == Order::Fused));
            let after_all = ways.iter().any(|way| way.order == Order::Sequential);
            assert_eq!(after_all, (257..16_385).contains(&m));
            for (nth, tile) in whole.iter().enumerate() {
                assert!(!whole[..nth].contains(tile), "{tile}");
                for way in &ways {
                    let options = thread_options(way, tile, &problem, 8);
                    let chunks = options.and_then(|options| options.chunks_per_shard);
                    assert_eq!(chunks, Some(way.pieces), "{m}: {way}; {tile}");
                }
            }
        }
    }
}
