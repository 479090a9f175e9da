//! The results as text: a block a case, a line a contender and launch.
//!
//! Invariant: the text says nothing that the JSON does not. A ratio is the median of the rounds' ratios, with the least and
//! the largest of them, and the lines below the table say so; figures across runs, of medians alone, have a ~. A column
//! that nobody has a figure in is left out.

use std::fmt;

use super::super::statistics::{Summary, geometric_mean};
use super::super::wanted::{Gatherer, Multiplier};
use super::compare::{Compared, Comparison, Entry, Figure};
use super::{CaseReport, Kind, launch_name};

/// What is not there.
const NONE: &str = "–";

/// A spread from which on times are called noisy: quiet GPUs are below one per cent.
const NOISY: f64 = 0.05;

/// Ratios that are told of a case, besides those over T_gemm: what own kernels cost, and what waiting for signals costs.
const PAIRS: [(&str, &str); 2] = [
    (Gatherer::Own.name(), Gatherer::Cublaslt.name()),
    (Multiplier::OwnSet.name(), Multiplier::Own.name()),
];

const LEGEND: &str = "\
T_gemm: the fastest plain GEMM (cuBLASLt, ours or a peer's) with A already gathered. spread: distance of the quartiles ÷ median.
÷: median of the rounds' ratios (least–largest), not the quotient of two medians. E = 1 − (T − T_gemm) ÷ (T_baseline − T_gemm).";

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
        let mut text = self.with_decimals(3);
        if let Some((least, most)) = self.range {
            text += &format!(" ({least:.3}–{most:.3})");
        }
        f.pad(&text)
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Compared::of(self).fmt(f)
    }
}

/// The headings of a case's columns.
const HEADS: [&str; 10] = [
    "contender",
    "launch",
    "µs a step",
    "spread",
    "rate",
    "÷ T_gemm",
    "÷ nccl-cublaslt",
    "÷ best peer",
    "E",
    "host µs",
];
/// Those of words, which begin at the left.
const OF_WORDS: usize = 2;

impl fmt::Display for Compared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        let lines: Vec<[String; HEADS.len()]> =
            self.entries.iter().map(|entry| self.cells(entry)).collect();
        let widths: [usize; HEADS.len()] = std::array::from_fn(|nth| {
            let widest = lines.iter().map(|line| line[nth].chars().count()).max();
            match nth < OF_WORDS || lines.iter().any(|line| !["", NONE].contains(&&*line[nth])) {
                true => widest.unwrap_or(0).max(HEADS[nth].chars().count()),
                false => 0,
            }
        });
        let line = |cells: [&str; HEADS.len()]| {
            let mut text = String::new();
            for (nth, (cell, width)) in cells.into_iter().zip(widths).enumerate() {
                match nth {
                    _ if width == 0 => {}
                    ..OF_WORDS => text += &format!("  {cell:width$}"),
                    _ => text += &format!("  {cell:>width$}"),
                }
            }
            text
        };
        writeln!(f, "{}", line(HEADS).trim_end())?;
        // Of one rank, each variant of a contender is a line, which says its kernel.
        let kernels = self.problem.ranks() == 1;
        for (cells, Entry { row, times, .. }) in lines.iter().zip(&self.entries) {
            let text = line(std::array::from_fn(|nth| cells[nth].as_str()));
            let text = text.trim_end();
            match (&row.failed, &row.absent) {
                (Some(why), _) => writeln!(f, "{text}  FAILED: {why}")?,
                (None, Some(why)) if kernels => writeln!(f, "{text}  {}: {why}", row.what)?,
                (None, Some(why)) => writeln!(f, "{text}  not timed: {why}")?,
                _ if kernels && times.is_some() => writeln!(f, "{text}  {}", row.what)?,
                _ => writeln!(f, "{text}")?,
            }
        }
        self.write_notes(f)
    }
}

impl Compared<'_> {
    fn cells(&self, entry: &Entry<'_>) -> [String; HEADS.len()] {
        let row = entry.row;
        let mut cells = <[String; HEADS.len()]>::default();
        (cells[0], cells[1]) = (entry.label.clone(), row.launch().into());
        let Some(times) = entry.times else { return cells };
        cells[2] = format!("{:.1}", times.median);
        cells[3] = format!("{:.1} %", 100.0 * times.spread());
        cells[4] = match row.kind {
            Kind::AllGather => format!("{:.0} GB/s", self.gigabytes(times.median)),
            _ => match self.teraflops(times.median) {
                // Threads, or a few rows.
                few if few < 10.0 => format!("{:.0} GFLOP/s", 1e3 * few),
                many => format!("{many:.0} TFLOP/s"),
            },
        };
        let unders = [self.gemm(row.graph), self.nccl(row.graph), self.peer(row.graph)];
        for (cell, under) in cells[5..].iter_mut().zip(unders) {
            *cell =
                under.and_then(|under| entry.over(under)).map_or(NONE.into(), |it| it.to_string());
        }
        cells[8] = self.efficiency(entry).map_or(NONE.into(), Figure::percent);
        let host = Summary::of(&row.host_us);
        cells[9] = host.map_or(NONE.into(), |host| format!("{:.1}", host.median));
        cells
    }

    /// What is said below a case.
    fn write_notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for graph in [true, false] {
            let launch = launch_name(graph);
            for (over, under) in PAIRS {
                if let Some(ratio) = self.pair(over, under, graph) {
                    writeln!(f, "  {over} ÷ {under}, {launch}: {ratio}")?;
                }
            }
            let baseline = self.baseline(graph).filter(|_| self.nccl(graph).is_none());
            if let Some(Entry { label, .. }) = baseline {
                writeln!(f, "  E, {launch}: the baseline is {label}")?;
            }
        }
        let mut plans: Vec<String> = Vec::new();
        for row in self.entries.iter().map(|entry| entry.row) {
            if let Some(arrivals) = &row.arrivals
                && let Some(ratio) = Figure::of_rounds(&arrivals.over_ideal)
            {
                writeln!(f, "  {} ÷ ideal, {}: {ratio}", row.who, row.launch())?;
            }
            // How `auto` was planned; however launched, once.
            let plan = format!("  {}: {}", row.who, row.what.replace('\n', "; "));
            if row.who == Gatherer::Auto.name() && !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        plans.iter().try_for_each(|plan| writeln!(f, "{plan}"))
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
            let unchecked = if run.unchecked { ", results NOT checked" } else { "" };
            writeln!(
                f,
                "; {} steps a loop or more, {} rounds{copied}{unchecked}",
                run.steps, run.rounds
            )?;
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
        (0..self.setups.len()).try_for_each(|setup| self.write_means(f, setup))?;
        if !self.cases.is_empty() {
            writeln!(f, "\n{LEGEND}")?;
        }
        if self.runs.len() > 1 {
            writeln!(f, "~: between runs, the quotient of two medians.")?;
        }
        self.noise().map_or(Ok(()), |warning| writeln!(f, "{warning}"))
    }
}

impl Comparison<'_> {
    /// A warning, where times are spread so far that they say little.
    fn noise(&self) -> Option<String> {
        let timed = self.cases.iter().flat_map(|case| {
            let spread =
                |entry: &Entry<'_>| Some((entry.times?.spread(), case.name, entry.label.clone()));
            case.entries.iter().filter_map(spread).collect::<Vec<_>>()
        });
        let timed: Vec<_> = timed.collect();
        let noisy = timed.iter().filter(|(spread, ..)| *spread > NOISY).count();
        let (worst, case, label) = timed.iter().max_by(|one, other| one.0.total_cmp(&other.0))?;
        (noisy > 0).then(|| {
            format!(
                "noise: the spread of {noisy} of {} times is above {:.0} %, at worst {:.0} % ({label}, {case}): measure again \
                 on a quieter machine, or with more --rounds",
                timed.len(),
                100.0 * NOISY,
                100.0 * worst
            )
        })
    }

    /// Geometric means of ratios over all cases of a setup, where there are several.
    fn write_means(&self, f: &mut fmt::Formatter<'_>, setup: usize) -> fmt::Result {
        let mut means: Vec<(String, bool, Vec<f64>)> = Vec::new();
        let mut add = |name: String, graph: bool, ratio: Option<Figure>| {
            let Some(Figure { value, .. }) = ratio else { return };
            match means.iter_mut().find(|(known, launch, _)| *known == name && *launch == graph) {
                Some((.., all)) => all.push(value),
                None => means.push((name, graph, vec![value])),
            }
        };
        for case in self.cases.iter().filter(|case| case.setup == setup) {
            for entry in case.entries.iter().filter(|entry| entry.row.kind == Kind::AllGatherGemm) {
                let graph = entry.row.graph;
                let ratio = case.gemm(graph).and_then(|gemm| entry.over(gemm));
                add(format!("{} ÷ T_gemm", entry.label), graph, ratio);
            }
            for graph in [true, false] {
                for (over, under) in PAIRS {
                    add(format!("{over} ÷ {under}"), graph, case.pair(over, under, graph));
                }
            }
        }
        means.retain(|(.., all)| all.len() > 1);
        let Some(width) = means.iter().map(|(name, ..)| name.chars().count()).max() else {
            return Ok(());
        };
        write!(f, "\ngeometric means")?;
        if self.setups.len() > 1 {
            write!(f, ", {}", self.setups[setup])?;
        }
        writeln!(f)?;
        for (name, graph, all) in means {
            let Some(mean) = geometric_mean(&all) else { continue };
            let launch = launch_name(graph);
            writeln!(f, "  {name:width$}  {launch:6}  {mean:.3}  of {} cases", all.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, row, run, usual_case, wrong};
    use super::*;

    fn words<'a>(text: &'a str, who: &str) -> Vec<&'a str> {
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words.first() == Some(&who)).unwrap_or_default()
    }

    #[test]
    fn a_line_compares_with_the_fastest_of_each_kind() {
        let text = usual_case(1024).to_string();
        // Name, launch, time, spread, %, rate, unit, ÷ T_gemm, ÷ nccl-cublaslt, ÷ best peer (each with its range), E, %.
        let fused = words(&text, "fused");
        assert_eq!(
            fused[7..15],
            [
                "1.050",
                "(1.050–1.050)",
                "0.700",
                "(0.700–0.700)",
                "0.808",
                "(0.808–0.808)",
                "90",
                "%"
            ],
            "{text}"
        );
        assert_eq!(fused[5..7], ["573", "TFLOP/s"], "{text}");
        assert_eq!(words(&text, "nccl-cublaslt")[13..15], ["0", "%"], "{text}");
        let cublaslt = words(&text, "cublaslt");
        assert_eq!(
            [7, 9, 11, 13].map(|nth| cublaslt[nth]),
            ["1.000", "0.667", "0.769", "–"],
            "{text}"
        );
        assert!(!text.contains("host µs"), "nobody has such a time: {text}");
        assert_eq!(words(&text, "torch-native")[2..6], ["FAILED:", "off", "by", "1"], "{text}");
        assert_eq!(words(&text, "gather")[5..7], ["210", "GB/s"], "{text}");
        assert!(text.contains("own ÷ cublaslt, graph: 1.030 (1.030–1.030)\n"), "{text}");
    }

    #[test]
    fn without_nccl_efficiency_is_told_beside_the_librarys_own() {
        let mut case = usual_case(1024);
        case.rows.retain(|row| row.who != "nccl-cublaslt");
        assert!(!case.to_string().contains(" E"), "{case}");
        case.rows.push(row("sequential", Kind::AllGatherGemm, &[120.0, 122.4, 117.6]));
        let text = case.to_string();
        assert_eq!(words(&text, "fused")[11..13], ["75", "%"], "{text}");
        assert!(text.contains("\n  E, graph: the baseline is sequential\n"), "{text}");
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
        assert!(text.contains("  fused ÷ T_gemm          graph   1.050  of 2 cases\n"), "{text}");
        assert!(text.contains("\n~: between runs") && !text.contains("early"), "{text}");
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
            let head = format!("geometric means, 2 × NVIDIA {gpu}, driver 580.1\n");
            let (_, means) = text.split_once(&head).expect(&head);
            assert_eq!(words(means, "fused")[4..], [mean, "of", "2", "cases"], "{text}");
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

    #[test]
    fn each_plan_of_auto_is_told_once() {
        let mut auto = row("auto", Kind::AllGatherGemm, &[1.0]);
        auto.what = "Fused\nmodelled; timed as fused".into();
        let mut plain = auto.clone();
        plain.graph = false;
        let text =
            case(64, vec![row("fused", Kind::AllGatherGemm, &[1.0]), auto, plain]).to_string();
        assert_eq!(text.matches("  auto: Fused; modelled; timed as fused\n").count(), 1, "{text}");
        assert!(!text.contains("fused_kernel"), "{text}");
    }

    #[test]
    fn products_of_one_rank_say_their_kernels_and_who_was_not_timed_why() {
        let problem = overlap_gemm::plan::Problem::builder(1024, 3584, 8192).build().unwrap();
        let absent = |what: &str, why: &str| {
            let row = super::super::Row::new("own", Kind::Gemm, true, what.into());
            super::super::Row { absent: Some(why.into()), ..row }
        };
        let mut set = row("own-set", Kind::GemmAllSignalled, &[91.8; 3]);
        set.what = "waiting_kernel".into();
        let mut trickle = row("own-trickle", Kind::GemmAsChunksArrive, &[120.0; 3]);
        trickle.arrivals = Some(super::super::Arrivals {
            chunks: 8,
            bytes_per_chunk: 1 << 21,
            last_us: vec![80.0; 3],
            product_us: vec![90.0; 3],
            gated_share: 0.125,
            over_ideal: vec![1.02, 1.03, 1.04],
            over_ideal_in_waves: vec![1.0; 3],
        });
        let rows = vec![
            row("own", Kind::Gemm, &[90.0; 3]),
            absent("second", "slower in the first heat, some 99.0 µs"),
            set,
            trickle,
            row("cublaslt", Kind::Gemm, &[100.0; 3]),
            wrong("other"),
        ];
        let text = CaseReport { name: "1024×3584×8192 bf16".into(), problem, rows }.to_string();
        for part in [
            "668 TFLOP/s  1.000 (1.000–1.000)  own_kernel\n",
            "  own          graph  second: slower in the first heat, some 99.0 µs\n",
            "waiting_kernel\n",
            "FAILED: off by 1\n",
            "  own ÷ cublaslt, graph: 0.900 (0.900–0.900)\n",
            "  own-set ÷ own, graph: 1.020 (1.020–1.020)\n",
            "  own-trickle ÷ ideal, graph: 1.030 (1.020–1.040)\n",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn noise_is_warned_of() {
        let quiet = run(vec![usual_case(1024)]);
        let text = Comparison::of(std::slice::from_ref(&quiet)).to_string();
        assert!(!text.contains("noise"), "{text}");
        let noisy = row("auto", Kind::AllGatherGemm, &[50.0, 100.0, 250.0]);
        let text = Comparison::of(&[run(vec![case(64, vec![noisy])])]).to_string();
        assert!(
            text.contains("noise: the spread of 1 of 1 times is above 5 %, at worst 100 %"),
            "{text}"
        );
    }
}
