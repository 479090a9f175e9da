//! What happened in one step of an all-gather + GEMM on one rank: every tile, and every push.
//!
//! What belongs here: keeping it, and turning it into a [`Timeline`]. Invariant: all times are on one clock, this GPU's
//! global timer, from the step's first event on; `trace::Timeline::of_ranks` lays the ranks side by side.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaStream};

use crate::cuda::movers::marks::{Marks, event, record};
use crate::cuda::sys::call::TileRecord;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::records::TileRecords;
use crate::error::{Error, Result};
use crate::trace::{TileEvent, Timeline, TransferEvent};

/// Buffers and events for the record of one step, the last that was given it: [`AllGatherGemm::step_record`](crate::cuda::AllGatherGemm::step_record).
#[derive(Debug)]
pub struct StepRecord {
    rank: u32,
    /// One for each product.
    pub(crate) tiles: Vec<TileRecords>,
    pub(crate) marks: Marks,
    /// When the last product had ended.
    ended: CudaEvent,
    /// Whether a step was given it before.
    used: bool,
}

impl StepRecord {
    pub(crate) fn new(device: &Device, rank: u32, tiles: Vec<TileRecords>) -> Result<Self> {
        Ok(StepRecord { rank, tiles, marks: Marks::default(), ended: event(device)?, used: false })
    }

    /// Before a step, on its `stream`: forgets the tiles of the one before, which may have had more of them.
    pub(crate) fn begin(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        // The first finds it empty, and is spared the pause that a memset makes between two kernels.
        if std::mem::replace(&mut self.used, true) {
            self.tiles.iter_mut().try_for_each(|tiles| tiles.clear(stream))?;
        }
        Ok(())
    }

    /// Behind the last product on `stream`.
    pub(crate) fn end(&self, stream: &Arc<CudaStream>) -> Result<()> {
        record(&self.ended, stream)
    }

    /// What happened, on this rank's clock; waits for `stream`, on which the step was.
    ///
    /// Events and the GPU's timer have no origin in common: the end of the last tile and the end of the last
    /// product, which comes about a microsecond later, are taken for one. Pushes by a kernel have the time of the whole
    /// kernel, each of them, up to some microseconds more than it took: another stream looks for its end.
    pub fn timeline(&self, stream: &Arc<CudaStream>) -> Result<Timeline> {
        let products = self.tiles.iter().map(|tiles| tiles.read(stream));
        let products: Vec<Vec<TileRecord>> = products.collect::<Result<_>>()?;
        let ends = products.iter().flatten().filter_map(end_of);
        let Some(end) = ends.max() else {
            let remedy = "hand the record to a step that computes tiles";
            return Err(Error::mismatch("the number of recorded tiles", 0, "at least 1", remedy));
        };
        let before = |ms: f64| end.saturating_sub((1e6 * ms).max(0.0) as u64);
        let pushes: Vec<_> = (self.marks.before(&self.ended)?.into_iter())
            .map(|(mark, begin, signalled)| (mark, before(begin), before(signalled)))
            .collect();
        let waits = products.iter().flatten().map(|tile| tile.wait_begin);
        let zero = waits.chain(pushes.iter().map(|push| push.1)).min().unwrap_or(end);
        let at = |time: u64| Duration::from_nanos(time - zero);
        let mut timeline = Timeline::default();
        for (product, tiles) in (0..).zip(&products) {
            // Slices of K that only add to others' sums have no end of their own.
            timeline.tiles.extend(tiles.iter().filter_map(|tile| {
                Some(TileEvent {
                    rank: self.rank,
                    worker: tile.sm,
                    epoch: 0,
                    product,
                    tile: tile.tile(),
                    chunk: tile.chunk,
                    wait_begin: at(tile.wait_begin),
                    ready: at(tile.ready),
                    done: at(end_of(tile)?),
                })
            }));
        }
        timeline.transfers.extend(pushes.iter().map(|&(mark, begin, signalled)| TransferEvent {
            from: self.rank,
            to: mark.to,
            epoch: 0,
            chunk: mark.chunk,
            begin: at(begin),
            signalled: at(signalled),
        }));
        Ok(timeline)
    }
}

fn end_of(tile: &TileRecord) -> Option<u64> {
    (tile.done != u64::MAX).then_some(tile.done)
}
