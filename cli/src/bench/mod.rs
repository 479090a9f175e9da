//! `overlap-gemm bench`: measures this library beside other programs.
//!
//! Arguments ([`gemm`], [`gather`], [`between`], of which [`common`] has the common ones; [`merge`]) say what `gpu` and
//! [`host`] measure into a [`report`]. Shared: [`cases`] (a problem), [`sets`] and [`shapes`] (problems by name, by
//! shape, and at random), [`wanted`] (contenders and loops), [`machine`], [`turns`] (the
//! order of contenders in a round).
//! Invariant: no time is shown for a wrong result.

mod between;
pub mod cases;
mod common;
mod gather;
mod gemm;
#[cfg(feature = "cuda")]
pub mod gpu;
mod host;
pub mod machine;
mod merge;
pub mod report;
pub mod sets;
pub mod shapes;
pub mod turns;
pub mod wanted;

use overlap_gemm::plan::Operation;

use crate::exit::Failure;
use between::Between;

/// Measure this library beside cuBLASLt, NCCL and other programs
#[derive(clap::Subcommand)]
pub enum What {
    Gemm(Box<gemm::Args>),
    AllGatherGemm(Box<gather::Args>),
    /// Time GEMM + reduce-scatter between GPUs, beside NCCL and cuBLASLt, one process a rank
    ///
    /// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm bench gemm-reduce-scatter. Every rank multiplies all
    /// M rows of A by its slice of K, and gets the sums of its own rows of D; sums travel in bf16. All contenders run
    /// interleaved in the same processes, in loops of equal length, on random data that differ on every rank. Every total is
    /// first compared with an f64 reference of all ranks' products. Rank 0 reports the slowest rank's time of every round.
    GemmReduceScatter(Box<Between>),
    /// Time GEMM + all-reduce between GPUs, beside NCCL and cuBLASLt, one process a rank
    ///
    /// As gemm-reduce-scatter, but every rank gets the sums of all rows of D.
    GemmAllReduce(Box<Between>),
    /// Time a tensor-parallel MLP between GPUs, beside NCCL and cuBLASLt, one process a rank
    ///
    /// A step is all-gather + GEMM of the gate and the up projection together, then GEMM + reduce-scatter of the down projection.
    /// M, N and K are those of the latter: so the first product has 2·K columns, and its K is N. The activation between them is left
    /// out, for all contenders alike. Each operation's result is checked. Otherwise as gemm-reduce-scatter.
    TensorParallelMlp(Box<Between>),
    Merge(Box<merge::Args>),
}

/// Runs the bench that was asked for.
pub fn run(what: &What) -> Result<(), Failure> {
    match what {
        What::Gemm(args) => gemm::run(args),
        What::AllGatherGemm(args) => gather::run(args),
        What::GemmReduceScatter(args) => args.run(Operation::GemmReduceScatter),
        What::GemmAllReduce(args) => args.run(Operation::GemmAllReduce),
        What::TensorParallelMlp(args) => args.run_mlp(),
        What::Merge(args) => merge::run(args),
    }
}
