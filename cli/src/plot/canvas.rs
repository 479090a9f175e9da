//! An SVG that is being drawn: elements, text whose width is known in advance, and the style of all plots.
//!
//! Invariant: text is escaped here and nowhere else, and control characters do not get through.

use std::fmt::Write as _;

use super::palette;

/// Where text begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// What text is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Font {
    Title,
    Head,
    Body,
    Small,
}

impl Font {
    /// Its size in pixels.
    pub const fn size(self) -> f64 {
        match self {
            Font::Title => 16.0,
            Font::Head => 13.0,
            Font::Body => 12.0,
            Font::Small => 11.0,
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Font::Title => "title",
            Font::Head => "head",
            Font::Body => "body",
            Font::Small => "small",
        }
    }

    /// How wide text is in it, rather too wide than too narrow: as in DejaVu Sans, which is among the widest.
    pub fn width(self, text: &str) -> f64 {
        self.of_ems(text.chars().map(em).sum())
    }

    fn of_ems(self, ems: f64) -> f64 {
        let bold = if matches!(self, Font::Title | Font::Head) { 1.12 } else { 1.0 };
        ems * self.size() * bold
    }
}

/// The width of a character, in units of the font's size.
fn em(c: char) -> f64 {
    match c {
        ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | 'i' | 'j' | 'l' | 'I' => 0.34,
        '-' | '(' | ')' | '[' | ']' | '/' | 't' | 'f' | 'r' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 1.0,
        '×' | '÷' | '+' | '=' | '<' | '>' | '−' | '~' => 0.84,
        'A'..='Z' | '→' | '&' => 0.8,
        'a'..='z' | '0'..='9' | 'µ' | '_' | '–' => 0.64,
        _ => 1.0,
    }
}

/// Text as SVG has it.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML has no way to write these.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// The beginning of a text, as much as there is room for.
pub fn shortened(font: Font, text: &str, room: f64) -> String {
    if font.width(text) <= room {
        return text.to_owned();
    }
    let (end, mut ems) = (font.width("…"), 0.0);
    let fits = |c: &char| {
        ems += em(*c);
        font.of_ems(ems) + end <= room
    };
    text.chars().take_while(fits).collect::<String>() + "…"
}

/// Around everything.
pub const MARGIN: f64 = 16.0;
/// Where a heading ends.
pub const HEADING: f64 = 56.0;

/// The picture so far.
#[derive(Default)]
pub struct Canvas {
    body: String,
}

impl Canvas {
    /// Any element; what is in it has been escaped.
    pub fn element(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// What a picture of that width shows, and of whom, above everything else: down to [`HEADING`].
    pub fn heading(&mut self, width: f64, title: &str, subtitle: &str) {
        for (font, baseline, text) in [(Font::Title, 28.0, title), (Font::Body, 47.0, subtitle)] {
            let text = shortened(font, text, width - 2.0 * MARGIN);
            self.text((MARGIN, baseline), Anchor::Start, font, &text);
        }
    }

    /// Text that begins, is centred or ends at `x`, its baseline at `y`.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, font: Font, text: &str) {
        let class = font.class();
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        let text = escape(text);
        self.element(&format!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}"{anchor}>{text}</text>"#
        ));
    }

    /// A straight line of that class.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.element(&format!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// All of it as a file of that size; `name` is what it is called for those who do not see it.
    pub fn finish(self, (width, height): (f64, f64), name: &str) -> String {
        let mut picture = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(
            picture,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-labelledby="name"><title id="name">{}</title><style>{}</style><rect class="back" width="{width:.0}" height="{height:.0}"/>"#,
            escape(name),
            style()
        );
        picture + &self.body + "</svg>\n"
    }
}

/// One style for light and for dark surroundings; the picture brings its own background.
fn style() -> String {
    let mut style = String::from(
        "text{font-family:system-ui,\"Segoe UI\",\"DejaVu Sans\",sans-serif;fill:#24292f}\
         .title{font-size:16px;font-weight:600}.head{font-size:13px;font-weight:600}\
         .body{font-size:12px}.small{font-size:11px}.back{fill:#fff}\
         .grid{stroke:#888;stroke-opacity:.28}.frame{fill:none;stroke:#888}\
         .line{fill:none;stroke-width:2;stroke-linejoin:round}.floor{fill:#888;fill-opacity:.2}\
         .floorline{fill:none;stroke:#6a6a6a;stroke-width:2}.mark{stroke-width:1;stroke:#fff}",
    );
    let mut dark = String::from(
        "text{fill:#e4e7eb}.back{fill:#16181c}.mark{stroke:#16181c}.floorline{stroke:#a8a8a8}",
    );
    for (slot, (light, night)) in palette::LIGHT.iter().zip(palette::DARK).enumerate() {
        let _ = write!(style, ".s{slot}{{stroke:{light}}}.f{slot}{{fill:{light}}}");
        let _ = write!(dark, ".s{slot}{{stroke:{night}}}.f{slot}{{fill:{night}}}");
    }
    format!("{style}@media(prefers-color-scheme:dark){{{dark}}}")
}

/// Reads pictures back, for the tests of whoever draws them.
#[cfg(test)]
pub mod read {
    use super::*;

    /// Where a label is: left, top, right, bottom; and what it says.
    #[derive(Clone, Debug)]
    pub struct Label {
        pub text: String,
        pub place: [f64; 4],
    }

    /// The value of an attribute.
    pub fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
        let (_, rest) = element.split_once(&format!(" {name}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    }

    pub fn number(element: &str, name: &str) -> f64 {
        let value = attribute(element, name).unwrap_or_else(|| panic!("no {name} in {element}"));
        value.parse().unwrap_or_else(|_| panic!("{name} of {element}"))
    }

    pub fn size(picture: &str) -> (f64, f64) {
        let head = picture.split_once('>').unwrap().0;
        (number(head, "width"), number(head, "height"))
    }

    /// All that is written, from the picture alone.
    pub fn labels(picture: &str) -> Vec<Label> {
        let label = |part: &str| {
            let (element, rest) = part.split_once('>').unwrap();
            let text = rest.split_once("</text>").unwrap().0;
            let text = text.replace("&lt;", "<").replace("&gt;", ">");
            let text = text.replace("&quot;", "\"").replace("&amp;", "&");
            let font = match attribute(element, "class").unwrap() {
                "title" => Font::Title,
                "head" => Font::Head,
                "small" => Font::Small,
                _ => Font::Body,
            };
            let (width, x, y) = (font.width(&text), number(element, "x"), number(element, "y"));
            let left = match attribute(element, "text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            let (top, bottom) = (y - 0.8 * font.size(), y + 0.25 * font.size());
            Label { text, place: [left, top, left + width, bottom] }
        };
        picture.split("<text").skip(1).map(label).collect()
    }

    /// Fails unless everything is where it can be read.
    #[track_caller]
    pub fn assert_readable(picture: &str) {
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        // Numbers are in attributes; a name may contain anything.
        let mut attributes = picture.split('"').skip(1).step_by(2);
        let is_number = |value: &str| !value.contains("NaN") && !value.contains("inf");
        assert!(attributes.all(is_number), "{picture}");
        let ((width, height), labels) = (size(picture), labels(picture));
        for (nth, label) in labels.iter().enumerate() {
            let [left, top, right, bottom] = label.place;
            let inside = left >= 0.0 && top >= 0.0 && right <= width && bottom <= height;
            assert!(inside, "outside of {width}×{height}: {label:?}");
            for other in &labels[..nth] {
                let [l, t, r, b] = other.place;
                let apart = right <= l || r <= left || bottom <= t || b <= top;
                assert!(apart, "{label:?} overlaps {other:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_text() {
        let mut canvas = Canvas::default();
        let evil = "</text><script>alert(\"1\")</script>&\u{0}\u{1b}";
        canvas.text((5.0, 20.0), Anchor::Start, Font::Body, evil);
        let picture = canvas.finish((900.0, 30.0), evil);
        assert!(
            !picture.contains("<script") && !picture.contains(['\u{0}', '\u{1b}']),
            "{picture}"
        );
        assert_eq!(picture.matches("&lt;script&gt;").count(), 2);
        read::assert_readable(&picture);
    }

    #[test]
    fn text_is_shortened_to_its_room() {
        let font = Font::Small;
        assert_eq!(shortened(font, "short", 100.0), "short");
        let cut = shortened(font, "much too long for so little room", 60.0);
        assert!(cut.ends_with('…') && cut.len() > 4 && font.width(&cut) <= 60.0, "{cut}");
        assert_eq!(shortened(font, "no", 0.0), "…");
        // Were it measured again for each character that is left out, this would take hours.
        let long = "a name ".repeat(1 << 20);
        assert_eq!(shortened(font, &long, 60.0), shortened(font, &long[..70], 60.0));
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn labels_on_each_other_are_noticed() {
        let mut canvas = Canvas::default();
        canvas.text((5.0, 20.0), Anchor::Start, Font::Body, "one");
        canvas.text((9.0, 24.0), Anchor::Start, Font::Body, "other");
        read::assert_readable(&canvas.finish((99.0, 40.0), ""));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn labels_beyond_the_edge_are_noticed() {
        let mut canvas = Canvas::default();
        canvas.text((5.0, 20.0), Anchor::End, Font::Body, "one");
        read::assert_readable(&canvas.finish((99.0, 40.0), ""));
    }
}
