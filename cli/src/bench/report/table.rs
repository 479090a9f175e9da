//! The results as text: a block a case, a line a contender and launch.
//!
//! Invariant: the text says nothing that the JSON does not; what was not measured is a dash, a wrong result is
//! FAILED. Figures across runs, of medians alone, have a ~.

use std::fmt;

use super::super::statistics::{Summary, geometric_mean};
use super::compare::{Compared, Comparison, Entry, Figure};
use super::{CaseReport, Kind, launch_name};

/// The columns of ratios.
const UNDER: [(&str, usize); 3] = [("÷ T_gemm", 9), ("÷ nccl-cublaslt", 16), ("÷ best peer", 12)];

impl Figure {
    /// Behind a ~ unless it is of rounds.
    pub fn with_decimals(self, decimals: usize) -> String {
        let about = if self.paired { "" } else { "~" };
        format!("{about}{:.decimals$}", self.value)
    }

    /// The same as a percentage.
    pub fn percent(self) -> String {
        let hundredfold = Figure { value: 100.0 * self.value, ..self };
        format!("{} %", hundredfold.with_decimals(0))
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.with_decimals(3))
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Compared::of(self).fmt(f)
    }
}

impl fmt::Display for Compared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.entries.iter().map(|entry| entry.label.chars().count()).max();
        let name = name.unwrap_or(0).max(14);
        writeln!(f, "{}", self.name)?;
        write!(
            f,
            "  {:name$} {:6} {:>9} {:>8} {:>12}",
            "who", "launch", "µs a step", "spread", "rate"
        )?;
        UNDER.iter().try_for_each(|(name, width)| write!(f, " {name:>width$}"))?;
        writeln!(f, " {:>8} {:>10}", "E", "host µs")?;
        self.entries.iter().try_for_each(|entry| {
            write!(f, "  {:name$} {:6} ", entry.label, entry.row.launch())?;
            self.write_line(f, entry)
        })?;
        for graph in [true, false] {
            if let Some(tax) = self.tax(graph) {
                writeln!(f, "  own ÷ cublaslt, {}: {tax}", launch_name(graph))?;
            }
            let seq = self.one_after_the_other(graph).filter(|_| self.nccl(graph).is_none());
            if let Some(Entry { label, .. }) = seq {
                writeln!(f, "  E, {}: beside {label}", launch_name(graph))?;
            }
        }
        Ok(())
    }
}

impl Compared<'_> {
    fn write_line(&self, f: &mut fmt::Formatter<'_>, entry: &Entry<'_>) -> fmt::Result {
        let row = entry.row;
        if let Some(why) = &row.failed {
            return writeln!(f, "FAILED: {why}");
        }
        let Some(times) = entry.times else { return writeln!(f, "–") };
        write!(f, "{:9.1} {:6.1} %", times.median, 100.0 * times.spread())?;
        let rate = match row.kind {
            Kind::AllGather => format!("{:.0} GB/s", self.gigabytes(times.median)),
            _ => match self.teraflops(times.median) {
                // Threads, or a few rows.
                few if few < 10.0 => format!("{:.0} GFLOP/s", 1e3 * few),
                many => format!("{many:.0} TFLOP/s"),
            },
        };
        write!(f, " {rate:>12}")?;
        let unders = [self.gemm(row.graph), self.nccl(row.graph), self.peer(row.graph)];
        for (under, (_, width)) in unders.into_iter().zip(UNDER) {
            match under.and_then(|under| entry.over(under)) {
                Some(ratio) => write!(f, " {ratio:>width$}")?,
                None => write!(f, " {:>width$}", "–")?,
            }
        }
        match self.efficiency(entry) {
            Some(figure) => write!(f, " {:>8}", figure.percent())?,
            None => write!(f, " {:>8}", "–")?,
        }
        match Summary::of(&row.host_us) {
            Some(host) => writeln!(f, " {:10.1}", host.median),
            None => writeln!(f, " {:>10}", "–"),
        }
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setups.iter().try_for_each(|setup| writeln!(f, "{setup}"))?;
        for (nth, run) in self.runs.iter().enumerate() {
            if self.runs.len() > 1 {
                write!(f, "[{}] ", nth + 1)?;
            }
            write!(f, "{} {}", run.program, run.version)?;
            run.nccl.as_ref().map_or(Ok(()), |nccl| write!(f, ", NCCL {nccl}"))?;
            let copied = if run.copied { ", rows copied" } else { "" };
            writeln!(f, "; {} steps a loop, {} rounds: medians{copied}", run.steps, run.rounds)?;
            if let Some(why) = &run.ended_early {
                writeln!(f, "    ended early, after {} of its cases: {why}", run.cases.len())?;
            }
        }
        for case in &self.cases {
            writeln!(f)?;
            if self.setups.len() > 1 {
                write!(f, "{}: ", self.setups[case.setup])?;
            }
            write!(f, "{case}")?;
        }
        self.write_means(f)
    }
}

impl Comparison<'_> {
    /// How everybody compares with T_gemm in the mean of all cases of a setup, where there are several.
    fn write_means(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.setups.len()).try_for_each(|setup| self.write_means_of(f, setup))
    }

    fn write_means_of(&self, f: &mut fmt::Formatter<'_>, setup: usize) -> fmt::Result {
        let mut means: Vec<(&str, bool, Vec<f64>)> = Vec::new();
        for case in self.cases.iter().filter(|case| case.setup == setup) {
            for entry in case.entries.iter().filter(|entry| entry.row.kind == Kind::AllGatherGemm) {
                let graph = entry.row.graph;
                let Some(over) = case.gemm(graph).and_then(|gemm| entry.over(gemm)) else {
                    continue;
                };
                let known = means
                    .iter_mut()
                    .find(|(label, launch, _)| *label == entry.label && *launch == graph);
                match known {
                    Some((.., all)) => all.push(over.value),
                    None => means.push((&entry.label, graph, vec![over.value])),
                }
            }
        }
        means.retain(|(.., all)| all.len() > 1);
        if means.is_empty() {
            return Ok(());
        }
        let name = means.iter().map(|(label, ..)| label.chars().count()).max().unwrap_or(0).max(14);
        write!(f, "\n÷ T_gemm, geometric mean")?;
        if self.setups.len() > 1 {
            write!(f, ", {}", self.setups[setup])?;
        }
        writeln!(f)?;
        for (label, graph, all) in means {
            let Some(mean) = geometric_mean(&all) else { continue };
            let launch = launch_name(graph);
            writeln!(f, "  {label:name$} {launch:6} {mean:9.3}   of {} cases", all.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, row, run, usual_case};
    use super::*;

    fn words<'a>(text: &'a str, who: &str) -> Vec<&'a str> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words.first() == Some(&who)).unwrap_or_default()
    }

    #[test]
    fn a_line_compares_with_the_fastest_of_each_kind() {
        let text = usual_case(1024).to_string();
        // Name, launch, time, spread, %, rate, unit, ÷ T_gemm, ÷ nccl-cublaslt, ÷ best peer, E, %.
        let fused = words(&text, "fused");
        assert_eq!(fused[7..12], ["1.050", "0.700", "0.808", "90", "%"], "{text}");
        assert_eq!(fused[5..7], ["573", "TFLOP/s"], "{text}");
        assert_eq!(words(&text, "nccl-cublaslt")[10..12], ["0", "%"], "{text}");
        assert_eq!(words(&text, "cublaslt")[7..11], ["1.000", "0.667", "0.769", "–"], "{text}");
        assert_eq!(words(&text, "torch-native")[2..6], ["FAILED:", "off", "by", "1"], "{text}");
        assert_eq!(words(&text, "gather")[5..7], ["210", "GB/s"], "{text}");
        assert!(text.contains("own ÷ cublaslt, graph: 1.030\n"), "{text}");
    }

    #[test]
    fn without_nccl_efficiency_is_told_beside_the_librarys_own() {
        let mut case = usual_case(1024);
        case.rows.retain(|row| row.who != "nccl-cublaslt");
        assert_eq!(words(&case.to_string(), "fused")[10], "–", "{case}");
        case.rows.push(row("sequential", Kind::AllGatherGemm, &[120.0, 122.4, 117.6]));
        let text = case.to_string();
        assert_eq!(words(&text, "fused")[10..12], ["75", "%"], "{text}");
        assert!(text.contains("\n  E, graph: beside sequential\n"), "{text}");
    }

    #[test]
    fn runs_are_numbered_and_figures_across_them_marked() {
        let peers = case(1024, vec![row("torch-new", Kind::AllGatherGemm, &[90.0, 99.0, 120.0])]);
        let mut second = run(vec![peers]);
        second.program = "PyTorch".into();
        let runs = [run(vec![usual_case(1024), usual_case(64)]), second];
        let text = Comparison::of(&runs).to_string();
        assert!(
            text.starts_with("2 × NVIDIA H200, driver 580.1\n[1] overlap-gemm 0.0.0"),
            "{text}"
        );
        assert!(text.contains("[2] PyTorch 0.0.0"), "{text}");
        assert_eq!(words(&text, "torch-new")[7..9], ["~0.990", "~0.660"], "{text}");
        assert!(text.contains("fused          graph      1.050   of 2 cases"), "{text}");
        assert!(!text.contains("early"), "{text}");
    }

    #[test]
    fn means_are_of_one_setup() {
        let faster = |m: u64| {
            let mut case = usual_case(m);
            let rows = case.rows.iter_mut().filter(|row| row.kind == Kind::AllGatherGemm);
            rows.flat_map(|row| &mut row.rounds_us).for_each(|time| *time /= 2.0);
            case
        };
        let mut other = run(vec![faster(1024), faster(64)]);
        other.machine.gpu = "NVIDIA H100".into();
        let runs = [run(vec![usual_case(1024), usual_case(64)]), other];
        let text = Comparison::of(&runs).to_string();
        for (gpu, mean) in [("H200", "1.050"), ("H100", "0.525")] {
            let head = format!("÷ T_gemm, geometric mean, 2 × NVIDIA {gpu}, driver 580.1\n");
            let (_, means) = text.split_once(&head).expect(&head);
            assert_eq!(words(means, "fused")[2..], [mean, "of", "2", "cases"], "{text}");
        }
    }

    #[test]
    fn a_run_that_was_cut_short_says_so() {
        let mut short = run(vec![usual_case(1024)]);
        short.ended_early = Some("interrupted".into());
        let text = Comparison::of(&[short]).to_string();
        assert!(text.contains("\n    ended early, after 1 of its cases: interrupted\n"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_panic() {
        assert_eq!(Comparison::of(&[]).to_string(), "");
        let text = Comparison::of(&[run(vec![case(8, vec![])])]).to_string();
        assert!(text.contains("8×3584×8192 bf16"), "{text}");
    }
}
