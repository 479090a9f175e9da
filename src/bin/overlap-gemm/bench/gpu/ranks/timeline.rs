//! One step of the fused product as a picture: every tile of every rank, and how long it waited.
//!
//! Invariant: the step is one of many in a steady loop, neither the first nor the last; each rank's clock begins
//! with its own first tile, since GPUs have no clock in common.

use std::path::Path;
use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::cuda::TileRecord;
use overlap_gemm::group::Group;
use overlap_gemm::plan::Plan;
use overlap_gemm::trace::{TileEvent, Timeline, TransferEvent};

use super::LIMIT;
use crate::exit::Failure;

/// The records of all ranks as one timeline, on every rank.
pub fn merge(group: &Group, plan: &Plan, records: &[TileRecord]) -> Result<Timeline> {
    let own: Vec<u8> = records.iter().flat_map(to_bytes).collect();
    let all = group.all_gather("the records of tiles", &own, LIMIT)?;
    let mut timeline = Timeline::default();
    for (rank, bytes) in (0..).zip(all.iter()) {
        timeline.merge(of_rank(rank, plan, bytes));
    }
    Ok(timeline)
}

/// What one rank did. A chunk has come when the first tile that needs it can be loaded: no earlier sign of it is kept.
fn of_rank(rank: u32, plan: &Plan, bytes: &[u8]) -> Timeline {
    let records: Vec<TileRecord> = bytes.chunks_exact(BYTES).map(from_bytes).collect();
    // Slices of K that only add to others' sums have no end of their own.
    let whole: Vec<_> = records.iter().filter(|record| record.done != u64::MAX).collect();
    let zero = records.iter().map(|record| record.wait_begin).min().unwrap_or_default();
    let at = |time: u64| Duration::from_nanos(time.saturating_sub(zero));
    let tile = |record: &&TileRecord| TileEvent {
        rank,
        worker: record.sm,
        epoch: 0,
        product: 0,
        tile: record.tile(),
        chunk: record.chunk,
        wait_begin: at(record.wait_begin),
        ready: at(record.ready),
        done: at(record.done),
    };
    let seen = |chunk: u32| {
        let tiles = whole.iter().filter(|record| record.chunk == chunk);
        let signalled = at(tiles.map(|record| record.ready).min()?);
        let (from, begin) = (plan.chunks().rank_of(chunk), Duration::ZERO);
        Some(TransferEvent { from, to: rank, epoch: 0, chunk, begin, signalled })
    };
    Timeline {
        tiles: whole.iter().map(tile).collect(),
        transfers: (0..plan.chunks().len()).filter_map(seen).collect(),
    }
}

/// Writes the picture of a case into the folder, which is made if need be.
pub fn draw(folder: &Path, case: &str, timeline: &Timeline) -> Result<(), Failure> {
    let name: String =
        case.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = folder.join(format!("{name}.svg"));
    let title =
        format!("{case}: one step, a row an SM; each rank's clock begins with its first tile");
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, timeline.to_svg(&title)));
    written.map_err(|source| Failure::Write { target: path.display().to_string(), source })
}

/// A record as ranks send it: four times and numbers of 64 bits, four of 32.
const BYTES: usize = 4 * 8 + 4 * 4;

fn to_bytes(record: &TileRecord) -> Vec<u8> {
    let TileRecord { wait_begin, ready, done, index, sm, tile_m, tile_n, chunk } = *record;
    let long = [wait_begin, ready, done, index].map(u64::to_le_bytes);
    let words = [sm, tile_m, tile_n, chunk].map(u32::to_le_bytes);
    [long.concat(), words.concat()].concat()
}

fn from_bytes(bytes: &[u8]) -> TileRecord {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[32 + 4 * at + i]));
    TileRecord {
        wait_begin: long(0),
        ready: long(1),
        done: long(2),
        index: long(3),
        sm: word(0),
        tile_m: word(1),
        tile_n: word(2),
        chunk: word(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overlap_gemm::plan::{PlanOptions, Problem, Tile};

    #[test]
    fn records_travel_and_become_tiles_and_arrivals() {
        let problem = Problem::builder(256, 128, 64).ranks(2).build().unwrap();
        let options = PlanOptions { chunks_per_shard: Some(1), ..PlanOptions::default() };
        let plan = Plan::new(&problem, options).unwrap();
        let bytes = |times: [u64; 3], words: [u32; 4]| {
            let ([wait_begin, ready, done], [sm, tile_m, tile_n, chunk]) = (times, words);
            let index = 5;
            let record = TileRecord { wait_begin, ready, done, index, sm, tile_m, tile_n, chunk };
            assert_eq!(from_bytes(&to_bytes(&record)), record);
            to_bytes(&record)
        };
        let all = [
            bytes([1000, 1000, 1500], [7, 0, 0, 0]),
            bytes([1010, 1400, 1900], [9, 1, 0, 1]),
            bytes([1020, 1300, u64::MAX], [9, 1, 0, 1]),
        ]
        .concat();
        let timeline = of_rank(0, &plan, &all);
        assert_eq!(timeline.tiles.len(), 2, "a slice without an end is none");
        let tile = timeline.tiles[1];
        assert_eq!((tile.worker, tile.chunk, tile.tile), (9, 1, Tile { m: 1, n: 0 }));
        assert_eq!(tile.wait_begin, Duration::from_nanos(10));
        let from: Vec<_> = timeline.transfers.iter().map(|sent| (sent.from, sent.chunk)).collect();
        assert_eq!(from, [(0, 0), (1, 1)]);
        assert_eq!(timeline.transfers[1].signalled, Duration::from_nanos(400));
    }
}
