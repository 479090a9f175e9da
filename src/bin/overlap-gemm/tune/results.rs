//! What one run measured: as text and as JSON.
//!
//! Invariant: the text says nothing that the JSON does not; what was not measured is a dash.

use std::fmt;

use overlap_gemm::tune::{Entry, Gathering, Measured, Multiplying};
use serde::Serialize;

/// Everything that one run of `tune` gave.
#[derive(Serialize)]
pub struct Results {
    pub command: String,
    pub version: &'static str,
    pub file: String,
    pub measured: Vec<Entry>,
    /// Problems that were in the table already.
    pub kept: usize,
    pub failed: Vec<Failed>,
    pub seconds: f64,
    /// Why it ended before the last problem, if it did.
    pub ended_early: Option<String>,
}

/// A candidate that was wrong or refused.
#[derive(Serialize)]
pub struct Failed {
    pub problem: String,
    pub gathering: Gathering,
    pub multiplying: Multiplying,
    pub why: String,
}

/// The line above [`Row`]s: microseconds in graphs and one by one.
pub struct Head;

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [problem, graph, plain] = ["problem", "graph", "plain"];
        write!(
            f,
            "{problem:20} untuned µs {graph:>8} {plain:>8}   tuned µs {graph:>8} {plain:>8}"
        )?;
        write!(f, "   ratio {graph:>6} {plain:>6}   chosen")
    }
}

/// One problem in a line.
pub struct Row<'a>(pub &'a Entry);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row(entry) = self;
        let times = |one: Option<&Measured>| {
            let each = |one: &Measured| [one.graph, one.plain].map(|time| Some(time?.us));
            one.map_or([None, None], each)
        };
        let (untuned, tuned) = (times(entry.untuned()), times(entry.best()));
        write!(f, "{:20} {:10}", entry.shape.to_string(), "")?;
        untuned.iter().try_for_each(|time| column(f, *time, 8, 1))?;
        write!(f, "   {:8}", "")?;
        tuned.iter().try_for_each(|time| column(f, *time, 8, 1))?;
        write!(f, "   {:5}", "")?;
        for (tuned, untuned) in tuned.into_iter().zip(untuned) {
            column(f, tuned.zip(untuned).map(|(tuned, untuned)| tuned / untuned), 6, 3)?;
        }
        match entry.best() {
            Some(one) => write!(f, "   {}; {}", one.gathering, one.multiplying),
            None => Ok(()),
        }
    }
}

fn column(
    f: &mut fmt::Formatter<'_>,
    value: Option<f64>,
    width: usize,
    digits: usize,
) -> fmt::Result {
    match value {
        Some(value) => write!(f, " {value:width$.digits$}"),
        None => write!(f, " {:>width$}", "–"),
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut family = None;
        for entry in &self.measured {
            if family != Some(&entry.family) {
                writeln!(f, "{}, driver {}\n{Head}", entry.family, entry.driver)?;
                family = Some(&entry.family);
            }
            writeln!(f, "{}", Row(entry))?;
        }
        for Failed { problem, gathering, multiplying, why } in &self.failed {
            writeln!(f, "FAILED: {problem}: {gathering}; {multiplying}: {why}")?;
        }
        if self.kept > 0 {
            writeln!(f, "{} were in the table already (--again measures them again)", self.kept)?;
        }
        if let Some(why) = &self.ended_early {
            writeln!(
                f,
                "ended before the last problem: {why}; the same command goes on from there"
            )?;
        }
        writeln!(f, "{} measured in {:.0} s, in {}", self.measured.len(), self.seconds, self.file)
    }
}

#[cfg(test)]
mod tests {
    use overlap_gemm::ElementType;
    use overlap_gemm::plan::{BLayout, ClusterShape, ElementTypes, Scaling, TileShape};
    use overlap_gemm::tune::{Family, Mover, Order, Shape, Time};

    use super::*;

    fn measured(pieces: u32, graph: f64, plain: Option<f64>) -> Measured {
        let mover = Mover::CopyEngines { streams: 1 };
        Measured {
            gathering: Gathering { order: Order::Fused, mover, pieces },
            multiplying: Multiplying {
                kernel: "some".into(),
                tile: TileShape { m: 128, n: 128 },
                cluster: ClusterShape { m: 1, n: 1 },
                swizzle: 2,
                splits: 1,
            },
            by_model: true,
            untuned: pieces == 1,
            graph: Some(Time::new(graph, 0.0, 7)),
            plain: plain.map(|plain| Time::new(plain, 0.0, 7)),
        }
    }

    fn entry(measured: Vec<Measured>) -> Entry {
        let (a, d) = (ElementType::E4m3, ElementType::Bf16);
        Entry {
            family: Family {
                gpu: "NVIDIA H200".into(),
                ranks: 2,
                elements: ElementTypes { a, b: a, d },
                scaling: Scaling::Rows,
                b_layout: BLayout::Nk,
            },
            shape: Shape { m: 16384, n: 3584, k: 8192 },
            sms: 132,
            driver: "580.1".into(),
            crate_version: "0.1.0".into(),
            measured,
        }
        .sorted()
    }

    #[test]
    fn rows_stand_below_their_heads() {
        let both =
            entry(vec![measured(1, 1553.9, Some(1539.2)), measured(2, 1476.2, Some(1539.2))]);
        let one = entry(vec![measured(2, 1476.2, None)]);
        let results = Results {
            command: String::new(),
            version: "0.1.0",
            file: "table.json".into(),
            measured: vec![both, one],
            kept: 3,
            failed: Vec::new(),
            seconds: 12.3,
            ended_early: Some("the time was up".into()),
        };
        let text = results.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2 × NVIDIA H200, e4m3 × e4m3 → bf16, row scales, driver 580.1");
        // In characters: µ and × are one each.
        let ends = |line: &str, words: &[&str]| -> Vec<usize> {
            let mut from = 0;
            let end = |word: &&str| {
                from += line[from..].find(*word).unwrap_or_else(|| panic!("{word} in {line}"))
                    + word.len();
                line[..from].chars().count()
            };
            words.iter().map(end).collect()
        };
        let head = ends(lines[1], &["graph", "plain", "graph", "plain", "graph", "plain"]);
        let row = ends(lines[2], &["1553.9", "1539.2", "1476.2", "1539.2", "0.950", "1.000"]);
        assert_eq!(head, row, "{text}");
        assert!(
            lines[2].ends_with("   fused, copies on 1 stream, 2 pieces; some, swizzle 2, K in 1")
        );
        assert_eq!(head, ends(lines[3], &["–", "–", "1476.2", "–", "–", "–"]), "{text}");
        assert!(text.contains("3 were in the table already") && text.contains("the time was up"));
    }
}
