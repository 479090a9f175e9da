//! The cost of one product on a kernel, and the choice of the cheapest kernel.
//!
//! What belongs here: arithmetic over a kernel's properties, a problem and a number of SMs. Invariant: the figures
//! here compare kernels, and are the same on every machine; [`Machine`](crate::predict::Machine) converts them into seconds
//! of one machine.

use super::kernel::Kernel;
use crate::element::ElementType;
use crate::plan::{Problem, Scaling};

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

impl Choice {
    /// That kernel, run that way.
    pub const fn new(kernel: usize, swizzle: u32, splits: u32) -> Self {
        Choice { kernel, swizzle, splits }
    }
}

/// The most slices that the kernel can cut this K into: each has at least one step.
pub(crate) fn most_splits(kernel: &Kernel, problem: &Problem) -> u32 {
    kernel.max_splits.min(problem.k().div_ceil(kernel.tile_k)).max(1)
}

/// As many unit rows together as make the part of D that is computed at a time about square, so that
/// A and B are read about equally often; a little flatter, which was seen to be faster.
pub(crate) fn square_waves(kernel: &Kernel, problem: &Problem, sms: u32) -> u32 {
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

/// Every kernel that `serves` and fits on these SMs, with every number of slices.
pub(crate) fn choices(
    kernels: &[Kernel],
    problem: &Problem,
    sms: u32,
    serves: impl Fn(&Kernel) -> bool,
) -> Vec<Choice> {
    let fits = |kernel: &Kernel| serves(kernel) && kernel.cluster_size() <= sms;
    (kernels.iter().enumerate())
        .filter(|(_, kernel)| fits(kernel))
        .flat_map(|(index, kernel)| {
            let swizzle = square_waves(kernel, problem, sms);
            let splits = 1..=most_splits(kernel, problem);
            splits.map(move |splits| Choice::new(index, swizzle, splits))
        })
        .collect()
}

/// The candidate with the least cost; among equals the one with the larger tile, then with fewer
/// splits, then the first.
pub(crate) fn cheapest(
    kernels: &[Kernel],
    problem: &Problem,
    all: &[Choice],
    sms: u32,
) -> Option<Choice> {
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

/// All of them with their costs: the [`cheapest`] first, then the others by cost.
#[cfg(any(feature = "cuda", feature = "tune"))]
pub(crate) fn ranked(
    kernels: &[Kernel],
    problem: &Problem,
    all: Vec<Choice>,
    sms: u32,
) -> Vec<(Choice, f64)> {
    let first = cheapest(kernels, problem, &all, sms);
    let cost = |choice: Choice| cost(&kernels[choice.kernel], problem, choice.splits, sms);
    let mut ranked: Vec<_> = all.into_iter().map(|choice| (choice, cost(choice))).collect();
    ranked.sort_by(|(one, a), (other, b)| {
        let place = |choice: &Choice| Some(*choice) != first;
        place(one).cmp(&place(other)).then(a.total_cmp(b))
    });
    ranked
}

// The figures below were first fitted to times of the kernels on one H200 (349 products, M from 1 to 16384, N and K those of
// transformer layers, in bf16 and fp8, each with every kernel, several sweeps and numbers of slices); then those of tiles,
// of memory, of the cache and of slices again, to what steps took that were tried for the problems of src/tune/h200.json (version 1
// of that file, in the repository's history, has all of them): those
// that were among the fastest, and those that should have been. The figures compare kernels; none is a rate of the hardware.

/// Operations a second of one SM's tensor cores on 16-bit inputs, and how much faster fp8 is.
const SM_FLOPS: f64 = 3.96e12;
const FP8_SPEEDUP: f64 = 2.39;
/// Bytes a second from device memory, to one SM.
const MEMORY_TO_ONE: f64 = 8.0e10;
/// Bytes a second from the L2 cache, to all SMs together and to one alone.
const CACHE: f64 = 9.6e12;
const CACHE_TO_ONE: f64 = 9.3e10;
/// Seconds that a byte from the cache costs even where it is hidden: long products run at the clock that
/// the power limit leaves them, and moving bytes takes power.
const CACHE_POWER: f64 = 3.0e-14;
/// Seconds from the last sums of a 128 by 256 tile to the next tile's first; how much more that is with
/// scales for rows and columns; and the part that shows where the other group computes meanwhile.
const FINISH: f64 = 8.6e-7;
const FINISH_ROWS: f64 = 2.7;
const FINISH_BESIDE_ANOTHER: f64 = 0.074;
/// What one group of two that take turns loses where it has no other to take turns with.
const ALONE: f64 = 0.14;
/// Seconds that slices of K cost: for meeting, for each slice, and for each time that all blocks have to
/// meet once more. And bytes a second of others' sums that a block adds to its own: always the same blocks do, wave by wave.
const SPLIT: f64 = 4.0e-6;
const SLICE: f64 = 3.8e-7;
const SPLIT_WAVE: f64 = 2.9e-6;
const SUMS_TO_ONE: f64 = 4.0e10;
/// Bytes of B that the cache keeps from one sweep over the columns to the next; the rest is read again. The cache of an H200
/// has 60 MB.
const KEPT: f64 = 3.0e7;
/// How far computing hides what memory gives meanwhile, and the other way round: the exponent of a mean that is no less than
/// the longer of both, and nineteen per cent more where they are alike.
const HIDING: f64 = 4.0;

/// The parts of a product's cost, in seconds of the figures above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Clusters that compute at a time.
    pub(crate) clusters: u64,
    /// How often each of them computes a unit (or a slice of one), at most.
    pub(crate) waves: u64,
    /// One unit: its sums and what comes after them.
    pub(crate) unit: f64,
    /// What a lone group of warps loses.
    alone: f64,
    /// Bytes from and to memory, and the SMs that are busy with them.
    bytes: f64,
    busy_sms: f64,
    /// Adding up slices of K.
    pub(crate) joining: f64,
    /// What bytes from the cache cost where they are hidden.
    pub(crate) power: f64,
}

impl Work {
    /// The product of `problem` with K in `splits` slices, on `sms` SMs, which goes through all columns `sweeps` times.
    pub(crate) fn new(
        kernel: &Kernel,
        problem: &Problem,
        splits: u32,
        sweeps: u64,
        sms: u32,
    ) -> Self {
        let [unit_m, unit_n] = unit(kernel);
        let units =
            u64::from(problem.m()).div_ceil(unit_m) * u64::from(problem.n()).div_ceil(unit_n);
        // Slices of a tile lie side by side (clusters_in_order in abi.cu).
        let clusters = sms / kernel.cluster_size();
        let clusters = u64::from((clusters - clusters % splits).max(1));
        let work = units * u64::from(splits);
        let waves = work.div_ceil(clusters);
        let busy_sms = (work.min(clusters) * u64::from(kernel.cluster_size())) as f64;

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
        let load = loaded / CACHE_TO_ONE.min(CACHE / busy_sms);
        let shown = if kernel.pingpong { FINISH_BESIDE_ANOTHER } else { 1.0 };
        let scaling = if problem.scaling() == Scaling::Rows { FINISH_ROWS } else { 1.0 };
        let finish = FINISH * (m * n) / 32768.0 * shown * scaling;
        let alone = if kernel.pingpong && waves == 1 { ALONE * multiply } else { 0.0 };

        let (all_m, all_n, all_k) =
            (f64::from(problem.m()), f64::from(problem.n()), f64::from(problem.k()));
        let b_bytes = all_n * all_k * b;
        let again = (b_bytes - KEPT).max(0.0) * sweeps.saturating_sub(1) as f64;
        let bytes = all_m * all_k * a + b_bytes + again + all_m * all_n * d;
        let blocks = work as f64 * f64::from(kernel.cluster_size());
        let joining = match splits {
            1 => 0.0,
            _ => {
                let sums = 4.0 * m * n * f64::from(splits - 1) / SUMS_TO_ONE;
                let waves = waves as f64;
                SPLIT + SLICE * f64::from(splits) + SPLIT_WAVE * (waves - 1.0) + sums * waves
            }
        };
        let power = CACHE_POWER * loaded * blocks;
        let unit = multiply.max(load) + finish;
        Work { clusters, waves, unit, alone, bytes, busy_sms, joining, power }
    }

    /// Seconds that its bytes take from a memory with this rate for all SMs.
    pub(crate) fn moving(&self, memory: f64) -> f64 {
        self.bytes / memory.min(MEMORY_TO_ONE * self.busy_sms)
    }
}

/// How long computing and moving take that go on at the same time.
pub(crate) fn beside(computing: f64, moving: f64) -> f64 {
    let (most, least) = (computing.max(moving), computing.min(moving));
    if most > 0.0 { most * (1.0 + (least / most).powf(HIDING)).powf(1.0 / HIDING) } else { 0.0 }
}

/// Seconds that the product should take, launch apart.
pub(crate) fn cost(kernel: &Kernel, problem: &Problem, splits: u32, sms: u32) -> f64 {
    // The order of tiles is not known yet when a kernel is chosen.
    let work = Work::new(kernel, problem, splits, 1, sms);
    let computing = work.waves as f64 * work.unit + work.alone;
    let moving = work.moving(f64::INFINITY);
    beside(computing, moving) + work.joining + work.power
}

/// The share of the peak that tiles with this number of outputs reach. Where two groups take turns, the tensor
/// cores work on one tile while another is finished, so smaller tiles suffice.
fn efficiency(outputs: f64, pingpong: bool) -> f64 {
    let steps: &[(f64, f64)] = match pingpong {
        true => &[(1.4, 1.01), (1.0, 0.995), (0.75, 0.97), (0.5, 0.83), (0.0, 0.88)],
        false => &[(0.75, 1.01), (0.5, 0.965), (0.4, 0.965), (0.25, 0.855), (0.0, 0.335)],
    };
    let share = outputs / if pingpong { 16384.0 } else { 32768.0 };
    steps.iter().find(|(least, _)| share >= *least).map_or(0.0, |(_, efficiency)| *efficiency)
}
