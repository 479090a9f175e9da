//! The arguments that benches between GPUs have in common, and the start of one rank of such a bench.
//!
//! On GPUs every rank is a process with the same arguments, started by a launcher. Invariant: what makes no sense is refused
//! before a GPU is looked for.

use std::path::PathBuf;

use overlap_gemm::plan::{BLayout, Operation};

use super::cases::Case;
use super::drawn::Drawn;
use super::report::Shown;
use super::shapes::ShapeArgs;
use super::wanted::{Contender, Launch, Loops, OnGpus};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::OutputArgs;

/// What is measured, how long, and beside what.
#[derive(clap::Args)]
pub struct Between {
    #[command(flatten)]
    problems: ShapeArgs,

    #[command(flatten)]
    drawn: Drawn,

    /// Minimum number of steps in a loop
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,

    /// Duration of the loops
    #[arg(long, value_enum, default_value_t = Loops::Sustained)]
    loops: Loops,

    /// Rounds; in each, every contender runs one loop [default: 3, in short loops 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,

    /// Launch modes of the loops
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Launch::Graph, Launch::Plain])]
    launch: Vec<Launch>,

    /// Chunks a shard [default: by its size, and N]
    #[arg(long)]
    pub pieces: Option<u32>,

    /// Push by copy engines, on this number of streams [default: by the size of a shard]
    #[arg(long, value_name = "STREAMS")]
    streams: Option<u32>,

    /// Push by a kernel of this number of blocks [default: by the size of a shard]
    #[arg(long, conflicts_with = "streams")]
    blocks: Option<u32>,

    /// Own kernel by name [default: the library's choice]
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,

    /// Slices of K of own kernels [default: the library's choice]
    #[arg(long, value_name = "N")]
    splits: Option<u32>,

    /// Swizzle of own kernels [default: the library's choice]
    #[arg(long, value_name = "N")]
    swizzle: Option<u32>,

    /// cuBLASLt's library file [default: OVERLAP_GEMM_CUBLASLT, else where the loader and pip have it]
    #[arg(long, value_name = "FILE")]
    cublaslt: Option<PathBuf>,

    /// NCCL's library file [default: OVERLAP_GEMM_NCCL, else where the loader and pip have it]
    #[arg(long, value_name = "FILE")]
    nccl: Option<PathBuf>,

    /// Command of another program to measure, interleaved with all contenders: python3 benches/peers/torch_peer.py
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,

    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl Between {
    /// The problems, as one of `ranks` ranks multiplies them.
    pub fn cases(&self, operation: Operation, ranks: u32) -> Result<Vec<Case>, Failure> {
        self.problems.cases(self.drawn.shapes(self.seed), operation, ranks, BLayout::Nk)
    }

    /// What one of `ranks` ranks measures, with nothing that only one operation has.
    pub fn wanted(
        &self,
        operation: Operation,
        contenders: Vec<Contender>,
        ranks: u32,
    ) -> Result<OnGpus, Failure> {
        let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Ok(OnGpus {
            operation,
            cases: self.cases(operation, ranks)?,
            contenders,
            steps: self.steps as usize,
            loops: self.loops.times(),
            rounds: self.rounds.unwrap_or(self.loops.rounds()) as usize,
            launch: self.launch.clone(),
            pieces: self.pieces,
            streams: self.streams,
            blocks: self.blocks,
            kernel: self.kernel.clone(),
            splits: self.splits,
            swizzle: self.swizzle,
            copied: false,
            cublaslt: self.cublaslt.clone().or_else(|| named("OVERLAP_GEMM_CUBLASLT")),
            nccl: self.nccl.clone(),
            peer: self.peer.clone(),
            timelines: None,
            seed: self.seed,
        })
    }

    /// Runs the bench as one rank, and shows it on rank 0.
    pub fn run(&self, wanted: impl FnOnce(u32) -> Result<OnGpus, Failure>) -> Result<(), Failure> {
        let launch = overlap_gemm::group::Launch::from_env()?;
        let wanted = wanted(launch.ranks)?;
        // All ranks have the same arguments; one has the results.
        let shown = match launch.rank {
            0 => Some(Shown::open(&self.output)?),
            _ => None,
        };
        let interrupt = Interrupt::install()?;
        measure(&wanted, shown, interrupt)
    }
}

#[cfg(feature = "cuda")]
fn measure(wanted: &OnGpus, shown: Option<Shown>, interrupt: Interrupt) -> Result<(), Failure> {
    super::gpu::run_ranks(wanted, shown, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &OnGpus, _: Option<Shown>, _: Interrupt) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}
