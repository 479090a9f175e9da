//! What must hold for every plan, on random ones. `PROPTEST_CASES=10000` is the long mode.

mod common;

use common::{all_reduce, chunks, plan, plan_of, reduce_scatter, reduction_alone, tiling};
use overlap_gemm::plan::model::{Schedules, Violation, explore, run};
use overlap_gemm::plan::{
    Chunks, Engine, Operation, PlanOptions, Problem, Shards, Step, Strategy as Order, Tile,
    TileOrder, Tiling, Word,
};
use proptest::prelude::*;

/// The visiting order written down naively: sort unit rows by the chunk needed last, ring order
/// within, then sweep. No arithmetic shared with `TileOrder`.
fn naive_order(chunks: &Chunks, early: bool, n: u32, tiling: Tiling, rank: u32) -> Vec<Tile> {
    let m = chunks.shards().m();
    let unit_rows = tiling.tile.m * tiling.cluster.m;
    let need: Vec<u32> = chunks.need_order(rank).collect();
    let needed_last = |unit: u32| {
        let rows = unit * unit_rows..((unit + 1) * unit_rows).min(m);
        chunks.touching(rows).map(|c| need.iter().position(|&x| x == c).unwrap()).max().unwrap()
    };
    let pivot = chunks.shards().rows(rank).start % m;
    let units = m.div_ceil(unit_rows);
    let mut ring: Vec<u32> = (0..units).collect();
    ring.rotate_left((pivot.div_ceil(unit_rows) % units) as usize);
    ring.sort_by_key(|&unit| needed_last(unit));

    let (tile_rows, tile_columns) = (m.div_ceil(tiling.tile.m), n.div_ceil(tiling.tile.n));
    let mut order = Vec::new();
    // The last place in the need order that a band with this one goes on to.
    let last_together = |place: usize| {
        let own = chunks.of_rank(rank).len().max(1);
        let mut ends = std::iter::successors(Some(own), |end| Some(2 * end));
        if early { ends.find(|&end| place < end).unwrap() } else { place }
    };
    for band in
        ring.chunk_by(|&a, &b| last_together(needed_last(a)) == last_together(needed_last(b)))
    {
        for sweep in band.chunks(tiling.swizzle as usize) {
            for unit_n in 0..n.div_ceil(tiling.tile.n * tiling.cluster.n) {
                for &unit_m in sweep {
                    for cn in 0..tiling.cluster.n {
                        for cm in 0..tiling.cluster.m {
                            let m = unit_m * tiling.cluster.m + cm;
                            let n = unit_n * tiling.cluster.n + cn;
                            if m < tile_rows && n < tile_columns {
                                order.push(Tile { m, n });
                            }
                        }
                    }
                }
            }
        }
    }
    order
}

proptest! {
    #[test]
    fn chunks_tile_the_rows_within_their_shards(chunks in chunks()) {
        let mut next = 0;
        for chunk in 0..chunks.len() {
            let rows = chunks.rows(chunk);
            prop_assert!(!rows.is_empty());
            prop_assert_eq!(rows.start, next);
            next = rows.end;
            let shard = chunks.shards().rows(chunks.rank_of(chunk));
            prop_assert!(shard.start <= rows.start && rows.end <= shard.end);
            prop_assert!(chunks.of_rank(chunks.rank_of(chunk)).contains(&chunk));
            for row in rows {
                prop_assert_eq!(chunks.of_row(row), chunk);
            }
        }
        prop_assert_eq!(next, chunks.shards().m());
    }

    #[test]
    fn spans_are_all_columns_one_behind_the_other(k in 1u64..20_000, bits in 0u32..4) {
        let problem = Problem::builder(4, 8, k).build().unwrap();
        let chunks = Chunks::even(problem.shards(), 1).unwrap().in_spans(1 << bits).unwrap();
        let mut next = 0;
        for span in 0..chunks.spans() {
            let columns = chunks.columns(&problem, span);
            prop_assert!(columns.start == next && columns.start <= columns.end);
            // But the last, what a kernel loads at a time, whatever it is.
            prop_assert!(columns.end.is_multiple_of(256) || u64::from(columns.end) == k);
            next = columns.end;
        }
        prop_assert_eq!(u64::from(next), k);
        prop_assert!(chunks.clone().in_spans(3).is_err() && chunks.in_spans(16).is_err());
    }

    #[test]
    fn a_row_range_touches_exactly_the_chunks_it_overlaps(
        chunks in chunks(), a in 0u32..900, b in 0u32..900,
    ) {
        let rows = a.min(b)..a.max(b);
        let overlapping: Vec<u32> = (0..chunks.len())
            .filter(|&chunk| chunks.rows(chunk).any(|row| rows.contains(&row)))
            .collect();
        prop_assert_eq!(chunks.touching(rows).collect::<Vec<_>>(), overlapping);
    }

    #[test]
    fn tile_order_is_the_naive_one_and_indices_invert(
        chunks in chunks(), early: bool, n in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        let chunks = if early { chunks.early() } else { chunks };
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        let naive = naive_order(&chunks, early, n, tiling, rank);
        prop_assert_eq!(order.tiles().collect::<Vec<_>>(), naive);
        let (rows, columns) = order.grid();
        let mut visited = vec![false; (rows * columns) as usize];
        for index in 0..order.index_count() {
            if let Some(tile) = order.tile_at(index) {
                prop_assert_eq!(order.index_of(tile), Some(index));
                let seen = &mut visited[(tile.m * columns + tile.n) as usize];
                prop_assert!(!std::mem::replace(seen, true));
            }
        }
        prop_assert!(visited.into_iter().all(|seen| seen));
        prop_assert_eq!(order.tile_at(order.index_count()), None);
        // A cluster's overhang: tiles that a kernel meets beside the matrix.
        for m in 0..rows + 2 * tiling.cluster.m {
            for n in [0, columns] {
                let touched = order.chunks_of(Tile { m, n });
                prop_assert!(touched.end <= chunks.len());
                prop_assert_eq!(touched.is_empty(), m >= rows);
                for row in order.rows(Tile { m, n }) {
                    prop_assert!(touched.contains(&chunks.of_row(row)));
                }
            }
        }
    }

    #[test]
    fn columns_begin_anew_with_each_sweep(
        chunks in chunks(), early: bool, beyond in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        let chunks = if early { chunks.early() } else { chunks };
        // Two columns of units at least: else none is less than the one before.
        let n = tiling.tile.n * tiling.cluster.n + beyond;
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        let columns: Vec<u32> = order.tiles().map(|tile| tile.n / tiling.cluster.n).collect();
        let anew = columns.windows(2).filter(|pair| pair[1] < pair[0]).count();
        prop_assert_eq!(order.sweeps(), 1 + anew as u64);
    }

    #[test]
    fn schedules_are_in_order_and_any_order_of_enabled_steps_completes(
        plans in (plan(), reduce_scatter(), all_reduce(), reduction_alone()),
        picks in prop::collection::vec(any::<usize>(), 64), behind in 0usize..4,
    ) {
        for plan in [plans.0, plans.1, plans.2, plans.3] {
            let schedules = Schedules::new(&plan);
            prop_assert_eq!(schedules.check_order(), Ok(()));
            let mut next = picks.iter().cycle();
            // Some runs favour the first ranks, and let the last fall behind.
            let mut pick = |enabled: usize| (0..=behind).map(|_| next.next().unwrap() % enabled).min().unwrap();
            prop_assert_eq!(run(&schedules, 5, &mut pick), Ok(()));
        }
    }

    #[test]
    fn in_every_round_each_rank_is_sent_to_by_one(
        gather in plan(), scatter in reduce_scatter(), alone in reduction_alone(), round in 0u32..9,
    ) {
        for plan in [gather, scatter, alone] {
            let ranks = plan.problem().ranks();
            let mut peers: Vec<_> = (0..ranks).map(|rank| plan.peer_in_round(rank, round)).collect();
            peers.sort_unstable();
            prop_assert_eq!(peers, (0..ranks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_reduce_scatter_visits_its_own_rows_last(plan in reduce_scatter()) {
        for rank in 0..plan.problem().ranks() {
            let next = (rank + 1) % plan.problem().ranks();
            prop_assert_eq!(plan.tile_order(rank).unwrap().pivot_rank(), next);
        }
    }

    #[test]
    fn problems_and_plans_round_trip_through_json(
        shards in common::shards(), n in 1u64..5000, k in 1u64..5000, pad in 0u64..9, tiling in tiling(),
        scatter in reduce_scatter(), alone in reduction_alone(),
    ) {
        use overlap_gemm::plan::{Plan, Problem, Scaling};
        let problem = Problem::builder(shards.m().into(), n, k)
            .shards(&shards.to_rows())
            .lda(k + pad)
            .scaling(Scaling::None)
            .build()
            .unwrap();
        let plan = Plan::new(&problem, PlanOptions { tiling, ..PlanOptions::default() }).unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Plan>(&json).unwrap(), &plan);
        let json = serde_json::to_value(&scatter).unwrap();
        prop_assert_eq!(&json["operation"], "gemm-reduce-scatter");
        let rank = scatter.problem().ranks() - 1;
        prop_assert_eq!(&json["tile_orders"][rank as usize]["rank"], rank);
        prop_assert_eq!(&serde_json::from_value::<Plan>(json).unwrap(), &scatter);
        let json = serde_json::to_string(&alone).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Plan>(&json).unwrap(), &alone);
    }
}

/// Fails if any order of a small world is bad.
fn try_all_orders(
    operation: Operation,
    rows: &[u32],
    strategy: Order,
    engine: Engine,
    epochs: u32,
) {
    let pieces = if engine == Engine::Nccl { 1 } else { *rows.iter().max().unwrap() };
    let pieces = Some(pieces);
    let options = PlanOptions { operation, strategy, engine, pieces, ..PlanOptions::default() };
    let states = explore(&Schedules::new(&plan_of(rows, options)), epochs).unwrap();
    println!(
        "{operation}: {rows:?} chunks, {strategy}, {engine}, {epochs} epochs: {states} states"
    );
}

const COPIES: [Engine; 2] =
    [Engine::CopyEngines { streams: 1 }, Engine::CopyEngines { streams: 2 }];

/// A step has no more spans than the plan, whose memory has no words for them.
#[test]
fn a_step_reads_back_with_the_spans_of_its_plan() {
    use overlap_gemm::plan::{Plan, Problem};
    let options = PlanOptions::new().with_engine(Engine::PUSHING).with_pieces(1);
    let problem = Problem::builder(1024, 14_336, 8192).ranks(2).build().unwrap();
    let step = Plan::new(&problem, options).unwrap().for_rows(&[128, 128]).unwrap();
    let planned_so = Plan::new(step.problem(), options).unwrap();
    assert_eq!([step.chunks().spans(), planned_so.chunks().spans()], [1, 4]);
    let json = serde_json::to_string(&step).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), step);
}

/// Along columns each rank has the same steps as where it gets that many rows: in every way, planned or of other rows. So all that
/// holds for their schedules holds along columns.
#[test]
fn along_columns_a_schedule_is_that_of_as_many_rows() {
    use overlap_gemm::plan::{Plan, Problem};
    let engines = [Engine::Thread, COPIES[0], COPIES[1], Engine::PUSHING, Engine::Nccl];
    for (ranks, m) in (1..=4).flat_map(|ranks| [1, 2, 5].map(|m| (ranks, m))) {
        let rows = vec![m; ranks as usize];
        let problem = Problem::builder(m.into(), u64::from(ranks) * 16, 16).scatter_columns(true);
        let problem = problem.ranks(ranks.into()).build().unwrap();
        let ways = engines.into_iter().flat_map(|engine| Order::ALL.map(|order| (engine, order)));
        for (engine, strategy) in ways {
            let pieces = if engine == Engine::Nccl { 1 } else { m.min(2) };
            let options = common::reducing(strategy, pieces).with_engine(engine);
            let Ok(plan) = Plan::new(&problem, options) else {
                assert_ne!(strategy, Order::Sequential, "{engine}");
                continue;
            };
            let same = plan_of(&rows, options);
            let fewer = vec![m.div_ceil(2); ranks as usize];
            let steps = [&plan, &same].map(|plan| plan.for_rows(&fewer).unwrap());
            for rank in 0..ranks {
                assert_eq!(plan.schedule(rank), same.schedule(rank), "{engine}, {strategy}");
                assert_eq!(steps[0].schedule(rank), steps[1].schedule(rank));
            }
            run(&Schedules::new(&plan), 4, |enabled| enabled - 1).unwrap();
            let json = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
        }
    }
}

/// Small worlds are checked in every order there is, not only in random ones: all worlds of one and two ranks with up to
/// two chunks each, in every way; all of three ranks with up to one on threads. Chunks are all that a schedule knows of
/// rows, so this is every such world, with every buffer used again.
#[test]
fn small_worlds_have_no_bad_order() {
    let one_or_two = (0..=2u32).flat_map(|a| [vec![a], vec![a, 0], vec![a, 1], vec![a, 2]]);
    let three = (0..8u32).map(|bits| vec![bits & 1, bits >> 1 & 1, bits >> 2 & 1]);
    for rows in one_or_two.chain(three).filter(|rows| rows.iter().sum::<u32>() > 0) {
        let gather = |strategy, engine, epochs| {
            try_all_orders(Operation::AllGatherGemm, &rows, strategy, engine, epochs);
        };
        for strategy in Order::ALL {
            gather(strategy, Engine::Thread, if rows.len() == 3 { 3 } else { 5 });
        }
        if rows.iter().sum::<u32>() <= 2 && rows.len() < 3 {
            for engine in [COPIES[0], COPIES[1], Engine::PUSHING] {
                Order::ALL.iter().for_each(|strategy| gather(*strategy, engine, 3));
            }
            gather(Order::Sequential, Engine::Nccl, 3);
        }
    }
}

/// As above, of a reduce-scatter and an all-reduce.
#[test]
fn small_worlds_of_a_reduction_have_no_bad_order() {
    let (scatter, all) = (Operation::GemmReduceScatter, Operation::GemmAllReduce);
    let worlds: [(Operation, &[u32], u32); 14] = [
        (scatter, &[2], 5),
        (scatter, &[0, 1], 5),
        (scatter, &[2, 0], 4),
        (scatter, &[1, 1], 4),
        (scatter, &[2, 1], 3),
        (scatter, &[0, 1, 0], 3),
        (scatter, &[1, 0, 1], 3),
        (all, &[2], 5),
        (all, &[0, 1], 4),
        (all, &[1, 1], 3),
        (all, &[2, 1], 2),
        (all, &[0, 1, 0], 3),
        (all, &[1, 0, 1], 3),
        (all, &[1, 1, 0], 3),
    ];
    for (operation, rows, epochs) in worlds {
        for strategy in Order::ALL {
            try_all_orders(operation, rows, strategy, Engine::Thread, epochs);
        }
        if rows.len() < 3 {
            for (engine, strategy) in
                COPIES.into_iter().flat_map(|engine| Order::ALL.map(|strategy| (engine, strategy)))
            {
                try_all_orders(operation, rows, strategy, engine, 3);
            }
            try_all_orders(operation, rows, Order::Sequential, Engine::PUSHING, 3);
            try_all_orders(operation, rows, Order::Sequential, Engine::Nccl, 3);
        }
    }
}

/// As above, without a product: the caller's sums have one buffer, and D may lie in it.
#[test]
fn small_worlds_of_a_reduction_alone_have_no_bad_order() {
    let engines = [Engine::Thread, COPIES[0], COPIES[1], Engine::PUSHING, Engine::Nccl];
    for operation in [Operation::ReduceScatter, Operation::AllReduce] {
        for rows in [&[2][..], &[0, 1], &[1, 1], &[2, 0]] {
            for engine in engines {
                try_all_orders(operation, rows, Order::Sequential, engine, 3);
            }
        }
        try_all_orders(operation, &[0, 1, 0], Order::Sequential, Engine::Thread, 3);
    }
}

/// Sums that the caller has, and totals in its D.
#[test]
fn what_is_sent_from_the_caller_s_memory_and_is_not_awaited_is_overwritten() {
    for operation in [Operation::ReduceScatter, Operation::AllReduce, Operation::GemmAllReduce] {
        for engine in COPIES {
            let options = PlanOptions { operation, engine, pieces: Some(1), ..PlanOptions::new() };
            let mut schedules = Schedules::new(&plan_of(&[1, 1], options));
            let is_sent = |step: &Step| matches!(step, Step::Await { word: Word::Sent { .. }, .. });
            schedules.of_ranks[1].steps.retain(|(_, step)| !is_sent(step));
            let found = explore(&schedules, 2).unwrap_err();
            assert!(matches!(found, Violation::Overwritten { owner: 1, .. }), "{found}");
        }
    }
}

#[test]
fn off_by_one_pivot_is_caught() {
    let chunks = Chunks::even(&Shards::even(64, 4).unwrap(), 2).unwrap();
    let tiling = Tiling::of_tile(8, 8);
    let order = |pivot| TileOrder::new(&chunks, 32, tiling, pivot).unwrap();
    let is_right = |pivot| order(pivot).tiles().eq(naive_order(&chunks, false, 32, tiling, 2));
    assert!(is_right(2));
    assert!(!is_right(3), "a pivot one rank too far");
    assert!(!is_right(1), "a pivot one rank too early");
}
