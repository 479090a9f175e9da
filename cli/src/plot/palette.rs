//! Colours: of series, told apart by people who see colours otherwise, too, and of cells.
//!
//! Invariant: a series stands out from the background, light or dark, by a contrast of 3 at least (WCAG's for graphics),
//! and text in a cell from the cell by 4.5.

/// How many series have a colour of their own.
pub const SLOTS: usize = 9;

/// Okabe and Ito's colours and some between, darkened until they stand out from white.
pub const LIGHT: [&str; SLOTS] = [
    "#0066b3", "#2e8fc0", "#00875f", "#8a8500", "#7a5195", "#d1450b", "#c2569a", "#b87500",
    "#767676",
];

/// The same, lightened for a dark background.
pub const DARK: [&str; SLOTS] = [
    "#4ba3e3", "#8fd0f5", "#22b88a", "#bcd435", "#b493d6", "#ff7a45", "#e88cc4", "#f0ad3a",
    "#a3a3a3",
];

/// Dashes of those that share a colour: the first has none.
pub const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

/// Colours between given ones.
#[derive(Clone, Debug)]
pub struct Ramp {
    /// Values in rising order, and their colours.
    stops: Vec<(f64, [u8; 3])>,
}

impl Ramp {
    /// From these stops.
    pub fn of(stops: &[(f64, [u8; 3])]) -> Ramp {
        let mut stops = stops.to_vec();
        stops.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Ramp { stops }
    }

    /// The first and the last value.
    pub fn ends(&self) -> Option<(f64, f64)> {
        Some((self.stops.first()?.0, self.stops.last()?.0))
    }

    /// The colour of a value; beyond the ends that of the end.
    pub fn at(&self, value: f64) -> [u8; 3] {
        let upper = self.stops.iter().position(|&(stop, _)| stop >= value);
        match upper {
            Some(0) => self.stops[0].1,
            Some(nth) => {
                let ((low, from), (high, to)) = (self.stops[nth - 1], self.stops[nth]);
                let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
                std::array::from_fn(|i| {
                    (f64::from(from[i]) + part * (f64::from(to[i]) - f64::from(from[i]))).round()
                        as u8
                })
            }
            None => self.stops.last().map_or([128; 3], |&(_, colour)| colour),
        }
    }
}

/// `#0066b3`.
pub fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Black or white, whichever can be read on it.
pub fn ink(colour: [u8; 3]) -> &'static str {
    let light = luminance(colour);
    if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) { "#000000" } else { "#ffffff" }
}

/// As WCAG has it.
fn luminance(colour: [u8; 3]) -> f64 {
    let [red, green, blue] = colour.map(|part| {
        let part = f64::from(part) / 255.0;
        if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour(text: &str) -> [u8; 3] {
        std::array::from_fn(|i| u8::from_str_radix(&text[1 + 2 * i..3 + 2 * i], 16).unwrap())
    }

    fn contrast(one: [u8; 3], other: [u8; 3]) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        if one > other { one / other } else { other / one }
    }

    #[test]
    fn series_stand_out_from_their_background() {
        for (colours, back) in [(LIGHT, "#ffffff"), (DARK, "#16181c")] {
            for text in colours {
                let contrast = contrast(colour(text), colour(back));
                assert!(contrast >= 3.0, "{text} on {back}: {contrast:.2}");
            }
        }
    }

    #[test]
    fn no_two_series_look_alike() {
        for colours in [LIGHT, DARK] {
            for (nth, one) in colours.iter().enumerate() {
                for other in &colours[..nth] {
                    let [a, b] = [one, other].map(|text| colour(text));
                    let apart: f64 =
                        (0..3).map(|i| (f64::from(a[i]) - f64::from(b[i])).powi(2)).sum();
                    assert!(apart.sqrt() > 45.0, "{one} and {other}: {:.0}", apart.sqrt());
                }
            }
        }
    }

    #[test]
    fn ramps_go_from_stop_to_stop_and_can_be_written_on() {
        let ramp = Ramp::of(&[(1.0, [0, 0, 200]), (0.0, [100, 0, 0]), (-1.0, [200; 3])]);
        assert_eq!(ramp.ends(), Some((-1.0, 1.0)));
        assert_eq!(
            [ramp.at(-9.0), ramp.at(0.5), ramp.at(7.0)],
            [[200; 3], [50, 0, 100], [0, 0, 200]]
        );
        assert_eq!(ramp.at(f64::NAN), [0, 0, 200], "no panic");
        assert_eq!(Ramp::of(&[]).at(0.0), [128; 3]);
        for red in 0..=255 {
            for green in (0..=255).step_by(5) {
                let cell = [red, green, 128];
                let contrast = contrast(cell, colour(ink(cell)));
                assert!(contrast >= 4.5, "{cell:?}: {contrast:.2}");
            }
        }
    }
}
