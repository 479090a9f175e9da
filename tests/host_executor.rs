//! The host executor against the reference: random problems, types, layouts, shards, steps, delays.
//! `PROPTEST_CASES=10000` is the long mode.

mod common;

use std::time::Duration;

use common::tiling;
use common::world::{jitter, run_all_gather_gemm};
use overlap_gemm::ElementType::{self, *};
use overlap_gemm::element::{F8E4M3, F8E5M2, bf16, f16};
use overlap_gemm::host::GroupOptions;
use overlap_gemm::plan::{BLayout, PlanOptions, Problem, Scaling, Tiling};
use proptest::prelude::*;

fn types() -> impl Strategy<Value = (ElementType, ElementType, ElementType)> {
    prop_oneof![
        Just((Bf16, Bf16, Bf16)),
        Just((Bf16, Bf16, F32)),
        Just((F16, F16, F16)),
        Just((F32, F32, F32)),
        Just((E4m3, E4m3, Bf16)),
        Just((E4m3, E5m2, F16)),
        Just((E5m2, E4m3, Bf16)),
    ]
}

/// The whole case, by the types that the problem names.
fn run(
    problem: &Problem,
    plan: PlanOptions,
    group: GroupOptions,
    steps: &[Vec<u32>],
    in_place: bool,
    seed: u64,
) {
    let types = problem.elements();
    macro_rules! run {
        ($a:ty, $b:ty, $d:ty) => {
            run_all_gather_gemm::<$a, $b, $d>(problem, plan, group, steps, in_place, seed)
        };
    }
    match (types.a, types.b, types.d) {
        (Bf16, Bf16, Bf16) => run!(bf16, bf16, bf16),
        (Bf16, Bf16, F32) => run!(bf16, bf16, f32),
        (F16, F16, F16) => run!(f16, f16, f16),
        (F32, F32, F32) => run!(f32, f32, f32),
        (E4m3, E4m3, Bf16) => run!(F8E4M3, F8E4M3, bf16),
        (E4m3, E5m2, F16) => run!(F8E4M3, F8E5M2, f16),
        (E5m2, E4m3, Bf16) => run!(F8E5M2, F8E4M3, bf16),
        other => panic!("{other:?} is not drawn"),
    };
}

proptest! {
    #[test]
    fn random_worlds_compute_what_the_reference_says(
        types in types(),
        steps in (1usize..=5).prop_flat_map(|ranks| {
            prop::collection::vec(prop::collection::vec(0u32..40, ranks), 1..=5)
        }),
        (n, k) in (1u64..70, 1u64..90),
        (pad_a, pad_b, pad_d) in (0u64..5, 0u64..5, 0u64..5),
        kn in any::<bool>(),
        scaling in prop_oneof![Just(Scaling::None), Just(Scaling::Tensor), Just(Scaling::Rows)],
        tiling in tiling(),
        chunks in 1u32..6,
        (in_place, poison_consumed) in any::<(bool, bool)>(),
        (seed, first_epoch) in any::<(u64, u32)>(),
        delay_us in prop_oneof![Just(0u64), Just(200)],
    ) {
        let total = |rows: &Vec<u32>| rows.iter().sum::<u32>();
        prop_assume!(steps.iter().all(|rows| total(rows) > 0));
        // The largest step is the plan; all others are steps of it.
        let largest = steps.iter().max_by_key(|rows| total(rows)).unwrap();
        let (a, b, d) = types;
        let problem = Problem::builder(total(largest).into(), n, k)
            .shards(largest)
            .elements(a, b, d)
            .b_layout(if kn { BLayout::Kn } else { BLayout::Nk })
            .lda(k + pad_a)
            .ldb(if kn { n } else { k } + pad_b)
            .ldd(n + pad_d)
            .scaling(if a.is_fp8() { scaling } else { Scaling::None })
            .build()
            .unwrap();
        let chunks = chunks.min(*largest.iter().max().unwrap());
        let plan = PlanOptions { chunks_per_shard: Some(chunks), tiling };
        let link = jitter(seed, Duration::from_micros(delay_us)).filter(|_| delay_us > 0);
        let group = GroupOptions { link, poison_consumed, first_epoch, ..GroupOptions::default() };
        run(&problem, plan, group, &steps, in_place, seed);
    }
}

#[test]
fn epochs_wrap_without_a_trace() {
    let problem = Problem::builder(24, 16, 8).ranks(3).build().unwrap();
    let steps = vec![vec![8, 8, 8]; 12];
    for first_epoch in [u32::MAX - 5, i32::MAX as u32 - 5] {
        let group = GroupOptions { first_epoch, poison_consumed: true, ..GroupOptions::default() };
        let plan = PlanOptions { tiling: Tiling::of_tile(8, 8), chunks_per_shard: Some(2) };
        run(&problem, plan, group, &steps, false, 7);
    }
}

#[test]
fn two_hundred_steps_with_stragglers() {
    let problem = Problem::builder(64, 32, 32).ranks(4).build().unwrap();
    let steps = vec![vec![16; 4]; 200];
    let link = jitter(3, Duration::from_micros(300));
    let group = GroupOptions { link, poison_consumed: true, ..GroupOptions::default() };
    let plan = PlanOptions { tiling: Tiling::of_tile(16, 16), chunks_per_shard: Some(4) };
    run(&problem, plan, group, &steps, true, 11);
}
