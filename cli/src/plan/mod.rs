//! `overlap-gemm plan`: prints the order of all steps without running them.
//!
//! The library makes the text and the JSON; this module chooses between them, and refuses output of more than some
//! 200 MB. Invariant: the length of the lists is computed before any of them is written.

mod check;

use std::ops::Range;

use overlap_gemm::plan::{Engine, MAX_STREAMS, Plan, PlanOptions, Strategy};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::OutputArgs;
use crate::problem_args::{CutArgs, ProblemArgs};

/// The most list entries (steps, tiles, chunks) that JSON is written for: some 200 MB of it.
const MOST_ENTRIES: u128 = 4_000_000;

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

    /// In which order gathering and multiplying go
    #[arg(long, value_enum, default_value_t = Order::Fused, help_heading = "How it is carried out")]
    strategy: Order,

    /// What moves the rows
    #[arg(long, value_enum, default_value_t = Mover::Thread, help_heading = "How it is carried out")]
    engine: Mover,

    /// Streams of copy engines
    #[arg(long, default_value_t = 1, help_heading = "How it is carried out")]
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

/// In which order gathering and multiplying go.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Order {
    /// One product that waits for its rows, tile by tile
    Fused,
    /// A product for each rank's rows
    Pipelined,
    /// All rows first
    Sequential,
}

/// What moves the rows.
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
        self.cut.options().with_strategy(strategy).with_engine(engine)
    }
}

const EXAMPLES: &str = "\
Examples:
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8 --rank 3
  overlap-gemm plan --m 1000 --n 512 --k 512 --shards 600,0,400 --chunks 3 --check 1000
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 4 --engine copies --streams 2 --rank 0 --check 1000
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
    if output.writes_json() {
        refuse_too_many(&plan, args.rank)?;
    }
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

fn refuse_too_many(plan: &Plan, rank: Option<u32>) -> Result<(), Failure> {
    let ranks = rank.map_or(0..plan.problem().ranks(), |rank| rank..rank + 1);
    let tiles: u128 = match plan.tile_order(ranks.start) {
        Ok(order) => u128::from(order.tile_count()) * ranks.len() as u128,
        Err(error) => return Err(error.into()),
    };
    let entries = u128::from(plan.chunks().len()) + steps(plan, &ranks) + tiles;
    if entries <= MOST_ENTRIES {
        return Ok(());
    }
    let remedy = match rank {
        None => "ask for one rank with --rank, or for the text without --json and --output",
        Some(_) => "use fewer chunks or larger tiles, or the text without --json and --output",
    };
    Err(Failure::Usage(format!(
        "the JSON of this plan would list {entries} steps, tiles and chunks, \
         more than {MOST_ENTRIES}: {remedy}"
    )))
}

/// How many steps the schedules of `ranks` have, at most.
fn steps(plan: &Plan, ranks: &Range<u32>) -> u128 {
    let (all, chunks) = (u128::from(plan.problem().ranks()), u128::from(plan.chunks().len()));
    let sent: u128 = ranks
        .clone()
        .map(|rank| {
            let own = plan.chunks().of_rank(rank).len() as u128;
            own + all * (2 * own + 1)
        })
        .sum();
    // Words between lanes, and for each chunk a wait and a read.
    let between = 4 + 3 * u128::from(MAX_STREAMS);
    sent + ranks.len() as u128 * (2 * chunks + all + between)
}
