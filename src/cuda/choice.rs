//! Which kernel carries out which product, and how.
//!
//! What belongs here: arithmetic over the kernels' facts, the problem and the number of SMs: no
//! device, no clock. Invariant: the same question has the same answer everywhere, what is chosen is
//! legal for the kernel, and only kernels of the asked types, layout and accumulation are
//! looked at: there is no silent fallback.
//!
//! Two steps: `candidates` lists everything that would be right, `cheapest` takes the one that the cost
//! model finds fastest. Measured times go before the guess by way of `options`, which may fix the answer.

use super::kernels::{Kernel, kind};
use super::options::GemmOptions;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::plan::{Problem, Scaling};

/// SMs of an H100 or H200: what is assumed where no device was asked.
pub const TYPICAL_SMS: u32 = 132;

/// A kernel and how to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Choice {
    /// The kernel's place in the list.
    pub kernel: usize,
    /// Unit rows that sweep over the columns together.
    pub swizzle: u32,
    /// Slices that K is cut into.
    pub splits: u32,
}

/// The kernel for `problem` on `sm_count` SMs, of `kernels` as [`kernels`](super::kernels()) lists
/// them; `options` may fix any part of the answer.
pub fn choose(
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

/// Everything that would compute the problem, with the seconds that the cost model expects: first what [`choose`]
/// chooses, then the others, the cheapest first. What is measured, where somebody measures, begins with these.
pub fn ranked(
    kernels: &[Kernel],
    problem: &Problem,
    options: &GemmOptions,
    sm_count: u32,
) -> Result<Vec<(Choice, f64)>> {
    let sms = options.sm_limit.unwrap_or(sm_count);
    let all = candidates(kernels, problem, options, sms, sm_count)?;
    let first = cheapest(kernels, problem, &all, sms);
    let cost = |choice: Choice| cost(&kernels[choice.kernel], problem, choice.splits, sms);
    let mut ranked: Vec<_> = all.into_iter().map(|choice| (choice, cost(choice))).collect();
    ranked.sort_by(|(one, a), (other, b)| {
        let place = |choice: &Choice| Some(*choice) != first;
        place(one).cmp(&place(other)).then(a.total_cmp(b))
    });
    Ok(ranked)
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
    if !(least..=sm_count).contains(&sms) {
        let remedy = "leave the limit out to use the whole GPU";
        let (min, max) = (least.into(), sm_count.into());
        return Err(Error::out_of_range("the SM limit", sms.into(), min, max, remedy));
    }
    serving.retain(|&index| kernels[index].cluster_size() <= sms);
    let most =
        serving.iter().map(|&index| most_splits(&kernels[index], problem)).max().unwrap_or(1);
    if let Some(splits) = options.splits.filter(|splits| !(1..=most).contains(splits)) {
        let remedy = "cut K into no more slices than a kernel can, nor than K has steps";
        let what = "the number of splits";
        return Err(Error::out_of_range(what, splits.into(), 1, most.into(), remedy));
    }
    let mut all = Vec::new();
    for index in serving {
        let kernel = &kernels[index];
        let swizzle = options.swizzle.unwrap_or_else(|| square_waves(kernel, problem, sms));
        kernel.tiling(swizzle).check()?;
        let most = most_splits(kernel, problem);
        let splits = match options.splits {
            Some(splits) => splits..=splits.min(most),
            None => 1..=most,
        };
        all.extend(splits.map(|splits| Choice { kernel: index, swizzle, splits }));
    }
    Ok(all)
}

/// The kernels of the right types, or the named one.
fn serving(kernels: &[Kernel], problem: &Problem, options: &GemmOptions) -> Result<Vec<usize>> {
    let fast = options.fast_accumulation;
    let serves = |kernel: &Kernel| kernel.serves(problem.elements(), problem.b_layout(), fast);
    if let Some(name) = &options.kernel {
        let Some(index) = kernels.iter().position(|kernel| kernel.name == *name) else {
            let names: Vec<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}'"),
                why: format!("this binary has {}", names.join(", ")),
                remedy: "name one of these, or build with OVERLAP_GEMM_KERNELS=all for the full set",
            });
        };
        if !serves(&kernels[index]) {
            return Err(Error::Unsupported {
                what: format!("the kernel '{name}' for {}", asked(problem, options)),
                why: format!("it computes {}", kernels[index].kind()),
                remedy: "name a kernel of these types, or none to have one chosen",
            });
        }
        return Ok(vec![index]);
    }
    let all: Vec<_> = (0..kernels.len()).filter(|&index| serves(&kernels[index])).collect();
    if all.is_empty() { Err(none_for(kernels, problem, options)) } else { Ok(all) }
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
            false => format!("this binary has kernels for {}", kinds.join("; ")),
        },
        remedy: "use one of these, or build with the environment variable OVERLAP_GEMM_KERNELS=all: \
                 the full set of kernels is not compiled by default",
    }
}

/// The most slices that the kernel can cut this K into: each has at least one step.
fn most_splits(kernel: &Kernel, problem: &Problem) -> u32 {
    kernel.max_splits.min(problem.k().div_ceil(kernel.tile_k)).max(1)
}

/// As many unit rows together as make the part of D that is computed at a time about square, so that
/// A and B are read about equally often; a little flatter, which was seen to be faster.
fn square_waves(kernel: &Kernel, problem: &Problem, sms: u32) -> u32 {
    let [rows, columns] = unit(kernel).map(|extent| extent as f64);
    let clusters = f64::from((sms / kernel.cluster_size()).max(1));
    let together = (clusters * columns / rows).sqrt() / 1.4;
    let all = (f64::from(problem.m()) / rows).ceil() as u32;
    // A power of two below, so that whole sweeps fill the usual, even, shapes.
    let together = (together as u32).clamp(1, 8).min(all.max(1));
    1 << together.ilog2()
}

/// Rows and columns of what one cluster computes at a time.
fn unit(kernel: &Kernel) -> [u64; 2] {
    let extent = |tile: u32, cluster: u32| u64::from(tile) * u64::from(cluster);
    [extent(kernel.tile.m, kernel.cluster.m), extent(kernel.tile.n, kernel.cluster.n)]
}

/// The candidate with the least cost; among equals the one with the larger tile, then with fewer
/// splits, then the first.
fn cheapest(kernels: &[Kernel], problem: &Problem, all: &[Choice], sms: u32) -> Option<Choice> {
    /// Costs that differ by less are equal: the model is not that good.
    const SAME: f64 = 0.999;
    let area = |choice: &Choice| {
        let tile = kernels[choice.kernel].tile;
        u64::from(tile.m) * u64::from(tile.n)
    };
    let mut best: Option<(f64, Choice)> = None;
    for choice in all {
        let cost = cost(&kernels[choice.kernel], problem, choice.splits, sms);
        let better = match &best {
            None => true,
            Some((least, _)) if cost < least * SAME => true,
            Some((least, _)) if cost * SAME > *least => false,
            Some((_, old)) => {
                (area(choice), old.splits, old.kernel) > (area(old), choice.splits, choice.kernel)
            }
        };
        if better {
            best = Some((cost, *choice));
        }
    }
    best.map(|(_, choice)| choice)
}

// The figures below are fitted to times of the kernels on one H200: 349 products, M from 1 to 16384, N
// and K those of transformer layers, in bf16 and fp8, each with every kernel, several sweeps and numbers of
// slices. What is chosen takes 1.7 % longer than the best of them, in the geometric mean. The figures tell
// kernels apart; none is a rate of the hardware.

/// Operations a second of one SM's tensor cores on 16-bit inputs, and how much faster fp8 is.
const SM_FLOPS: f64 = 3.96e12;
const FP8_SPEEDUP: f64 = 2.37;
/// Bytes a second from device memory, to one SM.
const MEMORY_TO_ONE: f64 = 5.8e10;
/// Bytes a second from the L2 cache, to all SMs together and to one alone.
const CACHE: f64 = 8.9e12;
const CACHE_TO_ONE: f64 = 9.2e10;
/// Seconds that a byte from the cache costs even where it is hidden: long products run at the clock that
/// the power limit leaves them, and moving bytes takes power.
const CACHE_POWER: f64 = 1.7e-14;
/// Seconds from the last sums of a 128 by 256 tile to the next tile's first; how much more that is with
/// scales for rows and columns; and the part that shows where the other group computes meanwhile.
const FINISH: f64 = 1.0e-6;
const FINISH_ROWS: f64 = 2.0;
const FINISH_BESIDE_ANOTHER: f64 = 0.14;
/// What one group of two that take turns loses where it has no other to take turns with.
const ALONE: f64 = 0.14;
/// Seconds that slices of K cost: for meeting, for each slice, and for each time that all blocks have to
/// meet once more.
const SPLIT: f64 = 1.1e-6;
const SLICE: f64 = 8.4e-7;
const SPLIT_WAVE: f64 = 7.6e-6;

/// Seconds that the product should take, launch apart.
fn cost(kernel: &Kernel, problem: &Problem, splits: u32, sms: u32) -> f64 {
    let [unit_m, unit_n] = unit(kernel);
    let units = u64::from(problem.m()).div_ceil(unit_m) * u64::from(problem.n()).div_ceil(unit_n);
    // Slices of a tile lie side by side (clusters_in_order in abi.cu).
    let clusters = sms / kernel.cluster_size();
    let clusters = u64::from((clusters - clusters % splits).max(1));
    let work = units * u64::from(splits);
    let waves = work.div_ceil(clusters);
    let busy = (work.min(clusters) * u64::from(kernel.cluster_size())) as f64;

    let (m, n) = (f64::from(kernel.tile.m), f64::from(kernel.tile.n));
    let steps = problem.k().div_ceil(kernel.tile_k).div_ceil(splits);
    let k = f64::from(steps) * f64::from(kernel.tile_k);
    let size = |element: ElementType| f64::from(element.size());
    let (a, b, d) = {
        let types = problem.elements();
        (size(types.a), size(types.b), size(types.d))
    };
    let rate = SM_FLOPS * if problem.elements().a.is_fp8() { FP8_SPEEDUP } else { 1.0 };
    let multiply = 2.0 * m * n * k / (rate * efficiency(m * n, kernel.pingpong));
    // What a cluster shares is read once for all of its blocks, and rows beyond the last are not read.
    let rows = m.min(f64::from(problem.m()));
    let (cluster_m, cluster_n) = (f64::from(kernel.cluster.m), f64::from(kernel.cluster.n));
    let loaded = (rows * a / cluster_n + n * b / cluster_m) * k;
    let load = loaded / CACHE_TO_ONE.min(CACHE / busy);
    let shown = if kernel.pingpong { FINISH_BESIDE_ANOTHER } else { 1.0 };
    let scaling = if problem.scaling() == Scaling::Rows { FINISH_ROWS } else { 1.0 };
    let finish = FINISH * (m * n) / 32768.0 * shown * scaling;
    let alone = if kernel.pingpong && waves == 1 { ALONE * multiply } else { 0.0 };
    let computing = waves as f64 * (multiply.max(load) + finish) + alone;

    let (all_m, all_n, all_k) =
        (f64::from(problem.m()), f64::from(problem.n()), f64::from(problem.k()));
    let bytes = all_m * all_k * a + all_n * all_k * b + all_m * all_n * d;
    let moving = bytes / (MEMORY_TO_ONE * busy);
    let joining = match splits {
        1 => 0.0,
        _ => {
            let sums = 2.0 * 4.0 * m * n * work as f64 * f64::from(kernel.cluster_size()) / CACHE;
            SPLIT + SLICE * f64::from(splits) + SPLIT_WAVE * (waves - 1) as f64 + sums
        }
    };
    let power = CACHE_POWER * loaded * work as f64 * f64::from(kernel.cluster_size());
    computing.max(moving) + joining + power
}

/// The share of the peak that tiles of so many outputs reach. Where two groups take turns, the tensor
/// cores work on one tile while another is finished, so smaller tiles suffice.
fn efficiency(outputs: f64, pingpong: bool) -> f64 {
    let steps: &[(f64, f64)] = match pingpong {
        true => &[(1.4, 1.02), (1.0, 1.0), (0.75, 0.97), (0.5, 0.83), (0.0, 0.88)],
        false => &[(0.75, 1.0), (0.5, 0.87), (0.4, 0.85), (0.25, 0.88), (0.0, 0.26)],
    };
    let share = outputs / if pingpong { 16384.0 } else { 32768.0 };
    steps.iter().find(|(least, _)| share >= *least).map_or(0.0, |(_, efficiency)| *efficiency)
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
