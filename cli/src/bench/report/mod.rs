//! What `bench all-gather-gemm` found, as data that is written and read back.
//!
//! What belongs here: the data; its neighbours read it from files ([`read`]), compare its rows
//! ([`compare`]) and show it ([`table`], [`csv`], [`pictures`], chosen by [`formats`]), or what of it is wanted
//! ([`select`]) as parts of a document ([`markdown`], of [`columns`]). All of it is there
//! without the feature `cuda`, so that results can be merged and drawn anywhere. Invariant: a row has times if and
//! only if its result was right. Times are microseconds a step, those of the slowest rank.

mod columns;
mod compare;
mod csv;
mod formats;
mod markdown;
mod pictures;
mod read;
mod select;
mod table;

use overlap_gemm::plan::Problem;
use serde::{Deserialize, Serialize};

pub use compare::Comparison;
pub use formats::{FormatArgs, Formats};
pub use markdown::MarkdownArgs;
pub use read::read;
pub use select::SelectArgs;

use super::machine::Machine;

/// The name of the bench in the file.
const BENCH: &str = "all-gather-gemm";

/// The format that is written. 1 was a single run's fields, without `bench`, `format`, and the cases' `problem`.
const FORMAT: u64 = 2;

/// A file: one run, or several that were put together.
#[derive(Serialize)]
pub struct Document<'a> {
    bench: &'static str,
    format: u64,
    runs: &'a [Run],
}

impl<'a> Document<'a> {
    /// Of these runs.
    pub fn of(runs: &'a [Run]) -> Document<'a> {
        Document { bench: BENCH, format: FORMAT, runs }
    }
}

/// What was measured in one go: all ranks, all cases, everybody by turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was typed.
    pub command: String,
    /// Who measured.
    #[serde(default = "own_name")]
    pub program: String,
    /// Its version.
    pub version: String,
    pub machine: Machine,
    /// NCCL's version, where it took part.
    pub nccl: Option<String>,
    pub ranks: u32,
    /// Steps in a loop, at least.
    pub steps: usize,
    pub rounds: usize,
    /// Whether rows were copied into their slot in every step.
    pub copied: bool,
    pub cases: Vec<CaseReport>,
    /// Why it ended before the last case, if it did.
    #[serde(default)]
    pub ended_early: Option<String>,
}

/// As [`Run::program`] calls this one.
pub fn own_name() -> String {
    "overlap-gemm".into()
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// `4096×3584×8192 bf16`: N is that of one rank.
    pub name: String,
    /// The same with each rank's rows.
    pub problem: Problem,
    pub rows: Vec<Row>,
}

/// One contender, launched in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub who: String,
    /// Another program's.
    #[serde(default)]
    pub peer: bool,
    pub kind: Kind,
    /// Launched by CUDA graphs, not step by step.
    pub graph: bool,
    /// Which kernel, run how.
    pub what: String,
    pub failed: Option<String>,
    /// A time a round; nothing is said of a wrong result.
    pub rounds_us: Vec<f64>,
    /// The same of the host's time of one enqueue, of steps that are launched one by one.
    #[serde(default)]
    pub host_us: Vec<f64>,
}

/// What a contender does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A product of an A that is there.
    Gemm,
    /// The same, with the link as busy as a gather keeps it.
    GemmBesideCopies,
    /// Gathers A.
    AllGather,
    /// Both.
    AllGatherGemm,
}

impl Kind {
    /// As the results call it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Gemm => "gemm",
            Kind::GemmBesideCopies => "gemm-beside-copies",
            Kind::AllGather => "all-gather",
            Kind::AllGatherGemm => "all-gather-gemm",
        }
    }
}

impl Row {
    /// How it is launched, as tables and pictures call it.
    pub fn launch(&self) -> &'static str {
        launch_name(self.graph)
    }
}

/// `graph` or `plain`.
pub fn launch_name(graph: bool) -> &'static str {
    if graph { "graph" } else { "plain" }
}

/// For whoever measures: the first contender whose result was wrong, and why.
pub fn first_failure(runs: &[Run]) -> Option<String> {
    let cases = runs.iter().flat_map(|run| &run.cases);
    let rows = cases.flat_map(|case| case.rows.iter().map(move |row| (case, row)));
    let failure = |(case, row): (&CaseReport, &Row)| {
        let why = row.failed.as_ref()?;
        Some(format!("{}: {} ({}): {why}", case.name, row.who, row.launch()))
    };
    rows.into_iter().find_map(failure)
}

/// Made-up results for the tests of whoever shows them.
#[cfg(test)]
pub mod made_up {
    use super::*;

    pub fn row(who: &str, kind: Kind, rounds_us: &[f64]) -> Row {
        Row {
            who: who.into(),
            peer: who.starts_with("torch"),
            kind,
            graph: true,
            what: format!("{who}_kernel"),
            failed: None,
            rounds_us: rounds_us.to_vec(),
            host_us: Vec::new(),
        }
    }

    pub fn wrong(who: &str) -> Row {
        let mut row = row(who, Kind::AllGatherGemm, &[]);
        row.failed = Some("off by 1".into());
        row
    }

    pub fn case(m: u64, rows: Vec<Row>) -> CaseReport {
        let problem = Problem::builder(m, 3584, 8192).ranks(2).build().unwrap();
        CaseReport { name: format!("{m}×3584×8192 bf16"), problem, rows }
    }

    pub fn run(cases: Vec<CaseReport>) -> Run {
        Run {
            command: "overlap-gemm bench all-gather-gemm".into(),
            program: own_name(),
            version: "0.0.0".into(),
            machine: crate::bench::machine::made_up(),
            nccl: Some("2.28.9".into()),
            ranks: 2,
            steps: 60,
            rounds: 3,
            copied: false,
            cases,
            ended_early: None,
        }
    }

    /// A case as the bench finds them, with one contender that is wrong.
    pub fn usual_case(m: u64) -> CaseReport {
        let times = |us: f64| [us, 1.02 * us, 0.98 * us].map(|time| time * m as f64 / 1024.0);
        let rows = vec![
            row("cublaslt", Kind::Gemm, &times(100.0)),
            row("torch-mm", Kind::Gemm, &times(110.0)),
            row("own", Kind::Gemm, &times(103.0)),
            row("nccl-cublaslt", Kind::AllGatherGemm, &times(150.0)),
            row("torch-fused", Kind::AllGatherGemm, &times(130.0)),
            wrong("torch-native"),
            row("fused", Kind::AllGatherGemm, &times(105.0)),
            row("gather", Kind::AllGather, &times(40.0)),
        ];
        case(m, rows)
    }
}
