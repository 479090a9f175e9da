//! `tune --show` and `tune --merge`: what tables hold, as text and as JSON.
//!
//! Invariant: the text holds nothing that the JSON does not.

use std::fmt;
use std::path::Path;

use overlap_gemm::plan::{Problem, Way};
use overlap_gemm::predict::Machine;
use overlap_gemm::tune::{Answer, Anything, Asked, Multiplying, Shape, Source, Tuning, record};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::Output;

/// The answer of a table for one problem.
#[derive(Serialize)]
struct Shown {
    problem: String,
    /// `tuned`, `nearest`, `modelled` or `by the rules`.
    how: &'static str,
    /// In words.
    why: String,
    way: Option<Way>,
    multiplying: Option<Multiplying>,
    /// Which problem was measured instead, if one was.
    from: Option<Shape>,
}

/// The answers of a table.
#[derive(Serialize)]
struct Show {
    /// The GPUs that it answers for.
    gpu: String,
    sources: Vec<String>,
    /// Tables that could not be read, and the figures that replaced unknown ones.
    notes: Vec<String>,
    problems: Vec<Shown>,
}

impl Shown {
    fn of(problem: &Problem, gpu: &str, driver: Option<&str>, table: &Tuning) -> Shown {
        let asked = Asked { gpu, sms: Machine::h200().sms, problem };
        let (name, answer) = (problem.to_string(), table.look_up(&asked, &Anything));
        let Some(answer) = answer else {
            let why = "by the rules: no kernel computes it".to_owned();
            let (how, from) = ("by the rules", None);
            return Shown { problem: name, how, why, way: None, multiplying: None, from };
        };
        let mut why = answer.to_string();
        let (how, from) = match answer.source {
            Source::Tuned(_) => ("tuned", None),
            Source::Nearest(shape, _) => ("nearest", Some(shape)),
            Source::Modelled { .. } => ("modelled", None),
        };
        if let (Some(other), Some(here)) = (&answer.driver, driver)
            && other != here
        {
            why += &format!("; measured with driver {other}, and here is {here}");
        }
        let Answer { way, multiplying, .. } = answer;
        Shown { problem: name, how, why, way: Some(way), multiplying, from }
    }
}

/// This machine's driver, where there is one.
#[cfg(feature = "cuda")]
fn driver() -> Option<String> {
    overlap_gemm::cuda::device::driver_name().ok()
}

#[cfg(not(feature = "cuda"))]
fn driver() -> Option<String> {
    None
}

impl fmt::Display for Show {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "on {}", self.gpu)?;
        for Shown { problem, why, way, multiplying, .. } in &self.problems {
            writeln!(f, "{problem}\n  {why}")?;
            if let Some(way) = way {
                writeln!(f, "  {way}")?;
            }
            if let Some(multiplying) = multiplying {
                writeln!(f, "  {multiplying}")?;
            }
        }
        match self.sources.as_slice() {
            [] => writeln!(f, "no table was read")?,
            sources => writeln!(f, "by the tables of {}", sources.join(", "))?,
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// The GPU that predictions are for.
const FIGURES: &str = "NVIDIA H200";

/// Shows the plans of `problems` on GPUs of that name.
pub fn show(
    table: &Tuning,
    problems: &[Problem],
    gpu: &str,
    output: Output,
) -> Result<(), Failure> {
    let driver = driver();
    let shown = |problem| Shown::of(problem, gpu, driver.as_deref(), table);
    let mut notes = table.notes().to_vec();
    if gpu != FIGURES {
        notes.push(format!("no figures of {gpu} are known: by those of {FIGURES}"));
    }
    let show = Show {
        gpu: gpu.to_owned(),
        sources: table.sources().to_vec(),
        notes,
        problems: problems.iter().map(shown).collect(),
    };
    output.write(&show, |stdout| write!(stdout, "{show}"))
}

/// Adds tables to a file, and shows the number of its problems. Of equal problems the last one counts.
pub fn merge(file: &Path, tables: Vec<Tuning>, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Merged {
        file: String,
        added: usize,
        problems: usize,
    }
    let mut all = if file.exists() { Tuning::from_file(file)? } else { Tuning::none() };
    let added = tables.iter().map(|table| table.entries().len()).sum();
    tables.into_iter().for_each(|table| all.add(table));
    record(file, all.entries())?;
    let (problems, file) = (all.entries().len(), file.display().to_string());
    let merged = Merged { file, added, problems };
    let Merged { file, .. } = &merged;
    output.write(&merged, |stdout| {
        writeln!(stdout, "{added} problems were added to {file}, which has {problems} now")
    })
}
