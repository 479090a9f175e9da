//! Records of ranks with different clocks, merged on one clock.
//!
//! Invariant: on the common clock no rank uses rows before they were signalled, if such a clock exists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Timeline, TransferEvent};

impl Timeline {
    /// Merges the records of ranks on rank 0's clock. Each record has its own clock, which begins with the step.
    ///
    /// A rank uses rows only after they were signalled, and the others use this rank's rows only after theirs were. These
    /// two bounds limit the offset of its clock; the middle is taken. Without a transfer between two ranks, their steps
    /// begin at once.
    ///
    /// The recorded end of a push by a kernel is that of the whole kernel. A chunk that was used earlier was signalled by
    /// then. A chunk without a recorded transfer gets one that ends when its first tile could be computed. `from` maps a
    /// chunk to its rank.
    pub fn of_ranks(ranks: Vec<Timeline>, from: impl Fn(u32) -> u32) -> Timeline {
        let mut ranks: Vec<(i128, Timeline)> =
            ranks.into_iter().map(|timeline| (0, timeline)).collect();
        let first_uses: Vec<_> = ranks.iter().map(|(_, timeline)| timeline.first_uses()).collect();
        if let Some(((_, zero), others)) = ranks.split_first_mut() {
            for (rank, (offset, timeline)) in (1..).zip(others) {
                *offset = offset_of(rank, timeline, &first_uses, zero);
            }
        }
        let earliest =
            ranks.iter().map(|(offset, timeline)| offset + nanos(timeline.begin())).min();
        let (mut all, mut seen) = (Timeline::default(), Vec::new());
        for (rank, (offset, mut timeline)) in (0..).zip(ranks) {
            let by = offset - earliest.unwrap_or_default();
            timeline.shift(by);
            let uses = timeline.first_uses().into_iter();
            seen.extend(uses.map(|(chunk, signalled)| TransferEvent {
                from: from(chunk),
                to: rank,
                epoch: 0,
                chunk,
                begin: signalled,
                signalled,
            }));
            all.merge(timeline);
        }
        let first_use: BTreeMap<_, _> =
            seen.iter().map(|sent| ((sent.to, sent.chunk), sent.signalled)).collect();
        for sent in &mut all.transfers {
            if let Some(used) = first_use.get(&(sent.to, sent.chunk)) {
                sent.signalled = sent.signalled.min(*used).max(sent.begin);
            }
        }
        let known: BTreeSet<_> = all.transfers.iter().map(|sent| (sent.to, sent.chunk)).collect();
        // Own rows need no transfer.
        let is_news =
            |sent: &TransferEvent| sent.from != sent.to && !known.contains(&(sent.to, sent.chunk));
        all.transfers.extend(seen.into_iter().filter(is_news));
        all
    }

    /// The first use of each chunk.
    fn first_uses(&self) -> BTreeMap<u32, Duration> {
        let mut uses = BTreeMap::new();
        for tile in self.tiles.iter().filter(|tile| tile.chunk != u32::MAX) {
            let first = uses.entry(tile.chunk).or_insert(tile.ready);
            *first = tile.ready.min(*first);
        }
        uses
    }

    fn shift(&mut self, by: i128) {
        let shift = |time: &mut Duration| {
            let nanos = (nanos(*time) + by).clamp(0, u64::MAX.into());
            *time = Duration::from_nanos(nanos as u64);
        };
        for tile in &mut self.tiles {
            [&mut tile.wait_begin, &mut tile.ready, &mut tile.done].into_iter().for_each(shift);
        }
        for sent in &mut self.transfers {
            [&mut sent.begin, &mut sent.signalled].into_iter().for_each(shift);
        }
        for added in &mut self.additions {
            [&mut added.begin, &mut added.done].into_iter().for_each(shift);
        }
    }
}

/// The offset from the clock of `rank` to that of rank 0.
fn offset_of(
    rank: u32,
    timeline: &Timeline,
    first_uses: &[BTreeMap<u32, Duration>],
    zero: &Timeline,
) -> i128 {
    let bound = |sender: &Timeline, to: u32| {
        let sent = sender.transfers.iter().filter(move |sent| sent.to == to);
        let uses = &first_uses[to as usize];
        sent.filter_map(|sent| Some(nanos(*uses.get(&sent.chunk)?) - nanos(sent.signalled))).min()
    };
    // Rank 0 uses this rank's rows after their signal, and this rank uses rank 0's.
    let most = bound(timeline, 0);
    let least = bound(zero, rank).map(|late| -late);
    match (least, most) {
        (Some(least), Some(most)) => (least + most) / 2,
        (one, other) => one.into_iter().chain(other).next().unwrap_or_default(),
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tile;
    use crate::trace::{AdditionEvent, TileEvent};

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn tile(rank: u32, chunk: u32, times: [u64; 3]) -> TileEvent {
        let [wait_begin, ready, done] = times.map(us);
        let (epoch, product, worker) = (0, 0, 0);
        let tile = Tile { m: chunk, n: 0 };
        TileEvent { rank, worker, epoch, product, tile, chunk, wait_begin, ready, done }
    }

    fn sent(from: u32, chunk: u32, begin: u64, signalled: u64) -> TransferEvent {
        let (begin, signalled) = (us(begin), us(signalled));
        TransferEvent { from, to: 1 - from, epoch: 0, chunk, begin, signalled }
    }

    fn added(rank: u32, begin: u64, done: u64) -> AdditionEvent {
        AdditionEvent { rank, epoch: 0, chunk: rank, begin: us(begin), done: us(done) }
    }

    #[test]
    fn clocks_are_set_so_that_rows_are_used_behind_their_signals() {
        // Rank 1 began 30 µs after rank 0; both see the other's rows 2 µs after they were signalled.
        let zero = Timeline {
            tiles: vec![tile(0, 0, [0, 0, 40]), tile(0, 1, [40, 82, 100])],
            transfers: vec![sent(0, 0, 10, 50)],
            ..Timeline::default()
        };
        let one = Timeline {
            tiles: vec![tile(1, 1, [0, 0, 20]), tile(1, 0, [20, 22, 60])],
            transfers: vec![sent(1, 1, 5, 50)],
            additions: vec![added(1, 60, 70)],
        };
        let all = Timeline::of_ranks(vec![zero, one], |chunk| chunk);
        assert_eq!(all.transfers, [sent(0, 0, 10, 50), sent(1, 1, 35, 80)]);
        assert_eq!(all.tiles[3].ready, us(52));
        assert_eq!(all.additions, [added(1, 90, 100)]);
    }

    #[test]
    fn tiles_that_wait_for_nothing_are_no_sign_of_a_transfer() {
        let of = |rank| Timeline {
            tiles: vec![tile(rank, u32::MAX, [7, 7, 20])],
            ..Timeline::default()
        };
        let no_chunk = |chunk| panic!("nobody has chunk {chunk}");
        assert_eq!(Timeline::of_ranks(vec![of(0), of(1)], no_chunk).transfers, []);
    }

    #[test]
    fn what_is_used_was_signalled_whenever_that_was_noticed() {
        // Kernels push from 0 on; that they are through is noticed at 12, and the rows are used from 9 and 10 on.
        let of = |rank: u32, used| Timeline {
            tiles: vec![tile(rank, rank, [0, 1, 8]), tile(rank, 1 - rank, [2, used, 20])],
            transfers: vec![sent(rank, rank, 0, 12)],
            ..Timeline::default()
        };
        let all = Timeline::of_ranks(vec![of(0, 9), of(1, 10)], |chunk| chunk);
        // They seem to be used 3 and 2 µs too early: the clocks are set so that it is as much on both.
        let half = Duration::from_nanos(500);
        let times = |sent: &TransferEvent| (sent.begin, sent.signalled);
        assert_eq!(times(&all.transfers[0]), (half, us(10)));
        assert_eq!(times(&all.transfers[1]), (us(0), us(9) + half));
    }

    #[test]
    fn without_transfers_steps_begin_at_once_and_chunks_come_when_they_are_used() {
        let of = |rank, other| Timeline {
            tiles: vec![tile(rank, rank, [7, 8, 20]), tile(rank, other, [20, 25, 60])],
            ..Timeline::default()
        };
        let all = Timeline::of_ranks(vec![of(0, 1), of(1, 0)], |chunk| chunk);
        assert_eq!(all.begin(), Duration::ZERO);
        assert_eq!(all.transfers, [sent(1, 1, 18, 18), sent(0, 0, 18, 18)]);
        assert_eq!(Timeline::of_ranks(Vec::new(), |chunk| chunk), Timeline::default());
    }
}
