//! What the bench of several GPUs found, as data and as a table.
//!
//! Invariant: T_gemm is the fastest product of an A that is there, whoever's, launched alike; so is the peer
//! that others are compared with. Ratios are of rounds, so that what drifts cancels.

use std::fmt;

use serde::Serialize;

use super::super::super::gather::Gatherer;
use super::super::super::results::Machine;
use super::super::super::statistics::{Ratio, Summary};
use super::entrant::Kind;

/// Everything.
#[derive(Serialize)]
pub struct Report {
    pub command: String,
    pub version: &'static str,
    pub machine: Machine,
    pub nccl: Option<String>,
    pub ranks: u32,
    pub steps: usize,
    pub rounds: usize,
    pub copied: bool,
    pub cases: Vec<CaseReport>,
}

/// One problem.
#[derive(Serialize)]
pub struct CaseReport {
    pub name: String,
    pub rows: Vec<Row>,
}

/// One contender, launched in one way.
#[derive(Serialize)]
pub struct Row {
    pub who: String,
    pub kind: Kind,
    pub graph: bool,
    pub what: String,
    pub failed: Option<String>,
    /// The slowest rank's microseconds a step, round by round; nothing is said of a wrong result.
    pub rounds_us: Vec<f64>,
    /// The same of the host's time of one enqueue, of steps that are launched one by one.
    pub host_us: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        Summary::of(&self.rounds_us).map_or(f64::INFINITY, |summary| summary.median)
    }

    /// Another program's.
    fn is_peer(&self) -> bool {
        self.who.starts_with("torch")
    }
}

impl CaseReport {
    /// The rounds of the fastest that will do, launched alike.
    fn best(&self, graph: bool, will_do: impl Fn(&Row) -> bool) -> Option<&[f64]> {
        let rows = self.rows.iter().filter(|row| row.graph == graph && will_do(row));
        let best = rows.min_by(|one, other| one.median().total_cmp(&other.median()));
        best.map(|row| &*row.rounds_us)
    }
}

/// The columns of ratios.
const UNDER: [(&str, usize); 3] = [("÷ T_gemm", 9), ("÷ nccl-cublaslt", 16), ("÷ best peer", 12)];

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        write!(f, "  {:14} {:6} {:>9} {:>8}", "who", "launch", "µs a step", "spread")?;
        UNDER.iter().try_for_each(|(name, width)| write!(f, " {name:>width$}"))?;
        writeln!(f, " {:>10}", "host µs")?;
        for row in &self.rows {
            let launch = if row.graph { "graph" } else { "plain" };
            write!(f, "  {:14} {launch:6} ", row.who)?;
            if let Some(why) = &row.failed {
                writeln!(f, "FAILED: {why}")?;
                continue;
            }
            let Some(summary) = Summary::of(&row.rounds_us) else { continue };
            write!(f, "{:9.1} {:6.1} %", summary.median, 100.0 * summary.spread())?;
            let gemm = self.best(row.graph, |row| row.kind == Kind::Gemm);
            let nccl = self.best(row.graph, |row| row.who == Gatherer::NcclCublaslt.name());
            let peer = self.best(row.graph, |row| row.is_peer() && row.kind == Kind::AllGatherGemm);
            for (under, (_, width)) in [gemm, nccl, peer].into_iter().zip(UNDER) {
                match under.and_then(|under| Ratio::paired(&row.rounds_us, under)) {
                    Some(ratio) => write!(f, " {:>width$.3}", ratio.of_rounds)?,
                    None => write!(f, " {:>width$}", "–")?,
                }
            }
            match Summary::of(&row.host_us) {
                Some(host) => writeln!(f, " {:10.1}", host.median)?,
                None => writeln!(f, " {:>10}", "–")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { gpu, driver, .. } = &self.machine;
        let driver = driver.as_deref().unwrap_or("unknown");
        let nccl = self.nccl.as_deref().unwrap_or("none");
        writeln!(f, "{} × {gpu}, driver {driver}, NCCL {nccl}", self.ranks)?;
        writeln!(f, "{} steps a loop, {} rounds: medians", self.steps, self.rounds)?;
        self.cases.iter().try_for_each(|case| write!(f, "\n{case}"))
    }
}
