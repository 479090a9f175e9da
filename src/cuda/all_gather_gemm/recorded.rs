//! Steps of an all-gather + GEMM that keep when each tile and each push was.
//!
//! Invariant: a recorded step is [`AllGatherGemm::enqueue_raw`]'s, with nothing left out and nothing in another order.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::AllGatherGemm;
use crate::cuda::movers::step_record::StepRecord;
use crate::cuda::product::Product;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::error::{Error, Result};
use crate::plan::Strategy;

impl AllGatherGemm {
    /// Buffers and events for [`AllGatherGemm::enqueue_recorded`], for one step at a time.
    pub fn step_record(&self) -> Result<StepRecord> {
        let lengths = self.products.iter().map(Product::record_count);
        StepRecord::new(&self.gatherer.device, self.gatherer.group.rank(), lengths)
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
        if self.way().strategy == Strategy::Pipelined {
            return Err(Error::Unsupported {
                what: "recording a pipelined step".into(),
                why: "each rank's rows are a product of their own".into(),
                remedy: "record a fused step",
            });
        }
        self.gatherer.check_stream(stream)?;
        record.begin(stream, self.products.iter().map(Product::record_count))?;
        let mut recorded = operands.to_vec();
        for operands in &mut recorded {
            operands.records = record.product(stream, None);
        }
        self.gatherer.mark_step();
        // SAFETY: the caller's promise, and records are as long as the products want them.
        let enqueued = unsafe { self.enqueue_raw(stream, shard, &recorded) };
        record.marks = self.gatherer.take_marks();
        enqueued?;
        record.end_product(stream)
    }
}
