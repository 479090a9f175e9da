//! `overlap-gemm bench`: measures this library beside other programs.
//!
//! Arguments ([`gemm`]; [`gather`] and [`reduce`], of which [`between`] has the common ones; [`merge`]) become values
//! ([`wanted`]), which `gpu` and [`host`] measure into a [`report`]. Shared: [`cases`] (a problem), [`sets`] and [`shapes`]
//! (problems by name, and their arguments), [`machine`], [`lineup`] (the contenders of a case), [`turns`]
//! (their order in a round).
//! Invariant: no time is shown for a wrong result.

mod between;
pub mod cases;
mod drawn;
mod gather;
mod gemm;
#[cfg(feature = "cuda")]
pub mod gpu;
mod host;
mod lineup;
pub mod machine;
mod merge;
mod reduce;
pub mod report;
mod sets;
pub mod shapes;
pub mod turns;
pub mod wanted;

use overlap_gemm::plan::Operation;

use crate::exit::Failure;

/// Measure this library beside cuBLASLt, NCCL and other programs
#[derive(clap::Subcommand)]
pub enum What {
    Gemm(Box<gemm::Args>),
    AllGatherGemm(Box<gather::Args>),
    GemmReduceScatter(Box<reduce::Args>),
    /// Time GEMM + all-reduce between GPUs, beside NCCL and cuBLASLt, one process a rank
    ///
    /// As gemm-reduce-scatter, but every rank gets the sums of all rows of D.
    GemmAllReduce(Box<reduce::Args>),
    Merge(Box<merge::Args>),
}

/// Runs the bench that was asked for.
pub fn run(what: &What) -> Result<(), Failure> {
    match what {
        What::Gemm(args) => gemm::run(args),
        What::AllGatherGemm(args) => gather::run(args),
        What::GemmReduceScatter(args) => reduce::run(args, Operation::GemmReduceScatter),
        What::GemmAllReduce(args) => reduce::run(args, Operation::GemmAllReduce),
        What::Merge(args) => merge::run(args),
    }
}
