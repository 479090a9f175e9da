//! The choice of a kernel, over kernels that were made up for it.

use proptest::prelude::*;

use super::*;
use crate::element::ElementType;
use crate::kernels::cost;
use crate::plan::{BLayout, ClusterShape, ElementTypes, Scaling, TileShape};

/// One that was made up.
pub(crate) fn kernel(name: &str, tile: [u32; 2], cluster: [u32; 2], max_splits: u32) -> Kernel {
    Kernel {
        name: name.into(),
        elements: ElementTypes::all(ElementType::Bf16),
        b_layout: BLayout::Nk,
        tile: TileShape { m: tile[0], n: tile[1] },
        tile_k: 64,
        cluster: ClusterShape { m: cluster[0], n: cluster[1] },
        pingpong: false,
        transposed: tile[0] < 64,
        fast_accumulation: false,
        max_splits,
        adds_others: true,
        gates: tile[1].is_multiple_of(16),
    }
}

fn fp8(name: &str, fast_accumulation: bool) -> Kernel {
    use ElementType::{Bf16, E4m3};
    let elements = ElementTypes { a: E4m3, b: E4m3, d: Bf16 };
    Kernel { elements, tile_k: 128, fast_accumulation, ..kernel(name, [128, 256], [2, 1], 1) }
}

fn some() -> Vec<Kernel> {
    vec![
        kernel("large", [128, 256], [2, 1], 1),
        kernel("tall", [256, 128], [1, 2], 1),
        kernel("square", [128, 128], [2, 1], 1),
        kernel("small", [16, 128], [1, 1], 16),
        kernel("middle", [64, 128], [1, 1], 8),
        Kernel { b_layout: BLayout::Kn, ..kernel("other way round", [128, 256], [2, 1], 1) },
        fp8("fast", true),
        fp8("exact", false),
    ]
}

fn problem(m: u64, n: u64, k: u64) -> Problem {
    Problem::builder(m, n, k).build().unwrap()
}

fn chosen(problem: &Problem, options: &GemmOptions) -> (String, Choice) {
    let choice = choose(&some(), problem, options, 132).unwrap();
    (some()[choice.kernel].name.clone(), choice)
}

fn refused(problem: &Problem, options: &GemmOptions) -> String {
    choose(&some(), problem, options, 132).unwrap_err().to_string()
}

#[test]
fn c_is_for_kernels_that_add_it_to_their_sums() {
    let mut kernels = some();
    kernels[0].adds_others = false;
    let chosen = |options: &GemmOptions| {
        let choice = choose(&kernels, &problem(8192, 8192, 8192), options, 132).unwrap();
        kernels[choice.kernel].name.as_str()
    };
    assert_eq!(chosen(&GemmOptions::default()), "large");
    assert_eq!(chosen(&GemmOptions::default().with_c(true)), "tall");
    let named = GemmOptions { kernel: Some("large".into()), ..GemmOptions::default() };
    assert_eq!(chosen(&named.with_c(true)), "large");
    // Where there are scales, too.
    use ElementType::{Bf16, E4m3};
    let (scaling, options) = (Scaling::Rows, GemmOptions::default());
    let scaled = Problem::builder(8192, 8192, 8192).elements(E4m3, E4m3, Bf16).scaling(scaling);
    let mut kernels = ["large", "square"].map(|name| fp8(name, options.fast_accumulation));
    (kernels[0].adds_others, kernels[1].tile) = (false, TileShape { m: 128, n: 128 });
    let chosen = |options| choose(&kernels, &scaled.clone().build().unwrap(), &options, 132);
    assert_eq!(chosen(options.clone()).unwrap().kernel, 0);
    assert_eq!(chosen(options.with_c(true)).unwrap().kernel, 1);
}

#[test]
fn large_products_get_large_tiles_and_small_ones_many() {
    let plain = GemmOptions::default();
    for (m, n, k) in [(8192, 5120, 5120), (16384, 3584, 8192), (4096, 8192, 3584)] {
        let (name, choice) = chosen(&problem(m, n, k), &plain);
        assert!(name == "large" || name == "tall", "{m} {n} {k}: {name}");
        assert_eq!(choice.splits, 1);
    }
    for m in [1, 8, 16] {
        let (name, choice) = chosen(&problem(m, 3584, 8192), &plain);
        assert_eq!(name, "small", "m = {m}");
        // 28 tiles alone would leave most SMs idle.
        assert!(choice.splits >= 2, "{choice:?}");
    }
}

#[test]
fn equal_costs_go_to_the_larger_tile_and_then_to_the_first() {
    let twins = [
        kernel("a", [128, 128], [1, 1], 1),
        kernel("b", [256, 128], [1, 1], 1),
        kernel("c", [256, 128], [1, 1], 1),
    ];
    // One tile, bound by the bytes it reads: all the same.
    let all = [0, 1, 2].map(|kernel| Choice { kernel, swizzle: 1, splits: 1 });
    let costs = all.map(|choice| cost(&twins[choice.kernel], &problem(1, 8, 8), 1, 132));
    assert_eq!(costs[1], costs[2]);
    assert_eq!(cheapest(&twins[1..], &problem(1, 8, 8), &all[..2], 132), Some(all[0]));
}

#[test]
fn only_kernels_of_the_right_kind_are_candidates() {
    use ElementType::{Bf16, E4m3, E5m2, F16};
    let plain = GemmOptions::default();
    let fp8 = Problem::builder(512, 512, 512).elements(E4m3, E4m3, Bf16).build().unwrap();
    assert_eq!(chosen(&fp8, &plain).0, "fast");
    assert_eq!(chosen(&fp8, &plain.clone().with_fast_accumulation(false)).0, "exact");
    let kn = Problem::builder(512, 512, 512).b_layout(BLayout::Kn).build().unwrap();
    assert_eq!(chosen(&kn, &plain).0, "other way round");
    // Sums of 16-bit products are in f32 anyhow.
    let exact = GemmOptions::default().with_fast_accumulation(false);
    assert_eq!(chosen(&kn, &exact).0, "other way round");

    let f16 = Problem::builder(64, 64, 64).elements(F16, F16, F16).build().unwrap();
    let text = refused(&f16, &plain);
    assert!(text.starts_with("the product f16 × f16 → f16 (B as N×K) on the GPU"), "{text}");
    assert!(text.contains("e4m3 × e4m3 → bf16 (B as N×K, f32 accumulation)"), "{text}");
    assert!(text.contains("OVERLAP_GEMM_KERNELS=all"), "{text}");
    let mixed = Problem::builder(64, 64, 64).elements(E4m3, E5m2, F16).build().unwrap();
    assert!(refused(&mixed, &plain).contains("fast accumulation"));
    let none = choose(&[], &f16, &plain, 132).unwrap_err().to_string();
    assert!(none.contains("no kernels at all"), "{none}");
}

#[test]
fn what_was_fixed_is_taken_or_refused() {
    let problem = problem(256, 512, 256);
    let plain = GemmOptions::default();
    let (name, choice) = chosen(&problem, &plain.clone().with_kernel("square").with_swizzle(3));
    assert_eq!((name.as_str(), choice.swizzle, choice.splits), ("square", 3, 1));
    let (name, choice) = chosen(&problem, &plain.clone().with_splits(4));
    assert!(name == "small" || name == "middle", "{name}");
    assert_eq!(choice.splits, 4);

    let texts = [
        (
            plain.clone().with_kernel("huge"),
            "the kernel 'huge' is not supported: this binary has 8 kernels, such as large; name one",
        ),
        (
            plain.clone().with_kernel("quar"),
            "the kernel 'quar' is not supported: this binary has 8 kernels, such as square; name one",
        ),
        (plain.clone().with_kernel("fast"), "the kernel 'fast' for bf16 × bf16 → bf16"),
        (plain.clone().with_splits(0), "the number of splits is 0, but must be between 1 and 4"),
        (plain.clone().with_splits(5), "the number of splits is 5, but must be between 1 and 4"),
        (plain.clone().with_swizzle(0), "the swizzle is 0"),
        (plain.clone().with_sm_limit(0), "the SM limit is 0, but must be between 1 and 132"),
        (plain.clone().with_sm_limit(133), "the SM limit is 133, but must be between 1 and 132"),
        (plain.with_kernel("large").with_sm_limit(1), "the SM limit is 1, but must be between 2"),
    ];
    for (options, text) in texts {
        let error = refused(&problem, &options);
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn a_named_kernel_that_cannot_do_it_is_refused() {
    let plain = problem(512, 512, 512);
    let gated = Problem::builder(512, 512, 512).gated(true).build().unwrap();
    let kernels = [
        Kernel { gates: false, ..kernel("uneven", [128, 136], [2, 1], 1) },
        Kernel { adds_others: false, ..kernel("full", [128, 256], [2, 1], 1) },
    ];
    let adds = GemmOptions { adds_others: true, ..GemmOptions::default() };
    let texts = [
        (&plain, adds.with_kernel("full"), "the kernel 'full' in a fused reduction"),
        (&gated, GemmOptions::default().with_kernel("uneven"), "the kernel 'uneven' for a gated"),
    ];
    for (problem, options, text) in texts {
        let error = choose(&kernels, problem, &options, 132).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
    }
}

#[test]
fn one_sm_gets_a_kernel_without_clusters() {
    let (name, _) = chosen(&problem(4096, 4096, 4096), &GemmOptions::default().with_sm_limit(1));
    assert!(name == "small" || name == "middle", "{name}");
}

proptest! {
    #[test]
    fn every_choice_is_legal_and_the_same_each_time(
        m in 1u64..20_000, n in 1u64..20_000, k in 1u64..20_000, sms in 1u32..=132,
    ) {
        let (kernels, problem) = (some(), problem(m, n, k));
        let options = GemmOptions::default().with_sm_limit(sms);
        let choice = choose(&kernels, &problem, &options, 132).unwrap();
        let kernel = &kernels[choice.kernel];
        prop_assert!(kernel.serves(&problem, true));
        prop_assert!(kernel.cluster_size() <= sms);
        prop_assert!((1..=most_splits(kernel, &problem)).contains(&choice.splits));
        let unit_rows = kernel.tile.m * kernel.cluster.m;
        prop_assert!(choice.swizzle >= 1 && (choice.swizzle - 1) * unit_rows < problem.m());
        prop_assert_eq!(choose(&kernels, &problem, &options, 132).unwrap(), choice);

        let all = candidates(&kernels, &problem, &options, sms, 132).unwrap();
        let ranked = crate::kernels::ranked(&kernels, &problem, all, sms);
        prop_assert_eq!(ranked[0].0, choice, "the list begins with the choice");
        prop_assert!(ranked[1..].is_sorted_by(|(_, one), (_, other)| one <= other));
    }
}
