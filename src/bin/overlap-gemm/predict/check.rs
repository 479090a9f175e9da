//! Predictions beside what `bench all-gather-gemm` measured.
//!
//! Invariant: a prediction knows the problem, the number of ranks, the machine's figures and which kernels there were,
//! and nothing of the times; a strategy that was carried out otherwise than predicted is marked.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use overlap_gemm::ElementType;
use overlap_gemm::plan::{BLayout, Problem, Scaling};
use overlap_gemm::predict::{Engine, Kernel, Machine, Setup, Strategy, estimate};
use serde::{Deserialize, Serialize};

use crate::bench::statistics::{median, quantile};
use crate::exit::Failure;

/// What is read of a file of results.
#[derive(Deserialize)]
struct Results {
    ranks: u64,
    machine: MeasuredOn,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct MeasuredOn {
    sm_count: u32,
    kernels: Vec<String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    who: String,
    graph: bool,
    what: String,
    rounds_us: Vec<f64>,
}

/// Who is predicted: its name in the results, what it is, and by whom rows are moved if not as usual.
const WHO: [(&str, Strategy, Option<Engine>); 5] = [
    ("own", Strategy::Plain, None),
    ("fused", Strategy::Fused, None),
    ("pipelined", Strategy::Pipelined, None),
    ("sequential", Strategy::Sequential, None),
    // The product is cuBLASLt's; an own one takes its place.
    ("nccl-cublaslt", Strategy::Sequential, Some(Engine::Nccl)),
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
    /// Measured with the kernel, the slices of K and the pieces that were predicted.
    as_predicted: bool,
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
    let name = file.display().to_string();
    let unreadable = |why: &dyn fmt::Display| {
        let expected = "what `overlap-gemm bench all-gather-gemm --output` writes";
        Failure::Usage(format!("cannot read {name} as {expected}: {why}"))
    };
    let text = fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    let results: Results = serde_json::from_str(&text).map_err(|error| unreadable(&error))?;
    let kernels = results.machine.kernels.iter().map(|name| {
        Kernel::from_name(name).ok_or_else(|| unreadable(&format!("'{name}' is no kernel")))
    });
    let kernels: Vec<Kernel> = kernels.collect::<Result<_, _>>()?;
    let machine = machine.with_sms(results.machine.sm_count);
    let mut lines = Vec::new();
    for case in &results.cases {
        let problem = problem(&case.name, results.ranks)
            .ok_or_else(|| unreadable(&format!("'{}' is no problem", case.name)))?;
        for (who, strategy, engine) in WHO {
            let rows = case.rows.iter().filter(|row| row.who == who);
            let timed = rows.filter_map(|row| Some((row, median(&row.rounds_us)?)));
            let mut timed = timed.peekable();
            if timed.peek().is_none() {
                continue;
            }
            let mut setup = Setup::of_kernels(&kernels, &machine, &problem, strategy)?;
            if let Some(engine) = engine {
                setup = setup.with_engine(engine, &problem);
            }
            let plan = setup.plan(&problem)?;
            let predicted_us = estimate(&machine, &plan, &setup)?.total.as_secs_f64() * 1e6;
            lines.extend(timed.map(|(row, measured_us)| Line {
                file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                case: case.name.clone(),
                who,
                graph: row.graph,
                predicted_us,
                measured_us,
                error: predicted_us / measured_us - 1.0,
                as_predicted: engine.is_some() || says(&row.what, &setup, plan.chunks().len()),
            }));
        }
    }
    Ok(lines)
}

/// Whether the bench's words for what was carried out are those of this setup.
fn says(what: &str, setup: &Setup, chunks: u32) -> bool {
    let Setup { kernel, swizzle, splits, engine, .. } = setup;
    if setup.strategy == Strategy::Plain {
        return what.split(' ').next() == Some(kernel.name.as_str());
    }
    let moved = match engine {
        Engine::CopyEngines { streams } => format!("copy engines on {streams} streams"),
        _ => "a kernel of".into(),
    };
    let words = [
        format!("rows: {chunks} chunks, moved by {moved}"),
        format!(": {kernel}, "),
        format!("swizzle {swizzle}, K in {splits} slices"),
    ];
    words.iter().all(|words| what.contains(words))
}

/// The problem that a bench calls `4096×3584×8192 e4m3→bf16 rows`.
fn problem(name: &str, ranks: u64) -> Option<Problem> {
    let mut words = name.split(' ');
    let extents: Vec<u64> =
        words.next()?.split('×').map(|extent| extent.parse().ok()).collect::<Option<_>>()?;
    let [m, n, k] = extents.try_into().ok()?;
    let types = words.next()?;
    let (inputs, d) = types.split_once('→').unwrap_or((types, types));
    let (a, b) = inputs.split_once('×').unwrap_or((inputs, inputs));
    let element = |name: &str| name.parse::<ElementType>().ok();
    let d = if types.contains('→') { element(d)? } else { element(a)? };
    let mut builder = Problem::builder(m, n, k).ranks(ranks).elements(element(a)?, element(b)?, d);
    for word in words {
        builder = match word {
            "tensor" => builder.scaling(Scaling::Tensor),
            "rows" => builder.scaling(Scaling::Rows),
            "k×n" => builder.b_layout(BLayout::Kn),
            "B" => builder,
            _ => return None,
        };
    }
    builder.build().ok()
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
            let mark = if line.as_predicted { "" } else { "  carried out otherwise" };
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
    fn names_of_cases_are_problems() {
        let name = |text| problem(text, 2).map(|problem| problem.to_string());
        assert_eq!(
            name("4096×3584×8192 bf16").as_deref(),
            Some("4096×3584×8192 (bf16 × bf16 → bf16) on 2 ranks")
        );
        assert_eq!(
            name("64×32×64 e4m3×e5m2→f16 rows").as_deref(),
            Some("64×32×64 (e4m3 × e5m2 → f16) on 2 ranks, row scales")
        );
        assert_eq!(problem("8×8×8 f16→f32 B k×n", 2).unwrap().b_layout(), BLayout::Kn);
        for text in ["", "64×32 bf16", "64×32×64", "64×32×64 int8", "64×32×64 bf16 twice"] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn nothing_is_summed_up_of_nothing() {
        assert!(Summary::of("fused", &[]).is_none());
    }
}
