//! The kernel of a product whose size was measured as a step.
//!
//! What belongs here: whether a table's kernel can be taken for a product. Pure: no device. Invariant: what the caller fixed
//! stays as it is, and what comes out is legal, so that a table never makes a plan fail that would succeed without.

use super::choice::choose;
use super::options::GemmOptions;
use crate::cuda::sys::device::DeviceInfo;
use crate::cuda::sys::shape;
use crate::kernels::Kernel;
use crate::plan::Problem;
use crate::tune::{Multiplying, Tuning};

/// `options` with the measured kernel, if there is one and the caller left the kernel open.
pub(crate) fn with_measured_kernel(
    options: &GemmOptions,
    tuning: &Tuning,
    device: &DeviceInfo,
    kernels: &[Kernel],
    problem: &Problem,
) -> GemmOptions {
    let GemmOptions { kernel, swizzle, splits, .. } = options;
    let is_open = kernel.is_none() && swizzle.is_none() && splits.is_none();
    let measured = tuning.kernel_of_size(&device.name, problem).filter(|_| is_open);
    measured
        .and_then(|measured| fixed(options, measured, kernels, problem, device.sm_count))
        .unwrap_or_else(|| options.clone())
}

/// `asked` with that kernel, run that way; `None` if the caller asked for another, or it cannot compute the problem on
/// `sms` SMs: it may not have been compiled, or sum fp8 in another way.
pub(crate) fn fixed(
    asked: &GemmOptions,
    multiplying: &Multiplying,
    kernels: &[Kernel],
    problem: &Problem,
    sms: u32,
) -> Option<GemmOptions> {
    // Fewer SMs have other waves than those that were measured.
    let is_open = asked.sm_limit.is_none_or(|limit| limit == sms)
        && asked.kernel.as_ref().is_none_or(|asked| *asked == multiplying.kernel)
        && asked.swizzle.is_none_or(|asked| asked == multiplying.swizzle)
        && asked.splits.is_none_or(|asked| asked == multiplying.splits);
    let mut fixed = asked.clone();
    fixed.fix(multiplying);
    let can = || shape::check(problem).is_ok() && choose(kernels, problem, &fixed, sms).is_ok();
    (is_open && can()).then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;
    use crate::kernels::all_kernels;

    fn kernel(options: &GemmOptions, problem: &Problem, kernels: &[Kernel]) -> Option<String> {
        let tuning = Tuning::shipped();
        with_measured_kernel(options, tuning, &DeviceInfo::made_up(), kernels, problem).kernel
    }

    #[test]
    fn a_measured_size_has_its_kernel_and_all_else_stays_open() {
        let size = |m| Problem::builder(m, 3584, 8192).build().unwrap();
        let (plain, all) = (GemmOptions::default(), all_kernels());
        let measured = kernel(&plain, &size(2048), all);
        assert_eq!(measured.unwrap(), "bf16_bf16_bf16_nk_128x112x64_2x1_pingpong");
        // Measured where a kernel sent the rows: 84 blocks and 16; and 128 blocks and 16, more than there are SMs.
        let few = kernel(&plain, &size(64), all);
        assert_eq!(few.unwrap(), "bf16_bf16_bf16_nk_64x128x64_1x2_cooperative_transposed");
        assert_eq!(kernel(&plain, &size(256), all), None);
        // Not measured.
        assert_eq!(kernel(&plain, &size(2049), all), None);
        // Other types, and what the caller fixed.
        let f16 = Problem::builder(2048, 3584, 8192);
        let f16 = f16.elements(ElementType::F16, ElementType::F16, ElementType::F16);
        assert_eq!(kernel(&plain, &f16.build().unwrap(), all), None);
        for fixed in [
            plain.clone().with_swizzle(1),
            plain.clone().with_splits(1),
            plain.clone().with_sm_limit(100),
        ] {
            assert_eq!(kernel(&fixed, &size(2048), all), None);
        }
        let named = plain.clone().with_kernel("bf16_bf16_bf16_nk_128x128x64_2x1_pingpong");
        assert_eq!(kernel(&named, &size(2048), all), named.kernel);
        // Not compiled.
        let others: Vec<Kernel> =
            all.iter().filter(|one| !one.name.contains("128x112")).cloned().collect();
        assert_eq!(kernel(&plain, &size(2048), &others), None);
    }
}
