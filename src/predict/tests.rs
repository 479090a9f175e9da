//! Properties that hold for all figures.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::Strategy as _;
use proptest::prelude::{TestCaseError, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::kernels::Kernel;
use crate::plan::{MAX_STREAMS, Problem, Strategy, TileOrder, Way};

pub(super) fn problem(m: u64, ranks: u64) -> Problem {
    Problem::builder(m, 3584, 8192).ranks(ranks).build().unwrap()
}

/// Every strategy, and the product alone.
const EACH: [Option<Strategy>; 4] =
    [None, Some(Strategy::Fused), Some(Strategy::Pipelined), Some(Strategy::Sequential)];

fn usual(machine: &Machine, problem: &Problem, strategy: Option<Strategy>) -> Result<Setup> {
    match strategy {
        Some(strategy) => Setup::usual(machine, problem, strategy),
        None => Setup::gemm(machine, problem),
    }
}

/// A step in this strategy, or the product alone; by copy engines on one stream, in one piece.
fn setup(strategy: Option<Strategy>, kernel: &str) -> Setup {
    let engine = Engine::CopyEngines { streams: 1 };
    Setup {
        operation: if strategy.is_some() { Operation::AllGatherGemm } else { Operation::Gemm },
        way: Way { strategy: strategy.unwrap_or_default(), engine, pieces: 1 },
        kernel: Kernel::from_name(kernel).unwrap(),
        swizzle: 1,
        splits: 1,
        sms: None,
    }
}

fn in_pieces(setup: Setup, pieces: u32) -> Setup {
    Setup { way: Way { pieces, ..setup.way }, ..setup }
}

pub(super) fn took(
    machine: &Machine,
    problem: &Problem,
    strategy: impl Into<Option<Strategy>>,
) -> Estimate {
    let setup = usual(machine, problem, strategy.into()).unwrap();
    estimate(machine, &setup.plan(problem).unwrap(), &setup).unwrap()
}

#[test]
fn a_product_of_whole_waves_takes_as_many_units() {
    let machine = Machine::h200();
    // 66 clusters of 256 rows and 128 columns each, twice; so square that memory hardly counts.
    let problem = Problem::builder(256 * 6, 2 * 128 * 11, 4096).build().unwrap();
    let setup = setup(None, "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong");
    let one = estimate(&machine, &setup.plan(&problem).unwrap(), &setup).unwrap();
    assert_eq!((one.waited, one.tail, one.gathered), Default::default());
    let more = Problem::builder(256 * 6, 3 * 128 * 11, 4096).build().unwrap();
    let three = estimate(&machine, &setup.plan(&more).unwrap(), &setup).unwrap();
    let launch = duration(machine.launch_us);
    let waves = (three.total - launch).as_secs_f64() / (one.total - launch).as_secs_f64();
    assert!((waves - 1.5).abs() < 0.01, "{waves}");
}

#[test]
fn threads_and_sums_by_nccl_are_refused() {
    let machine = Machine::h200();
    let problem = problem(4096, 4);
    let usual = Setup::usual(&machine, &problem, Strategy::Fused).unwrap();
    for operation in [Operation::AllGatherGemm, Operation::GemmReduceScatter] {
        let way = Way { engine: Engine::Thread, ..usual.way };
        let setup = Setup { operation, way, ..usual.clone() };
        let plan = setup.plan(&problem).unwrap();
        let text = estimate(&machine, &plan, &setup).unwrap_err().to_string();
        assert!(text.starts_with("predicting threads"), "{text}");
        assert!(timeline(&machine, &plan, &setup, 0..1).is_err());
    }
    let way = Way { strategy: Strategy::Sequential, engine: Engine::Nccl, pieces: 1 };
    let setup = Setup { operation: Operation::GemmAllReduce, way, ..usual };
    let text = estimate(&machine, &setup.plan(&problem).unwrap(), &setup).unwrap_err().to_string();
    assert!(text.starts_with("predicting sums that NCCL adds up"), "{text}");
}

#[test]
fn a_gather_is_never_free_and_a_worse_link_never_better() {
    for (m, ranks) in [(64, 2), (512, 4), (4096, 8), (4096, 72), (16384, 16)] {
        let problem = problem(m, ranks);
        let plain = took(&Machine::h200(), &problem, None).total;
        for strategy in [Strategy::Fused, Strategy::Pipelined, Strategy::Sequential] {
            let mut before = plain;
            for link in [2000.0, 380.0, 100.0, 10.0] {
                let total = took(&Machine::h200().with_link(link), &problem, strategy).total;
                assert!(total >= before, "{problem}, {strategy}, {link}: {total:?} {before:?}");
                before = total;
            }
        }
    }
}

#[test]
fn blocks_that_push_keep_pairs_of_sms_waiting() {
    // 256 units for 66 clusters of two: all but the last eight compute four.
    let machine = Machine::h200();
    let problem = Problem::builder(1024, 7168, 4096).ranks(2).build().unwrap();
    let name = "bf16_bf16_bf16_nk_128x112x64_2x1_pingpong";
    let took = |blocks| {
        let mut setup = Setup::usual(&machine, &problem, Strategy::Fused).unwrap();
        (setup.kernel, setup.way.engine) =
            (Kernel::from_name(name).unwrap(), Engine::Kernel { blocks });
        (setup.swizzle, setup.splits) = (1, 1);
        estimate(&machine, &setup.plan(&problem).unwrap(), &setup).unwrap().total
    };
    assert_eq!((took(12), took(14)), (took(16), took(16)), "those have the time");
    assert!(took(18) > took(16) + Duration::from_micros(5), "a cluster with four units waits");
    // An odd number lies apart, and so in as many clusters.
    assert_eq!((took(32), took(15)), (took(18), took(18)));
}

#[test]
fn a_product_leaves_the_sms_of_a_push_alone_where_that_is_faster() {
    let machine = Machine::h200();
    let took = |m: u64, kernel: &str, sms| {
        let problem = Problem::builder(m, 1792, 4096).ranks(2).build().unwrap();
        let mut setup = Setup::usual(&machine, &problem, Strategy::Fused).unwrap();
        // More than push spans, which have no such choice.
        setup.way = Way { engine: Engine::Kernel { blocks: 18 }, pieces: 1, ..setup.way };
        (setup.kernel, setup.swizzle, setup.splits) = (Kernel::from_name(kernel).unwrap(), 4, 1);
        setup.sms = sms;
        estimate(&machine, &setup.plan(&problem).unwrap(), &setup).unwrap().total
    };
    // 224 units: at most four for each of 66 clusters, and for each of 57. But the last nine of 66 have three, and begin
    // when 14 MiB have been pushed.
    let large = |sms| took(3584, "bf16_bf16_bf16_nk_128x112x64_2x1_pingpong", sms);
    assert_eq!(large(None), large(Some(114)));
    assert!(large(None) + Duration::from_micros(1) < large(Some(132)));
    // 256 units: at most four for each of 66 clusters, five for each of 57.
    let larger = |sms| took(4096, "bf16_bf16_bf16_nk_128x112x64_2x1_pingpong", sms);
    assert_eq!(larger(None), larger(Some(114)));
    assert!(larger(None) < larger(Some(132)));
    // 64 units: one for each cluster, or two for some of them.
    let whole = |sms| took(1024, "bf16_bf16_bf16_nk_128x112x64_2x1_pingpong", sms);
    assert_eq!(whole(None), whole(Some(132)));
    assert!(whole(None) < whole(Some(114)));
}

#[test]
fn b_is_read_again_by_each_sweep_unless_the_cache_keeps_it() {
    let machine = Machine::h200();
    let took = |n, swizzle| {
        let problem = Problem::builder(512, n, 8192).build().unwrap();
        let mut setup = Setup::gemm(&machine, &problem).unwrap();
        let name = "bf16_bf16_bf16_nk_128x128x64_1x2_cooperative";
        setup.kernel = Kernel::from_name(name).unwrap();
        (setup.swizzle, setup.splits) = (swizzle, 1);
        estimate(&machine, &setup.plan(&problem).unwrap(), &setup).unwrap().total
    };
    // 17 MB, four times or once.
    assert_eq!(took(1024, 1), took(1024, 4));
    // 235 MB: reading that alone takes a quarter of the product's time.
    let (often, twice, once) = (took(14336, 1), took(14336, 2), took(14336, 4));
    assert!(often > twice + Duration::from_micros(20), "{often:?} {twice:?}");
    assert!(twice > once, "{twice:?} {once:?}");
}

#[test]
fn what_lies_between_rows_travels_with_them() {
    let machine = Machine::h200();
    let gathered = |lda| {
        let problem = Problem::builder(4096, 3584, 8192).ranks(2).lda(lda).build().unwrap();
        took(&machine, &problem, Strategy::Fused).gathered.as_secs_f64()
    };
    // Two pieces of 1024 rows, of two bytes an element.
    let more = 2.0 * 1023.0 * 8192.0 * 2.0 / (1e9 * machine.link_gbps);
    assert!(((gathered(2 * 8192) - gathered(8192)) / more - 1.0).abs() < 0.01);
}

#[test]
fn where_the_link_is_the_limit_all_strategies_are_as_slow() {
    let problem = problem(4096, 8);
    let machine = Machine::h200().with_link(1.0);
    let bytes = 7.0 / 8.0 * 4096.0 * 8192.0 * 2.0;
    for strategy in [Strategy::Fused, Strategy::Pipelined, Strategy::Sequential] {
        let estimate = took(&machine, &problem, strategy);
        let over = estimate.total.as_secs_f64() * 1e9 / bytes;
        assert!((1.0..1.02).contains(&over), "{strategy}: {over}");
        assert!(estimate.gathered <= estimate.total);
    }
}

#[test]
fn a_link_in_pairs_is_limited_by_the_pair() {
    let problem = problem(4096, 4);
    let whole = took(&Machine::h200(), &problem, Strategy::Fused);
    let pairs = took(&Machine { peer_gbps: 95.0, ..Machine::h200() }, &problem, Strategy::Fused);
    assert!(pairs.gathered > 3 * whole.gathered, "{pairs:?} {whole:?}");
}

#[test]
fn one_rank_gathers_nothing() {
    for strategy in Strategy::ALL {
        let setup = Setup::usual(&Machine::h200(), &problem(512, 1), strategy).unwrap();
        let plan = setup.plan(&problem(512, 1)).unwrap();
        assert!(timeline(&Machine::h200(), &plan, &setup, 0..1).unwrap().transfers.is_empty());
    }
}

#[test]
fn as_many_ranks_as_a_plan_has() {
    let estimate = took(&Machine::h200(), &problem(8192, 1024), Strategy::Fused);
    // 1023 pieces that are signalled together: one cost, besides their bytes.
    let least = Machine::h200().push_us + 1023.0 * 8.0 * 16384.0 / 380e3;
    assert!(estimate.total > duration(least), "{estimate:?}");
    // Larger ones have each their own.
    let estimate = took(&Machine::h200(), &problem(131_072, 1024), Strategy::Fused);
    let least = 1023.0 * (Machine::h200().push_us + 128.0 * 16384.0 / 380e3);
    assert!(estimate.gathered > duration(least), "{estimate:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let machine = Machine::h200();
    let problem = problem(4096, 4);
    let setup = Setup::usual(&machine, &problem, Strategy::Fused).unwrap();
    let plan = setup.plan(&problem).unwrap();
    let refused =
        |machine: &Machine, setup: &Setup| estimate(machine, &plan, setup).unwrap_err().to_string();
    let nccl = setup.clone().with_engine(Engine::Nccl, &problem);
    assert!(refused(&machine, &nccl).contains("NCCL"));
    let other = Setup { swizzle: setup.swizzle + 1, ..setup.clone() };
    assert!(refused(&machine, &other).starts_with("the plan's options"));
    let cut = Setup { splits: 2, ..setup.clone() };
    assert!(refused(&machine, &cut).starts_with("the number of splits is 2"));
    for link in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let text = refused(&machine.with_link(link), &setup);
        assert!(text.starts_with("the link's GB/s"), "{text}");
    }
    assert!(refused(&machine.with_sms(1), &setup).starts_with("the number of SMs is 1"));
    let text = refused(&Machine { copy_us: f64::NAN, ..machine }, &setup);
    assert!(text.starts_with("copy_us"), "{text}");
    assert!(timeline(&machine, &plan, &setup, 3..5).is_err());
}

#[test]
fn what_would_take_hours_or_all_memory_is_refused() {
    let machine = Machine::h200();
    const USUAL: &str = "bf16_bf16_bf16_nk_128x256x64_2x1_cooperative";
    const SMALL: &str = "bf16_bf16_bf16_nk_64x128x64_1x1_pingpong";
    let built = |m: u64, n, ranks| Problem::builder(m, n, 64).ranks(ranks).build().unwrap();
    let huge = built(2_147_483_647, 2_147_483_632, 2);
    for strategy in EACH {
        let setup = setup(strategy, USUAL);
        let why = estimate(&machine, &setup.plan(&huge).unwrap(), &setup).unwrap_err().to_string();
        assert!(
            why.starts_with("the number of units of work to predict is"),
            "{strategy:?}: {why}"
        );
    }
    // Where ranks differ, each has pieces of its own for all others.
    let apart = in_pieces(setup(Some(Strategy::Sequential), USUAL), 64);
    let plan = apart.plan(&built(65_535, 128, 1024)).unwrap();
    let why = estimate(&machine, &plan, &apart).unwrap_err().to_string();
    assert!(why.starts_with("the number of transfers to predict is 67042305, but"), "{why}");
    // All units of a column look at all chunks.
    let column = in_pieces(setup(Some(Strategy::Fused), USUAL), 32_768);
    let plan = column.plan(&built(65_536, 2_147_483_632, 2)).unwrap();
    let why = estimate(&machine, &plan, &column).unwrap_err().to_string();
    assert!(why.starts_with("the number of units of work"), "{why}");

    let usual = setup(Some(Strategy::Fused), USUAL);
    let plan = usual.plan(&built(4096, 3584, 4)).unwrap();
    let refused = |machine: &Machine, engine| {
        let setup = Setup { way: Way { engine, ..usual.way }, ..usual.clone() };
        estimate(machine, &plan, &setup).unwrap_err().to_string()
    };
    let why = refused(&machine.with_sms(u32::MAX), usual.way.engine);
    assert!(why.starts_with("the number of SMs is 4294967295"), "{why}");
    for (engine, words) in [
        (Engine::CopyEngines { streams: 0 }, "the number of streams is 0"),
        (Engine::CopyEngines { streams: 4_000_000_000 }, "the number of streams is 4000000000"),
        (Engine::Kernel { blocks: 129 }, "the number of blocks is 129"),
    ] {
        let why = refused(&machine, engine);
        assert!(why.starts_with(words), "{why}");
    }

    // What is estimated quickly may still be too much to keep.
    let all = setup(None, SMALL);
    let plan = all.plan(&built(1_000_000, 65_536, 2)).unwrap();
    let why = timeline(&machine, &plan, &all, 0..1).unwrap_err().to_string();
    assert!(why.starts_with("the number of tiles of a timeline is 8000000"), "{why}");
    let pieces = in_pieces(setup(Some(Strategy::Sequential), USUAL), 64);
    let plan = pieces.plan(&built(65_536, 128, 1024)).unwrap();
    let why = timeline(&machine, &plan, &pieces, 0..1024).unwrap_err().to_string();
    assert!(why.starts_with("the number of transfers of a timeline is 67108864"), "{why}");
}

#[test]
fn what_is_large_and_real_is_within_the_limits() {
    for (ranks, strategy) in [72, 8].into_iter().flat_map(|r| Strategy::ALL.map(|s| (r, s))) {
        let problem = Problem::builder(1_000_000, 65_536, 8192).ranks(ranks).build().unwrap();
        let mut setup = setup(Some(strategy), "bf16_bf16_bf16_nk_64x128x64_1x1_pingpong");
        (setup.way.engine, setup.way.pieces) = (Engine::CopyEngines { streams: MAX_STREAMS }, 16);
        let plan = setup.plan(&problem).unwrap();
        assert_eq!(limits::check_estimate(&plan, &setup), Ok(()), "{ranks} ranks, {strategy}");
    }
}

/// The problem, and how it is carried out.
fn anything() -> impl proptest::strategy::Strategy<Value = (Problem, Setup)> {
    let rows = proptest::collection::vec(0u32..700, 1..6);
    let strategy = 0usize..4;
    (rows, 1u64..40, 1u64..9, strategy, 0u32..3, 1u32..4).prop_filter_map(
        "rows, and pieces that they can be cut into",
        |(rows, n, k, strategy, engine, pieces)| {
            let m: u32 = rows.iter().sum();
            let built = Problem::builder(m.into(), 32 * n, 256 * k).shards(&rows).build().ok()?;
            let mut setup = self::usual(&Machine::h200(), &built, EACH[strategy]).ok()?;
            setup.way.engine = match engine {
                0 => Engine::Kernel { blocks: 16 },
                streams => Engine::CopyEngines { streams },
            };
            setup.way.pieces = pieces.min(built.shards().most_rows());
            setup.plan(&built).ok().map(|_| (built, setup))
        },
    )
}

proptest! {
    #[test]
    fn every_tile_is_computed_once_and_never_before_its_rows((problem, setup) in anything()) {
        let machine = Machine::h200();
        let plan = setup.plan(&problem).unwrap();
        let drawn = timeline(&machine, &plan, &setup, 0..problem.ranks()).unwrap();
        let mut ends = Duration::ZERO;
        for rank in 0..problem.ranks() {
            let order = plan.tile_order(rank).unwrap();
            let tiles: Vec<_> = drawn.tiles.iter().filter(|tile| tile.rank == rank).collect();
            let mut workers: BTreeMap<u32, Duration> = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for tile in &tiles {
                prop_assert!(tile.wait_begin <= tile.ready && tile.ready < tile.done);
                let before = workers.insert(tile.worker, tile.done).unwrap_or_default();
                // Sums of slices are added after the tile, beside the next.
                if setup.splits == 1 {
                    prop_assert!(tile.wait_begin >= before, "{tile:?} {before:?}");
                }
                prop_assert!(seen.insert((tile.product, tile.tile)));
                ends = ends.max(tile.done);
            }
            let gathers = setup.operation != Operation::Gemm;
            if !gathers || setup.way.strategy != Strategy::Pipelined {
                prop_assert_eq!(tiles.len() as u64, order.tile_count());
            }
            if gathers && setup.way.strategy == Strategy::Fused {
                never_early(&order, rank, &drawn)?;
            }
        }
        let estimate = estimate(&machine, &plan, &setup).unwrap();
        if setup.operation != Operation::Gemm && problem.m() > 0 {
            let others = problem.ranks() - 1;
            prop_assert!(drawn.transfers.len() as u32 == plan.chunks().len() * others);
        }
        let near = |a: Duration, b: Duration| a.abs_diff(b) <= Duration::from_nanos(2);
        prop_assert!(near(estimate.total, ends), "{estimate:?} {ends:?}");
    }

    #[test]
    fn equal_ranks_take_equally_long(ranks in 2u32..9, tiles in 1u32..4, n in 1u64..30) {
        let machine = Machine::h200();
        let m = 256 * u64::from(tiles * ranks);
        let problem = Problem::builder(m, 128 * n, 4096).ranks(ranks.into()).build().unwrap();
        let kernel = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";
        let setup = Setup { swizzle: 2, ..in_pieces(setup(Some(Strategy::Fused), kernel), 2) };
        let plan = setup.plan(&problem).unwrap();
        let each: BTreeSet<Duration> = (0..ranks)
            .map(|rank| {
                let drawn = timeline(&machine, &plan, &setup, rank..rank + 1).unwrap();
                drawn.tiles.iter().map(|tile| tile.done).max().unwrap()
            })
            .collect();
        prop_assert_eq!(each.len(), 1, "{:?}", each);
        prop_assert_eq!(estimate(&machine, &plan, &setup).unwrap().total, *each.first().unwrap());
    }
}

fn never_early(
    order: &TileOrder,
    rank: u32,
    drawn: &Timeline,
) -> std::result::Result<(), TestCaseError> {
    let there: BTreeMap<u32, Duration> = drawn
        .transfers
        .iter()
        .filter(|sent| sent.to == rank)
        .map(|sent| (sent.chunk, sent.signalled))
        .collect();
    for tile in drawn.tiles.iter().filter(|tile| tile.rank == rank) {
        for chunk in order.chunks_of(tile.tile) {
            let at = there.get(&chunk).copied().unwrap_or_default();
            prop_assert!(tile.ready >= at, "{:?} before chunk {} at {:?}", tile, chunk, at);
        }
    }
    Ok(())
}
