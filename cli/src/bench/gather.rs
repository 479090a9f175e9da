//! `overlap-gemm bench all-gather-gemm`: all-gather + GEMM between GPUs, beside NCCL and cuBLASLt; or on threads.
//!
//! What belongs here: the arguments. On GPUs every rank is a process with the same
//! arguments, started by a launcher. Invariant: as in `bench gemm`.

use std::path::PathBuf;

use overlap_gemm::plan::BLayout;

use super::drawn::Drawn;
use super::host;
use super::report::Shown;
use super::shapes::{SMALL, ShapeArgs, unless, where_host};
use super::wanted::{Gatherer, Gathers, Launch, Loops, OnThreads};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads;
use crate::output::OutputArgs;

/// What is measured where nobody names anything.
const USUAL: [&str; 4] = ["4096x3584x8192", "8192x3584x8192", "2048x3584x8192", "4096x1792x4096"];

/// Steps of a loop on threads, where a step takes milliseconds.
const FEW_STEPS: &str = "9";

/// Options that say something of GPUs alone.
const OF_GPUS: [&str; 12] = [
    "loops",
    "launch",
    "streams",
    "blocks",
    "kernel",
    "splits",
    "swizzle",
    "copied",
    "cublaslt",
    "nccl",
    "timelines",
    "peer",
];

/// Time all-gather + GEMM between GPUs, beside NCCL and cuBLASLt, one process a rank; or on threads of this machine
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm bench all-gather-gemm. All contenders run interleaved in
/// the same processes, in loops of equal length, on random data. Every result is first compared with an f64 reference. Rank 0
/// reports the slowest rank's time of every round. With --host all ranks are threads of this process, without a launcher; the
/// defaults are then the contenders own, sequential and fused, nine steps per loop, and four small problems.
#[derive(clap::Args)]
#[command(mut_arg("shapes", |arg| where_host(&SMALL)(unless("set", &USUAL)(arg))))]
#[command(mut_arg("contenders", where_host(&["own", "sequential", "fused"])))]
#[command(mut_arg("steps", where_host(&[FEW_STEPS])))]
pub struct Args {
    #[command(flatten)]
    problems: ShapeArgs,

    #[command(flatten)]
    drawn: Drawn,

    /// Run on threads of this machine, not on GPUs
    #[arg(long, conflicts_with_all = OF_GPUS)]
    host: bool,

    /// Number of ranks, with --host [default: 2]
    #[arg(long, value_name = "N", requires = "host", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Option<u32>,

    /// Rate of the link with --host, in MB/s per rank [default: unlimited]
    #[arg(long, value_name = "MB", requires = "host", allow_negative_numbers = true)]
    link: Option<f64>,

    /// Contenders
    #[arg(
        long,
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_values_t = Gatherer::ALL
    )]
    contenders: Vec<Gatherer>,

    /// Minimum number of steps in a loop
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,

    /// Duration of the loops
    #[arg(long, value_enum, default_value_t = Loops::Sustained)]
    loops: Loops,

    /// Rounds; in each, every contender runs one loop [default: 3, with --loops burst or --host 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,

    /// Launch modes of the loops
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Launch::Graph, Launch::Plain])]
    launch: Vec<Launch>,

    /// Chunks a shard [default: by its size, and N]
    #[arg(long)]
    pieces: Option<u32>,

    /// Push by copy engines, on this number of streams [default: by the size of a shard]
    #[arg(long, value_name = "STREAMS", conflicts_with = "blocks")]
    streams: Option<u32>,

    /// Push by a kernel of this number of blocks
    #[arg(long)]
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

    /// Copy the rank's rows into the gathered buffer in every step [default: they are written in place once]
    #[arg(long)]
    copied: bool,

    /// cuBLASLt's library file [default: OVERLAP_GEMM_CUBLASLT, else where the loader and pip have it]
    #[arg(long, value_name = "FILE")]
    cublaslt: Option<PathBuf>,

    /// NCCL's library file [default: OVERLAP_GEMM_NCCL, else where the loader and pip have it]
    #[arg(long, value_name = "FILE")]
    nccl: Option<PathBuf>,

    /// Draw one step of the fused product of each case into this folder: every tile, with the time that it waited
    #[arg(long, value_name = "FOLDER")]
    timelines: Option<PathBuf>,

    /// Command of another program to measure, interleaved with all contenders: python3 benches/peers/torch_peer.py
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,

    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    fn wanted(&self, ranks: u32) -> Result<Gathers, Failure> {
        let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Ok(Gathers {
            cases: self.problems.cases(self.drawn.shapes(self.seed), ranks, BLayout::Nk)?,
            contenders: self.contenders(),
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
            copied: self.copied,
            cublaslt: self.cublaslt.clone().or_else(|| named("OVERLAP_GEMM_CUBLASLT")),
            nccl: self.nccl.clone(),
            peer: self.peer.clone(),
            timelines: self.timelines.clone(),
            seed: self.seed,
        })
    }

    /// The contenders, each once, in the order in which they were first named.
    fn contenders(&self) -> Vec<Gatherer> {
        let mut all: Vec<Gatherer> = Vec::new();
        for &who in &self.contenders {
            if !all.contains(&who) {
                all.push(who);
            }
        }
        all
    }

    /// The same for threads.
    fn wanted_on_threads(&self) -> Result<OnThreads, Failure> {
        on_threads::check_place()?;
        let ranks = self.ranks.unwrap_or(2);
        if let Some(who) = self.contenders.iter().find(|who| !Gatherer::ON_THREADS.contains(who)) {
            return Err(Failure::Usage(format!(
                "--host: '{}' needs GPUs; on threads there are {}",
                who.name(),
                Gatherer::ON_THREADS.map(Gatherer::name).join(", ")
            )));
        }
        Ok(OnThreads {
            cases: self.problems.cases(self.drawn.shapes(self.seed), ranks, BLayout::Nk)?,
            ranks,
            contenders: self.contenders(),
            steps: self.steps as usize,
            rounds: self.rounds.unwrap_or(Loops::Burst.rounds()) as usize,
            chunks: self.pieces,
            link: on_threads::link(self.link)?,
            seed: self.seed,
        })
    }
}

/// Runs the bench and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.host {
        let wanted = args.wanted_on_threads()?;
        let shown = Shown::open(&args.output)?;
        return host::run(&wanted, shown, Interrupt::install()?);
    }
    let launch = overlap_gemm::group::Launch::from_env();
    let launch = launch.map_err(|error| Failure::from(error).or_host())?;
    let wanted = args.wanted(launch.ranks)?;
    // All ranks have the same arguments; one has the results.
    let shown = match launch.rank {
        0 => Some(Shown::open(&args.output)?),
        _ => None,
    };
    let interrupt = Interrupt::install()?;
    measure(&wanted, shown, interrupt).map_err(Failure::or_host)
}

#[cfg(feature = "cuda")]
fn measure(wanted: &Gathers, shown: Option<Shown>, interrupt: Interrupt) -> Result<(), Failure> {
    super::gpu::run_ranks(wanted, shown, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &Gathers, _: Option<Shown>, _: Interrupt) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::cases::Case;
    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
    }

    fn wanted(line: &str, ranks: u32) -> Result<Gathers, String> {
        let words = ["all-gather-gemm"].into_iter().chain(line.split_whitespace());
        let typed = Typed::try_parse_from(words).map_err(|error| error.to_string())?;
        typed.args.wanted(ranks).map_err(|failure| failure.to_string())
    }

    #[test]
    fn problems_come_by_shape_or_by_name() {
        let names = |line: &str, ranks| -> Vec<String> {
            wanted(line, ranks).unwrap().cases.iter().map(Case::to_string).collect()
        };
        assert_eq!(names("", 2).len(), 4);
        assert_eq!(names("--set headline", 2).len(), 12);
        assert_eq!(
            names("--set llama3-70b --m 64,2048 --types e4m3", 4)[1..3],
            ["2048×2560×8192 e4m3→bf16 tensor", "64×7168×8192 e4m3→bf16 tensor"]
        );
        let contenders = wanted("--contenders fused,own,fused,own", 2).unwrap().contenders;
        assert_eq!(contenders, [Gatherer::Fused, Gatherer::Own], "each once");
        // Together, and nothing twice.
        assert_eq!(names("--set llama3-8b,decode --m 512,16", 2).len(), 12);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("--set llama3-70b --shapes 8x8x8", "cannot be used with"),
            ("--m 64", "--set"),
            ("--set llama2", "llama3-405b"),
            ("--set headline,llama3-8b --m 64", "its own M"),
            ("--set gpt3", "7 ranks"),
        ] {
            let refused = wanted(line, 7).map(|_| ()).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
    }
}
