//! A timeline in numbers: how each rank's workers spent their time.
//!
//! Invariant: all ranks count from the start of the step. The times not begun, computed, waited and idle add up to the span of
//! the rank times its workers, so a late start of a rank is visible.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Timeline;

/// One rank's step.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let mut exercise = Exercise::new(&problem, PlanOptions::default(), 1);
/// exercise.group.record = true;
/// let timeline = exercise.run(&|| false)?.timeline;
/// for rank in timeline.summaries() {
///     println!("rank {}: {} tiles in {:?}", rank.rank, rank.tiles, rank.span);
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RankSummary {
    /// The rank.
    pub rank: u32,
    /// The number of workers that computed.
    pub workers: u32,
    /// The number of tiles.
    pub tiles: u32,
    /// From the start of the step, that of the first rank, to the end of this rank's last tile.
    pub span: Duration,
    /// From the start of the step until a tile of this rank could be computed.
    pub first_tile: Duration,
    /// From the start of the step until a worker first looked for rows, by all workers together.
    pub not_begun: Duration,
    /// Spent computing, by all workers together.
    pub computed: Duration,
    /// Spent waiting for rows while nothing was computed, by all workers together.
    pub waited: Duration,
    /// All of it by the rank of the rows; the wait for the rank's own rows is the start-up.
    pub waited_for: BTreeMap<u32, Duration>,
    /// None of these, by all workers together.
    pub idle: Duration,
    /// From the end of the first worker to the end of the last.
    pub tail: Duration,
}

impl Timeline {
    /// How the workers of each rank spent their time, from the first event of any rank on: a look for rows, a push, or a
    /// signal.
    pub fn summaries(&self) -> Vec<RankSummary> {
        let begin = self.begin();
        let owners: BTreeMap<(u32, u32), u32> =
            self.transfers.iter().map(|sent| ((sent.to, sent.chunk), sent.from)).collect();
        let mut ranks: BTreeMap<u32, BTreeMap<u32, Vec<Tile>>> = BTreeMap::new();
        for tile in &self.tiles {
            let workers = ranks.entry(tile.rank).or_default();
            let times = [tile.wait_begin, tile.ready, tile.done];
            let owner = owners.get(&(tile.rank, tile.chunk)).copied().unwrap_or(tile.rank);
            workers.entry(tile.worker).or_default().push(Tile { times, owner });
        }
        ranks.into_iter().map(|(rank, workers)| summary(rank, workers, begin)).collect()
    }
}

/// The times when a tile began to wait, could be computed and was done; the rank of the rows that it needed last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Tile {
    times: [Duration; 3],
    owner: u32,
}

fn summary(rank: u32, workers: BTreeMap<u32, Vec<Tile>>, begin: Duration) -> RankSummary {
    let all = || workers.values().flatten().map(|tile| tile.times);
    let end = all().map(|times| times[2]).max().unwrap_or_default();
    let first = all().map(|times| times[1]).min().unwrap_or_default();
    let through = workers.values().filter_map(|tiles| tiles.iter().map(|tile| tile.times[2]).max());
    let span = end.saturating_sub(begin);
    let mut it = RankSummary {
        rank,
        workers: workers.len() as u32,
        tiles: all().count() as u32,
        span,
        first_tile: first.saturating_sub(begin),
        tail: end.saturating_sub(through.min().unwrap_or(end)),
        ..RankSummary::default()
    };
    for mut tiles in workers.into_values() {
        tiles.sort();
        let not_begun = tiles.first().map_or(span, |tile| tile.times[0].saturating_sub(begin));
        it.not_begun = it.not_begun.saturating_add(not_begun);
        // A worker may look for a tile's rows while it computes another: what is computed counts once, and
        // hides the waits beneath it.
        let mut busy_until = begin;
        let mut waited_until = begin;
        for Tile { times: [wait, ready, done], owner } in tiles {
            let waits_from = wait.max(busy_until).max(waited_until);
            let waited = ready.saturating_sub(waits_from);
            it.waited = it.waited.saturating_add(waited);
            if waited > Duration::ZERO {
                let of_owner = it.waited_for.entry(owner).or_default();
                *of_owner = of_owner.saturating_add(waited);
            }
            waited_until = waited_until.max(ready);
            it.computed = it.computed.saturating_add(done.saturating_sub(ready.max(busy_until)));
            busy_until = busy_until.max(done);
        }
    }
    let had = span.checked_mul(it.workers).unwrap_or(Duration::MAX);
    let spent = [it.not_begun, it.computed, it.waited];
    it.idle = spent.into_iter().fold(had, Duration::saturating_sub);
    it
}

impl fmt::Display for RankSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankSummary { rank, workers, tiles, span, first_tile, tail, .. } = *self;
        let had = span.as_secs_f64() * f64::from(workers);
        let share = |time: Duration| 100.0 * time.as_secs_f64() / had.max(f64::MIN_POSITIVE);
        let s = if workers == 1 { "" } else { "s" };
        let [first_tile, tail] = [first_tile, tail].map(|time| match time.is_zero() {
            true => "0".to_owned(),
            false => format!("{time:.1?}"),
        });
        write!(
            f,
            "rank {rank}: {tiles} tiles on {workers} worker{s} in {span:.1?}; the first after {first_tile}, the tail {tail}\n  \
             {:.0} % not begun yet, {:.0} % computing, {:.0} % waiting for rows",
            share(self.not_begun),
            share(self.computed),
            share(self.waited),
        )?;
        // Most of hundreds of ranks cause too short a wait to be listed.
        let listed = self.waited_for.iter().filter(|(_, time)| share(**time) > 0.5);
        let causes: Vec<_> = listed
            .map(|(owner, time)| match *owner == rank {
                true => format!("{:.0} % start-up", share(*time)),
                false => format!("{:.0} % rank {owner}", share(*time)),
            })
            .collect();
        if !causes.is_empty() {
            write!(f, " ({})", causes.join(", "))?;
        }
        write!(f, ", {:.0} % idle", share(self.idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tile;
    use crate::trace::{TileEvent, TransferEvent};

    fn timeline(tiles: &[(u32, [u64; 3])]) -> Timeline {
        let us = Duration::from_micros;
        let event = |&(worker, times): &(u32, [u64; 3])| TileEvent {
            rank: 4,
            worker,
            epoch: 1,
            product: 0,
            tile: Tile { m: 0, n: 0 },
            chunk: 0,
            wait_begin: us(times[0]),
            ready: us(times[1]),
            done: us(times[2]),
        };
        Timeline { tiles: tiles.iter().map(event).collect(), ..Timeline::default() }
    }

    #[test]
    fn times_add_up() {
        let us = Duration::from_micros;
        // One worker waits 5, computes 10, and waits for the next beneath it; the other computes 7 and is through.
        let all = timeline(&[(0, [10, 15, 25]), (0, [20, 30, 40]), (7, [10, 10, 17])]).summaries();
        let it = &all[0];
        assert_eq!((it.rank, it.workers, it.tiles, it.span), (4, 2, 3, us(30)));
        assert_eq!((it.first_tile, it.tail), (us(0), us(23)));
        assert_eq!((it.computed, it.waited, it.idle), (us(27), us(10), us(23)));
        let text = it.to_string();
        let expected =
            "0 % not begun yet, 45 % computing, 17 % waiting for rows (17 % start-up), 38 % idle";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn ranks_that_caused_a_short_wait_are_not_listed() {
        let us = Duration::from_micros;
        let told = |waited: &[(u32, u64)]| {
            let waited_for = waited.iter().map(|&(owner, time)| (owner, us(time))).collect();
            let rank = RankSummary { workers: 1, span: us(1000), waited_for, ..Default::default() };
            let text = rank.to_string();
            let (_, causes) = text.split_once("waiting for rows").unwrap();
            causes.split_once(", 0 % idle").unwrap().0.to_owned()
        };
        assert_eq!(told(&[(0, 40), (1, 3), (7, 52)]), " (4 % start-up, 5 % rank 7)");
        assert_eq!(told(&[(0, 0), (1, 4)]), "");
    }

    #[test]
    fn who_begins_late_shows_it() {
        let us = Duration::from_micros;
        // Another rank's push begins the step, at 2; the workers look for rows at 7 and at 12.
        let mut late = timeline(&[(0, [7, 8, 22]), (1, [12, 12, 20])]);
        let (begin, signalled) = (us(2), us(3));
        let sent = TransferEvent { from: 0, to: 1, epoch: 1, chunk: 0, begin, signalled };
        late.transfers.push(sent);
        let it = &late.summaries()[0];
        assert_eq!((it.span, it.first_tile, it.not_begun), (us(20), us(6), us(5 + 10)));
        assert_eq!((it.computed, it.waited, it.idle), (us(14 + 8), us(1), us(2)));
        assert!(it.to_string().contains("38 % not begun yet, 55 % computing"), "{it}");
    }

    #[test]
    fn the_longest_times_overflow_nothing() {
        let mut all = timeline(&[(0, [0, 1, 2]), (0, [2, 3, 4]), (1, [0, 0, 1]), (2, [0, 0, 1])]);
        for tile in &mut all.tiles {
            (tile.ready, tile.done) = (Duration::MAX / 2, Duration::MAX);
        }
        let it = &all.summaries()[0];
        assert_eq!(
            (it.span, it.computed, it.waited),
            (Duration::MAX, Duration::MAX, Duration::MAX)
        );
        assert!(it.to_string().contains("0 % idle"), "{it}");
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(Timeline::default().summaries().is_empty());
    }
}
