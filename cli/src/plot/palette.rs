//! Colours of series, told apart by people who see colours otherwise, too.
//!
//! Invariant: a series stands out from the background, light or dark, by a contrast of 3 at least (WCAG's for graphics).

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

#[cfg(test)]
mod tests {
    use super::*;

    fn colour(text: &str) -> [u8; 3] {
        std::array::from_fn(|i| u8::from_str_radix(&text[1 + 2 * i..3 + 2 * i], 16).unwrap())
    }

    /// As WCAG has it.
    fn luminance(colour: [u8; 3]) -> f64 {
        let [red, green, blue] = colour.map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue
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
}
