//! The part that all operations share: several products of one A, tile by tile.
//!
//! Invariant: every output is either computed whole or filled with NaN.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;

use super::compute::Grid;
use super::memory::OutputCells;
use super::operands::Product;
use super::tile::ProductView;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{Plan, Problem};

/// The problem of each product, once all of them fit the step.
pub(crate) fn check_products<B, D: Element>(
    plan: &Plan,
    problem: &Problem,
    rows_of_d: u32,
    products: &[Product<'_, B, D>],
) -> Result<Vec<Problem>> {
    if products.is_empty() {
        let remedy = "give at least one product to a step";
        return Err(Error::mismatch("the number of products", 0, "at least 1", remedy));
    }
    let problems: Vec<Problem> =
        products.iter().map(|product| product.check(problem, rows_of_d)).collect::<Result<_>>()?;
    Grid::new(plan, 0, problems.iter().map(Problem::n))?;
    Ok(problems)
}

/// The products as workers see them.
pub(crate) fn views<'a, B, D: Element>(
    problems: &'a [Problem],
    products: &'a mut [Product<'_, B, D>],
) -> Vec<ProductView<'a, B, D>> {
    let view = |(problem, product): (&'a Problem, &'a mut Product<'_, B, D>)| ProductView {
        problem,
        b: product.b,
        d: OutputCells::new(product.d, problem.ldd()),
        scales: product.scales,
        epilogue: product.epilogue,
        // SAFETY: the place is borrowed for as long as the view is, and only used through it.
        amax: product
            .amax
            .as_deref_mut()
            .map(|amax| unsafe { AtomicU32::from_ptr(std::ptr::from_mut(amax).cast()) }),
    };
    problems.iter().zip(products).map(view).collect()
}

/// Runs a step. Whether it fails or panics, outputs are poisoned and `fail` ends the operation: a
/// step that was cut short must not be followed by one that announces its input as consumed.
pub(crate) fn settle<'p, B, D: Element>(
    rank: u32,
    problems: &[Problem],
    products: &mut [Product<'p, B, D>],
    step: impl FnOnce(&mut [Product<'p, B, D>]) -> Result<()>,
    fail: impl FnOnce(Error),
) -> Result<()> {
    settle_in(rank, products, step, |products| poison(problems, products), fail)
}

/// The same where `poison` fills the outputs, which lie in `memory`, with NaN.
pub(crate) fn settle_in<M: ?Sized>(
    rank: u32,
    memory: &mut M,
    step: impl FnOnce(&mut M) -> Result<()>,
    poison: impl FnOnce(&mut M),
    fail: impl FnOnce(Error),
) -> Result<()> {
    // Unwind safe: what the step leaves behind half done is poisoned or ended here.
    let outcome = catch_unwind(AssertUnwindSafe(|| step(memory)));
    if matches!(outcome, Ok(Ok(()))) {
        return Ok(());
    }
    poison(memory);
    match outcome {
        Ok(result) => {
            if let Err(error) = &result {
                tracing::warn!(%error, "step failed");
                fail(error.clone());
            }
            result
        }
        Err(panic) => {
            fail(Error::Aborted { rank, reason: format!("rank {rank} panicked in its step") });
            resume_unwind(panic)
        }
    }
}

/// Fills every output with NaN: the step failed, and its output must not pass for a result.
fn poison<B, D: Element>(problems: &[Problem], products: &mut [Product<'_, B, D>]) {
    for (problem, product) in problems.iter().zip(products) {
        if let Some(amax) = &mut product.amax {
            **amax = f32::NAN;
        }
        let rows = product.d.chunks_mut(problem.ldd() as usize).take(problem.m() as usize);
        for row in rows {
            let columns = row.len().min(problem.d_columns() as usize);
            row[..columns].fill(D::POISON);
        }
    }
}
