//! Predictions beside what `bench all-gather-gemm` measured.
//!
//! Invariant: a prediction knows the problem, the machine's figures and what was carried out, and nothing of the times;
//! where a file does not say what was carried out, what the library would choose is predicted, and marked.

use std::fmt;
use std::path::{Path, PathBuf};

use overlap_gemm::kernels::Kernel;
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy};
use overlap_gemm::predict::{Machine, Setup, estimate};
use serde::Serialize;

use crate::bench::report::{self, CarriedOut, Run};
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
                let told = row.plan.as_ref().and_then(carried_out);
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

/// What a row says that was carried out; `None` if its kernel is not one that can be predicted.
fn carried_out(plan: &CarriedOut) -> Option<Setup> {
    let CarriedOut { way, kernel, swizzle, splits } = plan;
    Some(Setup {
        operation: Operation::AllGatherGemm,
        way: *way,
        kernel: Kernel::from_name(kernel)?,
        swizzle: *swizzle,
        splits: *splits,
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
    fn nothing_is_summed_up_of_nothing() {
        assert!(Summary::of("fused", &[]).is_none());
    }
}
