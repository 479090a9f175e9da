//! What a bench measured: one shape of data for every bench, written, read back, compared and shown.
//!
//! What belongs here: the data. Its neighbours read it from files ([`read`]), compare its rows ([`compare`]), and show it
//! ([`table`]). Nothing here needs the feature `cuda`.
//! Invariant: a row either has times, or says why not: its result was wrong (`failed`), or it did not run (`absent`). Times
//! are microseconds a step, those of the slowest rank.

mod compare;
mod read;
mod table;

use overlap_gemm::plan::{Operation, Problem, Way};
use serde::{Deserialize, Serialize};

pub use read::{printable, read};
pub use table::Table;

use super::machine::Machine;
use crate::exit::Failure;
use crate::output::Output;

/// The names of the benches in a file: of several ranks that gather, of one, of several that reduce, or do both.
const BENCHES: [&str; 5] =
    ["all-gather-gemm", "gemm", "gemm-reduce-scatter", "gemm-all-reduce", "tensor-parallel-mlp"];

/// The format that is written, and read.
const FORMAT: u64 = 2;

/// A file: one run, or several of one operation that were put together.
#[derive(Serialize)]
pub struct Document<'a> {
    bench: &'static str,
    format: u64,
    runs: &'a [Run],
}

impl<'a> Document<'a> {
    /// Of these runs.
    pub fn of(runs: &'a [Run]) -> Document<'a> {
        let mut cases = runs.iter().flat_map(|run| &run.cases);
        let bench = match runs.first().map(|run| (run.operation, run.ranks)) {
            _ if cases.any(|case| case.before.is_some()) => BENCHES[4],
            Some((Operation::GemmReduceScatter, _)) => BENCHES[2],
            Some((Operation::GemmAllReduce, _)) => BENCHES[3],
            Some((_, 1)) => BENCHES[1],
            _ => BENCHES[0],
        };
        Document { bench, format: FORMAT, runs }
    }
}

/// The measurements of one run: all ranks, all cases, contenders interleaved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The command line.
    pub command: String,
    /// The version of this program.
    pub version: String,
    pub machine: Machine,
    /// What was measured; files of benches that gather do not say it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub operation: Operation,
    /// NCCL's version, where it took part.
    pub nccl: Option<String>,
    pub ranks: u32,
    /// Steps in a loop, at least.
    pub steps: usize,
    pub rounds: usize,
    /// Whether results were not compared with the reference.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unchecked: bool,
    pub cases: Vec<CaseReport>,
    /// Why it ended before the last case, if it did.
    #[serde(default)]
    pub ended_early: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The command line, without the folder of the program.
pub fn command() -> String {
    let arguments = std::env::args().skip(1);
    ["overlap-gemm".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

impl Run {
    /// One of this program, on that many ranks, before its first case.
    pub fn begin(machine: Machine, ranks: u32, steps: usize, rounds: usize) -> Run {
        Run {
            command: command(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine,
            operation: Operation::default(),
            nccl: None,
            ranks,
            steps,
            rounds,
            unchecked: false,
            cases: Vec::new(),
            // What a file says while there are cases to come.
            ended_early: Some("still measuring, or ended from outside".into()),
        }
    }

    /// Writes what was measured so far into the file of `--output`.
    pub fn keep(&self, output: &mut Output) -> Result<(), Failure> {
        output.keep(&Document::of(std::slice::from_ref(self)))
    }

    /// Shows all that was measured, also when a later case ended the bench, and says how the command ends: a wrong result fails
    /// it.
    pub fn end(mut self, output: Output, outcome: Result<(), Failure>) -> Result<(), Failure> {
        self.ended_early = outcome.as_ref().err().map(Failure::to_string);
        if self.cases.is_empty() {
            return outcome;
        }
        let runs = [self];
        output.write(&Document::of(&runs), |stdout| write!(stdout, "{}", Table(&runs)))?;
        for case in &runs[0].cases {
            if let Some(row) = case.rows.iter().find(|row| row.failed.is_some()) {
                let (who, launch, why) = (&row.who, row.launch(), row.failed.as_deref());
                let why = why.unwrap_or_default();
                return Err(Failure::CheckFailed(format!(
                    "{}: {who} ({launch}): {why}",
                    case.name
                )));
            }
        }
        outcome
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// `4096×3584×8192 bf16`: N, or K where sums are reduced, is that of one rank.
    pub name: String,
    /// The same with each rank's rows.
    pub problem: Problem,
    /// In an MLP: what is gathered and multiplied before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Problem>,
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
    /// Which kernel, run how, in words.
    pub what: String,
    /// The same as data, where the library planned a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<CarriedOut>,
    /// Its result was wrong: how.
    pub failed: Option<String>,
    /// It was not timed in the rounds: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// A time a round.
    pub rounds_us: Vec<f64>,
    /// The same of the host's time of one enqueue, of steps that are launched one by one.
    #[serde(default)]
    pub host_us: Vec<f64>,
    /// What the GPU drew and how fast it ran in each round, where NVML tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power: Vec<Power>,
}

/// Means over the timed part of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    pub watts: f64,
    /// Of the multiprocessors.
    pub mhz: f64,
}

/// How a step was carried out: all that a prediction of it has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarriedOut {
    pub way: Way,
    /// The kernel's name.
    pub kernel: String,
    pub swizzle: u32,
    /// Slices of K.
    pub splits: u32,
    /// SMs that the product occupies; older files do not say, and mean all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
}

/// What a contender does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A product alone, of inputs that are available.
    Gemm,
    /// The same through signals that are all set.
    GemmAllSignalled,
    /// The same, while as many bytes travel as a gather moves.
    GemmBesideCopies,
    /// Gathers A.
    AllGather,
    /// Gathers A and multiplies it.
    AllGatherGemm,
    /// Adds up what all ranks have multiplied.
    ReduceScatter,
    /// Multiplies, and adds up.
    GemmReduceScatter,
    /// Adds up what all ranks have multiplied, for all of them.
    AllReduce,
    /// Multiplies, and adds up for all ranks.
    GemmAllReduce,
}

impl Kind {
    /// Moves data and multiplies: what is compared with T_gemm and the baseline.
    pub fn is_whole(self) -> bool {
        matches!(self, Kind::AllGatherGemm | Kind::GemmReduceScatter | Kind::GemmAllReduce)
    }

    /// Adds up all ranks' products.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
    pub fn reduces(self) -> bool {
        matches!(
            self,
            Kind::ReduceScatter | Kind::GemmReduceScatter | Kind::AllReduce | Kind::GemmAllReduce
        )
    }

    /// The part of an operation with sums that adds them up.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
    pub fn reduction(operation: Operation) -> Kind {
        match operation {
            Operation::GemmAllReduce => Kind::AllReduce,
            _ => Kind::ReduceScatter,
        }
    }

    /// All of an operation.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
    pub fn whole(operation: Operation) -> Kind {
        match operation {
            Operation::GemmReduceScatter => Kind::GemmReduceScatter,
            Operation::GemmAllReduce => Kind::GemmAllReduce,
            _ => Kind::AllGatherGemm,
        }
    }
}

impl Row {
    /// One that was not timed yet.
    pub fn new(who: &str, kind: Kind, graph: bool, what: String) -> Row {
        Row {
            who: who.into(),
            peer: false,
            kind,
            graph,
            what,
            plan: None,
            failed: None,
            absent: None,
            rounds_us: Vec::new(),
            host_us: Vec::new(),
            power: Vec::new(),
        }
    }

    /// It, and behind it the contenders that are carried out in the same way, with its times.
    #[cfg(any(feature = "cuda", test))]
    pub fn with_twins(self, twins: Vec<(super::wanted::Contender, String)>) -> Vec<Row> {
        let twin = |(who, what): (super::wanted::Contender, String)| {
            let what = format!("{what}; timed as {}", self.who);
            Row { who: who.name(), what, ..self.clone() }
        };
        let twins: Vec<Row> = twins.into_iter().map(twin).collect();
        [self].into_iter().chain(twins).collect()
    }

    /// How it is launched, as tables call it.
    pub fn launch(&self) -> &'static str {
        if self.graph { "graph" } else { "plain" }
    }
}

/// Made-up results for the tests.
#[cfg(test)]
pub mod made_up {
    use super::*;

    pub fn row(who: &str, kind: Kind, rounds_us: &[f64]) -> Row {
        let mut row = Row::new(who, kind, true, format!("{who}_kernel"));
        row.peer = who.starts_with("torch");
        row.rounds_us = rounds_us.to_vec();
        row
    }

    pub fn wrong(who: &str) -> Row {
        let mut row = row(who, Kind::AllGatherGemm, &[]);
        row.failed = Some("off by 1".into());
        row
    }

    pub fn case(m: u64, rows: Vec<Row>) -> CaseReport {
        let problem = Problem::builder(m, 3584, 8192).ranks(2).build().unwrap();
        CaseReport { name: format!("{m}×3584×8192 bf16"), problem, before: None, rows }
    }

    pub fn run(cases: Vec<CaseReport>) -> Run {
        Run {
            version: "0.0.0".into(),
            nccl: Some("2.28.9".into()),
            cases,
            ended_early: None,
            ..Run::begin(crate::bench::machine::made_up(), 2, 60, 3)
        }
    }

    /// The same of a bench that reduces.
    pub fn reduced_case(m: u64) -> CaseReport {
        let mut case = usual_case(m);
        for row in &mut case.rows {
            row.kind = match row.kind {
                Kind::AllGatherGemm => Kind::GemmReduceScatter,
                Kind::AllGather => Kind::ReduceScatter,
                kind => kind,
            };
        }
        case
    }

    /// A case as benches measure it, with one contender that is wrong.
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
