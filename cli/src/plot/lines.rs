//! Lines over logarithmic axes, in panels that share a legend.
//!
//! Invariant: panels lie beside and below each other without touching; each has its own axes around its own numbers,
//! and numbers that have no place on such an axis (zero, below, not finite) are left out.

use std::fmt::Write as _;

use super::canvas::{Anchor, Canvas, Font, HEADING, MARGIN, escape, shortened};
use super::legend;
use super::palette::{DASHES, SLOTS};
use super::scale::{Log, number};

const WIDTH: f64 = 1000.0;
/// Between a panel's left edge and its axis: the numbers.
const NUMBERS: f64 = 58.0;
/// Above a panel's axis: its title and what its axis counts.
const HEAD: f64 = 40.0;
/// Below: the numbers, and what they count.
const FOOT: f64 = 40.0;
const HEIGHT: f64 = 320.0;
/// Between the outermost points and the frame, as factors.
const SIDE: f64 = 1.3;
const ABOVE: f64 = 1.13;
/// Between numbers at an axis.
const APART: f64 = 8.0;

/// A chart; panels that all name the same series.
pub struct LineChart {
    pub title: String,
    pub subtitle: String,
    /// What the axes count.
    pub x: String,
    pub y: String,
    /// What the floor is; every panel may have one.
    pub floor: String,
    /// Below the panels, a line each; what is to be known of what is not drawn.
    pub notes: Vec<String>,
    /// What stands in place of the panels where there are none.
    pub nothing: String,
    pub series: Vec<Series>,
    pub panels: Vec<Panel>,
}

/// What lines of all panels share.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    /// The colour and the mark: below [`SLOTS`], or it begins again.
    pub slot: usize,
    /// Sets apart what shares a colour.
    pub variant: usize,
}

/// Axes with lines.
#[derive(Default)]
pub struct Panel {
    pub title: String,
    /// What nothing can be below, filled.
    pub floor: Vec<(f64, f64)>,
    pub lines: Vec<Line>,
}

/// One line; the points in any order.
pub struct Line {
    /// The place in [`LineChart::series`].
    pub series: usize,
    pub points: Vec<(f64, f64)>,
}

/// Where a panel's axes lie.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl LineChart {
    /// The picture.
    pub fn to_svg(&self) -> String {
        let mut canvas = Canvas::default();
        let room = WIDTH - 2.0 * MARGIN;
        canvas.heading(WIDTH, &self.title, &self.subtitle);

        let with_floor = self.panels.iter().any(|panel| !panel.floor.is_empty());
        let floor = with_floor.then(|| self.floor.clone());
        let names: Vec<String> =
            self.series.iter().map(|series| series.name.clone()).chain(floor).collect();
        let legend = (MARGIN, WIDTH - MARGIN, HEADING);
        let mut y = legend::draw(&mut canvas, legend, &names, |canvas, nth, (x, y)| {
            let ends = [(x - 12.0, y), (x + 12.0, y)];
            match self.series.get(nth) {
                Some(series) => {
                    draw_line(canvas, series, &ends);
                    draw_mark(canvas, series, (x, y), "");
                }
                None => draw_floor(canvas, &ends, y + 6.0),
            }
        });
        y += 10.0;

        let columns = if self.panels.len() > 1 { 2 } else { 1 };
        let width = (room - (columns - 1) as f64 * MARGIN) / columns as f64;
        for row in self.panels.chunks(columns) {
            for (nth, panel) in row.iter().enumerate() {
                let left = MARGIN + nth as f64 * (width + MARGIN);
                let frame = Frame {
                    left: left + NUMBERS,
                    // Half of the last number may stand out.
                    right: left + width - 14.0,
                    top: y + HEAD,
                    bottom: y + HEAD + HEIGHT,
                };
                self.draw_panel(&mut canvas, &frame, panel);
            }
            y += HEAD + HEIGHT + FOOT + MARGIN;
        }
        if self.panels.is_empty() {
            let nothing = shortened(Font::Body, &self.nothing, room);
            canvas.text((MARGIN, y + 16.0), Anchor::Start, Font::Body, &nothing);
            y += 40.0;
        }
        for note in &self.notes {
            let note = shortened(Font::Small, note, room);
            canvas.text((MARGIN, y + 4.0), Anchor::Start, Font::Small, &note);
            y += 18.0;
        }
        canvas.finish((WIDTH, y), &self.title)
    }

    fn draw_panel(&self, canvas: &mut Canvas, frame: &Frame, panel: &Panel) {
        let Frame { left, right, top, bottom } = *frame;
        let room = right - left + NUMBERS;
        let title = shortened(Font::Head, &panel.title, room);
        canvas.text((left - NUMBERS, top - 24.0), Anchor::Start, Font::Head, &title);
        canvas.text(
            (left - NUMBERS, top - 9.0),
            Anchor::Start,
            Font::Small,
            &shortened(Font::Small, &self.y, room),
        );
        canvas.element(&format!(
            r#"<rect class="frame" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            right - left,
            bottom - top
        ));
        let lines = panel
            .lines
            .iter()
            .filter_map(|line| Some((self.series.get(line.series)?, drawable(&line.points))));
        let lines: Vec<_> = lines.filter(|(_, points)| !points.is_empty()).collect();
        let floor = drawable(&panel.floor);
        let all = || lines.iter().flat_map(|(_, points)| points).chain(&floor);
        let x = Log::around(all().map(|&(x, _)| x), SIDE, left, right);
        let y = Log::with_ticks(all().map(|&(_, y)| y), ABOVE, bottom, top);
        let (Some(x), Some(y)) = (x, y) else {
            let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
            canvas.text(middle, Anchor::Middle, Font::Body, "nothing was measured");
            return;
        };
        for tick in y.ticks(9) {
            let place = y.place(tick);
            canvas.line((left, place), (right, place), "grid");
            let text = shortened(Font::Small, &number(tick), NUMBERS - 8.0);
            canvas.text((left - 6.0, place + 4.0), Anchor::End, Font::Small, &text);
        }
        // The numbers that were measured; those that have no room for their text have a line all the same.
        let mut measured: Vec<f64> = all().map(|&(x, _)| x).collect();
        measured.sort_by(f64::total_cmp);
        measured.dedup();
        let mut taken = f64::INFINITY;
        for &tick in measured.iter().rev() {
            let place = x.place(tick);
            canvas.line((place, top), (place, bottom), "grid");
            let text = number(tick);
            let half = Font::Small.width(&text) / 2.0;
            let inside = place + half <= right + 14.0 && place - half >= left - NUMBERS;
            if inside && place + half + APART <= taken {
                canvas.text((place, bottom + 16.0), Anchor::Middle, Font::Small, &text);
                taken = place - half;
            }
        }
        let middle = ((left + right) / 2.0, bottom + 33.0);
        canvas.text(
            middle,
            Anchor::Middle,
            Font::Small,
            &shortened(Font::Small, &self.x, right - left),
        );

        let placed = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().map(|&(m, t)| (x.place(m), y.place(t))).collect()
        };
        draw_floor(canvas, &placed(&floor), bottom);
        // The first of the legend lies on top.
        for (series, points) in lines.iter().rev() {
            draw_line(canvas, series, &placed(points));
        }
        for (series, points) in lines.iter().rev() {
            for (&(at, value), place) in points.iter().zip(placed(points)) {
                let told =
                    format!("{}, {}: {} {}", series.name, number(at), rounded(value), self.y);
                draw_mark(canvas, series, place, &told);
            }
        }
    }
}

/// What has a place on logarithmic axes, from left to right.
fn drawable(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let fits = |value: f64| value.is_finite() && value > 0.0;
    let mut kept: Vec<_> = points.iter().copied().filter(|&(x, y)| fits(x) && fits(y)).collect();
    kept.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    kept
}

fn rounded(value: f64) -> String {
    if value < 1e6 { format!("{value:.1}") } else { format!("{value:.3e}") }
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (nth, (x, y)) in points.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = write!(path, "{}{x:.1} {y:.1}", if nth == 0 { 'M' } else { 'L' });
    }
    path
}

fn draw_line(canvas: &mut Canvas, series: &Series, points: &[(f64, f64)]) {
    if points.len() < 2 {
        return;
    }
    // Whoever comes round to a colour again is a variant of it.
    let variant = series.variant + series.slot / SLOTS;
    let dash = match DASHES[variant % DASHES.len()] {
        "" => String::new(),
        dash => format!(r#" stroke-dasharray="{dash}""#),
    };
    let (slot, path) = (series.slot % SLOTS, path(points));
    canvas.element(&format!(r#"<path class="line s{slot}"{dash} d="{path}"/>"#));
}

/// A line with everything below it filled; of one point, a short one.
fn draw_floor(canvas: &mut Canvas, points: &[(f64, f64)], bottom: f64) {
    let short;
    let points = match *points {
        [(x, y)] => {
            short = [(x - 12.0, y), (x + 12.0, y)];
            &short[..]
        }
        _ => points,
    };
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let line = path(points);
    canvas.element(&format!(
        r#"<path class="floor" d="{line}L{:.1} {bottom:.1}L{:.1} {bottom:.1}Z"/><path class="floorline" d="{line}"/>"#,
        last.0, first.0
    ));
}

/// Each colour has a mark of its own, so that it is not colour alone that tells.
fn draw_mark(canvas: &mut Canvas, series: &Series, (x, y): (f64, f64), told: &str) {
    let corners: &[(f64, f64)] = match series.slot % SLOTS {
        0 => &[],
        1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
        2 => &[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)],
        3 => &[(0.0, 5.5), (5.0, -4.0), (-5.0, -4.0)],
        4 => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
        5 => &[(-5.5, -2.2), (5.5, -2.2), (5.5, 2.2), (-5.5, 2.2)],
        6 => &[(-5.5, 0.0), (4.0, -5.0), (4.0, 5.0)],
        7 => &[(5.5, 0.0), (-4.0, -5.0), (-4.0, 5.0)],
        _ => &[(-2.2, -5.5), (2.2, -5.5), (2.2, 5.5), (-2.2, 5.5)],
    };
    let slot = series.slot % SLOTS;
    let shape = match corners {
        [] => format!(r#"<circle class="mark f{slot}" cx="{x:.1}" cy="{y:.1}" r="4.4""#),
        corners => {
            let corners: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
            format!(r#"<path class="mark f{slot}" d="{}Z""#, path(&corners))
        }
    };
    canvas.element(&match told {
        "" => format!("{shape}/>"),
        told => {
            let end = if corners.is_empty() { "circle" } else { "path" };
            format!("{shape}><title>{}</title></{end}>", escape(told))
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::canvas::read;
    use super::*;

    fn chart(series: usize, panels: Vec<Panel>) -> LineChart {
        let series =
            (0..series).map(|slot| Series { name: format!("series <{slot}>"), slot, variant: 0 });
        LineChart {
            title: "time against M".into(),
            subtitle: "2 × NVIDIA H200".into(),
            x: "M".into(),
            y: "µs a step".into(),
            floor: "T_gemm".into(),
            notes: vec!["without: what is not there".into(), "nor this".into()],
            nothing: "nothing was measured".into(),
            series: series.collect(),
            panels,
        }
    }

    fn panel(lines: &[&[(f64, f64)]]) -> Panel {
        let line =
            |(series, points): (usize, &&[(f64, f64)])| Line { series, points: points.to_vec() };
        let floor = lines.first().map_or(vec![], |points| points.to_vec());
        Panel { title: "N×K".into(), floor, lines: lines.iter().enumerate().map(line).collect() }
    }

    /// The marks of a picture that say what they are.
    fn marks(picture: &str) -> usize {
        picture.matches("</title></").count()
    }

    #[test]
    fn every_point_is_drawn_and_every_name_is_written() {
        let line: Vec<_> = (6..15).map(|power| (2f64.powi(power), 1.7f64.powi(power))).collect();
        let picture = chart(12, vec![panel(&[&line, &line[2..4]]), panel(&[&line[..1]])]).to_svg();
        read::assert_readable(&picture);
        assert_eq!(marks(&picture), 9 + 2 + 1);
        assert_eq!(picture.matches(r#"class="floor""#).count(), 3, "two panels and the legend");
        let labels = read::labels(&picture);
        let named = |text: &str| labels.iter().any(|label| label.text == text);
        for slot in 0..12 {
            assert!(named(&format!("series <{slot}>")), "{labels:?}");
        }
        assert!(named("without: what is not there") && named("nor this"), "{labels:?}");
        assert!(named("T_gemm") && named("64") && named("16384") && named("20"), "{labels:?}");
    }

    #[test]
    fn nothing_and_what_cannot_be_drawn_is_no_panic() {
        let none: &[(f64, f64)] = &[];
        let bad: &[_] = &[(0.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)];
        for (panels, drawn) in
            [(vec![], 0), (vec![panel(&[none])], 0), (vec![panel(&[bad, &[(1.0, 1.0)]])], 1)]
        {
            let picture = chart(2, panels).to_svg();
            read::assert_readable(&picture);
            assert_eq!(marks(&picture), drawn);
            assert_eq!(picture.contains("nothing was measured"), drawn == 0);
        }
        let lost = Line { series: 7, points: vec![(1.0, 1.0)] };
        let picture = chart(1, vec![Panel { lines: vec![lost], ..Panel::default() }]).to_svg();
        assert_eq!(marks(&picture), 0, "nobody is the seventh");
    }

    proptest! {
        #[test]
        fn whatever_is_drawn_can_be_read(
            panels in prop::collection::vec(
                prop::collection::vec(prop::collection::vec((1u32..2_000_000, 1e-3f64..1e9), 0..20), 0..4), 0..5),
            names in prop::collection::vec("[ -~×→]{0,90}", 0..14),
        ) {
            let to_panel = |lines: &Vec<Vec<(u32, f64)>>| Panel {
                title: names.concat(),
                floor: vec![],
                lines: lines.iter().enumerate().map(|(series, points)| Line {
                    series,
                    points: points.iter().map(|&(x, y)| (f64::from(x), y)).collect(),
                }).collect(),
            };
            let mut chart = chart(0, panels.iter().map(to_panel).collect());
            chart.title = names.concat();
            chart.series =
                names.iter().enumerate().map(|(slot, name)| Series { name: name.clone(), slot, variant: slot }).collect();
            read::assert_readable(&chart.to_svg());
        }
    }
}
