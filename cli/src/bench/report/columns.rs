//! Figures by name: a time, a ratio of two times, an efficiency, of one problem launched in one way.
//!
//! Invariant: `compare` computes all figures; this file looks them up. Names are those of the contenders, and `gemm`,
//! `peer` and `strategy` for the fastest of a kind.

use std::str::FromStr;

use super::{CaseReport, Row};
use crate::statistics::median;

/// A figure by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    who: String,
    figure: Figure,
    /// What a ratio should not exceed.
    pub bar: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Figure {
    /// In microseconds.
    Time,
    /// Over that of another.
    Ratio(String),
    /// The overlap efficiency.
    Efficiency,
}

impl FromStr for Column {
    type Err = String;

    /// Reads `auto`, `auto/gemm`, `auto/gemm@1.03` and `auto:E`.
    fn from_str(text: &str) -> Result<Column, String> {
        let wrong =
            || "give times, ratios and efficiencies: auto,auto/gemm,auto/gemm@1.03,auto:E".into();
        let (name, bar) = match text.split_once('@') {
            Some((name, bar)) => (name, Some(bar.parse().unwrap_or(f64::NAN))),
            None => (text, None),
        };
        let (who, figure) = match (name.split_once('/'), name.split_once(':')) {
            (Some((over, under)), None) if !under.is_empty() => (over, Figure::Ratio(under.into())),
            (None, Some((who, "E"))) => (who, Figure::Efficiency),
            (None, None) => (name, Figure::Time),
            _ => return Err(wrong()),
        };
        let column = Column { who: who.into(), figure, bar };
        let fits = |bar: f64| column.is_ratio() && bar.is_finite() && bar > 0.0;
        if who.is_empty() || !bar.is_none_or(fits) { Err(wrong()) } else { Ok(column) }
    }
}

/// The row of this name.
fn row<'a>(case: &'a CaseReport, name: &str, graph: bool) -> Option<&'a Row> {
    match name {
        "gemm" => case.gemm(graph),
        "peer" => case.peer(graph),
        "strategy" => case.strategy(graph),
        who => case.named(who, graph),
    }
}

/// The name in a heading.
fn heading(name: &str, cases: &[&CaseReport]) -> String {
    match name {
        "gemm" => "T_gemm".into(),
        "peer" => {
            let mut peers = cases.iter().flat_map(|case| &case.rows).filter(|row| row.peer);
            let all_torch = peers.all(|row| row.who.starts_with("torch-"));
            format!("best {}", if all_torch { "PyTorch" } else { "peer" })
        }
        "strategy" => "best strategy".into(),
        "nccl-cublaslt" => "NCCL + cuBLASLt".into(),
        who => who.into(),
    }
}

impl Column {
    /// The figure in each round; none where a row that belongs to it has no times.
    pub fn rounds(&self, case: &CaseReport, graph: bool) -> Vec<f64> {
        let rounds = || {
            let own = row(case, &self.who, graph)?;
            Some(match &self.figure {
                Figure::Time => own.rounds_us.clone(),
                Figure::Ratio(under) => own.over(row(case, under, graph)?),
                Figure::Efficiency => case.efficiency(own),
            })
        };
        rounds().unwrap_or_default()
    }

    /// The median as text, a ratio with `decimals` decimals: FAILED for the time of a wrong result, – where there is none.
    pub fn text(&self, case: &CaseReport, graph: bool, decimals: usize) -> String {
        let failed = |row: &Row| row.who == self.who && row.graph == graph && row.failed.is_some();
        match median(&self.rounds(case, graph)) {
            Some(value) => self.written(value, decimals),
            None if self.figure == Figure::Time && case.rows.iter().any(failed) => "FAILED".into(),
            None => "–".into(),
        }
    }

    /// A number of this column as text.
    pub fn written(&self, value: f64, decimals: usize) -> String {
        match self.figure {
            Figure::Time => format!("{value:.1}"),
            Figure::Ratio(_) => format!("{value:.decimals$}"),
            Figure::Efficiency => format!("{:.0} %", 100.0 * value),
        }
    }

    /// Whether it is a ratio of two times.
    pub fn is_ratio(&self) -> bool {
        matches!(self.figure, Figure::Ratio(_))
    }

    /// The column's heading.
    pub fn heading(&self, cases: &[&CaseReport]) -> String {
        let who = heading(&self.who, cases);
        let heading = match &self.figure {
            Figure::Time => who,
            Figure::Ratio(under) => match heading(under, cases) {
                under if under.contains('+') => format!("{who} ÷ ({under})"),
                under => format!("{who} ÷ {under}"),
            },
            Figure::Efficiency => format!("E of {who}"),
        };
        self.bar.map_or(heading.clone(), |bar| format!("{heading}, bar {bar}"))
    }

    /// A name in it that no contender has, with the names that exist.
    pub fn unknown(&self, cases: &[&CaseReport]) -> Option<String> {
        let mut known = vec!["gemm", "peer", "strategy"];
        for row in cases.iter().flat_map(|case| &case.rows) {
            if !known.contains(&row.who.as_str()) {
                known.push(&row.who);
            }
        }
        let under = match &self.figure {
            Figure::Ratio(under) => Some(under),
            _ => None,
        };
        let mut names = [Some(&self.who), under].into_iter().flatten();
        let unknown = names.find(|name| !known.contains(&name.as_str()))?;
        Some(format!("no contender is called '{unknown}'; give one of {}", known.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::super::made_up::{row, usual_case};
    use super::*;

    fn column(text: &str) -> Column {
        text.parse().unwrap()
    }

    #[test]
    fn a_figure_is_looked_up_by_name() {
        let case = usual_case(1024);
        for (name, heading, text) in [
            ("gemm", "T_gemm", "100.0"),
            ("own", "own", "103.0"),
            ("nccl-cublaslt", "NCCL + cuBLASLt", "150.0"),
            ("peer", "best PyTorch", "130.0"),
            ("torch-native", "torch-native", "FAILED"),
            ("fused/gemm", "fused ÷ T_gemm", "1.05"),
            ("fused/nccl-cublaslt", "fused ÷ (NCCL + cuBLASLt)", "0.70"),
            ("fused/peer", "fused ÷ best PyTorch", "0.81"),
            ("torch-native/gemm", "torch-native ÷ T_gemm", "–"),
            ("fused/strategy", "fused ÷ best strategy", "–"),
            ("fused/gemm@1.05", "fused ÷ T_gemm, bar 1.05", "1.05"),
            ("fused:E", "E of fused", "90 %"),
            ("own:E", "E of own", "–"),
        ] {
            let column = column(name);
            assert_eq!(column.heading(&[&case]), heading);
            assert_eq!(column.text(&case, true, 2), text, "{name}");
            assert_eq!(column.text(&case, false, 2), "–", "{name}");
            assert_eq!(column.unknown(&[&case]), None, "{name}");
        }
        let why = column("gemm/fsued").unknown(&[&case]).unwrap();
        assert!(why.contains("'fsued'") && why.ends_with("fused, gather"), "{why}");
    }

    #[test]
    fn the_best_strategy_is_known_where_all_have_times() {
        let mut case = usual_case(1024);
        for (who, us) in [("pipelined", 100.0), ("sequential", 140.0), ("auto", 90.0)] {
            assert_eq!(column("auto/strategy").text(&case, true, 2), "–");
            case.rows.push(row(who, Kind::AllGatherGemm, &[us; 3]));
        }
        assert_eq!(column("auto/strategy").text(&case, true, 2), "0.90");
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        for text in [
            "",
            "/",
            "auto/",
            "/gemm",
            "auto:",
            ":E",
            "auto:F",
            "a/b:E",
            "auto@1",
            "auto:E@1",
            "auto/gemm@",
            "auto/gemm@x",
            "auto/gemm@0",
            "a/b@inf",
        ] {
            let why = text.parse::<Column>().unwrap_err();
            assert!(why.contains("auto/gemm@1.03,auto:E"), "{text}: {why}");
        }
    }
}
