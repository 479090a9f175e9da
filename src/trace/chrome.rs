//! A timeline as trace events, as Perfetto (ui.perfetto.dev) and Chrome's tracing page read them.
//!
//! Invariant: a process a rank, a thread a worker, a receiver of pushes, or a signal (from when it is set); times in microseconds from the first event on.

use std::fmt::Write as _;
use std::time::Duration;

use super::Timeline;

impl Timeline {
    /// The timeline as one JSON document of trace events.
    ///
    /// ```
    /// # use overlap_gemm::trace::Timeline;
    /// assert_eq!(Timeline::default().to_trace_events(), "{\"traceEvents\":[]}");
    /// ```
    pub fn to_trace_events(&self) -> String {
        let begin = self.begin();
        let end = begin + self.span();
        let us = |time: Duration| time.saturating_sub(begin).as_nanos() as f64 / 1e3;
        let mut events = Vec::new();
        let mut event = |name: String, rank: u32, thread: String, from: Duration, to: Duration| {
            let (start, length) = (us(from), us(to) - us(from));
            let mut text = String::new();
            // Names are made here and need no escapes. Writing to a String does not fail.
            let _ = write!(
                text,
                r#"{{"name":"{name}","ph":"X","pid":{rank},"tid":"{thread}","ts":{start:.3},"dur":{length:.3}}}"#
            );
            events.push(text);
        };
        for tile in &self.tiles {
            let worker = format!("worker {:03}", tile.worker);
            if tile.ready > tile.wait_begin {
                let name = format!("waits for chunk {}", tile.chunk);
                event(name, tile.rank, worker.clone(), tile.wait_begin, tile.ready);
            }
            let name = format!("tile ({}, {})", tile.tile.m, tile.tile.n);
            event(name, tile.rank, worker, tile.ready, tile.done);
        }
        for sent in &self.transfers {
            let name = format!("chunk {} to rank {}", sent.chunk, sent.to);
            event(name, sent.from, format!("pushes to {}", sent.to), sent.begin, sent.signalled);
            let name = format!("chunk {} from rank {}", sent.chunk, sent.from);
            event(name, sent.to, format!("signal {:03}", sent.chunk), sent.signalled, end);
        }
        format!("{{\"traceEvents\":[{}]}}", events.join(",\n"))
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
}
