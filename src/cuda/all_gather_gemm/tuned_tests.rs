//! What tables decide, over kernels and measurements that were made up for it.

use proptest::prelude::*;

use super::*;
use crate::cuda::product::choice::choose;
use crate::cuda::product::choice::tests::kernel;
use crate::element::ElementType;
use crate::plan::{ClusterShape, Strategy, TileShape};
use crate::tune::{Entry, Family, Multiplying, Shape, Times};

fn some() -> Vec<Kernel> {
    let one = |name, rows, max_splits| kernel(name, [rows, 128], [1, 1], max_splits);
    vec![one("large", 256, 1), one("middle", 128, 1), one("small", 16, 8)]
}

/// 4096 × 3584 × 8192 on two H200: what was fastest.
fn entry(strategy: Strategy, engine: Engine, pieces: u32, kernel: &str) -> Entry {
    let of = some().into_iter().find(|one| one.name == kernel);
    let (tile, cluster) = of
        .map_or((TileShape { m: 64, n: 64 }, ClusterShape { m: 1, n: 1 }), |one| {
            (one.tile, one.cluster)
        });
    let problem = problem(4096);
    Entry {
        family: Family::of(Operation::AllGatherGemm, &problem, "NVIDIA H200"),
        shape: Shape::of(&problem),
        sms: 132,
        driver: "580.1".into(),
        crate_version: "0.1.0".into(),
        way: Way { strategy, engine, pieces },
        multiplying: Some(Multiplying {
            kernel: kernel.into(),
            tile,
            cluster,
            swizzle: 4,
            splits: 1,
        }),
        us: Times { graph: Some(100.0), plain: None },
    }
}

const COPIES: Engine = Engine::CopyEngines { streams: 1 };

fn usual() -> Tuning {
    Tuning::of_entries(vec![entry(Strategy::Pipelined, COPIES, 1, "large")])
}

fn problem(m: u64) -> Problem {
    Problem::builder(m, 3584, 8192).ranks(2).build().unwrap()
}

struct Call {
    products: Vec<(Problem, GemmOptions)>,
    options: CollectiveOptions,
    in_the_way: bool,
    driver: &'static str,
}

impl Call {
    fn of(problem: Problem) -> Call {
        Call {
            products: vec![(problem, GemmOptions::default())],
            options: CollectiveOptions::default(),
            in_the_way: false,
            driver: "580.1",
        }
    }

    fn advice(&self, table: &Tuning) -> Advice {
        let Call { products, options, in_the_way, driver } = self;
        let open = Open { products, options, in_the_way: *in_the_way };
        advise_by(table, &DeviceInfo::made_up(), driver, &some(), &open)
    }
}

#[test]
fn what_was_measured_is_planned_and_said() {
    let advice = Call::of(problem(4096)).advice(&usual());
    assert_eq!(advice.options.strategy, Some(Strategy::Pipelined));
    assert_eq!(advice.options.engine, Some(Engine::CopyEngines { streams: 1 }));
    assert_eq!(advice.options.pieces, Some(1));
    assert_eq!(advice.products[0].1.kernel.as_deref(), Some("large"));
    assert_eq!((advice.products[0].1.swizzle, advice.products[0].1.splits), (Some(4), Some(1)));
    assert_eq!(advice.explain("a rule"), "tuned: measured for this problem, 100.0 µs in graphs");

    // 15 % more rows: as it was measured for the other.
    let near = Call::of(problem(4710)).advice(&usual());
    let text = near.explain("a rule");
    assert_eq!(text, "nearest: measured for 4096×3584×8192, 100.0 µs in graphs");
    let same = (advice.options, advice.products[0].1.clone());
    assert_eq!((near.options, near.products[0].1.clone()), same);

    // Nothing is near: what is predicted, in full.
    let advice = Call::of(problem(64)).advice(&usual());
    assert_eq!(advice.options.strategy, Some(Strategy::Fused));
    assert!(matches!(advice.options.engine, Some(Engine::Kernel { .. })), "{:?}", advice.options);
    assert_eq!(advice.products[0].1.kernel.as_deref(), Some("small"));
    let text = advice.explain("a rule");
    assert!(text.starts_with("modelled: predicted to take "), "{text}");

    // What no kernel here computes is left to the rules, and refused where it is planned.
    let f16 = ElementType::F16;
    let call =
        Call::of(Problem::builder(64, 64, 64).ranks(2).elements(f16, f16, f16).build().unwrap());
    let advice = call.advice(&usual());
    assert_eq!(advice.options, call.options);
    let text = advice.explain("a rule");
    assert_eq!(text, "by the rules: a rule (no prediction holds for it on NVIDIA H200)");
}

#[test]
fn what_is_fixed_stays() {
    let mut call = Call::of(problem(4096));
    call.options.strategy = Some(Strategy::Sequential);
    let advice = call.advice(&usual());
    assert_eq!(advice.options, call.options);
    assert_eq!(advice.explain("asked for"), "asked for");

    // An engine without predictions: the rules decide.
    let mut call = Call::of(problem(4096));
    for engine in [Engine::CopyEngines { streams: 2 }, Engine::Nccl] {
        call.options.engine = Some(engine);
        let advice = call.advice(&usual());
        assert_eq!(advice.options, call.options);
    }

    // What was measured is not what was fixed: the cost model decides the rest.
    let mut call = Call::of(problem(4096));
    call.options.pieces = Some(4);
    let advice = call.advice(&usual());
    assert_eq!(advice.options.pieces, Some(4));
    let text = advice.explain("a rule");
    assert!(text.starts_with("modelled: "), "{text}");

    // Another kernel than the one that was measured: how rows travel is taken, and the kernel stays.
    let mut call = Call::of(problem(4096));
    call.products[0].1.kernel = Some("small".into());
    let advice = call.advice(&usual());
    assert_eq!(advice.options.strategy, Some(Strategy::Pipelined));
    assert_eq!(
        (advice.products[0].1.kernel.as_deref(), advice.products[0].1.splits),
        (Some("small"), None)
    );
}

#[test]
fn what_cannot_be_carried_out_here_is_not_planned() {
    let advice = |entry: Entry| Call::of(problem(4096)).advice(&Tuning::of_entries(vec![entry]));
    // A kernel that this binary does not have; more slices than its kernel can cut: the way without the kernel.
    let mut sliced = entry(Strategy::Sequential, COPIES, 2, "small");
    sliced.multiplying.as_mut().unwrap().splits = 9;
    for entry in [entry(Strategy::Sequential, COPIES, 2, "gigantic"), sliced] {
        let advice = advice(entry);
        assert_eq!(
            (advice.options.strategy, advice.options.pieces),
            (Some(Strategy::Sequential), Some(2))
        );
        assert_eq!((&advice.products[0].1.kernel, advice.products[0].1.splits), (&None, None));
        assert!(advice.explain("").ends_with("; the kernel by the cost model"));
    }
    // More pieces than fit: nothing of it.
    let blocks = Engine::Kernel { blocks: 8 };
    for entry in [
        entry(Strategy::Fused, COPIES, 200, "middle"),
        entry(Strategy::Fused, blocks, 33, "middle"),
    ] {
        let text = advice(entry).explain("");
        assert!(text.starts_with("modelled"), "{text}");
    }

    let mut call = Call::of(problem(4096));
    call.in_the_way = true;
    let advice = call.advice(&usual());
    assert_eq!(advice.options, call.options);
    assert!(advice.explain("NCCL").contains("do not reach each other"));
}

#[test]
fn kernels_are_measured_for_one_product_on_all_sms() {
    let mut call = Call::of(problem(4096));
    call.products[0].1.sm_limit = Some(100);
    let advice = call.advice(&usual());
    assert_eq!(
        (advice.options.strategy, advice.products[0].1.kernel.clone()),
        (Some(Strategy::Pipelined), None)
    );
    assert!(advice.explain("").ends_with("the kernel by the cost model"));
    // Several products are to the gather one with all of their columns.
    let mut call = Call::of(problem(4096).with_n(1792).unwrap());
    call.products.push(call.products[0].clone());
    let advice = call.advice(&usual());
    assert_eq!(
        (advice.options.strategy, advice.products[0].1.kernel.clone()),
        (Some(Strategy::Pipelined), None)
    );
    assert!(advice.explain("").starts_with("tuned"));
}

#[test]
fn another_driver_and_a_bad_file_are_told_of() {
    let advice = Call { driver: "590.2", ..Call::of(problem(4096)) }.advice(&usual());
    let text = advice.explain("");
    assert!(text.ends_with("; with driver 580.1, here is 590.2"), "{text}");
}

proptest! {
    /// A plan by any table passes every check that a plan without a table would.
    #[test]
    fn a_table_makes_nothing_illegal(
        (strategy, kernel) in (0usize..3, 0usize..4), (streams, pieces) in (1u32..10, 1u32..300),
        splits in 1u32..20, is_pushed in any::<bool>(), m in 1u64..9000, more in 0u64..3,
    ) {
        let strategy = Strategy::ALL[strategy];
        let engine = match is_pushed {
            true => Engine::Kernel { blocks: streams * 14 },
            false => Engine::CopyEngines { streams: streams.min(8) },
        };
        let mut entry = entry(strategy, engine, pieces, ["large", "middle", "small", "absent"][kernel]);
        entry.shape = Shape::of(&problem(m));
        entry.multiplying.as_mut().unwrap().splits = splits;
        let table = Tuning::of_entries(vec![entry]);
        // The problem itself, one that is near, one that is near if it is large.
        let asked = problem(m + more * m / 10);
        let advice = Call::of(asked.clone()).advice(&table);
        prop_assert!(choose(&some(), &asked, &advice.products[0].1, 132).is_ok());
        if let Some(pieces) = advice.options.pieces {
            let options = PlanOptions::new().with_pieces(pieces);
            let plan = Plan::new(&asked, options).unwrap();
            prop_assert!(check_count(plan.chunks()).is_ok());
            if let Some(Engine::Kernel { .. }) = advice.options.engine {
                prop_assert!(pieces <= MAX_PUSHED);
            }
        }
    }
}
