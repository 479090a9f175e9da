//! A problem as the C side receives it, and the rules for which ones it takes.
//!
//! What belongs here: sizes, pitches and how the kernel is to be run, as plain numbers. Invariant: the
//! rules are those of `og_gemm_check`, so that what passes here is refused by neither side; the test
//! `the_two_sides_agree` compares them. Pitches and widths are [`Problem::check_tma`]'s.

use crate::error::{Error, Result};
use crate::kernels::Choice;
use crate::plan::Problem;

/// The largest M, N and K: rounding up to a tile has to stay within 31 bits.
pub const MAX_EXTENT: u32 = 2_147_483_392;

/// The most slices that K can be cut into.
pub const MAX_SPLITS: u32 = 16;

/// The numbers that go to the C side; C, where there is one, lies as D does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) lda: u32,
    pub(crate) ldb: u32,
    pub(crate) ldd: u32,
    pub(crate) kernel: u32,
    /// How many SMs the kernel may occupy; 0 means all.
    pub(crate) sm_limit: u32,
    pub(crate) swizzle: u32,
    pub(crate) splits: u32,
    pub(crate) with_c: bool,
}

/// What does not depend on the kernel: whether the sizes and pitches are ones that kernels take.
pub(crate) fn check(problem: &Problem) -> Result<()> {
    for (what, value) in [("m", problem.m()), ("n", problem.n()), ("k", problem.k())] {
        if !(1..=MAX_EXTENT).contains(&value) {
            let remedy = "split the product into several";
            return Err(Error::out_of_range(what, value.into(), 1, MAX_EXTENT.into(), remedy));
        }
    }
    problem.check_tma()
}

impl Shape {
    /// The problem, run as chosen. The caller has [`check`]ed it.
    pub(crate) fn new(
        problem: &Problem,
        choice: Choice,
        sm_limit: Option<u32>,
        with_c: bool,
    ) -> Shape {
        Shape {
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            lda: problem.lda(),
            ldb: problem.ldb(),
            ldd: problem.ldd(),
            kernel: u32::try_from(choice.kernel).unwrap_or(u32::MAX),
            sm_limit: sm_limit.unwrap_or(0),
            swizzle: choice.swizzle,
            splits: choice.splits,
            with_c,
        }
    }
}
