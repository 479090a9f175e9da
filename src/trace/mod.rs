//! Timelines: the record of one or more steps, as executors write it.
//!
//! Pure data, the same for every executor: each tile with the chunk it waited for, each transfer, and in a reduction each
//! addition, all on one clock.
//! Invariant: times are durations since the group's common origin, so records of several ranks can be merged. `text` and
//! `svg` draw a timeline, `summary` adds up, `ranks` merges records of different clocks.

mod ranks;
mod summary;
mod svg;
mod text;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use summary::RankSummary;

use crate::plan::Tile;

/// The life of one tile.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let mut exercise = Exercise::new(&problem, PlanOptions::default(), 1);
/// exercise.group.record = true;
/// let timeline = exercise.run(&|| false)?.timeline;
/// let waited = |tile: &overlap_gemm::trace::TileEvent| tile.ready - tile.wait_begin;
/// println!("{:?}", timeline.tiles.iter().map(waited).max());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TileEvent {
    /// The rank that computed it.
    pub rank: u32,
    /// The worker of the rank (a thread, an SM).
    pub worker: u32,
    /// The epoch of the step.
    pub epoch: u32,
    /// The product, of those that share the gather.
    pub product: u32,
    /// The tile.
    pub tile: Tile,
    /// The chunk it needed last; `u32::MAX` where it waited for none.
    pub chunk: u32,
    /// When the worker began to wait for its chunks.
    pub wait_begin: Duration,
    /// When all of them had arrived.
    pub ready: Duration,
    /// When the tile was written.
    pub done: Duration,
}

/// One chunk on its way to one rank.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let mut exercise = Exercise::new(&problem, PlanOptions::default(), 1);
/// exercise.group.record = true;
/// let timeline = exercise.run(&|| false)?.timeline;
/// let took = |sent: &overlap_gemm::trace::TransferEvent| sent.signalled - sent.begin;
/// println!("{:?}", timeline.transfers.iter().map(took).max());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferEvent {
    /// The rank that sent it.
    pub from: u32,
    /// The rank that received it; equal to `from` for the copy into the own slot.
    pub to: u32,
    /// The epoch of the step.
    pub epoch: u32,
    /// The chunk.
    pub chunk: u32,
    /// When the copy began.
    pub begin: Duration,
    /// When its signal was posted.
    pub signalled: Duration,
}

/// One chunk of a reduction on the rank that adds up all ranks' sums of it, or that stores a total which has arrived.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{Operation, PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let options = PlanOptions { operation: Operation::GemmReduceScatter, ..PlanOptions::new() };
/// let mut exercise = Exercise::new(&problem, options, 1);
/// exercise.group.record = true;
/// let timeline = exercise.run(&|| false)?.timeline;
/// assert!(timeline.additions.iter().all(|added| added.begin <= added.done));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdditionEvent {
    /// The rank that added, or stored.
    pub rank: u32,
    /// The epoch of the step.
    pub epoch: u32,
    /// The chunk.
    pub chunk: u32,
    /// When all that it needs had arrived.
    pub begin: Duration,
    /// When its rows of D were written.
    pub done: Duration,
}

/// The record of one or more ranks.
///
/// ```
/// use overlap_gemm::exercise::Exercise;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let mut exercise = Exercise::new(&problem, PlanOptions::default(), 1);
/// exercise.group.record = true;
/// let timeline = exercise.run(&|| false)?.timeline;
/// println!("{}", timeline.to_text(72));
/// assert!(timeline.to_svg("one step").starts_with("<svg"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Tiles, in the order in which each worker finished them.
    pub tiles: Vec<TileEvent>,
    /// Transfers, in the order in which each sender sent them.
    pub transfers: Vec<TransferEvent>,
    /// Additions, in the order of each rank. A product that adds up has none: its tiles are written when that is done.
    #[serde(default)]
    pub additions: Vec<AdditionEvent>,
}

impl Timeline {
    /// Adds another record on the same clock.
    pub fn merge(&mut self, other: Timeline) {
        self.tiles.extend(other.tiles);
        self.transfers.extend(other.transfers);
        self.additions.extend(other.additions);
    }

    /// Only the events of one epoch.
    pub fn of_epoch(&self, epoch: u32) -> Timeline {
        Timeline {
            tiles: self.tiles.iter().filter(|tile| tile.epoch == epoch).copied().collect(),
            transfers: self.transfers.iter().filter(|sent| sent.epoch == epoch).copied().collect(),
            additions: self
                .additions
                .iter()
                .filter(|added| added.epoch == epoch)
                .copied()
                .collect(),
        }
    }

    /// The first instant of any event.
    pub fn begin(&self) -> Duration {
        let tiles = self.tiles.iter().map(|tile| tile.wait_begin);
        let begins = tiles.chain(self.transfers.iter().map(|sent| sent.begin));
        begins.chain(self.additions.iter().map(|added| added.begin)).min().unwrap_or_default()
    }

    /// From the first event to the last.
    pub fn span(&self) -> Duration {
        self.end().saturating_sub(self.begin())
    }

    /// The last instant of any event.
    pub fn end(&self) -> Duration {
        let ends = self.tiles.iter().map(|tile| tile.done);
        let ends = ends.chain(self.transfers.iter().map(|sent| sent.signalled));
        ends.chain(self.additions.iter().map(|added| added.done)).max().unwrap_or_default()
    }
}
