//! Predictions beside what `bench all-gather-gemm` measured.
//!
//! Invariant: a prediction knows the problem, the machine's figures and what was carried out, and nothing of the times;
//! where a file does not say what was carried out, what the library would choose is predicted, and marked.

use std::fmt;
use std::path::{Path, PathBuf};

use overlap_gemm::kernels::Kernel;
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy, Way};
use overlap_gemm::predict::{Machine, Setup, estimate};
use serde::Serialize;

use crate::bench::report::{self, Run};
use crate::bench::statistics::{median, quantile};
use crate::exit::Failure;

/// Who is predicted: its name in the results, and what it does where that is no order of gathering and multiplying.
const WHO: [(&str, Option<Operation>); 6] = [
    ("own", Some(Operation::Gemm)),
    ("fused", None),
    ("auto", None),
    ("pipelined", None),
    ("sequential", None),
    // The product is cuBLASLt's; an own one takes its place.
    ("nccl-cublaslt", Some(Operation::AllGatherGemm)),
];

/// All cases of all files, and how far off the predictions are.
#[derive(Serialize)]
pub struct Report {
    lines: Vec<Line>,
    summaries: Vec<Summary>,
}

/// One contender of one case, launched in one way.
#[derive(Serialize)]
struct Line {
    file: String,
    case: String,
    who: &'static str,
    graph: bool,
    predicted_us: f64,
    measured_us: f64,
    /// Predicted over measured, less one.
    error: f64,
    /// The file says what was carried out, and that is what was predicted.
    as_told: bool,
}

/// All lines of one contender.
#[derive(Serialize)]
struct Summary {
    who: &'static str,
    lines: usize,
    median_abs_error: f64,
    worst_abs_error: f64,
    /// Above zero: predicted too slow.
    median_error: f64,
}

/// Reads the files and predicts what is in them.
pub fn run(machine: &Machine, files: &[PathBuf]) -> Result<Report, Failure> {
    let mut lines = Vec::new();
    for file in files {
        lines.extend(of_file(machine, file)?);
    }
    let summaries = WHO.iter().filter_map(|(who, ..)| Summary::of(who, &lines)).collect();
    Ok(Report { lines, summaries })
}

fn of_file(machine: &Machine, file: &Path) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for run in report::read(file)? {
        lines.extend(of_run(machine, file, &run)?);
    }
    Ok(lines)
}

fn of_run(machine: &Machine, file: &Path, run: &Run) -> Result<Vec<Line>, Failure> {
    if run.machine.is_of_threads() {
        return Err(Failure::Usage(format!(
            "{}: these are times of threads ({}), but predictions are of GPUs: give what a bench on GPUs wrote",
            file.display(),
            run.machine.gpu
        )));
    }
    let kernels = run.machine.kernels.iter().map(|name| {
        let why = || Failure::Usage(format!("{}: '{name}' is no kernel", file.display()));
        Kernel::from_name(name).ok_or_else(why)
    });
    let kernels: Vec<Kernel> = kernels.collect::<Result<_, _>>()?;
    let machine = machine.with_sms(run.machine.sm_count);
    let mut lines = Vec::new();
    for case in &run.cases {
        let problem = &case.problem;
        for (who, does) in WHO {
            for row in case.rows.iter().filter(|row| row.who == who) {
                let Some(measured_us) = median(&row.rounds_us) else { continue };
                let told = carried_out(&row.what, problem.ranks());
                let as_told = told.is_some();
                let setup = match (told, does) {
                    (Some(setup), _) => setup,
                    (None, None) => continue,
                    (None, Some(operation)) => {
                        usual(&kernels, &machine, problem, operation, &row.what)?
                    }
                };
                let plan = setup.plan(problem)?;
                let predicted_us = estimate(&machine, &plan, &setup)?.total.as_secs_f64() * 1e6;
                lines.push(Line {
                    file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                    case: case.name.clone(),
                    who,
                    graph: row.graph,
                    predicted_us,
                    measured_us,
                    error: predicted_us / measured_us - 1.0,
                    as_told,
                });
            }
        }
    }
    Ok(lines)
}

/// What the library would choose; the kernel that `what` begins with, if it names one.
fn usual(
    kernels: &[Kernel],
    machine: &Machine,
    problem: &Problem,
    operation: Operation,
    what: &str,
) -> Result<Setup, Failure> {
    let named = kernels.iter().find(|kernel| kernel.name == what);
    let kernels = named.map_or(kernels, std::slice::from_ref);
    let setup = Setup::of_kernels(kernels, machine, problem, Strategy::Sequential)?;
    Ok(match operation {
        Operation::Gemm => Setup { operation, ..setup },
        _ => setup.with_engine(Engine::Nccl, problem),
    })
}

/// What `AllGatherGemm::explain` said, in one line: `fused: …; rows: 4 chunks, moved by copy engines on 2 streams;
/// 4096×… on 2 ranks: bf16_…, 132 SMs, swizzle 4, K in 1 slices`.
fn carried_out(what: &str, ranks: u32) -> Option<Setup> {
    let named = what.split(':').next()?.to_lowercase();
    let strategy = Strategy::ALL.into_iter().find(|strategy| strategy.to_string() == named)?;
    let number = |before: &str, after: &str| -> Option<u32> {
        let rest = &what[what.rfind(before)? + before.len()..];
        rest[..rest.find(after)?].parse().ok()
    };
    let engine = match number("moved by copy engines on ", " streams") {
        Some(streams) => Engine::CopyEngines { streams },
        None if what.contains("moved by copy engines on one stream") => {
            Engine::CopyEngines { streams: 1 }
        }
        None => Engine::Kernel { blocks: number("moved by a kernel of ", " blocks")? },
    };
    let name =
        what.split(", ").find_map(|words| words.rsplit(": ").next().and_then(Kernel::from_name));
    Some(Setup {
        operation: Operation::AllGatherGemm,
        way: Way { strategy, engine, pieces: (number("rows: ", " chunks")? / ranks.max(1)).max(1) },
        kernel: name?,
        swizzle: number("swizzle ", ", K in")?,
        splits: number("K in ", " slices")?,
    })
}

impl Summary {
    fn of(who: &'static str, lines: &[Line]) -> Option<Self> {
        let errors: Vec<f64> =
            lines.iter().filter(|line| line.who == who).map(|line| line.error).collect();
        let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        Some(Summary {
            who,
            lines: errors.len(),
            median_abs_error: median(&sizes)?,
            worst_abs_error: quantile(&sizes, 1.0)?,
            median_error: median(&errors)?,
        })
    }
}

impl Report {
    /// The tables of a document, in Markdown: all who were predicted, then a row for each problem and way of launching.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| | times | median of the error's size | worst | median |\n| --- | --- | --- | --- | --- |\n",
        );
        let percent = |share: f64| format!("{:+.1} %", 100.0 * share);
        for it in &self.summaries {
            let (size, worst) = (100.0 * it.median_abs_error, 100.0 * it.worst_abs_error);
            let median = percent(it.median_error);
            text += &format!(
                "| `{}` | {} | {size:.1} % | {worst:.1} % | {median} |\n",
                it.who, it.lines
            );
        }
        text += "\n| M × N × K | launch | fused, predicted | measured | error | ";
        let others: Vec<_> =
            WHO.iter().map(|(who, _)| *who).filter(|who| *who != "fused").collect();
        text += &others.join(" | ");
        text += " |\n|";
        text += &" --- |".repeat(5 + others.len());
        text += "\n";
        for line in self.lines.iter().filter(|line| line.who == "fused") {
            let launch = if line.graph { "graph" } else { "plain" };
            let same = |other: &&Line| {
                (&other.file, &other.case, other.graph) == (&line.file, &line.case, line.graph)
            };
            let error = |who: &&str| {
                let other = self.lines.iter().filter(same).find(|other| other.who == *who);
                other.map_or("–".into(), |other| percent(other.error))
            };
            let rest: Vec<String> = others.iter().map(error).collect();
            text += &format!(
                "| {} | {launch} | {:.1} | {:.1} | {} | {} |\n",
                line.case,
                line.predicted_us,
                line.measured_us,
                percent(line.error),
                rest.join(" | ")
            );
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut case = "";
        for line in &self.lines {
            if line.case != case {
                case = &line.case;
                writeln!(f, "{case}")?;
                writeln!(
                    f,
                    "  {:<14} {:<6} {:>12} {:>12} {:>8}",
                    "who", "launch", "predicted µs", "measured µs", "error"
                )?;
            }
            let launch = if line.graph { "graph" } else { "plain" };
            let mark = if line.as_told { "" } else { "  as the library would choose" };
            writeln!(
                f,
                "  {:<14} {launch:<6} {:>12.1} {:>12.1} {:>+7.1}%{mark}",
                line.who,
                line.predicted_us,
                line.measured_us,
                100.0 * line.error
            )?;
        }
        writeln!(
            f,
            "\n  {:<14} {:>6} {:>12} {:>10} {:>10}",
            "who", "times", "median |err|", "worst", "median"
        )?;
        for it in &self.summaries {
            writeln!(
                f,
                "  {:<14} {:>6} {:>11.1}% {:>9.1}% {:>+9.1}%",
                it.who,
                it.lines,
                100.0 * it.median_abs_error,
                100.0 * it.worst_abs_error,
                100.0 * it.median_error
            )?;
        }
        writeln!(f, "\nerror: predicted ÷ measured − 1; measured: the median of the rounds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_out_is_read_from_what_was_said() {
        let what = "Fused: tuned: measured for this problem, 26.7 µs in graphs; rows: 4 chunks, moved by a kernel of 64 \
                    blocks before the product; 64×3584×8192 (bf16 × bf16 → bf16) on 2 ranks: \
                    bf16_bf16_bf16_nk_64x128x64_1x2_cooperative_transposed, 132 SMs, swizzle 1, K in 4 slices";
        let setup = carried_out(what, 2).unwrap();
        let engine = Engine::Kernel { blocks: 64 };
        assert_eq!(setup.way, Way { strategy: Strategy::Fused, engine, pieces: 2 });
        assert_eq!((setup.kernel.tile.m, setup.swizzle, setup.splits), (64, 1, 4));
        let copies =
            what.replace("a kernel of 64 blocks before the product", "copy engines on 2 streams");
        let setup = carried_out(&copies, 2).unwrap();
        assert_eq!(setup.way.engine, Engine::CopyEngines { streams: 2 });
        for (old, new) in
            [("Fused", "Used"), ("blocks", "boxes"), ("bf16_bf16_bf16", "bf16"), ("K in", "in")]
        {
            assert!(carried_out(&what.replace(old, new), 2).is_none(), "{new}");
        }
    }

    #[test]
    fn nothing_is_summed_up_of_nothing() {
        assert!(Summary::of("fused", &[]).is_none());
    }
}
