//! `overlap-gemm bench merge`: the results of one or several runs as a table.
//!
//! Invariant: nothing is measured here. Times of another operation, machine, driver or number of ranks are refused.

use std::path::PathBuf;

use super::report::{self, Document, Run, Table};
use crate::exit::Failure;
use crate::output::OutputArgs;

/// Merge result files of bench into one table
///
/// Takes files that --output of bench or of this command wrote. Needs no GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Results, as JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Reads the files and shows them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut runs: Vec<Run> = Vec::new();
    for path in &args.files {
        let refused = |why: String| Err(Failure::Usage(format!("{}: {why}", path.display())));
        let read = report::read(path)?;
        if read.iter().all(|run| run.cases.is_empty()) {
            return refused("it holds no measured problem: leave it out, or measure again".into());
        }
        runs.extend(read);
        let first = runs[0].place();
        if let Some(other) = runs.iter().map(Run::place).find(|place| *place != first) {
            let other = report::printable(&other);
            return refused(format!("{other}, not {first}: show these results one by one"));
        }
    }
    let text = report::printable(&Table(&runs).to_string());
    // After the checks: no file is opened for what is refused.
    args.output.open()?.write(&Document::of(&runs), |stdout| stdout.write_all(text.as_bytes()))
}
