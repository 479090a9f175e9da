//! A legend: samples and names that flow from left to right, line by line.
//!
//! Invariant: no entry is wider than the picture; names too long for that are cut off.

use super::canvas::{Anchor, Canvas, Font, shortened};

/// The room of a sample.
pub const SAMPLE: f64 = 30.0;
const LINE: f64 = 19.0;
const GAP: f64 = 18.0;

/// Draws one entry for each name between `left` and `right`, the first at `top`; `sample` draws what is left of a
/// name, around the point that it is given. Returns where the legend ends.
pub fn draw(
    canvas: &mut Canvas,
    (left, right, top): (f64, f64, f64),
    names: &[String],
    mut sample: impl FnMut(&mut Canvas, usize, (f64, f64)),
) -> f64 {
    let (mut x, mut y) = (left, top);
    for (nth, name) in names.iter().enumerate() {
        let name = shortened(Font::Small, name, right - left - SAMPLE);
        let width = SAMPLE + Font::Small.width(&name);
        if x > left && x + width > right {
            (x, y) = (left, y + LINE);
        }
        sample(canvas, nth, (x + (SAMPLE - 6.0) / 2.0, y + LINE / 2.0));
        canvas.text((x + SAMPLE, y + LINE / 2.0 + 4.0), Anchor::Start, Font::Small, &name);
        x += width + GAP;
    }
    if names.is_empty() { top } else { y + LINE }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::read;
    use super::*;

    #[test]
    fn entries_flow_and_are_cut_off() {
        let names: Vec<_> = [3, 90, 20, 1, 44].iter().map(|&n| "name ".repeat(n)).collect();
        let mut canvas = Canvas::default();
        let mut samples = Vec::new();
        let end =
            draw(&mut canvas, (10.0, 390.0, 5.0), &names, |_, nth, (_, y)| samples.push((nth, y)));
        read::assert_readable(&canvas.finish((400.0, end), "a legend"));
        assert_eq!(samples.len(), 5);
        assert!(samples.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{samples:?}");
        assert!(end > 5.0 + 3.0 * LINE, "{end}");
        assert_eq!(draw(&mut Canvas::default(), (0.0, 9.0, 7.0), &[], |_, _, _| {}), 7.0);
    }
}
