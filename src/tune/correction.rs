//! How far off the cost model is near some problem: what was measured there, over what it had predicted.
//!
//! What belongs here: arithmetic over residuals. Invariant: nothing measured, no correction.
//!
//! The model's error is not noise: it is much the same for the same kernel, or the same way of moving rows, at sizes that
//! are near one another. So it is taken for a smooth function, of which each measurement is one value (a Gaussian
//! process, "kriging"). How much two candidates have in common says how much the error of one tells of
//! the other's; how scattered measurements are says how much any of them is believed. What was never tried is
//! corrected little and known badly, and [`Corrected::doubt`] says so.

use super::candidates::Candidate;
use super::entry::{Gathering, Mover, Place};

/// How far the model is off for a kernel, for a number of unit rows that sweep together, for a way of moving rows, and for
/// its kind: standard deviations, as parts of the time.
const KERNEL: f64 = 0.05;
const SWEEP: f64 = 0.01;
const WAY: f64 = 0.02;
const KIND: f64 = 0.025;
/// What all candidates of one problem have in common, clocks say: it says nothing of other problems.
const PROBLEM: f64 = 0.1;
/// Doublings of a side after which an error is another one.
const LENGTH: f64 = 1.0;
/// How far measurements are off: those of all rounds, and those of who was dropped early.
const NOISE: f64 = 0.015;
const NOISE_EARLY: f64 = 0.1;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// Which problem it is of, counted.
    pub(super) problem: usize,
    pub(super) place: Place,
    pub(super) what: Candidate<'a>,
    /// The logarithm of what was measured over what was predicted.
    pub(super) residual: f64,
    /// Measured in all rounds.
    pub(super) is_final: bool,
}

/// What a candidate's prediction is to be multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Corrected {
    /// The logarithm of the factor.
    pub(super) by: f64,
    /// How uncertain that is: a standard deviation.
    pub(super) doubt: f64,
}

/// What some measurements tell of others.
#[derive(Debug)]
pub(super) struct Correction<'a> {
    seen: Vec<Seen<'a>>,
    /// The lower triangle L, row by row: L·Lᵀ is how measurements vary together.
    lower: Vec<Vec<f64>>,
    /// Its inverse applied to the residuals.
    weights: Vec<f64>,
}

impl<'a> Correction<'a> {
    pub(super) fn of(seen: Vec<Seen<'a>>) -> Self {
        let lower = triangle(&seen);
        let residuals: Vec<f64> = seen.iter().map(|one| one.residual).collect();
        let weights = backward(&lower, forward(&lower, &residuals));
        Correction { seen, lower, weights }
    }

    /// For a candidate of a problem that is none of those measured.
    pub(super) fn at(&self, place: Place, what: Candidate<'_>) -> Corrected {
        let common = |one: &Seen<'_>| in_common((place, what), (one.place, one.what));
        let common: Vec<f64> = self.seen.iter().map(common).collect();
        let by = common.iter().zip(&self.weights).map(|(common, weight)| common * weight).sum();
        let known: f64 = forward(&self.lower, &common).iter().map(|part| part * part).sum();
        let before = in_common((place, what), (place, what));
        Corrected { by, doubt: (before - known).max(0.0).sqrt() }
    }
}

/// How the errors of two candidates vary together.
fn in_common((here, one): (Place, Candidate<'_>), (there, other): (Place, Candidate<'_>)) -> f64 {
    let kind = |way: Gathering| (way.order, matches!(way.mover, Mover::Kernel { .. }));
    let (a, b) = (one.multiplying, other.multiplying);
    let mut sum = 0.0;
    if kind(one.gathering) == kind(other.gathering) {
        sum += KIND * KIND;
    }
    if one.gathering == other.gathering {
        sum += WAY * WAY;
    }
    if (&a.kernel, a.splits) == (&b.kernel, b.splits) {
        sum += KERNEL * KERNEL;
        if a.swizzle == b.swizzle {
            sum += SWEEP * SWEEP;
        }
    }
    let distance = here.distance(there) / LENGTH;
    sum * (-0.5 * distance * distance).exp()
}

/// The triangle of how all that was seen varies together (Cholesky's decomposition).
fn triangle(seen: &[Seen<'_>]) -> Vec<Vec<f64>> {
    let mut lower: Vec<Vec<f64>> = Vec::with_capacity(seen.len());
    for (i, one) in seen.iter().enumerate() {
        let mut row = Vec::with_capacity(i + 1);
        for (j, other) in seen[..=i].iter().enumerate() {
            let mut left = in_common((one.place, one.what), (other.place, other.what));
            if one.problem == other.problem {
                left += PROBLEM * PROBLEM;
            }
            if i == j {
                let noise = if one.is_final { NOISE } else { NOISE_EARLY };
                left += noise * noise;
            }
            let before = if i == j { &row } else { &lower[j] };
            left -= row.iter().zip(before).map(|(a, b): (&f64, &f64)| a * b).sum::<f64>();
            // Above zero on the diagonal, for there is noise in every measurement.
            row.push(if i == j { left.max(f64::MIN_POSITIVE).sqrt() } else { left / lower[j][j] });
        }
        lower.push(row);
    }
    lower
}

/// x of L·x = `right`.
fn forward(lower: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(right.len());
    for (row, right) in lower.iter().zip(right) {
        let known: f64 = row.iter().zip(&solved).map(|(a, b)| a * b).sum();
        solved.push((right - known) / row[solved.len()]);
    }
    solved
}

/// x of Lᵀ·x = `right`.
fn backward(lower: &[Vec<f64>], mut right: Vec<f64>) -> Vec<f64> {
    for i in (0..right.len()).rev() {
        right[i] /= lower[i][i];
        for j in 0..i {
            right[j] -= lower[i][j] * right[i];
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::Shape;
    use super::super::made_up::{gathering, multiplying};
    use super::*;

    fn place(m: u32) -> Place {
        Place { shape: Shape { m, n: 3584, k: 8192 }, ranks: 2 }
    }

    #[test]
    fn what_a_kernel_takes_longer_next_door_it_takes_longer_here() {
        let (slow, quick) = (multiplying("slow", 128, 128), multiplying("quick", 128, 128));
        let seen = |problem, m, multiplying, residual| Seen {
            problem,
            place: place(m),
            what: Candidate { gathering: gathering(1, 1), multiplying },
            residual,
            is_final: true,
        };
        let correction = Correction::of(vec![
            seen(0, 4096, &slow, 0.05),
            seen(0, 4096, &quick, -0.05),
            seen(1, 2048, &slow, 0.25),
            seen(1, 2048, &quick, 0.15),
        ]);
        let at = |m, multiplying| {
            correction.at(place(m), Candidate { gathering: gathering(1, 1), multiplying })
        };
        // Ten per cent apart at both; what both are off at one of them says nothing.
        let apart = at(3000, &slow).by - at(3000, &quick).by;
        assert!((0.07..0.11).contains(&apart), "{apart}");
        assert!(at(3000, &slow).by.abs() < 0.1, "{:?}", at(3000, &slow));
        // Far away, it is as if nothing had been seen.
        let (near, far) = (at(3000, &slow), at(65536, &slow));
        assert!(
            far.by.abs() < 1e-3 && far.doubt > 0.035 && near.doubt < 0.75 * far.doubt,
            "{near:?} {far:?}"
        );
        // A kernel that was never tried has the ways' correction alone, and is doubted.
        let never = multiplying("never", 128, 128);
        assert!(at(3000, &never).doubt > 0.03 && at(3000, &never).by.abs() < 0.05);
    }

    #[test]
    fn who_was_dropped_early_is_hardly_believed() {
        let (one, other) = (multiplying("one", 128, 128), multiplying("other", 128, 128));
        let by = |is_final| {
            let seen = |multiplying, residual| Seen {
                problem: 0,
                place: place(4096),
                what: Candidate { gathering: gathering(1, 1), multiplying },
                residual,
                is_final,
            };
            let correction = Correction::of(vec![seen(&one, 0.1), seen(&other, -0.1)]);
            correction
                .at(place(4096), Candidate { gathering: gathering(1, 1), multiplying: &one })
                .by
        };
        assert!(by(true) > 0.08 && by(false) < 0.03, "{} {}", by(true), by(false));
    }

    proptest! {
        #[test]
        fn the_triangle_is_one(
            seen in prop::collection::vec(
                (0usize..3, 6u32..15, 0u32..3, 1u32..3, -0.3f64..0.3, any::<bool>()), 0..40,
            ),
        ) {
            let kernels = ["a", "b", "c"].map(|name| multiplying(name, 128, 128));
            let all: Vec<_> = seen.iter().map(|&(kernel, m, problem, pieces, residual, is_final)| {
                let what = Candidate { gathering: gathering(1, pieces), multiplying: &kernels[kernel] };
                Seen { problem: problem as usize, place: place(1 << m), what, residual, is_final }
            }).collect();
            let correction = Correction::of(all.clone());
            let weights = correction.weights.iter();
            let carried: f64 = all.iter().zip(weights).map(|(one, weight)| one.residual * weight).sum();
            prop_assert!(carried >= -1e-9, "{carried}");
            let carried = carried.max(0.0);
            for one in &all {
                let Corrected { by, doubt } = correction.at(one.place, one.what);
                // No farther than what was seen can carry it (Cauchy and Schwarz), and known no worse than before.
                let own = in_common((one.place, one.what), (one.place, one.what));
                let most = (own * carried).sqrt();
                prop_assert!(by.abs() <= most + 1e-9, "{by}, at most {most}");
                prop_assert!((0.0..0.061).contains(&doubt), "{doubt}");
            }
            // L · Lᵀ · weights are the residuals.
            let lower = &correction.lower;
            let upper: Vec<f64> = (0..all.len())
                .map(|i| (i..all.len()).map(|j| lower[j][i] * correction.weights[j]).sum())
                .collect();
            for (row, one) in lower.iter().zip(&all) {
                let back: f64 = row.iter().zip(&upper).map(|(a, b)| a * b).sum();
                prop_assert!((back - one.residual).abs() < 1e-6, "{back} {}", one.residual);
            }
        }
    }
}
