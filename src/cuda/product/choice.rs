//! Which kernel carries out which product, and how.
//!
//! What belongs here: arithmetic over the kernels' facts, the problem and the number of SMs: no
//! device, no clock. Invariant: the same question has the same answer everywhere, what is chosen is
//! legal for the kernel, and only kernels of the asked types, layout and accumulation are
//! looked at: there is no silent fallback.
//!
//! Two steps: `candidates` lists everything that would be right, `cheapest` takes the one that the cost model
//! ([`kernels`](crate::kernels)) finds fastest. A tuning table overrides the cost model: it fixes the kernel in `options`.

use super::options::GemmOptions;
use crate::error::{Error, Result};
use crate::kernels::{Choice, Kernel, cheapest, choices, kind, most_splits};
use crate::plan::Problem;

/// SMs of an H100 or H200: what is assumed where no device was asked.
pub(crate) const TYPICAL_SMS: u32 = 132;

/// The kernel for `problem` on `sm_count` SMs, of `kernels` as [`kernels`](crate::cuda::kernels()) lists
/// them; `options` may fix any part of the answer.
pub(crate) fn choose(
    kernels: &[Kernel],
    problem: &Problem,
    options: &GemmOptions,
    sm_count: u32,
) -> Result<Choice> {
    let sms = options.sm_limit.unwrap_or(sm_count);
    let all = candidates(kernels, problem, options, sms, sm_count)?;
    let choice = cheapest(kernels, problem, &all, sms);
    choice.ok_or_else(|| none_for(kernels, problem, options))
}

/// Every kernel and number of splits that would compute the problem; never empty.
fn candidates(
    kernels: &[Kernel],
    problem: &Problem,
    options: &GemmOptions,
    sms: u32,
    sm_count: u32,
) -> Result<Vec<Choice>> {
    let mut serving = serving(kernels, problem, options)?;
    let least = serving.iter().map(|&index| kernels[index].cluster_size()).min().unwrap_or(1);
    let remedy = "leave the limit out to use the whole GPU";
    Error::check_range("the SM limit", sms, least..=sm_count, remedy)?;
    serving.retain(|&index| kernels[index].cluster_size() <= sms);
    let most =
        serving.iter().map(|&index| most_splits(&kernels[index], problem)).max().unwrap_or(1);
    let remedy = "cut K into no more slices than a kernel can, nor than K has steps";
    Error::check_range("the number of splits", options.splits.unwrap_or(1), 1..=most, remedy)?;
    let mut all = choices(kernels, problem, serving);
    all.retain(|choice| options.splits.is_none_or(|splits| choice.splits == splits));
    for choice in &mut all {
        choice.swizzle = options.swizzle.unwrap_or(choice.swizzle);
        kernels[choice.kernel].tiling(choice.swizzle).check()?;
    }
    Ok(all)
}

/// The kernels of the right types, or the named one.
fn serving(kernels: &[Kernel], problem: &Problem, options: &GemmOptions) -> Result<Vec<usize>> {
    let fast = options.fast_accumulation;
    let serves = |kernel: &Kernel| {
        kernel.serves(problem, fast) && (kernel.adds_others || !options.adds_others)
    };
    if let Some(name) = &options.kernel {
        let Some(index) = kernels.iter().position(|kernel| kernel.name == *name) else {
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}'"),
                why: format!("this binary has {} kernels{}", kernels.len(), such_as(kernels, name)),
                remedy: "name one in full, or build with OVERLAP_GEMM_KERNELS=all for all of them",
            });
        };
        if options.adds_others && !kernels[index].adds_others {
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}' in a fused reduction"),
                why: "its tiles leave no registers for other ranks' sums, or D has 32 bits".into(),
                remedy: "name a kernel of at most 128×128 outputs for each group of warps, or none",
            });
        }
        if problem.is_gated() && !kernels[index].gates {
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}' for a gated product"),
                why: "its tiles would cut gates from what they gate".into(),
                remedy: "name a kernel whose tiles have a multiple of 16 columns, or none",
            });
        }
        if !serves(&kernels[index]) {
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}' for {}", asked(problem, options)),
                why: format!("it computes {}", kernels[index].kind()),
                remedy: "name a kernel of these types, or none to have one chosen",
            });
        }
        return Ok(vec![index]);
    }
    let mut all: Vec<_> = (0..kernels.len()).filter(|&index| serves(&kernels[index])).collect();
    // These add C as they add others' sums. Most of the rest load it element by element.
    let adds_c = |index: &usize| kernels[*index].adds_others;
    if options.c && all.iter().any(adds_c) {
        all.retain(adds_c);
    }
    if all.is_empty() { Err(none_for(kernels, problem, options)) } else { Ok(all) }
}

/// Some kernels with that text in their names; else the first.
fn such_as(kernels: &[Kernel], name: &str) -> String {
    const MOST: usize = 4;
    let names = || kernels.iter().map(|kernel| kernel.name.as_str());
    let like: Vec<_> = names().filter(|known| known.contains(name)).take(MOST).collect();
    let shown = if like.is_empty() { names().take(1).collect() } else { like };
    if shown.is_empty() { String::new() } else { format!(", such as {}", shown.join(", ")) }
}

fn asked(problem: &Problem, options: &GemmOptions) -> String {
    kind(problem.elements(), problem.b_layout(), options.fast_accumulation)
}

fn none_for(kernels: &[Kernel], problem: &Problem, options: &GemmOptions) -> Error {
    let mut kinds: Vec<_> = kernels.iter().map(Kernel::kind).collect();
    kinds.sort();
    kinds.dedup();
    Error::Unsupported {
        what: format!("the product {} on the GPU", asked(problem, options)),
        why: match kinds.is_empty() {
            true => "this binary has no kernels at all".into(),
            false if options.adds_others => {
                "this binary has no kernel of these types that adds other ranks' sums".into()
            }
            false => format!("this binary has kernels for {}", kinds.join("; ")),
        },
        remedy: "use one of these, or build with the environment variable OVERLAP_GEMM_KERNELS=all: \
                 the full set of kernels is not compiled by default",
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
pub(crate) mod tests;
