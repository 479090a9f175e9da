//! `overlap-gemm plan`: prints the order of all steps without running them.
//!
//! What belongs here: the arguments. Invariant: the library makes the text and the JSON, and writes lists entry by entry, so
//! that a huge plan needs no huge memory.

mod check;

use overlap_gemm::plan::{Engine, MAX_STREAMS, Plan, PlanOptions, Strategy};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::OutputArgs;
use crate::problem_args::{CutArgs, ProblemArgs, What};

/// Print a plan: chunks, the order of their transfers, and the order of tiles
///
/// The text cuts long lists; --json has all of them.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    problem: ProblemArgs,

    #[command(flatten)]
    cut: CutArgs,

    /// Operation
    #[arg(long, value_enum, default_value_t = What::AllGatherGemm, help_heading = "Execution")]
    operation: What,

    /// Strategy: the order of multiplying and of what travels
    #[arg(long, value_enum, default_value_t = Order::Fused, help_heading = "Execution")]
    strategy: Order,

    /// Engine that moves the rows
    #[arg(long, value_enum, default_value_t = Mover::Thread, help_heading = "Execution")]
    engine: Mover,

    /// Streams of copy engines
    #[arg(long, default_value_t = 1, help_heading = "Execution")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    streams: u32,

    /// Show this rank's part only
    #[arg(long, help_heading = "Output", allow_negative_numbers = true)]
    rank: Option<u32>,

    /// Run the plan in this many random orders on a model that finds deadlocks, early reads and
    /// overwrites
    #[arg(long, help_heading = "Output", value_name = "ORDERS", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    check: Option<u32>,

    /// Seed of the random orders of --check
    #[arg(long, help_heading = "Output", default_value_t = 0, requires = "check")]
    seed: u64,

    #[command(flatten)]
    #[command(next_help_heading = "Output")]
    output: OutputArgs,
}

/// The order of multiplying and of what travels.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Order {
    /// Rows are multiplied as they arrive, tile by tile; sums leave chunk by chunk
    Fused,
    /// A product for each rank's rows
    Pipelined,
    /// All rows first, then the product; or the product first, then all sums
    Sequential,
}

/// The engine that moves the rows.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Mover {
    /// A thread of each rank
    Thread,
    /// Copy engines of GPUs
    Copies,
    /// A kernel before the product
    Kernel,
    /// NCCL, with --strategy sequential and one chunk a rank
    Nccl,
}

impl Args {
    fn options(&self) -> PlanOptions {
        let strategy = match self.strategy {
            Order::Fused => Strategy::Fused,
            Order::Pipelined => Strategy::Pipelined,
            Order::Sequential => Strategy::Sequential,
        };
        let engine = match self.engine {
            Mover::Thread => Engine::Thread,
            Mover::Copies => Engine::CopyEngines { streams: self.streams },
            Mover::Kernel => Engine::PUSHING,
            Mover::Nccl => Engine::Nccl,
        };
        let operation = self.operation.into();
        let options = self.cut.options().with_strategy(strategy).with_engine(engine);
        PlanOptions { operation, ..options }
    }
}

const EXAMPLES: &str = "\
Examples:
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8 --rank 3
  overlap-gemm plan --m 1000 --n 512 --k 512 --shards 600,0,400 --chunks 3 --check 1000
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 4 --engine copies --streams 2 --rank 0 --check 1000
  overlap-gemm plan --m 4096 --n 8192 --k 3584 --ranks 4 --operation gemm-reduce-scatter --check 1000
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8 --json | jq .schedules[0].steps";

/// The plan, and the verdict on it if one was asked for, in one JSON object.
#[derive(Serialize)]
struct Document<'a, P> {
    #[serde(flatten)]
    plan: P,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'a check::Verdict>,
}

/// Plans, checks if asked to, and shows the outcome.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(&args.problem.problem()?, args.options())?;
    let one = args.rank.map(|rank| plan.of_rank(rank)).transpose()?;
    let output = args.output.open()?;
    let verdict = match args.check {
        Some(orders) => Some(check::run(&plan, orders, args.seed, &output)?),
        None => None,
    };
    let check = verdict.as_ref();
    match one {
        Some(part) => output.write(&Document { plan: part, check }, |stdout| {
            write!(stdout, "{part}")?;
            check.map_or(Ok(()), |verdict| write!(stdout, "\n{verdict}"))
        })?,
        None => output.write(&Document { plan: &plan, check }, |stdout| {
            write!(stdout, "{plan}")?;
            check.map_or(Ok(()), |verdict| write!(stdout, "\n{verdict}"))
        })?,
    }
    verdict.map_or(Ok(()), check::Verdict::into_result)
}
