//! `overlap-gemm bench`: how fast it is, against what others ship.
//!
//! To add a bench, write its module and add one variant to `What`. What all of them share is beside:
//! [`cases`] (what is multiplied), [`statistics`], and with the feature `cuda` `results` (what was
//! measured, as data), `bars` (what the project wants), `table` (all of it as text) and `gpu` (the
//! measuring). Invariant: nobody is shown a time for a wrong result.

#[cfg(feature = "cuda")]
mod bars;
mod cases;
mod gather;
mod gemm;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod results;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "`predict` uses a part of it"))]
pub mod statistics;
#[cfg(feature = "cuda")]
mod table;

use crate::exit::Failure;

/// Measure how fast it is, beside what others ship
#[derive(clap::Subcommand)]
pub enum What {
    Gemm(Box<gemm::Args>),
    AllGatherGemm(Box<gather::Args>),
}

/// Runs the bench that was asked for.
pub fn run(what: &What) -> Result<(), Failure> {
    match what {
        What::Gemm(args) => gemm::run(args),
        What::AllGatherGemm(args) => gather::run(args),
    }
}
