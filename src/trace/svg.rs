//! A timeline as a picture: a self-contained SVG that a person can read, on light and dark background.
//!
//! Invariant: all ranks share one time axis, from the first event to the last, and nothing is drawn outside of it. The
//! caller's text is escaped, and cut off where the picture ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::{AdditionEvent, Timeline, TransferEvent};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
/// The space between two blocks, for a name.
const HEAD: f64 = 22.0;
/// High enough for its name.
const PUSH_ROW: f64 = 13.0;
const SIGNAL_ROW: f64 = 5.0;
/// The height of all lanes together, as far as lanes stay visible.
const LANES: f64 = 560.0;
const TOP: f64 = 64.0;
/// The least height of a block of lanes, for its name.
const LEAST: f64 = 9.0;
/// The widths of a letter, rather too wide than too narrow: of small text, and of the title.
const LETTER: f64 = 6.2;
const TITLE_LETTER: f64 = 8.2;

/// Distinguishable with colour blindness, too (Okabe and Ito).
const PALETTE: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89f00", "#8c8c8c"];

const STYLE: &str = "\
text{font:12px sans-serif;fill:#222}.small{font-size:11px}.title{font-size:13px;font-weight:600}\
.axis{stroke:#999;stroke-width:1}.grid{stroke:#999;stroke-opacity:.25}.wait{fill:#888;fill-opacity:.35}.push{fill-opacity:.55}\
.add{fill-opacity:.85}.lanes{fill:#888;fill-opacity:.08}.tile{stroke:#fff;stroke-opacity:.5;stroke-width:.4}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.tile{stroke:#000}.back{fill:#16181c}}.back{fill:#fff}\
@media(prefers-color-scheme:dark){.back{fill:#16181c}}";

/// The time axis of the picture.
struct Axis {
    begin: Duration,
    span: Duration,
}

impl Axis {
    fn x(&self, time: Duration) -> f64 {
        let fraction = time.saturating_sub(self.begin).as_secs_f64() / self.span.as_secs_f64();
        LEFT + fraction.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Steps of 1, 2 or 5 times a power of ten, six to twelve of them; and their unit.
    fn ticks(&self) -> (Vec<f64>, f64, &'static str) {
        let span = self.span.as_secs_f64();
        let (scale, unit) = match span {
            s if s < 2e-3 => (1e6, "µs"),
            s if s < 2.0 => (1e3, "ms"),
            _ => (1.0, "s"),
        };
        let rough = span * scale / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= rough * 0.999);
        let step = step.unwrap_or(10.0) * power;
        let count = (span * scale / step).floor() as u32;
        ((0..=count).map(|nth| f64::from(nth) * step).collect(), scale, unit)
    }
}

fn colour(rank: u32) -> &'static str {
    PALETTE[rank as usize % PALETTE.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Timeline {
    /// The timeline as an SVG with that title. A tile has the colour of the rank that its last rows came from.
    ///
    /// ```
    /// # use overlap_gemm::trace::Timeline;
    /// let picture = Timeline::default().to_svg("nothing happened");
    /// assert!(picture.starts_with("<svg") && picture.contains("nothing happened"));
    /// ```
    pub fn to_svg(&self, title: &str) -> String {
        let ranks = self.ranks();
        let lanes: usize = ranks.iter().map(|rank| self.workers_of(*rank).len()).sum();
        let mut drawing = Drawing {
            timeline: self,
            // Ticks of less than a nanosecond would have no place.
            axis: Axis { begin: self.begin(), span: self.span().max(Duration::from_nanos(100)) },
            owners: self.transfers.iter().map(|sent| (sent.chunk, sent.from)).collect(),
            lane: (LANES / lanes.max(1) as f64).clamp(2.0, 14.0),
            body: String::new(),
            y: TOP,
        };
        ranks.iter().for_each(|rank| drawing.draw(*rank));
        let Drawing { axis, body, y, .. } = drawing;
        let height = y + 34.0;
        let mut picture = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img"><style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{height:.0}"/>"#
        );
        // Writing to a String does not fail.
        let title = title_line(title);
        let _ = writeln!(picture, r#"<text class="title" x="8" y="20">{title}</text>"#);
        legend(&mut picture, &ranks);
        draw_axis(&mut picture, &axis, y);
        picture + &body + "</svg>\n"
    }

    /// All ranks that have computed, sent, received or added anything.
    fn ranks(&self) -> BTreeSet<u32> {
        let tiles = self.tiles.iter().map(|tile| tile.rank);
        let ranks = tiles.chain(self.transfers.iter().flat_map(|sent| [sent.from, sent.to]));
        ranks.chain(self.additions.iter().map(|added| added.rank)).collect()
    }

    fn workers_of(&self, rank: u32) -> Vec<u32> {
        let workers = self.tiles.iter().filter(|tile| tile.rank == rank);
        workers.map(|tile| tile.worker).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A timeline that is drawn rank by rank.
struct Drawing<'a> {
    timeline: &'a Timeline,
    axis: Axis,
    /// The rank of each chunk's rows.
    owners: BTreeMap<u32, u32>,
    /// The height of a worker's lane.
    lane: f64,
    body: String,
    /// Where the next line begins.
    y: f64,
}

impl Drawing<'_> {
    fn draw(&mut self, rank: u32) {
        let _ = writeln!(self.body, r#"<text x="8" y="{:.1}">rank {rank}</text>"#, self.y + 11.0);
        self.y += HEAD;
        self.draw_pushes(rank);
        self.draw_signals(rank);
        self.y += 2.0;
        self.draw_tiles(rank);
        self.draw_additions(rank);
        self.y += 10.0;
    }

    /// A row for each receiver.
    fn draw_pushes(&mut self, rank: u32) {
        let transfers = &self.timeline.transfers;
        let lasts = |sent: &&TransferEvent| sent.from == rank && sent.signalled > sent.begin;
        let receivers: BTreeSet<u32> = transfers.iter().filter(lasts).map(|sent| sent.to).collect();
        for to in receivers {
            self.row_name(PUSH_ROW - 2.0, &format!("pushes to {to}"));
            for sent in transfers.iter().filter(lasts).filter(|sent| sent.to == to) {
                let (begin, end) = (self.axis.x(sent.begin), self.axis.x(sent.signalled));
                let _ = writeln!(
                    self.body,
                    r#"<rect class="push" x="{begin:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{}"><title>chunk {} to rank {to}</title></rect>"#,
                    self.y + 1.0,
                    (end - begin).max(0.2),
                    PUSH_ROW - 3.0,
                    colour(rank),
                    sent.chunk,
                );
            }
            self.y += PUSH_ROW;
        }
    }

    /// A row for each chunk, from the time on at which its signal was set.
    fn draw_signals(&mut self, rank: u32) {
        let transfers = self.timeline.transfers.iter();
        let mut arrived: Vec<_> = transfers.filter(|sent| sent.to == rank).collect();
        if arrived.is_empty() {
            return;
        }
        arrived.sort_by_key(|sent| (sent.signalled, sent.chunk));
        // A name is as high as some rows.
        let height = (SIGNAL_ROW * arrived.len() as f64).max(PUSH_ROW);
        self.row_name(height / 2.0 + 4.0, "signals");
        for (nth, sent) in arrived.iter().enumerate() {
            let set = self.axis.x(sent.signalled);
            let _ = writeln!(
                self.body,
                r#"<rect x="{set:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{}"><title>chunk {} from rank {}</title></rect>"#,
                self.y + SIGNAL_ROW * nth as f64 + 1.0,
                (WIDTH - RIGHT - set).max(0.5),
                SIGNAL_ROW - 2.0,
                colour(sent.from),
                sent.chunk,
                sent.from,
            );
        }
        self.y += height;
    }

    /// A lane for each worker.
    fn draw_tiles(&mut self, rank: u32) {
        let (first, lane) = (self.y, self.lane);
        let workers = self.timeline.workers_of(rank);
        if workers.is_empty() {
            return;
        }
        let height = lane * workers.len() as f64;
        let _ = writeln!(
            self.body,
            r#"<rect class="lanes" x="{LEFT}" y="{first:.1}" width="{:.1}" height="{height:.1}"/>"#,
            WIDTH - LEFT - RIGHT
        );
        let s = if workers.len() == 1 { "" } else { "s" };
        self.row_name(
            height.clamp(LEAST, 16.0) / 2.0 + 4.0,
            &format!("{} worker{s}", workers.len()),
        );
        for tile in self.timeline.tiles.iter().filter(|tile| tile.rank == rank) {
            let nth = workers.binary_search(&tile.worker).unwrap_or(0);
            let top = first + lane * nth as f64;
            let [wait, run, end] =
                [tile.wait_begin, tile.ready, tile.done].map(|time| self.axis.x(time));
            if run - wait > 0.3 {
                let _ = writeln!(
                    self.body,
                    r#"<rect class="wait" x="{wait:.2}" y="{top:.2}" width="{:.2}" height="{lane:.2}"/>"#,
                    run - wait
                );
            }
            let owner = self.owners.get(&tile.chunk).copied().unwrap_or(tile.chunk);
            let _ = writeln!(
                self.body,
                r#"<rect class="tile" x="{run:.2}" y="{top:.2}" width="{:.2}" height="{lane:.2}" fill="{}"><title>tile ({}, {}), chunk {}</title></rect>"#,
                (end - run).max(0.2),
                colour(owner),
                tile.tile.m,
                tile.tile.n,
                tile.chunk
            );
        }
        self.y += height.max(LEAST);
    }

    /// A row for all chunks of a reduction that the rank adds up, or stores.
    fn draw_additions(&mut self, rank: u32) {
        let mut added =
            self.timeline.additions.iter().filter(|added| added.rank == rank).peekable();
        if added.peek().is_none() {
            return;
        }
        self.row_name(PUSH_ROW - 2.0, "adds up");
        for AdditionEvent { chunk, begin, done, .. } in added {
            let (begin, end) = (self.axis.x(*begin), self.axis.x(*done));
            let _ = writeln!(
                self.body,
                r#"<rect class="add" x="{begin:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{}"><title>chunk {chunk}</title></rect>"#,
                self.y + 1.0,
                (end - begin).max(0.2),
                PUSH_ROW - 3.0,
                colour(rank),
            );
        }
        self.y += PUSH_ROW;
    }

    /// Writes the name of a row to its left, so far below the beginning of the line.
    fn row_name(&mut self, below: f64, name: &str) {
        let _ = writeln!(
            self.body,
            r#"<text class="small" x="{:.1}" y="{:.1}" text-anchor="end">{name}</text>"#,
            LEFT - 8.0,
            self.y + below
        );
    }
}

/// A title, escaped, cut to the width of the picture.
fn title_line(text: &str) -> String {
    let most = ((WIDTH - 16.0) / TITLE_LETTER) as usize;
    if text.chars().count() <= most {
        return escape(text);
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    escape(&kept) + "…"
}

/// The meaning of the colours, in short form for many ranks.
fn legend(picture: &mut String, ranks: &BTreeSet<u32>) {
    let mut x = 8.0;
    let mut entry = |class: &str, fill: &str, text: &str| {
        let _ = writeln!(
            picture,
            r#"<rect {class} x="{x:.0}" y="34" width="12" height="10" {fill}/><text class="small" x="{:.0}" y="43">{text}</text>"#,
            x + 16.0
        );
        x += 26.0 + LETTER * text.chars().count() as f64;
    };
    let few = ranks.len() <= 5;
    for &rank in ranks.iter().take(PALETTE.len()) {
        let name = if few { format!("rows of rank {rank}") } else { format!("rank {rank}") };
        entry("", &format!(r#"fill="{}""#, colour(rank)), &name);
    }
    if ranks.len() > PALETTE.len() {
        entry("", r#"fill="none""#, &format!("and so on, every {} ranks", PALETTE.len()));
    }
    entry(r#"class="wait""#, "", "waits for rows");
}

fn draw_axis(picture: &mut String, axis: &Axis, bottom: f64) {
    let (ticks, scale, unit) = axis.ticks();
    let last = ticks.len() - 1;
    // Steps below one need their digits.
    let digits = ticks.get(1).map_or(0.0, |step| -step.log10().floor()).max(0.0) as usize;
    for (nth, tick) in ticks.into_iter().enumerate() {
        let x = axis.x(axis.begin + Duration::from_secs_f64(tick / scale));
        let unit = if nth == last { format!(" {unit}") } else { String::new() };
        let label = format!("{tick:.digits$}{unit}");
        let _ = writeln!(
            picture,
            r#"<line class="grid" x1="{x:.2}" x2="{x:.2}" y1="{:.1}" y2="{bottom:.1}"/><text class="small" x="{x:.2}" y="{:.1}" text-anchor="middle">{label}</text>"#,
            TOP - 8.0,
            bottom + 16.0
        );
    }
    let _ = writeln!(
        picture,
        r#"<line class="axis" x1="{LEFT}" x2="{:.1}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#,
        WIDTH - RIGHT
    );
}

#[cfg(test)]
#[path = "svg_tests.rs"]
mod tests;
