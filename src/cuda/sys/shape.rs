//! A problem as the C side receives it, and the rules for which ones it takes.
//!
//! What belongs here: sizes, pitches and how the kernel is to be run, as plain numbers. Invariant: the
//! rules are those of `og_gemm_check`, so that what passes here is refused by neither side; the test
//! `the_two_sides_agree` compares them. Pitches and widths are [`Problem::check_tma`]'s.

use super::bindings::og_gemm_shape;
use super::ffi::{MAX_EXTENT, int};
use crate::error::{Error, Result};
use crate::kernels::Choice;
use crate::plan::Problem;

/// What does not depend on the kernel: whether the sizes and pitches are ones that kernels take.
pub(crate) fn check(problem: &Problem) -> Result<()> {
    for (what, value) in [("m", problem.m()), ("n", problem.n()), ("k", problem.k())] {
        Error::check_range(what, value, 1..=MAX_EXTENT, "split the product into several")?;
    }
    problem.check_tma()
}

/// The problem, run as chosen on at most that many SMs (default: all); the caller has [`check`]ed it. C lies as D does.
pub(crate) fn shape_of(problem: &Problem, choice: Choice, sm_limit: Option<u32>) -> og_gemm_shape {
    og_gemm_shape {
        m: problem.m().into(),
        n: problem.n().into(),
        k: problem.k().into(),
        lda: problem.lda().into(),
        ldb: problem.ldb().into(),
        ldc: problem.ldd().into(),
        ldd: problem.ldd().into(),
        kernel: i32::try_from(choice.kernel).unwrap_or(i32::MAX),
        sm_count: int(sm_limit.unwrap_or(0)),
        swizzle: int(choice.swizzle),
        splits: int(choice.splits),
    }
}
