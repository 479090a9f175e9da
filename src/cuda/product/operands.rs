//! What one call multiplies: the matrices, and what goes with them.
//!
//! What belongs here: what addresses (raw_operands.rs) do not have: element types, shapes, lengths and devices, and whether they fit
//! a plan, by `fit`'s rules. Invariant: all other rules are in `RawOperands::check`, for both.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};

use super::held::Rows;
use super::matrix::{DeviceMatrix, DeviceMatrixMut, PlannedMatrix};
use super::raw_operands::rows_of;
use crate::cuda::sys::device::check_context;
use crate::cuda::sys::records::TileRecords;
use crate::element::Element;
use crate::error::Result;
use crate::fit::{ALL_ELEMENTS, ALL_SCALES, check_len, check_types};
use crate::plan::Problem;

/// The operands of one call: slices or views of `cudarc`, as in [`Gemm`](crate::cuda::Gemm)'s example, or any [`DeviceMatrix`].
///
/// They are borrowed until the call. From then on `cudarc` keeps its slices until the stream has used them, so that they may be
/// dropped. D is borrowed mutably, and cannot be the D of two products of a step:
///
/// ```compile_fail,E0499
/// # use overlap_gemm::Result;
/// # use overlap_gemm::cuda::{AllGatherGemm, Operands};
/// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// # use overlap_gemm::element::bf16;
/// # use std::sync::Arc;
/// # fn twice(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, [a, gate, up]: [CudaSlice<bf16>; 3],
/// #     mut d: CudaSlice<bf16>) -> Result<()> {
/// layer.enqueue(stream, [Operands::new(&a, &gate, &mut d), Operands::new(&a, &up, &mut d)])
/// # }
/// ```
#[must_use]
pub struct Operands<'a, A, B, D: Element> {
    pub(crate) a: DeviceMatrix<'a, A>,
    pub(crate) b: DeviceMatrix<'a, B>,
    pub(crate) d: DeviceMatrixMut<'a, D>,
    pub(crate) c: Option<DeviceMatrix<'a, D::Addend>>,
    pub(crate) bias: Option<&'a dyn DevicePtr<D::Addend>>,
    pub(crate) scales: Option<[&'a dyn DevicePtr<f32>; 2]>,
    pub(crate) scale_d: Option<&'a dyn DevicePtr<f32>>,
    pub(crate) amax: Option<&'a mut dyn DevicePtrMut<f32>>,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) rows: Option<u32>,
    pub(crate) ranks_rows: Option<&'a [u32]>,
    pub(crate) records: Option<&'a mut TileRecords>,
}

impl<'a, A: Element, B: Element, D: Element> Operands<'a, A, B, D> {
    /// A, B and D; `alpha` is 1, `beta` is 0.
    ///
    /// A and D hold at least the rows of this call, and at most as many as planned; the call uses the first ones. B holds all
    /// of its rows. Where the row stride is larger than a row, the last row may end without padding. Of a larger allocation, pass a
    /// view.
    pub fn new(
        a: impl Into<DeviceMatrix<'a, A>>,
        b: impl Into<DeviceMatrix<'a, B>>,
        d: impl Into<DeviceMatrixMut<'a, D>>,
    ) -> Self {
        Operands {
            a: a.into(),
            b: b.into(),
            d: d.into(),
            c: None,
            bias: None,
            scales: None,
            scale_d: None,
            amax: None,
            alpha: 1.0,
            beta: 0.0,
            rows: None,
            ranks_rows: None,
            records: None,
        }
    }

    /// C, with D's layout and pitch, and its factor. It has D's type, or bf16 where that is fp8; and so has the bias.
    pub fn c(mut self, c: impl Into<DeviceMatrix<'a, D::Addend>>, beta: f32) -> Self {
        self.c = Some(c.into());
        self.beta = beta;
        self
    }

    /// N elements, one added to each column.
    pub fn bias(mut self, bias: &'a impl DevicePtr<D::Addend>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// The scales of A and of B, as the problem's [`Scaling`](crate::plan::Scaling) says: one each, or one for each row of
    /// A and one for each column of A · B. In a step, A's are those of this rank's rows, or of all rows if they are
    /// [replicated](crate::cuda::CollectiveOptions::replicated_row_scales).
    pub fn scales(mut self, a: &'a impl DevicePtr<f32>, b: &'a impl DevicePtr<f32>) -> Self {
        self.scales = Some([a, b]);
        self
    }

    /// The scale of a D in fp8, which outputs are multiplied by before they are rounded (default: 1).
    pub fn scale_d(mut self, scale: &'a impl DevicePtr<f32>) -> Self {
        self.scale_d = Some(scale);
        self
    }

    /// Where D is fp8: raises `amax`, which is not negative, to the largest absolute value of the outputs before they are
    /// scaled; to NaN if one is NaN. Delayed scaling finds the next step's scale from it.
    ///
    /// ```no_run
    /// # use overlap_gemm::Result;
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
    /// # use overlap_gemm::cuda::{Gemm, Operands};
    /// # use overlap_gemm::element::F8E4M3;
    /// # use std::sync::Arc;
    /// # fn step(gemm: &Gemm, stream: &Arc<CudaStream>, [a, b]: [&CudaSlice<F8E4M3>; 2], d: &mut CudaSlice<F8E4M3>,
    /// #     [of_a, of_b, of_d]: [&CudaSlice<f32>; 3]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let mut amax = stream.alloc_zeros::<f32>(1)?;
    /// let operands = Operands::new(a, b, d).scales(of_a, of_b).scale_d(of_d).amax(&mut amax);
    /// gemm.enqueue(stream, operands)?;
    /// let next_scale = 448.0 / stream.clone_dtoh(&amax)?[0];
    /// # let _ = next_scale;
    /// # Ok(())
    /// # }
    /// ```
    pub fn amax(mut self, amax: &'a mut impl DevicePtrMut<f32>) -> Self {
        self.amax = Some(amax);
        self
    }

    /// The factor of the product.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// Only the first `rows` rows: no more than planned. A, C, D and the row scales may be as short, or
    /// as long as planned, so that the buffers of the largest M serve every call.
    pub fn rows(mut self, rows: u32) -> Self {
        self.rows = Some(rows);
        self
    }

    /// In a collective step: `rows[r]` is the number of rows of rank r, the same on all ranks (default: as planned).
    ///
    /// ```no_run
    /// # use overlap_gemm::Result;
    /// # use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream};
    /// # use overlap_gemm::cuda::{AllGatherGemm, Operands};
    /// # use overlap_gemm::element::bf16;
    /// # use std::sync::Arc;
    /// # fn step(layer: &mut AllGatherGemm, stream: &Arc<CudaStream>, [shard, b]: [&CudaSlice<bf16>; 2],
    /// #     d: &mut CudaSlice<bf16>) -> Result<()> {
    /// // Rank 0 has 100 rows, rank 1 has 28. The slices may be as long as planned.
    /// layer.enqueue(stream, [Operands::new(shard, b, d).ranks_rows(&[100, 28])])
    /// # }
    /// ```
    pub fn ranks_rows(mut self, rows: &'a [u32]) -> Self {
        self.ranks_rows = Some(rows);
        self
    }

    /// Records when each tile was computed.
    pub fn records(mut self, records: &'a mut TileRecords) -> Self {
        self.records = Some(records);
        self
    }

    /// The rows of a product alone.
    pub(crate) fn own_rows(&self, problem: &Problem) -> Result<Rows> {
        let rows = [rows_of(problem, self.rows)?, problem.m()];
        Ok(Rows { a: rows, scales: rows, d: rows })
    }

    /// Whether element types, devices, shapes and lengths are those of the plan.
    pub(crate) fn check(
        &self,
        problem: &Problem,
        context: &Arc<CudaContext>,
        rows: Rows,
    ) -> Result<()> {
        check_types::<A, B, D>(problem)?;
        self.a.check("A", PlannedMatrix::a(problem, rows.a), context)?;
        self.b.check("B", PlannedMatrix::b(problem), context)?;
        let outputs = PlannedMatrix::d(problem, rows.d);
        self.d.check("D", outputs, context)?;
        if let Some(c) = &self.c {
            c.check("C", outputs, context)?;
        }
        let fits = |what: &str, len: usize, of: &Arc<CudaContext>, admitted, remedy| {
            check_context(what, of, context)?;
            check_len(what, len, admitted, remedy)
        };
        if let Some(bias) = self.bias {
            let n = problem.n().into();
            fits("the bias", bias.len(), bias.stream().context(), n..=n, ALL_ELEMENTS)?;
        }
        if let Some([a, b]) = self.scales {
            let scales = |lines| problem.scaling().count(lines) as u64;
            let [least, most] = rows.scales.map(scales);
            let columns = scales(problem.columns_of_b());
            let (of_rows, of_columns) = (least..=most, columns..=columns);
            fits("the scales of A", a.len(), a.stream().context(), of_rows, ALL_SCALES)?;
            fits("the scales of B", b.len(), b.stream().context(), of_columns, ALL_SCALES)?;
        }
        if let Some(scale) = self.scale_d {
            fits("the scale of D", scale.len(), scale.stream().context(), 1..=1, ONE_SCALE)?;
        }
        if let Some(amax) = &self.amax {
            fits("amax", amax.len(), amax.stream().context(), 1..=1, ONE_SCALE)?;
        }
        if let Some(records) = &self.records {
            check_context("the records", records.memory.context(), context)?;
        }
        Ok(())
    }
}

impl<A, B, D: Element> std::fmt::Debug for Operands<'_, A, B, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operands")
            .field("a", &self.a)
            .field("b", &self.b)
            .field("d", &self.d)
            .field("alpha", &self.alpha)
            .field("beta", &self.beta)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// The remedy for what D has one of.
const ONE_SCALE: &str = "pass one f32";
