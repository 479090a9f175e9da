//! `overlap-gemm bench gemm`: this crate's products on one GPU beside cuBLASLt's.
//!
//! What belongs here: the arguments. Invariant: as in [`common`](super::common).

use overlap_gemm::plan::{BLayout, Operation};

use super::cases::Case;
use super::common::Common;
use super::sets::HEADLINE;
use super::wanted::{Contender, Launch};
use crate::exit::Failure;
use crate::output::Output;
use crate::problem_args;

/// Time this crate's GEMMs on one GPU: without signals, with signals, and beside cuBLASLt
///
/// All contenders run in one process on random normal data, interleaved, in loops of the same length, and
/// every result is compared with an f64 reference first. docs/measuring.md says how and why.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// How B lies in memory: n rows of k elements, or k rows of n
    #[arg(long, value_parser = problem_args::b_layout(), default_value = "nk")]
    b_layout: BLayout,

    /// Contenders
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "own,own-set,cublaslt",
          value_parser = Contender::parser(&Contender::OF_ONE_GPU))]
    pub contenders: Vec<Contender>,

    /// Own kernels: the library's choice (auto), every one that fits (all), or some by name
    #[arg(long, value_name = "auto|all|NAME,...", value_delimiter = ',', default_value = "auto")]
    pub kernels: Vec<String>,

    /// Swizzles to try: how many rows of clusters sweep over the columns together [default: the library's choice;
    /// 1,2,4,8 with --kernels all]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub swizzles: Vec<u32>,

    /// Slices of K to try [default: the library's choice; 1,2,4,8 as far as they help with --kernels all]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub splits: Vec<u32>,

    /// Launch mode of the loops
    #[arg(long, value_enum, default_value_t = Launch::Graph)]
    pub launch: Launch,

    /// Compare no results: for profilers only
    #[arg(long)]
    pub no_check: bool,
}

/// Runs the bench and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let cases = args.common.cases(&HEADLINE, Operation::AllGatherGemm, 1, args.b_layout)?;
    measure(args, &cases, args.common.output.open()?)
}

#[cfg(feature = "cuda")]
fn measure(args: &Args, cases: &[Case], output: Output) -> Result<(), Failure> {
    super::gpu::run(args, cases, output, crate::interrupt::Interrupt::install()?)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &Args, _: &[Case], _: Output) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed::typed;

    #[test]
    fn arguments_become_problems_and_loops() {
        for (line, count, loops) in [
            ("", 12, (3, 150.0, 300.0)),
            ("--shapes 64x64x64,1x8x8 --types f16xf16:f32 --b-layout kn", 2, (3, 150.0, 300.0)),
            ("--set headline --types bf16,e4m3 --loops burst", 24, (9, 40.0, 40.0)),
            ("--random 5 --types e4m3 --loops burst --rounds 5 --target-ms 4", 5, (5, 4.0, 4.0)),
        ] {
            let args = typed::<Args>(line).unwrap();
            let cases = args.common.cases(&HEADLINE, Operation::AllGatherGemm, 1, args.b_layout);
            assert_eq!(cases.unwrap().len(), count, "{line}");
            let times = args.common.loop_times();
            assert_eq!((args.common.rounds(), times.warm_ms, times.timed_ms), loops, "{line}");
            assert_eq!(args.contenders, Contender::OF_ONE_GPU);
        }
    }
}
