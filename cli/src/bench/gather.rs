//! `overlap-gemm bench all-gather-gemm`: all-gather + GEMM between GPUs, beside NCCL and cuBLASLt; or on threads.
//!
//! What belongs here: the arguments that no other bench has ([`between`](super::between) has the rest). Invariant: as there.

use overlap_gemm::plan::{BLayout, Operation};

use super::between::Between;
use super::host::{self, OnThreads};
use super::sets::SMALL;
use super::wanted::{Contender, Loops};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads;

/// Time all-gather + GEMM between GPUs, beside NCCL and cuBLASLt, one process a rank; or on threads of this machine
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm bench all-gather-gemm. All contenders run interleaved in
/// the same processes, in loops of equal length, on random data. Every result is first compared with an f64 reference. Rank 0
/// reports the slowest rank's time of every round. With --host all ranks are threads of this process, without a launcher; the
/// defaults are then the contenders own, sequential and fused, nine steps per loop, and four small problems.
#[derive(clap::Args)]
#[command(mut_arg("contenders", |arg| arg.value_parser(Contender::parser(&Contender::OF_GATHERS))))]
pub struct Args {
    #[command(flatten)]
    between: Between,

    /// Run on threads of this machine, not on GPUs
    #[arg(long, conflicts_with_all = ["loops", "target_ms", "launch", "streams", "blocks", "peer"])]
    host: bool,

    /// Number of ranks, with --host
    #[arg(long, value_name = "N", requires = "host", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,

    /// Steps of a loop, with --host
    #[arg(long, value_name = "N", requires = "host", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,

    /// Rate of the link with --host, in MB/s per rank [default: unlimited]
    #[arg(long, value_name = "MB", requires = "host", allow_negative_numbers = true)]
    link: Option<f64>,
}

/// Runs the bench and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Args { between, ranks, .. } = args;
    if !args.host {
        return between.run(Operation::AllGatherGemm).map_err(Failure::or_host);
    }
    on_threads::check_place()?;
    let contenders = match &between.contenders[..] {
        [] => Contender::ON_THREADS.to_vec(),
        named => named.to_vec(),
    };
    if let Some(who) = contenders.iter().find(|who| !Contender::ON_THREADS.contains(who)) {
        return Err(Failure::Usage(format!(
            "--host: '{}' needs GPUs; on threads there are {}",
            who.name(),
            Contender::ON_THREADS.map(Contender::name).join(", ")
        )));
    }
    let common = &between.common;
    let wanted = OnThreads {
        cases: common.cases(&SMALL, Operation::AllGatherGemm, *ranks, BLayout::Nk)?,
        ranks: *ranks,
        contenders,
        steps: args.steps as usize,
        rounds: common.rounds.unwrap_or(Loops::Burst.rounds()) as usize,
        chunks: between.pieces,
        link: on_threads::link(args.link)?,
        seed: common.seed,
    };
    host::run(&wanted, common.output.open()?, Interrupt::install()?)
}
