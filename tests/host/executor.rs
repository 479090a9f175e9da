//! The host executor against the reference: random problems, types, layouts, shards, steps, delays.
//! `PROPTEST_CASES=10000` is the long mode.

use std::time::Duration;

use overlap_gemm::ElementType::{Bf16, E4m3};
use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::exercise::Exercise;
use overlap_gemm::host::{
    AllGatherGemm, AsyncGemm, Group, GroupOptions, Link, Product, Rank, Shard, Stream,
};
use overlap_gemm::plan::{Activation, Epilogue, PlanOptions, Problem, Scaling, Tiling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Reference;
use proptest::prelude::*;

use crate::threads::on_threads;

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
fn two_hundred_steps_with_stragglers() {
    let problem = Problem::builder(64, 32, 32).ranks(4).build().unwrap();
    let options = PlanOptions::new().with_pieces(4).with_tiling(Tiling::of_tile(16, 16));
    let jitter = Duration::from_micros(300);
    let link = Some(Link { bytes_per_second: 1e12, jitter, seed: 3 });
    let group = GroupOptions { link, poison: true, ..GroupOptions::default() };
    let steps = vec![vec![16; 4]; 200];
    assert_right(&Exercise {
        group,
        steps,
        in_place: true,
        ..Exercise::new(&problem, options, 11)
    });
}

/// Two writers, chunks of scaled rows, steps of varying M: every result is of this step's rows and scales.
#[test]
fn what_writers_publish_is_what_is_multiplied() {
    const M: u32 = 96;
    const K: usize = 48;
    const STEPS: usize = 40;
    let builder = Problem::builder(M.into(), 24, K as u64).shards(&[50, 46]);
    let problem = builder.elements(E4m3, E4m3, Bf16).scaling(Scaling::Rows).build().unwrap();
    let options = PlanOptions::new().with_pieces(3).with_tiling(Tiling::of_tile(16, 16));
    let mut gemm = AsyncGemm::<F8E4M3, F8E4M3, bf16>::plan(&problem, options, 1).unwrap();
    let mut input = gemm.input().unwrap();
    let mut random = Random::new(17);
    let mut draw = |_| (random.elements(problem.a_len(M)), random.scales(M as usize));
    let inputs: Vec<(Vec<F8E4M3>, Vec<f32>)> = (0..STEPS).map(&mut draw).collect();
    let (b, b_scales): (Vec<F8E4M3>, _) = (random.elements(problem.b_len()), random.scales(24));
    let steps: Vec<u32> = (0..STEPS).map(|_| random.within(1..=M.into()) as u32).collect();

    std::thread::scope(|scope| {
        for source in [0, 1] {
            let (writer, inputs, steps) = (input.writer(), &inputs, &steps);
            scope.spawn(move || {
                for (step, (a, scales)) in inputs.iter().enumerate() {
                    for chunk in writer.plan().chunks().of_rank(source) {
                        let rows = writer.plan().chunks().rows(chunk);
                        let end = rows.end.min(steps[step]).max(rows.start) as usize;
                        let rows = rows.start as usize..end;
                        let part = &a[rows.start * K..rows.end * K];
                        writer.publish_scaled(step as u32, chunk, part, &scales[rows]).unwrap();
                    }
                }
            });
        }
        for ((a, scales), &m) in inputs.iter().zip(&steps) {
            let shape = problem.truncated(m).unwrap();
            let mut d = vec![bf16::NAN; shape.d_len() as usize];
            let product = Product::new(&b, &mut d).scales(&b_scales);
            let stream = Stream::new(1).unwrap();
            gemm.enqueue_all(&stream, &mut input, m, &[], &mut [product]).unwrap();
            let (a, scales) = (&a[..m as usize * K], &scales[..m as usize]);
            let reference = Reference::new(&shape, a, &b, scales, &b_scales).unwrap();
            assert_eq!(reference.compare(&d, 0..m).unwrap().wrong, 0);
        }
    });
}

/// SwiGLU and its likes, with a bias for each column of gates and of what they gate.
#[test]
fn gated_products_have_an_activation_and_a_bias() {
    let problem = Problem::builder(24, 48, 40).ranks(3).gated(true).ldd(29).build().unwrap();
    let options = PlanOptions::new().with_tiling(Tiling::of_tile(8, 32));
    let mut random = Random::new(29);
    let a: Vec<bf16> = random.elements(problem.a_len(24));
    let b: Vec<bf16> = random.elements(problem.b_len());
    let bias: Vec<bf16> = random.elements(48);
    for activation in Activation::ALL {
        let epilogue =
            Epilogue { bias: Some(&bias), alpha: -0.5, activation, ..Epilogue::default() };
        let outputs = on_threads(Group::local(3).unwrap(), |rank: Rank| {
            let mut layer = AllGatherGemm::<bf16>::plan(&rank, &problem, options).unwrap();
            let shard = &a[rank.rank() as usize * 8 * 40..][..8 * 40];
            let mut d = vec![bf16::NAN; problem.d_len() as usize];
            let product = Product::new(&b, &mut d).epilogue(epilogue);
            layer.enqueue_all(&Stream::new(2).unwrap(), shard, &mut [product]).unwrap();
            let c = Epilogue { c: Some(&bias), ..epilogue };
            let refused = Product::new(&b, &mut d).epilogue(c);
            let stream = Stream::new(2).unwrap();
            let refused = layer.enqueue_all(&stream, shard, &mut [refused]).unwrap_err();
            assert!(refused.to_string().contains("C in a gated product"), "{refused}");
            d
        });
        let reference = Reference::new(&problem, &a, &b, &[], &[]).unwrap();
        for d in outputs {
            assert_eq!(reference.compare_with(&d, 0..24, epilogue).unwrap().wrong, 0);
            let without = reference.compare_with(&d, 0..24, Epilogue::default()).unwrap().wrong;
            assert!(without > 24 * 12, "{activation:?}: {without}");
            assert!(d.chunks(29).all(|row| row[24..].iter().all(|x| x.is_nan())));
        }
    }
}

/// Scaled, saturated, and the largest output noted; gated or with a C in bf16.
#[test]
fn fp8_outputs_are_scaled_and_their_amax_is_noted() {
    let options = PlanOptions::new().with_tiling(Tiling::of_tile(8, 16));
    let mut random = Random::new(37);
    for gated in [false, true] {
        let problem = Problem::builder(24, 48, 40).ranks(3).elements(E4m3, E4m3, E4m3);
        let problem = problem.scaling(Scaling::Tensor).gated(gated).build().unwrap();
        let a: Vec<F8E4M3> = random.elements(problem.a_len(24));
        let b: Vec<F8E4M3> = random.elements(problem.b_len());
        let c: Vec<bf16> = random.elements(problem.d_len());
        let bias: Vec<bf16> = random.elements(48);
        for scale_d in [-3.0, 500.0] {
            let epilogue = Epilogue {
                c: (!gated).then_some(&c[..]),
                beta: 0.5,
                bias: Some(&bias),
                activation: Activation::Silu,
                scale_d,
                ..Epilogue::default()
            };
            let reference = Reference::new(&problem, &a, &b, &[0.5], &[2.0]).unwrap();
            let bounds = reference.amax(0..24, epilogue).unwrap();
            let outputs = on_threads(Group::local(3).unwrap(), |rank: Rank| {
                let plan = AllGatherGemm::<F8E4M3, F8E4M3, F8E4M3>::plan;
                let mut layer = plan(&rank, &problem, options).unwrap();
                let shard = &a[rank.rank() as usize * 8 * 40..][..8 * 40];
                let mut d = vec![F8E4M3::NAN; problem.d_len() as usize];
                // What was noted before stays if it is larger.
                let (mut amax, mut more) = (0.0, 1e6);
                for noted in [&mut amax, &mut more] {
                    let product = Product::new(&b, &mut d).scales(&[2.0]).epilogue(epilogue);
                    let shard = Shard::at(shard).scales(&[0.5]);
                    let products = &mut [product.amax(noted)];
                    layer.enqueue_all(&Stream::new(2).unwrap(), shard, products).unwrap();
                }
                assert_eq!(more, 1e6);
                (d, amax)
            });
            for (d, amax) in outputs {
                assert_eq!(reference.compare_with(&d, 0..24, epilogue).unwrap().wrong, 0);
                let other = Epilogue { scale_d: 1.0, ..epilogue };
                let unscaled = reference.compare_with(&d, 0..24, other).unwrap().wrong;
                assert!(unscaled > 24 * 12, "{unscaled}");
                assert!(bounds.contains(&amax.into()), "{amax} is not in {bounds:?}");
                let largest = d.iter().fold(0f32, |largest, x| largest.max(x.to_f32().abs()));
                assert_eq!(F8E4M3::from_f32(amax * scale_d.abs()).to_f32(), largest);
            }
        }
    }
}

#[test]
fn a_scale_or_an_amax_of_a_wider_d_is_refused() {
    let problem = Problem::builder(8, 16, 8).build().unwrap();
    let rank = Group::local(1).unwrap().remove(0);
    let mut layer = AllGatherGemm::<bf16>::plan(&rank, &problem, PlanOptions::new()).unwrap();
    let (a, b, mut d) = (vec![bf16::ONE; 64], vec![bf16::ONE; 128], vec![bf16::NAN; 128]);
    let mut amax = 0.0;
    let scaled = Epilogue { scale_d: 2.0, ..Epilogue::default() };
    let not_finite = Epilogue { scale_d: f32::NAN, ..Epilogue::default() };
    let mut refused = |product: Product<'_, bf16, bf16>, text: &str| {
        let refused = layer.enqueue_all(&Stream::new(1).unwrap(), &a, &mut [product]);
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    };
    refused(Product::new(&b, &mut d).epilogue(scaled), "a scale for a D in bf16");
    refused(Product::new(&b, &mut d).epilogue(not_finite), "a scale for a D in bf16");
    refused(Product::new(&b, &mut d).amax(&mut amax), "an amax for a D in bf16");
}

/// Two products of one gather, the first with rows of D and C that lie apart.
#[test]
fn each_product_has_an_epilogue_of_its_own() {
    let problem = Problem::builder(24, 16, 40).ranks(3).ldd(19).build().unwrap();
    let options = PlanOptions::new().with_pieces(2).with_tiling(Tiling::of_tile(8, 8));
    let narrow = problem.with_n(5).unwrap();
    let mut random = Random::new(23);
    let a: Vec<bf16> = random.elements(problem.a_len(24));
    let b: [Vec<bf16>; 2] = [&problem, &narrow].map(|problem| random.elements(problem.b_len()));
    let c: Vec<bf16> = random.elements(problem.d_len());
    let bias: Vec<bf16> = random.elements(5);
    let (activation, alpha, beta) = (Activation::GeluTanh, -0.5, 1.5);
    let epilogues = [
        Epilogue { alpha, beta, c: Some(&c), ..Epilogue::default() },
        Epilogue { bias: Some(&bias), activation, ..Epilogue::default() },
    ];
    let run = |rank: Rank| {
        let mut layer = AllGatherGemm::<bf16>::plan(&rank, &problem, options).unwrap();
        let shard = &a[rank.rank() as usize * 8 * 40..][..8 * 40];
        let mut d = [&problem, &narrow].map(|problem| vec![bf16::NAN; problem.d_len() as usize]);
        let [wide, few] = &mut d;
        let mut products = [
            Product::new(&b[0], wide).epilogue(epilogues[0]),
            Product::new(&b[1], few).n(5).epilogue(epilogues[1]),
        ];
        layer.enqueue_all(&Stream::new(2).unwrap(), shard, &mut products).unwrap();
        d
    };
    let outputs = on_threads(Group::local(3).unwrap(), run);
    let wrong = |d: &[bf16], product: usize, epilogue| {
        let problem = [&problem, &narrow][product];
        let reference = Reference::new(problem, &a, &b[product], &[], &[]).unwrap();
        reference.compare_with(d, 0..24, epilogue).unwrap().wrong
    };
    for (product, d) in outputs.iter().flat_map(|of_rank| of_rank.iter().enumerate()) {
        assert_eq!(wrong(d, product, epilogues[product]), 0, "product {product}");
        assert!(wrong(d, product, Epilogue::default()) > 24, "product {product}");
    }
}
