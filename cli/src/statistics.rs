//! Numbers out of repeated measurements.
//!
//! Invariant: no number is made up for an empty list: its figures are `None`.

/// The value that `fraction` of the others lie below, between neighbours if there is none exactly there.
fn quantile(values: &[f64], fraction: f64) -> Option<f64> {
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

/// How far the quartiles are apart, as a fraction of the median.
pub fn spread(values: &[f64]) -> Option<f64> {
    Some((quantile(values, 0.75)? - quantile(values, 0.25)?) / median(values)?)
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
        assert_eq!((median(&[]), spread(&[])), (None, None));
        assert_eq!((median(&[3.0]), spread(&[3.0])), (Some(3.0), Some(0.0)));
        assert_eq!([0.0, 1.0].map(|end| quantile(&[3.0], end)), [Some(3.0); 2]);
        let five = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!([0.25, 0.75].map(|part| quantile(&five, part)), [Some(2.0), Some(4.0)]);
        assert_eq!((median(&five), spread(&five)), (Some(3.0), Some(2.0 / 3.0)));
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
