//! What one call multiplies: the matrices, and what goes with them.
//!
//! What belongs here: the two ways of naming memory (`cudarc` slices, raw addresses) and whether what
//! was named fits a plan. Invariant: `RawOperands::check` is the one list of
//! rules for both ways; lengths and types, which an address does not have, are checked on the slices by `fit`'s rules.

use std::ops::RangeInclusive;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};

use super::held::Rows;
use super::options::GemmOptions;
use super::other_sums::OtherSums;
use crate::cuda::sys::bindings::og_gemm_operands;
use crate::cuda::sys::device::check_context;
use crate::cuda::sys::records::TileRecords;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::fit::{
    ALL_ELEMENTS, ALL_ROWS, ALL_SCALES, a_lens, b_lens, check_factors, check_len, check_types,
    d_lens,
};
use crate::plan::{Problem, Scaling, check_aligned};

/// The operands of one call in memory of `cudarc`: slices or views, as in [`Gemm`](crate::cuda::Gemm)'s example.
///
/// They are borrowed until the call. From then on `cudarc` keeps them until the stream has used them, so that they may be
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
    pub(crate) a: &'a dyn DevicePtr<A>,
    pub(crate) b: &'a dyn DevicePtr<B>,
    pub(crate) d: &'a mut dyn DevicePtrMut<D>,
    pub(crate) c: Option<&'a dyn DevicePtr<D::Addend>>,
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
    /// A and D have the rows of this call, or up to as many as planned, of which the first are used; B has all of its rows. The
    /// padding of the last row may be left out where rows are not packed. Pass a view of a larger allocation.
    pub fn new(
        a: &'a impl DevicePtr<A>,
        b: &'a impl DevicePtr<B>,
        d: &'a mut impl DevicePtrMut<D>,
    ) -> Self {
        Operands {
            a,
            b,
            d,
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
    pub fn c(mut self, c: &'a impl DevicePtr<D::Addend>, beta: f32) -> Self {
        self.c = Some(c);
        self.beta = beta;
        self
    }

    /// N elements, one added to each column.
    pub fn bias(mut self, bias: &'a impl DevicePtr<D::Addend>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// The scales of A and of B, as the problem's [`Scaling`] says: one each, or one for each row of
    /// A and one for each column of A · B. In a step, A's are those of this rank's rows, or of all rows if they are
    /// [replicated](crate::cuda::GatherOptions::replicated_row_scales).
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

    /// In a step of several ranks: the rows of each, the same on all ranks (default: as planned).
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

    /// Whether element types, devices and lengths are those of the plan.
    pub(crate) fn check(
        &self,
        problem: &Problem,
        context: &Arc<CudaContext>,
        rows: Rows,
    ) -> Result<()> {
        check_types::<A, B, D>(problem)?;
        let fits = |what: &str, len: usize, of: &Arc<CudaContext>, admitted, remedy| {
            check_context(what, of, context)?;
            check_len(what, len, admitted, remedy)
        };
        let (inputs, outputs) =
            (up_to_planned(a_lens, problem, rows.a), up_to_planned(d_lens, problem, rows.d));
        fits("A", self.a.len(), self.a.stream().context(), inputs, ALL_ROWS)?;
        fits("B", self.b.len(), self.b.stream().context(), b_lens(problem), ALL_ROWS)?;
        fits("D", self.d.len(), self.d.stream().context(), outputs.clone(), ALL_ROWS)?;
        if let Some(c) = self.c {
            fits("C", c.len(), c.stream().context(), outputs, ALL_ROWS)?;
        }
        if let Some(bias) = self.bias {
            let n = problem.n().into();
            fits("the bias", bias.len(), bias.stream().context(), n..=n, ALL_ELEMENTS)?;
        }
        if let Some([a, b]) = self.scales {
            let scales = |lines| problem.scaling().count(lines) as u64;
            let [least, most] = rows.scales.map(scales);
            let (of_rows, of_columns) = (least..=most, scales(problem.n())..=scales(problem.n()));
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
            .field("a", &self.a.len())
            .field("b", &self.b.len())
            .field("d", &self.d.len())
            .field("alpha", &self.alpha)
            .field("beta", &self.beta)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// The operands of one call as device addresses: another library's memory, or a peer's.
///
/// What is 0 is absent.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawOperands {
    /// Rows of A, `lda` apart.
    pub a: CUdeviceptr,
    /// B, as the problem's layout says.
    pub b: CUdeviceptr,
    /// Rows of D, `ldd` apart.
    pub d: CUdeviceptr,
    /// Rows of C, `ldd` apart.
    pub c: CUdeviceptr,
    /// N elements of D's type, or of bf16 where D is fp8; and so are those of C.
    pub bias: CUdeviceptr,
    /// One f32, or one for each row of A.
    pub scale_a: CUdeviceptr,
    /// One f32, or one for each column of A · B.
    pub scale_b: CUdeviceptr,
    /// Where D is fp8: one f32, the factor of outputs before they are rounded.
    pub scale_d: CUdeviceptr,
    /// Where D is fp8: one f32, raised to the largest absolute value before `scale_d`; [`Operands::amax`].
    pub amax: CUdeviceptr,
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// How many rows there are in this call; `None`: as many as planned.
    pub rows: Option<u32>,
    /// Where the records of the tiles go: see [`TileRecords::address`].
    pub records: CUdeviceptr,
    /// What a product with [`GemmOptions`]' `adds_others` adds.
    pub(crate) others: Option<OtherSums>,
}

impl RawOperands {
    /// A, B and D; nothing else, `alpha` is 1, `beta` is 0, all rows.
    pub fn new(a: CUdeviceptr, b: CUdeviceptr, d: CUdeviceptr) -> Self {
        RawOperands {
            a,
            b,
            d,
            c: 0,
            bias: 0,
            scale_a: 0,
            scale_b: 0,
            scale_d: 0,
            amax: 0,
            alpha: 1.0,
            beta: 0.0,
            rows: None,
            records: 0,
            others: None,
        }
    }

    /// B and D, where A is what is gathered, or what a [`Shard`](crate::cuda::Shard) names.
    pub fn of_gathered(b: CUdeviceptr, d: CUdeviceptr) -> Self {
        RawOperands::new(0, b, d)
    }

    /// C, with D's layout and pitch, and its factor.
    #[must_use]
    pub fn c(mut self, c: CUdeviceptr, beta: f32) -> Self {
        (self.c, self.beta) = (c, beta);
        self
    }

    /// N elements, one added to each column.
    #[must_use]
    pub fn bias(mut self, bias: CUdeviceptr) -> Self {
        self.bias = bias;
        self
    }

    /// The scales of A and of B.
    #[must_use]
    pub fn scales(mut self, a: CUdeviceptr, b: CUdeviceptr) -> Self {
        (self.scale_a, self.scale_b) = (a, b);
        self
    }

    /// The scale of a D in fp8.
    #[must_use]
    pub fn scale_d(mut self, scale: CUdeviceptr) -> Self {
        self.scale_d = scale;
        self
    }

    /// Where the largest absolute value goes.
    #[must_use]
    pub fn amax(mut self, amax: CUdeviceptr) -> Self {
        self.amax = amax;
        self
    }

    /// The factor of the product.
    #[must_use]
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    /// Only the first `rows` rows.
    #[must_use]
    pub fn rows(mut self, rows: u32) -> Self {
        self.rows = Some(rows);
        self
    }

    /// These with an A that is named elsewhere, and its row scales, where the problem has such.
    pub(crate) fn with_a(
        &self,
        problem: &Problem,
        a: CUdeviceptr,
        row_scales: CUdeviceptr,
    ) -> Result<Self> {
        let by_rows = problem.scaling() == Scaling::Rows;
        let own = [("A", self.a != 0), ("the row scales of A", by_rows && self.scale_a != 0)];
        for (what, there) in own {
            if there {
                let remedy = "name it by the shard: RawOperands::of_gathered leaves it out";
                return Err(Error::mismatch(what, "there", "absent", remedy));
            }
        }
        let scale_a = if by_rows { row_scales } else { self.scale_a };
        Ok(RawOperands { a, scale_a, ..*self })
    }

    /// Those of the rows from `first` on.
    pub(crate) fn rows_from(&self, problem: &Problem, first: u32) -> Self {
        let elements = problem.elements();
        let at = |start: CUdeviceptr, pitch: u32, size: u32| {
            start + u64::from(first) * u64::from(pitch) * u64::from(size)
        };
        let like_d = |start, element: ElementType| at(start, problem.ldd(), element.size());
        let by_rows = problem.scaling() == Scaling::Rows;
        RawOperands {
            others: self.others.map(|others| others.rows_from(first, elements.d)),
            a: at(self.a, problem.lda(), elements.a.size()),
            d: like_d(self.d, elements.d),
            c: if self.c == 0 { 0 } else { like_d(self.c, elements.d.addend()) },
            scale_a: if by_rows { at(self.scale_a, 1, 4) } else { self.scale_a },
            ..*self
        }
    }

    /// Whether the operands are those that were planned, and where a kernel can reach them: the rows and the
    /// addresses to hand over.
    pub(crate) fn check(
        &self,
        problem: &Problem,
        options: &GemmOptions,
    ) -> Result<(u32, og_gemm_operands)> {
        let rows = rows_of(problem, self.rows)?;
        let required = [("A", self.a), ("B", self.b), ("D", self.d)];
        for (what, address) in required {
            check_present(what, true, address)?;
        }
        let scaled = problem.scaling() != Scaling::None;
        let optional = [
            ("C", options.c, self.c),
            ("the bias", options.bias, self.bias),
            ("the scale of A", scaled, self.scale_a),
            ("the scale of B", scaled, self.scale_b),
        ];
        for (what, planned, address) in optional {
            check_present(what, planned, address)?;
        }
        let aligned = [
            ("the address of A", self.a),
            ("the address of B", self.b),
            ("the address of C", self.c),
            ("the address of D", self.d),
            ("the address of the bias", self.bias),
        ];
        for (what, address) in aligned {
            check_aligned(what, address, "start it at a multiple of 16 bytes")?;
        }
        for (what, address) in [("a scale", self.scale_d), ("an amax", self.amax)] {
            problem.elements().check_fp8_output(what, address != 0)?;
        }
        check_factors(self.alpha, self.beta)?;
        let by_line = i32::from(problem.scaling() == Scaling::Rows);
        let operands = og_gemm_operands {
            a: self.a as *const _,
            b: self.b as *const _,
            c: self.c as *const _,
            d: self.d as *mut _,
            bias: self.bias as *const _,
            scale_a: self.scale_a as *const _,
            scale_b: self.scale_b as *const _,
            scale_d: self.scale_d as *const _,
            amax_d: self.amax as *mut _,
            scale_a_per_row: by_line,
            scale_b_per_column: by_line,
            alpha: self.alpha,
            beta: self.beta,
            activation: options.activation.into(),
            b_is_there: options.constant_b.into(),
            others: std::ptr::null(),
        };
        Ok((rows, operands))
    }
}

/// The rows of a call: those asked for, or all that were planned.
fn rows_of(problem: &Problem, rows: Option<u32>) -> Result<u32> {
    let rows = rows.unwrap_or(problem.m());
    let remedy = "plan for the largest M that any step will have";
    Error::check_range("the number of rows", rows, 1..=problem.m(), remedy).map(|()| rows)
}

/// The remedy for what D has one of.
const ONE_SCALE: &str = "pass one f32";

/// How long a buffer may be in a call of `rows` rows: as these rows, up to as all that were planned.
/// Device memory is allocated once, for the largest M, and graphs keep its addresses.
fn up_to_planned(
    lens: fn(&Problem, u32) -> RangeInclusive<u64>,
    problem: &Problem,
    [rows, planned]: [u32; 2],
) -> RangeInclusive<u64> {
    *lens(problem, rows).start()..=*lens(problem, planned).end()
}

/// An error unless an operand is there exactly if the plan has one.
fn check_present(what: &str, planned: bool, address: CUdeviceptr) -> Result<()> {
    let remedy = "give what the problem's scaling and the plan's options say, no more and no less";
    check_there(what, planned, address, remedy)
}

pub(super) fn check_there(
    what: &str,
    needed: bool,
    at: CUdeviceptr,
    remedy: &'static str,
) -> Result<()> {
    let word = |there: bool| if there { "there" } else { "absent" };
    if needed == (at != 0) {
        return Ok(());
    }
    Err(Error::mismatch(what, word(at != 0), word(needed), remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType::{Bf16, E4m3};

    fn planned() -> Problem {
        let problem = Problem::builder(64, 32, 16).elements(E4m3, E4m3, Bf16);
        problem.scaling(Scaling::Rows).build().unwrap()
    }

    #[test]
    fn buffers_of_the_planned_rows_serve_fewer() {
        let problem = Problem::builder(64, 32, 16).lda(24).build().unwrap();
        assert_eq!(up_to_planned(a_lens, &problem, [64, 64]), 63 * 24 + 16..=64 * 24);
        assert_eq!(up_to_planned(a_lens, &problem, [7, 64]), 6 * 24 + 16..=64 * 24);
        assert_eq!(up_to_planned(d_lens, &problem, [64, 64]), 64 * 32..=64 * 32);
        assert_eq!(up_to_planned(d_lens, &problem, [7, 64]), 7 * 32..=64 * 32);
    }

    #[test]
    fn rows_of_a_rank_start_where_they_lie() {
        let problem = Problem::builder(100, 48, 64).shards(&[40, 60]).lda(80).ldd(56);
        let problem = problem.build().unwrap();
        let whole = RawOperands { a: 1600, ..RawOperands::of_gathered(16, 3200) }.c(6400, 1.0);
        let part = whole.rows_from(&problem, 40);
        assert_eq!((part.a, part.b), (1600 + 40 * 80 * 2, 16));
        assert_eq!((part.d, part.c), (3200 + 40 * 56 * 2, 6400 + 40 * 56 * 2));
    }

    #[test]
    fn what_does_not_fit_the_plan_is_named() {
        let (problem, options) = (planned(), GemmOptions::default().with_bias(true));
        let good = RawOperands::new(16, 32, 48).bias(64).scales(4, 8);
        let refused = |operands: RawOperands| operands.check(&problem, &options).unwrap_err();
        let (rows, raw) = good.check(&problem, &options).unwrap();
        assert_eq!((rows, raw.scale_a_per_row, raw.alpha), (64, 1, 1.0));
        assert_eq!(good.rows(7).check(&problem, &options).unwrap().0, 7);

        let texts = [
            (good.rows(0), "the number of rows is 0"),
            (good.rows(65), "the number of rows is 65, but must be between 1 and 64"),
            (good.bias(0), "the bias is absent, but must be there"),
            (good.c(16, 1.0), "C is there, but must be absent"),
            (good.scales(4, 0), "the scale of B is absent"),
            (good.bias(72), "the address of the bias is 72 bytes"),
            (RawOperands { a: 0, ..good }, "A is absent"),
            (RawOperands { d: 24, ..good }, "the address of D is 24 bytes"),
            (good.alpha(f32::NAN), "alpha is NaN"),
            (good.scale_d(16), "a scale for a D in bf16"),
            (good.amax(16), "an amax for a D in bf16"),
        ];
        for (operands, text) in texts {
            let error = refused(operands).to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
