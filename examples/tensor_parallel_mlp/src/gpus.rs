//! The layer on GPUs: a rank is a process, a matrix a slice of `cudarc`. Both operations work in one workspace, which a model's
//! other layers may share.

use std::sync::Arc;

use overlap_gemm::Result;
use overlap_gemm::cuda::cudarc::driver::result::DriverError;
use overlap_gemm::cuda::cudarc::driver::{
    CudaGraph, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, sys,
};
use overlap_gemm::cuda::{
    AllGatherGemm, CollectiveOptions, Device, GemmOptions, GemmReduceScatter, Operands,
    RawOperands, Shard, SharedWorkspace,
};
use overlap_gemm::group::Group;
use overlap_gemm::plan::{Activation, Reduction};

use crate::{Matrices, Place, Sizes, Weights};

/// Slices of `cudarc`.
pub struct Gpu;

impl Place for Gpu {
    type Of<T> = CudaSlice<T>;
}

/// One rank's layer, planned once for all layers of its sizes.
pub struct Mlp {
    up: AllGatherGemm,
    down: GemmReduceScatter,
}

impl Mlp {
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        workspace: &SharedWorkspace,
        sizes: Sizes,
    ) -> Result<Self> {
        let [gathered, summed] = sizes.problems(group.ranks())?;
        let options = CollectiveOptions::default().with_workspace(workspace);
        let gemm = GemmOptions::default().with_constant_b(true); // the weights stay as they are
        let swiglu = gemm.clone().with_bias(true).with_activation(Activation::Silu);
        let up = AllGatherGemm::plan(group, device, &gathered, &options, &swiglu)?;
        let (residual, sum) = (gemm.with_c(true), Reduction::default());
        let down = GemmReduceScatter::plan(group, device, &summed, &options, &residual, sum)?;
        Ok(Mlp { up, down })
    }

    /// A step of one layer; `rows[r]`: the tokens of rank r. Returns at once.
    pub fn enqueue(
        &mut self,
        stream: &Arc<CudaStream>,
        weights: &Weights<Gpu>,
        step: &mut Matrices<Gpu>,
        rows: &[u32],
    ) -> Result<()> {
        let swiglu = Operands::new(&step.tokens, &weights.gate_up, &mut step.hidden)
            .bias(&weights.bias)
            .scales(&step.tokens_scale, &weights.gate_up_scale)
            .scale_d(&step.hidden_scale)
            .amax(&mut step.amax);
        self.up.enqueue(stream, [swiglu.ranks_rows(rows)])?;
        if let Some(keep) = &mut step.gathered {
            self.up.copy_gathered(stream, keep)?;
        }

        let down = Operands::new(&step.hidden, &weights.down, &mut step.output)
            .scales(&step.hidden_inverse, &weights.down_scale)
            .c(&step.residual, 1.0);
        self.down.enqueue(stream, [down.ranks_rows(rows)])
    }

    /// Waits for the stream. Each operation returns the errors of all ranks.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.up.synchronize(stream)?;
        self.down.synchronize(stream)
    }

    /// A graph of one step, to be launched on `stream`; one for each number of tokens that a server batches, of this one plan.
    /// From then on all steps are on this stream, and keep no gathered tokens.
    ///
    /// # Safety
    /// The matrices, the weights and this value outlive the graph.
    pub unsafe fn capture(
        &mut self,
        stream: &Arc<CudaStream>,
        weights: &Weights<Gpu>,
        step: &mut Matrices<Gpu>,
        rows: &[u32],
    ) -> std::result::Result<CudaGraph, Box<dyn std::error::Error>> {
        // Before the capture: `cudarc` makes the stream wait for earlier uses of the slices.
        fn at<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
            slice.device_ptr(stream).0
        }
        let hidden = step.hidden.device_ptr_mut(stream).0;
        let tokens = Shard::at(at(&step.tokens, stream)).rows(rows);
        let swiglu = RawOperands::of_gathered(at(&weights.gate_up, stream), hidden)
            .bias(at(&weights.bias, stream))
            .scales(at(&step.tokens_scale, stream), at(&weights.gate_up_scale, stream))
            .scale_d(at(&step.hidden_scale, stream))
            .amax(step.amax.device_ptr_mut(stream).0);
        let output = step.output.device_ptr_mut(stream).0;
        let down = RawOperands::of_gathered(at(&weights.down, stream), output)
            .scales(at(&step.hidden_inverse, stream), at(&weights.down_scale, stream))
            .c(at(&step.residual, stream), 1.0);

        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        // SAFETY: the caller's promise.
        let enqueued = unsafe {
            (self.up.enqueue_raw(stream, tokens, &[swiglu]))
                .and_then(|()| self.down.enqueue_raw(stream, Shard::at(hidden).rows(rows), &[down]))
        };
        // A capture is ended in any case: the stream serves on.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        Ok(graph?.expect("two operations were captured"))
    }
}

/// A copy on the GPU.
pub fn weights_on(
    stream: &Arc<CudaStream>,
    from: &Weights<crate::threads::Threads>,
) -> std::result::Result<Weights<Gpu>, DriverError> {
    Ok(Weights {
        gate_up: stream.clone_htod(&from.gate_up)?,
        gate_up_scale: stream.clone_htod(&from.gate_up_scale)?,
        bias: stream.clone_htod(&from.bias)?,
        down: stream.clone_htod(&from.down)?,
        down_scale: stream.clone_htod(&from.down_scale)?,
    })
}

/// A copy on the GPU.
pub fn matrices_on(
    stream: &Arc<CudaStream>,
    from: &Matrices<crate::threads::Threads>,
) -> std::result::Result<Matrices<Gpu>, DriverError> {
    Ok(Matrices {
        residual: stream.clone_htod(&from.residual)?,
        tokens: stream.clone_htod(&from.tokens)?,
        tokens_scale: stream.clone_htod(&from.tokens_scale)?,
        gathered: from.gathered.as_ref().map(|rows| stream.clone_htod(rows)).transpose()?,
        hidden: stream.clone_htod(&from.hidden)?,
        hidden_scale: stream.clone_htod(&from.hidden_scale)?,
        hidden_inverse: stream.clone_htod(&from.hidden_inverse)?,
        amax: stream.clone_htod(&from.amax)?,
        output: stream.clone_htod(&from.output)?,
    })
}
