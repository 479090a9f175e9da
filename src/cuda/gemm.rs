//! A plain matrix product on one GPU: planned once, enqueued many times.
//!
//! What belongs here: the product whose whole input is there. Invariant: all that may allocate, load a
//! module, ask the device or fail for the shape's sake happens in [`Gemm::plan`]; [`Gemm::enqueue`]
//! checks its operands and enqueues, and neither allocates nor waits.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::cuda::product::Product;
use crate::cuda::product::operands::Operands;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::records::TileRecords;
use crate::element::Element;
use crate::error::Result;
use crate::kernels::{Choice, Kernel};
use crate::plan::Problem;

/// A planned product D = activation(alpha · scales · A·B + beta · C + bias), with sums in f32 and one
/// rounding at the end.
///
/// ```no_run
/// use overlap_gemm::cuda::{Device, Gemm, GemmOptions, Operands};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::plan::Problem;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open(0)?;
/// let stream = device.new_stream()?;
/// let problem = Problem::builder(4096, 3584, 8192).build()?;
/// let gemm = Gemm::plan(&device, &problem, &GemmOptions::default())?;
///
/// let a = stream.clone_htod(&vec![bf16::ONE; 4096 * 8192])?;
/// let b = stream.clone_htod(&vec![bf16::ONE; 3584 * 8192])?;
/// let mut d = stream.alloc_zeros::<bf16>(4096 * 3584)?;
/// gemm.enqueue(&stream, Operands::new(&a, &b, &mut d))?;
/// assert_eq!(stream.clone_dtoh(&d)?[0], bf16::from_f32(8192.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gemm {
    product: Product,
}

impl Gemm {
    /// Chooses the kernel that the cost model finds fastest for `problem` as a plain product (all its rows, however they are
    /// shared out), loads it, and allocates what it needs. Slow: modules are loaded, so this is for start-up, not for the
    /// steady loop.
    pub fn plan(device: &Device, problem: &Problem, options: &GemmOptions) -> Result<Gemm> {
        Ok(Gemm { product: Product::plan(device, problem, options)? })
    }

    /// The part of [`Gemm::plan`] that needs no device: whether there is a kernel for `problem`.
    pub fn check(problem: &Problem, options: &GemmOptions) -> Result<()> {
        Product::check(problem, options)
    }

    /// The problem that was planned.
    pub fn problem(&self) -> &Problem {
        &self.product.problem
    }

    /// What was asked for.
    pub fn options(&self) -> &GemmOptions {
        &self.product.options
    }

    /// The kernel that carries it out.
    pub fn kernel(&self) -> &'static Kernel {
        self.product.kernel
    }

    /// How the kernel is run.
    pub fn choice(&self) -> Choice {
        self.product.choice
    }

    /// How many SMs the kernel may occupy.
    pub fn sm_count(&self) -> u32 {
        self.product.sm_count()
    }

    /// A buffer for the records of one call: [`Operands::records`].
    pub fn records(&self) -> Result<TileRecords> {
        self.product.records()
    }

    /// Enqueues the product on `stream` and returns. In a graph: [`Gemm::enqueue_raw`]; this call refuses a capture.
    ///
    /// While `cudarc` tracks events (its default), it also makes `stream` wait for the last use of
    /// each buffer on other streams.
    ///
    /// Any thread may call it, with any stream of the device but the per-thread default stream. If the plan cuts K into slices, its
    /// calls share one workspace and run one after the other, also on several streams. A capture of such a call must be on the
    /// stream of the call before; all later calls and the graph's launches stay on it, and the workspace is never freed.
    pub fn enqueue<A: Element, B: Element, D: Element>(
        &self,
        stream: &Arc<CudaStream>,
        operands: Operands<'_, A, B, D>,
    ) -> Result<()> {
        let held = self.product.hold(stream, operands)?;
        // SAFETY: the memory belongs to this device and is as long as the problem and the rows say. Slices stay allocated until
        // the work that their events record is done; other memory is its owner's promise.
        unsafe { self.product.enqueue_raw(stream, &held.raw, None) }
    }

    /// [`Gemm::enqueue`] for memory that is not `cudarc`'s: another library's, or a peer's.
    ///
    /// ```no_run
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaGraph, CudaStream, sys};
    /// # use overlap_gemm::cuda::{Gemm, RawOperands};
    /// # use std::{error::Error, sync::Arc};
    /// # unsafe fn captured(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b, d]: [u64; 3])
    /// #     -> Result<CudaGraph, Box<dyn Error>> {
    /// stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    /// // SAFETY: the memory is as long as the problem says, and outlives the graph.
    /// unsafe { gemm.enqueue_raw(stream, &RawOperands::new(a, b, d))? };
    /// let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?;
    /// # Ok(graph.expect("a product"))
    /// # }
    /// ```
    ///
    /// # Safety
    /// The addresses are of memory that this plan's device can read (D and the records: write), of the
    /// planned types, for [`Problem::a_len`], [`Problem::b_len`] and [`Problem::d_len_of`] elements
    /// (C as D), N elements of bias, and as many scales as [`Problem::scaling`] says, until the work
    /// is done; D and the records overlap none of the others; nothing else writes to any of it
    /// meanwhile.
    pub unsafe fn enqueue_raw(
        &self,
        stream: &Arc<CudaStream>,
        operands: &RawOperands,
    ) -> Result<()> {
        // SAFETY: the caller's promise; without an input there is no more to promise.
        unsafe { self.product.enqueue_raw(stream, operands, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn check(m: u64, n: u64, k: u64) -> Result<()> {
        Gemm::check(&Problem::builder(m, n, k).build().unwrap(), &GemmOptions::default())
    }

    #[test]
    fn misaligned_pitches_are_named() {
        let error = check(64, 64, 12).unwrap_err();
        assert!(matches!(error, Error::Misaligned { bytes: 24, multiple_of: 16, .. }), "{error}");
        assert!(error.to_string().starts_with("the pitch of A (lda) is 24 bytes"), "{error}");
        let error = check(64, 63, 64).unwrap_err();
        assert!(error.to_string().starts_with("the pitch of D (ldd) is 126 bytes"), "{error}");
        let ragged = Problem::builder(64, 60, 64).ldd(64).build().unwrap();
        let error = Gemm::check(&ragged, &GemmOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("the width of D is 120 bytes"), "{error}");
    }

    #[test]
    fn sizes_beyond_a_tile_are_named() {
        let error = check(i32::MAX as u64, 8, 8).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { value: 0x7fff_ffff, .. }), "{error}");
    }
}
