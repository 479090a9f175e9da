//! A timeline as text: chunks arriving and tiles running, a block a rank.
//!
//! Invariant: all lanes of a block share one time axis. A column shows the last transfer that ended in it, or the tile or the
//! addition that ran in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::Timeline;

const RUNS: char = '█';
const WAITS: char = '·';
const ADDS: char = '+';
const IDLE: char = ' ';

/// The meaning of the marks, and of those of a reduction.
const LEGEND: &str = "chunks: the rank a chunk came from, where it arrived; \
                      workers: █ computes a tile, · waits for a chunk";
const ADDITIONS: &str = "; adds up: + adds all ranks' sums of a chunk, or stores a total";

impl Timeline {
    /// The timeline in `columns` columns, at least 16.
    ///
    /// ```
    /// use overlap_gemm::plan::Tile;
    /// use overlap_gemm::trace::{TileEvent, Timeline, TransferEvent};
    /// use std::time::Duration;
    ///
    /// let ms = Duration::from_millis;
    /// let timeline = Timeline {
    ///     tiles: vec![TileEvent {
    ///         rank: 0, worker: 0, epoch: 1, product: 0, tile: Tile { m: 0, n: 0 }, chunk: 3,
    ///         wait_begin: ms(0), ready: ms(8), done: ms(16),
    ///     }],
    ///     transfers: vec![TransferEvent {
    ///         from: 1, to: 0, epoch: 1, chunk: 3, begin: ms(0), signalled: ms(8),
    ///     }],
    ///     ..Timeline::default()
    /// };
    /// let text = timeline.to_text(16);
    /// assert!(text.contains("│        1       │"), "{text}");
    /// assert!(text.contains("│········████████│"), "{text}");
    /// ```
    pub fn to_text(&self, columns: usize) -> String {
        let columns = columns.max(16);
        let begin = self.begin();
        let span = self.span().max(Duration::from_nanos(1));
        let column = |time: Duration| {
            let fraction = time.saturating_sub(begin).as_secs_f64() / span.as_secs_f64();
            ((fraction * columns as f64) as usize).min(columns - 1)
        };
        let mut blocks: BTreeMap<u32, Block> = BTreeMap::new();
        for sent in &self.transfers {
            let block = blocks.entry(sent.to).or_insert_with(|| Block::new(columns));
            block.chunks[column(sent.signalled)] = rank_mark(sent.from);
        }
        for tile in &self.tiles {
            let block = blocks.entry(tile.rank).or_insert_with(|| Block::new(columns));
            let lane = block.workers.entry(tile.worker).or_insert_with(|| vec![IDLE; columns]);
            let wait = column(tile.wait_begin);
            // A file may have times in another order.
            let run = column(tile.ready).max(wait);
            let end = column(tile.done).max(run);
            lane[wait..run].iter_mut().filter(|mark| **mark == IDLE).for_each(|mark| *mark = WAITS);
            lane[run..=end].fill(RUNS);
        }
        for added in &self.additions {
            let block = blocks.entry(added.rank).or_insert_with(|| Block::new(columns));
            let lane = block.additions.get_or_insert_with(|| vec![IDLE; columns]);
            let begin = column(added.begin);
            lane[begin..=column(added.done).max(begin)].fill(ADDS);
        }
        let mut text = String::new();
        let axis = format!("{:.3} ms", span.as_secs_f64() * 1e3);
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<9} {:<7}  0{axis:>columns$}", "", "", columns = columns);
        for (rank, block) in blocks {
            let name = format!("rank {rank}");
            lane(&mut text, &name, "chunks", &block.chunks);
            for (worker, marks) in block.workers {
                lane(&mut text, "", &format!("worker{worker}"), &marks);
            }
            if let Some(marks) = block.additions {
                lane(&mut text, "", "adds up", &marks);
            }
        }
        text.push_str(LEGEND);
        if !self.additions.is_empty() {
            text.push_str(ADDITIONS);
        }
        text.push('\n');
        text
    }
}

/// One rank's lanes.
struct Block {
    chunks: Vec<char>,
    workers: BTreeMap<u32, Vec<char>>,
    /// Nothing where a rank adds nothing up.
    additions: Option<Vec<char>>,
}

impl Block {
    fn new(columns: usize) -> Self {
        Block { chunks: vec![IDLE; columns], workers: BTreeMap::new(), additions: None }
    }
}

fn lane(text: &mut String, rank: &str, name: &str, marks: &[char]) {
    let marks: String = marks.iter().collect();
    let _ = writeln!(text, "{rank:<9} {name:<8} │{marks}│");
}

/// One character a rank: 0 to 9, a to z, then `+`.
fn rank_mark(rank: u32) -> char {
    char::from_digit(rank, 36).unwrap_or('+')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{AdditionEvent, TileEvent};

    #[test]
    fn an_empty_timeline_is_an_axis() {
        assert!(Timeline::default().to_text(0).starts_with("  "));
    }

    #[test]
    fn additions_have_a_lane_behind_the_workers() {
        let ms = Duration::from_millis;
        let added = |begin, done| AdditionEvent {
            rank: 1,
            epoch: 0,
            chunk: 0,
            begin: ms(begin),
            done: ms(done),
        };
        let tile = TileEvent { rank: 1, done: ms(8), ..TileEvent::default() };
        let (tiles, additions) = (vec![tile], vec![added(9, 12), added(15, 16)]);
        let text = Timeline { tiles, additions, ..Timeline::default() }.to_text(16);
        let lanes: Vec<_> = text.lines().filter(|line| line.contains('│')).collect();
        assert!(lanes[2].contains("adds up  │         ++++  +│"), "{text}");
        assert!(text.ends_with("or stores a total\n"), "{text}");
    }

    #[test]
    fn a_tile_whose_times_are_in_no_order_is_drawn() {
        let [early, late] = [0, 1].map(Duration::from_secs);
        let event =
            |wait_begin, ready, done| TileEvent { wait_begin, ready, done, ..TileEvent::default() };
        let tiles = vec![event(early, late, early), event(late, early, early)];
        assert!(Timeline { tiles, ..Timeline::default() }.to_text(16).contains(RUNS));
    }
}
