//! What one call multiplies, as device addresses.
//!
//! What belongs here: addresses, and whether they fit a plan. Invariant: `RawOperands::check` has every rule that does not need
//! the length or the type of a slice.

use cudarc::driver::sys::CUdeviceptr;

use super::options::GemmOptions;
use super::other_sums::OtherSums;
use crate::cuda::sys::bindings::og_gemm_operands;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::fit::check_factors;
use crate::plan::{BLayout, Problem, Scaling, check_aligned};

/// The operands of one call as device addresses: another library's memory, or a peer's.
///
/// What is 0 is absent.
///
/// ```no_run
/// use overlap_gemm::cuda::RawOperands;
///
/// /// D = 0.5 · A · B + bias, of 128 rows.
/// fn operands([a, b, bias, d]: [u64; 4]) -> RawOperands {
///     RawOperands::new(a, b, d).alpha(0.5).bias(bias).rows(128)
/// }
/// ```
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
    /// Where D is fp8: one f32, raised to the largest absolute value before `scale_d`; [`Operands::amax`](super::operands::Operands::amax).
    pub amax: CUdeviceptr,
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// How many rows there are in this call; `None`: as many as planned.
    pub rows: Option<u32>,
    /// Where the records of the tiles go.
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

    /// Where the records of the tiles go: [`TileRecords::address`](crate::cuda::TileRecords::address).
    #[must_use]
    pub fn records(mut self, address: CUdeviceptr) -> Self {
        self.records = address;
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

    /// Those of the rows from these on: of A, and of D.
    pub(crate) fn rows_from(&self, problem: &Problem, [of_a, of_d]: [u32; 2]) -> Self {
        let elements = problem.elements();
        let at = |start: CUdeviceptr, first: u32, pitch: u32, size: u32| {
            start + u64::from(first) * u64::from(pitch) * u64::from(size)
        };
        let like_d = |start, element: ElementType| at(start, of_d, problem.ldd(), element.size());
        let by_rows = problem.scaling() == Scaling::Rows;
        RawOperands {
            others: self.others.map(|others| others.rows_from(of_d, elements.d)),
            a: at(self.a, of_a, problem.lda(), elements.a.size()),
            d: like_d(self.d, elements.d),
            c: if self.c == 0 { 0 } else { like_d(self.c, elements.d.addend()) },
            scale_a: if by_rows { at(self.scale_a, of_a, 1, 4) } else { self.scale_a },
            ..*self
        }
    }

    /// Those of the columns of A · B from this one on: of B.
    pub(crate) fn columns_from(&self, problem: &Problem, first: u32) -> Self {
        let pitch = if problem.b_layout() == BLayout::Nk { problem.ldb() } else { 1 };
        let bytes = u64::from(pitch) * u64::from(problem.elements().b.size());
        let by_columns = problem.scaling() == Scaling::Rows;
        let scale_b = if by_columns { self.scale_b + 4 * u64::from(first) } else { self.scale_b };
        RawOperands { b: self.b + u64::from(first) * bytes, scale_b, ..*self }
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
pub(super) fn rows_of(problem: &Problem, rows: Option<u32>) -> Result<u32> {
    let rows = rows.unwrap_or(problem.m());
    let remedy = "plan for the largest M that any step will have";
    Error::check_range("the number of rows", rows, 1..=problem.m(), remedy).map(|()| rows)
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
    fn rows_of_a_rank_start_where_they_lie() {
        let problem = Problem::builder(100, 48, 64).shards(&[40, 60]).lda(80).ldd(56);
        let problem = problem.build().unwrap();
        let whole = RawOperands { a: 1600, ..RawOperands::of_gathered(16, 3200) }.c(6400, 1.0);
        let part = whole.rows_from(&problem, [30, 40]);
        assert_eq!((part.a, part.b), (1600 + 30 * 80 * 2, 16));
        assert_eq!((part.d, part.c), (3200 + 40 * 56 * 2, 6400 + 40 * 56 * 2));
    }

    #[test]
    fn columns_of_a_rank_start_where_they_lie() {
        let problem = Problem::builder(10, 96, 64).elements(E4m3, E4m3, Bf16).ranks(2);
        let problem = problem.scatter_columns(true).scaling(Scaling::Rows);
        let of = |layout, ldb| problem.clone().b_layout(layout).ldb(ldb).build().unwrap();
        let whole = RawOperands::new(16, 1600, 3200).bias(4800).scales(6400, 8000);
        let part = whole.columns_from(&of(BLayout::Nk, 80), 48);
        assert_eq!((part.b, part.scale_b), (1600 + 48 * 80, 8000 + 48 * 4));
        assert_eq!((part.a, part.d, part.bias, part.scale_a), (16, 3200, 4800, 6400));
        assert_eq!(whole.columns_from(&of(BLayout::Kn, 112), 48).b, 1600 + 48);
        let bf16 = Problem::builder(10, 96, 64).build().unwrap();
        let part = whole.columns_from(&bf16, 48);
        assert_eq!((part.b, part.scale_b), (1600 + 48 * 64 * 2, 8000));
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
