//! What the bench of several GPUs found, as data and as a table.
//!
//! Invariant: T_gemm is the fastest product of an A that is there, whoever's, launched alike; so is the peer
//! that others are compared with. Ratios are of rounds, so that what drifts cancels; so is the overlap
//! efficiency: E = 1 − (T − T_gemm) / (T_nccl − T_gemm), 1 where the gather costs nothing, 0 where it costs what it does
//! behind NCCL.

use std::fmt;

use serde::Serialize;

use super::super::super::gather::Gatherer;
use super::super::super::results::Machine;
use super::super::super::statistics::{Ratio, Summary, median};
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

/// E, in the middle of the rounds; `None` where gathering by NCCL costs nothing.
fn efficiency(times: &[f64], gemm: &[f64], nccl: &[f64]) -> Option<f64> {
    let rounds = times.iter().zip(gemm).zip(nccl);
    let each = rounds.map(|((time, gemm), nccl)| {
        let gather = nccl - gemm;
        (gather > 0.0).then(|| 1.0 - (time - gemm) / gather)
    });
    median(&each.collect::<Option<Vec<_>>>()?)
}

/// The columns of ratios.
const UNDER: [(&str, usize); 3] = [("÷ T_gemm", 9), ("÷ nccl-cublaslt", 16), ("÷ best peer", 12)];

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        write!(f, "  {:14} {:6} {:>9} {:>8}", "who", "launch", "µs a step", "spread")?;
        UNDER.iter().try_for_each(|(name, width)| write!(f, " {name:>width$}"))?;
        writeln!(f, " {:>8} {:>10}", "E", "host µs")?;
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
            let both = gemm.zip(nccl).filter(|_| row.kind == Kind::AllGatherGemm);
            match both.and_then(|(gemm, nccl)| efficiency(&row.rounds_us, gemm, nccl)) {
                Some(efficiency) => write!(f, " {:6.0} %", 100.0 * efficiency)?,
                None => write!(f, " {:>8}", "–")?,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: &str, kind: Kind, rounds_us: &[f64]) -> Row {
        let (what, failed, host_us) = (String::new(), None, Vec::new());
        Row {
            who: who.into(),
            kind,
            graph: true,
            what,
            failed,
            rounds_us: rounds_us.to_vec(),
            host_us,
        }
    }

    #[test]
    fn a_table_compares_with_the_fastest_of_each_kind() {
        let mut wrong = row("torch-native", Kind::AllGatherGemm, &[]);
        wrong.failed = Some("off by 1".into());
        let rows = vec![
            row("cublaslt", Kind::Gemm, &[100.0, 102.0, 98.0]),
            row("torch-mm", Kind::Gemm, &[110.0, 110.0, 110.0]),
            row("nccl-cublaslt", Kind::AllGatherGemm, &[150.0, 152.0, 148.0]),
            row("torch-fused", Kind::AllGatherGemm, &[130.0, 130.0, 130.0]),
            wrong,
            row("fused", Kind::AllGatherGemm, &[105.0, 107.0, 103.0]),
            row("gather", Kind::AllGather, &[40.0, 40.0, 40.0]),
        ];
        let text = CaseReport { name: "a case".into(), rows }.to_string();
        let line = |who: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.find(|words| words.first() == Some(&who)).unwrap_or_default()
        };
        // Name, launch, time, spread, %, ÷ T_gemm, ÷ nccl-cublaslt, ÷ best peer, E, %.
        assert_eq!(line("fused")[5..10], ["1.050", "0.700", "0.808", "90", "%"], "{text}");
        assert_eq!(line("nccl-cublaslt")[8..10], ["0", "%"], "{text}");
        assert_eq!(line("cublaslt")[5..9], ["1.000", "0.667", "0.769", "–"], "{text}");
        assert_eq!(line("torch-native")[2..6], ["FAILED:", "off", "by", "1"], "{text}");
        assert_eq!(line("gather")[8], "–", "{text}");
    }
}
