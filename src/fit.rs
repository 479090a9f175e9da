//! Whether a caller's slices fit a problem.
//!
//! Invariant: after these checks no slice index in an executor can be out of bounds, and no scale
//! is NaN or infinite.

use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::plan::Scaling;

/// How many scales a matrix with `lines` scaled lines has.
pub(crate) fn scale_count(scaling: Scaling, lines: u32) -> usize {
    match scaling {
        Scaling::None => 0,
        Scaling::Tensor => 1,
        Scaling::Rows => lines as usize,
    }
}

/// An error unless there are `expected` scales, all finite.
pub(crate) fn check_scales(what: &str, scales: &[f32], expected: usize) -> Result<()> {
    if scales.len() != expected {
        let remedy = "give no scales, one, or one a row or column, as the plan's Scaling says";
        return Err(Error::mismatch(
            format!("the number of {what}"),
            scales.len(),
            expected,
            remedy,
        ));
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

/// An error unless a slice holds at least `needed` elements.
pub(crate) fn check_len(what: &str, len: usize, needed: u64) -> Result<()> {
    if len as u64 >= needed {
        return Ok(());
    }
    let remedy = "give a slice that reaches to the last element of the last row";
    Err(Error::mismatch(what, len, format!("at least {needed}"), remedy))
}

/// An error unless the Rust type is the one that was planned.
pub(crate) fn check_type<T: Element>(matrix: &str, planned: ElementType) -> Result<()> {
    if T::TYPE == planned {
        return Ok(());
    }
    let remedy = "plan the problem with the element types of the operation";
    Err(Error::mismatch(format!("the element type of {matrix}"), T::TYPE, planned, remedy))
}
