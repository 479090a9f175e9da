//! The ways of reductions that are chosen, by made-up tables, by predictions and by the rule.

use super::*;
use crate::kernels::all_kernels;
use crate::plan::Strategy;
use crate::predict::ways_of_sums;
use crate::tune::{Entry, Family, Shape, Times};

fn ways(operation: Operation) -> Vec<Way> {
    ways_of_sums(&Problem::builder(64, 64, 64).ranks(2).build().unwrap(), operation, None)
}

fn chosen(operation: Operation, m: u64, open: &[Way], kernels: &[Kernel]) -> (String, String) {
    let problem = Problem::builder(m, 8192, 3584).ranks(2).build().unwrap();
    let (columns, partials) = (8192, Partials::Bf16);
    let products = &[(problem, GemmOptions::default())];
    let reduced = Reduced { operation, products, columns, partials };
    let Chosen { way, why, .. } = match operation.is_alone() {
        true => reduced.choose_alone(open),
        false => by(&reduced, kernels, open, &Tuning::none()),
    };
    (way.to_string(), why)
}

/// What is chosen by that table, on an H200.
fn by(reduced: &Reduced<'_>, kernels: &[Kernel], open: &[Way], table: &Tuning) -> Chosen {
    reduced.choose_of(kernels, open, table, &DeviceInfo::made_up(), "580.1")
}

#[test]
fn the_way_that_was_measured_to_be_the_fastest_is_chosen() {
    let kernels = all_kernels();
    let all = ways(Operation::GemmAllReduce);
    let [pipelined, by_kernel, fused] = [0, 2, 5].map(|nth: usize| all[nth].to_string());
    // benches/results: 2026-11-26-h200x2-few-sums.txt, 2026-11-28-h200x2-all-reduce.json, and the reduce-scatter's files.
    for (operation, m, expected) in [
        (Operation::GemmReduceScatter, 64, &by_kernel),
        (Operation::GemmReduceScatter, 512, &by_kernel),
        (Operation::GemmReduceScatter, 1024, &pipelined),
        (Operation::GemmAllReduce, 512, &by_kernel),
        (Operation::GemmAllReduce, 1024, &by_kernel),
        (Operation::GemmAllReduce, 8192, &fused),
    ] {
        let all = ways(operation);
        let (way, why) = chosen(operation, m, &all, kernels);
        assert_eq!(way, *expected, "{operation}, {m} rows: {why}");
        let times = why.strip_suffix("; the kernel by the cost model").unwrap_or(&why);
        assert!(
            times.starts_with("modelled: predicted to take ")
                && times.matches(';').count() == all.len() - 1,
            "{why}"
        );
    }
}

/// 3 % of a long step are more than what a kernel spares the host.
#[test]
fn a_kernel_is_not_preferred_where_copies_are_much_sooner() {
    let problem = Problem::builder(15638, 4224, 10624).ranks(2).build().unwrap();
    let (operation, partials) = (Operation::GemmAllReduce, Partials::Bf16);
    let products = &[(problem, GemmOptions::default())];
    let reduced = Reduced { operation, products, columns: 4224, partials };
    let Chosen { way, why, .. } = by(&reduced, all_kernels(), &ways(operation), &Tuning::none());
    assert!(!matches!(way.engine, Engine::Kernel { .. }), "{why}");
}

/// A way that one of several products cannot go is not chosen, in whichever order they are planned.
#[test]
fn every_product_has_a_say_in_the_way() {
    let all = ways(Operation::GemmAllReduce);
    let fused = all[5];
    let problem = Problem::builder(8192, 4096, 3584).ranks(2).build().unwrap();
    let adds = all_kernels().iter().find(|kernel| kernel.adds_others).unwrap();
    let never = all_kernels().iter().find(|kernel| {
        let types = [kernel.elements, adds.elements];
        !kernel.adds_others && types[0] == types[1] && !kernel.transposed
    });
    let plain = (problem.clone(), GemmOptions::default());
    let picky = (problem, GemmOptions::default().with_kernel(&never.unwrap().name));
    let way = |products: &[(Problem, GemmOptions)]| {
        let (operation, partials) = (Operation::GemmAllReduce, Partials::Bf16);
        let reduced = Reduced { operation, products, columns: 8192, partials };
        by(&reduced, all_kernels(), &all, &Tuning::none()).way
    };
    assert_eq!(way(&[plain.clone(), plain.clone()]), fused);
    assert_ne!(way(&[plain.clone(), picky.clone()]), fused);
    assert_ne!(way(&[picky, plain]), fused);
}

#[test]
fn few_sums_without_a_product_are_added_up_by_a_kernel() {
    let all = ways(Operation::AllReduce);
    let [copies, by_kernel] = all[..] else { panic!("{all:?}") };
    for (operation, m, expected) in [
        (Operation::ReduceScatter, 2048, by_kernel),
        (Operation::ReduceScatter, 4096, copies),
        (Operation::AllReduce, 4096, by_kernel),
        (Operation::AllReduce, 8192, copies),
    ] {
        let (way, why) = chosen(operation, m, &all, &[]);
        assert_eq!(way, expected.to_string(), "{operation}, {m} rows: {why}");
    }
    let (way, why) = chosen(Operation::AllReduce, 64, &all[..1], &[]);
    assert_eq!((way, why.as_str()), (copies.to_string(), "asked for"));
}

#[test]
fn one_open_way_needs_no_prediction() {
    let way = Way { strategy: Strategy::Sequential, engine: Engine::Nccl, pieces: 1 };
    for operation in [Operation::GemmAllReduce, Operation::AllReduce] {
        let (chosen, why) = chosen(operation, 64, &[way], &[]);
        assert_eq!((chosen, &why[..4]), (way.to_string(), "NCCL"));
    }
    let all = ways(Operation::GemmReduceScatter);
    let sequential = [all[1]];
    assert_eq!(sequential[0].strategy, Strategy::Sequential);
    let (way, why) = chosen(Operation::GemmReduceScatter, 8192, &sequential, all_kernels());
    assert_eq!((way, why.as_str()), (sequential[0].to_string(), "asked for"));
    // Planning the product says that there is no kernel.
    let (way, why) = chosen(Operation::GemmReduceScatter, 64, &all, &[]);
    assert_eq!(way, all[0].to_string());
    assert!(why.starts_with("no prediction holds"), "{why}");
}

const COPIES: Engine = Engine::CopyEngines { streams: 1 };
const KERNEL: &str = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";

fn problem(m: u64) -> Problem {
    Problem::builder(m, 8192, 3584).ranks(2).build().unwrap()
}

/// 8192×8192×3584 on two H200, fastest that way; not what is predicted.
fn entry(operation: Operation, way: Way, kernel: Option<&str>) -> Entry {
    let of = all_kernels().iter().find(|kernel| kernel.name == KERNEL).unwrap();
    let named = |name: &str| Multiplying { kernel: name.into(), ..Multiplying::of(of, 4, 1) };
    Entry {
        family: Family::of(operation, &problem(8192), "NVIDIA H200"),
        shape: Shape::of(&problem(8192)),
        sms: 132,
        driver: "580.1".into(),
        crate_version: "0.1.0".into(),
        way,
        multiplying: kernel.map(named),
        us: Times { graph: Some(500.0), plain: Some(501.0) },
    }
}

struct Call {
    operation: Operation,
    products: Vec<(Problem, GemmOptions)>,
    partials: Partials,
    open: Vec<Way>,
}

impl Call {
    fn of(operation: Operation, m: u64) -> Call {
        let products = vec![(problem(m), GemmOptions::default())];
        Call { operation, products, partials: Partials::Bf16, open: ways(operation) }
    }

    fn chosen(&self, entry: &Entry) -> Chosen {
        let Call { operation, ref products, partials, ref open } = *self;
        let columns = products.iter().map(|(problem, _)| problem.n()).sum();
        let reduced = Reduced { operation, products, columns, partials };
        by(&reduced, all_kernels(), open, &Tuning::of_entries(vec![entry.clone()]))
    }
}

const SEQUENTIAL: Way = Way { strategy: Strategy::Sequential, engine: COPIES, pieces: 1 };
const SCATTER: Operation = Operation::GemmReduceScatter;
const MEASURED: &str = "measured for this problem, 500.0 µs in graphs, 501.0 µs one by one";

#[test]
fn what_was_measured_decides_way_and_kernel() {
    for operation in [SCATTER, Operation::GemmAllReduce] {
        let entry = entry(operation, SEQUENTIAL, Some(KERNEL));
        let chosen = Call::of(operation, 8192).chosen(&entry);
        assert_eq!((chosen.way, chosen.why), (SEQUENTIAL, format!("tuned: {MEASURED}")));
        let (_, gemm) = &chosen.products[0];
        assert_eq!(gemm.kernel.as_deref(), Some(KERNEL));
        assert_eq!((gemm.swizzle, gemm.splits), (Some(4), Some(1)));
        let near = Call::of(operation, 9000).chosen(&entry);
        assert_eq!((near.way, &near.products[0].1), (SEQUENTIAL, gemm));
        assert!(near.why.starts_with("nearest: measured for 8192×8192×3584, 500.0 µs"));
    }
}

/// Another way by predictions each time, which the table does not change.
#[test]
fn entries_of_other_steps_say_nothing() {
    let entry = entry(SCATTER, SEQUENTIAL, Some(KERNEL));
    let modelled = |call: &Call| {
        let Chosen { way, why, .. } = call.chosen(&entry);
        assert!(why.starts_with("modelled") && way != SEQUENTIAL, "{way}: {why}");
    };
    modelled(&Call::of(Operation::GemmAllReduce, 8192));
    modelled(&Call::of(SCATTER, 1024));
    modelled(&Call { partials: Partials::F32, ..Call::of(SCATTER, 8192) });
    let batches = Problem::builder(8192, 8192, 3584).ranks(2).batches(2).build().unwrap();
    let products = vec![(batches, GemmOptions::default())];
    modelled(&Call { products, ..Call::of(SCATTER, 8192) });
    // The caller has asked for a way that is not this one.
    let open = ways(SCATTER).into_iter().filter(|way| *way != SEQUENTIAL).collect();
    modelled(&Call { open, ..Call::of(SCATTER, 8192) });
}

#[test]
fn a_measured_fused_step_has_a_kernel_that_adds_or_those_of_the_cost_model() {
    let fused = Way { strategy: Strategy::Fused, engine: COPIES, pieces: 2 };
    let call = Call::of(SCATTER, 8192);
    let adds = |adds| {
        let elements = all_kernels().iter().find(|kernel| kernel.name == KERNEL).unwrap().elements;
        let is_one = |kernel: &&Kernel| {
            kernel.adds_others == adds && kernel.elements == elements && !kernel.transposed
        };
        all_kernels().iter().find(is_one).map(|kernel| kernel.name.as_str())
    };
    let kernel_of = |kernel| {
        let chosen = call.chosen(&entry(SCATTER, fused, kernel));
        assert_eq!(chosen.way, fused);
        assert!(chosen.why.starts_with(&format!("tuned: {MEASURED}")), "{}", chosen.why);
        let by_model = chosen.why.ends_with("; the kernel by the cost model");
        let kernel = chosen.products[0].1.kernel.clone();
        assert_eq!(by_model, kernel.is_none(), "{}", chosen.why);
        kernel
    };
    assert_eq!(kernel_of(None), None);
    assert_eq!(kernel_of(adds(true)).as_deref(), adds(true));
    assert_eq!(kernel_of(adds(false)), None);
    assert_eq!(kernel_of(Some("gigantic")), None);
}

/// A plan by a table passes every check that a plan without one does.
#[test]
fn what_cannot_be_carried_out_is_not_chosen() {
    let fused = Way { strategy: Strategy::Fused, engine: COPIES, pieces: 2 };
    let entry = entry(SCATTER, fused, None);
    let mut call = Call::of(SCATTER, 8192);
    // No product may add up with a kernel that does not.
    let never = all_kernels().iter().find(|kernel| {
        !kernel.adds_others && !kernel.transposed && kernel.computes(&problem(8192))
    });
    call.products[0].1.kernel = Some(never.unwrap().name.clone());
    let Chosen { way, why, .. } = call.chosen(&entry);
    assert!(why.starts_with("modelled") && way.strategy != Strategy::Fused, "{way}: {why}");

    // Several products go the way of one with all of their columns; their kernels are the cost model's.
    let half = (problem(8192).with_n(4096).unwrap(), GemmOptions::default());
    let call = Call { products: vec![half.clone(), half], ..Call::of(SCATTER, 8192) };
    let entry = self::entry(SCATTER, SEQUENTIAL, Some(KERNEL));
    let chosen = call.chosen(&entry);
    assert_eq!(chosen.way, SEQUENTIAL);
    assert!(chosen.why.ends_with("; the kernel by the cost model"), "{}", chosen.why);
    assert!(chosen.products.iter().all(|(_, gemm)| gemm.kernel.is_none()));

    // What was measured with another driver holds, and is said.
    let other = Entry { driver: "590.2".into(), ..entry };
    let why = Call::of(SCATTER, 8192).chosen(&other).why;
    assert_eq!(why, format!("tuned: {MEASURED}; with driver 590.2, here is 580.1"));
}

/// As a scatter along rows, the problem has the shape of the entry.
#[test]
fn what_was_measured_along_rows_is_no_answer_along_columns() {
    let fused = Way { strategy: Strategy::Fused, engine: COPIES, pieces: 2 };
    let entry = entry(SCATTER, fused, None);
    let columns = Problem::builder(4096, 16384, 3584).ranks(2).scatter_columns(true);
    let problem = columns.build().unwrap();
    assert_eq!(Shape::of(&problem), entry.shape);
    let products = vec![(problem, GemmOptions::default())];
    let why = Call { products, ..Call::of(SCATTER, 8192) }.chosen(&entry).why;
    assert!(why.starts_with("modelled: "), "{why}");
}

/// Of one product, and of two, whose columns are those of one rank each.
#[test]
fn every_way_along_columns_is_predicted() {
    let all = ways(SCATTER);
    for widths in [&[8192][..], &[4096, 2048]] {
        let product = |n: &u64| {
            let problem = Problem::builder(512, *n, 3584).ranks(2).scatter_columns(true);
            (problem.build().unwrap(), GemmOptions::default())
        };
        let products: Vec<_> = widths.iter().map(product).collect();
        let (columns, partials) = (widths.iter().sum::<u64>() as u32 / 2, Partials::Bf16);
        let reduced = Reduced { operation: SCATTER, products: &products, columns, partials };
        let why = by(&reduced, all_kernels(), &all, &Tuning::none()).why;
        let times = why.strip_suffix("; the kernel by the cost model").unwrap_or(&why);
        assert!(times.starts_with("modelled: predicted to take "), "{why}");
        assert_eq!(times.matches(';').count(), all.len() - 1, "{why}");
    }
}
