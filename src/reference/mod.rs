//! What a product should be: in `f64`, with the error that its arithmetic may make.
//!
//! For anyone who checks a kernel, their own too. Invariant: the bound is derived, not tuned: `bound.rs`
//! has the steps. With `u = 2⁻²⁴`, a sum of K products accumulated in `f32` in any order, times `alpha`,
//! a row scale and a column scale, is off by at most `(K + 3)·u / (1 − (K + 3)·u) · Σ|a·b|`, and by half
//! the smallest `f32` for each operation that underflows; the epilogue adds what its operations may
//! lose; rounding to D adds half a unit in the last place. A result outside is wrong. Where the bound
//! cannot tell, because sums of magnitudes overflow `f32`, it is infinite.
//!
//! The bound holds for the worst inputs, so for large K a wrong result may hide under it: look at
//! [`Report::relative_error`] too, which for random inputs stays near D's unit roundoff.

mod bound;
mod reduced;

use std::ops::RangeInclusive;

use serde::Serialize;

pub use bound::Accumulation;
pub use reduced::{compare_in_partials, compare_reduced, reduced};

pub use crate::plan::Epilogue;

use bound::{Expected, summed};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{
    ALL_ROWS, a_lens, b_lens, check_epilogue, check_len, check_scales, d_lens, scale_at,
};
use crate::plan::{BLayout, GATE_COLUMNS, Problem, gate_column};

/// The longest sum with a bound: (K + 3)·u stays below one half.
const MAX_K: u32 = (1 << 23) - 4;

/// One product's inputs, all of A at once.
///
/// ```
/// use overlap_gemm::element::bf16;
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::random::Random;
/// use overlap_gemm::reference::Reference;
///
/// let problem = Problem::builder(2, 1, 64).build()?;
/// let mut random = Random::new(1);
/// let (a, b) = (random.elements::<bf16>(2 * 64), random.elements::<bf16>(64));
/// # let own_kernel = |a: &[bf16], b: &[bf16]| -> Vec<bf16> {
/// #     let sum = |row: &[bf16]| row.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum();
/// #     a.chunks(64).map(|row| bf16::from_f32(sum(row))).collect()
/// # };
/// let report = Reference::new(&problem, &a, &b, &[], &[])?.compare(&own_kernel(&a, &b), 0..2)?;
/// assert!(report.wrong == 0, "{:?}", report.first_wrong);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a, A, B> {
    problem: &'a Problem,
    a: &'a [A],
    b: &'a [B],
    a_scales: &'a [f32],
    b_scales: &'a [f32],
    accumulation: Accumulation,
}

/// An output that is not what it should be.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::reference::Reference;
///
/// let problem = Problem::builder(1, 1, 2).elements(F32, F32, F32).build()?;
/// let reference = Reference::new(&problem, &[1.0_f32, 2.0], &[1.0_f32, 1.0], &[], &[])?;
/// let wrong = reference.compare(&[4.0_f32], 0..1)?.first_wrong.expect("1 + 2 is not 4");
/// assert_eq!((wrong.got, wrong.expected), (4.0, 3.0));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
///
/// ```
/// use overlap_gemm::reference::Report;
///
/// let mut all = Report { compared: 3, ..Report::default() };
/// all.merge(&Report { compared: 5, wrong: 1, ..Report::default() });
/// assert_eq!((all.compared, all.wrong), (8, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
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
    /// A reference for `a` (rows `lda` apart) times `b`, with the scales of the problem's scaling. Of several
    /// [batches](crate::plan::ProblemBuilder::batches), rows of D lie as ranks get them; along
    /// [columns](crate::plan::ProblemBuilder::scatter_columns), those of one rank's D behind those of the other's.
    ///
    /// Every slice holds the problem's rows, no fewer and no more; the padding of its last row may be
    /// left out.
    pub fn new(
        problem: &'a Problem,
        a: &'a [A],
        b: &'a [B],
        a_scales: &'a [f32],
        b_scales: &'a [f32],
    ) -> Result<Self> {
        let (m, n) = (problem.rows_of_a(), problem.columns_of_b());
        check_len("A", a.len(), a_lens(problem, m), ALL_ROWS)?;
        check_len("B", b.len(), b_lens(problem), ALL_ROWS)?;
        check_scales("the scales of A", a_scales, problem.scaling().count(m))?;
        check_scales("the scales of B", b_scales, problem.scaling().count(n))?;
        let remedy = "no bound holds for longer sums: compare parts of them";
        Error::check_range("k", problem.k(), 1..=MAX_K, remedy)?;
        let accumulation = Accumulation::default();
        Ok(Reference { problem, a, b, a_scales, b_scales, accumulation })
    }

    /// The same reference for products that are added up in another way than in `f32`.
    #[must_use]
    pub fn with_accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// Compares the given rows of `d` (M rows, `ldd` apart); rows beyond M are passed over.
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
        self.compare_with(d, rows, Epilogue::default())
    }

    /// [`Reference::compare`] where more than the product was computed.
    pub fn compare_with<D: Element>(
        &self,
        d: &[D],
        rows: impl IntoIterator<Item = u32>,
        epilogue: Epilogue<'_, D>,
    ) -> Result<Report> {
        let m = self.problem.m();
        check_len("D", d.len(), d_lens(self.problem, m), ALL_ROWS)?;
        check_epilogue(self.problem, m, &epilogue, ALL_ROWS)?;
        let b = self.wide_b();
        let rows = rows.into_iter().filter(|&row| row < m);
        Ok(Report::of(self.problem, d, &epilogue, rows, |row| {
            self.sums(row, &b, epilogue.alpha).collect()
        }))
    }

    /// Between which the largest absolute value of the outputs of these rows is, before it is scaled and rounded: what a
    /// product with a D of fp8 notes.
    pub fn amax<D: Element>(
        &self,
        rows: impl IntoIterator<Item = u32>,
        epilogue: Epilogue<'_, D>,
    ) -> Result<RangeInclusive<f64>> {
        let m = self.problem.m();
        check_epilogue(self.problem, m, &epilogue, ALL_ROWS)?;
        let b = self.wide_b();
        let (mut least, mut most) = (0f64, 0f64);
        for row in rows.into_iter().filter(|&row| row < m) {
            let sums: Vec<Expected> = self.sums(row, &b, epilogue.alpha).collect();
            let first = row as usize * self.problem.ldd() as usize;
            for Expected { value, bound } in outputs(self.problem, &epilogue, &sums, first) {
                least = least.max(value.abs() - bound);
                most = most.max(value.abs() + bound);
            }
        }
        Ok(least..=most)
    }

    /// B as N rows of K.
    fn wide_b(&self) -> Vec<f64> {
        let (n, k) = (self.problem.columns_of_b() as usize, self.problem.k() as usize);
        let lines = self.b.chunks(self.problem.ldb() as usize);
        match self.problem.b_layout() {
            BLayout::Nk => lines.take(n).flat_map(|line| widened(&line[..k])).collect(),
            BLayout::Kn => {
                let mut wide = vec![0.0; n * k];
                for (at, line) in lines.take(k).enumerate() {
                    let column = wide[at..].iter_mut().step_by(k);
                    column.zip(widened(&line[..n])).for_each(|(to, value)| *to = value);
                }
                wide
            }
        }
    }

    /// The sums of a row times `alpha` and the scales.
    fn sums(&self, row: u32, wide_b: &[f64], alpha: f32) -> impl Iterator<Item = Expected> {
        let [k, n] = [self.problem.k(), self.problem.n()].map(|size| size as usize);
        let part = self.problem.parts(row..row + 1).next();
        let (row, first) =
            part.map_or((row, 0), |part| (part.in_a, part.first_column(self.problem)));
        let begin = row as usize * self.problem.lda() as usize;
        let a: Vec<f64> = widened(&self.a[begin..begin + k]).collect();
        let columns = wide_b.chunks_exact(k).enumerate().skip(first as usize).take(n);
        columns.map(move |(column, b)| {
            let scales = [scale_at(self.a_scales, row as usize), scale_at(self.b_scales, column)];
            summed(&a, b, self.accumulation, [alpha, scales[0], scales[1]].map(f64::from))
        })
    }
}

impl Report {
    /// Compares some rows of `d`; `sums` gives those of a row, before anything is added to them.
    fn of<D: Element>(
        problem: &Problem,
        d: &[D],
        epilogue: &Epilogue<'_, D>,
        rows: impl Iterator<Item = u32>,
        sums: impl Fn(u32) -> Vec<Expected>,
    ) -> Report {
        let mut report = Report::default();
        let (mut error_squares, mut squares) = (0.0, 0.0);
        for row in rows {
            let (sums, first) = (sums(row), row as usize * problem.ldd() as usize);
            let outputs = outputs(problem, epilogue, &sums, first);
            for (column, output) in outputs.enumerate() {
                let at = first + column;
                let expected = output.scaled(epilogue.scale_d).rounded::<D>();
                let got = f64::from(d[at].widen());
                let error = error_of::<D>(got, expected);
                error_squares += error * error;
                if expected.value.is_finite() {
                    squares += expected.value * expected.value;
                }
                report.add(row, column as u32, got, expected, error);
            }
        }
        report.relative_error = match squares > 0.0 {
            true => (error_squares / squares).sqrt(),
            false => error_squares.sqrt(),
        };
        report
    }

    fn add(&mut self, row: u32, column: u32, got: f64, expected: Expected, error: f64) {
        let Expected { value, bound } = expected;
        self.compared += 1;
        // A NaN error compares as neither: it must count as wrong. (An infinite value has no bound.)
        let right = error <= bound || error == 0.0;
        if !right {
            self.wrong += 1;
            let wrong = Wrong { row, column, got, expected: value, bound };
            self.first_wrong.get_or_insert(wrong);
        }
        let worse =
            |worst: f64, new: f64| if new.is_nan() { f64::INFINITY } else { worst.max(new) };
        self.max_error = worse(self.max_error, error);
        let fraction = if error == 0.0 { 0.0 } else { error / bound };
        self.worst_fraction = worse(self.worst_fraction, fraction);
    }

    /// What is wrong, in a sentence; nothing if nothing is.
    pub fn complaint(&self) -> Option<String> {
        let Wrong { row, column, got, expected, bound } = self.first_wrong?;
        let Report { wrong, compared, .. } = self;
        Some(format!(
            "{wrong} of {compared} results are wrong; \
             D[{row}, {column}] is {got}, should be {expected} ± {bound:.1e}"
        ))
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

/// A row's outputs before they are scaled and rounded; the row of C begins at `first`.
fn outputs<D: Element>(
    problem: &Problem,
    epilogue: &Epilogue<'_, D>,
    sums: &[Expected],
    first: usize,
) -> impl Iterator<Item = Expected> {
    // With what is added to it; only products that are not gated have a C.
    let with_addends = move |column: usize| {
        let c = epilogue.c.map(|c| f64::from(epilogue.beta) * f64::from(c[first + column].widen()));
        let bias = epilogue.bias.map(|bias| f64::from(bias[column].widen()));
        match (c, bias) {
            (None, None) => sums[column],
            (c, bias) => sums[column].plus([c.unwrap_or(0.0), bias.unwrap_or(0.0)]),
        }
    };
    (0..problem.d_columns()).map(move |column| {
        if !problem.is_gated() {
            return with_addends(column as usize).activated(epilogue.activation);
        }
        let gate = gate_column(column) as usize;
        let value = with_addends(gate + GATE_COLUMNS as usize);
        with_addends(gate).activated(epilogue.activation).times(value)
    })
}

/// How far `got` is from what it should be; an infinity is right where the value overflows D.
fn error_of<D: Element>(got: f64, expected: Expected) -> f64 {
    if !expected.value.is_finite() {
        // NaN or infinite inputs: then so must the output be.
        let same = got == expected.value || (got.is_nan() && expected.value.is_nan());
        return if same { 0.0 } else { f64::NAN };
    }
    if expected.bound == f64::INFINITY {
        return 0.0;
    }
    let overflows = expected.value.abs() + expected.bound > D::TYPE.max_finite();
    if overflows && got.is_infinite() && got.signum() == expected.value.signum() {
        return 0.0;
    }
    (got - expected.value).abs()
}

fn widened<T: Element>(row: &[T]) -> impl Iterator<Item = f64> + use<T> {
    let mut wide = vec![0.0; row.len()];
    T::widen_row(row, &mut wide);
    wide.into_iter().map(f64::from)
}

#[cfg(test)]
mod tests;
