//! Products whose input is there: one case run and checked, and many of them.
//!
//! Invariant: every case is computed twice by one plan, on different inputs, and everything about both
//! results is checked.

use overlap_gemm::cuda::{Activation, Gemm, Kernel};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Report;

use super::call::{call, check};
use super::case::Case;
use super::{Gpu, in_parallel, tried_kernels};

/// Runs the cases that `cases` makes for each kernel, of the same random numbers for each.
pub fn run_cases(seed: u64, cases: impl Fn(&'static Kernel, &mut Random) -> Vec<Case>) {
    let kernels = tried_kernels().into_iter();
    let all: Vec<Case> = kernels.flat_map(|kernel| cases(kernel, &mut Random::new(seed))).collect();
    in_parallel(&all, |gpu, at, case| run(gpu, case, &mut Random::of_stream(seed, at as u64)));
}

/// Runs one case through one plan, twice, with different inputs, and checks everything.
pub fn run(gpu: &Gpu, case: &Case, random: &mut Random) {
    let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
    let rows = case.rows.unwrap_or(gemm.problem().m());
    for round in 0..2 {
        let mut call = call(gpu, case, random);
        call.enqueue(&gemm, &gpu.stream);
        let report = check(&mut *call, &gpu.stream, case, rows, random);
        call.check_amax(&gpu.stream, rows);
        check_norm(case, &report);
        let (choice, worst) = (gemm.choice(), 100.0 * report.worst_fraction);
        println!("{case}: round {round}, {choice:?}, {worst:.1} % of the bound: {report:?}");
    }
}

/// What no output may differ by as a whole, relative to the norm of all: rounding to D, and far below
/// what a missing or doubled K step of 64 would show as, √(64 / K).
fn check_norm(case: &Case, report: &Report) {
    // fp8 sums are cut off at 2⁻¹³ of the largest addend, 33 addends a step.
    let sums = if case.kernel.elements.a.is_fp8() { 33.0 / 8192.0 } else { 1e-5 };
    // Of a gated product, both factors are off.
    let factors = if case.gated { 2.0 } else { 1.0 };
    let allowed = 2.0 * case.kernel.elements.d.unit_roundoff() + factors * sums;
    // Where almost all outputs are 0 after the activation, the norm says nothing.
    let informative = case.options.activation == Activation::None && !case.options.c;
    assert!(!informative || report.relative_error < allowed, "{case:?}: {report:?}");
}
