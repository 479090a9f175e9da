//! Properties of every picture, read back from the SVG alone.

use super::*;
use crate::plan::Tile;
use crate::trace::TileEvent;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn tile(rank: u32, worker: u32, n: u32, chunk: u32, times: [u64; 3]) -> TileEvent {
    let [wait_begin, ready, done] = times.map(us);
    let tile = Tile { m: 0, n };
    TileEvent { rank, worker, epoch: 1, product: 0, tile, chunk, wait_begin, ready, done }
}

fn timeline() -> Timeline {
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
        ..Timeline::default()
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
    let edges = picture
        .split("x=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next().and_then(|number| number.parse::<f64>().ok()));
    assert!(edges.into_iter().all(|x| (0.0..=WIDTH).contains(&x)), "{picture}");
}

#[test]
fn the_legend_names_whose_rows_there_are_and_stays_on_the_picture() {
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
fn additions_have_a_row_of_their_own() {
    let mut step = step(3, 4, 7);
    let end = step.end();
    let added =
        |rank| AdditionEvent { rank, epoch: 1, chunk: 2 * rank, begin: end, done: end + us(9) };
    step.additions = (0..3).flat_map(|rank| [added(rank), added(rank)]).collect();
    assert_eq!(step.span(), step.end() - us(5));
    let picture = step.to_svg("a reduction");
    assert_readable(&picture);
    assert_eq!(picture.matches(">adds up<").count(), 3);
    assert_eq!(picture.matches("class=\"add\"").count(), 6);
}

/// What is written on a picture, with the room that it takes: left, top, right, bottom.
fn labels(picture: &str) -> Vec<(String, [f64; 4])> {
    let attribute = |element: &str, name: &str| {
        let (_, rest) = element.split_once(&format!(" {name}=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    let label = |part: &str| {
        let (element, rest) = part.split_once('>').unwrap();
        let text = rest.split_once("</text>").unwrap().0.to_owned();
        let (letter, size) = match attribute(element, "class").as_deref() {
            Some("title") => (TITLE_LETTER, 13.0),
            Some("small") => (LETTER, 11.0),
            _ => (6.8, 12.0),
        };
        let width = letter * text.chars().count() as f64;
        let number = |name| attribute(element, name).unwrap().parse::<f64>().unwrap();
        let (x, y) = (number("x"), number("y"));
        let left = match attribute(element, "text-anchor").as_deref() {
            Some("middle") => x - width / 2.0,
            Some("end") => x - width,
            _ => x,
        };
        (text, [left, y - 0.8 * size, left + width, y + 0.25 * size])
    };
    picture.split("<text").skip(1).map(label).collect()
}

/// Fails unless every label lies on the picture, and no two on each other.
#[track_caller]
fn assert_readable(picture: &str) {
    let (_, rest) = picture.split_once("viewBox=\"0 0 ").unwrap();
    let size: Vec<f64> =
        rest.split('"').next().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let labels = labels(picture);
    for (nth, (text, [left, top, right, bottom])) in labels.iter().enumerate() {
        let inside = *left >= 0.0 && *top >= 0.0 && *right <= size[0] && *bottom <= size[1];
        assert!(inside, "'{text}' is outside of {size:?}");
        for (other, [l, t, r, b]) in &labels[..nth] {
            let apart = right <= l || r <= left || bottom <= t || b <= top;
            assert!(apart, "'{text}' lies on '{other}'");
        }
    }
}

/// A step of `ranks` ranks with `workers` workers each, whose chunks take `each` µs a piece, two from each rank to each.
fn step(ranks: u32, workers: u32, each: u64) -> Timeline {
    let mut step = Timeline::default();
    for (rank, nth) in (0..ranks).flat_map(|rank| (0..2 * ranks).map(move |nth| (rank, nth))) {
        let chunk = (2 * rank + nth) % (2 * ranks);
        let [sent, there, done] = [0, 1, 2].map(|later| 5 + u64::from(nth + later) * each);
        if chunk / 2 != rank {
            let (from, to, epoch) = (chunk / 2, rank, 1);
            let (begin, signalled) = (us(sent), us(there));
            step.transfers.push(TransferEvent { from, to, epoch, chunk, begin, signalled });
        }
        for worker in 0..workers {
            step.tiles.push(tile(rank, worker, nth, chunk, [sent, there, done]));
        }
    }
    step
}

#[test]
fn labels_do_not_overlap_and_every_tile_is_drawn() {
    for (ranks, workers) in [(1, 4), (2, 1), (2, 132), (4, 3), (8, 132)] {
        let step = step(ranks, workers, 7);
        // A title that is too long is cut off.
        let picture = step.to_svg(&"a name ".repeat(60));
        assert_readable(&picture);
        assert_eq!(picture.matches('…').count(), 1);
        assert_eq!(picture.matches("class=\"tile\"").count(), step.tiles.len());
    }
    assert_readable(&Timeline::default().to_svg("nothing"));
}

#[test]
fn the_axis_begins_with_the_first_event() {
    // From 100 to 170 µs; tiles are computed from 100 and from 130 on.
    let picture = timeline().to_svg("");
    let lefts = picture.lines().filter(|line| line.contains("class=\"tile\""));
    let x = |line: &str| line.split("x=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
    let lefts: Vec<f64> = lefts.filter_map(x).collect();
    let at = |us: f64| LEFT + us / 70.0 * (WIDTH - LEFT - RIGHT);
    assert_eq!(lefts.len(), 2);
    assert!((lefts[0] - at(0.0)).abs() < 0.01 && (lefts[1] - at(30.0)).abs() < 0.01, "{lefts:?}");
}

#[test]
fn ticks_are_round_and_few() {
    for nanos in [7, 900, 12_345, 2_000_000, 3_456_789_012] {
        let axis = Axis { begin: Duration::ZERO, span: Duration::from_nanos(nanos) };
        let (ticks, ..) = axis.ticks();
        assert!((4..=14).contains(&ticks.len()), "{nanos} ns: {ticks:?}");
    }
}
