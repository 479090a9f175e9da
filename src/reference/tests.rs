//! The reference against sums whose value is known, and the bound against the kernel's formula in f32.

use super::*;
use crate::element::{ElementType, F8E4M3, bf16};
use crate::plan::{Activation, Scaling};

fn f32_problem(k: u64) -> Problem {
    use ElementType::F32;
    Problem::builder(1, 1, k).elements(F32, F32, F32).build().unwrap()
}

/// One f32 output compared with the dot product of `a` and `b`.
fn compare(a: &[f32], b: &[f32], d: f32) -> Report {
    let problem = f32_problem(a.len() as u64);
    Reference::new(&problem, a, b, &[], &[]).unwrap().compare(&[d], 0..1).unwrap()
}

#[test]
fn underflow_is_within_the_bound() {
    let tiny = vec![2f32.powi(-75) * 0.8; 1000];
    assert_eq!(compare(&tiny, &tiny, 0.0).wrong, 0, "all products round to zero");
    assert_eq!(compare(&tiny, &tiny, 1e-40).wrong, 1);
    assert_eq!(compare(&tiny, &tiny, 0.0).complaint(), None);
    let complaint = compare(&[2.0], &[3.0], 5.0).complaint().unwrap();
    assert!(complaint.starts_with("1 of 1 results are wrong; D[0, 0] is 5, should be 6 ± "));
}

#[test]
fn what_is_not_finite_must_be_so_in_the_output() {
    let inf = f32::INFINITY;
    assert_eq!(compare(&[inf, 1.0], &[1.0, 1.0], inf).wrong, 0);
    assert_eq!(compare(&[inf, 1.0], &[1.0, 1.0], 5.0).wrong, 1);
    assert_eq!(compare(&[inf, inf], &[1.0, -1.0], f32::NAN).wrong, 0);
    assert_eq!(compare(&[f32::NAN, 1.0], &[1.0, 1.0], 1.0).wrong, 1);
    assert_eq!(compare(&[1.0, 1.0], &[1.0, 1.0], f32::NAN).wrong, 1);
    assert_eq!(compare(&[1.0, 1.0], &[1.0, 1.0], inf).wrong, 1);
}

#[test]
fn sums_that_may_overflow_on_the_way_are_not_judged() {
    let (a, b) = ([f32::MAX, f32::MAX, -f32::MAX], [1.0f32; 3]);
    assert_eq!(compare(&a, &b, f32::INFINITY).wrong, 0);
    assert_eq!(compare(&a, &b, f32::MAX).wrong, 0);
}

#[test]
fn sums_without_a_bound_are_refused() {
    let problem = Problem::builder(1, 1, u64::from(MAX_K) + 1).build().unwrap();
    let a = vec![bf16::ONE; MAX_K as usize + 1];
    let error = Reference::new(&problem, &a, &a, &[], &[]).map(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("k is 8388605"), "{error}");
}

#[test]
fn an_epilogue_changes_the_value_and_widens_the_bound() {
    let problem = f32_problem(2);
    let reference = Reference::new(&problem, &[1.0f32, 2.0], &[3.0f32, 0.5], &[], &[]).unwrap();
    let epilogue = Epilogue {
        alpha: 0.5,
        beta: -2.0,
        c: Some(&[0.25f32]),
        bias: Some(&[-3.0]),
        ..Epilogue::default()
    };
    let wrong = |d: f32, epilogue| reference.compare_with(&[d], 0..1, epilogue).unwrap().wrong;
    assert_eq!(wrong(-1.5, epilogue), 0);
    assert_eq!(wrong(-1.50001, epilogue), 1);
    assert_eq!(wrong(0.0, Epilogue { activation: Activation::Relu, ..epilogue }), 0);
    assert_eq!(wrong(-1.5, Epilogue { activation: Activation::Relu, ..epilogue }), 1);
    let silu = Epilogue { activation: Activation::Silu, ..epilogue };
    assert_eq!(wrong(Activation::Silu.apply(-1.5) as f32, silu), 0);
    assert_eq!(wrong(Activation::GeluTanh.apply(-1.5) as f32, silu), 1);
}

/// What the hardware is said to do, done here: the bound has to hold for it, and not by much more
/// than the number of addends.
#[test]
fn sums_cut_off_13_bits_below_the_largest_addend_stay_within_the_fp8_bound() {
    fn cut(value: f64, unit: f64) -> f64 {
        (value / unit).trunc() * unit
    }
    let mut random = crate::random::Random::new(5);
    let mut closest = 0f64;
    for k in [1, 31, 32, 100, 500, 2000] {
        let (a, b): (Vec<F8E4M3>, Vec<F8E4M3>) = (random.elements(k), random.elements(k));
        let mut sum = 0.0;
        for (a, b) in a.chunks(32).zip(b.chunks(32)) {
            let products = a.iter().zip(b).map(|(a, b)| f64::from(a.widen() * b.widen()));
            let addends: Vec<f64> = products.chain([sum]).collect();
            let largest = addends.iter().fold(0f64, |most, x| most.max(x.abs()));
            let unit = 2f64.powi(largest.log2().floor() as i32 - 13);
            sum = addends.iter().map(|x| cut(*x, unit)).sum();
        }
        let problem = Problem::builder(1, 1, k).elements(
            ElementType::E4m3,
            ElementType::E4m3,
            ElementType::Bf16,
        );
        let problem = problem.build().unwrap();
        let reference = Reference::new(&problem, &a, &b, &[], &[]).unwrap();
        let fp8 = reference.with_accumulation(Accumulation::Fp8);
        let report = fp8.compare(&[sum as f32], 0..1).unwrap();
        assert_eq!(report.wrong, 0, "k = {k}: {report:?}");
        closest = closest.max(report.worst_fraction);
        let off = reference.with_accumulation(Accumulation::Fp8Promoted);
        let tight = off.compare(&[sum as f32], 0..1).unwrap();
        assert!(tight.worst_fraction >= report.worst_fraction, "k = {k}");
    }
    assert!(closest > 0.001, "what was lost is {closest:e} of the bound");
}

/// The same arithmetic done in the plainest way, in `f32`: of all that is drawn, it is within the bound.
#[test]
fn plain_f32_arithmetic_stays_within_the_bound() {
    fn run<D: Element>(random: &mut crate::random::Random) -> f64 {
        let (gated, k) = (random.within(0..=2) == 0, random.within(1..=300));
        let n = if gated { 32 } else { random.within(1..=20) };
        let types = [ElementType::E4m3, ElementType::E4m3, D::TYPE];
        let problem = Problem::builder(1, n, k).elements(types[0], types[1], types[2]);
        let problem = problem.scaling(Scaling::Rows).gated(gated).build().unwrap();
        let (a, b): (Vec<F8E4M3>, Vec<F8E4M3>) = (random.elements(k), random.elements(n * k));
        let (c, bias): (Vec<D::Addend>, Vec<D::Addend>) = (random.elements(n), random.elements(n));
        let (row, columns) = (random.scales(1), random.scales(n as usize));
        let epilogue = Epilogue {
            alpha: random.signed(),
            beta: random.signed(),
            c: (!gated && random.within(0..=1) == 1).then_some(&c[..]),
            bias: (random.within(0..=1) == 1).then_some(&bias[..]),
            activation: random.choose(&Activation::ALL),
            scale_d: if D::TYPE.is_fp8() { random.signed() * 4.0 } else { 1.0 },
        };
        let x: Vec<f32> = (0..n as usize)
            .map(|column| {
                let products = a.iter().zip(&b[column * k as usize..]);
                let sum: f32 = products.map(|(a, b)| a.widen() * b.widen()).sum();
                let mut x = epilogue.alpha * row[0] * columns[column] * sum;
                x += epilogue.c.map_or(0.0, |c: &[D::Addend]| epilogue.beta * c[column].widen());
                x + epilogue.bias.map_or(0.0, |bias: &[D::Addend]| bias[column].widen())
            })
            .collect();
        let activated = |x: f32| {
            use std::f32::consts::{LOG2_E, PI};
            let power = match epilogue.activation {
                Activation::GeluTanh => {
                    let factor = -2.0 * (2.0 / PI).sqrt() * LOG2_E;
                    x * (factor + factor * 0.044715 * (x * x))
                }
                _ => -LOG2_E * x,
            };
            match epilogue.activation {
                Activation::None => x,
                Activation::Relu => x.max(0.0),
                Activation::GeluTanh | Activation::Silu => x / (1.0 + power.exp2()),
            }
        };
        let output = |column: usize| {
            if !gated {
                return activated(x[column]);
            }
            let gate = column / 8 * 16 + column % 8;
            activated(x[gate]) * x[gate + 8]
        };
        let outputs: Vec<f32> = (0..problem.d_columns() as usize).map(output).collect();
        let round = |x: &f32| D::narrow(x * epilogue.scale_d);
        let d: Vec<D> = outputs.iter().map(round).collect();
        let reference = Reference::new(&problem, &a, &b, &row, &columns).unwrap();
        let report = reference.compare_with(&d, 0..1, epilogue).unwrap();
        assert_eq!(report.wrong, 0, "{epilogue:?}: {report:?}");
        let amax = outputs.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let bounds = reference.amax(0..1, epilogue).unwrap();
        assert!(bounds.contains(&amax.into()), "{amax} is not in {bounds:?}");
        assert!(!bounds.contains(&(f64::from(amax) * 1.1 + 0.02)), "{bounds:?}");
        report.worst_fraction
    }
    let mut random = crate::random::Random::new(1);
    let (mut bf16s, mut f16s, mut fp8s) = (0f64, 0f64, 0f64);
    for _ in 0..400 {
        bf16s = bf16s.max(run::<bf16>(&mut random));
        f16s = f16s.max(run::<crate::element::f16>(&mut random));
        fp8s = fp8s.max(run::<F8E4M3>(&mut random));
    }
    // Rounding to D alone may use the whole bound: nearly all of it is for that.
    assert!(bf16s > 0.9 && f16s > 0.5 && fp8s > 0.9, "{bf16s}, {f16s}, {fp8s}");
}
