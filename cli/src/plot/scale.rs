//! Logarithmic axes: where a number is, and which numbers are written at the axis.
//!
//! Invariant: a scale that exists has a span, and all that it was made of and can be drawn lies within.

use std::ops::RangeInclusive;

/// A logarithmic axis from one place to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// Ticks are these times a power of ten.
const ROUND: [f64; 3] = [1.0, 2.0, 5.0];

impl Log {
    /// Around all values, with a margin of that factor. `None` if none can be drawn.
    pub fn around(
        values: impl IntoIterator<Item = f64>,
        margin: f64,
        from: f64,
        to: f64,
    ) -> Option<Log> {
        let (least, most) = extent(values)?;
        Some(Log { low: least / margin, high: most * margin, from, to })
    }

    /// The same, but wide enough for two round numbers.
    pub fn with_ticks(
        values: impl IntoIterator<Item = f64>,
        margin: f64,
        from: f64,
        to: f64,
    ) -> Option<Log> {
        let Log { low, high, .. } = Log::around(values, margin, from, to)?;
        let (below, above) = (rounds(low / 10.0, low).pop(), rounds(high, high * 10.0));
        let (below, above) = (below.unwrap_or(low), above.first().copied().unwrap_or(high));
        let (low, high) = match rounds(low, high).len() {
            0 => (below, above),
            // The nearer neighbour will do.
            1 if low / below < above / high => (below, high),
            1 => (low, above),
            _ => (low, high),
        };
        Some(Log { low, high, from, to })
    }

    /// Where a value is.
    pub fn place(&self, value: f64) -> f64 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round numbers, at most so many, and never fewer than two if there are two.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let all = rounds(self.low, self.high);
        if all.len() <= most.max(2) {
            return all;
        }
        let powers: Vec<f64> = all.iter().copied().filter(|&tick| is_power(tick)).collect();
        match powers.len() {
            0 | 1 => [all.first(), all.last()].into_iter().flatten().copied().collect(),
            _ => powers.iter().copied().step_by(powers.len().div_ceil(most.max(2))).collect(),
        }
    }
}

fn is_power(tick: f64) -> bool {
    (tick.log10() - tick.log10().round()).abs() < 1e-6
}

/// What can be drawn: room for margins on both sides, and no more powers of ten than anybody can wait for.
const DRAWN: RangeInclusive<f64> = 1e-100..=1e100;

/// The least and the largest of what can be drawn.
fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut drawn = values.into_iter().filter(|value| DRAWN.contains(value));
    let first = drawn.next()?;
    Some(drawn.fold((first, first), |(least, most), value| (least.min(value), most.max(value))))
}

/// All round numbers between two, both included.
fn rounds(low: f64, high: f64) -> Vec<f64> {
    let slack = 1e-9;
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| ROUND.map(|round| round * 10f64.powi(power)));
    all.filter(|tick| *tick >= low * (1.0 - slack) && *tick <= high * (1.0 + slack)).collect()
}

/// A number at an axis: no more digits than it has.
pub fn number(value: f64) -> String {
    if value.fract().abs() < 1e-9 || value >= 100.0 {
        format!("{value:.0}")
    } else {
        let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
        let text = format!("{value:.digits$}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn axes_have_two_round_numbers_at_least() {
        let scale = Log::with_ticks([18.4, 1554.0], 1.1, 300.0, 0.0).unwrap();
        assert_eq!((scale.place(18.4 / 1.1), scale.place(1554.0 * 1.1)), (300.0, 0.0));
        assert_eq!(scale.ticks(9), [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(scale.ticks(4), [100.0, 1000.0]);
        let ticks =
            |values: &[f64]| Log::with_ticks(values.to_vec(), 1.1, 0.0, 1.0).unwrap().ticks(9);
        assert_eq!(ticks(&[100.0]), [100.0, 200.0]);
        assert_eq!(ticks(&[300.0, 310.0]), [200.0, 500.0]);
        assert_eq!(ticks(&[110.0, 480.0]), [100.0, 200.0, 500.0]);
        let beyond = vec![5e-324, f64::MIN_POSITIVE, 1.7e308];
        for none in [vec![], vec![0.0], vec![-1.0, f64::NAN, f64::INFINITY], beyond] {
            assert_eq!(Log::with_ticks(none.clone(), 1.1, 0.0, 1.0), None);
            assert_eq!(Log::around(none, 1.1, 0.0, 1.0), None);
        }
    }

    #[test]
    fn numbers_have_no_more_digits_than_they_need() {
        let texts = [2.0, 0.5, 20000.0, 0.01, 12.5, 1234.5].map(number);
        assert_eq!(texts, ["2", "0.5", "20000", "0.01", "12.5", "1234"]);
    }

    proptest! {
        #[test]
        fn everything_lies_within_and_has_ticks(values in prop::collection::vec(1e-6f64..1e12, 1..9)) {
            let (plain, ticked) =
                (Log::around(values.clone(), 1.2, 10.0, 90.0), Log::with_ticks(values.clone(), 1.2, 10.0, 90.0));
            for scale in [plain, ticked] {
                let scale = scale.expect("positive values");
                prop_assert!(scale.low < scale.high);
                for &value in &values {
                    prop_assert!(scale.low < value && value < scale.high);
                    prop_assert!((10.0..=90.0).contains(&scale.place(value)));
                }
                let ticks = scale.ticks(8);
                prop_assert!(ticks.len() <= 8);
                prop_assert!(ticks.windows(2).all(|pair| scale.place(pair[0]) < scale.place(pair[1])));
            }
            prop_assert!(ticked.expect("positive values").ticks(8).len() >= 2);
        }
    }
}
