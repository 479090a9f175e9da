//! Strategies that several test files draw plans from.

#![allow(dead_code)] // each test file uses its share

pub mod mutants;

use overlap_gemm::plan::{
    Chunks, ClusterShape, Engine, Operation, Plan, PlanOptions, Problem, Shards, Strategy as Order,
    TileShape, Tiling,
};
use proptest::prelude::*;

/// Shards of 1 to 9 ranks, unequal, some empty, at least one row in all.
pub fn shards() -> impl Strategy<Value = Shards> {
    let rows = prop_oneof![1 => Just(0u32), 3 => 1u32..5, 4 => 1u32..90];
    prop::collection::vec(rows, 1..=9)
        .prop_filter("at least one row", |rows| rows.iter().sum::<u32>() > 0)
        .prop_map(|rows| Shards::of_rows(&rows).unwrap())
}

/// Chunks of such shards, each shard cut into its own number of pieces.
pub fn chunks() -> impl Strategy<Value = Chunks> {
    shards().prop_flat_map(|shards| {
        let counts: Vec<_> =
            shards.to_rows().into_iter().map(|rows| rows.min(1)..=rows.min(7)).collect();
        counts.prop_map(move |counts| Chunks::with_counts(&shards, &counts).unwrap())
    })
}

/// Tilings from one row to more than the matrix, with clusters and swizzles.
pub fn tiling() -> impl Strategy<Value = Tiling> {
    (1u32..40, 1u32..40, 1u32..4, 1u32..4, 1u32..9).prop_map(|(m, n, cm, cn, swizzle)| Tiling {
        tile: TileShape { m, n },
        cluster: ClusterShape { m: cm, n: cn },
        swizzle,
    })
}

/// Plans of such shards in every way that there is.
pub fn plan() -> impl Strategy<Value = Plan> {
    let engine = prop_oneof![
        Just(Engine::Thread),
        (1u32..4).prop_map(|streams| Engine::CopyEngines { streams }),
        Just(Engine::Kernel { blocks: 16 }),
        Just(Engine::Nccl),
    ];
    (shards(), engine, 0usize..3, 1u32..5).prop_map(|(shards, engine, strategy, pieces)| {
        let pieces = pieces.min(shards.most_rows());
        let (strategy, pieces) = match engine {
            Engine::Nccl => (Order::Sequential, 1),
            _ => (Order::ALL[strategy], pieces),
        };
        plan_of(
            &shards.to_rows(),
            PlanOptions { strategy, engine, pieces: Some(pieces), ..PlanOptions::default() },
        )
    })
}

/// GEMM + reduce-scatter of 1 to 6 ranks, some without rows, in every way that there is.
pub fn reduce_scatter() -> impl Strategy<Value = Plan> {
    let rows = prop_oneof![1 => Just(0u32), 4 => 1u32..9];
    let shards = prop::collection::vec(rows, 1..=6)
        .prop_filter("at least one row", |rows| rows.iter().sum::<u32>() > 0);
    (shards, 0usize..3, 1u32..5, 0u32..5).prop_map(|(rows, strategy, pieces, streams)| {
        let pieces = pieces.min(rows.iter().copied().max().unwrap_or(1));
        let strategy = Order::ALL[strategy];
        // A kernel and NCCL know only the sequential strategy.
        let (engine, pieces) = match (streams, strategy) {
            (0, _) => (Engine::Thread, pieces),
            (1, Order::Sequential) => (Engine::PUSHING, pieces),
            (4, Order::Sequential) => (Engine::Nccl, 1),
            _ => (Engine::CopyEngines { streams }, pieces),
        };
        plan_of(&rows, reducing(strategy, pieces).with_engine(engine))
    })
}

/// The same as a GEMM + all-reduce. With more columns, a kernel sends in two shots.
pub fn all_reduce() -> impl Strategy<Value = Plan> {
    (reduce_scatter(), any::<bool>()).prop_map(|(plan, is_wide)| {
        let options = PlanOptions { operation: Operation::GemmAllReduce, ..plan.options() };
        let problem = match is_wide {
            true => plan.problem().with_n(WIDE).unwrap(),
            false => plan.problem().clone(),
        };
        Plan::new(&problem, options).unwrap()
    })
}

/// Columns of a problem whose all-reduce has two shots, if there are three ranks.
pub const WIDE: u64 = 1 << 22;

/// The same without a product.
pub fn reduction_alone() -> impl Strategy<Value = Plan> {
    let alone = |plan: Plan, operation| {
        Plan::new(plan.problem(), PlanOptions { operation, ..plan.options() }).unwrap()
    };
    prop_oneof![
        reduce_scatter().prop_map(move |plan| alone(plan, Operation::ReduceScatter)),
        all_reduce().prop_map(move |plan| alone(plan, Operation::AllReduce)),
    ]
}

/// The options of a GEMM + reduce-scatter on threads.
pub fn reducing(strategy: Order, pieces: u32) -> PlanOptions {
    let operation = Operation::GemmReduceScatter;
    PlanOptions { operation, strategy, pieces: Some(pieces), ..PlanOptions::default() }
}

/// The plan of shards with so many rows.
pub fn plan_of(rows: &[u32], options: PlanOptions) -> Plan {
    let m = rows.iter().map(|&rows| u64::from(rows)).sum();
    let problem = Problem::builder(m, 16, 16).shards(rows).build().unwrap();
    Plan::new(&problem, options).unwrap()
}
