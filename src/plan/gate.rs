//! Gated products: the columns of A · B are 8 gates, the 8 values that these are multiplied by, and so on. D has a column for each
//! such product.
//!
//! What belongs here: which columns are which, and what can be gated. Invariant: `csrc/overlap_gemm.h` says the same of
//! `og_gemm_shape`'s `gated`.

use super::operation::Operation;
use super::problem::Problem;
use super::shards::MAX_DIMENSION;
use crate::error::{Error, Result};

/// Neighbouring columns of B that are gates; as many behind them are what these gate.
pub const GATE_COLUMNS: u32 = 8;

/// The column of B that is the gate of column `j` of D in a [gated](super::ProblemBuilder::gated) product. What it gates is
/// [`GATE_COLUMNS`] behind it.
///
/// ```
/// use overlap_gemm::plan::gate_column;
///
/// assert_eq!((gate_column(7), gate_column(8)), (7, 16));
/// ```
pub const fn gate_column(j: u32) -> u32 {
    j / GATE_COLUMNS * 2 * GATE_COLUMNS + j % GATE_COLUMNS
}

/// The weight of a [gated](super::ProblemBuilder::gated) product, as N rows of K, from a layer's two weights: `gate`'s rows
/// and those of what they gate, `row` elements each. With rows of one element: the bias, or the scales of columns.
///
/// ```
/// use overlap_gemm::plan::interleave_gates;
///
/// let (gate, up) = ([1.0f32; 16 * 3], [2.0f32; 16 * 3]);
/// let b = interleave_gates(&gate, &up, 3)?;
/// let blocks: Vec<f32> = b.chunks(8 * 3).map(|block| block[0]).collect();
/// assert_eq!(blocks, [1.0, 2.0, 1.0, 2.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn interleave_gates<T: Copy>(gate: &[T], gated: &[T], row: usize) -> Result<Vec<T>> {
    let remedy = "give the elements of a row: K, or 1 for a bias";
    Error::check_range("the elements of a row", row as u64, 1..=MAX_DIMENSION.into(), remedy)?;
    let block = row * GATE_COLUMNS as usize;
    if !gate.len().is_multiple_of(block) {
        let expected = format!("a multiple of {block}");
        let remedy = "give the elements of a row, and a multiple of 8 rows";
        return Err(Error::mismatch("the length of the gates", gate.len(), expected, remedy));
    }
    if gated.len() != gate.len() {
        let remedy = "give as many rows as there are gates";
        let what = "the length of what is gated";
        return Err(Error::mismatch(what, gated.len(), gate.len(), remedy));
    }
    let blocks = gate.chunks(block).zip(gated.chunks(block));
    Ok(blocks.flat_map(|(gate, gated)| [gate, gated]).flatten().copied().collect())
}

/// An error unless `columns` of B, or of a tile, are whole pairs of blocks of columns.
pub(super) fn check_pairs(what: &'static str, columns: u32) -> Result<()> {
    if columns.is_multiple_of(2 * GATE_COLUMNS) {
        return Ok(());
    }
    let remedy = "make it a multiple of 16: 8 gates, then the 8 columns that they gate, and so on";
    Err(Error::mismatch(what, columns, "a multiple of 16", remedy))
}

impl Problem {
    /// An error unless tiles of `tile_columns` have whole pairs of gates and values, if there are such.
    pub(super) fn check_gated_tiles(&self, tile_columns: u32) -> Result<()> {
        if !self.is_gated() {
            return Ok(());
        }
        check_pairs("the tile's columns in a gated product", tile_columns)
    }

    /// An error unless steps of `operation` can compute this.
    pub(crate) fn check_gate(&self, operation: Operation) -> Result<()> {
        if !self.is_gated() || operation == Operation::AllGatherGemm {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "a reduction of gated products".into(),
            why: "a gate applies to the total of all ranks' sums, not to each".into(),
            remedy: "gate the first product of a layer, whose A is gathered, and reduce the second",
        })
    }

    /// An error if the product is gated and has a C.
    pub(crate) fn check_c(&self, has_c: bool) -> Result<()> {
        if !(self.is_gated() && has_c) {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "C in a gated product".into(),
            why: "neither a gate nor an output has an element of C".into(),
            remedy: "leave C out, or add it afterwards",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, PlanOptions, TileShape, Tiling};

    #[test]
    fn what_cannot_be_gated_is_refused() {
        let gated = |n| Problem::builder(64, n, 64).gated(true).build();
        let odd = gated(40).unwrap_err().to_string();
        assert!(
            odd.starts_with("n of a gated product is 40, but must be a multiple of 16"),
            "{odd}"
        );
        let problem = gated(48).unwrap();
        assert_eq!((problem.d_columns(), problem.ldd(), problem.d_len()), (24, 24, 64 * 24));
        assert_eq!(problem.with_n(96).unwrap().ldd(), 48);
        assert!(problem.with_n(40).is_err());
        assert!(problem.check_c(true).is_err() && problem.check_c(false).is_ok());

        let plan = |operation, columns| {
            let tile = TileShape { m: 16, n: columns };
            let tiling = Tiling { tile, ..PlanOptions::default().tiling };
            Plan::new(&problem, PlanOptions { operation, tiling, ..PlanOptions::default() })
        };
        plan(Operation::AllGatherGemm, 32).unwrap();
        let narrow = plan(Operation::AllGatherGemm, 24).unwrap_err().to_string();
        assert!(narrow.contains("is 24, but must be a multiple of 16"), "{narrow}");
        for operation in [Operation::GemmReduceScatter, Operation::GemmAllReduce] {
            let reduced = plan(operation, 32).unwrap_err().to_string();
            assert!(reduced.contains("a reduction of gated products"), "{reduced}");
        }
    }

    #[test]
    fn weights_are_interleaved_as_columns_are_counted() {
        let (gate, up): (Vec<u32>, Vec<u32>) = ((0..48).collect(), (100..148).collect());
        let b = interleave_gates(&gate, &up, 2).unwrap();
        for j in 0..24 {
            let row = |column: u32| b[2 * column as usize..][..2].to_vec();
            assert_eq!(row(gate_column(j)), [2 * j, 2 * j + 1]);
            assert_eq!(row(gate_column(j) + GATE_COLUMNS), [100 + 2 * j, 101 + 2 * j]);
        }
        let refused = |gate: &[u32], up: &[u32], row| {
            interleave_gates(gate, up, row).unwrap_err().to_string()
        };
        assert!(refused(&gate[..20], &up[..20], 2).contains("is 20, but must be a multiple of 16"));
        assert!(refused(&gate, &up[..32], 2).contains("is 32, but must be 48"));
        assert!(refused(&gate, &up, 0).contains("the elements of a row is 0"));
    }

    #[test]
    fn the_device_code_has_the_same_blocks() {
        let header = include_str!("../../csrc/overlap_gemm.h");
        assert!(header.contains(&format!("#define OG_GATE_COLUMNS {GATE_COLUMNS}\n")));
    }
}
