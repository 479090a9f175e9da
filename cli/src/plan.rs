//! `overlap-gemm plan`: prints the order of all steps without running them.
//!
//! `--check` runs the plan on the library's model in many random orders. The work is estimated first, and hours of it are
//! refused. Invariants: the library makes the text and the JSON,
//! and writes lists entry by entry, so that a huge plan needs no huge memory; the orders follow from the seed alone, so the
//! same command finds a violation again.

use std::fmt;

use overlap_gemm::plan::model::{self, Schedules, Violation};
use overlap_gemm::plan::{Engine, MAX_STREAMS, Operation, Plan, PlanOptions, Strategy};
use overlap_gemm::random::Random;
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::{Output, OutputArgs};
use crate::problem_args::{CutArgs, ProblemArgs, What};
use crate::progress;

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

    /// Strategy: the order of multiplying and of what travels; where nothing is multiplied it is sequential
    #[arg(long, value_enum, default_value_t = Order::Fused, help_heading = "Execution")]
    strategy: Order,

    /// Engine that moves the rows, or sums
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

/// The engine that moves the rows, or sums.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Mover {
    /// A thread of each rank
    Thread,
    /// Copy engines of GPUs
    Copies,
    /// A kernel before the product; in a reduction one that adds up, with --strategy sequential
    Kernel,
    /// NCCL, with --strategy sequential and one chunk a rank
    Nccl,
}

impl Args {
    fn options(&self) -> PlanOptions {
        let operation = Operation::from(self.operation);
        let strategy = match self.strategy {
            Order::Fused => Strategy::Fused,
            Order::Pipelined => Strategy::Pipelined,
            Order::Sequential => Strategy::Sequential,
        };
        let engine = match self.engine {
            Mover::Thread => Engine::Thread,
            Mover::Copies => Engine::CopyEngines { streams: self.streams },
            Mover::Kernel if operation.reduces() => Engine::EXCHANGING,
            Mover::Kernel => Engine::PUSHING,
            Mover::Nccl => Engine::Nccl,
        };
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
  overlap-gemm plan --m 256 --n 8192 --k 16 --ranks 4 --operation all-reduce --engine kernel --check 1000
  overlap-gemm plan --m 4096 --n 3584 --k 8192 --ranks 8 --json | jq .schedules[0].steps";

/// The plan, and the verdict on it if one was asked for, in one JSON object.
#[derive(Serialize)]
struct Document<'a, P> {
    #[serde(flatten)]
    plan: P,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'a Verdict>,
}

/// Plans, checks if asked to, and shows the outcome.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(&args.problem.problem()?, args.options())?;
    let one = args.rank.map(|rank| plan.of_rank(rank)).transpose()?;
    let output = args.output.open()?;
    let verdict = args.check.map(|orders| check(&plan, orders, args.seed, &output)).transpose()?;
    match one {
        Some(part) => show(&part, verdict.as_ref(), output)?,
        None => show(&plan, verdict.as_ref(), output)?,
    }
    verdict.map_or(Ok(()), Verdict::into_result)
}

fn show(
    plan: &(impl Serialize + fmt::Display),
    check: Option<&Verdict>,
    output: Output,
) -> Result<(), Failure> {
    output.write(&Document { plan, check }, |stdout| {
        write!(stdout, "{plan}")?;
        check.map_or(Ok(()), |verdict| write!(stdout, "\n{verdict}"))
    })
}

/// Enough epochs for every buffer to be used again twice.
const EPOCHS: u32 = 5;

/// The most looks at a thread (is it enabled?) that a check may need: minutes.
const MOST_LOOKS: u128 = 30_000_000_000;

/// What the check found.
#[derive(Serialize)]
struct Verdict {
    orders: u32,
    epochs: u32,
    seed: u64,
    violation: Option<String>,
    #[serde(skip)]
    operation: Operation,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { orders, epochs, seed, violation, operation } = self;
        write!(f, "Check: {orders} random orders of {epochs} epochs from seed {seed}: ")?;
        match violation {
            None => {
                let arrives = match operation {
                    _ if operation.is_all_reduce() => {
                        "every rank's sums reach the rank that adds them up once, and every rank gets each total"
                    }
                    _ if operation.reduces() => "every rank's sums reach their owner once",
                    _ => "every chunk reaches every rank once",
                };
                writeln!(
                    f,
                    "no deadlock, no read too early, no overwrite;\n  {arrives}, in the order in which they are needed"
                )
            }
            Some(violation) => writeln!(f, "{violation}"),
        }
    }
}

impl Verdict {
    /// An error if something was found.
    fn into_result(self) -> Result<(), Failure> {
        let broken = |violation| format!("the plan breaks its protocol: {violation}");
        self.violation.map_or(Ok(()), |violation| Err(Failure::CheckFailed(broken(violation))))
    }
}

/// Checks `plan` in `orders` random orders.
fn check(plan: &Plan, orders: u32, seed: u64, output: &Output) -> Result<Verdict, Failure> {
    refuse_too_much(plan, orders)?;
    let interrupt = Interrupt::install()?;
    let schedules = Schedules::new(plan);
    let bar = progress::bar(orders.into(), "checking orders", output);
    let mut found = schedules.check_order();
    for order in 0..u64::from(orders) {
        interrupt.check()?;
        if found.is_err() {
            break;
        }
        found = run_order(&schedules, seed.wrapping_add(order));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let violation = found.err().map(|violation| violation.to_string());
    Ok(Verdict { orders, epochs: EPOCHS, seed, violation, operation: plan.options().operation })
}

/// Runs them on the model in one order, which follows from the seed.
pub fn run_order(schedules: &Schedules, seed: u64) -> Result<(), Violation> {
    let mut random = Random::new(seed);
    model::run(schedules, EPOCHS, |enabled| (random.next_u64() % enabled as u64) as usize)
}

fn refuse_too_much(plan: &Plan, orders: u32) -> Result<(), Failure> {
    let (ranks, chunks) = (plan.problem().ranks(), plan.chunks().len());
    let (all, cut) = (u128::from(ranks), u128::from(chunks));
    // Moves and their words, a wait and a read of each chunk, and words between lanes: of all ranks, at most.
    // In an all-reduce each rank sends all others its sums of every chunk, or each owner's totals follow the sums.
    let times = match plan.has_two_shots() {
        true => 3,
        false if plan.options().operation.is_all_reduce() => all,
        false => 1,
    };
    let steps = times * cut * (1 + 4 * all) + all * (2 * all + 4 + 3 * u128::from(MAX_STREAMS));
    // The model looks at every lane of every rank before every step.
    let looks = steps * u128::from(EPOCHS) * plan.schedule(0).lanes().len() as u128 * all;
    match u128::from(orders) * looks <= MOST_LOOKS {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{orders} orders of {ranks} ranks and {chunks} chunks would take too long: check fewer orders, or fewer ranks or \
             chunks, which the protocol treats no differently"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overlap_gemm::plan::{Lane, Problem, Step};

    #[test]
    fn a_broken_schedule_is_found_and_fails_the_command() {
        let problem = Problem::builder(1024, 128, 64).ranks(4).build().unwrap();
        let mut broken = Schedules::new(&Plan::new(&problem, PlanOptions::default()).unwrap());
        let steps = &mut broken.of_ranks[0].steps;
        let sent = |(lane, step): &(Lane, Step)| {
            matches!((lane, step), (Lane::Push(_), Step::Move { .. }))
        };
        let at = steps.iter().position(sent).unwrap();
        steps.swap(at, at + 1); // the signal before its data
        let found = (0..100).find(|seed| run_order(&broken, *seed).is_err()).unwrap();
        let violation = run_order(&broken, found).expect_err("the same seed finds the same");
        let violation = Some(violation.to_string());
        let operation = Operation::default();
        let verdict = Verdict { orders: 1, epochs: 5, seed: 0, violation, operation };
        assert!(verdict.to_string().contains("before it has been written"), "{verdict}");
        assert!(matches!(verdict.into_result(), Err(Failure::CheckFailed(_))));
    }
}
