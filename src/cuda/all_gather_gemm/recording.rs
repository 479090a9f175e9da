//! Recorded steps: the time of every tile and push.
//!
//! What belongs here: the buffers of the times, and a step that fills them. Invariant: a recorded step is
//! [`AllGatherGemm::enqueue`]'s, with nothing left out and nothing in another order.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::AllGatherGemm;
use super::step_record::StepRecord;
use crate::cuda::product::Product;
use crate::cuda::product::operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::cuda::sys::device::check_context;
use crate::cuda::sys::records::TileRecords;
use crate::cuda::sys::workspace::is_capturing;
use crate::error::{Error, Result};
use crate::plan::Strategy;

impl AllGatherGemm {
    /// A buffer for the records of one step's product: [`RawOperands::records`].
    pub fn records(&self, product: usize) -> Result<TileRecords> {
        match self.products.get(product) {
            Some(product) => product.records(),
            None => {
                let most = self.products.len() as u64 - 1;
                let remedy = "products count from 0";
                Err(Error::out_of_range("the product", product as u64, 0, most, remedy))
            }
        }
    }

    /// Buffers and events for [`AllGatherGemm::enqueue_recorded`], for one step at a time.
    pub fn step_record(&self) -> Result<StepRecord> {
        let tiles = self.products.iter().map(Product::records).collect::<Result<_>>()?;
        StepRecord::new(self.gatherer.device(), self.gatherer.group().rank(), tiles)
    }

    /// [`AllGatherGemm::enqueue`], keeping when each tile and each push by a copy engine or a kernel was: for looking at,
    /// as it costs the step some microseconds. Not in graphs, nor for [`Strategy::Pipelined`].
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue`]; `record` lives until the step has ended.
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
        self.check_record(record)?;
        record.begin(stream)?;
        let mut recorded = operands.to_vec();
        for (operands, tiles) in recorded.iter_mut().zip(&record.tiles) {
            operands.records = tiles.address(stream);
        }
        self.gatherer.mark_pushes();
        // SAFETY: the caller's promise, and records are as long as the products want them.
        let enqueued = unsafe { self.enqueue(stream, shard, &recorded) };
        record.marks = self.gatherer.take_marks();
        enqueued?;
        record.end(stream)
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
        let context = self.gatherer.device().context();
        let mut tiles = record.tiles.iter();
        tiles.try_for_each(|tiles| check_context("the record", tiles.context(), context))
    }
}
