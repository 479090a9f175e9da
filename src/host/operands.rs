//! Inputs and outputs of a step.
//!
//! Invariant: these only borrow; whether they fit the plan is checked when the step is enqueued.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{ALL_ROWS, OWN_ROWS, b_lens, check_epilogue, check_len, check_scales, d_lens};
use crate::plan::{Epilogue, Problem};

/// One rank's input of a step: its rows of A, before a gather; A over its slice of K, before a reduction.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{AllGatherGemm, Group, Shard, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let mut layer = AllGatherGemm::<f32>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
/// let (a, b, mut d) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0], [0.0; 2]);
/// // One row in this step.
/// layer.enqueue(&Stream::new(1)?, Shard::at(&a[..2]).rows(&[1]), &b, &mut d[..1])?;
/// assert_eq!(d, [3.0, 0.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a, A> {
    pub(crate) at: Option<&'a [A]>,
    pub(crate) rows: Option<&'a [u32]>,
    pub(crate) scales: &'a [f32],
}

impl<'a, A> Shard<'a, A> {
    /// The rank's shard, to be copied into its slot of the gathered input: this rank's rows of this
    /// step, no fewer and no more, [`lda`](crate::plan::Problem::lda) apart.
    ///
    /// Where rows are packed (`lda` = K), the length is exactly rows × K. Where they are not, the slice
    /// may end anywhere between the last element of its last row and that row's padding. A rank without
    /// rows passes an empty slice. Any other length is refused; all of A is no shard.
    ///
    /// In a [reduction](super::GemmReduce), all rows of A over this rank's slice of K, by the same rule.
    pub fn at(shard: &'a [A]) -> Self {
        Shard { at: Some(shard), rows: None, scales: &[] }
    }

    /// The shard is already in its slot: the producer wrote it through
    /// [`AllGatherGemm::local_shard`](super::AllGatherGemm::local_shard).
    pub fn in_place() -> Self {
        Shard { at: None, rows: None, scales: &[] }
    }

    /// The rows of every rank in this step, the same on all ranks (default: as planned).
    #[must_use]
    pub fn rows(mut self, rows: &'a [u32]) -> Self {
        self.rows = Some(rows);
        self
    }

    /// The scale of A for [`Scaling::Tensor`](crate::plan::Scaling::Tensor), the scales of the rows given for
    /// [`Scaling::Rows`](crate::plan::Scaling::Rows); exactly as many.
    #[must_use]
    pub fn scales(mut self, scales: &'a [f32]) -> Self {
        self.scales = scales;
        self
    }
}

impl<'a, A> From<&'a [A]> for Shard<'a, A> {
    fn from(shard: &'a [A]) -> Self {
        Shard::at(shard)
    }
}

impl<'a, A> From<&'a Vec<A>> for Shard<'a, A> {
    fn from(shard: &'a Vec<A>) -> Self {
        Shard::at(shard)
    }
}

/// One of the products of a step: its B and its D.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{AllGatherGemm, Group, Product, Shard, Stream};
/// use overlap_gemm::plan::{Epilogue, PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let mut layer = AllGatherGemm::<f32>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
/// let (a, b, mut d) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0], [0.0; 2]);
/// let epilogue = Epilogue { alpha: 10.0, ..Epilogue::default() };
/// let product = Product::new(&b, &mut d).epilogue(epilogue);
/// layer.enqueue_all(&Stream::new(1)?, Shard::at(&a), &mut [product])?;
/// assert_eq!(d, [30.0, 70.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Product<'a, B, D: Element> {
    pub(crate) b: &'a [B],
    pub(crate) d: &'a mut [D],
    pub(crate) n: Option<u64>,
    pub(crate) scales: &'a [f32],
    pub(crate) epilogue: Epilogue<'a, D>,
    pub(crate) amax: Option<&'a mut f32>,
}

impl<'a, B, D: Element> Product<'a, B, D> {
    /// `d` = A · `b`, both as planned: all rows of `b`, and as many rows of `d` as this step has.
    ///
    /// Where rows are packed, the lengths are exactly rows × columns. Where the row stride
    /// ([`ldb`](Problem::ldb), [`ldd`](Problem::ldd)) is larger, the last row's padding may be left out.
    /// Any other length is refused: for a step of fewer rows than planned, pass a part of `d`. In a
    /// [`GemmReduceScatter`](super::GemmReduceScatter), `d` has this rank's rows only.
    pub fn new(b: &'a [B], d: &'a mut [D]) -> Self {
        Product { b, d, n: None, scales: &[], epilogue: Epilogue::default(), amax: None }
    }

    /// Another number of columns than planned; `b` and `d` are packed then.
    #[must_use]
    pub fn n(mut self, n: u64) -> Self {
        self.n = Some(n);
        self
    }

    /// The scale of B for [`Scaling::Tensor`](crate::plan::Scaling::Tensor), the scales of the product's columns for
    /// [`Scaling::Rows`](crate::plan::Scaling::Rows).
    #[must_use]
    pub fn scales(mut self, scales: &'a [f32]) -> Self {
        self.scales = scales;
        self
    }

    /// What happens to the product before it is rounded to D. In a [`GemmReduceScatter`](super::GemmReduceScatter), the
    /// rank applies it to its rows' total, so C has this rank's rows only, and no other rank adds the bias.
    #[must_use]
    pub fn epilogue(mut self, epilogue: Epilogue<'a, D>) -> Self {
        self.epilogue = epilogue;
        self
    }

    /// Where D is fp8: raises `amax` to the largest absolute value of this rank's outputs before they are scaled; to NaN if
    /// one is NaN, or the step fails. Delayed scaling finds the next step's [`scale_d`](Epilogue::scale_d) from it.
    #[must_use]
    pub fn amax(mut self, amax: &'a mut f32) -> Self {
        self.amax = Some(amax);
        self
    }

    /// The problem of this product in a step of `problem`'s shape, of whose D it has `rows` rows, once everything fits it.
    pub(crate) fn check(&self, problem: &Problem, rows: u32) -> Result<Problem> {
        let problem = match self.n {
            Some(n) => problem.with_n(n)?,
            None => problem.clone(),
        };
        check_len("B", self.b.len(), b_lens(&problem), ALL_ROWS)?;
        let remedy = if rows == problem.m() { ALL_ROWS } else { OWN_ROWS };
        check_len("D", self.d.len(), d_lens(&problem, rows), remedy)?;
        check_epilogue(&problem, rows, &self.epilogue, remedy)?;
        let scales = problem.scaling().count(problem.columns_of_b());
        check_scales("the scales of B", self.scales, scales)?;
        problem.elements().check_fp8_output("an amax", self.amax.is_some())?;
        if let Some(amax) = self.amax.as_deref().filter(|amax| amax.is_sign_negative()) {
            let remedy = "begin with 0.0";
            return Err(Error::mismatch("amax", amax, "0 or more", remedy));
        }
        Ok(problem)
    }
}
