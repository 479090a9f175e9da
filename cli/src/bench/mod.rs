//! `overlap-gemm bench`: how fast it is, against what others ship.
//!
//! To add a bench, write its module and add one variant to `What`. What all of them share is beside:
//! [`cases`] (what is multiplied), [`sets`] and [`shapes`] (problems by name, and the arguments), [`machine`] (where it ran), [`statistics`], [`lineup`]
//! (who runs), [`turns`] (when), [`asides`] (how `auto` was planned).
//! `gather` (and its part on threads, [`host`]) and [`merge`] have their results in [`report`]; `gemm` has, with the feature `cuda`, `results`
//! (what was measured, as data), `bars` (what the project wants) and `table` (all of it as text). `gpu` is
//! the measuring. Invariant: nobody is shown a time for a wrong result.

mod asides;
#[cfg(feature = "cuda")]
mod bars;
pub mod cases;
mod gather;
pub mod gemm;
#[cfg(feature = "cuda")]
pub mod gpu;
mod host;
mod lineup;
pub mod machine;
mod merge;
pub mod report;
#[cfg(feature = "cuda")]
mod results;
mod sets;
pub mod shapes;
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "what is measured on GPUs needs all of it")
)]
pub mod statistics;
#[cfg(feature = "cuda")]
mod table;
pub mod turns;

use crate::exit::Failure;

/// What a file says while there are cases to come.
const NOT_AT_ITS_END: &str = "still measuring, or ended from outside";

/// Measure how fast it is, beside what others ship
#[derive(clap::Subcommand)]
pub enum What {
    Gemm(Box<gemm::Args>),
    AllGatherGemm(Box<gather::Args>),
    Merge(Box<merge::Args>),
}

/// Runs the bench that was asked for.
pub fn run(what: &What) -> Result<(), Failure> {
    match what {
        What::Gemm(args) => gemm::run(args),
        What::AllGatherGemm(args) => gather::run(args),
        What::Merge(args) => merge::run(args),
    }
}

/// What was typed, without the folder that the program lies in.
pub fn command() -> String {
    let arguments = std::env::args().skip(1);
    ["overlap-gemm".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
