//! Where the results of a bench go, while it runs and at its end.
//!
//! Invariant: what was measured is shown, also when a later case ended the bench; a wrong result fails the command.

use super::{CaseReport, Document, Row, Run, Table};
use crate::exit::Failure;
use crate::output::{Output, OutputArgs};

/// Stdout, and the file of `--output`.
pub struct Shown {
    pub output: Output,
}

impl Shown {
    /// Opens the file, if one was named.
    pub fn open(output: &OutputArgs) -> Result<Shown, Failure> {
        Ok(Shown { output: output.open()? })
    }

    /// Keeps what was measured so far.
    pub fn keep(&mut self, run: &Run) -> Result<(), Failure> {
        self.output.keep(&Document::of(std::slice::from_ref(run)))
    }

    /// Writes all that a run measured, if it measured anything, and says how the command ends.
    pub fn end(self, mut run: Run, outcome: Result<(), Failure>) -> Result<(), Failure> {
        run.ended_early = outcome.as_ref().err().map(Failure::to_string);
        if run.cases.is_empty() {
            return outcome;
        }
        let runs = [run];
        self.output.write(&Document::of(&runs), |stdout| write!(stdout, "{}", Table(&runs)))?;
        match first_failure(&runs[0]) {
            Some(why) => Err(Failure::CheckFailed(why)),
            None => outcome,
        }
    }
}

/// The first contender whose result was wrong, and how.
fn first_failure(run: &Run) -> Option<String> {
    let rows = run.cases.iter().flat_map(|case| case.rows.iter().map(move |row| (case, row)));
    let failure = |(case, row): (&CaseReport, &Row)| {
        let why = row.failed.as_ref()?;
        Some(format!("{}: {} ({}): {why}", case.name, row.who, row.launch()))
    };
    rows.into_iter().find_map(failure)
}
