//! What a table of measurements decides of a product: whether its kernel can run here, and how it is put into options.
//!
//! What belongs here: what gathers and reductions have in common. Pure. Invariant: all that a caller fixed stays as it is.

use super::check_size;
use super::choice::choose;
use super::options::GemmOptions;
use crate::kernels::Kernel;
use crate::plan::Problem;
use crate::tune::{Answer, Multiplying, Tuning};

/// Whether that kernel, run that way, is what the caller `asked` for, and can compute the problem on `sms` SMs: it may not have been
/// compiled, or sum fp8 in another way.
pub(crate) fn can_run(
    asked: &GemmOptions,
    multiplying: &Multiplying,
    kernels: &[Kernel],
    problem: &Problem,
    sms: u32,
) -> bool {
    // Fewer SMs have other waves than those that were measured.
    let is_open = asked.sm_limit.is_none_or(|limit| limit == sms)
        && asked.kernel.as_ref().is_none_or(|asked| *asked == multiplying.kernel)
        && asked.swizzle.is_none_or(|asked| asked == multiplying.swizzle)
        && asked.splits.is_none_or(|asked| asked == multiplying.splits);
    let mut fixed = asked.clone();
    fix(&mut fixed, multiplying);
    is_open && check_size(problem).is_ok() && choose(kernels, problem, &fixed, sms).is_ok()
}

/// Fixes the kernel, and how it runs.
pub(crate) fn fix(gemm: &mut GemmOptions, multiplying: &Multiplying) {
    gemm.kernel = Some(multiplying.kernel.clone());
    gemm.swizzle = Some(multiplying.swizzle);
    gemm.splits = Some(multiplying.splits);
}

/// Where a plan comes from, in words; `none`: why there is no answer. `driver`: that of this machine.
pub(crate) fn origin(answer: Option<&Answer>, none: &str, driver: &str, tuning: &Tuning) -> String {
    let mut origin = answer.map_or_else(|| none.to_owned(), Answer::to_string);
    let measured_with = answer.and_then(|answer| answer.driver.as_ref());
    if let Some(other) = measured_with.filter(|other| *other != driver) {
        origin += &format!("; with driver {other}, here is {driver}");
    }
    for note in tuning.notes() {
        origin += &format!("; {note}");
    }
    origin
}
