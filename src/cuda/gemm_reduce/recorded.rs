//! Steps of a reduction that keep when each tile, each push and each addition was.
//!
//! What belongs here: such a step, and where its products keep their tiles. Invariant: a recorded step is
//! [`GemmReduce::enqueue_raw`]'s, with nothing left out and nothing in another order.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::{GemmReduce, Reduce};
use crate::cuda::movers::step_record::StepRecord;
use crate::cuda::product::Product;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::product::shard::Shard;
use crate::error::{Error, Result};
use crate::plan::Step;

impl<const ALL: bool> GemmReduce<ALL> {
    /// Buffers and events for [`GemmReduce::enqueue_recorded`], for one step at a time.
    pub fn step_record(&self) -> Result<StepRecord> {
        StepRecord::new(&self.gatherer.device, self.gatherer.group.rank(), self.record_lengths())
    }

    /// [`GemmReduce::enqueue_raw`] with the planned rows, keeping when each tile, each push and each addition was: for looking at, as
    /// it costs the step some microseconds. Not in graphs. What NCCL sends is within its additions.
    ///
    /// # Safety
    /// As for [`GemmReduce::enqueue_raw`]; `record` lives until the step has ended.
    pub unsafe fn enqueue_recorded(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
        record: &mut StepRecord,
    ) -> Result<()> {
        if a.rows.is_some_and(|rows| rows != self.planned().problem().rows_of_ranks()) {
            let remedy = "record a step with the planned rows";
            return Err(Error::mismatch(
                "the rows of a recorded step",
                "others",
                "as planned",
                remedy,
            ));
        }
        self.gatherer.check_stream(stream)?;
        record.begin(stream, self.record_lengths())?;
        self.gatherer.mark_step();
        // SAFETY: the caller's promise, and each of the step's products has a part of the record that is long enough.
        let enqueued = unsafe { self.enqueue_step(stream, a, operands, Some(record)) };
        record.marks = self.gatherer.take_marks();
        enqueued
    }

    /// As many tiles as any product has, for each one that the planned step enqueues.
    fn record_lengths(&self) -> Vec<u64> {
        let (plan, rank) = (self.planned(), self.gatherer.group.rank());
        let schedule = plan.schedule(rank);
        let parts = schedule.steps.iter().map(|(_, of)| match of {
            Step::Multiply { rows, .. } => plan.problem().parts(rows.clone()).count(),
            _ => 0,
        });
        let products = self.sums.iter().flat_map(|sum| sum.product.iter().chain(&sum.adding));
        let most = products.map(Product::record_count).max().unwrap_or(0);
        vec![most; parts.sum::<usize>() * self.sums.len()]
    }
}

impl<const ALL: bool, const GEMM: bool> Reduce<ALL, GEMM> {
    /// Enqueues a product of these rows, whose last chunk is `chunk`.
    ///
    /// # Safety
    /// As for [`Product::enqueue_rows`].
    pub(super) unsafe fn multiply(
        stream: &Arc<CudaStream>,
        product: &Product,
        operands: RawOperands,
        (rows, chunk): (u32, u32),
        record: &mut Option<&mut StepRecord>,
    ) -> Result<()> {
        let records = record.as_mut().map_or(0, |record| record.product(stream, Some(chunk)));
        // SAFETY: the caller's promise.
        unsafe {
            product.enqueue_rows(stream, &RawOperands { records, ..operands }, 0..rows, None)
        }?;
        record.as_ref().map_or(Ok(()), |record| record.end_product(stream))
    }
}
