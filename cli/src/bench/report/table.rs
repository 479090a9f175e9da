//! Results as text: a block for each case, a line for each contender and launch.
//!
//! Invariant: the text holds nothing that the JSON does not. A figure is the median of the rounds' figures. A column
//! without a figure is left out.

use std::fmt;

use overlap_gemm::plan::Operation;

use super::super::wanted::Gatherer;
use super::columns::Column;
use super::{CaseReport, Kind, Power, Row, Run};
use crate::statistics::{Summary, geometric_mean, median};

const LEGEND: &str = "\
T_gemm: the fastest plain GEMM (cuBLASLt, ours or a peer's), its inputs already there. ÷: median of the rounds' ratios.
E = 1 − (T − T_gemm) ÷ (T_baseline − T_gemm); the baseline is nccl-cublaslt, without that contender sequential. Below 0 %:
slower than the baseline; above 100 %: faster than T_gemm.
spread: distance of the quartiles ÷ median; !: above 5 %, the machine was disturbed: measure again, or with more --rounds.";

/// The same, where the floor was measured.
const LEGEND_OF_FLOOR: &str = "beside: this crate's plain GEMM while as many bytes travel: the floor of a step whose gather is hidden.";

/// The same, where power was measured.
const LEGEND_OF_POWER: &str = "mJ: energy of one step; MHz: clock of the multiprocessors; means of the timed loops, from NVML.";

/// A larger spread is marked: the 5 % of the legend.
const DISTURBED: f64 = 0.05;

/// Ratios that are summed up over all cases, where they were measured.
const SUMMED_UP: [&str; 6] =
    ["own/cublaslt", "own-set/own", "auto/gemm", "auto/beside", "auto/nccl-cublaslt", "auto/peer"];

/// The headings of a case's columns.
const HEADS: [&str; 13] = [
    "contender",
    "launch",
    "µs a step",
    "spread",
    "rate",
    "÷ T_gemm",
    "÷ beside",
    "÷ nccl-cublaslt",
    "÷ best peer",
    "E",
    "host µs",
    "mJ",
    "MHz",
];
/// The first columns hold words, aligned at the left.
const OF_WORDS: usize = 2;

/// Runs one after the other: where each ran, and its cases.
pub struct Table<'a>(pub &'a [Run]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in self.0 {
            writeln!(f, "{}\noverlap-gemm {}{}", run.place(), run.version, run.settings())?;
            if let Some(why) = &run.ended_early {
                writeln!(f, "ended early, after {} of its cases: {why}", run.cases.len())?;
            }
            run.cases.iter().try_for_each(|case| writeln!(f, "\n{case}"))?;
        }
        let cases: Vec<&CaseReport> = self.0.iter().flat_map(|run| &run.cases).collect();
        if cases.is_empty() {
            return Ok(());
        }
        for ratio in SUMMED_UP {
            sum_up(f, ratio, &cases)?;
        }
        writeln!(f, "{LEGEND}")?;
        let has_floor = |row: &Row| row.who == Gatherer::Beside.name();
        if cases.iter().flat_map(|case| &case.rows).any(has_floor) {
            writeln!(f, "{LEGEND_OF_FLOOR}")?;
        }
        match cases.iter().flat_map(|case| &case.rows).any(|row| !row.power.is_empty()) {
            true => writeln!(f, "{LEGEND_OF_POWER}"),
            false => Ok(()),
        }
    }
}

/// A line with the geometric mean of a ratio over all cases, and the largest, if there are several.
fn sum_up(f: &mut fmt::Formatter<'_>, ratio: &str, cases: &[&CaseReport]) -> fmt::Result {
    let Ok(column) = ratio.parse::<Column>() else { return Ok(()) };
    let ratio_of = |case, graph| median(&column.rounds(case, graph));
    let mut ratios: Vec<(f64, &CaseReport)> = Vec::new();
    for &case in cases {
        ratios
            .extend([true, false].iter().filter_map(|&graph| Some((ratio_of(case, graph)?, case))));
    }
    let values: Vec<f64> = ratios.iter().map(|(value, _)| *value).collect();
    match (geometric_mean(&values), ratios.iter().max_by(|one, other| one.0.total_cmp(&other.0))) {
        (Some(mean), Some((most, case))) if ratios.len() > 1 => writeln!(
            f,
            "{}: geometric mean {mean:.3} over {}; largest {most:.3}, {}",
            column.heading(cases),
            ratios.len(),
            case.name
        ),
        _ => Ok(()),
    }
}

impl Run {
    /// The number of ranks, what each is, the driver, and what they do, unless they gather: only such times are compared.
    pub fn place(&self) -> String {
        let (ranks, gpu) = (self.ranks, &self.machine.gpu);
        let place = match gpu.strip_prefix("rank on threads") {
            Some(which) => format!("{ranks} ranks on threads{which}"),
            None => format!("{ranks} × {gpu}"),
        };
        let driver = self.machine.driver.iter().map(|driver| format!(", driver {driver}"));
        let operation =
            (self.operation != Operation::default()).then(|| format!(", {}", self.operation));
        driver.chain(operation).fold(place, |place, part| place + &part)
    }

    /// How it measured.
    fn settings(&self) -> String {
        let nccl = self.nccl.as_ref().map_or(String::new(), |nccl| format!(", NCCL {nccl}"));
        let copied = if self.copied { ", rows copied" } else { "" };
        let unchecked = if self.unchecked { ", results NOT checked" } else { "" };
        let (steps, rounds) = (self.steps, self.rounds);
        format!("{nccl}; {steps} steps a loop or more, {rounds} rounds{copied}{unchecked}")
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        let lines: Vec<_> = self.rows.iter().map(|row| self.cells(row)).collect();
        let widths: [usize; HEADS.len()] = std::array::from_fn(|nth| {
            let widest = lines.iter().map(|line| line[nth].chars().count()).max().unwrap_or(0);
            if nth < OF_WORDS || widest > 0 { widest.max(HEADS[nth].chars().count()) } else { 0 }
        });
        let line = |cells: &[String; HEADS.len()]| {
            let mut text = String::new();
            for (nth, (cell, width)) in cells.iter().zip(widths).enumerate() {
                match nth {
                    _ if width == 0 => {}
                    ..OF_WORDS => text += &format!("  {cell:width$}"),
                    _ => text += &format!("  {cell:>width$}"),
                }
            }
            text.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&HEADS.map(String::from)))?;
        // Of one rank, each variant of a contender is a line that names its kernel.
        let kernels = self.problem.ranks() == 1;
        for (cells, row) in lines.iter().zip(&self.rows) {
            let text = line(cells);
            match (&row.failed, &row.absent) {
                (Some(why), _) => writeln!(f, "{text}  FAILED: {why}")?,
                (None, Some(why)) if kernels => writeln!(f, "{text}  {}: {why}", row.what)?,
                (None, Some(why)) => writeln!(f, "{text}  not timed: {why}")?,
                _ if kernels => writeln!(f, "{text}  {}", row.what)?,
                _ => writeln!(f, "{text}")?,
            }
        }
        self.write_notes(f)
    }
}

impl CaseReport {
    fn cells(&self, row: &Row) -> [String; HEADS.len()] {
        let mut cells = <[String; HEADS.len()]>::default();
        (cells[0], cells[1]) = (row.who.clone(), row.launch().into());
        let Some(times) = Summary::of(&row.rounds_us) else { return cells };
        cells[2] = format!("{:.1}", times.median);
        let mark = if times.spread() > DISTURBED { "! " } else { "" };
        cells[3] = format!("{mark}{:.1} %", 100.0 * times.spread());
        cells[4] = match row.kind {
            kind @ (Kind::AllGather | Kind::ReduceScatter | Kind::AllReduce) => {
                format!("{:.0} GB/s", self.gigabytes(kind, times.median))
            }
            _ => match self.teraflops(times.median) {
                // Threads, or a few rows.
                few if few < 10.0 => format!("{:.0} GFLOP/s", 1e3 * few),
                many => format!("{many:.0} TFLOP/s"),
            },
        };
        let middle = |rounds: &[f64]| median(rounds).map(|value| format!("{value:.3}"));
        let beside = self.named(Gatherer::Beside.name(), row.graph);
        let unders = [self.gemm(row.graph), beside, self.nccl(row.graph), self.peer(row.graph)];
        for (cell, under) in cells[5..].iter_mut().zip(unders) {
            *cell = under.and_then(|under| middle(&row.over(under))).unwrap_or_default();
        }
        let efficiency = median(&self.efficiency(row));
        cells[9] = efficiency.map_or(String::new(), |value| format!("{:.0} %", 100.0 * value));
        cells[10] = median(&row.host_us).map_or(String::new(), |host| format!("{host:.1}"));
        let of_power =
            |figure: fn(&Power) -> f64| median(&row.power.iter().map(figure).collect::<Vec<_>>());
        let millijoules = of_power(|power| power.watts).map(|watts| 1e-3 * watts * times.median);
        cells[11] = millijoules.map_or(String::new(), |value| format!("{value:.1}"));
        cells[12] = of_power(|power| power.mhz).map_or(String::new(), |mhz| format!("{mhz:.0}"));
        cells
    }

    /// The lines below a case: how `auto` was planned, however launched, once.
    fn write_notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plans: Vec<String> = Vec::new();
        for row in &self.rows {
            let plan = format!("  {}: {}", row.who, row.what.replace('\n', "; "));
            if row.who == Gatherer::Auto.name() && !plans.contains(&plan) {
                writeln!(f, "{plan}")?;
                plans.push(plan);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, reduced_case, row, run, usual_case, wrong};
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
        let expected = ["573", "TFLOP/s", "1.050", "0.700", "0.808", "90", "%"];
        assert_eq!(fused[5..], expected, "{text}");
        assert_eq!(words(&text, "nccl-cublaslt")[10..], ["0", "%"], "{text}");
        assert_eq!(words(&text, "cublaslt")[7..], ["1.000", "0.667", "0.769"], "{text}");
        assert!(!text.contains("host µs"), "no row has such a time: {text}");
        assert_eq!(words(&text, "torch-native")[2..6], ["FAILED:", "off", "by", "1"], "{text}");
        assert_eq!(words(&text, "gather")[5..7], ["210", "GB/s"], "{text}");
    }

    #[test]
    fn a_reduction_has_the_same_ratios_and_says_what_it_is() {
        let mut reduced = run(vec![reduced_case(1024)]);
        reduced.operation = Operation::GemmReduceScatter;
        let text = Table(&[reduced]).to_string();
        assert!(
            text.starts_with("2 × NVIDIA H200, driver 580.1, GEMM + reduce-scatter\n"),
            "{text}"
        );
        let expected = ["573", "TFLOP/s", "1.050", "0.700", "0.808", "90", "%"];
        assert_eq!(words(&text, "fused")[5..], expected, "{text}");
        // Half of the rows, 3584 columns, two bytes; in 40 µs.
        assert_eq!(words(&text, "gather")[5..7], ["92", "GB/s"], "{text}");
    }

    #[test]
    fn the_floor_is_explained_where_it_was_measured() {
        let mut case = usual_case(1024);
        assert!(!Table(&[run(vec![case.clone()])]).to_string().contains("beside"));
        case.rows.push(row("beside", Kind::GemmBesideCopies, &[104.0; 3]));
        let text = Table(&[run(vec![case])]).to_string();
        assert_eq!(words(&text, "fused")[7..9], ["1.050", "1.010"], "{text}");
        assert!(text.ends_with(&format!("{LEGEND}\n{LEGEND_OF_FLOOR}\n")), "{text}");
    }

    #[test]
    fn every_run_has_its_head() {
        let mut short = run(vec![usual_case(1024)]);
        short.ended_early = Some("interrupted".into());
        let text = Table(&[run(vec![usual_case(64)]), short]).to_string();
        let head = "2 × NVIDIA H200, driver 580.1\noverlap-gemm 0.0.0, NCCL 2.28.9; 60 steps a loop or more, 3 rounds\n";
        assert!(text.starts_with(&format!("{head}\n64×3584×8192 bf16\n")), "{text}");
        let second = format!("{head}ended early, after 1 of its cases: interrupted\n\n1024×");
        assert!(text.contains(&second) && text.ends_with("with more --rounds.\n"), "{text}");
    }

    #[test]
    fn a_disturbed_row_is_marked() {
        let rows = vec![
            row("own", Kind::Gemm, &[90.0, 100.0, 110.0]),
            row("cublaslt", Kind::Gemm, &[90.0, 91.0, 92.0]),
        ];
        let text = case(64, rows).to_string();
        assert_eq!(words(&text, "own")[3..6], ["!", "10.0", "%"], "{text}");
        assert_eq!(words(&text, "cublaslt")[3..5], ["1.1", "%"], "{text}");
    }

    #[test]
    fn nothing_measured_is_no_panic() {
        assert_eq!(Table(&[]).to_string(), "");
        let text = Table(&[run(vec![case(8, vec![])])]).to_string();
        assert!(text.contains("8×3584×8192 bf16"), "{text}");
    }

    #[test]
    fn each_plan_of_auto_is_shown_once() {
        let mut auto = row("auto", Kind::AllGatherGemm, &[1.0]);
        auto.what = "Fused\nmodelled; timed as fused".into();
        let mut plain = auto.clone();
        plain.graph = false;
        let fused = row("fused", Kind::AllGatherGemm, &[1.0]);
        let text = case(64, vec![fused, auto, plain]).to_string();
        assert_eq!(text.matches("  auto: Fused; modelled; timed as fused\n").count(), 1, "{text}");
        assert!(!text.contains("fused_kernel"), "{text}");
    }

    #[test]
    fn rows_of_one_rank_name_their_kernels_and_why_they_were_not_timed() {
        let problem = overlap_gemm::plan::Problem::builder(1024, 3584, 8192).build().unwrap();
        let mut second = Row::new("own", Kind::Gemm, true, "second".into());
        second.absent = Some("slower in the first heat, some 99.0 µs".into());
        let mut first = row("own", Kind::Gemm, &[90.0; 3]);
        first.power = vec![Power { watts: 600.0, mhz: 1500.0 }; 3];
        let rows = vec![first, second, wrong("other")];
        let text = CaseReport { name: "1024×3584×8192 bf16".into(), problem, rows }.to_string();
        for part in [
            "668 TFLOP/s     1.000  54.0  1500  own_kernel\n",
            "  own        graph  second: slower in the first heat, some 99.0 µs\n",
            "FAILED: off by 1\n",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
}
