//! What is chosen, over measurements that were made up for it.

use proptest::prelude::*;

use super::super::asked::Anything;
use super::super::made_up::{entry, of_kernel, problem, way};
use super::{Strategy, *};
use crate::element::ElementType;
use crate::plan::{BLayout, ElementTypes, Scaling};
use crate::predict::{Machine, Setup, estimate, ranked, ways_of_sums};

const PINGPONG: &str = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";
const COOPERATIVE: &str = "bf16_bf16_bf16_nk_128x256x64_2x1_cooperative";

fn ask(entries: &[Entry], problem: &Problem, fits: &dyn Fits) -> Option<Answer> {
    look_up(entries, &asked_of(Operation::AllGatherGemm, problem), fits)
}

fn asked_of(operation: Operation, problem: &Problem) -> Asked<'_> {
    Asked { gpu: "NVIDIA H200", sms: 132, operation, problem, partials: Partials::Bf16 }
}

/// All but what is said not to fit.
struct Without<'a>(&'a [Way], &'a [&'a str]);

impl Fits for Without<'_> {
    fn way(&self, way: &Way) -> bool {
        !self.0.contains(way)
    }

    fn multiplying(&self, _: &Way, multiplying: &Multiplying) -> bool {
        !self.1.contains(&&*multiplying.kernel)
    }
}

#[test]
fn what_was_measured_is_taken_as_it_was() {
    let table = [entry([4096, 3584, 8192], PINGPONG, 2, 100.0)];
    let asked = problem(4096, 3584, 8192);
    let found = ask(&table, &asked, &Anything).unwrap();
    assert_eq!(found.to_string(), "tuned: measured for this problem, 100.0 µs in graphs");
    assert_eq!((found.way, found.multiplying), (way(1, 2), Some(of_kernel(PINGPONG))));
    // Without its kernel: how rows travel is known all the same, for the cost model's kernel.
    let found = ask(&table, &asked, &Without(&[], &[PINGPONG])).unwrap();
    assert_eq!((found.way.pieces, &found.multiplying), (2, &None));
    assert!(found.to_string().ends_with("; the kernel by the cost model"));
    // Rows that cannot travel so: nothing that was measured helps.
    let found = ask(&table, &asked, &Without(&[way(1, 2)], &[])).unwrap();
    assert!(matches!(found.source, Source::Modelled { .. }), "{found}");
}

#[test]
fn other_kinds_of_problems_say_nothing() {
    let table = [entry([4096, 3584, 8192], PINGPONG, 1, 10.0)];
    let from = |problem: Problem, gpu: &str| {
        let asked = Asked { gpu, ..asked_of(Operation::AllGatherGemm, &problem) };
        look_up(&table, &asked, &Anything).unwrap().source
    };
    let builder = |ranks: u64| Problem::builder(4096, 3584, 8192).ranks(ranks);
    let built =
        |builder: crate::plan::ProblemBuilder| from(builder.build().unwrap(), "NVIDIA H200");
    let is_modelled = |source| matches!(source, Source::Modelled { us, .. } if us > 100.0);
    assert!(matches!(built(builder(2)), Source::Tuned(_)));
    assert!(is_modelled(built(builder(4))) && is_modelled(built(builder(8))));
    assert!(is_modelled(from(builder(2).build().unwrap(), "NVIDIA H100 80GB HBM3")));
    assert!(is_modelled(built(builder(2).b_layout(BLayout::Kn))));
    let f16 = ElementTypes::all(ElementType::F16);
    assert!(is_modelled(built(builder(2).elements(f16.a, f16.b, f16.d))));
    let fp8 = builder(2).elements(ElementType::E4m3, ElementType::E4m3, ElementType::Bf16);
    assert!(is_modelled(built(fp8.scaling(Scaling::Rows))));
    // Without a kernel for the problem, no answer.
    let f32 = ElementTypes::all(ElementType::F32);
    let problem = builder(2).elements(f32.a, f32.b, f32.d).build().unwrap();
    assert_eq!(ask(&table, &problem, &Anything), None);
}

#[test]
fn the_nearest_is_taken_as_it_is_and_what_is_far_says_nothing() {
    let table = [
        entry([4096, 3584, 8192], PINGPONG, 2, 400.0),
        entry([5120, 3584, 8192], COOPERATIVE, 4, 500.0),
    ];
    let from = |asked: &Problem| {
        let found = ask(&table, asked, &Anything).unwrap();
        match found.source {
            Source::Nearest(shape, _) => {
                let of = found.multiplying.unwrap().kernel;
                Some((shape.m, found.way.pieces, if of == PINGPONG { 'p' } else { 'c' }))
            }
            Source::Modelled { .. } => None,
            Source::Tuned(_) => panic!("it was not measured"),
        }
    };
    let first = Some((4096, 2, 'p'));
    assert_eq!(from(&problem(4100, 3584, 8192)), first);
    assert_eq!(from(&problem(4300, 3840, 8192)), first);
    // Both are near; this one is nearer.
    assert_eq!(from(&problem(4700, 3584, 8192)), Some((5120, 4, 'c')));
    // In the sum of all sides, 0.26 doublings.
    assert_eq!(from(&problem(4096, 3584, 6840)), None);
    assert_eq!(from(&problem(8192, 3584, 8192)), None);
    // Uneven shards are another problem, however near.
    let uneven = problem(4096, 3584, 8192).with_shards(&[3000, 1096]).unwrap();
    assert_eq!(from(&uneven), first);
    let text = ask(&table, &problem(4100, 3584, 8192), &Anything).unwrap().to_string();
    assert_eq!(text, "nearest: measured for 4096×3584×8192, 400.0 µs in graphs");
    // Where its way does not fit, the next one's does.
    let few = Without(&[way(1, 2)], &[]);
    let found = ask(&table, &problem(4400, 3584, 8192), &few).unwrap();
    assert!(matches!(found.source, Source::Nearest(shape, _) if shape.m == 5120), "{found}");
}

#[test]
fn what_is_usual_is_modelled_unless_another_leads() {
    let (mut usual, mut other) = (0, 0);
    for m in [64, 512, 1024, 2048, 4096, 8192, 16384] {
        for (n, k) in [(3584, 8192), (1792, 4096), (7168, 4096)] {
            let problem = problem(m, n, k);
            let found = ask(&[], &problem, &Anything).unwrap();
            assert!(found.to_string().starts_with("modelled: predicted to take "), "{found}");
            let rules = Setup::usual(&Machine::h200(), &problem, Strategy::Fused).unwrap();
            let is_usual = found.setup(Operation::AllGatherGemm).unwrap() == rules;
            let Source::Modelled { us, .. } = found.source else { panic!("{found}") };
            let ruled = estimate(&Machine::h200(), &rules.plan(&problem).unwrap(), &rules);
            let ruled = 1e6 * ruled.unwrap().total.as_secs_f64();
            match is_usual {
                true => usual += 1,
                false => {
                    other += 1;
                    assert!(us < 0.942 * ruled, "{problem}: {us} µs, usual {ruled} µs");
                }
            }
        }
    }
    assert!(usual > 0 && other > 0, "{usual} {other}");
}

#[test]
fn where_kernels_are_not_the_table_s_to_choose_rows_still_travel() {
    struct NoKernel;
    impl Fits for NoKernel {
        fn multiplying(&self, _: &Way, _: &Multiplying) -> bool {
            false
        }
    }
    let found = ask(&[], &problem(4096, 3584, 8192), &NoKernel).unwrap();
    assert_eq!((found.way.strategy, found.multiplying.as_ref()), (Strategy::Fused, None));
    assert!(found.to_string().ends_with("; the kernel by the cost model"), "{found}");
}

#[test]
fn an_operation_has_entries_of_its_own() {
    let gathered = entry([4096, 8192, 3584], PINGPONG, 2, 100.0);
    let mut reduced = gathered.clone();
    reduced.family.operation = Operation::GemmReduceScatter;
    let problem = problem(4096, 8192, 3584);
    let source = |table: &[Entry], operation| {
        look_up(table, &asked_of(operation, &problem), &Anything).unwrap().source
    };
    let all = [Operation::AllGatherGemm, Operation::GemmReduceScatter, Operation::GemmAllReduce];
    for (entry, own) in [(gathered, all[0]), (reduced.clone(), all[1])] {
        for operation in all {
            let is_tuned =
                matches!(source(std::slice::from_ref(&entry), operation), Source::Tuned(_));
            assert_eq!(is_tuned, operation == own, "{operation} by {own}");
        }
    }
    // Sums of other sizes, and more products.
    let is_modelled = |asked: &Asked<'_>| {
        let found = look_up(std::slice::from_ref(&reduced), asked, &Anything).unwrap();
        matches!(found.source, Source::Modelled { .. })
    };
    let asked = asked_of(all[1], &problem);
    assert!(!is_modelled(&asked));
    assert!(is_modelled(&Asked { partials: Partials::F32, ..asked }));
    let batches = Problem::builder(4096, 8192, 3584).ranks(2).batches(4).build().unwrap();
    assert!(is_modelled(&asked_of(all[1], &batches)));
}

/// Without an entry a reduction goes the way that `predict` ranks first, with the kernel that predictions are made with.
#[test]
fn a_reduction_is_modelled_by_its_ways_alone() {
    let machine = Machine::h200();
    for operation in [Operation::GemmReduceScatter, Operation::GemmAllReduce] {
        for m in [64, 512, 1024, 4096, 8192] {
            let problem = problem(m, 8192, 3584);
            let setup = |way| {
                let (kernels, sums) = (crate::kernels::all_kernels(), Partials::Bf16);
                Setup::of_sums(kernels, &machine, &problem, operation, way, sums).unwrap()
            };
            let ways = ways_of_sums(&problem, operation, None);
            let ranked = ranked(&machine, &problem, ways.into_iter().map(setup));
            let asked = asked_of(operation, &problem);
            let found = look_up(&[], &asked, &Anything).unwrap();
            let Source::Modelled { others, .. } = &found.source else { panic!("{found}") };
            let order: Vec<Way> =
                [found.way].into_iter().chain(others.iter().map(|(way, _)| *way)).collect();
            let expected: Vec<Way> = ranked.iter().map(|(setup, _)| setup.way).collect();
            assert_eq!(order, expected);
            // The products of a fused step have a kernel each.
            let of = found.setup(operation);
            match found.way.strategy {
                Strategy::Fused => assert_eq!(of, None),
                _ => assert_eq!(of.as_ref(), Some(&ranked[0].0)),
            }

            // What is measured begins with the same, and has other kernels for every way.
            let all = candidates(&asked, &Anything);
            let first: Vec<Way> = all.iter().take(order.len()).map(|one| one.way).collect();
            assert_eq!(first, order);
            for (nth, one) in all.iter().enumerate() {
                let same = |other: &Candidate| {
                    (other.way, &other.multiplying) == (one.way, &one.multiplying)
                };
                assert!(!all[..nth].iter().any(same), "{one:?} twice");
                let adds = one.way.strategy != Strategy::Fused
                    || one.multiplying.iter().all(|one| {
                        Kernel::from_name(&one.kernel).is_some_and(|kernel| kernel.adds_others)
                    });
                assert!(adds, "{one:?}");
            }
            for way in &order {
                let kernels = all.iter().filter(|one| one.way == *way).count();
                assert!(kernels > 1, "{m} rows, {operation}: {way} has one kernel");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn answers_always_fit_and_are_always_the_same(
        near in prop::collection::vec((0.9f64..1.1, 1u32..9, any::<bool>()), 0..4),
        m in 1u32..20_000, n in 1u32..500, k in 1u32..300, refused in 0usize..12,
    ) {
        let one = |&(part, pieces, is_pingpong): &(f64, u32, bool)| {
            let kernel = if is_pingpong { PINGPONG } else { COOPERATIVE };
            let m = (f64::from(m) * part).ceil() as u32;
            entry([m, 16 * n, 64 * k], kernel, pieces, 10.0)
        };
        let mut table: Vec<_> = near.iter().map(one).collect();
        table.sort_by_key(|one| one.shape);
        table.dedup_by_key(|one| one.shape);
        let problem = problem(m, 16 * n, 64 * k);
        let all = super::super::ways(&problem);
        let fits = Without(&all[..refused.min(all.len() - 1)], &[PINGPONG]);
        let found = ask(&table, &problem, &fits).unwrap();
        let mut turned = table.clone();
        turned.reverse();
        prop_assert_eq!(&ask(&turned, &problem, &fits).unwrap(), &found, "the order of entries");
        prop_assert!(fits.way(&found.way));
        prop_assert!(found.way.pieces <= problem.shards().most_rows());
        if let Some(multiplying) = found.multiplying {
            prop_assert!(multiplying.kernel != PINGPONG);
            prop_assert_eq!(&multiplying, &Multiplying {
                swizzle: multiplying.swizzle, splits: multiplying.splits, ..of_kernel(&multiplying.kernel)
            });
        }
    }
}
