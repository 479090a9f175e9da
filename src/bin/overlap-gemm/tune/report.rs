//! What tables say: as text and as JSON.
//!
//! Invariant: the text says nothing that the JSON does not; what is not known is a dash, never a guess.

use std::fmt;
use std::path::Path;

use overlap_gemm::plan::Problem;
use overlap_gemm::predict::Machine;
use overlap_gemm::tune::{
    Answer, Anything, Asked, Entry, Gathering, HeldOut, Multiplying, Place, Shape, Source, Tuning,
    hold_out, record,
};
use serde::Serialize;

use crate::bench::statistics::{median, quantile};
use crate::exit::Failure;
use crate::output::Output;

/// How one problem would have been answered.
#[derive(Serialize)]
struct Checked {
    family: String,
    shape: Shape,
    /// What the answer was corrected by; none: nothing is near.
    from: Vec<Place>,
    gathering: Option<Gathering>,
    multiplying: Option<Multiplying>,
    fastest: Gathering,
    ratio: Option<f64>,
    /// The same beside the best strategy that is planned without a table, in graphs and one by one.
    over_strategies: [Option<f64>; 2],
}

/// What holding out each problem says of a table.
#[derive(Serialize)]
struct Check {
    problems: Vec<Checked>,
    median: Option<f64>,
    worst: Option<f64>,
    /// Problems whose answer was not measured for them.
    unknown: usize,
    /// Beside the best strategy that is planned without a table, each way to launch by itself.
    over_strategies: Option<OverStrategies>,
}

/// How answers do beside strategies that are planned without a table.
#[derive(Serialize)]
struct OverStrategies {
    count: usize,
    /// Those within [`BAR`].
    within_bar: usize,
    median: f64,
    worst: f64,
}

/// How far behind the best strategy an answer may be.
const BAR: f64 = 1.03;

impl OverStrategies {
    fn of(problems: &[Checked]) -> Option<OverStrategies> {
        let all: Vec<f64> = problems.iter().flat_map(|one| one.over_strategies).flatten().collect();
        let within_bar = all.iter().filter(|ratio| **ratio <= BAR).count();
        let (median, worst) = (median(&all)?, quantile(&all, 1.0)?);
        Some(OverStrategies { count: all.len(), within_bar, median, worst })
    }
}

impl Check {
    fn of(table: &Tuning) -> Check {
        let problems: Vec<Checked> = hold_out(table).iter().filter_map(Checked::of).collect();
        let ratios: Vec<f64> = problems.iter().filter_map(|one| one.ratio).collect();
        let unknown = problems.len() - ratios.len();
        let (median, worst) = (median(&ratios), quantile(&ratios, 1.0));
        let over_strategies = OverStrategies::of(&problems);
        Check { problems, median, worst, unknown, over_strategies }
    }
}

impl Checked {
    fn of(held: &HeldOut<'_>) -> Option<Checked> {
        let answer = held.answer.as_ref();
        Some(Checked {
            family: held.entry.family.to_string(),
            shape: held.shape(),
            from: answer.map(from).unwrap_or_default(),
            gathering: answer.map(|answer| answer.gathering),
            multiplying: answer.and_then(|answer| answer.multiplying.clone()),
            fastest: held.entry.best()?.gathering,
            ratio: held.ratio,
            over_strategies: held.over_strategies,
        })
    }
}

/// The problems that an answer was corrected by.
fn from(answer: &Answer) -> Vec<Place> {
    match &answer.source {
        Source::Interpolated { from, .. } => from.clone(),
        Source::Tuned(_) | Source::Modelled { .. } => Vec::new(),
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut family = None;
        for one in &self.problems {
            if family != Some(&one.family) {
                writeln!(f, "{}\nproblem              ÷ fastest  without it", one.family)?;
                family = Some(&one.family);
            }
            write!(f, "{:20} ", one.shape.to_string())?;
            match one.ratio {
                Some(ratio) => write!(f, "{ratio:9.3}  ")?,
                None => write!(f, "{:>9}  ", "–")?,
            }
            match &one.gathering {
                Some(gathering) => write!(f, "{gathering}")?,
                None => write!(f, "no kernel computes it")?,
            }
            if let Some(multiplying) = &one.multiplying {
                write!(f, "; {multiplying}")?;
            }
            if one.gathering.is_some_and(|gathering| gathering != one.fastest) {
                write!(f, " (fastest: {})", one.fastest)?;
            }
            writeln!(f)?;
        }
        match (self.median, self.worst) {
            (Some(median), Some(worst)) => {
                writeln!(
                    f,
                    "median {median:.3}, worst {worst:.3}, of {}",
                    self.problems.len() - self.unknown
                )?;
            }
            _ => writeln!(f, "no answer was measured")?,
        }
        if self.unknown > 0 {
            writeln!(f, "–: of {}, what would be chosen was not tried there", self.unknown)?;
        }
        if let Some(OverStrategies { count, within_bar, median, worst }) = &self.over_strategies {
            writeln!(
                f,
                "beside the best strategy that is planned without a table, in graphs and one by one: \
                 median {median:.3}, worst {worst:.3}, within 3 % in {within_bar} of {count}"
            )?;
        }
        Ok(())
    }
}

/// Holds out each problem of a table, and tells.
pub fn check(table: &Tuning, output: Output) -> Result<(), Failure> {
    let check = Check::of(table);
    output.write(&check, |stdout| write!(stdout, "{check}"))
}

/// What a table says of one problem.
#[derive(Serialize)]
struct Shown {
    problem: String,
    /// `tuned`, `interpolated`, `modelled` or `by the rules`.
    how: &'static str,
    /// In words.
    why: String,
    gathering: Option<Gathering>,
    multiplying: Option<Multiplying>,
    from: Vec<Place>,
}

/// What a table says.
#[derive(Serialize)]
struct Show {
    sources: Vec<String>,
    /// What could not be read, and whose figures took the place of others.
    notes: Vec<String>,
    problems: Vec<Shown>,
}

impl Shown {
    fn of(problem: &Problem, gpu: &str, driver: Option<&str>, table: &Tuning) -> Shown {
        let asked = Asked { gpu, sms: Machine::h200().sms, problem };
        let (name, answer) = (problem.to_string(), table.look_up(&asked, &Anything));
        let Some(answer) = answer else {
            let why = "by the rules: no kernel computes it".to_owned();
            let (how, from) = ("by the rules", Vec::new());
            return Shown { problem: name, how, why, gathering: None, multiplying: None, from };
        };
        let how = match answer.source {
            Source::Tuned(_) => "tuned",
            Source::Interpolated { .. } => "interpolated",
            Source::Modelled { .. } => "modelled",
        };
        let (mut why, from) = (answer.to_string(), from(&answer));
        let is_another = |other: &&String| driver.is_some_and(|here| here != *other);
        let others = answer.drivers.iter().filter(is_another);
        let others: Vec<&str> = others.map(String::as_str).collect();
        if let (false, Some(driver)) = (others.is_empty(), driver) {
            why += &format!("; measured with driver {}, and here is {driver}", others.join(", "));
        }
        let Answer { gathering, multiplying, .. } = answer;
        Shown { problem: name, how, why, gathering: Some(gathering), multiplying, from }
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
        for Shown { problem, why, gathering, multiplying, .. } in &self.problems {
            writeln!(f, "{problem}\n  {why}")?;
            if let Some(gathering) = gathering {
                writeln!(f, "  {gathering}")?;
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

/// The GPU whose figures predictions are made by.
const FIGURES: &str = "NVIDIA H200";

/// Tells what plans of `problems` on GPUs of that name would be made by.
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
        sources: table.sources().to_vec(),
        notes,
        problems: problems.iter().map(shown).collect(),
    };
    output.write(&show, |stdout| write!(stdout, "{show}"))
}

/// Adds tables to a file, and tells how much is in it then. Of the same problem the last one counts, whatever it was measured with.
pub fn merge(file: &Path, tables: Vec<Tuning>, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Merged {
        file: String,
        added: usize,
        /// Those that came in place of one of another driver.
        of_another_driver: usize,
        problems: usize,
    }
    let mut all = if file.exists() { Tuning::from_file(file)? } else { Tuning::none() };
    let (mut added, mut of_another_driver) = (0, 0);
    for table in tables {
        let is_replaced = |new: &&Entry| {
            let same = |old: &&Entry| (&old.family, old.shape) == (&new.family, new.shape);
            all.entries().iter().find(same).is_some_and(|old| old.driver != new.driver)
        };
        of_another_driver += table.entries().iter().filter(is_replaced).count();
        added += table.entries().len();
        all.add(table);
    }
    record(file, all.entries())?;
    let (problems, file) = (all.entries().len(), file.display().to_string());
    let merged = Merged { file, added, of_another_driver, problems };
    let Merged { file, .. } = &merged;
    output.write(&merged, |stdout| {
        writeln!(stdout, "{added} problems were added to {file}, which has {problems} now")?;
        match of_another_driver {
            0 => Ok(()),
            count => {
                writeln!(stdout, "{count} of them replaced what was measured with another driver")
            }
        }
    })
}
