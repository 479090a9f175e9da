//! The command line: one module a subcommand, and what they share.
//!
//! To add a subcommand, write its module with `Args` and `run`, and add one variant to `Command`.
//! Shared: `problem_args` (what to multiply), `output` (text, JSON or a picture, and where to), `on_threads` (steps without
//! a GPU), `progress`, `statistics`, `interrupt` (Ctrl-C), `installed` (where libraries are) and `exit` (errors and exit
//! codes). Invariant: only `main` ends the process, and every failure ends as one message on
//! stderr and a documented exit code.

mod bench;
mod demo;
mod doctor;
mod exit;
mod installed;
mod interrupt;
#[cfg(unix)]
mod launch;
mod on_threads;
mod output;
mod plan;
mod predict;
mod problem_args;
mod progress;
mod statistics;
mod trace;
mod tune;
#[cfg(test)]
mod typed;
mod verify;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GEMMs that start before their inputs arrive
#[derive(Parser)]
#[command(name = "overlap-gemm", version, after_help = exit::HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(subcommand)]
    Bench(bench::What),
    Demo(demo::Args),
    Doctor(doctor::Args),
    #[cfg(unix)]
    Launch(launch::Args),
    Verify(verify::Args),
    Plan(plan::Args),
    Trace(Box<trace::Args>),
    Tune(Box<tune::Args>),
    Predict(Box<predict::Args>),
}

/// Prints help, the version, or the error in the arguments.
fn unparsed(said: &clap::Error) -> ExitCode {
    let printed = said.print().and_then(|()| io::stdout().flush());
    match output::to_stdout(printed) {
        Err(failure) if !said.use_stderr() => failure.report(),
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(exit::SUCCESS)),
    }
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(said) => return unparsed(&said),
    };
    let outcome = match command {
        Command::Bench(what) => bench::run(&what),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(unix)]
        Command::Launch(args) => launch::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Predict(args) => predict::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::from(exit::SUCCESS),
        Err(failure) => failure.report(),
    }
}
