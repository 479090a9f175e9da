//! The course of tuning: problems that the table already has, the time limit, the file, and the end.
//!
//! Invariant: each problem is in the file as soon as it was measured; a wrong result fails the command.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use overlap_gemm::Result;
use overlap_gemm::plan::Problem;
use overlap_gemm::tune::{Entry, Family, Shape, Tuning, record};

use super::results::{Failed, Results, Tuned};
use super::search::Candidate;
use super::{Launches, Wanted};
use crate::bench::cases::Case;
use crate::bench::report::command;
use crate::exit::Failure;
use crate::output::Output;

/// The beginning of a reason that is not a wrong result.
pub const REFUSED: &str = "refused: ";

/// Why tuning ended before all was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    Interrupted,
    TimeIsUp,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stopped::Interrupted => "interrupted",
            Stopped::TimeIsUp => "the time was up",
        })
    }
}

/// How long it may take.
pub struct Clock {
    since: Instant,
    limit: Option<Duration>,
}

impl Clock {
    pub fn new(minutes: Option<f64>) -> Clock {
        let limit = minutes.and_then(|minutes| Duration::try_from_secs_f64(60.0 * minutes).ok());
        Clock { since: Instant::now(), limit }
    }

    /// Whether work that takes `ahead` would end after the limit.
    pub fn is_up(&self, ahead: Duration) -> bool {
        self.limit.is_some_and(|limit| self.since.elapsed() + ahead > limit)
    }
}

/// Whether a table has all that is asked for of a problem, with this driver: another's times are not this machine's.
pub fn has(table: &Tuning, problem: &Problem, gpu: &str, driver: &str, launches: Launches) -> bool {
    let (family, shape) = (Family::of(problem, gpu), Shape::of(problem));
    let [graph, plain] = match launches {
        Launches::Graph => [true, false],
        Launches::Plain => [false, true],
        Launches::Both => [true, true],
    };
    let done =
        |one: &Entry| (one.us.graph.is_some() || !graph) && (one.us.plain.is_some() || !plain);
    let mut entries = table.entries().iter();
    let entry = entries.find(|entry| entry.family == family && entry.shape == shape);
    entry.is_some_and(|entry| done(entry) && entry.driver == driver)
}

/// The outcome of all problems.
#[derive(Default)]
pub struct Outcome {
    pub measured: Vec<Tuned>,
    pub failed: Vec<Failed>,
    pub stopped: Option<Stopped>,
    /// The longest time of one problem.
    pub longest: Duration,
}

impl Outcome {
    /// Adds candidates with wrong results, and refused ones.
    pub fn fail(&mut self, case: &Case, failed: Vec<(Candidate, String)>) {
        self.failed.extend(failed.into_iter().map(|(candidate, why)| Failed {
            problem: case.to_string(),
            way: candidate.way,
            multiplying: candidate.multiplying,
            why,
        }));
    }

    /// Adds a problem, and writes it into the file, if there is one here.
    pub fn add(&mut self, tuned: Tuned, file: Option<&Path>) -> Result<()> {
        if let Some(file) = file {
            record(file, std::slice::from_ref(&tuned.entry))?;
        }
        self.measured.push(tuned);
        Ok(())
    }

    /// Shows all of it where there is an output, and says how the command ends. `kept` problems were in the table already.
    pub fn end(
        self,
        wanted: &Wanted,
        kept: usize,
        clock: &Clock,
        output: Option<Output>,
    ) -> Result<(), Failure> {
        let Outcome { measured, failed, stopped, .. } = self;
        let wrong = failed.iter().find(|failed| !failed.why.starts_with(REFUSED)).map(|failed| {
            let Failed { problem, way, multiplying, why } = failed;
            format!("{problem}: {way}; {multiplying}: {why}")
        });
        if let Some(output) = output {
            let results = Results {
                command: command(),
                version: env!("CARGO_PKG_VERSION"),
                file: wanted.file.display().to_string(),
                kept,
                measured,
                failed,
                seconds: clock.since.elapsed().as_secs_f64(),
                ended_early: stopped.map(|why| why.to_string()),
            };
            output.write(&results, |stdout| write!(stdout, "{results}"))?;
        }
        match (stopped, wrong) {
            (Some(Stopped::Interrupted), _) => Err(Failure::Interrupted),
            (_, Some(why)) => Err(Failure::CheckFailed(why)),
            _ => Ok(()),
        }
    }
}
