//! `overlap-gemm bench merge`: the results of one or several runs as a table, or as a part of a document.
//!
//! Invariant: nothing is measured here. Times of another operation, machine, driver or number of ranks are refused, and so is a
//! problem that was asked for and not measured.

use std::path::PathBuf;

use super::cases::Shape;
use super::report::{self, CaseReport, Document, MarkdownArgs, Run, Table};
use super::wanted::Launch;
use crate::exit::Failure;
use crate::output::OutputArgs;

/// Merge result files of bench into one table, or print a part of them for a document
///
/// Takes files that --output of bench or of this command wrote. Needs no GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Results, as JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    select: Select,

    #[command(flatten)]
    markdown: MarkdownArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// The part of the results that is shown and written.
#[derive(Clone, Debug, Default, clap::Args)]
struct Select {
    /// Only these problems, in this order
    #[arg(long, value_name = "MxNxK,...", value_delimiter = ',')]
    shapes: Vec<Shape>,

    /// Only problems with at least this many rows
    #[arg(long, value_name = "ROWS")]
    from_m: Option<u32>,

    /// Only this launch mode
    #[arg(long, value_enum)]
    launch: Option<Launch>,
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
    args.select.apply(&mut runs)?;
    let mut cases: Vec<&CaseReport> = runs.iter().flat_map(|run| &run.cases).collect();
    cases.sort_by_key(|case| args.select.place(case));
    let text = args.markdown.text(&cases)?.unwrap_or_else(|| Table(&runs).to_string());
    // After the checks: no file is opened for what is refused.
    let output = args.output.open()?;
    output.write(&Document::of(&runs), |stdout| write!(stdout, "{}", report::printable(&text)))
}

impl Select {
    /// Takes everything else away.
    fn apply(&self, runs: &mut Vec<Run>) -> Result<(), Failure> {
        for run in &mut *runs {
            if let Some(launch) = self.launch {
                let graph = launch == Launch::Graph;
                run.cases.iter_mut().for_each(|case| case.rows.retain(|row| row.graph == graph));
            }
            run.cases.retain(|case| self.has(case));
            run.cases.sort_by_key(|case| self.place(case));
        }
        runs.retain(|run| !run.cases.is_empty());
        let cases = || runs.iter().flat_map(|run| &run.cases);
        let missing = |shape: &&Shape| !cases().any(|case| Shape::of(&case.problem) == **shape);
        match self.shapes.iter().find(missing) {
            Some(Shape { m, n, k }) => Err(Failure::Usage(format!(
                "--shapes: these results have no {m}x{n}x{k}, or not as the other options want it"
            ))),
            None if runs.is_empty() => Err(Failure::Usage(
                "none of these results is left: give a smaller --from-m, or another --launch"
                    .into(),
            )),
            None => Ok(()),
        }
    }

    fn has(&self, case: &CaseReport) -> bool {
        (self.shapes.is_empty() || self.place(case).is_some())
            && self.from_m.is_none_or(|rows| case.problem.m() >= rows)
            && !(self.launch.is_some() && case.rows.is_empty())
    }

    /// The place of a problem in the order that was asked for.
    fn place(&self, case: &CaseReport) -> Option<usize> {
        self.shapes.iter().position(|shape| *shape == Shape::of(&case.problem))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::made_up::{run, usual_case};
    use super::*;

    /// The rows of the problems that are left, run by run.
    fn left(select: &Select) -> Result<Vec<Vec<u32>>, String> {
        let mut plain = usual_case(512);
        plain.rows.iter_mut().for_each(|row| row.graph = false);
        let mut runs = vec![run(vec![usual_case(1024), usual_case(64)]), run(vec![plain])];
        select.apply(&mut runs).map_err(|failure| failure.to_string())?;
        let rows = |run: &Run| run.cases.iter().map(|case| case.problem.m()).collect();
        Ok(runs.iter().map(rows).collect())
    }

    #[test]
    fn only_what_is_asked_for_is_left_and_in_that_order() {
        let none = Select::default();
        let of = |shapes: &[&str]| {
            let shapes = shapes.iter().map(|shape| shape.parse().unwrap()).collect();
            Select { shapes, ..none.clone() }
        };
        let from = |rows| Select { from_m: Some(rows), ..none.clone() };
        let launched = |launch| Select { launch: Some(launch), ..none.clone() };
        let [large, small, plain] = ["1024x3584x8192", "64x3584x8192", "512x3584x8192"];
        for (select, rows) in [
            (none.clone(), vec![vec![1024, 64], vec![512]]),
            (of(&[plain, small, large]), vec![vec![64, 1024], vec![512]]),
            (of(&[small]), vec![vec![64]]),
            (from(512), vec![vec![1024], vec![512]]),
            (launched(Launch::Graph), vec![vec![1024, 64]]),
            (launched(Launch::Plain), vec![vec![512]]),
        ] {
            assert_eq!(left(&select).unwrap(), rows, "{select:?}");
        }
        for (select, word) in [
            (from(1025), "--from-m"),
            (of(&["65x3584x8192"]), "no 65x3584x8192"),
            (Select { launch: Some(Launch::Plain), ..of(&[large]) }, "no 1024x3584x8192"),
        ] {
            let why = left(&select).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
