//! What is chosen, over measurements that were made up for it.

use proptest::prelude::*;

use super::super::entry::Shape;
use super::super::made_up::{by_model, entry, gathering, measured, of_kernel, problem, synthetic};
use super::*;
use crate::element::ElementType;
use crate::plan::{BLayout, ElementTypes, Scaling};
use crate::predict::{Setup, Strategy};

const PINGPONG: &str = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";
const COOPERATIVE: &str = "bf16_bf16_bf16_nk_128x256x64_2x1_cooperative";

fn ask(entries: &[Entry], problem: &Problem, fits: &dyn Fits) -> Option<Answer> {
    look_up(entries, &Asked { gpu: "NVIDIA H200", sms: 132, problem }, fits)
}

fn answer(entries: &[Entry], m: u32) -> Answer {
    ask(entries, &problem(m, 3584, 8192), &Anything).unwrap()
}

/// All but what is said not to fit.
struct Without<'a>(&'a [Gathering], &'a [&'a str]);

impl Fits for Without<'_> {
    fn kernels(&self) -> &[Kernel] {
        all_kernels()
    }

    fn gathering(&self, gathering: &Gathering) -> bool {
        !self.0.contains(gathering)
    }

    fn multiplying(&self, _: Order, multiplying: &Multiplying) -> bool {
        !self.1.contains(&&*multiplying.kernel)
    }
}

#[test]
fn what_was_measured_is_taken_as_it_was() {
    let table = [entry(
        4096,
        3584,
        8192,
        vec![
            by_model("model's", 1, 104.0),
            measured("best", 2, 100.0),
            measured("third", 4, 109.0),
        ],
    )];
    let found = answer(&table, 4096);
    assert_eq!(found.gathering, gathering(1, 2));
    assert_eq!(found.multiplying.as_ref().unwrap().kernel, "best");
    assert_eq!(found.to_string(), "tuned: measured for this problem, 100.0 µs in graphs");
    // The next best where the best is not to be had.
    let asked = problem(4096, 3584, 8192);
    let found = ask(&table, &asked, &Without(&[], &["best"])).unwrap();
    let kernel = found.multiplying.unwrap().kernel;
    assert_eq!((found.gathering.pieces, &*kernel), (1, "model's"));
    let found = ask(&table, &asked, &Without(&[gathering(1, 2), gathering(1, 1)], &[])).unwrap();
    assert_eq!(found.gathering, gathering(1, 4));
    // No kernel of these: how rows travel is known all the same, for the model's kernel.
    let found = ask(&table, &asked, &Without(&[], &["best", "model's", "third"])).unwrap();
    assert_eq!((found.gathering.pieces, &found.multiplying), (1, &None));
    assert!(found.to_string().ends_with("the kernel by the cost model"));
}

#[test]
fn other_families_say_nothing() {
    let table = [entry(4096, 3584, 8192, vec![measured(PINGPONG, 1, 10.0)])];
    let from = |problem: Problem, gpu: &str| {
        let asked = Asked { gpu, sms: 132, problem: &problem };
        look_up(&table, &asked, &Anything).unwrap().source
    };
    let builder = |ranks: u64| Problem::builder(4096, 3584, 8192).ranks(ranks);
    let built =
        |builder: crate::plan::ProblemBuilder| from(builder.build().unwrap(), "NVIDIA H200");
    let is_modelled = |source| matches!(source, Source::Modelled { us } if us > 100.0);
    assert!(matches!(built(builder(2)), Source::Tuned(_)));
    // On other numbers of ranks it is near, or far.
    let is_corrected =
        |source| matches!(source, Source::Interpolated { from, .. } if from == [table[0].place()]);
    assert!(is_corrected(built(builder(4))) && is_modelled(built(builder(8))));
    assert!(is_modelled(from(builder(2).build().unwrap(), "NVIDIA H100 80GB HBM3")));
    assert!(is_modelled(built(builder(2).b_layout(BLayout::Kn))));
    let f16 = ElementTypes::all(ElementType::F16);
    assert!(is_modelled(built(builder(2).elements(f16.a, f16.b, f16.d))));
    let fp8 = builder(2).elements(ElementType::E4m3, ElementType::E4m3, ElementType::Bf16);
    assert!(is_modelled(built(fp8.scaling(Scaling::Rows))));
    // What no kernel computes is answered by nobody.
    let f32 = ElementTypes::all(ElementType::F32);
    let problem = builder(2).elements(f32.a, f32.b, f32.d).build().unwrap();
    assert_eq!(ask(&table, &problem, &Anything), None);
}

#[test]
fn what_is_far_away_says_nothing_and_uneven_shards_are_not_the_same_problem() {
    let table = [entry(4096, 3584, 8192, vec![measured(PINGPONG, 1, 10.0)])];
    let there = vec![table[0].place()];
    let from = |asked: &Problem| match ask(&table, asked, &Anything).unwrap().source {
        Source::Interpolated { from, .. } => from,
        Source::Modelled { .. } => vec![],
        Source::Tuned(_) => panic!("it was not measured"),
    };
    assert_eq!(from(&problem(8192, 7168, 8192)), there);
    assert_eq!(from(&problem(256, 3584, 8192)), []);
    let uneven = problem(4096, 3584, 8192).with_shards(&[3000, 1096]).unwrap();
    assert_eq!(from(&uneven), there);
    // A kernel that nobody has heard of is as good as none.
    let table = [entry(4096, 3584, 8192, vec![measured("unheard of", 1, 10.0)])];
    let found = ask(&table, &problem(8192, 3584, 8192), &Anything).unwrap();
    assert!(matches!(found.source, Source::Modelled { .. }), "{found}");
}

#[test]
fn the_kernel_and_the_way_that_were_quicker_next_door_are_taken_here() {
    // 8192 × 3584 × 8192: by the model both kernels are about as quick.
    let table = |pingpong: f64, cooperative: f64| {
        [4096, 16384].map(|m| {
            let scale = f64::from(m) / 4096.0;
            let times = [(PINGPONG, pingpong), (COOPERATIVE, cooperative)];
            let one = |(kernel, us): (&str, f64)| measured(kernel, 1, us * scale);
            entry(m, 3584, 8192, times.map(one).to_vec())
        })
    };
    let kernel = |table: &[Entry]| answer(table, 8192).multiplying.unwrap().kernel;
    assert_eq!(kernel(&table(340.0, 440.0)), PINGPONG);
    assert_eq!(kernel(&table(440.0, 340.0)), COOPERATIVE);
    // As long as neither is much quicker, it is what is usual.
    let usual = Setup::usual(&Machine::h200(), &problem(8192, 3584, 8192), Strategy::Fused);
    let usual = usual.unwrap().kernel.name;
    assert_eq!(kernel(&table(400.0, 410.0)), usual);
    assert_eq!(kernel(&table(410.0, 400.0)), usual);
    // Few pieces or many, all else alike.
    let table = |few: f64, many: f64| {
        [4096, 16384].map(|m| {
            let scale = f64::from(m) / 4096.0;
            let times = [(2, few * scale), (4, many * scale)];
            let one = |(pieces, us)| measured(COOPERATIVE, pieces, us);
            entry(m, 3584, 8192, times.map(one).to_vec())
        })
    };
    let pieces = |table: &[Entry]| answer(table, 8192).gathering.pieces;
    assert_eq!(pieces(&table(400.0, 440.0)), 2);
    assert_eq!(pieces(&table(440.0, 400.0)), 4);
    let text = answer(&table(400.0, 440.0), 8192).to_string();
    assert!(text.starts_with("interpolated: predicted to take "), "{text}");
    assert!(text.ends_with(", corrected by 4096×3584×8192, 16384×3584×8192 on 2 GPUs"), "{text}");
}

#[test]
fn a_sweep_that_was_better_next_door_is_taken_here() {
    let swept = |swizzle, us| {
        let mut one = measured(COOPERATIVE, 1, us);
        one.multiplying.swizzle = swizzle;
        one
    };
    let slow = measured("bf16_bf16_bf16_nk_128x192x64_2x1_pingpong", 1, 900.0);
    let table = [entry(8192, 3584, 8192, vec![swept(1, 700.0), swept(4, 760.0), slow])];
    let found = answer(&table, 8704).multiplying.unwrap();
    assert_eq!((&*found.kernel, found.swizzle), (COOPERATIVE, 1));
}

#[test]
fn where_kernels_are_not_the_table_s_to_choose_rows_still_travel() {
    struct NoKernel;
    impl Fits for NoKernel {
        fn kernels(&self) -> &[Kernel] {
            all_kernels()
        }
        fn gathering(&self, _: &Gathering) -> bool {
            true
        }
        fn multiplying(&self, _: Order, _: &Multiplying) -> bool {
            false
        }
    }
    let found = ask(&[], &problem(4096, 3584, 8192), &NoKernel).unwrap();
    assert_eq!((found.gathering.order, found.multiplying.as_ref()), (Order::Fused, None));
    assert!(found.to_string().ends_with("; the kernel by the cost model"), "{found}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn answers_always_fit_and_are_always_the_same(
        shapes in prop::collection::vec((1u32..20_000, 1u32..500, 1u32..300), 0..4),
        m in 1u32..20_000, n in 1u32..500, k in 1u32..300, refused in 0usize..12,
    ) {
        let table: Vec<_> = (shapes.iter())
            .map(|&(m, n, k)| synthetic(Shape { m, n: 16 * n, k: 64 * k }))
            .collect();
        let problem = problem(m, 16 * n, 64 * k);
        let all = super::super::ways(&problem);
        let fits = Without(&all[..refused.min(all.len() - 1)], &[PINGPONG]);
        let found = ask(&table, &problem, &fits).unwrap();
        let mut turned = table.clone();
        turned.reverse();
        prop_assert_eq!(&ask(&turned, &problem, &fits).unwrap(), &found, "the order of entries");
        prop_assert!(fits.gathering(&found.gathering));
        prop_assert!(found.gathering.pieces <= problem.shards().most_rows());
        let multiplying = found.multiplying.unwrap();
        prop_assert!(multiplying.kernel != PINGPONG);
        prop_assert_eq!(&multiplying, &Multiplying {
            swizzle: multiplying.swizzle, splits: multiplying.splits, ..of_kernel(&multiplying.kernel)
        });
    }
}
