//! `overlap-gemm predict`: the predicted time of a step on other machines.
//!
//! What belongs here: the arguments; [`whatif`] compares numbers of ranks. Invariant: all figures of a machine are the
//! library's or the caller's.

mod whatif;

use overlap_gemm::plan::Problem;
use overlap_gemm::predict::Machine;

use crate::exit::Failure;
use crate::output::OutputArgs;
use crate::problem_args::KindArgs;

/// Predict the time of all-gather + GEMM by number of ranks and link, without a GPU
///
/// The model is of NVIDIA H200s, with the link of --link; docs/predicting.md lists its errors.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Rows of A and D, over all ranks
    #[arg(long)]
    m: u64,

    /// Columns of each rank's B and D (of all ranks' together with --split-n)
    #[arg(long)]
    n: u64,

    /// Columns of A, the summed dimension
    #[arg(long)]
    k: u64,

    #[command(flatten)]
    kinds: KindArgs,

    /// Numbers of ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4, 8])]
    ranks: Vec<u64>,

    /// Divide n among the ranks: each has n ÷ ranks columns, rounded up to a multiple of 16
    #[arg(long)]
    split_n: bool,

    /// Rate of a GPU's link in each direction, in GB/s [default: an H200's]
    #[arg(long, value_name = "GB/s", help_heading = "Machine", allow_negative_numbers = true)]
    link: Option<f64>,

    /// Rate to any one other GPU, for GPUs connected in pairs [default: the rate of the link]
    #[arg(long, value_name = "GB/s", help_heading = "Machine", allow_negative_numbers = true)]
    peer_link: Option<f64>,

    /// SMs of a GPU [default: an H200's]
    #[arg(long, help_heading = "Machine")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    sms: Option<u32>,

    #[command(flatten)]
    #[command(next_help_heading = "Output")]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  overlap-gemm predict --m 4096 --n 3584 --k 8192
  overlap-gemm predict --m 8192 --n 28672 --k 8192 --split-n --ranks 2,4,8,16,72 --link 750
  overlap-gemm predict --m 4096 --n 3584 --k 8192 --a e4m3 --scaling rows --link 190";

/// Predicts, and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let machine = args.machine();
    let output = args.output.open()?;
    let problems: Vec<Problem> =
        args.ranks.iter().map(|&ranks| args.problem(ranks)).collect::<Result<_, _>>()?;
    let shown = whatif::predict(machine, &problems)?;
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

impl Args {
    fn machine(&self) -> Machine {
        let mut machine = Machine::h200();
        if let Some(gbps) = self.link {
            machine = machine.with_link(gbps);
        }
        if let Some(gbps) = self.peer_link {
            machine = machine.with_peer_link(gbps);
        }
        self.sms.map_or(machine, |sms| machine.with_sms(sms))
    }

    fn problem(&self, ranks: u64) -> Result<Problem, Failure> {
        /// A row of D has to be a multiple of 16 bytes; so it is for every type.
        const COLUMNS: u64 = 16;
        let Args { m, n, k, .. } = *self;
        let n = match self.split_n && ranks > 0 {
            // Where there is no such multiple there is no such problem, which is refused below.
            true => {
                let share = n.div_ceil(ranks).checked_next_multiple_of(COLUMNS);
                share.map_or(n, |share| share.min(n.max(1)))
            }
            false => n,
        };
        let problem = self.kinds.builder(m, n, k).ranks(ranks).build()?;
        problem.check_tma_gathered()?;
        Ok(problem)
    }
}
