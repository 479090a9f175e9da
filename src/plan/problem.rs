//! What is to be computed: D = A · B with A gathered from the ranks' shards.
//!
//! Invariant: a `Problem` that exists is valid. Sizes are within 1..=2³¹−1, leading dimensions
//! cover their rows, the element types may meet in one product, and no byte count derived from it
//! overflows (they are `u128`, since 2³¹ × 2³¹ × 4 needs 65 bits).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::gate::check_pairs;
use super::scatter::{all_rows, check_batches, columns_of_rank, equal_shards, some_rows};
use super::shards::{MAX_DIMENSION, Shards, check_ranks};
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
    n: u32,
    k: u32,
    shards: Shards,
    elements: ElementTypes,
    b_layout: BLayout,
    lda: u32,
    ldb: u32,
    ldd: u32,
    scaling: Scaling,
    gated: bool,
    batches: u32,
    scatters_columns: bool,
}

impl Problem {
    /// Starts a problem of M×K by K×N; by default bf16, one rank, B as N×K, packed rows.
    pub fn builder(m: u64, n: u64, k: u64) -> ProblemBuilder {
        ProblemBuilder {
            m,
            n,
            k,
            elements: ElementTypes::all(ElementType::Bf16),
            b_layout: BLayout::default(),
            lda: None,
            ldb: None,
            ldd: None,
            scaling: Scaling::default(),
            gated: false,
            batches: 1,
            scatter_columns: false,
            ranks: 1,
            shard_rows: None,
        }
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

fn d_columns(n: u32, gated: bool) -> u32 {
    if gated { n / 2 } else { n }
}

/// N, if it can be.
fn columns(n: u64, gated: bool) -> Result<u32> {
    let n = dimension("n", n)?;
    if gated {
        check_pairs("n of a gated product", n)?;
    }
    Ok(n)
}

fn dimension(what: &'static str, value: u64) -> Result<u32> {
    let remedy = "give at least 1, and split larger products into several calls";
    Error::check_range(what, value, 1..=MAX_DIMENSION.into(), remedy)?;
    Ok(value as u32)
}

/// Collects a [`Problem`]; [`ProblemBuilder::build`] validates it. With serde: what is written of a problem.
///
/// ```
/// use overlap_gemm::ElementType::{Bf16, E4m3};
/// use overlap_gemm::plan::{Problem, Scaling};
///
/// let builder = Problem::builder(4096, 512, 256).elements(E4m3, E4m3, Bf16).scaling(Scaling::Rows);
/// let problem = builder.shards(&[4000, 96]).build()?;
/// assert_eq!((problem.ranks(), problem.shards().rows(1)), (2, 4000..4096));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use]
pub struct ProblemBuilder {
    m: u64,
    n: u64,
    k: u64,
    elements: ElementTypes,
    b_layout: BLayout,
    lda: Option<u64>,
    ldb: Option<u64>,
    ldd: Option<u64>,
    scaling: Scaling,
    #[serde(default)]
    gated: bool,
    #[serde(default = "one")]
    batches: u64,
    #[serde(default)]
    scatter_columns: bool,
    /// Among which the rows of a batch are divided evenly, unless those of each are given.
    #[serde(skip)]
    ranks: u64,
    shard_rows: Option<Vec<u32>>,
}

impl From<Problem> for ProblemBuilder {
    fn from(problem: Problem) -> Self {
        let [m, n] = [problem.rows_of_a(), problem.columns_of_b()];
        Problem::builder(m.into(), n.into(), problem.k.into())
            .elements(problem.elements.a, problem.elements.b, problem.elements.d)
            .b_layout(problem.b_layout)
            .lda(problem.lda.into())
            .ldb(problem.ldb.into())
            .ldd(problem.ldd.into())
            .scaling(problem.scaling)
            .gated(problem.gated)
            .batches(problem.batches.into())
            .scatter_columns(problem.scatters_columns)
            .shards(&problem.rows_of_ranks())
    }
}

impl TryFrom<ProblemBuilder> for Problem {
    type Error = Error;

    fn try_from(builder: ProblemBuilder) -> Result<Self> {
        builder.build()
    }
}

impl ProblemBuilder {
    /// The element types (default: bf16 for all).
    pub fn elements(mut self, a: ElementType, b: ElementType, d: ElementType) -> Self {
        self.elements = ElementTypes { a, b, d };
        self
    }

    /// How B lies in memory (default: N×K).
    pub fn b_layout(mut self, layout: BLayout) -> Self {
        self.b_layout = layout;
        self
    }

    /// Splits the rows evenly over `ranks` ranks (default: one).
    pub fn ranks(mut self, ranks: u64) -> Self {
        (self.ranks, self.shard_rows) = (ranks, None);
        self
    }

    /// Gives each rank its number of rows; they must sum to M, and some may be zero.
    pub fn shards(mut self, rows: &[u32]) -> Self {
        self.shard_rows = Some(rows.to_vec());
        self
    }

    /// Elements from one row of the caller's A to the next (default: K).
    pub fn lda(mut self, elements: u64) -> Self {
        self.lda = Some(elements);
        self
    }

    /// Elements from one row of B to the next (default: K for N×K, N for K×N).
    pub fn ldb(mut self, elements: u64) -> Self {
        self.ldb = Some(elements);
        self
    }

    /// Elements from one row of D to the next (default: its columns).
    pub fn ldd(mut self, elements: u64) -> Self {
        self.ldd = Some(elements);
        self
    }

    /// Which scales apply (default: none).
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// Whether the product is gated (default: no), as the first one of a SwiGLU layer. Of each 16 columns of A · B, the first 8
    /// are gates and the other 8 their values ([`interleave_gates`](super::interleave_gates) makes such a weight). D has N / 2
    /// columns: `activation(gate) · value`. Scales and bias are applied to both before. N is a multiple of 16. A gated product has no
    /// C, and reductions refuse it.
    pub fn gated(mut self, gated: bool) -> Self {
        self.gated = gated;
        self
    }

    /// How many sequences A has (default: one). A is batches × sequence × K then, row-major, so M is batches · sequence, and
    /// GEMM + reduce-scatter scatters the sequences, dimension 1: the rows of [`ranks`](Self::ranks) and
    /// [`shards`](Self::shards), and those of a step, are rows of one batch. A rank's D, and C, are batches × its rows × N.
    /// Other operations refuse it. To scatter the batches, dimension 0, leave this out.
    ///
    /// ```
    /// use overlap_gemm::plan::Problem;
    ///
    /// // Of two sequences of five rows each, rank 0 gets three rows, rank 1 two.
    /// let problem = Problem::builder(2 * 5, 16, 32).batches(2).shards(&[3, 2]).build()?;
    /// assert_eq!(problem.shards().rows(0).len(), 2 * 3);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn batches(mut self, batches: u64) -> Self {
        self.batches = batches;
        self
    }

    /// Whether GEMM + reduce-scatter gives each rank columns of D (default: no, rows). Of the N = ranks · n columns of B, rank r
    /// gets the n from r · n on, and all M rows of A: so the rows of [`shards`](Self::shards), and of a step, are M for each rank.
    /// Its D, C and bias have its columns only. Other operations refuse it, and so do batches, whose rows are one matrix here.
    ///
    /// ```
    /// use overlap_gemm::plan::Problem;
    ///
    /// let problem = Problem::builder(5, 32, 16).ranks(2).scatter_columns(true).build()?;
    /// assert_eq!((problem.d_len_of(5), problem.b_len()), (5 * 16, 32 * 16));
    /// // Of both ranks, D has 10 rows of 16 columns.
    /// assert_eq!((problem.m(), problem.n()), (10, 16));
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn scatter_columns(mut self, scatter_columns: bool) -> Self {
        self.scatter_columns = scatter_columns;
        self
    }

    /// Validates.
    pub fn build(self) -> Result<Problem> {
        let m = dimension("m", self.m)?;
        let of_b = columns(self.n, self.gated)?;
        let k = dimension("k", self.k)?;
        let batches = check_batches(self.batches, m)?;
        let ranks = self.shard_rows.as_ref().map_or(self.ranks, |rows| rows.len() as u64);
        let ranks = check_ranks(ranks)?;
        let (shards, n) = match self.scatter_columns {
            true => (all_rows(self.shard_rows, m, batches, ranks)?, columns_of_rank(of_b, ranks)?),
            false => (some_rows(self.shard_rows, m, batches, ranks)?, of_b),
        };
        self.elements.check()?;
        if self.scaling != Scaling::None && !self.elements.a.is_fp8() {
            return Err(Error::Unsupported {
                what: format!("scaling of {} inputs", self.elements.a),
                why: "only the fp8 types carry scales".into(),
                remedy: "ask for no scaling, or use fp8 inputs",
            });
        }
        let b_columns = if self.b_layout == BLayout::Nk { k } else { of_b };
        let lda = leading_dimension("lda", self.lda, k)?;
        let ldb = leading_dimension("ldb", self.ldb, b_columns)?;
        let ldd = leading_dimension("ldd", self.ldd, d_columns(n, self.gated))?;
        Ok(Problem {
            n,
            k,
            shards,
            elements: self.elements,
            b_layout: self.b_layout,
            lda,
            ldb,
            ldd,
            scaling: self.scaling,
            gated: self.gated,
            batches,
            scatters_columns: self.scatter_columns,
        })
    }
}

fn one() -> u64 {
    1
}

fn leading_dimension(what: &'static str, value: Option<u64>, columns: u32) -> Result<u32> {
    let value = value.unwrap_or(columns.into());
    let remedy = "a leading dimension counts elements and covers at least one row";
    Error::check_range(what, value, columns.into()..=MAX_DIMENSION.into(), remedy)?;
    Ok(value as u32)
}
