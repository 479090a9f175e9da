//! `overlap-gemm bench all-gather-gemm`: all-gather + GEMM between GPUs, beside NCCL and cuBLASLt; or on threads.
//!
//! What belongs here: the arguments that no other bench has ([`between`](super::between) has the rest), and those of
//! threads. Invariant: as in `bench gemm`.

use std::path::PathBuf;

use overlap_gemm::plan::Operation;

use super::between::Between;
use super::host;
use super::report::Shown;
use super::shapes::{SMALL, unless, where_host};
use super::wanted::{Contender, Gatherer, Loops, OnGpus, OnThreads, each_once};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads;

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
    between: Between,

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

    /// Copy the rank's rows into the gathered buffer in every step [default: they are written in place once]
    #[arg(long)]
    copied: bool,

    /// Draw one step of the fused product of each case into this folder: every tile, with the time that it waited
    #[arg(long, value_name = "FOLDER")]
    timelines: Option<PathBuf>,
}

impl Args {
    fn wanted(&self, ranks: u32) -> Result<OnGpus, Failure> {
        let contenders = each_once(&self.contenders).into_iter().map(Contender::Gather).collect();
        Ok(OnGpus {
            copied: self.copied,
            timelines: self.timelines.clone(),
            ..self.between.wanted(Operation::AllGatherGemm, contenders, ranks)?
        })
    }

    /// The same for threads.
    fn wanted_on_threads(&self) -> Result<OnThreads, Failure> {
        on_threads::check_place()?;
        let (between, ranks) = (&self.between, self.ranks.unwrap_or(2));
        if let Some(who) = self.contenders.iter().find(|who| !Gatherer::ON_THREADS.contains(who)) {
            return Err(Failure::Usage(format!(
                "--host: '{}' needs GPUs; on threads there are {}",
                who.name(),
                Gatherer::ON_THREADS.map(Gatherer::name).join(", ")
            )));
        }
        Ok(OnThreads {
            cases: between.cases(Operation::AllGatherGemm, ranks)?,
            ranks,
            contenders: each_once(&self.contenders),
            steps: between.steps as usize,
            rounds: between.rounds.unwrap_or(Loops::Burst.rounds()) as usize,
            chunks: between.pieces,
            link: on_threads::link(self.link)?,
            seed: between.seed,
        })
    }
}

/// Runs the bench and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.host {
        let wanted = args.wanted_on_threads()?;
        let shown = Shown::open(&args.between.output)?;
        return host::run(&wanted, shown, Interrupt::install()?);
    }
    args.between.run(|ranks| args.wanted(ranks)).map_err(Failure::or_host)
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use super::*;
    use crate::typed::typed;

    fn wanted(line: &str, ranks: u32) -> Result<OnGpus, String> {
        typed::<Args>(line)?.wanted(ranks).map_err(|failure| failure.to_string())
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
        let once = [Gatherer::Fused, Gatherer::Own].map(Contender::Gather);
        assert_eq!(contenders, once, "each once");
        // Together, and nothing twice.
        assert_eq!(names("--set llama3-8b,decode --m 512,16", 2).len(), 12);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("--set llama3-70b --shapes 8x8x8", "cannot be used with"),
            ("--m 64", "--set"),
            ("--streams 1 --blocks 8", "cannot be used with"),
            ("--set llama2", "llama3-405b"),
            ("--set headline,llama3-8b --m 64", "its own M"),
            ("--set gpt3", "7 ranks"),
        ] {
            let refused = wanted(line, 7).map(|_| ()).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
    }
}
