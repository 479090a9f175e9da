//! What happened in one step of an all-gather + GEMM on one rank: every tile, and every push.
//!
//! What belongs here: a step that records, keeping it, and turning it into a [`Timeline`]. Invariants: a recorded step is
//! [`AllGatherGemm::enqueue_raw`]'s, with nothing left out and nothing in another order; all times are on one clock, this GPU's
//! global timer, from the step's first event on; `trace::Timeline::of_ranks` lays the ranks side by side.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaStream};

use super::AllGatherGemm;
use crate::cuda::movers::marks::{Marks, event};
use crate::cuda::product::Product;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::cuda::sys::device::check_context;
use crate::cuda::sys::records::{TileRecord, TileRecords};
use crate::cuda::sys::stream_ops::{self, is_capturing};
use crate::error::{Error, Result};
use crate::plan::Strategy;
use crate::trace::{TileEvent, Timeline, TransferEvent};

/// Buffers and events for the record of one step, the last that was given it: [`AllGatherGemm::step_record`].
#[derive(Debug)]
pub struct StepRecord {
    rank: u32,
    /// One for each product.
    tiles: Vec<TileRecords>,
    marks: Marks,
    /// When the last product had ended.
    ended: CudaEvent,
    /// Whether a step was given it before.
    used: bool,
}

impl StepRecord {
    /// What happened, on this rank's clock. Waits for `stream`, the step's stream.
    ///
    /// CUDA events and the GPU's global timer have no common origin. So this takes the end of the last tile and the end of
    /// the last product, which comes about a microsecond later, for the same time. Every push by a kernel gets the times of
    /// the whole kernel. Its end may be some microseconds late, because another stream looks for it.
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

impl AllGatherGemm {
    /// Buffers and events for [`AllGatherGemm::enqueue_recorded`], for one step at a time.
    pub fn step_record(&self) -> Result<StepRecord> {
        let tiles = self.products.iter().map(Product::records).collect::<Result<_>>()?;
        let (rank, ended) = (self.gatherer.group.rank(), event(&self.gatherer.device)?);
        Ok(StepRecord { rank, tiles, marks: Marks::default(), ended, used: false })
    }

    /// [`AllGatherGemm::enqueue_raw`], keeping when each tile and each push by a copy engine or a kernel was: for looking at,
    /// as it costs the step some microseconds. Not in graphs, nor for [`Strategy::Pipelined`].
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue_raw`]; `record` lives until the step has ended.
    pub unsafe fn enqueue_recorded(
        &mut self,
        stream: &Arc<CudaStream>,
        shard: Shard<'_>,
        operands: &[RawOperands],
        record: &mut StepRecord,
    ) -> Result<()> {
        let refused = |what: &str, why: &str, remedy| {
            Err(Error::Unsupported { what: what.into(), why: why.into(), remedy })
        };
        if self.way().strategy == Strategy::Pipelined {
            let why = "each rank's rows are a product of their own";
            return refused("recording a pipelined step", why, "record a fused step");
        }
        if is_capturing(stream)? {
            let why = "a graph's steps have one record between them";
            return refused("recording a captured step", why, "enqueue it outside of a capture");
        }
        self.gatherer.check_stream(stream)?;
        self.check_record(record)?;
        // The first step finds it empty, and is spared the pause that a memset makes between two kernels.
        if std::mem::replace(&mut record.used, true) {
            record.tiles.iter_mut().try_for_each(|tiles| tiles.clear(stream))?;
        }
        let mut recorded = operands.to_vec();
        for (operands, tiles) in recorded.iter_mut().zip(&record.tiles) {
            operands.records = tiles.address(stream);
        }
        self.gatherer.mark_pushes();
        // SAFETY: the caller's promise, and records are as long as the products want them.
        let enqueued = unsafe { self.enqueue_raw(stream, shard, &recorded) };
        record.marks = self.gatherer.take_marks();
        enqueued?;
        stream_ops::record(&record.ended, stream)
    }

    /// An error if the tiles of a step have no room in the record: the device would write beyond it.
    fn check_record(&self, record: &StepRecord) -> Result<()> {
        let room: Vec<_> = record.tiles.iter().map(|tiles| tiles.len() as u64).collect();
        let needed: Vec<_> = self.products.iter().map(Product::record_count).collect();
        if room != needed {
            let (what, remedy) = ("the room of the record", "give one that step_record has made");
            let (got, expected) = (format!("{room:?} tiles"), format!("{needed:?}"));
            return Err(Error::mismatch(what, got, expected, remedy));
        }
        let context = self.gatherer.device.context();
        let mut tiles = record.tiles.iter();
        tiles.try_for_each(|tiles| check_context("the record", tiles.memory.context(), context))
    }
}
