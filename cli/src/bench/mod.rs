//! `overlap-gemm bench`: how fast it is, against what others ship.
//!
//! Arguments ([`gemm`], [`gather`], [`merge`]) become values ([`wanted`]), which are measured (`gpu`, [`host`]) and become a
//! [`report`], the one shape of results. What they share: [`cases`] (a problem), [`sets`] and [`shapes`] (problems by name, and
//! their arguments), [`machine`] (where it ran), [`command`] (what was typed), [`statistics`], [`lineup`] (contenders that
//! run, and those with the same plan), [`turns`] (their order in a round). Each uses those behind it, none those before.
//! Invariant: no time is shown for a wrong result.

pub mod cases;
pub mod command;
mod gather;
mod gemm;
#[cfg(feature = "cuda")]
pub mod gpu;
mod host;
mod lineup;
pub mod machine;
mod merge;
pub mod report;
mod sets;
pub mod shapes;
pub mod statistics;
pub mod turns;
pub mod wanted;

use crate::exit::Failure;

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
