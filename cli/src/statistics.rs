//! Numbers out of repeated measurements.
//!
//! Invariant: no number is made up for an empty list: its figures are `None`.

use serde::Serialize;

/// What a list of times looks like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// A quarter lies below.
    pub lower_quartile: f64,
    /// A quarter lies above.
    pub upper_quartile: f64,
}

impl Summary {
    /// Of all `values`.
    pub fn of(values: &[f64]) -> Option<Summary> {
        Some(Summary {
            median: quantile(values, 0.5)?,
            min: quantile(values, 0.0)?,
            max: quantile(values, 1.0)?,
            lower_quartile: quantile(values, 0.25)?,
            upper_quartile: quantile(values, 0.75)?,
        })
    }

    /// How far the quartiles are apart, as a fraction of the median.
    pub fn spread(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / self.median
    }
}

/// The value that `fraction` of the others lie below, between neighbours if there is none exactly there.
pub fn quantile(values: &[f64], fraction: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = fraction.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// The middle value.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The geometric mean: of ratios, it does not depend on which side is above.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

/// `over[i] / under[i]` for every round i: what drifts from round to round cancels.
pub fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[3.0]).unwrap();
        assert_eq!((one.median, one.min, one.max, one.spread()), (3.0, 3.0, 3.0, 0.0));
        let five = Summary::of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((five.median, five.lower_quartile, five.upper_quartile), (3.0, 2.0, 4.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[2.0, 0.5, 1.0, 8.0]).unwrap() - 8f64.powf(0.25)).abs() < 1e-12);
    }

    #[test]
    fn drift_cancels_in_paired_ratios() {
        // Both slow down by half on the way; the one is always 10 % slower.
        let under = [10.0, 12.0, 15.0];
        for ratio in ratios(&under.map(|time| 1.1 * time), &under) {
            assert!((ratio - 1.1).abs() < 1e-12, "{ratio}");
        }
        // One outlier in one round moves no median.
        assert_eq!(median(&ratios(&[11.0, 99.0, 11.0], &[10.0; 3])), Some(1.1));
        assert!(ratios(&[], &[]).is_empty());
    }
}
