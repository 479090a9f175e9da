//! What happened in one step on one rank: every tile, every push, and every addition.
//!
//! What belongs here: the buffers and events of one step, and turning them into a [`Timeline`]. Invariants: a recorded step does what
//! any other does, in the same order; all times are on one clock, this GPU's global timer, from the step's first event on;
//! `trace::Timeline::of_ranks` lays the ranks side by side.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaEvent, CudaStream};

use super::marks::{Marks, event};
use crate::cuda::sys::device::{Device, check_context};
use crate::cuda::sys::records::{TileRecord, TileRecords};
use crate::cuda::sys::stream_ops::{is_capturing, record};
use crate::error::{Error, Result};
use crate::trace::{AdditionEvent, TileEvent, Timeline, TransferEvent};

/// Buffers and events for the record of one step, the last that was given it: `step_record` of
/// [`AllGatherGemm`](crate::cuda::AllGatherGemm::step_record) and [`GemmReduce`](crate::cuda::GemmReduce::step_record) makes one.
///
/// ```no_run
/// use overlap_gemm::cuda::{AllGatherGemm, RawOperands, Shard};
/// # use overlap_gemm::cuda::cudarc::driver::CudaStream;
/// # use overlap_gemm::trace::Timeline;
/// # use std::sync::Arc;
///
/// /// # Safety
/// /// As for [`AllGatherGemm::enqueue_raw`].
/// unsafe fn recorded(
///     layer: &mut AllGatherGemm,
///     stream: &Arc<CudaStream>,
///     shard: Shard<'_>,
///     operands: RawOperands,
/// ) -> overlap_gemm::Result<Timeline> {
///     let mut record = layer.step_record()?;
///     // SAFETY: the caller's promise; the record lives until the stream is through.
///     unsafe { layer.enqueue_recorded(stream, shard, &[operands], &mut record) }?;
///     layer.synchronize(stream)?;
///     record.timeline(stream)
/// }
/// ```
#[derive(Debug)]
pub struct StepRecord {
    rank: u32,
    /// One for each product of a step.
    tiles: Vec<TileRecords>,
    /// Of each product that was enqueued: the chunk that its tiles belong to, unless they say that themselves.
    products: Vec<Option<u32>>,
    pub(crate) marks: Marks,
    /// When the last product had ended.
    ended: CudaEvent,
    /// Whether a step was given it before.
    used: bool,
}

impl StepRecord {
    /// With a part for each product of a step; a length counts the tiles and slices of K.
    pub(crate) fn new(
        device: &Device,
        rank: u32,
        lengths: impl IntoIterator<Item = u64>,
    ) -> Result<Self> {
        let tiles = lengths.into_iter().map(|length| TileRecords::new(device, length));
        let (tiles, ended) = (tiles.collect::<Result<_>>()?, event(device)?);
        let (products, marks) = (Vec::new(), Marks::default());
        Ok(StepRecord { rank, tiles, products, marks, ended, used: false })
    }

    /// Forgets an earlier step. An error if the record was made for products of other lengths: the device would write beyond it.
    pub(crate) fn begin(
        &mut self,
        stream: &Arc<CudaStream>,
        lengths: impl IntoIterator<Item = u64>,
    ) -> Result<()> {
        if is_capturing(stream)? {
            return Err(Error::Unsupported {
                what: "recording a captured step".into(),
                why: "a graph's steps have one record between them".into(),
                remedy: "enqueue it outside of a capture",
            });
        }
        let room: Vec<_> = self.tiles.iter().map(|tiles| tiles.len() as u64).collect();
        let needed: Vec<_> = lengths.into_iter().collect();
        if room != needed {
            let (what, remedy) = ("the room of the record", "give one that step_record has made");
            let (got, expected) = (format!("{room:?} tiles"), format!("{needed:?}"));
            return Err(Error::mismatch(what, got, expected, remedy));
        }
        for tiles in &self.tiles {
            check_context("the record", tiles.memory.context(), stream.context())?;
        }
        // The first step finds it empty, and is spared the pause that a memset makes between two kernels.
        if std::mem::replace(&mut self.used, true) {
            self.tiles.iter_mut().try_for_each(|tiles| tiles.clear(stream))?;
        }
        self.products.clear();
        Ok(())
    }

    /// Where the next product of the step keeps its tiles: of `chunk`, or of the chunks that they wait for.
    pub(crate) fn product(&mut self, stream: &CudaStream, chunk: Option<u32>) -> CUdeviceptr {
        self.products.push(chunk);
        // As many as `begin` was told of; one more would go unrecorded.
        self.tiles.get(self.products.len() - 1).map_or(0, |tiles| tiles.address(stream))
    }

    /// The product has been enqueued.
    pub(crate) fn end_product(&self, stream: &Arc<CudaStream>) -> Result<()> {
        record(&self.ended, stream)
    }

    /// What happened, on this rank's clock. Waits for `stream`, the step's stream.
    ///
    /// CUDA events and the GPU's global timer have no common origin. So this takes the end of the last tile and the end of
    /// the last product, which comes about a microsecond later, for the same time. Every push and every addition by a kernel gets the
    /// times of the whole kernel. The end of pushes may be some microseconds late, because another stream looks for it.
    pub fn timeline(&self, stream: &Arc<CudaStream>) -> Result<Timeline> {
        let products = self.tiles.iter().map(|tiles| tiles.read(stream));
        let products: Vec<Vec<TileRecord>> = products.collect::<Result<_>>()?;
        let ends = products.iter().flatten().filter_map(end_of);
        let Some(end) = ends.max() else {
            let remedy = "hand the record to a step that computes tiles";
            return Err(Error::mismatch("the number of recorded tiles", 0, "at least 1", remedy));
        };
        // What comes after the last product is a negative time before its end.
        let before = |ms: f64| end.saturating_add_signed((-1e6 * ms) as i64);
        let marks: Vec<_> = (self.marks.before(&self.ended)?.into_iter())
            .map(|(mark, begin, ended)| (mark, before(begin), before(ended)))
            .collect();
        let waits = products.iter().flatten().map(|tile| tile.wait_begin);
        let zero = waits.chain(marks.iter().map(|mark| mark.1)).min().unwrap_or(end);
        let at = |time: u64| Duration::from_nanos(time - zero);
        let (rank, epoch) = (self.rank, 0);
        let mut timeline = Timeline::default();
        for ((product, tiles), chunk) in (0..).zip(&products).zip(&self.products) {
            // Slices of K that only add to others' sums have no end of their own.
            timeline.tiles.extend(tiles.iter().filter_map(|tile| {
                Some(TileEvent {
                    rank,
                    worker: tile.sm,
                    epoch,
                    product,
                    tile: tile.tile(),
                    chunk: chunk.unwrap_or(tile.chunk),
                    wait_begin: at(tile.wait_begin),
                    ready: at(tile.ready),
                    done: at(end_of(tile)?),
                })
            }));
        }
        for (mark, begin, ended) in marks {
            let (chunk, begin, ended) = (mark.chunk, at(begin), at(ended));
            match mark.to {
                Some(to) => timeline.transfers.push(TransferEvent {
                    from: rank,
                    to,
                    epoch,
                    chunk,
                    begin,
                    signalled: ended,
                }),
                None => {
                    timeline.additions.push(AdditionEvent {
                        rank,
                        epoch,
                        chunk,
                        begin,
                        done: ended,
                    });
                }
            }
        }
        Ok(timeline)
    }
}

fn end_of(tile: &TileRecord) -> Option<u64> {
    (tile.done != u64::MAX).then_some(tile.done)
}
