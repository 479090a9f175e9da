//! What must hold for every plan, on random ones. `PROPTEST_CASES=10000` is the long mode.

mod common;

use common::{all_reduce, chunks, plan, plan_of, reduce_scatter, reducing, shards, tiling};
use overlap_gemm::plan::model::{Schedules, explore, run};
use overlap_gemm::plan::{
    Chunks, Engine, Operation, Partition, PlanOptions, Shards, Strategy as Order, Tile, TileOrder,
    Tiling,
};
use proptest::prelude::*;

/// The visiting order written down naively: sort unit rows by the chunk needed last, ring order
/// within, then sweep. No arithmetic shared with `TileOrder`.
fn naive_order(chunks: &Chunks, n: u32, tiling: Tiling, rank: u32) -> Vec<Tile> {
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
    for band in ring.chunk_by(|&a, &b| needed_last(a) == needed_last(b)) {
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
    fn shards_tile_the_rows(shards in shards()) {
        let rows: Vec<u32> = (0..shards.ranks()).flat_map(|rank| shards.rows(rank)).collect();
        prop_assert_eq!(&rows, &(0..shards.m()).collect::<Vec<_>>());
        for row in rows {
            prop_assert!(shards.rows(shards.rank_of(row)).contains(&row));
        }
    }

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
    fn tile_order_equals_the_naive_one(
        chunks in chunks(), n in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        prop_assert_eq!(order.tiles().collect::<Vec<_>>(), naive_order(&chunks, n, tiling, rank));
    }

    #[test]
    fn every_tile_is_visited_once_and_indices_invert(
        chunks in chunks(), n in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
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
    }

    #[test]
    fn columns_begin_anew_with_each_sweep(
        chunks in chunks(), beyond in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        // Two columns of units at least: else none is less than the one before.
        let n = tiling.tile.n * tiling.cluster.n + beyond;
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        let columns: Vec<u32> = order.tiles().map(|tile| tile.n / tiling.cluster.n).collect();
        let anew = columns.windows(2).filter(|pair| pair[1] < pair[0]).count();
        prop_assert_eq!(order.sweeps(), 1 + anew as u64);
    }

    #[test]
    fn no_tile_names_a_chunk_that_does_not_exist(
        chunks in chunks(), n in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        let (rows, columns) = order.grid();
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
    fn the_chunk_needed_last_never_moves_backwards(
        chunks in chunks(), n in 1u32..200, tiling in tiling(), rank in 0u32..9,
    ) {
        let rank = rank % chunks.shards().ranks();
        // Per tile only where a unit is one tile high; per unit otherwise.
        let tiling = Tiling { cluster: overlap_gemm::plan::ClusterShape { m: 1, ..tiling.cluster }, ..tiling };
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        prop_assert!(follows_arrival(&order, rank));
    }

    #[test]
    fn huge_problems_neither_overflow_nor_lose_tiles(
        rows in prop::collection::vec(0u32..=238_609_294, 1..=9),
        per_shard in 1u32..2000, n in 1u32..=i32::MAX as u32, tiling in tiling(),
        rank in 0u32..9, probes in prop::collection::vec(any::<u64>(), 20),
    ) {
        prop_assume!(rows.iter().any(|&rows| rows > per_shard));
        let chunks = Chunks::even(&Shards::of_rows(&rows).unwrap(), per_shard).unwrap();
        let rank = rank % chunks.shards().ranks();
        let order = TileOrder::new(&chunks, n, tiling, rank).unwrap();
        prop_assert!(order.sweeps() > 0);
        for probe in probes {
            if let Some(tile) = order.tile_at(probe % order.index_count()) {
                prop_assert_eq!(order.index_of(tile), Some(probe % order.index_count()));
                prop_assert!(order.chunks_of(tile).end <= chunks.len());
            }
        }
    }

    #[test]
    fn every_chunk_arrives_once_and_in_need_order(plan in plan()) {
        prop_assert_eq!(Schedules::new(&plan).check_order(), Ok(()));
    }

    #[test]
    fn in_every_round_each_rank_is_sent_to_by_one(
        plan in prop_oneof![plan(), reduce_scatter()], round in 0u32..9,
    ) {
        let ranks = plan.problem().ranks();
        let mut peers: Vec<_> = (0..ranks).map(|rank| plan.peer_in_round(rank, round)).collect();
        peers.sort_unstable();
        prop_assert_eq!(peers, (0..ranks).collect::<Vec<_>>());
    }

    #[test]
    fn any_order_of_enabled_steps_completes(plan in plan(), picks in prop::collection::vec(any::<usize>(), 64)) {
        let mut next = picks.iter().cycle();
        prop_assert_eq!(run(&Schedules::new(&plan), 4, |_| *next.next().unwrap()), Ok(()));
    }

    #[test]
    fn every_owner_gets_all_sums_once_and_in_order(plan in reduce_scatter()) {
        prop_assert_eq!(Schedules::new(&plan).check_order(), Ok(()));
    }

    #[test]
    fn any_order_of_a_reduce_scatter_completes(
        plan in reduce_scatter(), picks in prop::collection::vec(any::<usize>(), 64), behind in 0usize..4,
    ) {
        let mut next = picks.iter().cycle();
        // Some runs favour the first ranks, and let the last fall behind.
        let mut pick = |enabled: usize| (0..=behind).map(|_| next.next().unwrap() % enabled).min().unwrap();
        prop_assert_eq!(run(&Schedules::new(&plan), 5, &mut pick), Ok(()));
    }

    #[test]
    fn any_order_of_an_all_reduce_completes(
        plan in all_reduce(), picks in prop::collection::vec(any::<usize>(), 64), behind in 0usize..4,
    ) {
        let schedules = Schedules::new(&plan);
        prop_assert_eq!(schedules.check_order(), Ok(()));
        let mut next = picks.iter().cycle();
        let mut pick = |enabled: usize| (0..=behind).map(|_| next.next().unwrap() % enabled).min().unwrap();
        prop_assert_eq!(run(&schedules, 5, &mut pick), Ok(()));
    }

    #[test]
    fn a_reduce_scatter_visits_its_own_rows_last(plan in reduce_scatter()) {
        for rank in 0..plan.problem().ranks() {
            let next = (rank + 1) % plan.problem().ranks();
            prop_assert_eq!(plan.tile_order(rank).unwrap().pivot_rank(), next);
        }
    }

    #[test]
    fn reduce_scatters_round_trip_through_json(plan in reduce_scatter()) {
        let json = serde_json::to_value(&plan).unwrap();
        prop_assert_eq!(&json["operation"], "gemm-reduce-scatter");
        let rank = plan.problem().ranks() - 1;
        prop_assert_eq!(&json["tile_orders"][rank as usize]["rank"], rank);
        prop_assert_eq!(&serde_json::from_value::<overlap_gemm::plan::Plan>(json).unwrap(), &plan);
    }

    #[test]
    fn partitions_differ_by_at_most_one_row(len in 0u32..=i32::MAX as u32, parts in 0u32..70_000, part in 0u32..70_000) {
        let partition = Partition::new(len, parts);
        let rows = partition.range(part);
        prop_assert!(rows.end <= len && partition.start(0) == 0);
        if part < parts {
            prop_assert!((len / parts..=len / parts + 1).contains(&(rows.len() as u32)));
            prop_assert_eq!(partition.start(parts), len);
        }
        for row in [rows.start, rows.end.saturating_sub(1)] {
            prop_assert!(rows.is_empty() || partition.part_of(row) == part);
        }
    }

    #[test]
    fn problems_and_plans_round_trip_through_json(
        shards in shards(), n in 1u64..5000, k in 1u64..5000, pad in 0u64..9, tiling in tiling(),
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
    }
}

/// Whether the last-needed chunk of the tiles never moves backwards in `rank`'s need order.
fn follows_arrival(order: &TileOrder, rank: u32) -> bool {
    let chunks = order.chunks();
    let own_first = chunks.of_rank(rank).start;
    let position = |chunk: u32| (chunk + chunks.len() - own_first) % chunks.len();
    order.tiles().map(|tile| order.chunks_of(tile).map(position).max()).is_sorted()
}

/// Small worlds are checked in every order there is, not only in random ones: all worlds of one and two ranks with up to
/// two chunks each, in every way; all of three ranks with up to one on threads. Chunks are all that a schedule knows of
/// rows, so this is every such world, with every buffer used again.
#[test]
fn small_worlds_have_no_bad_order() {
    let one_or_two = (0..=2u32).flat_map(|a| [vec![a], vec![a, 0], vec![a, 1], vec![a, 2]]);
    let three = (0..8u32).map(|bits| vec![bits & 1, bits >> 1 & 1, bits >> 2 & 1]);
    let copies = |streams| Engine::CopyEngines { streams };
    let engines = [Engine::Thread, copies(1), copies(2), Engine::PUSHING, Engine::Nccl];
    for rows in one_or_two.chain(three).filter(|rows| rows.iter().sum::<u32>() > 0) {
        let few = rows.iter().sum::<u32>() <= 2 && rows.len() < 3;
        for engine in if few { &engines[..] } else { &engines[..1] } {
            let pieces = if *engine == Engine::Nccl { 1 } else { *rows.iter().max().unwrap() };
            let strategies =
                if *engine == Engine::Nccl { &Order::ALL[2..] } else { &Order::ALL[..] };
            for &strategy in strategies {
                let epochs = if rows.len() == 3 || *engine != Engine::Thread { 3 } else { 5 };
                let (engine, pieces) = (*engine, Some(pieces));
                let options = PlanOptions { strategy, engine, pieces, ..PlanOptions::default() };
                let states = explore(&Schedules::new(&plan_of(&rows, options)), epochs).unwrap();
                println!("{rows:?} chunks, {strategy}, {engine}, {epochs} epochs: {states} states");
            }
        }
    }
}

/// As above, of a reduce-scatter and an all-reduce.
#[test]
fn small_worlds_of_a_reduction_have_no_bad_order() {
    let all: [(&[u32], u32); 5] =
        [(&[2], 5), (&[0, 1], 4), (&[1, 1], 3), (&[2, 1], 2), (&[0, 1, 0], 3)];
    let scattered: [(&[u32], u32); 7] = [
        (&[2], 5),
        (&[0, 1], 5),
        (&[2, 0], 4),
        (&[1, 1], 4),
        (&[2, 1], 3),
        (&[0, 1, 0], 3),
        (&[1, 0, 1], 3),
    ];
    let scattered = scattered.map(|world| (Operation::GemmReduceScatter, world));
    let all = all.map(|world| (Operation::GemmAllReduce, world));
    let copies = |streams| Engine::CopyEngines { streams };
    for (operation, (rows, epochs)) in scattered.into_iter().chain(all) {
        for strategy in Order::ALL {
            let engines = [Engine::Thread, copies(1), copies(2), Engine::PUSHING];
            // Fused, or with three ranks: threads alone. A kernel: sequential.
            let tried = match (rows.len(), strategy) {
                (3.., _) | (_, Order::Fused) => 1,
                (_, Order::Pipelined) => 3,
                _ => 4,
            };
            for engine in &engines[..tried] {
                let epochs = if *engine == Engine::Thread { epochs } else { 3 };
                let options = reducing(strategy, *rows.iter().max().unwrap());
                let options = PlanOptions { operation, engine: *engine, ..options };
                let states = explore(&Schedules::new(&plan_of(rows, options)), epochs).unwrap();
                println!(
                    "{operation}: {rows:?} chunks, {strategy}, {engine}, {epochs} epochs: {states} states"
                );
            }
        }
    }
}

#[test]
fn off_by_one_pivot_is_caught() {
    let chunks = Chunks::even(&Shards::even(64, 4).unwrap(), 2).unwrap();
    let order = |pivot| TileOrder::new(&chunks, 32, Tiling::of_tile(8, 8), pivot).unwrap();
    assert!(follows_arrival(&order(2), 2));
    assert!(!follows_arrival(&order(3), 2), "a pivot one rank too far");
    assert!(!follows_arrival(&order(1), 2), "a pivot one rank too early");
}
