//! Results as text: a block for each case, a line for each contender and launch.
//!
//! Invariant: the text holds nothing that the JSON does not. A figure is the median of the rounds' figures. A column
//! without a figure is left out.

use std::fmt;

use overlap_gemm::plan::Operation;

use super::super::wanted::Contender;
use super::{CaseReport, Kind, Row, Run};
use crate::statistics::{geometric_mean, median, spread};

const LEGEND: &str = "\
T_gemm: the fastest plain GEMM (cuBLASLt, ours or a peer's), its inputs available. ÷: median of the rounds' ratios.
beside: our GEMM while an all-gather moves as many bytes, for which it does not wait: about as fast as a step can be.
E = 1 − (T − T_gemm) ÷ (T_baseline − T_gemm); the baseline is nccl-cublaslt, without that contender sequential. Below 0 %:
slower than the baseline; above 100 %: faster than T_gemm.
spread: distance of the quartiles ÷ median; !: above 5 %, the machine was disturbed: measure again, or with more --rounds.
mJ: energy of one step; MHz: clock of the multiprocessors; means of the timed loops, from NVML.";

/// A larger spread is marked: the 5 % of the legend.
const DISTURBED: f64 = 0.05;

/// Ratios that are summed up over all cases, where they were measured.
const SUMMED_UP: [(&str, &str); 6] = [
    ("own", "cublaslt"),
    ("own-set", "own"),
    ("auto", "T_gemm"),
    ("auto", "beside"),
    ("auto", "nccl-cublaslt"),
    ("auto", "best peer"),
];

/// A cell of a row that has times, of which this is the median.
type Cell = fn(&CaseReport, &Row, f64) -> Option<String>;

/// The columns behind a contender's name and launch.
const COLUMNS: [(&str, Cell); 11] = [
    ("µs a step", |_, _, us| Some(format!("{us:.1}"))),
    ("spread", |_, row, _| {
        let spread = spread(&row.rounds_us)?;
        let mark = if spread > DISTURBED { "! " } else { "" };
        Some(format!("{mark}{:.1} %", 100.0 * spread))
    }),
    ("rate", |case, row, us| Some(case.rate(row.kind, us))),
    ("÷ T_gemm", |case, row, _| case.ratio(row, "T_gemm")),
    ("÷ beside", |case, row, _| case.ratio(row, &Contender::Beside.name())),
    ("÷ nccl-cublaslt", |case, row, _| case.ratio(row, &Contender::NcclCublaslt.name())),
    ("÷ best peer", |case, row, _| case.ratio(row, "best peer")),
    ("E", |case, row, _| Some(format!("{:.0} %", 100.0 * median(&case.efficiency(row))?))),
    ("host µs", |_, row, _| Some(format!("{:.1}", median(&row.host_us)?))),
    ("mJ", |_, row, us| {
        let watts: Vec<f64> = row.power.iter().map(|power| power.watts).collect();
        Some(format!("{:.1}", 1e-3 * median(&watts)? * us))
    }),
    ("MHz", |_, row, _| {
        let mhz: Vec<f64> = row.power.iter().map(|power| power.mhz).collect();
        Some(format!("{:.0}", median(&mhz)?))
    }),
];

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
        for (over, under) in SUMMED_UP {
            sum_up(f, over, under, &cases)?;
        }
        if cases.is_empty() { Ok(()) } else { writeln!(f, "{LEGEND}") }
    }
}

/// A line with the geometric mean of a ratio over all cases, and the largest, if there are several.
fn sum_up(
    f: &mut fmt::Formatter<'_>,
    over: &str,
    under: &str,
    cases: &[&CaseReport],
) -> fmt::Result {
    let launched = cases.iter().flat_map(|case| [(case, true), (case, false)]);
    let ratios: Vec<(f64, &str)> = launched
        .filter_map(|(case, graph)| {
            let (over, under) = (case.named(over, graph)?, case.named(under, graph)?);
            Some((median(&over.over(under))?, case.name.as_str()))
        })
        .collect();
    let values: Vec<f64> = ratios.iter().map(|(value, _)| *value).collect();
    match (geometric_mean(&values), ratios.iter().max_by(|one, other| one.0.total_cmp(&other.0))) {
        (Some(mean), Some((most, case))) if ratios.len() > 1 => writeln!(
            f,
            "{over} ÷ {under}: geometric mean {mean:.3} over {}; largest {most:.3}, {case}",
            ratios.len()
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
        let unchecked = if self.unchecked { ", results NOT checked" } else { "" };
        let (steps, rounds) = (self.steps, self.rounds);
        format!("{nccl}; {steps} steps a loop or more, {rounds} rounds{unchecked}")
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        let mut columns = vec![
            ("contender", self.rows.iter().map(|row| row.who.clone()).collect::<Vec<_>>()),
            ("launch", self.rows.iter().map(|row| row.launch().into()).collect()),
        ];
        for (head, cell) in COLUMNS {
            let cell = |row: &Row| cell(self, row, row.median()?);
            let cells: Vec<String> =
                self.rows.iter().map(|row| cell(row).unwrap_or_default()).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                columns.push((head, cells));
            }
        }
        let mut lines = vec![String::new(); 1 + self.rows.len()];
        for (nth, (head, cells)) in columns.iter().enumerate() {
            let cells = || [*head].into_iter().chain(cells.iter().map(String::as_str));
            let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
            for (line, cell) in lines.iter_mut().zip(cells()) {
                // The first two are words.
                *line += &match nth < 2 {
                    true => format!("  {cell:width$}"),
                    false => format!("  {cell:>width$}"),
                };
            }
        }
        writeln!(f, "{}", lines[0].trim_end())?;
        // Of one rank, each variant of a contender is a line that names its kernel.
        let kernels = self.problem.ranks() == 1;
        for (line, row) in lines[1..].iter().zip(&self.rows) {
            let line = line.trim_end();
            match (&row.failed, &row.absent) {
                (Some(why), _) => writeln!(f, "{line}  FAILED: {why}")?,
                (None, Some(why)) if kernels => writeln!(f, "{line}  {}: {why}", row.what)?,
                (None, Some(why)) => writeln!(f, "{line}  not timed: {why}")?,
                _ if kernels => writeln!(f, "{line}  {}", row.what)?,
                _ => writeln!(f, "{line}")?,
            }
        }
        // How `auto` was planned, however launched, once.
        let mut plans: Vec<&str> = Vec::new();
        for row in self.rows.iter().filter(|row| row.who == Contender::Auto.name()) {
            if !plans.contains(&row.what.as_str()) {
                writeln!(f, "  {}: {}", row.who, row.what.replace('\n', "; "))?;
                plans.push(&row.what);
            }
        }
        Ok(())
    }
}

impl CaseReport {
    /// The ratio to the row of that name, as text.
    fn ratio(&self, row: &Row, under: &str) -> Option<String> {
        let ratio = median(&row.over(self.named(under, row.graph)?))?;
        Some(format!("{ratio:.3}"))
    }

    fn rate(&self, kind: Kind, microseconds: f64) -> String {
        match kind {
            Kind::AllGather | Kind::ReduceScatter | Kind::AllReduce => {
                format!("{:.0} GB/s", self.gigabytes(kind, microseconds))
            }
            _ => match self.teraflops(microseconds) {
                // Threads, or a few rows.
                few if few < 10.0 => format!("{:.0} GFLOP/s", 1e3 * few),
                many => format!("{many:.0} TFLOP/s"),
            },
        }
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
    fn ratios_of_several_problems_are_summed_up() {
        let mut cases = [usual_case(1024), usual_case(64)];
        let own = cases[1].rows.iter_mut().find(|row| row.who == "own").unwrap();
        own.rounds_us.iter_mut().for_each(|us| *us *= 2.0);
        let text = Table(&[run(cases.to_vec())]).to_string();
        let line =
            "own ÷ cublaslt: geometric mean 1.457 over 2; largest 2.060, 64×3584×8192 bf16\n";
        assert!(text.contains(line) && !text.contains("auto ÷"), "{text}");
    }

    #[test]
    fn every_run_has_its_head() {
        let mut short = run(vec![usual_case(1024)]);
        short.ended_early = Some("interrupted".into());
        let text = Table(&[run(vec![usual_case(64)]), short]).to_string();
        let head = "2 × NVIDIA H200, driver 580.1\noverlap-gemm 0.0.0, NCCL 2.28.9; 60 steps a loop or more, 3 rounds\n";
        assert!(text.starts_with(&format!("{head}\n64×3584×8192 bf16\n")), "{text}");
        let second = format!("{head}ended early, after 1 of its cases: interrupted\n\n1024×");
        assert!(text.contains(&second) && text.ends_with(&format!("{LEGEND}\n")), "{text}");
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
        let fused = row("fused", Kind::AllGatherGemm, &[1.0]);
        let mut rows = fused.with_twins(vec![(Contender::Auto, "Fused\nmodelled".into())]);
        assert_eq!((&*rows[1].who, &rows[1].rounds_us), ("auto", &rows[0].rounds_us));
        rows.push(Row { graph: false, ..rows[1].clone() });
        let text = case(64, rows).to_string();
        assert_eq!(text.matches("  auto: Fused; modelled; timed as fused\n").count(), 1, "{text}");
        assert!(!text.contains("fused_kernel"), "{text}");
    }

    #[test]
    fn rows_of_one_rank_name_their_kernels_and_why_they_were_not_timed() {
        let problem = overlap_gemm::plan::Problem::builder(1024, 3584, 8192).build().unwrap();
        let mut second = Row::new("own", Kind::Gemm, true, "second".into());
        second.absent = Some("slower in the first heat, some 99.0 µs".into());
        let mut first = row("own", Kind::Gemm, &[90.0; 3]);
        first.power = vec![super::super::Power { watts: 600.0, mhz: 1500.0 }; 3];
        let rows = vec![first, second, wrong("other")];
        let text = CaseReport { name: "1024×3584×8192 bf16".into(), problem, before: None, rows };
        let text = text.to_string();
        for part in [
            "668 TFLOP/s     1.000  54.0  1500  own_kernel\n",
            "  own        graph  second: slower in the first heat, some 99.0 µs\n",
            "FAILED: off by 1\n",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }
}
