//! A timeline as trace events for Perfetto (ui.perfetto.dev) and Chrome's tracing page.
//!
//! Invariant: each rank of each timeline is a process; each worker, receiver of pushes and signal is a thread. Times are
//! microseconds from the first event on, or from a given zero.

use std::time::Duration;

use super::Timeline;
use super::beside::{Named, SideBySide};

impl Timeline {
    /// The timeline as one JSON document of trace events.
    ///
    /// ```
    /// # use overlap_gemm::trace::Timeline;
    /// assert_eq!(Timeline::default().to_trace_events(), "{\"traceEvents\":[]}");
    /// ```
    pub fn to_trace_events(&self) -> String {
        SideBySide::alone(self).to_trace_events()
    }
}

impl SideBySide<'_> {
    /// All of them as one JSON document of trace events: each rank of each timeline is a process, and those of the same
    /// rank follow each other.
    pub fn to_trace_events(&self) -> String {
        let many = self.all.len() as u32;
        let mut events = Vec::new();
        for (nth, named) in (0..).zip(&self.all) {
            let process = |rank: u32| rank * many + nth;
            if !named.name.is_empty() {
                for rank in named.timeline.ranks() {
                    events.extend(naming(process(rank), &named.rank(rank)));
                }
            }
            named.add_events(&mut events, process);
        }
        format!("{{\"traceEvents\":[{}]}}", events.join(",\n"))
    }
}

/// The name of a process and its place among the others.
fn naming(process: u32, name: &str) -> [String; 2] {
    let name: String = name.chars().flat_map(escaped).collect();
    [
        format!(r#"{{"name":"process_name","ph":"M","pid":{process},"args":{{"name":"{name}"}}}}"#),
        format!(
            r#"{{"name":"process_sort_index","ph":"M","pid":{process},"args":{{"sort_index":{process}}}}}"#
        ),
    ]
}

/// A character as part of a JSON string.
fn escaped(c: char) -> impl Iterator<Item = char> {
    let before = matches!(c, '"' | '\\').then_some('\\');
    before.into_iter().chain([if c.is_control() { ' ' } else { c }])
}

impl Named<'_> {
    fn add_events(&self, events: &mut Vec<String>, process: impl Fn(u32) -> u32) {
        let end = self.timeline.end();
        let us = |time: Duration| self.since_zero(time).as_nanos() as f64 / 1e3;
        let mut event = |name: String, rank: u32, thread: String, from: Duration, to: Duration| {
            let (start, length) = (us(from), us(to) - us(from));
            let pid = process(rank);
            // Names are made here and need no escapes.
            events.push(format!(
                r#"{{"name":"{name}","ph":"X","pid":{pid},"tid":"{thread}","ts":{start:.3},"dur":{length:.3}}}"#
            ));
        };
        for tile in &self.timeline.tiles {
            let worker = format!("worker {:03}", tile.worker);
            if tile.ready > tile.wait_begin {
                let name = format!("waits for chunk {}", tile.chunk);
                event(name, tile.rank, worker.clone(), tile.wait_begin, tile.ready);
            }
            let name = format!("tile ({}, {})", tile.tile.m, tile.tile.n);
            event(name, tile.rank, worker, tile.ready, tile.done);
        }
        for sent in &self.timeline.transfers {
            let name = format!("chunk {} to rank {}", sent.chunk, sent.to);
            event(name, sent.from, format!("pushes to {}", sent.to), sent.begin, sent.signalled);
            let name = format!("chunk {} from rank {}", sent.chunk, sent.from);
            event(name, sent.to, format!("signal {:03}", sent.chunk), sent.signalled, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Tile;
    use crate::trace::{TileEvent, TransferEvent};

    #[test]
    fn events_are_json_with_times_from_the_first_on() {
        let us = Duration::from_micros;
        let timeline = Timeline {
            tiles: vec![TileEvent {
                rank: 1,
                worker: 5,
                epoch: 1,
                product: 0,
                tile: Tile { m: 2, n: 3 },
                chunk: 4,
                wait_begin: us(10),
                ready: us(12),
                done: us(20),
            }],
            transfers: vec![TransferEvent {
                from: 0,
                to: 1,
                epoch: 1,
                chunk: 4,
                begin: us(10),
                signalled: us(11),
            }],
        };
        let json: serde_json::Value = serde_json::from_str(&timeline.to_trace_events()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4);
        assert_eq!(events[1]["name"], "tile (2, 3)");
        assert_eq!((events[1]["ts"].as_f64(), events[1]["dur"].as_f64()), (Some(2.0), Some(8.0)));
        assert_eq!((&events[2]["pid"], &events[3]["pid"]), (&0.into(), &1.into()));
        assert_eq!(events[3]["dur"].as_f64(), Some(9.0));
    }

    #[test]
    fn each_rank_of_each_timeline_is_a_process() {
        let us = Duration::from_micros;
        let sent = |from, begin, signalled| {
            let (begin, signalled) = (us(begin), us(signalled));
            TransferEvent { from, to: 1 - from, epoch: 1, chunk: from, begin, signalled }
        };
        let one = Timeline { transfers: vec![sent(0, 100, 101)], ..Timeline::default() };
        let other = Timeline { transfers: vec![sent(1, 3, 5)], ..Timeline::default() };
        let both =
            SideBySide::default().with("as it \"was\\", &one).with_zero("other", &other, us(0));
        let json: serde_json::Value = serde_json::from_str(&both.to_trace_events()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let named = |name: &str| -> Vec<u64> {
            let is = events.iter().filter(|event| event["args"]["name"] == name);
            is.map(|event| event["pid"].as_u64().unwrap()).collect()
        };
        // Ranks 0 and 1, each of both.
        let expected = [
            ("rank 0: as it \"was\\", 0),
            ("rank 0: other", 1),
            ("rank 1: as it \"was\\", 2),
            ("rank 1: other", 3),
        ];
        for (name, pid) in expected {
            assert_eq!(named(name), [pid], "{name} in {json}");
        }
        let pushes = events
            .iter()
            .filter(|event| event["tid"].as_str().is_some_and(|t| t.starts_with("pushes")));
        let pushes: Vec<_> =
            pushes.map(|event| (event["pid"].as_u64(), event["ts"].as_f64())).collect();
        assert_eq!(pushes, [(Some(0), Some(0.0)), (Some(3), Some(3.0))]);
    }
}
