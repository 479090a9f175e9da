//! `overlap-gemm bench gemm-reduce-scatter` and `gemm-all-reduce`: these operations between GPUs, beside NCCL and cuBLASLt.
//!
//! What belongs here: the arguments that no other bench has ([`between`](super::between) has the rest). Invariant: sums travel
//! in bf16 and D is bf16 for all contenders alike, so that all move the same bytes.

use overlap_gemm::ElementType;
use overlap_gemm::plan::Operation;

use super::between::Between;
use super::shapes::unless;
use super::wanted::{Contender, OnGpus, Reducer, each_once};
use crate::exit::Failure;

/// What is measured where nobody names anything: what all-gather + GEMM has by default, with N and K exchanged.
const USUAL: [&str; 4] = ["4096x8192x3584", "8192x8192x3584", "2048x8192x3584", "4096x4096x1792"];

/// Time GEMM + reduce-scatter between GPUs, beside NCCL and cuBLASLt, one process a rank
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm bench gemm-reduce-scatter. Every rank multiplies all M
/// rows of A by its slice of K, and gets the sums of its own rows of D; sums travel in bf16. All contenders run interleaved in
/// the same processes, in loops of equal length, on random data that differ on every rank. Every total is first compared with
/// an f64 reference of all ranks' products. Rank 0 reports the slowest rank's time of every round.
#[derive(clap::Args)]
#[command(mut_arg("shapes", |arg| unless("set", &USUAL)(arg).help("Problems: M rows, all N columns, K of one rank")))]
#[command(mut_arg("set", |arg| arg.help("Problems by name instead: layers of models, cut by rows of the weight among the ranks")))]
#[command(mut_arg("m", |arg| arg.help("Rows, for --set [default: 512 to 16384, or 16 to 512, by powers of two]")))]
pub struct Args {
    #[command(flatten)]
    between: Between,

    /// Contenders
    #[arg(
        long,
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_values_t = Reducer::ALL
    )]
    contenders: Vec<Reducer>,
}

impl Args {
    fn wanted(&self, operation: Operation, ranks: u32) -> Result<OnGpus, Failure> {
        let contenders = each_once(&self.contenders).into_iter().map(Contender::Reduce).collect();
        let wanted = self.between.wanted(operation, contenders, ranks)?;
        let is_odd = |d: ElementType| d != ElementType::Bf16;
        match wanted.cases.iter().find(|case| is_odd(case.problem.elements().d)) {
            Some(case) => Err(Failure::Usage(format!(
                "--types: {case} has D in {}, but sums travel in bf16 here, and D is bf16: give f16xf16:bf16, bf16 or e4m3",
                case.problem.elements().d
            ))),
            None => Ok(wanted),
        }
    }
}

/// Runs the bench of that operation and shows it.
pub fn run(args: &Args, operation: Operation) -> Result<(), Failure> {
    args.between.run(|ranks| args.wanted(operation, ranks))
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use super::*;
    use crate::typed::{command, typed};

    fn wanted(line: &str, ranks: u32) -> Result<OnGpus, String> {
        let wanted = typed::<Args>(line)?.wanted(Operation::GemmReduceScatter, ranks);
        wanted.map_err(|failure| failure.to_string())
    }

    #[test]
    fn problems_come_by_shape_or_by_name() {
        let names = |line: &str, ranks| -> Vec<String> {
            wanted(line, ranks).unwrap().cases.iter().map(Case::to_string).collect()
        };
        let usual = wanted("", 2).unwrap();
        assert_eq!(usual.operation, Operation::GemmReduceScatter);
        assert_eq!(usual.contenders, Reducer::ALL.map(Contender::Reduce));
        assert_eq!((usual.cases.len(), usual.blocks, usual.copied), (4, None, false));
        assert_eq!(names("--set headline", 2)[0], "4096×8192×3584 bf16");
        let layers = names("--set llama3-70b --m 64 --types e4m3", 4);
        assert_eq!(layers, ["64×8192×2048 e4m3→bf16 tensor", "64×8192×7168 e4m3→bf16 tensor"]);
        let contenders = wanted("--contenders auto,nccl,auto", 2).unwrap().contenders;
        assert_eq!(contenders, [Reducer::Auto, Reducer::Nccl].map(Contender::Reduce), "each once");
        assert_eq!(wanted("--streams 2 --pieces 3", 2).unwrap().streams, Some(2));
        assert_eq!(wanted("--blocks 8", 2).unwrap().blocks, Some(8));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("--contenders fused", "pipelined"),
            ("--set llama3-70b --shapes 8x8x8", "cannot be used with"),
            ("--m 64", "--set"),
            ("--streams 1 --blocks 8", "cannot be used with"),
            ("--host", "--host"),
            ("--types f16", "give f16xf16:bf16"),
            ("--types bf16,bf16xbf16:f32", "has D in f32"),
            ("--set llama3-8b", "7 ranks"),
        ] {
            let refused = wanted(line, 7).map(|_| ()).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
    }

    #[test]
    fn the_help_says_what_n_and_k_are() {
        let help = command::<Args>().render_long_help().to_string();
        assert!(help.contains("K of one rank") && !help.contains("N of one rank"), "{help}");
    }
}
