//! The host executor against the reference: random problems, types, layouts, shards, steps, delays.
//! `PROPTEST_CASES=10000` is the long mode.

use std::time::Duration;

use overlap_gemm::exercise::Exercise;
use overlap_gemm::host::{GroupOptions, Link};
use overlap_gemm::plan::{PlanOptions, Problem, Tiling};
use proptest::prelude::*;

fn assert_right(exercise: &Exercise) {
    let outcome = exercise.run(&|| false).unwrap();
    assert_eq!(outcome.report.wrong, 0, "{:?} in {exercise:?}", outcome.report);
    assert!(outcome.report.compared > 0);
}

proptest! {
    // Seeds, not structures, so there is nothing to shrink.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn random_worlds_compute_what_the_reference_says(seed in any::<u64>()) {
        assert_right(&Exercise::random(seed).unwrap());
    }
}

#[test]
fn epochs_wrap_without_a_trace() {
    let problem = Problem::builder(24, 16, 8).ranks(3).build().unwrap();
    let options = PlanOptions { tiling: Tiling::of_tile(8, 8), chunks_per_shard: Some(2) };
    for first_epoch in [u32::MAX - 5, i32::MAX as u32 - 5] {
        let group = GroupOptions { first_epoch, poison_consumed: true, ..GroupOptions::default() };
        let steps = vec![vec![8; 3]; 12];
        assert_right(&Exercise { group, steps, ..Exercise::new(&problem, options, 7) });
    }
}

#[test]
fn two_hundred_steps_with_stragglers() {
    let problem = Problem::builder(64, 32, 32).ranks(4).build().unwrap();
    let options = PlanOptions { tiling: Tiling::of_tile(16, 16), chunks_per_shard: Some(4) };
    let jitter = Duration::from_micros(300);
    let link = Some(Link { bytes_per_second: 1e12, jitter, seed: 3 });
    let group = GroupOptions { link, poison_consumed: true, ..GroupOptions::default() };
    let steps = vec![vec![16; 4]; 200];
    assert_right(&Exercise {
        group,
        steps,
        in_place: true,
        ..Exercise::new(&problem, options, 11)
    });
}
