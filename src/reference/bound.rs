//! How far an output may be from what it should be: derived from K and the formats, not tuned.
//!
//! What belongs here: one output's value and bound. The steps are those of the arithmetic, each with
//! `u = 2⁻²⁴`, the unit roundoff of `f32`:
//!
//! 1. a sum of K products, in any order, times up to three factors (`alpha` and two scales):
//!    `γ(K + 3) · Σ|a·b|` with `γ(n) = n·u / (1 − n·u)`, plus what fp8 tensor cores lose
//!    ([`Accumulation`]), plus half the smallest `f32` for each operation that underflows;
//! 2. C and the bias: at most three operations more, `γ(3)` of all magnitudes;
//! 3. the activation: what came so far times its steepest slope, plus the error of computing it; then, in a gated product,
//!    one multiplication, whose factors' errors multiply too;
//! 4. a D of fp8: one multiplication by its scale, and what is larger than its largest number becomes that;
//! 5. rounding to D: half a unit in the last place.
//!
//! In a reduction step 1 holds for each rank's sum. Each sum that travels is rounded to the type of partials, and the total
//! of W ranks loses `γ(W − 1)` of all magnitudes, `γ(1)` more for an average and for `alpha`; steps 2 to 5 follow. Where all
//! additions but the last are rounded to the type of partials, too, they lose `γ(W − 2)` with the unit roundoff of that type.
//!
//! Invariant: where the bound cannot tell, because magnitudes overflow `f32`, it is infinite.

use crate::element::{Element, ElementType};
use crate::plan::{Activation, Partials, Reduction};

/// How the products of one output are added up.
///
/// ```
/// use overlap_gemm::ElementType::{Bf16, E4m3};
/// use overlap_gemm::element::{F8E4M3, bf16};
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::reference::{Accumulation, Reference};
///
/// let problem = Problem::builder(1, 1, 2).elements(E4m3, E4m3, Bf16).build()?;
/// let ones = [F8E4M3::from_f32(1.0); 2];
/// let reference = Reference::new(&problem, &ones, &ones, &[], &[])?;
/// let by_gpu = reference.with_accumulation(Accumulation::Fp8);
/// assert_eq!(by_gpu.compare(&[bf16::from_f32(2.0)], 0..1)?.wrong, 0);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accumulation {
    /// In `f32`, in any order.
    #[default]
    F32,
    /// As Hopper's tensor cores add fp8 products for all of K: 32 products and the sum so far at a
    /// time, aligned to the largest of them and cut off 13 bits below its leading one.
    Fp8,
    /// The same for 128 products at a time; those sums are added up in `f32`.
    Fp8Promoted,
}

/// What an output should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// The exact value, up to `f64` rounding.
    pub(super) value: f64,
    /// How far an output may be from it.
    pub(super) bound: f64,
}

/// A sum of products, and what it may have lost.
#[derive(Clone, Copy, Debug)]
struct Sum {
    value: f64,
    /// Σ|a·b|
    magnitude: f64,
    /// What the accumulation itself may have cut off.
    lost: f64,
}

/// A sum of products times `alpha` and the two scales, before anything is added to it.
pub(super) fn summed(
    a: &[f64],
    b: &[f64],
    accumulation: Accumulation,
    factors: [f64; 3],
) -> Expected {
    let sum = add_up(a, b, accumulation);
    let [alpha, row, column] = factors;
    let value = sum.value * (alpha * row * column);
    Expected { value, bound: scaled_bound(sum, a.len() as f64, factors) }
}

/// What additions of the ranks' sums are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Additions {
    /// `f32`.
    Wide,
    /// The type of the partials, but for the last, whose total becomes D.
    OfPartials,
}

/// The total of the ranks' sums, of which an owner's own are unrounded, in any order, times `alpha`.
pub(super) fn total(
    sums: impl ExactSizeIterator<Item = Expected>,
    owner: Option<u32>,
    reduction: Reduction,
    additions: Additions,
    alpha: f64,
) -> Expected {
    let (ranks, partials) = (sums.len() as f64, reduction.partials.element());
    let (mut value, mut bound, mut magnitude) = (0.0, 0.0, 0.0);
    for (rank, sum) in (0..).zip(sums) {
        let mut lost = sum.bound;
        if Some(rank) != owner && reduction.partials != Partials::F32 {
            lost += (sum.value.abs() + lost) * partials.unit_roundoff();
            lost += partials.min_positive() / 2.0;
        }
        value += sum.value;
        bound += lost;
        magnitude += sum.value.abs() + lost;
    }
    if additions == Additions::OfPartials {
        let errors = (ranks - 2.0).max(0.0) * partials.unit_roundoff();
        let lost = magnitude * errors / (1.0 - errors);
        bound += lost;
        magnitude += lost;
    }
    bound += gamma(ranks - 1.0) * magnitude;
    let divided = if reduction.average { 1.0 / ranks } else { 1.0 };
    for factor in [divided, alpha].into_iter().filter(|factor| *factor != 1.0) {
        value *= factor;
        bound *= factor.abs();
        bound += gamma(1.0) * (value.abs() + bound) + half_of_smallest();
    }
    let may_overflow = magnitude * alpha.abs().max(1.0) > partials.max_finite();
    Expected { value, bound: if may_overflow { f64::INFINITY } else { bound } }
}

/// From a scaled sum to an output, step by step.
impl Expected {
    /// With `beta · C` and the bias.
    pub(super) fn plus(self, [c, bias]: [f64; 2]) -> Expected {
        let magnitude = self.largest() + c.abs() + bias.abs();
        let bound = self.bound + gamma(3.0) * magnitude + half_of_smallest();
        Expected { value: self.value + c + bias, bound }.unless_over(magnitude)
    }

    pub(super) fn activated(self, activation: Activation) -> Expected {
        if activation == Activation::None {
            return self;
        }
        let evaluation = evaluation_error(activation, self.largest());
        let bound = self.bound * activation.steepest() + evaluation;
        Expected { value: activation.apply(self.value), bound }
    }

    /// An activated gate times the value that it gates.
    pub(super) fn times(self, value: Expected) -> Expected {
        let largest = self.largest() * value.largest();
        let lost = self.bound * value.largest() + self.value.abs() * value.bound;
        let bound = lost + gamma(1.0) * largest + half_of_smallest();
        Expected { value: self.value * value.value, bound }.unless_over(largest)
    }

    /// Times the scale of D.
    pub(super) fn scaled(self, scale: f32) -> Expected {
        if scale == 1.0 {
            return self;
        }
        let scale = f64::from(scale);
        let largest = self.largest() * scale.abs();
        let bound = self.bound * scale.abs() + gamma(1.0) * largest + half_of_smallest();
        Expected { value: self.value * scale, bound }.unless_over(largest)
    }

    /// Rounded to D.
    pub(super) fn rounded<D: Element>(self) -> Expected {
        let rounding = self.largest() * D::TYPE.unit_roundoff();
        let bound = self.bound + rounding + D::TYPE.min_positive() / 2.0;
        let most = if D::TYPE.is_fp8() { D::TYPE.max_finite() } else { f64::INFINITY };
        Expected { value: self.value.clamp(-most, most), bound }
    }

    fn largest(self) -> f64 {
        self.value.abs() + self.bound
    }

    /// Nobody knows what becomes of an operation whose operands may overflow `f32`.
    fn unless_over(self, magnitude: f64) -> Expected {
        let over = magnitude > ElementType::F32.max_finite();
        Expected { bound: if over { f64::INFINITY } else { self.bound }, ..self }
    }
}

fn gamma(operations: f64) -> f64 {
    let errors = operations * ElementType::F32.unit_roundoff();
    errors / (1.0 - errors)
}

fn half_of_smallest() -> f64 {
    ElementType::F32.min_positive() / 2.0
}

/// How far the scaled sum may be off before anything is added to it.
fn scaled_bound(sum: Sum, k: f64, factors: [f64; 3]) -> f64 {
    let factor: f64 = factors.iter().map(|factor| factor.abs()).product();
    // The factors are multiplied in any order, so products of some of them may be larger than of all.
    let largest: f64 = factors.iter().map(|factor| factor.abs().max(1.0)).product();
    if sum.magnitude * largest > ElementType::F32.max_finite() {
        return f64::INFINITY;
    }
    let underflow = (2.0 * k + 3.0) * largest * half_of_smallest();
    (sum.magnitude * gamma(k + 3.0) + sum.lost * (1.0 + gamma(3.0))) * factor + underflow
}

/// The products of two rows, taken together.
#[derive(Clone, Copy, Debug)]
struct Products {
    sum: f64,
    /// Σ|a·b|
    magnitude: f64,
    /// max |a·b|
    largest: f64,
}

/// Products that are added side by side, so that no addition waits for the one before it.
const LANES: usize = 4;

impl Products {
    fn of(a: &[f64], b: &[f64]) -> Products {
        let (mut sums, mut magnitudes, mut largest) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let mut add = |a: &[f64; LANES], b: &[f64; LANES]| {
            for lane in 0..LANES {
                let product = a[lane] * b[lane];
                let magnitude = product.abs();
                sums[lane] += product;
                magnitudes[lane] += magnitude;
                // `f64::max` would take several instructions more, for the sake of NaN.
                largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
            }
        };
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks(), b.as_chunks());
        a.iter().zip(b).for_each(|(a, b)| add(a, b));
        if !a_rest.is_empty() {
            // Zeros add nothing.
            let [mut a, mut b] = [[0.0; LANES]; 2];
            a[..a_rest.len()].copy_from_slice(a_rest);
            b[..b_rest.len()].copy_from_slice(b_rest);
            add(&a, &b);
        }
        Products {
            sum: sums.iter().sum(),
            magnitude: magnitudes.iter().sum(),
            largest: largest.into_iter().fold(0.0, f64::max),
        }
    }
}

fn add_up(a: &[f64], b: &[f64], accumulation: Accumulation) -> Sum {
    if accumulation == Accumulation::F32 {
        let Products { sum, magnitude, .. } = Products::of(a, b);
        return Sum { value: sum, magnitude, lost: 0.0 };
    }
    let mut sum = Sum { value: 0.0, magnitude: 0.0, lost: 0.0 };
    let mut steps = Steps::default();
    for (a, b) in a.chunks(STEP).zip(b.chunks(STEP)) {
        let products = Products::of(a, b);
        sum.lost += steps.add(products, accumulation);
        sum.magnitude += products.magnitude;
    }
    sum.value = steps.sum;
    sum
}

/// Products that an fp8 instruction adds at a time.
const STEP: usize = 32;
/// Instructions whose sums are added up in `f32`, if fp8 sums are promoted: 128 products.
const PROMOTED: usize = 4;
/// What an addend loses that is cut off 13 bits below the leading one of the largest.
const CUT: f64 = 1.0 / 8192.0;

/// What is cut off if K is added up in steps.
///
/// In each step 32 products and the sum so far are aligned to the largest of these 33, so that each
/// loses less than 2⁻¹³ of it, and the new sum may lose as much once more. K may have been cut into
/// slices anywhere between two steps: the sum so far is the difference of two sums from the start, so
/// it is at most as large as the range of those.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// The sum from the start.
    sum: f64,
    /// The sums that the present one may have started from.
    starts: [f64; PROMOTED],
    /// What was lost since then.
    losses: [f64; PROMOTED - 1],
}

impl Steps {
    /// Adds the products of one step; what that may lose.
    fn add(&mut self, products: Products, accumulation: Accumulation) -> f64 {
        let lost: f64 = self.losses.iter().sum();
        let before = self.range() + lost;
        self.sum += products.sum;
        let addends = (STEP + 1) as f64 * products.largest.max(before);
        let loss = CUT * (addends + self.range() + lost);
        if accumulation == Accumulation::Fp8Promoted {
            self.starts.rotate_left(1);
            self.starts[PROMOTED - 1] = self.sum;
            self.losses.rotate_left(1);
            self.losses[PROMOTED - 2] = loss;
        } else {
            // Of all starts only the least and the greatest matter.
            self.starts[0] = self.starts[0].min(self.sum);
            self.starts[1] = self.starts[1].max(self.sum);
            self.losses[0] += loss;
        }
        loss
    }

    /// How far the sum is from the start that is farthest.
    fn range(&self) -> f64 {
        self.starts.iter().map(|start| (self.sum - start).abs()).fold(0.0, f64::max)
    }
}

/// How far a kernel's activation of something up to `x` may be from the exact one.
///
/// Both smooth ones are x times the logistic function s of some z: z = x for SiLU, twice the argument of
/// tanh for GELU. Computing z log₂(e) costs at most 8 roundings; the hardware's power of two is off by at most
/// 4 u + 2.4 u |z| of its value; s(z) passes that on times 1 − s; the sum and the division cost at
/// most 5 roundings more. Since |z| (1 − s) s is less than 0.28, all of it is below 16 u x. Where exp(−z)
/// or its reciprocal leaves the normal numbers, the exact value is below 10⁻³⁵.
fn evaluation_error(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None | Activation::Relu => 0.0,
        Activation::GeluTanh | Activation::Silu => {
            16.0 * ElementType::F32.unit_roundoff() * x + 1e-35
        }
    }
}
