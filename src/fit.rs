//! Whether a caller's slices fit a problem.
//!
//! Invariant: after these checks no slice index in an executor can be out of bounds, no slice holds a
//! row more than the step has, and no scale is NaN or infinite.
//!
//! **The rule for lengths.** A slice holds the rows of its matrix in this step, no row less and no row
//! more. Where rows are packed (row stride = columns) there is one right length. Where the row stride is
//! larger, the slice ends between the last element of the last row and the end of that row's padding.
//! A longer slice is refused because it is usually another matrix: all of A where the rank's rows are
//! meant, a whole weight where a rank's part of it is meant, or an output of more rows than the step
//! computes. Vectors (bias, scales) have one right length.
//!
//! Three places differ, and say why beside the check: a chunk that is published to an `AsyncInput` may
//! be shorter than planned, device buffers may have any length between the rows of the call and the
//! rows that were planned (or that of the rows that a `DeviceMatrix` says), and raw device addresses have no length.

use std::ops::RangeInclusive;

use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::plan::{Epilogue, Problem};

/// The remedy for a matrix of which a rank gives a part.
pub(crate) const OWN_ROWS: &str = "pass this rank's rows only, and all of them";

/// The remedy for every other matrix.
pub(crate) const ALL_ROWS: &str = "pass all rows that this step has, and no others";

/// The remedy for a vector.
pub(crate) const ALL_ELEMENTS: &str = "pass one element a column";

/// The remedy for scales.
pub(crate) const ALL_SCALES: &str =
    "give no scales, one, or one a row or column, as the plan's Scaling says";

/// An error unless there are `expected` scales, all finite.
pub(crate) fn check_scales(what: &str, scales: &[f32], expected: usize) -> Result<()> {
    if scales.len() != expected {
        let what = format!("the number of {what}");
        return Err(Error::mismatch(what, scales.len(), expected, ALL_SCALES));
    }
    match scales.iter().position(|scale| !scale.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Error::NotFinite {
            what: format!("{what}, at index {index},"),
            value: scales[index].to_string(),
            remedy: "give finite scales",
        }),
    }
}

/// How long a slice of `rows` rows of A may be.
pub(crate) fn a_lens(problem: &Problem, rows: u32) -> RangeInclusive<u64> {
    problem.a_len(rows)..=whole_rows(rows, problem.lda())
}

/// How long a slice of B may be.
pub(crate) fn b_lens(problem: &Problem) -> RangeInclusive<u64> {
    problem.b_len()..=whole_rows(problem.b_extent().0, problem.ldb())
}

/// How long a slice of `rows` rows of C or D may be.
pub(crate) fn d_lens(problem: &Problem, rows: u32) -> RangeInclusive<u64> {
    problem.d_len_of(rows)..=whole_rows(rows, problem.ldd())
}

/// An error unless C has `rows` rows as D does, the bias an element for each column, and the factors are finite.
pub(crate) fn check_epilogue<D: Element>(
    problem: &Problem,
    rows: u32,
    epilogue: &Epilogue<'_, D>,
    rows_remedy: &'static str,
) -> Result<()> {
    problem.check_c(epilogue.c.is_some())?;
    if let Some(c) = epilogue.c {
        check_len("C", c.len(), d_lens(problem, rows), rows_remedy)?;
    }
    if let Some(bias) = epilogue.bias {
        let n = problem.n().into();
        check_len("the bias", bias.len(), n..=n, ALL_ELEMENTS)?;
    }
    problem.elements().check_fp8_output("a scale", epilogue.scale_d != 1.0)?;
    check_factor("the scale of D", epilogue.scale_d)?;
    check_factors(epilogue.alpha, epilogue.beta)
}

/// An error unless both are finite.
pub(crate) fn check_factors(alpha: f32, beta: f32) -> Result<()> {
    check_factor("alpha", alpha)?;
    check_factor("beta", beta)
}

fn check_factor(what: &str, value: f32) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    let (what, value) = (what.to_owned(), value.to_string());
    Err(Error::NotFinite { what, value, remedy: "give a finite factor" })
}

/// The scale at `index` of none, one, or one each.
pub(crate) fn scale_at(scales: &[f32], index: usize) -> f32 {
    match scales {
        [] => 1.0,
        [one] => *one,
        each => each[index],
    }
}

fn whole_rows(rows: u32, stride: u32) -> u64 {
    u64::from(rows) * u64::from(stride)
}

/// An error unless a slice has one of the `admitted` lengths.
pub(crate) fn check_len(
    what: &str,
    len: usize,
    admitted: RangeInclusive<u64>,
    remedy: &'static str,
) -> Result<()> {
    if admitted.contains(&(len as u64)) {
        return Ok(());
    }
    let expected = match admitted.into_inner() {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("between {least} and {most}"),
    };
    Err(Error::mismatch(format!("the length of {what}"), len, expected, remedy))
}

/// An error unless the Rust types are those that were planned.
pub(crate) fn check_types<A: Element, B: Element, D: Element>(problem: &Problem) -> Result<()> {
    let planned = problem.elements();
    check_type::<A>("A", planned.a)?;
    check_type::<B>("B", planned.b)?;
    check_type::<D>("D", planned.d)
}

pub(crate) fn check_type<T: Element>(what: &str, planned: ElementType) -> Result<()> {
    if T::TYPE == planned {
        return Ok(());
    }
    let remedy = "give the type that was planned, or plan with this one";
    Err(Error::mismatch(format!("the element type of {what}"), T::TYPE, planned, remedy))
}
