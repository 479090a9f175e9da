//! How a [`Problem`] is made, and what is written of it.
//!
//! What belongs here: what a caller says of a problem, and its validation. Invariant: [`ProblemBuilder::build`] alone makes a
//! problem from what a caller or a file says.

use serde::{Deserialize, Serialize};

use super::problem::{Problem, columns, d_columns};
use super::scatter::{all_rows, check_batches, columns_of_rank, some_rows};
use super::shards::{MAX_DIMENSION, check_ranks};
use super::types::{BLayout, ElementTypes, Scaling};
use crate::element::ElementType;
use crate::error::{Error, Result};

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
    pub(super) fn new(m: u64, n: u64, k: u64) -> Self {
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
    ///
    /// ```
    /// use overlap_gemm::plan::Problem;
    ///
    /// // 1792 gates and as many values.
    /// let problem = Problem::builder(4096, 2 * 1792, 4096).gated(true).build()?;
    /// assert_eq!(problem.d_columns(), 1792);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
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

pub(super) fn dimension(what: &'static str, value: u64) -> Result<u32> {
    let remedy = "give at least 1, and split larger products into several calls";
    Error::check_range(what, value, 1..=MAX_DIMENSION.into(), remedy)?;
    Ok(value as u32)
}
