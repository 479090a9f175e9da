//! Random exercises.
//!
//! What belongs here: what is drawn. Invariant: the seed decides everything.

use std::time::Duration;

use super::Exercise;
use crate::element::ElementType;
use crate::error::Result;
use crate::host::{GroupOptions, Link};
use crate::plan::{
    BLayout, ClusterShape, ElementTypes, Operation, Partials, PlanOptions, Problem, Reduction,
    Scaling, Strategy, TileShape, Tiling,
};
use crate::random::Random;

impl Exercise {
    /// A random small exercise: the operation, its strategy, types, those of partial sums, average or sum, sizes,
    /// layouts, shards of rows (some empty) or of columns, chunks, tiles, scales, several steps of varying M, delays, and an
    /// epoch that may wrap on the way.
    ///
    /// ```
    /// use overlap_gemm::exercise::Exercise;
    /// let outcome = Exercise::random(42)?.run(&|| false)?;
    /// assert_eq!(outcome.report.wrong, 0);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn random(seed: u64) -> Result<Self> {
        let mut random = Random::of_stream(seed, 0);
        let ranks = random.within(1..=6) as usize;
        let operation = random.choose(&[
            Operation::AllGatherGemm,
            Operation::AllGatherGemm,
            Operation::GemmReduceScatter,
            Operation::GemmAllReduce,
        ]);
        let mut steps: Vec<Vec<u32>> =
            (0..random.within(1..=5)).map(|_| random_rows(&mut random, ranks)).collect();
        let total = |rows: &Vec<u32>| rows.iter().sum::<u32>();
        let mut largest = steps.iter().max_by_key(|rows| total(rows)).cloned().unwrap_or_default();
        let reduces = operation.reduces();
        if reduces {
            // Its slots are as large as the largest shard that was planned.
            steps.retain(|rows| rows.iter().max() <= largest.iter().max());
        }
        let types = random.choose(&admitted(operation));
        let b_layout = random.choose(&[BLayout::Nk, BLayout::Kn]);
        let gated = !reduces && random.within(0..=3) == 0;
        let by_columns = operation == Operation::GemmReduceScatter && random.within(0..=2) == 0;
        if by_columns {
            // Each rank gets all rows.
            for rows in steps.iter_mut().chain([&mut largest]) {
                let most = rows.iter().copied().max().unwrap_or_default();
                rows.fill(most);
            }
        }
        let n = if gated { 16 * random.within(1..=6) } else { random.within(1..=90) };
        let n = if by_columns { n * ranks as u64 } else { n };
        let k = random.within(1..=110);
        let b_columns = if b_layout == BLayout::Nk { k } else { n };
        let mut pad = || random.choose(&[0, 0, 1, 7]);
        let d_columns = match (gated, by_columns) {
            (true, _) => n / 2,
            (_, true) => n / ranks as u64,
            _ => n,
        };
        let (lda, ldb, ldd) = (k + pad(), b_columns + pad(), d_columns + pad());
        let scaling = match types.a.is_fp8() {
            true => random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let m = total(&largest) / if by_columns { ranks as u32 } else { 1 };
        let problem = Problem::builder(m.into(), n, k)
            .scatter_columns(by_columns)
            .shards(&largest)
            .elements(types.a, types.b, types.d)
            .b_layout(b_layout)
            .lda(lda)
            .ldb(ldb)
            .ldd(ldd)
            .scaling(scaling)
            .gated(gated)
            .build()?;
        let most = u64::from(problem.shards().most_rows());
        let mut extent = |most| random.within(1..=most) as u32;
        let tiling = Tiling {
            tile: TileShape { m: extent(40), n: if gated { 16 * extent(3) } else { extent(40) } },
            cluster: ClusterShape { m: extent(3), n: extent(3) },
            swizzle: extent(8),
        };
        let pieces = Some(extent(most.min(6)));
        let strategy = random.choose(&Strategy::ALL);
        let options = PlanOptions { operation, strategy, pieces, tiling, ..PlanOptions::default() };
        let reduction = Reduction {
            partials: random.choose(&[Partials::Bf16, Partials::F32]),
            average: random.choose(&[true, false]),
        };
        let jitter = Duration::from_micros(random.within(0..=200));
        let link = Link { bytes_per_second: 1e12, jitter, seed };
        let group = GroupOptions {
            link: random.choose(&[None, Some(link)]),
            poison: random.choose(&[true, false]),
            // Often so close to the wrap that the steps cross it.
            first_epoch: random.choose(&[0, u32::MAX - 2, i32::MAX as u32 - 2, seed as u32]),
            ..GroupOptions::default()
        };
        Ok(Exercise {
            problem,
            options,
            reduction,
            group,
            steps,
            fresh_inputs: true,
            in_place: random.choose(&[true, false]) && !reduces,
            workers: random.choose(&[1, 1, 2, 3]),
            compared_rows: u32::MAX,
            seed,
        })
    }
}

/// All types that may meet in one product of an operation.
fn admitted(operation: Operation) -> Vec<ElementTypes> {
    let all = ElementType::ALL;
    let pairs = all.into_iter().flat_map(|a| all.map(|b| (a, b)));
    let types = pairs.flat_map(|(a, b)| all.map(|d| ElementTypes { a, b, d }));
    let is_admitted =
        |types: &ElementTypes| types.check().and(types.check_reduced(operation)).is_ok();
    types.filter(is_admitted).collect()
}

/// Rows for every rank, some of them none, at least one in all.
fn random_rows(random: &mut Random, ranks: usize) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..ranks)
        .map(|_| {
            let most = random.choose(&[0, 3, 40, 40, 40]);
            random.within(0..=most) as u32
        })
        .collect();
    if rows.iter().all(|&rows| rows == 0) {
        rows[ranks - 1] = 1;
    }
    rows
}
