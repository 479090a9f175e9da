//! The numbers of one tile: widen, multiply with the `gemm` crate, scale, apply the epilogue, narrow.
//!
//! Invariant: inputs are widened exactly, sums are `f32`, and each output is rounded once. Blocks
//! along K bound the widened copies to what a core's cache holds.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::OutputCells;
use crate::element::Element;
use crate::fit::scale_at;
use crate::plan::{BLayout, Epilogue, GATE_COLUMNS, Problem, gate_column};

/// Summands that are widened and multiplied at a time.
///
/// With the default tile (256×128) the widened operands take 768 KiB: a core's L2, not its L1,
/// which the library's own packing fills.
const K_BLOCK: u32 = 512;

/// One product of the step: where B is read and D is written.
#[derive(Debug)]
pub(crate) struct ProductView<'a, B, D: Element> {
    pub(crate) problem: &'a Problem,
    pub(crate) b: &'a [B],
    pub(crate) d: OutputCells<'a, D>,
    /// None, one for all columns, or one a column.
    pub(crate) scales: &'a [f32],
    pub(crate) epilogue: Epilogue<'a, D>,
    /// The bits of a float that is not negative: these are ordered as it is, and those of NaN are the largest.
    pub(crate) amax: Option<&'a AtomicU32>,
}

/// One worker's buffers, kept from tile to tile.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
    sums: Vec<f32>,
}

/// Rows of A, `pitch` elements apart, with their scales: none, one for all rows, or one a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsOfA<'a, A> {
    pub(crate) elements: &'a [A],
    pub(crate) pitch: u32,
    pub(crate) scales: &'a [f32],
}

impl<B: Element, D: Element> ProductView<'_, B, D> {
    /// Computes the tile of these rows and columns of D; its columns of A · B begin at `first_column`.
    ///
    /// # Safety
    /// No other thread may touch this tile of the output meanwhile.
    pub(crate) unsafe fn compute_tile<A: Element>(
        &self,
        a: RowsOfA<'_, A>,
        [rows, columns]: [Range<u32>; 2],
        first_column: u32,
        scratch: &mut Scratch,
    ) {
        let (m, n, all_k) = (rows.len(), columns.len(), self.problem.k());
        let in_b = first_column + columns.start..first_column + columns.end;
        let Scratch { a: wide_a, b: wide_b, sums } = scratch;
        sums.resize(m * n, 0.0);
        for begin in (0..all_k).step_by(K_BLOCK as usize) {
            let depth = begin..(begin + K_BLOCK).min(all_k);
            let k = depth.len();
            widen_block(wide_a, a.elements, a.pitch, 0..m as u32, &depth);
            // The rows of B as it lies in memory, and the strides of that block seen as K×N.
            let (b_rows, b_columns, k_stride, n_stride) = match self.problem.b_layout() {
                BLayout::Nk => (&in_b, &depth, 1, k),
                BLayout::Kn => (&depth, &in_b, n, 1),
            };
            widen_block(wide_b, self.b, self.problem.ldb(), b_rows.clone(), b_columns);
            // SAFETY: `sums` is m×n, `wide_a` m×k, `wide_b` k×n in the given strides, all alive and
            // distinct. `sums` is read only from the second block on.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    sums.as_mut_ptr(),
                    1,
                    n as isize,
                    begin > 0,
                    wide_a.as_ptr(),
                    1,
                    k as isize,
                    wide_b.as_ptr(),
                    n_stride as isize,
                    k_stride as isize,
                    1.0f32,
                    1.0f32,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        }
        let gated = self.problem.is_gated();
        let mut amax = 0;
        let d_columns = if gated { columns.start / 2..columns.end / 2 } else { columns.clone() };
        for (i, row) in rows.enumerate() {
            // SAFETY: the tile is this thread's alone, as the caller guarantees.
            let out = unsafe { self.d.row_part(row, d_columns.clone()) };
            let row_scale = scale_at(a.scales, i);
            let product = |column: u32| {
                let column_scale = scale_at(self.scales, (first_column + column) as usize);
                // One after the other: the product of two large scales could overflow.
                // Sums begin at +0, as on GPUs; the gemm crate may leave the -0 of a single product.
                (sums[i * n + (column - columns.start) as usize] + 0.0) * row_scale * column_scale
            };
            for (column, out) in d_columns.clone().zip(out) {
                let output = if gated {
                    let gate = gate_column(column);
                    let products = [gate, gate + GATE_COLUMNS].map(product);
                    self.epilogue.apply_gate(products[0], products[1], gate as usize)
                } else {
                    let at = self.d.place(row, column);
                    self.epilogue.apply(product(column), at, column as usize)
                };
                amax = amax.max(output.abs().to_bits());
                *out = D::narrow(output * self.epilogue.scale_d);
            }
        }
        if let Some(all) = self.amax {
            // Relaxed: it is read once the workers have been joined.
            all.fetch_max(amax, Ordering::Relaxed);
        }
    }
}

/// Widens rows × columns of a matrix whose rows are `pitch` apart into a packed block.
fn widen_block<T: Element>(
    block: &mut Vec<f32>,
    matrix: &[T],
    pitch: u32,
    rows: Range<u32>,
    columns: &Range<u32>,
) {
    let width = columns.len();
    block.resize(rows.len() * width, 0.0);
    for (row, wide) in rows.zip(block.chunks_exact_mut(width)) {
        let begin = row as usize * pitch as usize + columns.start as usize;
        T::widen_row(&matrix[begin..begin + width], wide);
    }
}
