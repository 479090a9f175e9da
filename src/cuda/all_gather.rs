//! All-gather between GPUs: every rank brings rows, and has all ranks' rows afterwards.
//!
//! What belongs here: the gather for its own sake, beside other work of the caller. With a
//! product of the rows it is [`AllGatherGemm`](crate::cuda::AllGatherGemm). Invariant: between
//! [`AllGather::start`] and [`AllGather::finish`] no rows are promised; after `finish`, in the order of its
//! stream, all are there, unless [`AllGather::check`] says otherwise. [`AllGather::enqueue`] is both, over `cudarc`'s memory.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::{choose, without_product};
use crate::cuda::movers::gather::joining::Purpose;
use crate::cuda::movers::gather::{Begun, Follower, Gatherer, OwnRows};
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::product::held::Guards;
use crate::cuda::product::matrix::{DeviceMatrix, DeviceMatrixMut, PlannedMatrix};
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{copy, refuse_capture};
use crate::element::Element;
use crate::element::ElementType::{Bf16, E4m3};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{MAX_DIMENSION, Operation, PlanOptions, Problem, check_aligned};

/// One rank's all-gather, planned once and enqueued many times. Collective: all ranks make the same calls.
///
/// ```no_run
/// use overlap_gemm::cuda::{AllGather, Device, CollectiveOptions};
/// use overlap_gemm::group::GroupOptions;
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let rows = vec![256; group.ranks() as usize];
/// let mut gather = AllGather::plan(&group, &device, &rows, 8192, &CollectiveOptions::default())?;
///
/// // 256 rows of 2048 numbers from each rank, into one matrix on all.
/// let shard = stream.clone_htod(&vec![1f32; 256 * 2048])?;
/// let mut all = stream.alloc_zeros::<f32>(rows.len() * 256 * 2048)?;
/// gather.enqueue(&stream, None, &shard, &mut all)?;
///
/// // Or without a copy on either side, beside other work.
/// let (slot, _bytes) = gather.local_shard(None)?;
/// // ... a kernel on `stream` writes 256 rows of 8192 bytes to `slot` ...
/// // SAFETY: the rows are in their slot.
/// unsafe { gather.start(&stream, None, None)? };
/// // ... any product that does not need them ...
/// let _rows_of_all = gather.finish(&stream)?;
/// // ... work that needs them ...
/// gather.synchronize(&stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AllGather {
    gatherer: Gatherer,
    /// The step that is under way, and its stream.
    open: Option<(Begun, Arc<CudaStream>)>,
}

impl AllGather {
    /// Collective, with equal arguments. Blocks until all ranks have planned. Rank r has `rows[r]` rows of `row_bytes` bytes, a
    /// multiple of 16. A step may divide the rows otherwise among the ranks, but may not have more in total.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        rows: &[u32],
        row_bytes: u64,
        options: &CollectiveOptions,
    ) -> Result<Self> {
        crate::cuda::sys::ffi::kernels_built()?;
        // Bytes are elements of one byte to the plan; nothing is multiplied.
        let m = rows.iter().map(|rows| u64::from(*rows)).sum();
        let problem = Problem::builder(m, 16, row_bytes).shards(rows).elements(E4m3, E4m3, Bf16);
        let obstacle = obstacle(group, device, options.timeouts.first)?;
        let refuse = |error| Gatherer::refuse(group, options, error);
        let options = &without_product(options).map_err(refuse)?;
        check_row_bytes(row_bytes).map_err(refuse)?;
        let (problem, tiling) = (problem.build().map_err(refuse)?, PlanOptions::default().tiling);
        let (way, _) = choose(options, &problem, obstacle.as_deref()).map_err(refuse)?;
        let (kind, operation) = ("all-gather", Operation::AllGather);
        let purpose = Purpose { kind, tiling, operation, way, sums: None };
        let mut gatherer = Gatherer::join(group, device, &problem, &purpose, options)?;
        gatherer.note_products(0);
        Ok(AllGather { gatherer, open: None })
    }

    /// The address and the size in bytes of the slot for this rank's rows of the next step. Steps alternate between two slots: ask
    /// before each step, with its `rows`. A kernel that writes there must follow the latest step in the order of that step's stream.
    pub fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<(CUdeviceptr, u64)> {
        self.gatherer.local_shard(rows)
    }

    /// Enqueues a whole step on `stream` and returns: gathers all ranks' rows and copies them to `all`, in rank order. `shard` has
    /// this rank's rows. `rows`: as in [`AllGather::start`]. Both matrices may have as many rows as planned, so buffers for the
    /// largest step serve every step. A failed step leaves `all` undefined: [`AllGather::check`] returns the error.
    ///
    /// To avoid the copy, and in graphs, use [`AllGather::start`] and [`AllGather::finish`].
    pub fn enqueue<'a, T: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: Option<&[u32]>,
        shard: impl Into<DeviceMatrix<'a, T>>,
        all: impl Into<DeviceMatrixMut<'a, T>>,
    ) -> Result<()> {
        self.gatherer.check_stream(stream)?;
        refuse_capture(stream)?;
        let shape = self.gatherer.shape(rows)?;
        let [own, all_rows] = self.gatherer.row_counts(&shape);
        let (shard, all, row_bytes) = (shard.into(), all.into(), shape.plan.problem().k());
        let context = self.gatherer.device.context();
        let planned = |rows| PlannedMatrix::packed(rows, row_bytes / T::TYPE.size());
        shard.check("the shard", planned(own), context)?;
        all.check("the gathered rows", planned(all_rows), context)?;
        // It is asked for its address when the other ranks have learned of the step.
        all.check_tracked(stream)?;
        {
            let mut guards = Guards::new(stream);
            let from = shard.read(&mut guards)?;
            // SAFETY: the shard belongs to this device and is as long as the rows say. A slice stays allocated until the work that
            // its event records is done; the step copies it first, in the order of the stream. No graph has this step.
            unsafe { self.start(stream, rows, Some(from)) }?;
        }
        let gathered = self.finish(stream)?;
        let mut guards = Guards::new(stream);
        let to = all.write(&mut guards).inspect_err(|error| self.gatherer.fail(error))?;
        let bytes = u64::from(all_rows[0]) * u64::from(row_bytes);
        // SAFETY: both are so long; `all` stays allocated as the shard does, the gathered rows stay until the next step, which
        // comes behind this on the stream.
        let copied = unsafe { copy(stream, to, gathered, bytes) };
        copied.inspect_err(|error| self.gatherer.fail(error))
    }

    /// Begins a step in the order of `stream`: sends this rank's rows, which are at `shard` (`None`: in their
    /// slot). `rows[r]` is the number of rows of rank r in this step, the same on all ranks (`None`: as planned). Each step may use
    /// another stream until one is captured: that one uses the stream of the step before, and all later steps stay on it.
    ///
    /// # Safety
    /// `shard` is this device's memory of as many bytes as the slot has, and is left alone until the step
    /// has ended. This value outlives every graph that has a step of it, and such graphs are launched on
    /// the stream of its other steps. Between this call and [`AllGather::finish`] no capture of the stream
    /// begins or ends, and no graph is launched that has a step of this operation or of another one in the
    /// same workspace: the rows could be that step's.
    pub unsafe fn start(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: Option<&[u32]>,
        shard: Option<CUdeviceptr>,
    ) -> Result<()> {
        if self.open.is_some() {
            let remedy = "finish a step before the next one starts";
            return Err(Error::mismatch("the step before", "not finished", "finished", remedy));
        }
        self.gatherer.check_stream(stream)?;
        let shape = self.gatherer.shape(rows)?;
        self.gatherer.check_rows(&shape, shard)?;
        let own = OwnRows { rows: shard, scales: 0 };
        // SAFETY: the caller's promise; there are no scales.
        let begun = unsafe { self.gatherer.begin(stream, &shape, own, Follower::Other) };
        // The others wait for a step that was begun: they learn of the failure.
        let step = begun.inspect_err(|error| self.gatherer.fail(error))?;
        self.open = Some((step, Arc::clone(stream)));
        Ok(())
    }

    /// Makes `stream`, the stream of [`AllGather::start`], wait for all ranks' rows, and returns their address without waiting.
    /// Later work on `stream` may read them there until the next step starts.
    pub fn finish(&mut self, stream: &Arc<CudaStream>) -> Result<CUdeviceptr> {
        let Some((step, begun)) = &self.open else {
            let remedy = "start a step before it is finished";
            return Err(Error::mismatch("the step", "not started", "started", remedy));
        };
        if begun != stream {
            let remedy = "finish a step on the stream that it was started on";
            return Err(Error::mismatch("the stream", "another", "that of the start", remedy));
        }
        let mut computes = step.shape.computes.iter();
        let awaited =
            computes.try_for_each(|compute| self.gatherer.await_rows(stream, step, compute));
        let ended = awaited.and_then(|()| self.gatherer.end(stream, step));
        let buffer = step.buffer;
        self.open = None;
        ended.inspect_err(|error| self.gatherer.fail(error))?;
        Ok(self.gatherer.gathered(buffer).0)
    }

    /// Blocks until all work on `stream` has ended, then returns what [`AllGather::check`] returns.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.gatherer.synchronize(stream)
    }

    /// An error if a step failed, here or elsewhere: [`AllGatherGemm::check`](crate::cuda::AllGatherGemm::check).
    pub fn check(&mut self) -> Result<()> {
        self.gatherer.check()
    }

    /// Ends this operation, its group and the group's other operations, on all ranks: steps under way give up. From another
    /// thread: [`Group::abort`].
    pub fn abort(&mut self, reason: &str) {
        self.gatherer.abort(reason);
    }
}

fn check_row_bytes(bytes: u64) -> Result<()> {
    let remedy = "give rows of at least 16 bytes, and of no more than a matrix may have";
    Error::check_range("the bytes of a row", bytes, 16..=MAX_DIMENSION.into(), remedy)?;
    check_aligned("a row", bytes, "pad rows to a multiple of 16 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_units_of_16_bytes() {
        for bytes in [16, 8192] {
            assert_eq!(check_row_bytes(bytes), Ok(()));
        }
        let refused = [
            (0, "the bytes of a row is 0, but must be between 16 and"),
            (8, "the bytes of a row is 8"),
            (1 << 40, "the bytes of a row is 1099511627776"),
            (24, "a row is 24 bytes"),
        ];
        for (bytes, text) in refused {
            let error = check_row_bytes(bytes).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
