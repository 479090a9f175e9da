//! Figures by name: a time, a ratio of two times, an efficiency, of one problem launched in one way.
//!
//! Invariant: a figure is computed in `compare` alone, here it is only asked for by name. Names are those of the
//! results, and `gemm`, `peer` and `strategy` for the fastest of a kind; a name of several runs' rows has to say which.

use std::str::FromStr;

use super::compare::{Compared, Comparison, Entry, Figure};

/// Whose time it is.
#[derive(Clone, Debug, PartialEq)]
enum Who {
    /// The fastest plain GEMM with A already gathered.
    Gemm,
    /// The fastest of other programs.
    Peer,
    /// The fastest strategy, where all took part.
    Strategy,
    /// A contender, by its label.
    Named(String),
}

/// A figure by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    who: Who,
    figure: Wanted,
    /// What a ratio is hoped not to be above.
    pub bar: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    /// The median, in microseconds.
    Time,
    /// Over another's.
    Over(Who),
    /// The overlap efficiency.
    Efficiency,
}

impl From<&str> for Who {
    fn from(name: &str) -> Who {
        match name {
            "gemm" => Who::Gemm,
            "peer" => Who::Peer,
            "strategy" => Who::Strategy,
            name => Who::Named(name.into()),
        }
    }
}

impl FromStr for Column {
    type Err = String;

    /// Reads `auto`, `auto/gemm`, `auto/gemm@1.03` and `auto:E`.
    fn from_str(text: &str) -> Result<Column, String> {
        let (name, bar) = match text.split_once('@') {
            Some((name, bar)) => (name, Some(bar.parse().unwrap_or(f64::NAN))),
            None => (text, None),
        };
        let (who, figure) = match (name.split_once('/'), name.split_once(':')) {
            (Some((over, under)), None) => (over, Wanted::Over(under.into())),
            (None, Some((who, "E"))) => (who, Wanted::Efficiency),
            (None, None) => (name, Wanted::Time),
            _ => ("", Wanted::Time),
        };
        let names = [Some(who), name.split_once('/').map(|(_, under)| under)];
        if names.into_iter().flatten().any(str::is_empty) {
            return Err("give names, ratios and efficiencies, such as auto,auto/gemm,auto:E".into());
        }
        let column = Column { who: who.into(), figure, bar };
        match bar {
            Some(bar) if !(column.is_ratio() && bar.is_finite() && bar > 0.0) => {
                Err("behind a ratio's @ give what it should not be above: auto/gemm@1.03".into())
            }
            _ => Ok(column),
        }
    }
}

impl Who {
    fn of<'c, 'a>(&self, case: &'c Compared<'a>, graph: bool) -> Option<&'c Entry<'a>> {
        match self {
            Who::Gemm => case.gemm(graph),
            Who::Peer => case.peer(graph),
            Who::Strategy => case.strategy(graph),
            Who::Named(label) => case.labelled(label, graph),
        }
    }

    /// As a heading; `peers` is whose programs the others are.
    fn heading(&self, peers: &str) -> String {
        match self {
            Who::Gemm => "T_gemm".into(),
            Who::Peer => format!("best {peers}"),
            Who::Strategy => "best strategy".into(),
            Who::Named(name) if name == "nccl-cublaslt" => "NCCL + cuBLASLt".into(),
            Who::Named(name) => name.clone(),
        }
    }
}

impl Column {
    /// The figure; `None` where somebody who belongs to it has no time.
    pub fn figure(&self, case: &Compared<'_>, graph: bool) -> Option<Figure> {
        let entry = self.who.of(case, graph)?;
        match &self.figure {
            Wanted::Time => Some(Figure { value: entry.median()?, paired: true, range: None }),
            Wanted::Over(under) => entry.over(under.of(case, graph)?),
            Wanted::Efficiency => case.efficiency(entry),
        }
    }

    /// The figure as text, a ratio with so many decimals, bold if it has a bar and meets it: FAILED for the time of a
    /// wrong result, – if there is none.
    pub fn text(&self, case: &Compared<'_>, graph: bool, decimals: usize) -> String {
        match (self.figure(case, graph), &self.who, &self.figure) {
            (Some(figure), ..) => {
                let written = self.written(figure, decimals);
                let met = self.bar.is_some_and(|bar| figure.value <= bar);
                if met { format!("**{written}**") } else { written }
            }
            (None, Who::Named(label), Wanted::Time) if case.failed(label, graph) => "FAILED".into(),
            (None, ..) => "–".into(),
        }
    }

    /// A figure of this column as text.
    pub fn written(&self, figure: Figure, decimals: usize) -> String {
        match self.figure {
            Wanted::Time => figure.with_decimals(1),
            Wanted::Over(_) => figure.with_decimals(decimals),
            Wanted::Efficiency => figure.percent(),
        }
    }

    /// Whether it says how many times as long something takes.
    pub fn is_ratio(&self) -> bool {
        matches!(self.figure, Wanted::Over(_))
    }

    /// What stands above it.
    pub fn heading(&self, all: &Comparison<'_>) -> String {
        let peers = all.peers();
        let who = self.who.heading(peers);
        let heading = match &self.figure {
            Wanted::Time => who,
            Wanted::Over(under) => match under.heading(peers) {
                under if under.contains('+') => format!("{who} ÷ ({under})"),
                under => format!("{who} ÷ {under}"),
            },
            Wanted::Efficiency => format!("E of {who}"),
        };
        self.bar.map_or(heading.clone(), |bar| format!("{heading}, bar {bar}"))
    }

    /// A contender that it names and nobody is called, and who there is.
    pub fn unknown(&self, all: &Comparison<'_>) -> Option<String> {
        let under = match &self.figure {
            Wanted::Over(under) => Some(under),
            _ => None,
        };
        let labels = all.labels();
        let unknown = [Some(&self.who), under].into_iter().flatten().find_map(|who| match who {
            Who::Named(name) if !labels.contains(&name.as_str()) => Some(name),
            _ => None,
        })?;
        let labels = labels.join(", ");
        Some(format!("nobody is called '{unknown}'; there are gemm, peer, strategy, {labels}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{run, usual_case};
    use super::*;

    fn column(text: &str) -> Column {
        text.parse().unwrap()
    }

    #[test]
    fn a_figure_is_asked_for_by_name() {
        let runs = [run(vec![usual_case(1024)])];
        let all = Comparison::of(&runs);
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
            ("fused/gemm@1.05", "fused ÷ T_gemm, bar 1.05", "**1.05**"),
            ("fused/gemm@1.04", "fused ÷ T_gemm, bar 1.04", "1.05"),
            ("fused:E", "E of fused", "90 %"),
            ("own:E", "E of own", "–"),
        ] {
            let column = column(name);
            assert_eq!(column.heading(&all), heading);
            assert_eq!(column.text(&all.cases[0], true, 2), text, "{name}");
            assert_eq!(column.text(&all.cases[0], false, 2), "–", "{name}");
            assert_eq!(column.unknown(&all), None, "{name}");
        }
    }

    #[test]
    fn the_best_strategy_is_known_where_all_took_part() {
        use super::super::{Kind, made_up::row};
        let mut case = usual_case(1024);
        for (who, us) in [("pipelined", 100.0), ("sequential", 140.0), ("auto", 90.0)] {
            assert_eq!(column("auto/strategy").text(&Compared::of(&case), true, 2), "–");
            case.rows.push(row(who, Kind::AllGatherGemm, &[us; 3]));
        }
        assert_eq!(column("auto/strategy").text(&Compared::of(&case), true, 2), "0.90");
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        for text in ["", "/", "auto/", "/gemm", "auto:", ":E", "auto:F", "a/b:E"] {
            let why = text.parse::<Column>().unwrap_err();
            assert!(why.contains("auto:E"), "{text}: {why}");
        }
        for text in ["auto@1", "auto:E@1", "auto/gemm@", "auto/gemm@x", "auto/gemm@0", "a/b@inf"] {
            let why = text.parse::<Column>().unwrap_err();
            assert!(why.contains("auto/gemm@1.03"), "{text}: {why}");
        }
    }

    #[test]
    fn whoever_is_in_several_runs_has_to_be_told_apart() {
        let runs = [run(vec![usual_case(1024)]), run(vec![usual_case(1024)])];
        let all = Comparison::of(&runs);
        let why = column("fused/gemm").unknown(&all).unwrap();
        assert!(why.contains("'fused'") && why.contains("fused [1]"), "{why}");
        assert_eq!(column("gemm/fused [2]").unknown(&all), None);
        let why = column("gemm/fsued").unknown(&all).unwrap();
        assert!(why.contains("'fsued'"), "{why}");
    }
}
