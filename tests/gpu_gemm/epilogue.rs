//! What happens to an output between its sum and its rounding: scales, alpha and beta, C, bias,
//! activations, in every compiled kernel.
//!
//! What belongs here: each combination by itself, so that a failure names it; `gpu_gemm.rs` mixes them
//! at random. The bound of the reference grows with each operation: see `src/reference/bound.rs`.

use overlap_gemm::cuda::{Activation, Gemm, GemmOptions, RawOperands};
use overlap_gemm::plan::Scaling;
use overlap_gemm::random::Random;

use crate::gpu::call::call;
use crate::gpu::case::Case;
use crate::gpu::inputs::factor;
use crate::gpu::plain::run_cases;
use crate::gpu::{Gpu, tried_kernels};

/// Runs what becomes of one product in every kernel.
fn on_every_kernel(change: impl Fn(Case, &mut Random) -> Vec<Case>) {
    run_cases(0x3c6e_f372_fe94_f82b, |kernel, random| {
        let mut size = |most| random.within(1..=most);
        change(Case::new(kernel, size(300), size(500), size(300)), random)
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_activation_with_and_without_bias_and_c() {
    on_every_kernel(|case, random| {
        let mut cases = Vec::new();
        for activation in Activation::ALL {
            for (bias, c) in [(false, false), (true, false), (false, true), (true, true)] {
                let (alpha, beta) = (factor(random), factor(random));
                let change = |options: GemmOptions| {
                    options.with_activation(activation).with_bias(bias).with_c(c)
                };
                cases.push(Case { alpha, beta, ..case.clone().with(change) });
            }
        }
        cases
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_epilogue_after_splits() {
    on_every_kernel(|case, random| {
        let case = Case::new(case.kernel, case.size[0], case.size[1], 1000);
        if case.most_splits() < 2 {
            return Vec::new();
        }
        let cases = Activation::ALL.map(|activation| {
            let splits = random.within(2..=case.most_splits().into()) as u32;
            let change = |options: GemmOptions| {
                options.with_activation(activation).with_bias(true).with_c(true).with_splits(splits)
            };
            let alpha = random.choose(&[0.75, 1.0]);
            Case { alpha, beta: -1.5, ..case.clone().with(change) }
        });
        cases.into()
    });
}

/// A scale of D that rounds to other numbers, and one that saturates; some whole and cut off tiles.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_fp8_output() {
    on_every_kernel(|case, random| {
        if !case.d.is_fp8() {
            return Vec::new();
        }
        let mut cases = Vec::new();
        for (activation, gated) in Activation::ALL.into_iter().zip([false, true, true, false]) {
            for scale_d in [0.3, -40.0] {
                let change = |options: GemmOptions| {
                    options.with_activation(activation).with_bias(true).with_c(!gated)
                };
                let rows = random.within(1..=64);
                let mut case =
                    Case::new(case.kernel, rows, case.size[1], case.size[2]).with(change);
                (case.scale_d, case.beta) = (scale_d, factor(random));
                case.scaling = random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]);
                case.pads = [0, 0, random.within(0..=2)];
                cases.push(if gated { case.gated() } else { case });
            }
        }
        let tile = case.kernel.tile;
        let [rows, columns] = [2 * tile.m, 3 * tile.n].map(u64::from);
        cases.push(Case { scale_d: 2.0, ..Case::new(case.kernel, rows, columns, 200) });
        cases
    });
}

/// Whole and cut off tiles, every activation, every scaling, with and without a bias.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_gate() {
    on_every_kernel(|case, random| {
        let mut cases = Vec::new();
        for (activation, bias) in Activation::ALL.into_iter().zip([false, true, true, false]) {
            let change = |options: GemmOptions| options.with_activation(activation).with_bias(bias);
            let alpha = factor(random);
            let splits = Some(random.within(1..=case.most_splits().into()) as u32);
            let mut case = Case { alpha, ..case.clone().with(change).gated() };
            case.options.splits = splits;
            if !case.gated {
                return cases;
            }
            if case.kernel.elements.a.is_fp8() {
                case.scaling = random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]);
            }
            case.pads = [0, 0, random.within(0..=2)];
            cases.push(case);
        }
        let tile = case.kernel.tile;
        let [rows, columns] = [2 * tile.m, 3 * tile.n].map(u64::from);
        cases.push(Case::new(case.kernel, rows, columns, 200).gated());
        cases
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn factors_at_their_edges() {
    on_every_kernel(|case, _| {
        let with_c = |alpha, beta| {
            let case = case.clone().with(|options| options.with_c(true));
            Case { alpha, beta, ..case }
        };
        vec![
            with_c(0.0, 1.0),
            with_c(1.0, 0.0),
            with_c(-1.0, 1.0),
            Case { alpha: 0.0, ..case.clone() },
        ]
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn every_scaling() {
    on_every_kernel(|case, _| {
        if !case.kernel.elements.a.is_fp8() {
            return Vec::new();
        }
        let scaled =
            [Scaling::Tensor, Scaling::Rows].map(|scaling| Case { scaling, ..case.clone() });
        let finished = scaled.clone().map(|case| Case {
            alpha: -0.5,
            beta: 1.5,
            ..case.with(|options| {
                options.with_bias(true).with_c(true).with_activation(Activation::Silu)
            })
        });
        let fewer_rows = Case { rows: Some(case.size[0].div_ceil(2) as u32), ..scaled[1].clone() };
        scaled.into_iter().chain(finished).chain([fewer_rows]).collect()
    });
}

/// A chain of products, each of which adds to the D of the one before: that reads C next to where it then writes D, and
/// lets the next product start meanwhile. Whoever finds C in its SM's own cache finds what it was before.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn c_may_come_from_the_kernel_before() {
    const PRODUCTS: usize = 50;
    let gpu = Gpu::untracked();
    // A D of fp8 has another type than C.
    for kernel in tried_kernels().into_iter().filter(|one| !one.elements.d.is_fp8()) {
        let (rows, columns) = (kernel.tile.m * kernel.cluster.m, kernel.tile.n * kernel.cluster.n);
        let case = Case::new(kernel, (4 * rows).into(), (8 * columns).into(), kernel.tile_k.into());
        let case = case.with(|options| options.with_c(true).with_constant_b(true));
        let gemm = Gemm::plan(&gpu.device, &case.problem(), &case.options).unwrap();
        let mut call = call(&gpu, &case, &mut Random::new(31));
        let first = call.addresses(&gpu.stream);
        let in_place = RawOperands::new(first.a, first.b, first.d).c(first.d, 0.5);
        for waits in [false, true] {
            let enqueue = |operands: &RawOperands| {
                // SAFETY: the call's own memory, which stays until the stream is through.
                unsafe { gemm.enqueue_raw(&gpu.stream, operands) }.unwrap();
                if waits {
                    gpu.stream.synchronize().unwrap();
                }
            };
            enqueue(&first);
            (1..PRODUCTS).for_each(|_| enqueue(&in_place));
            call.fetch(&gpu.stream);
            call.check_written(gemm.problem().m());
        }
        assert_eq!(call.difference(), None, "{kernel}: as if one waited for the other");
        println!("{kernel}: right");
    }
}
