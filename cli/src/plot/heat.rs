//! Heat maps: a table whose cells have a colour by their number, with the number in them.
//!
//! Invariant: a column is as wide as the widest text in it; a cell without a number has no colour and says why.

use super::canvas::{Anchor, Canvas, Font, HEADING, MARGIN, escape, shortened};
use super::palette::{Ramp, hex, ink};

const ROW: f64 = 23.0;
const PAD: f64 = 7.0;
/// Between groups of columns.
const GAP: f64 = 22.0;
/// A line of the columns' heads.
const LINE: f64 = 14.0;
/// The longest name of a row, and the widest part of a column's name.
const ROW_NAME: f64 = 330.0;
const COLUMN_NAME: f64 = 110.0;
const BAR: f64 = 260.0;
/// The least width, and the most that the words above widen a picture of few columns to.
const LEAST: f64 = 560.0;
const WORDS: f64 = 820.0;
/// The most that its head widens a group of few columns to.
const GROUP_NAME: f64 = 220.0;

/// A table of rows by groups of columns.
pub struct HeatMap {
    pub title: String,
    pub subtitle: String,
    /// What the colours mean.
    pub legend: String,
    pub ramp: Ramp,
    /// Values that are written at the legend's bar, and how.
    pub ticks: Vec<(f64, String)>,
    pub rows: Vec<String>,
    pub groups: Vec<Columns>,
    /// Below the cells, a line each.
    pub notes: Vec<String>,
    /// What stands in place of the cells where there are none, a line each.
    pub nothing: Vec<String>,
}

/// Columns under one head.
pub struct Columns {
    pub head: String,
    /// Each with a cell for every row; what is missing is [`Cell::Nothing`].
    pub columns: Vec<(String, Vec<Cell>)>,
}

/// What is in a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A number, as it is written, and whether it is the best of its row.
    Value {
        value: f64,
        text: String,
        best: bool,
    },
    /// A word in its place, and what it means.
    Note {
        text: String,
        why: String,
    },
    Nothing,
}

impl Cell {
    fn text(&self) -> &str {
        match self {
            Cell::Value { text, .. } | Cell::Note { text, .. } => text,
            Cell::Nothing => "–",
        }
    }
}

/// A name in lines: broken behind dashes and at spaces.
fn broken(name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for word in name.split(' ').flat_map(|word| word.split_inclusive('-')) {
        lines.push(shortened(Font::Small, word, COLUMN_NAME));
    }
    // No head is higher than this; what is left shares the last line.
    if lines.len() > 4 {
        let rest = lines.split_off(3).concat();
        lines.push(shortened(Font::Small, &rest, COLUMN_NAME));
    }
    lines
}

impl HeatMap {
    /// The picture.
    pub fn to_svg(&self) -> String {
        let mut canvas = Canvas::default();
        let widest = |texts: &mut dyn Iterator<Item = String>| {
            texts.map(|text| Font::Small.width(&text)).fold(0.0, f64::max)
        };
        let names: Vec<_> =
            self.rows.iter().map(|name| shortened(Font::Small, name, ROW_NAME)).collect();
        let left = MARGIN + widest(&mut names.iter().cloned()) + 2.0 * PAD;
        let width_of = |(name, cells): &(String, Vec<Cell>)| {
            let cells = cells.iter().map(|cell| shortened(Font::Small, cell.text(), COLUMN_NAME));
            widest(&mut broken(name).into_iter().chain(cells)).max(30.0) + 2.0 * PAD
        };
        let width_of_group = |group: &Columns| {
            let columns: f64 = group.columns.iter().map(width_of).sum();
            columns.max(Font::Head.width(&group.head).min(GROUP_NAME))
        };
        let groups: f64 = self.groups.iter().map(|group| width_of_group(group) + GAP).sum();
        let is_empty = self.rows.is_empty() || self.groups.is_empty();
        let words = Font::Small.width(&self.legend).max(Font::Body.width(&self.subtitle));
        let words = words.max(widest(&mut self.notes.iter().cloned()));
        let words = words.max(Font::Title.width(&self.title));
        let nothing = self.nothing.iter().filter(|_| is_empty);
        let words = nothing.clone().map(|line| Font::Body.width(line)).fold(words, f64::max);
        let least = LEAST.max(MARGIN + words.min(WORDS));
        let width = (left + groups).max(least) + MARGIN;
        let room = width - 2.0 * MARGIN;
        canvas.heading(width, &self.title, &self.subtitle);
        let top = self.draw_legend(&mut canvas, HEADING + 2.0, room);

        let heads = self.groups.iter().flat_map(|group| &group.columns);
        let lines = heads.map(|(name, _)| broken(name).len()).max().unwrap_or(0);
        let first = top + 24.0 + LINE * lines as f64 + 6.0;
        for (nth, name) in names.iter().enumerate() {
            let y = first + ROW * nth as f64;
            canvas.text((left - PAD, y + ROW / 2.0 + 4.0), Anchor::End, Font::Small, name);
        }
        let mut x = left;
        for group in &self.groups {
            let all = width_of_group(group);
            let head = shortened(Font::Head, &group.head, all);
            canvas.text((x, top + 16.0), Anchor::Start, Font::Head, &head);
            let beyond = x + all + GAP;
            for column in &group.columns {
                let width = width_of(column);
                let (name, cells) = column;
                let parts = broken(name);
                let begin = lines - parts.len();
                for (nth, part) in parts.iter().enumerate() {
                    let y = top + 24.0 + LINE * (begin + nth + 1) as f64 - 3.0;
                    canvas.text((x + width / 2.0, y), Anchor::Middle, Font::Small, part);
                }
                for (nth, row) in self.rows.iter().enumerate() {
                    let place = (x, first + ROW * nth as f64);
                    let told = format!("{row}, {name}");
                    self.draw_cell(
                        &mut canvas,
                        place,
                        width,
                        cells.get(nth).unwrap_or(&Cell::Nothing),
                        &told,
                    );
                }
                x += width;
            }
            x = beyond;
        }
        let mut bottom = first + ROW * self.rows.len() as f64;
        for line in nothing {
            let line = shortened(Font::Body, line, room);
            canvas.text((MARGIN, bottom + 16.0), Anchor::Start, Font::Body, &line);
            bottom += 20.0;
        }
        for note in &self.notes {
            let note = shortened(Font::Small, note, room);
            bottom += 18.0;
            canvas.text((MARGIN, bottom), Anchor::Start, Font::Small, &note);
        }
        canvas.finish((width, bottom + MARGIN), &self.title)
    }

    /// A bar of all colours with numbers below it; returns where it ends.
    fn draw_legend(&self, canvas: &mut Canvas, top: f64, room: f64) -> f64 {
        let text = shortened(Font::Small, &self.legend, room);
        canvas.text((MARGIN, top + 12.0), Anchor::Start, Font::Small, &text);
        let Some((low, high)) = self.ramp.ends().filter(|(low, high)| low < high) else {
            return top + 22.0;
        };
        const STEPS: usize = 65;
        let step = BAR / STEPS as f64;
        // Numbers at the ends stand out by half.
        let left = MARGIN + 24.0;
        for nth in 0..STEPS {
            let value = low + (high - low) * (nth as f64 + 0.5) / STEPS as f64;
            // A little wider, so that no seam shows.
            canvas.element(&format!(
                r#"<rect x="{:.2}" y="{:.1}" width="{:.2}" height="11" fill="{}"/>"#,
                left + step * nth as f64,
                top + 20.0,
                if nth + 1 == STEPS { step } else { step + 0.5 },
                hex(self.ramp.at(value))
            ));
        }
        let mut taken = f64::NEG_INFINITY;
        for (value, text) in &self.ticks {
            let x = left + BAR * ((value - low) / (high - low)).clamp(0.0, 1.0);
            let half = Font::Small.width(text) / 2.0;
            if x - half > taken && half <= 24.0 {
                canvas.text((x, top + 44.0), Anchor::Middle, Font::Small, text);
                taken = x + half + 4.0;
            }
        }
        top + 56.0
    }

    fn draw_cell(
        &self,
        canvas: &mut Canvas,
        (x, y): (f64, f64),
        width: f64,
        cell: &Cell,
        told: &str,
    ) {
        let text = shortened(Font::Small, cell.text(), COLUMN_NAME);
        let (style, fill, told) = match cell {
            Cell::Value { value, .. } => {
                let colour = self.ramp.at(*value);
                (format!(r#"fill="{}""#, hex(colour)), ink(colour), format!("{told}: {text}"))
            }
            Cell::Note { why, .. } => (r#"class="none""#.into(), "", format!("{told}: {why}")),
            Cell::Nothing => (r#"class="none""#.into(), "", told.to_owned()),
        };
        let rect = |inset: f64, style: &str, end: &str| {
            let (x, y) = (x + inset, y + inset);
            let (width, height) = (width - 2.0 * inset, ROW - 2.0 * inset);
            format!(
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" {style}{end}"#
            )
        };
        let told = format!("><title>{}</title></rect>", escape(&told));
        canvas.element(&rect(1.0, &style, &told));
        if let Cell::Value { best: true, .. } = cell {
            // Within the cell, so that it stands out whatever the background.
            let style = format!(r#"class="best" fill="none" stroke="{fill}" stroke-width="1.4""#);
            canvas.element(&rect(2.7, &style, "/>"));
        }
        let middle = (x + width / 2.0, y + ROW / 2.0 + 4.0);
        canvas.text_in(middle, Anchor::Middle, Font::Small, fill, &text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::canvas::read;
    use super::*;

    fn map(rows: &[&str], groups: Vec<Columns>) -> HeatMap {
        HeatMap {
            title: "how much was hidden".into(),
            subtitle: "2 × NVIDIA H200".into(),
            legend: "overlap efficiency".into(),
            ramp: Ramp::of(&[(0.0, [255; 3]), (1.0, [0, 0, 160])]),
            ticks: vec![(0.0, "0 %".into()), (0.02, "too near".into()), (1.0, "100 %".into())],
            rows: rows.iter().map(|row| row.to_string()).collect(),
            groups,
            notes: vec!["a note".into(), "a long one ".repeat(30)],
            nothing: vec!["nothing was measured".into(), "and why".into()],
        }
    }

    fn value(value: f64) -> Cell {
        Cell::Value { value, text: format!("{:.0} %", 100.0 * value), best: value > 0.9 }
    }

    #[test]
    fn cells_say_their_number_and_why_there_is_none() {
        let failed = Cell::Note { text: "FAILED".into(), why: "off by <1>".into() };
        let columns = vec![
            ("fused".into(), vec![value(0.95), value(0.1)]),
            ("torch-native-and-more-and-more".into(), vec![failed]),
        ];
        let group = |head: &str, columns| Columns { head: head.into(), columns };
        let picture = map(
            &["4096×3584×8192 bf16", "64×3584×8192 bf16"],
            vec![group("graph", columns), group("plain", vec![("x NaN".into(), vec![])])],
        )
        .to_svg();
        read::assert_readable(&picture);
        assert!(picture.contains("off by &lt;1&gt;"), "{picture}");
        let labels = read::labels(&picture);
        let count = |text: &str| labels.iter().filter(|label| label.text == text).count();
        // Cells, and for 100 % the legend.
        assert_eq!(["95 %", "10 %", "FAILED", "–", "100 %"].map(count), [1, 1, 1, 3, 1]);
        assert_eq!(["graph", "plain", "torch-", "native-", "x"].map(count), [1; 5]);
        assert_eq!(count("too near"), 0);
        assert_eq!(picture.matches("class=\"best\"").count(), 1, "one is the best");
    }

    #[test]
    fn nothing_is_no_panic() {
        for mut empty in [map(&[], vec![]), map(&["row"], vec![])] {
            read::assert_readable(&empty.to_svg());
            empty.ramp = Ramp::of(&[]);
            let picture = empty.to_svg();
            read::assert_readable(&picture);
            assert!(picture.contains("nothing was measured"));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_drawn_can_be_read(
            rows in prop::collection::vec("[ -~×→]{0,60}", 0..9),
            groups in prop::collection::vec(
                ("[ -~]{0,30}", prop::collection::vec(("[a-zA-Z -]{0,40}", prop::collection::vec(-1e9f64..1e9, 0..9)), 0..6)), 0..4),
        ) {
            let rows: Vec<_> = rows.iter().map(String::as_str).collect();
            let groups = groups.into_iter().map(|(head, columns)| Columns {
                head,
                columns: columns.into_iter().map(|(name, cells)| (name, cells.into_iter().map(value).collect())).collect(),
            });
            read::assert_readable(&map(&rows, groups.collect()).to_svg());
        }
    }
}
