//! The cost of one product on a kernel, and the choice of the cheapest kernel.
//!
//! What belongs here: arithmetic over a kernel's properties, a problem and a number of SMs. Invariant: the figures
//! here compare kernels, and are the same on every machine; [`Machine`](crate::predict::Machine) converts them into seconds
//! of one machine.

use super::kernel::Kernel;
use crate::element::ElementType;
use crate::plan::{Problem, Scaling};

/// A kernel and how to run it.
///
/// ```
/// use overlap_gemm::kernels::{Choice, all_kernels};
///
/// let choice = Choice::new(0, 4, 1);
/// println!("{}, swizzle {}", all_kernels()[choice.kernel].name, choice.swizzle);
/// ```
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

/// Rows of D that sweep over the columns together. With fewer, B is read from memory more often, which costs long products
/// the power that they are short of; with many more, A no longer stays in the cache. At 30 products of random sizes in
/// steady work, 3072 was ahead of both (benches/results/2026-11-24-h200-steady-work.md).
const ROWS_TOGETHER: u32 = 3072;

/// Unit rows that sweep over the columns together: about [`ROWS_TOGETHER`] rows, and about equally many in each sweep.
fn even_sweeps(kernel: &Kernel, problem: &Problem) -> u32 {
    let unit_rows = kernel.tile.m * kernel.cluster.m;
    let all = problem.m().div_ceil(unit_rows);
    let sweeps = all.div_ceil((ROWS_TOGETHER / unit_rows).max(1));
    all.div_ceil(sweeps).max(1)
}

/// The kernels that `serves` and that fit on these SMs, by their places.
pub(crate) fn that_serve(
    kernels: &[Kernel],
    sms: u32,
    serves: impl Fn(&Kernel) -> bool,
) -> Vec<usize> {
    let fits = |index: &usize| serves(&kernels[*index]) && kernels[*index].cluster_size() <= sms;
    (0..kernels.len()).filter(fits).collect()
}

/// Each of these kernels with every number of slices.
pub(crate) fn choices(kernels: &[Kernel], problem: &Problem, of: Vec<usize>) -> Vec<Choice> {
    let each = |index: usize| {
        let swizzle = even_sweeps(&kernels[index], problem);
        let splits = 1..=most_splits(&kernels[index], problem);
        splits.map(move |splits| Choice::new(index, swizzle, splits))
    };
    of.into_iter().flat_map(each).collect()
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

// The figures below were first fitted to 266 products on one H200, most of random sizes (bf16, M from 4 to 16384, N and K from
// 1024 to 16384, in steps of 128 and of 8): to how far a product's kernels are apart, and a little to how long they take
// (`benches/results/2026-11-23-h200-kernel-family.md`); then again to 70 such products with the kernels of that day
// (`benches/results/2026-11-27-h200-loader.md`), and the power of multiplications outside D to 24 more
// (`2026-11-27-h200-few-rows-cut.txt`). Then `CACHE` and `CACHE_POWER` to 125 products on H100s (`2026-11-28-h100-choice.txt`,
// `2026-11-28-h100-clusters-of-eight.txt`). Then `RECEIVED`, `ACROSS_LINES`, `EIGHT_SLOWER`, `EIGHT_LATER`, `FINISH_SUMS`,
// `HIDING_LOADS` and `MEMORY` to all sweeps over kernels, 315 products on H200 and H100 (`2026-11-28-h200-choice.txt`). Then
// the three `STREAMS` to those on H200 and six short products (`2026-11-29-h200-short-products.txt`).

/// Operations a second of one SM's tensor cores on 16-bit inputs; twice as many on fp8.
const SM_FLOPS: f64 = 7.86e12;
/// How much longer two groups of warps take that share a tile, if each of them has several strips of 64 rows, or three of half
/// the tile's columns.
const SEVERAL_STRIPS: f64 = 1.04;
/// Seconds that a step of K takes at least, however small the tile; and bytes of operands that one SM receives a second.
const STEP: f64 = 7.9e-8;
const RECEIVED: f64 = 2.3e11;
/// Bytes a second from the L2 cache to all SMs together; and how much slower it gives rows, to one SM and to all, that do not
/// begin on a line of the cache, so that each of them has a line more.
const CACHE: f64 = 2.0e13;
const ACROSS_LINES: f64 = 1.75;
/// A byte from the cache costs less of the operand that more tiles read, and more of the other one; at most by this part. Reads
/// of several SMs are merged on their way. 512×3584×8192 in tiles of 128×112 takes 47 µs with clusters of 2×1, 51 with 1×2; of 20
/// pairs of kernels in clusters of 4×2 and 2×4, seven are faster so, ten alike, three slower
/// (benches/results/2026-11-28-h100-clusters-of-eight.txt, 2026-11-28-h100-choice.txt).
const READ_BY_MORE: f64 = 0.1;
/// How much longer a cluster of eight multiplies for each unit but its first. It takes more energy there, too, 3 % in the mean;
/// why is not known (benches/results/2026-11-28-h100-eight-in-waves.txt).
const EIGHT_SLOWER: f64 = 0.065;
/// Seconds that a cluster of eight begins later; each of its units bears a part.
const EIGHT_LATER: f64 = 2.4e-7;
/// Seconds that a byte from the cache costs even where it is hidden: long products run at the clock that
/// the power limit leaves them, and moving bytes takes power.
const CACHE_POWER: f64 = 2.8e-14;
/// Seconds that a multiplication costs whose result lies outside D, in a tile that does not: power, too
/// (benches/results/2026-11-27-h200-power.md).
const OUTSIDE_POWER: f64 = 1e-16;
/// Bytes a second from and to device memory. Fitted to which kernel is faster, not to times, so it is more than the hardware
/// has; predictions use `Machine::memory_gbps`.
const MEMORY: f64 = 7.0e12;
/// Near this many tiles, slices counted, memory is slower: `STREAMS_SLOWER` more time there, and none more from
/// `STREAMS_NEAR` away. Seen with tiles of 16×128, 64×128 and 16×192, at any K (benches/results/2026-11-29-h200-short-products.txt);
/// why is not known. Fitted to which kernel is faster, not to times, so predictions leave it out.
const STREAMS: f64 = 84.0;
const STREAMS_NEAR: f64 = 25.0;
const STREAMS_SLOWER: f64 = 0.42;
/// Seconds from a tile's last sums to the next tile's first; and how much more that is for 128 by 256 sums which no other
/// group of warps hides, without and with scales for rows and columns.
const FINISH: f64 = 7.5e-7;
const FINISH_SUMS: f64 = 1.5e-6;
const FINISH_SCALED_SUMS: f64 = 2.4e-6;
/// Seconds that slices of K cost: for meeting, and for each time that all blocks have to meet once more. And bytes a
/// second of others' sums that a block adds to its own: always the same blocks do, wave by wave.
const SPLIT: f64 = 2.0e-6;
const SPLIT_WAVE: f64 = 9.8e-7;
const SUMS_TO_ONE: f64 = 6.7e10;
/// Bytes of operands in an SM's shared memory.
const SHARED: f64 = 2.1e5;
/// Bytes of B that the cache keeps from one sweep over the columns to the next; the rest is read again. The cache of an H200
/// has 60 MB.
const KEPT: f64 = 3.0e7;
/// The SMs that clusters of more than two blocks do not reach: a cluster lies in one GPC, whose number of SMs is
/// rarely a multiple of the cluster's. On the H200s that were seen, 30 clusters of four fit, and 15 of eight: of 132 SMs
/// every eleventh is left over.
const LEFT_OVER: u32 = 11;
/// How far computing hides what memory gives meanwhile, and the other way round: the exponent of a mean that is no less than
/// the longer of both, and nineteen per cent more where they are alike.
const HIDING: f64 = 4.0;
/// The same of multiplying a tile and receiving its operands.
const HIDING_LOADS: f64 = 4.8;

/// The parts of a product's cost, in seconds of the figures above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Units, or slices of them.
    items: u64,
    /// Clusters that compute at a time.
    pub(crate) clusters: u64,
    /// How often each of them computes a unit (or a slice of one), at most.
    pub(crate) waves: u64,
    /// One unit: its sums and what comes after them.
    pub(crate) unit: f64,
    /// Bytes from and to memory.
    bytes: f64,
    /// How much longer they take with this number of tiles (`STREAMS`).
    streams: f64,
    /// The share of a unit's bytes that it loads while its rows are missing: of B.
    pub(crate) ahead: f64,
    /// Adding up slices of K.
    pub(crate) joining: f64,
    /// What bytes from the cache cost where they are hidden, and multiplications outside D.
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
        let unit = kernel.tiling(1);
        let units_m = u64::from(problem.m()).div_ceil(unit.unit_rows());
        let units_n = u64::from(problem.n()).div_ceil(unit.unit_columns());
        let units = units_m * units_n;
        // Slices of a tile lie side by side (clusters_in_order in abi.cu).
        let clusters = clusters(kernel, sms);
        let clusters = u64::from((clusters - clusters % splits).max(1));
        let items = units * u64::from(splits);
        let waves = items.div_ceil(clusters);
        let busy_sms = (items.min(clusters) * u64::from(kernel.cluster_size())) as f64;

        let (m, n) = (f64::from(kernel.tile.m), f64::from(kernel.tile.n));
        let steps = problem.k().div_ceil(kernel.tile_k).div_ceil(splits);
        let k = f64::from(steps) * f64::from(kernel.tile_k);
        let types = problem.elements();
        let size = |element: ElementType| f64::from(element.size());
        let (a, b, d) = (size(types.a), size(types.b), size(types.d));
        let strips = if kernel.transposed { kernel.tile.n } else { kernel.tile.m } / 64;
        let slower = if !kernel.pingpong && strips > 2 { SEVERAL_STRIPS } else { 1.0 };
        let rate = SM_FLOPS * if types.a.is_fp8() { 2.0 } else { 1.0 };
        let (eight, begin) = match kernel.cluster_size() {
            8 => (1.0 + EIGHT_SLOWER * (1.0 - 1.0 / waves as f64), EIGHT_LATER / waves as f64),
            _ => (1.0, 0.0),
        };
        let multiply = slower * 2.0 * m * n * k / rate;
        // What a cluster shares is read once for all of its blocks, and rows beyond the last are not read.
        let rows = m.min(f64::from(problem.m()));
        let lines = |stride: u32, size: f64| match (f64::from(stride) * size) % 128.0 == 0.0 {
            true => 1.0,
            false => ACROSS_LINES,
        };
        let (lines_a, lines_b) = (lines(problem.lda(), a), lines(problem.ldb(), b));
        let receive = (rows * a * lines_a + n * b * lines_b) * k / RECEIVED;
        let multiply =
            eight * beside(joined(multiply, receive, HIDING_LOADS), STEP * f64::from(steps));
        let (cluster_m, cluster_n) = (f64::from(kernel.cluster.m), f64::from(kernel.cluster.n));
        let (all_m, all_n, all_k) =
            (f64::from(problem.m()), f64::from(problem.n()), f64::from(problem.k()));
        let (tiles_m, tiles_n) = ((all_m / m).ceil(), (all_n / n).ceil());
        let by_more = READ_BY_MORE * (tiles_n - tiles_m) / (tiles_n + tiles_m);
        // Weighted bytes.
        let loaded_a = rows * a / cluster_n * k * (1.0 - by_more);
        let loaded_b = n * b / cluster_m * k * (1.0 + by_more);
        let load = (loaded_a * lines_a + loaded_b * lines_b) * busy_sms / CACHE;
        let sums = match (kernel.pingpong, problem.scaling()) {
            (true, _) => 0.0,
            (false, Scaling::Rows) => FINISH_SCALED_SUMS,
            (false, _) => FINISH_SUMS,
        };
        let unit = begin + beside(multiply, load) + FINISH + sums * (m * n) / 32768.0;

        let b_bytes = all_n * all_k * b;
        let again = (b_bytes - KEPT).max(0.0) * sweeps.saturating_sub(1) as f64;
        let tiles = tiles_m * tiles_n;
        let bytes = all_m * all_k * a + b_bytes + again + all_m * all_n * d;
        let away = (tiles * f64::from(splits) - STREAMS).abs();
        let streams = 1.0 + STREAMS_SLOWER * (1.0 - away / STREAMS_NEAR).max(0.0);
        let blocks = items as f64 * f64::from(kernel.cluster_size());
        let joining = match splits {
            1 => 0.0,
            _ => {
                let sums = 4.0 * m * n * f64::from(splits - 1) / SUMS_TO_ONE;
                let waves = waves as f64;
                SPLIT + SPLIT_WAVE * (waves - 1.0) + sums * waves
            }
        };
        let outside = (m * n * tiles - all_m * all_n) * all_k;
        let power = CACHE_POWER * (loaded_a + loaded_b) * blocks + OUTSIDE_POWER * outside;
        // As many steps of B as shared memory holds, and as many again in the cache where one cluster has all rows
        // (`GatheringMainloop::load`).
        let stages = SHARED / ((m + n) * f64::from(kernel.tile_k) * a);
        let steps_ahead = if units_m == 1 { 2.0 * stages } else { stages };
        let ahead = (steps_ahead / f64::from(steps)).min(1.0) * b_bytes / bytes;
        Work { items, clusters, waves, unit, bytes, streams, ahead, joining, power }
    }

    /// Seconds that its bytes take from a memory with this rate for all SMs.
    pub(crate) fn moving(&self, memory: f64) -> f64 {
        self.bytes / memory
    }
}

/// Clusters that compute at a time.
pub(crate) fn clusters(kernel: &Kernel, sms: u32) -> u32 {
    let size = kernel.cluster_size();
    let reached = if size > 2 { sms - sms / LEFT_OVER } else { sms };
    (reached / size).max(1)
}

/// The SMs that are free for clusters of two while `pushing` blocks push. These lie two by two on SMs side by side, as clusters
/// do; an odd number lies apart (`launch_in_pairs` in `csrc/beginning.cuh`).
fn sms_left(kernel: &Kernel, sms: u32, pushing: u32) -> u32 {
    let are_pairs = pushing.is_multiple_of(2) || kernel.cluster_size() == 1;
    sms.saturating_sub(if are_pairs { pushing } else { 2 * pushing })
}

/// Clusters that compute at a time while `pushing` blocks push: of larger ones, those that fit into GPCs of which each has
/// lost about as many SMs. (Eight GPCs, as on H100 and H200; the hardware spreads blocks over them.)
pub(crate) fn clusters_beside(kernel: &Kernel, sms: u32, pushing: u32) -> u32 {
    const GPCS: u32 = 8;
    let size = kernel.cluster_size();
    if pushing == 0 || size <= 2 {
        return clusters(kernel, sms_left(kernel, sms, pushing));
    }
    let pairs = pushing.div_ceil(2);
    let in_gpc = |gpc: u32| {
        let taken = 2 * (pairs / GPCS + u32::from(gpc < pairs % GPCS));
        (sms / GPCS).saturating_sub(taken) / size
    };
    (0..GPCS).map(in_gpc).sum::<u32>().min(clusters(kernel, sms))
}

/// The SMs that a product occupies which begins while a kernel of `pushing` blocks sends this rank's rows: all, or all but
/// those. On all, the last clusters wait for the pushing blocks' SMs; on fewer, every cluster may have more to compute. Two
/// H100, 4096×1792×4096: 128 µs on all 132, 105 on 116 (benches/results/2026-11-25-h100x2-family.md).
pub(crate) fn sms_beside_push(
    kernel: &Kernel,
    problem: &Problem,
    splits: u32,
    sms: u32,
    pushing: u32,
) -> u32 {
    /// Bytes a second to other ranks from each block, and from all together.
    const PUSH: f64 = 1.9e10;
    const PUSH_ALL: f64 = 3.0e11;
    let fewer = sms_left(kernel, sms, pushing);
    // A larger cluster needs its SMs in one GPC, and nobody knows where the pushing blocks lie.
    if pushing == 0 || kernel.cluster_size() > 2 || fewer < kernel.cluster_size() {
        return sms;
    }
    let (all, left) =
        (Work::new(kernel, problem, splits, 1, sms), Work::new(kernel, problem, splits, 1, fewer));
    // Clusters take the units in turn, so the last ones, which wait, may have one less than the first.
    let busy = all.items.min(all.clusters);
    let waiting = busy.saturating_sub(left.clusters);
    if waiting == 0 {
        return sms;
    }
    let of_last = all.items / busy + u64::from(all.items % busy > busy - waiting);
    let shard = problem.shard_bytes() as f64;
    let pushed = shard * f64::from(problem.ranks().saturating_sub(1))
        / (PUSH * f64::from(pushing)).min(PUSH_ALL);
    let over = (all.waves as f64 * all.unit).max(pushed + of_last as f64 * all.unit);
    if left.waves as f64 * left.unit <= over { fewer } else { sms }
}

/// How long computing and moving take that go on at the same time.
pub(crate) fn beside(computing: f64, moving: f64) -> f64 {
    joined(computing, moving, HIDING)
}

/// How long two things take at the same time: the longer one, and more where they are alike, the less the larger `hiding` is.
fn joined(one: f64, other: f64, hiding: f64) -> f64 {
    let (most, least) = (one.max(other), one.min(other));
    if most > 0.0 { most * (1.0 + (least / most).powf(hiding)).powf(1.0 / hiding) } else { 0.0 }
}

/// Seconds that the product should take, launch apart.
pub(crate) fn cost(kernel: &Kernel, problem: &Problem, splits: u32, sms: u32) -> f64 {
    // The order of tiles is not known yet when a kernel is chosen.
    let work = Work::new(kernel, problem, splits, 1, sms);
    let computing = work.waves as f64 * work.unit;
    beside(computing, work.streams * work.moving(MEMORY)) + work.joining + work.power
}
