//! The measurements of one run of `tune`, as text and as JSON.
//!
//! Invariant: the text holds nothing that the JSON does not.

use std::fmt;

use overlap_gemm::plan::Operation;
use overlap_gemm::tune::Entry;
use serde::Serialize;

use super::search::{Candidate, Tried};

/// One problem.
#[derive(Serialize)]
pub struct Tuned {
    pub problem: String,
    /// As it is in the table.
    pub entry: Entry,
    /// All that was tried: the finalists, the one to take first; then the others.
    pub tried: Vec<Tried>,
}

/// A candidate that was wrong or refused.
#[derive(Serialize)]
pub struct Failed {
    pub problem: String,
    pub candidate: Candidate,
    /// Its result is wrong; otherwise it was refused.
    pub wrong: bool,
    pub why: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { problem, candidate, why, .. } = self;
        write!(f, "{problem}: {candidate}: {why}")
    }
}

/// All measurements of one run.
#[derive(Serialize)]
pub struct Results {
    pub command: String,
    pub version: &'static str,
    /// The GPUs and their driver.
    pub machine: String,
    pub operation: Operation,
    pub file: String,
    pub measured: Vec<Tuned>,
    pub failed: Vec<Failed>,
    pub interrupted: bool,
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.operation, self.machine)?;
        writeln!(f, "µs a step before → after tuning, in graphs and one by one")?;
        for Tuned { problem, tried, .. } in &self.measured {
            let Some(tuned) = tried.first() else { continue };
            write!(f, "{problem:<32}")?;
            if let Some(untuned) = tried.iter().find(|one| one.candidate.untuned) {
                for (before, after) in [(untuned.graph, tuned.graph), (untuned.plain, tuned.plain)]
                {
                    let ratio = after / before;
                    write!(f, "  {before:>8.1} → {after:>8.1} (× {ratio:.3})")?;
                }
            }
            writeln!(f, "\n    {}", tuned.candidate)?;
        }
        self.failed.iter().try_for_each(|failed| writeln!(f, "FAILED: {failed}"))?;
        let ended = if self.interrupted { "interrupted: " } else { "" };
        writeln!(f, "{ended}{} problems measured, in {}", self.measured.len(), self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_stand_in_a_line() {
        let entry: Entry = serde_json::from_value(serde_json::json!({
            "family": {
                "operation": "all-gather-gemm", "gpu": "NVIDIA H200", "ranks": 2, "scaling": "none", "b_layout": "nk",
                "elements": {"a": "bf16", "b": "bf16", "d": "bf16"},
            },
            "shape": {"m": 4096, "n": 3584, "k": 8192},
            "sms": 132,
            "driver": "580.1",
            "crate_version": "0.1.0",
            "way": {"strategy": "fused", "engine": {"kernel": {"blocks": 4}}, "pieces": 1},
            "multiplying": {
                "kernel": "a", "tile": {"m": 16, "n": 128}, "cluster": {"m": 1, "n": 1},
                "swizzle": 1, "splits": 5,
            },
            "us": {"graph": 103.0, "plain": 102.0},
        }))
        .unwrap();
        let tried = |graph, plain, untuned| {
            let (way, multiplying) = (entry.way, entry.multiplying.clone());
            Tried { candidate: Candidate { way, multiplying, untuned }, graph, plain }
        };
        let tried = vec![tried(103.0, 102.0, false), tried(100.0, 130.0, true)];
        let failed = Failed {
            problem: "8×8×8 bf16".into(),
            candidate: tried[1].candidate.clone(),
            wrong: true,
            why: "rank 1: D[0, 0] is NaN".into(),
        };
        let results = Results {
            command: String::new(),
            version: "0.1.0",
            machine: "2 × NVIDIA H200, driver 580.1".into(),
            operation: Operation::AllGatherGemm,
            file: "table.json".into(),
            measured: vec![Tuned { problem: "4096×3584×8192 bf16".into(), entry, tried }],
            failed: vec![failed],
            interrupted: true,
        };
        let text = results.to_string();
        for words in [
            "all-gather + GEMM on 2 × NVIDIA H200, driver 580.1\n",
            "   100.0 →    103.0 (× 1.030)     130.0 →    102.0 (× 0.785)\n",
            "FAILED: 8×8×8 bf16: fused, ",
            "NaN\ninterrupted: 1 problems measured, in table.json\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
