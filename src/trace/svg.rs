//! A timeline as a picture: a self-contained SVG that a person can read, on light and dark background.
//!
//! Invariant: all ranks share one time axis, from the first event to the last; nothing is drawn outside of it; text
//! that comes from the caller is escaped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::{Timeline, TransferEvent};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
/// Between a block and the next, with its name.
const HEAD: f64 = 22.0;
/// High enough for its name.
const PUSH_ROW: f64 = 13.0;
const SIGNAL_ROW: f64 = 5.0;
/// What all lanes together are drawn in, as far as lanes stay visible.
const LANES: f64 = 560.0;
const TOP: f64 = 64.0;

/// Told apart by people who see colours otherwise, too (Okabe and Ito).
const PALETTE: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89f00", "#8c8c8c"];

const STYLE: &str = "\
text{font:12px sans-serif;fill:#222}.small{font-size:11px}.title{font-size:15px;font-weight:600}\
.axis{stroke:#999;stroke-width:1}.grid{stroke:#999;stroke-opacity:.25}.wait{fill:#888;fill-opacity:.35}.push{fill-opacity:.55}\
.lanes{fill:#888;fill-opacity:.08}.tile{stroke:#fff;stroke-opacity:.5;stroke-width:.4}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.tile{stroke:#000}.back{fill:#16181c}}.back{fill:#fff}\
@media(prefers-color-scheme:dark){.back{fill:#16181c}}";

/// Where times and lanes are on the picture.
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
        let span = self.span().max(Duration::from_nanos(1));
        let axis = Axis { begin: self.begin(), span };
        let owners: BTreeMap<u32, u32> =
            self.transfers.iter().map(|sent| (sent.chunk, sent.from)).collect();
        let ranks: BTreeSet<u32> = (self.tiles.iter().map(|tile| tile.rank))
            .chain(self.transfers.iter().flat_map(|sent| [sent.from, sent.to]))
            .collect();
        let lanes_of = |rank: u32| -> Vec<u32> {
            let workers = self.tiles.iter().filter(|tile| tile.rank == rank);
            workers.map(|tile| tile.worker).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let all_lanes: usize = ranks.iter().map(|rank| lanes_of(*rank).len()).sum();
        let lane = (LANES / all_lanes.max(1) as f64).clamp(2.0, 14.0);

        let mut body = String::new();
        let mut y = TOP;
        // Writing to a String does not fail.
        for &rank in &ranks {
            let lanes = lanes_of(rank);
            let _ = writeln!(body, r#"<text x="8" y="{:.1}">rank {rank}</text>"#, y + 11.0);
            let pushed = self.draw_pushes(&mut body, &axis, rank, y + HEAD);
            let first = self.draw_signals(&mut body, &axis, rank, pushed) + 2.0;
            let height = lane * lanes.len() as f64;
            if !lanes.is_empty() {
                let _ = writeln!(
                    body,
                    r#"<rect class="lanes" x="{LEFT}" y="{first:.1}" width="{:.1}" height="{height:.1}"/>"#,
                    WIDTH - LEFT - RIGHT
                );
                let s = if lanes.len() == 1 { "" } else { "s" };
                let baseline = first + height.min(16.0) / 2.0 + 4.0;
                row_name(&mut body, baseline, &format!("{} worker{s}", lanes.len()));
            }
            for tile in self.tiles.iter().filter(|tile| tile.rank == rank) {
                let nth = lanes.binary_search(&tile.worker).unwrap_or(0);
                let top = first + lane * nth as f64;
                let [wait, run, end] = [tile.wait_begin, tile.ready, tile.done].map(|t| axis.x(t));
                if run - wait > 0.3 {
                    let _ = writeln!(
                        body,
                        r#"<rect class="wait" x="{wait:.2}" y="{top:.2}" width="{:.2}" height="{lane:.2}"/>"#,
                        run - wait
                    );
                }
                let owner = owners.get(&tile.chunk).copied().unwrap_or(tile.chunk);
                let _ = writeln!(
                    body,
                    r#"<rect class="tile" x="{run:.2}" y="{top:.2}" width="{:.2}" height="{lane:.2}" fill="{}"><title>tile ({}, {}), chunk {}</title></rect>"#,
                    (end - run).max(0.2),
                    colour(owner),
                    tile.tile.m,
                    tile.tile.n,
                    tile.chunk
                );
            }
            y = first + height + 10.0;
        }
        let height = y + 34.0;
        let mut picture = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img"><style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{height:.0}"/>"#
        );
        let _ = writeln!(picture, r#"<text class="title" x="8" y="20">{}</text>"#, escape(title));
        // Where only some ranks are drawn, rows come from others, too.
        let sources = ranks.iter().chain(owners.values()).copied().collect();
        legend(&mut picture, &sources);
        draw_axis(&mut picture, &axis, y);
        picture + &body + "</svg>\n"
    }

    /// What a rank sent, a row for each that it sent to, from `y` on. Returns where the rows end.
    fn draw_pushes(&self, body: &mut String, axis: &Axis, rank: u32, y: f64) -> f64 {
        let mut y = y;
        let lasts = |sent: &&TransferEvent| sent.from == rank && sent.signalled > sent.begin;
        let receivers: BTreeSet<u32> =
            self.transfers.iter().filter(lasts).map(|sent| sent.to).collect();
        for to in receivers {
            row_name(body, y + PUSH_ROW - 2.0, &format!("pushes to {to}"));
            for sent in self.transfers.iter().filter(lasts).filter(|sent| sent.to == to) {
                let (begin, end) = (axis.x(sent.begin), axis.x(sent.signalled));
                let _ = writeln!(
                    body,
                    r#"<rect class="push" x="{begin:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{}"><title>chunk {} to rank {to}</title></rect>"#,
                    y + 1.0,
                    (end - begin).max(0.2),
                    PUSH_ROW - 3.0,
                    colour(rank),
                    sent.chunk,
                );
            }
            y += PUSH_ROW;
        }
        y
    }

    /// The signals of what arrived at a rank, a row each from the moment on at which it was set, from `y` on. Returns
    /// where the rows end.
    fn draw_signals(&self, body: &mut String, axis: &Axis, rank: u32, y: f64) -> f64 {
        let mut arrived: Vec<_> = self.transfers.iter().filter(|sent| sent.to == rank).collect();
        arrived.sort_by_key(|sent| (sent.signalled, sent.chunk));
        let height = SIGNAL_ROW * arrived.len() as f64;
        if !arrived.is_empty() {
            row_name(body, y + height / 2.0 + 5.0, "signals");
        }
        for (nth, sent) in arrived.iter().enumerate() {
            let set = axis.x(sent.signalled);
            let _ = writeln!(
                body,
                r#"<rect x="{set:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{}"><title>chunk {} from rank {}</title></rect>"#,
                y + SIGNAL_ROW * nth as f64 + 1.0,
                (WIDTH - RIGHT - set).max(0.5),
                SIGNAL_ROW - 2.0,
                colour(sent.from),
                sent.chunk,
                sent.from,
            );
        }
        // A name is as high as some rows.
        y + if arrived.is_empty() { 0.0 } else { height.max(PUSH_ROW) }
    }
}

/// The name of a row, left of it.
fn row_name(body: &mut String, baseline: f64, name: &str) {
    let _ = writeln!(
        body,
        r#"<text class="small" x="{:.1}" y="{baseline:.1}" text-anchor="end">{name}</text>"#,
        LEFT - 8.0
    );
}

/// What the colours mean: each once, and short where there are many.
fn legend(picture: &mut String, ranks: &BTreeSet<u32>) {
    let mut x = 8.0;
    let mut entry = |class: &str, fill: &str, text: &str| {
        let _ = writeln!(
            picture,
            r#"<rect {class} x="{x:.0}" y="34" width="12" height="10" {fill}/><text class="small" x="{:.0}" y="43">{text}</text>"#,
            x + 16.0
        );
        x += 26.0 + 6.2 * text.chars().count() as f64;
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
    for (nth, tick) in ticks.into_iter().enumerate() {
        let x = axis.x(axis.begin + Duration::from_secs_f64(tick / scale));
        let label = match nth == last {
            true => format!("{tick:.0} {unit}"),
            false => format!("{tick:.0}"),
        };
        // Steps below one need their digits.
        let label =
            if tick.fract().abs() > 1e-9 && tick < 10.0 { format!("{tick:.1}") } else { label };
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
mod tests {
    use super::*;
    use crate::plan::Tile;
    use crate::trace::TileEvent;

    fn timeline() -> Timeline {
        let us = Duration::from_micros;
        let tile = |rank, worker, n, chunk, times: [u64; 3]| TileEvent {
            rank,
            worker,
            epoch: 1,
            product: 0,
            tile: Tile { m: 0, n },
            chunk,
            wait_begin: us(times[0]),
            ready: us(times[1]),
            done: us(times[2]),
        };
        Timeline {
            tiles: vec![tile(0, 3, 0, 0, [100, 100, 140]), tile(0, 7, 1, 1, [100, 130, 170])],
            transfers: vec![TransferEvent {
                from: 1,
                to: 0,
                epoch: 1,
                chunk: 1,
                begin: us(105),
                signalled: us(128),
            }],
        }
    }

    #[test]
    fn everything_lies_on_one_axis() {
        let picture = timeline().to_svg("a <title>");
        assert!(picture.contains("a &lt;title&gt;"), "{picture}");
        assert_eq!(picture.matches("class=\"tile\"").count(), 2);
        // The legend has one more.
        assert_eq!(picture.matches("class=\"wait\"").count(), 2);
        assert!(picture.contains("rank 0") && picture.contains("2 workers"), "{picture}");
        assert!(picture.contains("70 µs"), "{picture}");
        // Rank 1 has pushed a chunk, and rank 0 has its signal.
        assert!(picture.contains("pushes to 0") && picture.contains(">signals<"), "{picture}");
        let edges = picture.split("x=\"").skip(1).filter_map(|rest| {
            rest.split('"').next().and_then(|number| number.parse::<f64>().ok())
        });
        assert!(edges.into_iter().all(|x| (0.0..=WIDTH).contains(&x)), "{picture}");
    }

    #[test]
    fn the_legend_names_whose_rows_there_are_and_stays_on_the_picture() {
        let us = Duration::from_micros;
        for ranks in [2, 5, 8, 72] {
            let arrival = |from| TransferEvent {
                from,
                to: 0,
                epoch: 1,
                chunk: from,
                begin: us(1),
                signalled: us(2),
            };
            let transfers = (1..ranks).map(arrival).collect();
            let picture = Timeline { transfers, ..timeline() }.to_svg("one of many");
            let last = format!("rank {}</text>", (ranks - 1).min(PALETTE.len() as u32 - 1));
            assert!(picture.contains(&last), "{picture}");
            let entries = picture.lines().filter(|line| line.contains(r#"y="43""#));
            for entry in entries {
                let (_, text) = entry.split_once(r#"<text class="small" x=""#).unwrap();
                let (x, text) = text.split_once('"').unwrap();
                let (_, text) = text.split_once('>').unwrap();
                let letters = text.split('<').next().unwrap().chars().count();
                assert!(x.parse::<f64>().unwrap() + 6.2 * letters as f64 <= WIDTH, "{entry}");
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        for nanos in [7, 900, 12_345, 2_000_000, 3_456_789_012] {
            let axis = Axis { begin: Duration::ZERO, span: Duration::from_nanos(nanos) };
            let (ticks, ..) = axis.ticks();
            assert!((4..=14).contains(&ticks.len()), "{nanos} ns: {ticks:?}");
        }
    }
}
