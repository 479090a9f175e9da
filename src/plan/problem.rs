//! What is to be computed: D = A · B, and which rank has which rows.
//!
//! Invariant: a `Problem` that exists is valid. Sizes are within 1..=2³¹−1, leading dimensions
//! cover their rows, the element types may meet in one product, and no byte count derived from it
//! overflows (they are `u128`, since 2³¹ × 2³¹ × 4 needs 65 bits).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::gate::check_pairs;
use super::problem_builder::{ProblemBuilder, dimension};
use super::scatter::{columns_of_rank, equal_shards};
use super::shards::Shards;
use super::types::{BLayout, ElementTypes, Scaling};
use crate::element::ElementType;
use crate::error::{Error, Result};

/// TMA reads and writes only rows that start at multiples of this many bytes.
pub const TMA_ALIGNMENT: u64 = 16;

/// One product: sizes, types, layouts, scales, and the rows that each rank brings.
///
/// ```
/// use overlap_gemm::ElementType;
/// use overlap_gemm::plan::Problem;
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(8).build()?;
/// assert_eq!(problem.shards().rows(1), 512..1024);
/// assert_eq!(problem.elements().a, ElementType::Bf16);
///
/// let refused = Problem::builder(4096, 0, 8192).build().unwrap_err();
/// assert!(refused.to_string().starts_with("n is 0, but must be between 1 and 2147483647"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "ProblemBuilder", try_from = "ProblemBuilder")]
pub struct Problem {
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) shards: Shards,
    pub(super) elements: ElementTypes,
    pub(super) b_layout: BLayout,
    pub(super) lda: u32,
    pub(super) ldb: u32,
    pub(super) ldd: u32,
    pub(super) scaling: Scaling,
    pub(super) gated: bool,
    pub(super) batches: u32,
    pub(super) scatters_columns: bool,
}

impl Problem {
    /// Starts a problem of M×K by K×N; by default bf16, one rank, B as N×K, packed rows.
    pub fn builder(m: u64, n: u64, k: u64) -> ProblemBuilder {
        ProblemBuilder::new(m, n, k)
    }

    /// Rows of A and D; along [columns](ProblemBuilder::scatter_columns) those of all ranks' D, one behind the other.
    pub fn m(&self) -> u32 {
        self.shards.m()
    }

    /// Columns of B, and of D unless the product is gated; along [columns](ProblemBuilder::scatter_columns) those of one rank's D.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Columns of D.
    pub fn d_columns(&self) -> u32 {
        d_columns(self.n, self.gated)
    }

    /// Whether D has a column for each two of A · B: [`ProblemBuilder::gated`].
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// How many sequences A has: [`ProblemBuilder::batches`].
    pub fn batches(&self) -> u32 {
        self.batches
    }

    /// Whether each rank gets columns of D: [`ProblemBuilder::scatter_columns`].
    pub fn scatters_columns(&self) -> bool {
        self.scatters_columns
    }

    /// Columns of A, the summed dimension.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Which rank brings which rows.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.shards.ranks()
    }

    /// The element types.
    pub fn elements(&self) -> ElementTypes {
        self.elements
    }

    /// How B lies in memory.
    pub fn b_layout(&self) -> BLayout {
        self.b_layout
    }

    /// Which scales apply.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Elements from one row of A to the next, as the caller holds it.
    pub fn lda(&self) -> u32 {
        self.lda
    }

    /// Elements from one row of B (as it lies in memory) to the next.
    pub fn ldb(&self) -> u32 {
        self.ldb
    }

    /// Elements from one row of D to the next.
    pub fn ldd(&self) -> u32 {
        self.ldd
    }

    /// Rows and columns of B as it lies in memory.
    pub fn b_extent(&self) -> (u32, u32) {
        match self.b_layout {
            BLayout::Nk => (self.columns_of_b(), self.k),
            BLayout::Kn => (self.k, self.columns_of_b()),
        }
    }

    /// The elements a slice of A must hold for `rows` rows.
    pub fn a_len(&self, rows: u32) -> u64 {
        strided_len(rows.into(), self.k, self.lda)
    }

    /// The elements a slice of B must hold.
    pub fn b_len(&self) -> u64 {
        let (rows, columns) = self.b_extent();
        strided_len(rows.into(), columns, self.ldb)
    }

    /// The elements a slice of D must hold; along columns, of all ranks' D.
    pub fn d_len(&self) -> u64 {
        self.d_len_of(self.m())
    }

    /// The elements a slice of D must hold for `rows` rows.
    pub fn d_len_of(&self, rows: u32) -> u64 {
        strided_len(rows.into(), self.d_columns(), self.ldd)
    }

    /// The bytes of `rows` packed rows of A: what a chunk of them costs the link.
    pub fn row_bytes(&self, rows: &Range<u32>) -> u128 {
        u128::from(rows.end.saturating_sub(rows.start))
            * u128::from(self.k)
            * u128::from(self.elements.a.size())
    }

    /// The same of the largest shard.
    pub(crate) fn shard_bytes(&self) -> u128 {
        self.row_bytes(&(0..self.shards.most_rows()))
    }

    /// Multiplications and additions of the whole product.
    pub fn flops(&self) -> u128 {
        2 * u128::from(self.m()) * u128::from(self.n) * u128::from(self.k)
    }

    /// The same product with other rows a rank, of one batch: M may vary from call to call.
    pub fn with_shards(&self, rows: &[u32]) -> Result<Self> {
        if rows.len() != self.ranks() as usize {
            let remedy = "give the rows of every rank, in rank order";
            return Err(Error::mismatch("the number of shards", rows.len(), self.ranks(), remedy));
        }
        let shards = match self.scatters_columns {
            true => equal_shards(rows)?,
            false => Shards::of_batches(rows, self.batches)?,
        };
        Ok(Problem { shards, ..self.clone() })
    }

    /// The same product of the first `m` rows of D only, as of one batch; along columns, of one rank's.
    pub fn truncated(&self, m: u32) -> Result<Self> {
        let rows: Vec<u32> = (0..self.ranks())
            .map(|rank| self.shards.rows(rank))
            .map(|shard| shard.end.min(m) - shard.start.min(m))
            .collect();
        Problem { batches: 1, scatters_columns: false, ..self.clone() }.with_shards(&rows)
    }

    /// The same product of as many rows as the largest shard has: what one product multiplies at most where each rank's
    /// rows are a product of their own.
    pub fn of_largest_shard(&self) -> Result<Self> {
        self.truncated(self.shards.most_rows())
    }

    /// The same A times a B of `n` columns, packed: one A may have several products.
    pub fn with_n(&self, n: u64) -> Result<Self> {
        let of_b = columns(n, self.gated)?;
        let n = if self.scatters_columns { columns_of_rank(of_b, self.ranks())? } else { of_b };
        let ldb = if self.b_layout == BLayout::Kn { of_b } else { self.ldb };
        Ok(Problem { n, ldb, ldd: d_columns(n, self.gated), ..self.clone() })
    }

    /// [`Problem::with_n`] for all columns of several products, gated or not.
    #[cfg(feature = "cuda")]
    pub(crate) fn ungated_with_n(&self, n: u64) -> Result<Self> {
        Problem { gated: false, ..self.clone() }.with_n(n)
    }

    /// The product of all rows into sums of this type, some columns of a row of `columns`.
    pub(crate) fn of_sums(&self, columns: u32, sums: ElementType) -> Result<Self> {
        let ElementTypes { a, b, .. } = self.elements;
        let elements = ElementTypes { a, b, d: sums };
        elements.check()?;
        Ok(Problem { elements, ldd: columns, ..self.clone() })
    }

    /// Whether TMA can address the three matrices where the caller holds them: each row starts at a
    /// multiple of 16 bytes, and a row of D ends at one too.
    ///
    /// Host threads need no such thing; GPU plans call this. A TMA store writes whole 16-byte pieces,
    /// and on a GPU a ragged end of D was seen to write zeros behind it. A ragged K is harmless: loads
    /// beyond it give zeros.
    pub fn check_tma(&self) -> Result<()> {
        let ElementTypes { a, b, d } = self.elements;
        let pad = "pad the rows of the matrix to a multiple of 16 bytes, or use the host";
        check_pitch("the pitch of A (lda)", self.lda, a, pad)?;
        check_pitch("the pitch of B (ldb)", self.ldb, b, pad)?;
        check_pitch("the pitch of D (ldd)", self.ldd, d, pad)?;
        let widen = "add columns to B until a row of D is a multiple of 16 bytes, or use the host";
        check_pitch("the width of D", self.d_columns(), d, widen)?;
        if self.scatters_columns && self.b_layout == BLayout::Kn {
            let widen =
                "add columns to B until each rank's are a multiple of 16 bytes, or use the host";
            check_pitch("the width of a rank's columns of B", self.n, b, widen)?;
        }
        Ok(())
    }
}

fn check_pitch(what: &'static str, len: u32, of: ElementType, remedy: &'static str) -> Result<()> {
    check_aligned(what, u64::from(len) * u64::from(of.size()), remedy)
}

/// An error unless `bytes`, an address or a distance, is one that TMA can take.
pub(crate) fn check_aligned(what: &'static str, bytes: u64, remedy: &'static str) -> Result<()> {
    if bytes.is_multiple_of(TMA_ALIGNMENT) {
        return Ok(());
    }
    Err(Error::Misaligned { what, bytes, multiple_of: TMA_ALIGNMENT, remedy })
}

/// The elements from the first of row 0 to the last of row `rows - 1`.
pub(crate) fn strided_len(rows: u64, columns: u32, leading: u32) -> u64 {
    match rows {
        0 => 0,
        rows => (rows - 1) * u64::from(leading) + u64::from(columns),
    }
}

pub(super) fn d_columns(n: u32, gated: bool) -> u32 {
    if gated { n / 2 } else { n }
}

/// N, if it can be.
pub(super) fn columns(n: u64, gated: bool) -> Result<u32> {
    let n = dimension("n", n)?;
    if gated {
        check_pairs("n of a gated product", n)?;
    }
    Ok(n)
}
