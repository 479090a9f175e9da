//! Arbitrary values through every public constructor and accessor of the plan layer.
//!
//! What is held: a result is `Ok` with its invariants, or a typed error that names the value at
//! fault; nothing panics (overflow checks are on in tests); and no allocation grows with a number
//! that was only asked for. `PROPTEST_CASES=10000` is the long mode.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use overlap_gemm::plan::model::{Schedules, run};
use overlap_gemm::plan::{
    BLayout, Chunks, ClusterShape, ElementTypes, Lane, MAX_CHUNKS, MAX_DIMENSION, MAX_RANKS,
    Operation, Plan, PlanOptions, Problem, Scaling, Shards, Step, Tile, TileOrder, TileShape,
    Tiling, Word,
};
use overlap_gemm::{ElementType, Error};
use proptest::prelude::*;

/// The largest single allocation that this process asked for.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, watched.
struct Watched;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, so from the system.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// 2¹⁶ chunks and 2¹⁰ ranks are the most that a plan has; what is listed for them is far below this.
fn assert_memory_is_bounded() {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < 64 << 20, "an allocation of {largest} bytes");
}

/// Numbers where things break, and some of every size.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => prop::sample::select(vec![0, 1, 2, 3, 7, 64, 1024, 1025]),
        3 => prop::sample::select(vec![
            (1 << 16) - 1, 1 << 16, (1 << 31) - 2, (1 << 31) - 1, 1 << 31, (1 << 31) + 1,
            (1 << 32) - 1, 1 << 32, (1 << 32) + 1, u64::MAX - 1, u64::MAX,
        ]),
        2 => 0u64..5000,
        1 => any::<u64>(),
    ]
}

fn number32() -> impl Strategy<Value = u32> {
    number().prop_map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Numbers of rows a rank: valid in sum more often than not.
fn rows() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        3 => prop::collection::vec(prop_oneof![Just(0), 1u32..300], 0..12),
        1 => prop::collection::vec(number32(), 0..6),
        1 => (0usize..1100).prop_map(|ranks| vec![3; ranks]),
    ]
}

/// A world, small or huge, with unequal shards or even ones.
fn chunks() -> impl Strategy<Value = Chunks> {
    let shards = prop_oneof![
        rows().prop_map(|rows| Shards::of_rows(&rows)),
        (1..=MAX_DIMENSION, 1..=MAX_RANKS).prop_map(|(m, ranks)| Shards::even(m, ranks)),
        (1u32..40, 1u32..9).prop_map(|(m, ranks)| Shards::even(m, ranks)),
    ];
    (shards, 1u32..70).prop_filter_map("a valid world", |(shards, per_shard)| {
        let shards = shards.ok()?;
        Chunks::even(&shards, per_shard.min(shards.most_rows())).ok()
    })
}

fn element() -> impl Strategy<Value = ElementType> {
    prop::sample::select(ElementType::ALL.to_vec())
}

fn tiling() -> impl Strategy<Value = Tiling> {
    let extent = || prop_oneof![4 => 1u32..300, 2 => 1u32..=1 << 14, 1 => number32()];
    (extent(), extent(), extent(), extent(), extent()).prop_map(|(m, n, cm, cn, swizzle)| Tiling {
        tile: TileShape { m, n },
        cluster: ClusterShape { m: cm, n: cn },
        swizzle,
    })
}

/// A typed error says which value is at fault.
fn assert_names_its_value(error: &Error) {
    let message = error.to_string();
    let value = match error {
        Error::OutOfRange { value, min, max, .. } => {
            assert!(!(min..=max).contains(&value), "{message}: but it is in range");
            value.to_string()
        }
        Error::Mismatch { got, expected, .. } => {
            assert_ne!(got, expected, "{message}");
            got.clone()
        }
        Error::Misaligned { bytes, multiple_of, .. } => {
            assert!(!bytes.is_multiple_of(*multiple_of), "{message}");
            bytes.to_string()
        }
        Error::Unsupported { what, .. } => what.clone(),
        other => panic!("no error for a bad argument: {other:?}"),
    };
    assert!(message.contains(&value), "'{message}' does not name {value}");
}

/// What holds for every problem that exists.
fn assert_problem_holds(problem: &Problem) {
    let dimensions = [problem.m(), problem.n(), problem.k()];
    assert!(dimensions.iter().all(|size| (1..=MAX_DIMENSION).contains(size)), "{problem:?}");
    assert!((1..=MAX_RANKS).contains(&problem.ranks()));
    let sum: u64 = problem.shards().to_rows().into_iter().map(u64::from).sum();
    assert_eq!(sum, u64::from(problem.m()));
    assert!(problem.lda() >= problem.k() && problem.ldd() >= problem.d_columns());
    assert!(problem.ldb() >= problem.b_extent().1);
    assert!(problem.elements().check().is_ok());
    let all_rows = 0..problem.m();
    let a = u128::from(problem.m()) * u128::from(problem.k());
    assert_eq!(problem.row_bytes(&all_rows), a * u128::from(problem.elements().a.size()));
    assert_eq!(problem.flops(), a * u128::from(problem.n()) * 2);
    assert!(u128::from(problem.a_len(problem.m())) >= a);
    assert!(problem.d_len() >= u64::from(problem.d_columns()) && problem.b_len() > 0);
    problem.check_tma().err().iter().for_each(assert_names_its_value);
}

/// What holds for every plan that exists, and that its text and its lists stay short.
fn assert_plan_holds(plan: &Plan, probe: u64) {
    assert_problem_holds(plan.problem());
    let rank = probe as u32 % plan.problem().ranks();
    let text = plan.to_string() + &plan.of_rank(rank).unwrap().to_string();
    assert!(text.len() < 60_000, "{} bytes of text", text.len());
    let order = plan.tile_order(rank).unwrap();
    let index = probe % order.index_count();
    if let Some(tile) = order.tile_at(index) {
        assert_eq!(order.index_of(tile), Some(index));
        assert!(!order.rows(tile).is_empty() && !order.columns(tile).is_empty());
        assert!(order.chunks_of(tile).end <= plan.chunks().len());
    }
    let tiles: Vec<Tile> = order.tiles().take(3).collect();
    assert_eq!(tiles.len() as u64, order.tile_count().min(3));
}

proptest! {
    #[test]
    fn problems_are_valid_or_refused(
        (m, n, k) in (number(), number(), number()), ranks in prop::option::of(number()),
        (lda, ldb, ldd) in (prop::option::of(number()), prop::option::of(number()), prop::option::of(number())),
        kn in any::<bool>(), (with_rows, with_n) in (rows(), number()), truncate in number32(),
    ) {
        let layout = if kn { BLayout::Kn } else { BLayout::Nk };
        let mut builder = Problem::builder(m, n, k).b_layout(layout);
        if let Some(ranks) = ranks { builder = builder.ranks(ranks) }
        if let Some(lda) = lda { builder = builder.lda(lda) }
        if let Some(ldb) = ldb { builder = builder.ldb(ldb) }
        if let Some(ldd) = ldd { builder = builder.ldd(ldd) }

        let most = u64::from(MAX_DIMENSION);
        let leading = |value: Option<u64>, least| value.is_none_or(|v| v >= least && v <= most);
        let valid = [m, n, k].iter().all(|&size| (1..=most).contains(&size))
            && ranks.is_none_or(|ranks| (1..=u64::from(MAX_RANKS)).contains(&ranks))
            && leading(lda, k) && leading(ldb, if kn { n } else { k }) && leading(ldd, n);
        match builder.build() {
            Ok(problem) => {
                prop_assert!(valid, "{:?}", problem);
                assert_problem_holds(&problem);
                for changed in [
                    problem.with_shards(&with_rows),
                    problem.with_n(with_n),
                    problem.truncated(truncate),
                ] {
                    match changed {
                        Ok(changed) => assert_problem_holds(&changed),
                        Err(error) => assert_names_its_value(&error),
                    }
                }
            }
            Err(error) => {
                prop_assert!(!valid, "{}", error);
                assert_names_its_value(&error);
                if let Error::OutOfRange { value, .. } = error {
                    let given = [Some(m), Some(n), Some(k), ranks, lda, ldb, ldd];
                    prop_assert!(given.contains(&Some(value)), "{} was never given", value);
                }
            }
        }
    }

    #[test]
    fn types_and_scales_are_admitted_or_refused(
        (a, b, d) in (element(), element(), element()),
        scaling in prop::sample::select(vec![Scaling::None, Scaling::Tensor, Scaling::Rows]),
    ) {
        let built = Problem::builder(8, 8, 8).elements(a, b, d).scaling(scaling).build();
        let admitted = ElementTypes { a, b, d }.check().is_ok();
        prop_assert_eq!(built.is_ok(), admitted && (scaling == Scaling::None || a.is_fp8()));
        built.err().iter().for_each(assert_names_its_value);
    }

    #[test]
    fn shards_are_valid_or_refused(rows in rows(), m in number32(), ranks in number32(), rank in number32(), row in number32()) {
        let sum: u64 = rows.iter().map(|&rows| u64::from(rows)).sum();
        let fits = |sum: u64, ranks: u64| {
            (1..=u64::from(MAX_DIMENSION)).contains(&sum) && (1..=u64::from(MAX_RANKS)).contains(&ranks)
        };
        let each = Shards::of_rows(&rows);
        let even = Shards::even(m, ranks);
        prop_assert_eq!(each.is_ok(), fits(sum, rows.len() as u64));
        prop_assert_eq!(even.is_ok(), fits(m.into(), ranks.into()));
        for shards in [each, even] {
            match shards {
                Ok(shards) => {
                    prop_assert_eq!(shards.rows(rank).is_empty(), shards.to_rows().get(rank as usize).is_none_or(|&r| r == 0));
                    let holder = shards.rank_of(row);
                    prop_assert_eq!(shards.rows(holder).contains(&row), row < shards.m());
                    prop_assert!(row < shards.m() || holder == shards.ranks());
                    let checked = shards.check_rank(rank);
                    prop_assert_eq!(checked.is_ok(), rank < shards.ranks());
                    checked.err().iter().for_each(assert_names_its_value);
                }
                Err(error) => assert_names_its_value(&error),
            }
        }
    }

    #[test]
    fn chunks_are_valid_or_refused(rows in rows(), per_shard in number32(), counts in prop::collection::vec(number32(), 0..12)) {
        let Ok(shards) = Shards::of_rows(&rows) else { return Ok(()) };
        for chunks in [Chunks::even(&shards, per_shard), Chunks::with_counts(&shards, &counts)] {
            match chunks {
                Ok(chunks) => {
                    prop_assert!((1..=MAX_CHUNKS).contains(&chunks.len()));
                    let last = chunks.len() - 1;
                    prop_assert_eq!(chunks.rows(0).start, 0);
                    prop_assert_eq!(chunks.rows(last).end, shards.m());
                }
                Err(error) => assert_names_its_value(&error),
            }
        }
    }

    #[test]
    fn accessors_answer_for_what_does_not_exist(
        chunks in chunks(), (rank, chunk, row) in (number32(), number32(), number32()), end in number32(),
        per_rank in number32(),
    ) {
        let len = chunks.len();
        prop_assert_eq!(chunks.rows(chunk).is_empty(), chunk >= len);
        prop_assert_eq!(chunks.rank_of(chunk) < chunks.shards().ranks(), chunk < len);
        prop_assert_eq!(chunks.of_row(row) < len, row < chunks.shards().m());
        prop_assert!(chunks.of_rank(rank).end <= len);
        let touched = chunks.touching(row..end);
        prop_assert!(touched.end <= len);
        prop_assert_eq!(touched.is_empty(), row >= end.min(chunks.shards().m()));
        prop_assert_eq!(chunks.need_order(rank).count() as u32, len);
        chunks.signal_slot(chunk, per_rank);
        prop_assert!(chunks.most_per_rank() >= 1);

        assert_memory_is_bounded();
    }

    #[test]
    fn tile_orders_are_valid_or_refused(
        chunks in chunks(), n in number32(), tiling in tiling(), rank in number32(),
        index in number(), (m_tile, n_tile) in (number32(), number32()),
    ) {
        let valid = tiling.check().is_ok() && n > 0 && rank < chunks.shards().ranks();
        match TileOrder::new(&chunks, n, tiling, rank) {
            Ok(order) => {
                prop_assert!(valid);
                for index in [index, index % order.index_count()] {
                    if let Some(tile) = order.tile_at(index) {
                        prop_assert_eq!(order.index_of(tile), Some(index));
                        let touched = order.chunks_of(tile);
                        prop_assert!(!touched.is_empty() && touched.end <= chunks.len());
                    }
                }
                prop_assert_eq!(order.tile_at(order.index_count()), None);
                prop_assert!(order.sweeps() > 0);
                let tile = Tile { m: m_tile, n: n_tile };
                let inside = m_tile < order.grid().0 && n_tile < order.grid().1;
                prop_assert_eq!(order.index_of(tile).is_some(), inside);
                let covers = !order.rows(tile).is_empty() && !order.columns(tile).is_empty();
                prop_assert_eq!(covers, inside);
                prop_assert!(order.chunks_of(tile).end <= chunks.len());
                prop_assert!(!order.to_string().is_empty());
            }
            Err(error) => {
                prop_assert!(!valid);
                assert_names_its_value(&error);
            }
        }
    }

    #[test]
    fn plans_are_valid_or_refused(
        (m, n, k) in (1..=u64::from(MAX_DIMENSION), number(), number()), ranks in 1u64..1100,
        pieces in prop::option::of(number32()), tiling in tiling(),
        (rank, probe) in (number32(), any::<u64>()), step in rows(),
    ) {
        let Ok(problem) = Problem::builder(m, n, k).ranks(ranks).build() else { return Ok(()) };
        match Plan::new(&problem, PlanOptions { pieces, tiling, ..PlanOptions::new() }) {
            Ok(plan) => {
                assert_plan_holds(&plan, probe);
                let (part, order) = (plan.of_rank(rank), plan.tile_order(rank));
                prop_assert_eq!(part.is_ok(), rank < problem.ranks());
                prop_assert_eq!(order.is_ok(), rank < problem.ranks());
                order.err().iter().for_each(assert_names_its_value);
                match plan.for_rows(&step) {
                    Ok(step) => {
                        assert_plan_holds(&step, probe);
                        let again = Plan::new(step.problem(), step.options());
                        prop_assert_eq!(again.as_ref(), Ok(&step));
                    }
                    Err(error) => assert_names_its_value(&error),
                }
            }
            Err(error) => assert_names_its_value(&error),
        }
        assert_memory_is_bounded();
    }

    #[test]
    fn names_of_types_are_read_or_refused(name in prop_oneof![any::<String>(), "(bf|f|e|E)[0-9]{1,2}(m[0-9])?"]) {
        match name.parse::<ElementType>() {
            Ok(element) => prop_assert_eq!(element.name(), name),
            Err(error) => assert_names_its_value(&error),
        }
    }

    /// Schedules are public so that tests can break them; however broken, the model says so.
    #[test]
    fn the_model_survives_any_schedule(
        rows in prop::collection::vec(0u32..4, 1..5),
        operation in prop::sample::select(vec![
            Operation::AllGatherGemm, Operation::GemmReduceScatter, Operation::GemmAllReduce,
            Operation::ReduceScatter, Operation::AllReduce,
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..9, number32(), number32()), 0..6),
        picks in prop::collection::vec(any::<usize>(), 16),
        huge_epochs in number32(),
    ) {
        let m = rows.iter().map(|&rows| u64::from(rows)).sum();
        let Ok(problem) = Problem::builder(m, 16, 16).shards(&rows).build() else { return Ok(()) };
        let options = PlanOptions { operation, pieces: Some(1), ..PlanOptions::default() };
        let mut schedules = Schedules::new(&Plan::new(&problem, options).unwrap());
        for (list, place, kind, x, y) in changes {
            if schedules.of_ranks.is_empty() { continue }
            let ranks = schedules.of_ranks.len();
            let steps = &mut schedules.of_ranks[list.index(ranks)].steps;
            let at = place.index(steps.len() + 1);
            let words = [
                Word::Landed { chunk: x },
                Word::Consumed { by: x },
                Word::Begun,
                Word::Summed { chunk: x },
                Word::Partial { chunk: x, from: y },
            ];
            let word = words[y as usize % words.len()];
            let lane = [Lane::Compute, Lane::Begin, Lane::Push(x)][y as usize % 3];
            match kind {
                0 => steps.insert(at, (lane, Step::Move { chunk: y, to: x % 5 })),
                1 => steps.insert(at, (lane, Step::Post { word, to: x % 5, age: y })),
                2 => steps.insert(at, (lane, Step::Await { word, age: y })),
                3 => steps.insert(at, (lane, Step::Multiply { rows: x..y, pivot: x % 5, awaits: vec![y % 5] })),
                4 => steps.insert(at, (Lane::Push(x), Step::Multiply { rows: 0..0, pivot: 0, awaits: vec![] })),
                5 => steps.truncate(at),
                6 => steps.clear(),
                7 => steps.insert(at, (lane, Step::Reduce { chunk: y })),
                _ => { schedules.of_ranks.pop(); }
            }
        }
        let mut next = picks.iter().cycle();
        let violation = |found: Result<(), overlap_gemm::plan::model::Violation>| {
            found.err().is_none_or(|violation| !violation.to_string().is_empty())
        };
        prop_assert!(violation(schedules.check_order()));
        prop_assert!(violation(run(&schedules, 3, |_| *next.next().unwrap())));
        // With nothing to do, any number of epochs is over at once.
        schedules.of_ranks.iter_mut().for_each(|schedule| schedule.steps.clear());
        prop_assert!(violation(run(&schedules, huge_epochs, |_| 0)));
    }
}

mod json {
    use super::*;
    use serde_json::{Value, json};

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            6 => number().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            1 => any::<f64>().prop_map(Value::from),
            1 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::from),
            1 => ".{0,8}".prop_map(Value::from),
            1 => rows().prop_map(Value::from),
        ]
    }

    fn valid_plan() -> Value {
        let problem = Problem::builder(700, 64, 96).ranks(3).lda(104).build().unwrap();
        json!(Plan::new(&problem, PlanOptions::default()).unwrap())
    }

    /// Whatever is read is valid; whatever is not, says why.
    fn read(text: &str) {
        match serde_json::from_str::<Plan>(text) {
            Ok(plan) => assert_plan_holds(&plan, 12_345),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        match serde_json::from_str::<Problem>(text) {
            Ok(problem) => assert_problem_holds(&problem),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_memory_is_bounded();
    }

    proptest! {
        #[test]
        fn any_numbers_in_place_of_the_right_ones(
            field in prop::sample::select(vec![
                "/problem/m", "/problem/n", "/problem/k", "/problem/lda", "/problem/ldb",
                "/problem/ldd", "/problem/shard_rows", "/problem/shard_rows/1", "/problem/elements/a",
                "/problem/b_layout", "/problem/scaling", "/problem", "/pieces", "/tiling",
                "/tiling/tile/m", "/tiling/cluster/n", "/tiling/swizzle", "/chunks", "/schedules", "/operation", "/strategy", "/engine",
            ]),
            (first, second) in (value(), value()), sizes in any::<bool>(),
        ) {
            let mut plan = valid_plan();
            *plan.pointer_mut(field).unwrap() = first;
            if sizes && let Some(n) = plan.pointer_mut("/problem/n") {
                *n = second;
            }
            read(&plan.to_string());
            read(&plan["problem"].to_string());
        }

        #[test]
        fn mangled_text(
            whole in any::<bool>(),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..6, ".{0,3}"), 1..5),
        ) {
            let plan = valid_plan();
            let mut text = if whole { plan.to_string() } else { plan["problem"].to_string() };
            for (place, length, put) in cuts {
                let mut characters: Vec<char> = text.chars().collect();
                let at = place.index(characters.len() + 1);
                let end = (at + length).min(characters.len());
                characters.splice(at..end, put.chars());
                text = characters.into_iter().collect();
            }
            read(&text);
        }

    }

    #[test]
    fn deep_nesting_is_refused() {
        read(&"[".repeat(1 << 20));
        read(&r#"{"problem":"#.repeat(1 << 16));
    }

    #[test]
    fn a_refusal_in_json_is_the_library_s() {
        let mut plan = valid_plan();
        plan["problem"]["k"] = json!(1u64 << 31);
        let error = serde_json::from_value::<Plan>(plan).unwrap_err().to_string();
        assert!(error.contains("k is 2147483648, but must be between 1 and 2147483647"), "{error}");
    }
}
