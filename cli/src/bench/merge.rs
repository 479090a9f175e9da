//! `overlap-gemm bench merge`: results of several runs, and of other programs, in one table.
//!
//! Invariant: nothing is measured here, and nothing is compared that cannot be: rows of another machine or of another
//! number of ranks are refused, or with `--mixed` shown side by side without a ratio between them.

use std::path::PathBuf;

use super::report::{self, Comparison, Document, MarkdownArgs, SelectArgs};
use crate::exit::Failure;
use crate::output::OutputArgs;

/// Show results of bench all-gather-gemm again, several in one table
///
/// Takes files that --output of bench all-gather-gemm or this command wrote, or benches/peers/torch_peer.py. Ratios
/// between rows of one run are medians of its rounds' ratios; between runs they are those of the medians, and have
/// a ~. Needs no GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Results, as JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Show results of other machines or other numbers of ranks side by side, without comparing them
    #[arg(long)]
    mixed: bool,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    markdown: MarkdownArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Reads them and shows them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (mut runs, mut files) = (Vec::new(), Vec::new());
    for path in &args.files {
        let read = report::read(path)?;
        if read.iter().all(|run| run.cases.is_empty()) {
            return Err(Failure::Usage(format!(
                "{}: it holds no measured problem: leave it out, or measure again",
                path.display()
            )));
        }
        files.extend(std::iter::repeat_n(path, read.len()));
        runs.extend(read);
    }
    // Of all that was read, shown or not.
    let all = Comparison::of(&runs);
    if !args.mixed
        && let Some((nth, why)) = all.stranger()
    {
        return Err(Failure::Usage(format!(
            "{} cannot be compared with {}: {why}; give --mixed to see them side by side",
            files[nth].display(),
            files[0].display()
        )));
    }
    args.select.apply(&mut runs)?;
    let mut all = Comparison::of(&runs);
    args.select.sort(&mut all);
    let markdown = args.markdown.text(&all)?;
    // After the checks: no file is opened for what is refused.
    args.output.open()?.write(&Document::of(&runs), |stdout| match markdown {
        Some(text) => write!(stdout, "{text}"),
        None => write!(stdout, "{all}"),
    })
}
