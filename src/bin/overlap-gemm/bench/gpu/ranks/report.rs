//! What the bench of several GPUs found, as data and as a table.
//!
//! Invariant: T_gemm is the fastest product of an A that is there, launched alike; ratios are of rounds,
//! so that what drifts cancels.

use std::fmt;

use serde::Serialize;

use super::super::super::gather::Gatherer;
use super::super::super::results::Machine;
use super::super::super::statistics::{Ratio, Summary};

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
    pub who: Gatherer,
    pub graph: bool,
    pub what: String,
    pub failed: Option<String>,
    /// The slowest rank's microseconds a step, round by round; nothing is said of a wrong result.
    pub rounds_us: Vec<f64>,
}

impl CaseReport {
    /// The rounds of the fastest product of an A that is there.
    fn gemm(&self, graph: bool) -> Option<&[f64]> {
        let plain = [Gatherer::Cublaslt, Gatherer::Own];
        let rows = self.rows.iter().filter(|row| plain.contains(&row.who) && row.graph == graph);
        let median = |row: &&Row| Summary::of(&row.rounds_us).map_or(f64::INFINITY, |s| s.median);
        rows.min_by(|one, other| median(one).total_cmp(&median(other))).map(|row| &*row.rounds_us)
    }

    fn of(&self, who: Gatherer, graph: bool) -> Option<&[f64]> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.who == who && row.graph == graph).map(|row| &*row.rounds_us)
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        writeln!(
            f,
            "  {:14} {:6} {:>9} {:>7} {:>9} {:>15}",
            "who", "launch", "µs a step", "spread", "÷ T_gemm", "÷ nccl-cublaslt"
        )?;
        for row in &self.rows {
            let launch = if row.graph { "graph" } else { "plain" };
            write!(f, "  {:14} {launch:6} ", row.who.name())?;
            if let Some(why) = &row.failed {
                writeln!(f, "FAILED: {why}")?;
                continue;
            }
            let Some(summary) = Summary::of(&row.rounds_us) else { continue };
            write!(f, "{:9.1} {:6.1} %", summary.median, 100.0 * summary.spread())?;
            let peers = [self.gemm(row.graph), self.of(Gatherer::NcclCublaslt, row.graph)];
            for (under, width) in peers.into_iter().zip([9, 15]) {
                match under.and_then(|under| Ratio::paired(&row.rounds_us, under)) {
                    Some(ratio) => write!(f, " {:>width$.3}", ratio.of_rounds)?,
                    None => write!(f, " {:>width$}", "–")?,
                }
            }
            writeln!(f)?;
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
