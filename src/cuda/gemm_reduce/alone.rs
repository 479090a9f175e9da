//! Reduce-scatter and all-reduce between GPUs: every rank has sums of all rows, and gets the totals of its own rows, or of all.
//!
//! What belongs here: the reductions for their own sake, and what their calls refuse. With the product that computes the sums
//! they are [`GemmReduce`](super::GemmReduce). Invariant: a step that has ended reads the caller's sums no more.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::Reduce;
use super::steps::Call;
use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::without_product;
use crate::cuda::movers::gather::Gatherer;
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::product::held::Guards;
use crate::cuda::product::matrix::{DeviceMatrix, DeviceMatrixMut, PlannedMatrix};
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::refuse_capture;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::fit::check_type;
use crate::group::Group;
use crate::plan::{Problem, Reduction, check_aligned};
use crate::tune::Tuning;

/// One rank's reduce-scatter, planned once and enqueued many times. Collective: all ranks make the same calls.
///
/// Sums are added in the order of the ranks, in `f32`: the result does not depend on what arrives first. For few
/// rows, one kernel reads all ranks' rows and adds them up. For many, copy engines, which take no SM, send them, and a kernel adds
/// them up when all have arrived. [`CollectiveOptions::engine`] asks for either, or for NCCL, which adds in an order of its own
/// ([`Engine::Nccl`](crate::plan::Engine::Nccl)). NCCL is the choice between GPUs that do not reach each other's memory.
///
/// ```no_run
/// use overlap_gemm::ElementType;
/// use overlap_gemm::cuda::{Device, CollectiveOptions, ReduceScatter};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::Reduction;
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let rows = vec![256; group.ranks() as usize];
/// let (columns, options, sum) = (8192, CollectiveOptions::default(), Reduction::default());
/// let d = ElementType::Bf16;
/// let mut reduce = ReduceScatter::plan(&group, &device, &rows, columns, d, &options, sum)?;
///
/// let mut sums = stream.alloc_zeros::<bf16>(rows.len() * 256 * columns as usize)?;
/// // ... a kernel on `stream` writes this rank's sums of all rows ...
/// reduce.enqueue_in_place(&stream, None, &mut sums)?; // the totals of this rank's rows take the place of its sums of them
/// reduce.synchronize(&stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type ReduceScatter = Reduce<false, false>;

/// One rank's all-reduce, planned once and enqueued many times: a [`ReduceScatter`] of which every rank gets all rows.
///
/// The results of all ranks are equal bit for bit. Each rank adds up all rows, in one shot. A kernel has two shots for many
/// rows, if there are three to eleven ranks and totals are stored in 16 bits: each rank adds up its own rows, and sends the totals
/// ([`Plan::has_two_shots`](crate::plan::Plan::has_two_shots)).
///
/// ```no_run
/// use overlap_gemm::ElementType;
/// use overlap_gemm::cuda::{AllReduce, CollectiveOptions, Device};
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::Reduction;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let stream = device.new_stream()?;
/// let rows = vec![16; group.ranks() as usize];
/// let (options, sum) = (CollectiveOptions::default(), Reduction::default());
/// let mut reduce =
///     AllReduce::plan(&group, &device, &rows, 4096, ElementType::Bf16, &options, sum)?;
///
/// let mut sums = stream.clone_htod(&vec![bf16::ONE; rows.len() * 16 * 4096])?;
/// reduce.enqueue_in_place(&stream, None, &mut sums)?;
/// reduce.synchronize(&stream)?;
/// # Ok(())
/// # }
/// ```
pub type AllReduce = Reduce<true, false>;

impl<const ALL: bool> Reduce<ALL, false> {
    /// Collective, with equal arguments. Blocks until all ranks have planned; the timeout is `options.timeouts.first`, or the
    /// workspace's. A call that is refused on one rank fails on all, and the group lives on. A timeout or a failed allocation ends it.
    ///
    /// The shard of rank r is `rows[r]` rows of `columns` elements. A step may have other rows, if neither their sum nor the largest
    /// shard exceeds the planned one. Sums have the type `reduction.partials`; totals have the type `d`: bf16, f16 or f32. A row of
    /// either must be a multiple of 16 bytes.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        rows: &[u32],
        columns: u32,
        d: ElementType,
        options: &CollectiveOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        crate::cuda::sys::ffi::kernels_built()?;
        let problem = Problem::of_totals(rows, columns, d);
        let planned = problem.and_then(|problem| Ok((problem, without_product(options)?)));
        let (problem, options) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                // Every rank comes to the refusal by these exchanges: see `joining`.
                obstacle(group, device, options.timeouts.first)?;
                return Err(Gatherer::refuse(group, options, error));
            }
        };
        let sums = [(problem, GemmOptions::default())];
        // No table has it: a rule decides.
        Self::join(group, device, &sums, &options, reduction, &Tuning::none())
    }

    /// Enqueues a step on `stream` and returns: adds up all ranks' sums of the rows that this rank gets, and stores them in
    /// `d`. `rows[r]` is the number of rows of rank r in this step, the same on all ranks (`None`: as planned).
    ///
    /// `sums` are this rank's sums of all rows, packed; `d` is packed, too. A step that fails ends all the same, with D
    /// undefined: [`Reduce::check`] says so.
    pub fn enqueue<'a, S: Element, D: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: Option<&[u32]>,
        sums: impl Into<DeviceMatrix<'a, S>>,
        d: impl Into<DeviceMatrixMut<'a, D>>,
    ) -> Result<()> {
        self.gatherer.check_stream(stream)?;
        let (sums, d, [all, own]) = (sums.into(), d.into(), self.row_counts(rows)?);
        let context = self.gatherer.device.context();
        check_type::<S>("the sums", self.sum_type())?;
        sums.check("the sums", self.packed(all), context)?;
        check_type::<D>("D", self.sums[0].problem.elements().d)?;
        d.check("D", self.packed(own), context)?;
        refuse_capture(stream)?;
        let mut guards = Guards::new(stream);
        let (sums, d) = (sums.read(&mut guards)?, d.write(&mut guards)?);
        // SAFETY: both belong to this device and are as long as the rows say; D is borrowed mutably; slices stay allocated until
        // the work that their events record is done, and a step ends, on the stream, when its sums have been sent or copied.
        unsafe { self.enqueue_raw(stream, rows, sums, d) }
    }

    /// [`Reduce::enqueue`] in place: the totals, which must have the type of the sums, overwrite the sums of the same rows.
    pub fn enqueue_in_place<'a, S: Element>(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: Option<&[u32]>,
        sums: impl Into<DeviceMatrixMut<'a, S>>,
    ) -> Result<()> {
        self.gatherer.check_stream(stream)?;
        let [all, _] = self.row_counts(rows)?;
        let problem = &self.sums[0].problem;
        let (sum, total) = (self.sum_type(), problem.elements().d);
        if sum != total {
            let remedy = "plan totals of the type of the sums, or give them a place of their own";
            return Err(Error::mismatch("the type of totals in place", total, sum, remedy));
        }
        let sums = sums.into();
        check_type::<S>("the sums", sum)?;
        sums.check("the sums", self.packed(all), self.gatherer.device.context())?;
        refuse_capture(stream)?;
        let first = self.gatherer.shape(rows)?.plan.output_rows(self.gatherer.group.rank()).start;
        let row_bytes = u64::from(self.sums[0].problem.n()) * u64::from(sum.size());
        let mut guards = Guards::new(stream);
        let sums = sums.write(&mut guards)?;
        // SAFETY: as in `enqueue`.
        unsafe { self.enqueue_raw(stream, rows, sums, sums + u64::from(first) * row_bytes) }
    }

    /// [`Reduce::enqueue`] for memory that is not `cudarc`'s.
    ///
    /// `sums` is the address of this rank's sums of all rows, packed, in any memory of its device; `d` is that of the totals, packed,
    /// too. If both have one type, the step may be in place: `d` is then `sums` in an all-reduce, and the start of this rank's rows
    /// in `sums` in a reduce-scatter.
    ///
    /// In a graph: as [`AllGatherGemm::enqueue_raw`](crate::cuda::AllGatherGemm::enqueue_raw).
    ///
    /// # Safety
    /// Both are this device's memory, as long as the rows of the step say, and are left alone until the step has ended, in the
    /// order of `stream` (in a graph: while it may be launched). This value outlives every graph that has a step of it, and
    /// such graphs are launched on the stream of its other steps.
    pub unsafe fn enqueue_raw(
        &mut self,
        stream: &Arc<CudaStream>,
        rows: Option<&[u32]>,
        sums: CUdeviceptr,
        d: CUdeviceptr,
    ) -> Result<()> {
        self.gatherer.check_owned(rows)?;
        let shape = self.gatherer.shape(rows)?;
        let (m, own) =
            (shape.plan.problem().m(), shape.plan.output_rows(self.gatherer.group.rank()));
        let problem = &self.sums[0].problem;
        let (sum, total) = (self.sum_type(), problem.elements().d);
        let bytes = |rows: u32, of: ElementType| {
            u64::from(rows) * u64::from(problem.n()) * u64::from(of.size())
        };
        let in_place = (sum == total).then(|| sums.saturating_add(bytes(own.start, sum)));
        let lengths = [bytes(m, sum), bytes(own.len() as u32, total)];
        check_addresses([sums, d], lengths, in_place)?;
        let product = RawOperands::of_gathered(0, d);
        let call = Call { product, totals: (!own.is_empty()).then_some(product) };
        // SAFETY: the caller's promise.
        unsafe { self.step(stream, &shape, Some(sums), &[call], None) }
    }

    /// That many rows of sums or totals, in this step and at most.
    fn packed(&self, rows: [u32; 2]) -> PlannedMatrix {
        PlannedMatrix::packed(rows, self.sums[0].problem.n())
    }
}

/// An error unless a step can read sums and store totals there: that many bytes of each, which do not overlap, or the totals
/// are `in_place`.
fn check_addresses(
    [sums, d]: [CUdeviceptr; 2],
    [sums_len, d_len]: [u64; 2],
    in_place: Option<CUdeviceptr>,
) -> Result<()> {
    for (what, address, len) in
        [("the address of the sums", sums, sums_len), ("the address of D", d, d_len)]
    {
        if address == 0 && len > 0 {
            return Err(Error::mismatch(what, 0, "not 0", "give the address of device memory"));
        }
        check_aligned(what, address, "start it at a multiple of 16 bytes")?;
    }
    let apart = d.saturating_add(d_len) <= sums || sums.saturating_add(sums_len) <= d;
    if apart || d_len == 0 || in_place == Some(d) {
        return Ok(());
    }
    let expected = match in_place {
        Some(own) => format!("{own:#x}, or outside of the sums"),
        None => "outside of the sums, whose type is another".into(),
    };
    let remedy = "store totals elsewhere, or in the place of the sums of the same rows";
    Err(Error::mismatch("the address of D", format!("{d:#x}"), expected, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_lie_apart_from_sums_or_in_the_place_of_their_own() {
        // Four rows of 64 bytes, of which this rank gets the third.
        let check = |d, in_place| check_addresses([4096, d], [256, 64], in_place);
        for d in [4096 - 64, 4096 + 128, 4096 + 256] {
            assert_eq!(check(d, Some(4096 + 128)), Ok(()), "{d}");
        }
        for (d, in_place) in [(4096, Some(4096 + 128)), (4096 - 16, None), (4096 + 128, None)] {
            let text = check(d, in_place).unwrap_err().to_string();
            assert!(text.starts_with(&format!("the address of D is {d:#x}")), "{text}");
        }
        assert_eq!(check_addresses([4096, 0], [256, 0], None), Ok(()));
        let text = check(0, None).unwrap_err().to_string();
        assert!(text.starts_with("the address of D is 0"), "{text}");
        assert!(check(5000, None).is_err());
    }
}
