//! The part that all operations share: several products of one A, tile by tile.
//!
//! Invariant: every output is either computed whole or filled with NaN.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use super::compute::{Operand, Stream, TileJob, lay_side_by_side, run_tiles};
use super::memory::OutputCells;
use super::operands::Product;
use super::tile::ProductView;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{Plan, Problem, Tile, TileOrder, Tiling};
use crate::trace::TileEvent;

/// The problem of each product, once all of them fit the step.
pub(crate) fn check_products<B, D>(
    problem: &Problem,
    rows_of_d: u32,
    tiling: Tiling,
    products: &[Product<'_, B, D>],
) -> Result<Vec<Problem>> {
    if products.is_empty() {
        let remedy = "give at least one product to a step";
        return Err(Error::mismatch("the number of products", 0, "at least 1", remedy));
    }
    let problems: Vec<Problem> =
        products.iter().map(|product| product.check(problem, rows_of_d)).collect::<Result<_>>()?;
    lay_side_by_side(problems.iter().map(Problem::n), tiling)?;
    Ok(problems)
}

/// Which step is computed, and where its A is.
pub(crate) struct StepInput<'a, A> {
    pub(crate) plan: &'a Plan,
    pub(crate) a: Operand<'a, A>,
    pub(crate) rank: u32,
    /// The rank whose chunks come first.
    pub(crate) pivot: u32,
    pub(crate) epoch: u32,
    /// Which rows are computed.
    pub(crate) rows: Range<u32>,
    pub(crate) record: Option<Instant>,
}

/// Computes all products; each worker waits with a `waiter` of its own.
pub(crate) fn compute<A: Element, B: Element, D: Element, W>(
    stream: Stream,
    step: StepInput<'_, A>,
    problems: &[Problem],
    products: &mut [Product<'_, B, D>],
    waiter: impl Fn() -> W + Sync,
) -> Result<Vec<TileEvent>>
where
    W: FnMut(Tile, Range<u32>) -> Result<()>,
{
    let views: Vec<_> = products
        .iter_mut()
        .zip(problems)
        .map(|(product, problem)| ProductView {
            b: product.b,
            ldb: problem.ldb(),
            b_layout: problem.b_layout(),
            n: problem.n(),
            k: problem.k(),
            d: OutputCells::new(product.d, problem.ldd()),
            scales: product.scales,
            epilogue: product.epilogue,
        })
        .collect();
    compute_views(stream, step, problems, &views, waiter)
}

/// The same, with outputs that are somewhere else.
pub(crate) fn compute_views<A: Element, B: Element, D: Element, W>(
    stream: Stream,
    step: StepInput<'_, A>,
    problems: &[Problem],
    views: &[ProductView<'_, B, D>],
    waiter: impl Fn() -> W + Sync,
) -> Result<Vec<TileEvent>>
where
    W: FnMut(Tile, Range<u32>) -> Result<()>,
{
    let columns = problems.iter().map(Problem::n);
    let (first_columns, all) = lay_side_by_side(columns, step.plan.options().tiling)?;
    let job = TileJob {
        a: step.a,
        products: views,
        rank: step.rank,
        epoch: step.epoch,
        rows: step.rows,
        order: TileOrder::new(step.plan.chunks(), all, step.plan.options().tiling, step.pivot)?,
        first_columns,
        record: step.record,
    };
    run_tiles(stream, &job, waiter)
}

/// Runs a step. Whether it fails or panics, outputs are poisoned and `fail` ends the operation: a
/// step that was cut short must not be followed by one that announces its input as consumed.
pub(crate) fn settle<B, D: Element>(
    problems: &[Problem],
    products: &mut [Product<'_, B, D>],
    step: impl FnOnce(&mut [Product<'_, B, D>]) -> Result<()>,
    fail: impl FnOnce(Error),
) -> Result<()> {
    // Unwind safe: what the step leaves behind half done is poisoned or ended here.
    let outcome = catch_unwind(AssertUnwindSafe(|| step(products)));
    if matches!(outcome, Ok(Ok(()))) {
        return Ok(());
    }
    poison(problems, products);
    match outcome {
        Ok(result) => {
            if let Err(error) = &result {
                tracing::warn!(%error, "step failed");
                fail(error.clone());
            }
            result
        }
        Err(panic) => {
            fail(Error::Aborted { rank: 0, reason: "a rank panicked in its step".into() });
            resume_unwind(panic)
        }
    }
}

/// Fills every output with NaN: the step failed, and its output must not pass for a result.
fn poison<B, D: Element>(problems: &[Problem], products: &mut [Product<'_, B, D>]) {
    for (problem, product) in problems.iter().zip(products) {
        let rows = product.d.chunks_mut(problem.ldd() as usize).take(problem.m() as usize);
        for row in rows {
            let columns = row.len().min(problem.n() as usize);
            row[..columns].fill(D::POISON);
        }
    }
}
