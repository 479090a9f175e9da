//! What a product should be: in `f64`, with the error that its arithmetic may make.
//!
//! For anyone who checks a kernel, their own too. Invariant: the bound is derived, not tuned. With
//! `u = 2⁻²⁴`, a sum of K products accumulated in `f32` in any order, and two scale multiplications,
//! is off by at most `(K + 3)·u / (1 − (K + 3)·u) · Σ|a·b|`; rounding it to D adds half a unit in the
//! last place. A result outside is wrong, whatever the input.

use crate::element::{Element, ElementType};
use crate::error::Result;
use crate::fit::{check_len, check_scales, scale_count};
use crate::plan::{BLayout, Problem};

/// One product's inputs, all of A at once.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a, A, B> {
    problem: &'a Problem,
    a: &'a [A],
    b: &'a [B],
    a_scales: &'a [f32],
    b_scales: &'a [f32],
}

/// What an output should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The exact value, up to `f64` rounding.
    pub value: f64,
    /// How far an output may be from it.
    pub bound: f64,
}

/// An output that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Wrong {
    /// Its row.
    pub row: u32,
    /// Its column.
    pub column: u32,
    /// What it is.
    pub got: f64,
    /// What it should be.
    pub expected: f64,
    /// How far it may be from that.
    pub bound: f64,
}

/// How outputs compare with what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Report {
    /// Outputs compared.
    pub compared: u64,
    /// Outputs that are wrong.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<Wrong>,
    /// The largest error.
    pub max_error: f64,
    /// The largest error, as a fraction of its bound: at most 1 if nothing is wrong.
    pub worst_fraction: f64,
    /// ‖D − reference‖ / ‖reference‖ over what was compared.
    pub relative_error: f64,
}

impl<'a, A: Element, B: Element> Reference<'a, A, B> {
    /// A reference for `a` (rows `lda` apart) times `b`, with the scales of the problem's scaling.
    pub fn new(
        problem: &'a Problem,
        a: &'a [A],
        b: &'a [B],
        a_scales: &'a [f32],
        b_scales: &'a [f32],
    ) -> Result<Self> {
        check_len("the length of A", a.len(), problem.a_len(problem.m()))?;
        check_len("the length of B", b.len(), problem.b_len())?;
        check_scales("the scales of A", a_scales, scale_count(problem.scaling(), problem.m()))?;
        check_scales("the scales of B", b_scales, scale_count(problem.scaling(), problem.n()))?;
        Ok(Reference { problem, a, b, a_scales, b_scales })
    }

    /// Compares the given rows of `d` (rows `ldd` apart); rows beyond M are passed over.
    ///
    /// ```
    /// use overlap_gemm::ElementType;
    /// use overlap_gemm::plan::Problem;
    /// use overlap_gemm::reference::Reference;
    ///
    /// let problem = Problem::builder(1, 2, 3)
    ///     .elements(ElementType::F32, ElementType::F32, ElementType::F32)
    ///     .build()?;
    /// let reference =
    ///     Reference::new(&problem, &[1.0f32, 2.0, 3.0], &[1.0f32, 1.0, 1.0, 0.0, 0.0, 2.0], &[], &[])?;
    /// assert_eq!(reference.compare(&[6.0f32, 6.0], 0..1)?.wrong, 0);
    /// assert_eq!(reference.compare(&[6.0f32, f32::NAN], 0..1)?.wrong, 1);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn compare<D: Element>(
        &self,
        d: &[D],
        rows: impl IntoIterator<Item = u32>,
    ) -> Result<Report> {
        check_len("the length of D", d.len(), self.problem.d_len())?;
        let b = self.wide_b();
        let mut report = Report::default();
        let (mut error_squares, mut squares) = (0.0, 0.0);
        for row in rows.into_iter().filter(|&row| row < self.problem.m()) {
            for (column, expected) in self.expected_row::<D>(row, &b).into_iter().enumerate() {
                let at = row as usize * self.problem.ldd() as usize + column;
                let got = f64::from(d[at].widen());
                let error = error_of::<D>(got, expected);
                error_squares += error * error;
                squares += expected.value * expected.value;
                report.add(row, column as u32, got, expected, error);
            }
        }
        report.relative_error = match squares > 0.0 {
            true => (error_squares / squares).sqrt(),
            false => error_squares.sqrt(),
        };
        Ok(report)
    }

    /// B as N rows of K.
    fn wide_b(&self) -> Vec<f64> {
        let (n, k, ldb) =
            (self.problem.n() as usize, self.problem.k() as usize, self.problem.ldb());
        let at = |n: usize, k: usize| match self.problem.b_layout() {
            BLayout::Nk => n * ldb as usize + k,
            BLayout::Kn => k * ldb as usize + n,
        };
        let mut wide = Vec::with_capacity(n * k);
        for n in 0..n {
            wide.extend((0..k).map(|k| f64::from(self.b[at(n, k)].widen())));
        }
        wide
    }

    fn expected_row<D: Element>(&self, row: u32, wide_b: &[f64]) -> Vec<Expected> {
        let k = self.problem.k() as usize;
        let begin = row as usize * self.problem.lda() as usize;
        let a: Vec<f64> = self.a[begin..begin + k].iter().map(|a| f64::from(a.widen())).collect();
        let operations = (k + 3) as f64 * ElementType::F32.unit_roundoff();
        let relative = operations / (1.0 - operations);
        let columns = wide_b.chunks_exact(k).enumerate();
        columns
            .map(|(column, b)| {
                let products = || a.iter().zip(b).map(|(a, b)| a * b);
                let scale = scale(self.a_scales, row as usize) * scale(self.b_scales, column);
                let value = products().sum::<f64>() * scale;
                let summed = products().map(f64::abs).sum::<f64>() * scale.abs() * relative;
                let rounded = (value.abs() + summed) * D::TYPE.unit_roundoff();
                Expected { value, bound: summed + rounded + D::TYPE.min_positive() / 2.0 }
            })
            .collect()
    }
}

impl Report {
    fn add(&mut self, row: u32, column: u32, got: f64, expected: Expected, error: f64) {
        let Expected { value, bound } = expected;
        self.compared += 1;
        // A NaN error compares as neither: it must count as wrong.
        let right = error <= bound;
        if !right {
            self.wrong += 1;
            let wrong = Wrong { row, column, got, expected: value, bound };
            self.first_wrong.get_or_insert(wrong);
        }
        let worse =
            |worst: f64, new: f64| if new.is_nan() { f64::INFINITY } else { worst.max(new) };
        self.max_error = worse(self.max_error, error);
        self.worst_fraction = worse(self.worst_fraction, error / bound);
    }

    /// This report and another together; relative errors are combined by the worse.
    pub fn merge(&mut self, other: &Report) {
        self.compared += other.compared;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.or(other.first_wrong);
        self.max_error = self.max_error.max(other.max_error);
        self.worst_fraction = self.worst_fraction.max(other.worst_fraction);
        self.relative_error = self.relative_error.max(other.relative_error);
    }
}

/// How far `got` is from what it should be; an infinity is right where the value overflows D.
fn error_of<D: Element>(got: f64, expected: Expected) -> f64 {
    let overflows = expected.value.abs() + expected.bound > D::TYPE.max_finite();
    if overflows && got.is_infinite() && got.signum() == expected.value.signum() {
        return 0.0;
    }
    (got - expected.value).abs()
}

fn scale(scales: &[f32], index: usize) -> f64 {
    match scales {
        [] => 1.0,
        [one] => f64::from(*one),
        each => f64::from(each[index]),
    }
}
