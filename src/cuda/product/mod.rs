//! A planned product: what `Gemm`, `AsyncGemm`, `AllGatherGemm` and `GemmReduce` have in common.
//!
//! What belongs here: planning, and one call of the kernel; beside are `choice` (which kernel serves a problem), `options`,
//! `matrix`, `operands`, `shard`, `raw_operands`, `other_sums` and `held` (slices as addresses). Nothing here knows signals or
//! gathers.
//! Invariant: everything that may allocate, load a module, ask the device or fail for the shape's sake happens in
//! [`Product::plan`]; a call checks its operands and enqueues.

pub(crate) mod choice;
pub(crate) mod held;
pub(crate) mod matrix;
pub(crate) mod operands;
pub(crate) mod options;
pub(crate) mod other_sums;
pub(crate) mod raw_operands;
pub(crate) mod shard;
pub(crate) mod tuned;

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use self::choice::{TYPICAL_SMS, choose};
use self::held::Held;
use self::operands::Operands;
use self::options::GemmOptions;
use self::raw_operands::RawOperands;
use crate::cuda::sys::bindings::{og_gemm_plan, og_gemm_shape, og_other_sums};
use crate::cuda::sys::build_info::kernels;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::ffi::{self, Input, MAX_EXTENT, int};
use crate::cuda::sys::records::TileRecords;
use crate::cuda::sys::stream_ops::refuse_capture;
use crate::cuda::sys::workspace::Workspace;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::check_len;
use crate::kernels::{Choice, Kernel, sms_beside_push};
use crate::plan::{Operation, Problem, Tiling, Way};

/// Everything about a product that does not change from call to call.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) device: Device,
    pub(crate) problem: Problem,
    pub(crate) options: GemmOptions,
    pub(crate) kernel: &'static Kernel,
    pub(crate) choice: Choice,
    prepared: og_gemm_plan,
    workspace: Option<Workspace>,
}

impl Product {
    /// Chooses a kernel, loads it, and allocates what it needs.
    pub(crate) fn plan(device: &Device, problem: &Problem, options: &GemmOptions) -> Result<Self> {
        Self::plan_beside_push(device, problem, options, None)
    }

    /// [`Product::plan`] of a product that begins while this rank's rows are sent in that way.
    pub(crate) fn plan_beside_push(
        device: &Device,
        problem: &Problem,
        options: &GemmOptions,
        way: Option<Way>,
    ) -> Result<Self> {
        let all = device.info().sm_count;
        let most = way.map_or(all, |way| way.sms_of_product(problem, all));
        let pushing = way.map_or(0, |way| way.engine.pushing_blocks());
        let (kernel, choice) = select(problem, options, most)?;
        let left = sms_beside_push(kernel, problem, choice.splits, all, pushing).min(most);
        let sm_limit = options.sm_limit.or((left < all).then_some(left));
        device.bind()?;
        // SAFETY: `bind` has made the device's context current.
        let prepared = unsafe { ffi::prepare(&shape_of(problem, choice, sm_limit)) }?;
        let workspace = Workspace::new(device, prepared.workspace_bytes)?;
        let (device, problem, options) = (device.clone(), problem.clone(), options.clone());
        Ok(Product { device, problem, options, kernel, choice, prepared, workspace })
    }

    /// The part of planning that needs no device.
    pub(crate) fn check(problem: &Problem, options: &GemmOptions) -> Result<()> {
        let sms = TYPICAL_SMS.max(options.sm_limit.unwrap_or(0));
        let (_, choice) = select(problem, options, sms)?;
        ffi::check(&shape_of(problem, choice, options.sm_limit), options.c)
    }

    pub(crate) fn tiling(&self) -> Tiling {
        self.kernel.tiling(self.choice.swizzle)
    }

    /// What was chosen, as a line of text; `problem` is what the caller planned.
    pub(crate) fn explain(&self, problem: &Problem) -> String {
        let Choice { swizzle, splits, .. } = self.choice;
        let (kernel, sms) = (self.kernel, self.sm_count());
        format!("{problem}: {kernel}, {sms} SMs, swizzle {swizzle}, K in {splits} slices\n")
    }

    pub(crate) fn sm_count(&self) -> u32 {
        self.prepared.sm_count.unsigned_abs()
    }

    /// SMs that one call keeps at most: as many as it may, or fewer if it has fewer tiles.
    pub(crate) fn occupied_sms(&self) -> u32 {
        let blocks = self.record_count().next_multiple_of(self.kernel.cluster_size().into());
        self.sm_count().min(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    pub(crate) fn records(&self) -> Result<TileRecords> {
        TileRecords::new(&self.device, self.record_count())
    }

    /// How many records one call writes at most: tiles times splits.
    pub(crate) fn record_count(&self) -> u64 {
        self.prepared.tile_count.unsigned_abs().saturating_mul(self.choice.splits.into())
    }

    /// An error if a call on `stream` would be refused for any operands.
    pub(crate) fn check_stream(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.device.check_stream(stream)?;
        self.workspace.as_ref().map_or(Ok(()), |workspace| workspace.check(stream))
    }

    /// Calls for some rows of a step, as many at a time as were planned for: a rank may have more rows in one step than in
    /// another. The operands are those of all rows; products behind the first wait for the one before.
    ///
    /// # Safety
    /// As for [`Product::enqueue_raw`], for these rows.
    pub(crate) unsafe fn enqueue_rows(
        &self,
        stream: &Arc<CudaStream>,
        operands: &RawOperands,
        rows: Range<u32>,
        input: Option<&Input<'_>>,
    ) -> Result<()> {
        let most = self.problem.m();
        rows.clone().step_by(most as usize).try_for_each(|first| {
            let part = operands.rows_from(&self.problem, [first; 2]);
            let part = part.rows((rows.end - first).min(most));
            // SAFETY: the caller's promise, for some of the rows.
            unsafe { self.enqueue_raw(stream, &part, input) }
        })
    }

    /// The addresses for one call, if the operands fit it.
    pub(crate) fn hold<'a: 's, 's, A: Element, B: Element, D: Element>(
        &self,
        stream: &'s Arc<CudaStream>,
        operands: Operands<'a, A, B, D>,
    ) -> Result<Held<'s>> {
        self.device.check_stream(stream)?;
        refuse_capture(stream)?;
        operands.check(&self.problem, self.device.context(), operands.own_rows(&self.problem)?)?;
        if operands.ranks_rows.is_some() {
            return Err(Error::Unsupported {
                what: "`ranks_rows` of the operands of a product alone".into(),
                why: "no other rank has rows in it".into(),
                remedy: "use `rows`",
            });
        }
        if let Some(records) = &operands.records {
            let (needed, remedy) = (self.record_count(), "make them with this plan's `records`");
            check_len("the tile records", records.len(), needed..=needed, remedy)?;
        }
        operands.hold(stream)
    }

    /// One call.
    ///
    /// # Safety
    /// The addresses are of this device's memory as long as the problem, the rows and
    /// [`Product::records`] say, and those of `input` are as `csrc/overlap_gemm.h` says, until the
    /// work is done; D and the records overlap nothing else, and nothing else writes to what is read
    /// (A apart, whose chunks are written before their signals).
    pub(crate) unsafe fn enqueue_raw(
        &self,
        stream: &Arc<CudaStream>,
        operands: &RawOperands,
        input: Option<&Input<'_>>,
    ) -> Result<()> {
        let (rows, mut raw) = operands.check(&self.problem, &self.options)?;
        let others = operands.others.map(og_other_sums::from);
        raw.others = others.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        raw.b_is_there |= i32::from(input.is_some_and(|input| input.b_is_there));
        self.device.check_stream(stream)?;
        self.device.bind()?;
        let lease = self.workspace.as_ref().map(|workspace| workspace.lease(stream)).transpose()?;
        let workspace = lease.as_ref().map_or(0, |lease| lease.address);
        let memory = [operands.records, workspace];
        // SAFETY: the context is current, the stream is its, the plan was prepared in it; addresses and
        // their lengths are the caller's promise; the lease orders the uses of the workspace.
        unsafe { ffi::enqueue(&self.prepared, rows, &raw, input, memory, stream) }
    }
}

/// The kernel for a problem, after everything that can be refused without asking a device.
fn select(
    problem: &Problem,
    options: &GemmOptions,
    sm_count: u32,
) -> Result<(&'static Kernel, Choice)> {
    check_size(problem)?;
    problem.check_scatter(Operation::Gemm)?;
    problem.check_c(options.c)?;
    let kernels = kernels()?;
    let choice = choose(kernels, problem, options, sm_count)?;
    Ok((&kernels[choice.kernel], choice))
}

/// What does not depend on the kernel: whether the sizes and pitches are ones that kernels take. These are the rules of
/// `og_gemm_check`, so that what passes here is refused by neither side; the test `the_two_sides_agree` compares them.
pub(crate) fn check_size(problem: &Problem) -> Result<()> {
    for (what, value) in [("m", problem.m()), ("n", problem.n()), ("k", problem.k())] {
        Error::check_range(what, value, 1..=MAX_EXTENT, "split the product into several")?;
    }
    problem.check_tma()
}

/// The problem, run as chosen on at most that many SMs (default: all); the caller has [`check_size`]d it. C lies as D does.
fn shape_of(problem: &Problem, choice: Choice, sm_limit: Option<u32>) -> og_gemm_shape {
    og_gemm_shape {
        m: problem.m().into(),
        n: problem.n().into(),
        k: problem.k().into(),
        lda: problem.lda().into(),
        ldb: problem.ldb().into(),
        ldc: problem.ldd().into(),
        ldd: problem.ldd().into(),
        kernel: i32::try_from(choice.kernel).unwrap_or(i32::MAX),
        sm_count: int(sm_limit.unwrap_or(0)),
        swizzle: int(choice.swizzle),
        splits: int(choice.splits),
        gated: problem.is_gated().into(),
        reserved: 0,
    }
}

/// The problem of the first of some products of one A.
pub(crate) fn check_alike(products: &[(Problem, GemmOptions)]) -> Result<&Problem> {
    let Some((first, _)) = products.first() else {
        let remedy = "plan at least one product";
        return Err(Error::mismatch("the number of products", 0, "at least 1", remedy));
    };
    for (index, (problem, _)) in products.iter().enumerate() {
        let a = |of: &Problem| {
            let types = (of.elements().a, of.scaling());
            let scatter = (of.batches(), of.scatters_columns());
            (of.shards().clone(), scatter, of.k(), of.lda(), types)
        };
        if a(problem) != a(first) {
            let remedy =
                "give all problems the same shards, scatter, K, lda, element type of A and scaling";
            let what = format!("the A of problem {index}");
            return Err(Error::mismatch(what, problem, format!("that of {first}"), remedy));
        }
    }
    Ok(first)
}

/// An error unless there are operands for each planned product.
pub(crate) fn check_operands(operands: usize, planned: usize) -> Result<()> {
    if operands == planned {
        return Ok(());
    }
    let remedy = "give operands for each planned product";
    Err(Error::mismatch("the number of operands", operands, planned, remedy))
}

#[cfg(test)]
mod several {
    use super::*;
    use crate::element::ElementType::{Bf16, F16, F32};

    #[test]
    fn products_of_different_inputs_are_refused() {
        let of = |problem: crate::plan::ProblemBuilder| {
            (problem.build().unwrap(), GemmOptions::default())
        };
        let first = of(Problem::builder(64, 32, 16).ranks(2));
        // Another N, and another D.
        let wide = Problem::builder(64, 128, 16).ranks(2).elements(Bf16, Bf16, F32).ldd(136);
        let alike = [first.clone(), of(wide)];
        assert_eq!(check_alike(&alike), Ok(&first.0));

        let others = [
            Problem::builder(64, 32, 32).ranks(2),
            Problem::builder(64, 32, 16).ranks(4),
            Problem::builder(64, 32, 16).ranks(2).lda(24),
            Problem::builder(64, 32, 16).ranks(2).elements(F16, F16, F16),
        ];
        for other in others {
            let text = check_alike(&[first.clone(), of(other)]).unwrap_err().to_string();
            assert!(text.starts_with("the A of problem 1 is "), "{text}");
        }
        let text = check_alike(&[]).unwrap_err().to_string();
        assert!(text.starts_with("the number of products is 0, but must be at least 1"), "{text}");
        let text = check_operands(1, 2).unwrap_err().to_string();
        assert!(text.starts_with("the number of operands is 1, but must be 2"), "{text}");
    }
}

#[cfg(all(test, overlap_gemm_kernels))]
mod tests;
