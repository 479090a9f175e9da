//! The measurements of one run of `tune`, as text and as JSON.
//!
//! Invariant: the text holds nothing that the JSON does not; a dash stands for a time that was not measured.

use std::fmt;

use overlap_gemm::plan::Way;
use overlap_gemm::tune::{Entry, Multiplying, Times};
use serde::Serialize;

use super::ranking::Measured;

/// All measurements of one run.
#[derive(Serialize)]
pub struct Results {
    pub command: String,
    pub version: &'static str,
    pub file: String,
    pub measured: Vec<Tuned>,
    /// Problems that were in the table already.
    pub kept: usize,
    pub failed: Vec<Failed>,
    pub seconds: f64,
    /// Why it ended before the last problem, if it did.
    pub ended_early: Option<String>,
}

/// One problem.
#[derive(Serialize)]
pub struct Tuned {
    /// As it is in the table.
    pub entry: Entry,
    /// All that was tried: the one to take first, then the others in order.
    pub tried: Vec<Measured>,
}

/// A candidate that was wrong or refused.
#[derive(Serialize)]
pub struct Failed {
    pub problem: String,
    pub way: Way,
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
        write!(f, "   ratio {graph:>6} {plain:>6}")
    }
}

/// One problem in a line, and below it what was chosen.
pub struct Row<'a>(pub &'a Tuned);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row(Tuned { entry, tried }) = self;
        let untuned = tried.iter().find(|one| one.untuned).map(Measured::us).unwrap_or_default();
        let [untuned, tuned] = [untuned, entry.us].map(|Times { graph, plain }| [graph, plain]);
        write!(f, "{:20} {:10}", entry.shape.to_string(), "")?;
        untuned.iter().try_for_each(|time| column(f, *time, 8, 1))?;
        write!(f, "   {:8}", "")?;
        tuned.iter().try_for_each(|time| column(f, *time, 8, 1))?;
        write!(f, "   {:5}", "")?;
        for (tuned, untuned) in tuned.into_iter().zip(untuned) {
            column(f, tuned.zip(untuned).map(|(tuned, untuned)| tuned / untuned), 6, 3)?;
        }
        write!(f, "\n    {}; {}", entry.way, entry.multiplying)
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
        for tuned in &self.measured {
            let entry = &tuned.entry;
            if family != Some(&entry.family) {
                writeln!(f, "{}, driver {}\n{Head}", entry.family, entry.driver)?;
                family = Some(&entry.family);
            }
            writeln!(f, "{}", Row(tuned))?;
        }
        for Failed { problem, way, multiplying, why } in &self.failed {
            writeln!(f, "FAILED: {problem}: {way}; {multiplying}: {why}")?;
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
    use overlap_gemm::plan::{BLayout, ElementTypes, Scaling};
    use overlap_gemm::tune::{Family, Shape};

    use super::super::ranking::{Time, made_up};
    use super::*;

    fn measured(pieces: u32, graph: f64, plain: Option<f64>) -> Measured {
        let time = |us| Time::new(us, 0.0, 7);
        made_up::measured("some", pieces, Some(time(graph)), plain.map(time))
    }

    fn tuned(tried: Vec<Measured>) -> Tuned {
        let (a, d) = (ElementType::E4m3, ElementType::Bf16);
        let tried = Measured::in_order(tried);
        let entry = Entry {
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
            way: tried[0].way,
            multiplying: tried[0].multiplying.clone(),
            us: tried[0].us(),
        };
        Tuned { entry, tried }
    }

    #[test]
    fn rows_stand_below_their_heads() {
        let both =
            tuned(vec![measured(1, 1553.9, Some(1539.2)), measured(2, 1476.2, Some(1539.2))]);
        let one = tuned(vec![measured(2, 1476.2, None)]);
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
        assert_eq!(
            lines[3],
            "    fused, copy engines on one stream, 2 pieces; some, swizzle 2, K in 1"
        );
        assert_eq!(head, ends(lines[4], &["–", "–", "1476.2", "–", "–", "–"]), "{text}");
        assert!(text.contains("3 were in the table already") && text.contains("the time was up"));
    }
}
