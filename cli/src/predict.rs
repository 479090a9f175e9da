//! `overlap-gemm predict`: the predicted time of a step on other machines.
//!
//! Numbers of ranks stand one below the other: every strategy's time, and that of the plain GEMM if there is one. Invariant: all figures of a
//! machine are the library's or the caller's; all times are of the same machine.

use std::fmt;
use std::time::Duration;

use overlap_gemm::Result as Predicted;
use overlap_gemm::kernels::all_kernels;
use overlap_gemm::plan::{Engine, Operation, Partials, Plan, PlanOptions, Problem, Strategy};
use overlap_gemm::predict::{Machine, Setup, estimate, ranked, ways_of_sums};
use overlap_gemm::tune::{Anything, Asked, Multiplying, Tuning};
use serde::Serialize;

use crate::exit::Failure;
use crate::on_threads::bytes_sent;
use crate::output::OutputArgs;
use crate::problem_args::{KindArgs, What};

/// Predict the time of all-gather + GEMM, or of a reduction, by number of ranks and link, without a GPU
///
/// The model is of NVIDIA H200s, with the link of --link; docs/predicting.md lists its errors.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Rows of A and D, over all ranks
    #[arg(long)]
    m: u64,

    /// Columns of B and D on one rank; with --split-n, on all ranks together
    #[arg(long)]
    n: u64,

    /// Columns of A, the summed dimension; in a reduction, each rank's slice of it, which counts with a product alone
    #[arg(long)]
    k: u64,

    #[command(flatten)]
    kinds: KindArgs,

    /// Operation
    #[arg(long, value_enum, default_value_t = What::AllGatherGemm)]
    operation: What,

    /// Numbers of ranks
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4, 8])]
    ranks: Vec<u64>,

    /// Divide n among the ranks: each has n ÷ ranks columns, rounded up to a multiple of 16
    #[arg(long)]
    split_n: bool,

    /// Rate of a GPU's link in each direction, in GB/s [default: an H200's]
    #[arg(long, value_name = "GB/s", help_heading = "Machine", allow_negative_numbers = true)]
    link: Option<f64>,

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
  overlap-gemm predict --m 1024 --n 8192 --k 3584 --operation gemm-reduce-scatter
  overlap-gemm predict --m 1024 --n 8192 --k 16 --operation all-reduce
  overlap-gemm predict --m 8192 --n 28672 --k 8192 --split-n --ranks 2,4,8,16,72 --link 750
  overlap-gemm predict --m 4096 --n 3584 --k 8192 --types e4m3 --scaling rows --link 190";

/// Predicts, and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (machine, operation) = (args.machine(), args.operation.into());
    let output = args.output.open()?;
    let problems: Vec<Problem> =
        args.ranks.iter().map(|&ranks| args.problem(ranks)).collect::<Result<_, _>>()?;
    let cases = problems
        .iter()
        .map(|problem| Case::of(&machine, problem, operation))
        .collect::<Predicted<_>>()?;
    let shown = Shown { machine, cases };
    output.write(&shown, |stdout| write!(stdout, "{shown}"))
}

impl Args {
    fn machine(&self) -> Machine {
        let mut machine = Machine::h200();
        if let Some(gbps) = self.link {
            machine = machine.with_link(gbps);
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
        problem.check_tma()?;
        Ok(problem)
    }
}

/// All numbers of ranks.
#[derive(Serialize)]
struct Shown {
    machine: Machine,
    cases: Vec<Case>,
}

/// One number of ranks.
#[derive(Serialize)]
struct Case {
    problem: String,
    ranks: u32,
    m: u32,
    n: u32,
    k: u32,
    /// Bytes that each rank receives: rows, or sums, which copy engines send.
    received_bytes: u64,
    predictions: Vec<Prediction>,
}

/// One strategy.
#[derive(Serialize)]
struct Prediction {
    /// The library's choice by these predictions, for a problem without a table entry nearby.
    auto: bool,
    strategy: String,
    engine: Engine,
    pieces: u32,
    /// Nothing where nothing is multiplied.
    #[serde(flatten)]
    multiplying: Option<Multiplying>,
    total_us: f64,
    first_tile_us: f64,
    gathered_us: f64,
    waited_us: f64,
    slowed_us: f64,
    tail_us: f64,
}

impl Case {
    /// Predicts every strategy as the rules plan it, and the library's choice.
    fn of(machine: &Machine, problem: &Problem, operation: Operation) -> Predicted<Case> {
        let is_alone = operation.is_alone();
        let plain = (!is_alone).then(|| Setup::gemm(machine, problem)).transpose()?;
        let mut setups: Vec<Setup> = plain.into_iter().collect();
        let auto = if operation.reduces() {
            for way in ways_of_sums(problem, operation, None) {
                let (kernels, sums) = (all_kernels(), Partials::Bf16);
                setups.push(Setup::of_sums(kernels, machine, problem, operation, way, sums)?);
            }
            // Without a product the library's choice is a rule, not a prediction.
            (!is_alone).then(|| fastest(machine, problem, &setups[1..])).flatten()
        } else {
            for strategy in Strategy::ALL {
                setups.push(Setup::usual(machine, problem, strategy)?);
            }
            let sequential = Setup::usual(machine, problem, Strategy::Sequential)?;
            setups.push(sequential.with_engine(Engine::Nccl, problem));
            auto(machine, problem)
        };
        let by_rules = setups.len();
        setups.extend(auto.filter(|_| problem.ranks() > 1));
        let predictions = setups.iter().enumerate();
        let predictions = predictions
            .map(|(nth, setup)| Prediction::new(machine, problem, setup, nth >= by_rules));
        let received = match operation.reduces() {
            true => {
                let engine = Engine::CopyEngines { streams: 1 };
                let options = PlanOptions { operation, engine, ..PlanOptions::new() };
                bytes_sent(&Plan::new(problem, options)?)
            }
            false => problem.row_bytes(&(0..problem.m() - problem.shards().rows(0).end)),
        };
        Ok(Case {
            problem: problem.to_string(),
            ranks: problem.ranks(),
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            received_bytes: u64::try_from(received).unwrap_or(u64::MAX),
            predictions: predictions.collect::<Predicted<_>>()?,
        })
    }
}

/// The library's choice by its model alone, which knows the SMs and assumes an H200's link.
fn auto(machine: &Machine, problem: &Problem) -> Option<Setup> {
    let (operation, partials) = (Operation::AllGatherGemm, Partials::Bf16);
    let asked = Asked { gpu: "NVIDIA H200", sms: machine.sms, operation, problem, partials };
    Tuning::none().look_up(&asked, &Anything)?.setup(operation)
}

/// The same of a reduction.
fn fastest(machine: &Machine, problem: &Problem, setups: &[Setup]) -> Option<Setup> {
    let machine = Machine::h200().with_sms(machine.sms);
    ranked(&machine, problem, setups.to_vec()).into_iter().next().map(|(setup, _)| setup)
}

fn multiplying(setup: &Setup) -> Multiplying {
    Multiplying::of(&setup.kernel, setup.swizzle, setup.splits)
}

impl Prediction {
    fn new(machine: &Machine, problem: &Problem, setup: &Setup, auto: bool) -> Predicted<Self> {
        let estimate = estimate(machine, &setup.plan(problem)?, setup)?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Ok(Prediction {
            auto,
            strategy: match setup.operation {
                Operation::Gemm => "plain".into(),
                _ => setup.way.strategy.to_string(),
            },
            engine: setup.way.engine,
            pieces: setup.way.pieces,
            multiplying: (!setup.operation.is_alone()).then(|| multiplying(setup)),
            total_us: us(estimate.total),
            first_tile_us: us(estimate.first_tile),
            gathered_us: us(estimate.gathered),
            waited_us: us(estimate.waited),
            slowed_us: us(estimate.slowed),
            tail_us: us(estimate.tail),
        })
    }

    fn heading(&self) -> &str {
        match self.engine {
            _ if self.auto => "auto",
            Engine::Nccl => "NCCL first",
            Engine::EXCHANGING => "by kernel",
            _ => &self.strategy,
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { sms, link_gbps, .. } = self.machine;
        write!(f, "predicted for GPUs of {sms} SMs with {link_gbps} GB/s in each direction")?;
        writeln!(f, "; µs a step in a steady loop\n")?;
        let problems = self.cases.iter().map(|case| case.problem.chars().count());
        let width = problems.max().unwrap_or(0);
        // One of a single rank has no choice, one of many no kernel that sends all sums.
        let longest = self.cases.iter().max_by_key(|case| case.predictions.len());
        let headings = longest.iter().flat_map(|case| &case.predictions).map(Prediction::heading);
        // Ways of one strategy that differ in pieces have a column: the fastest of them.
        let mut headings: Vec<_> = headings.collect();
        headings.dedup();
        write!(f, "{:width$} {:>11}", "", "MB received")?;
        headings.iter().try_for_each(|heading| write!(f, " {heading:>10}"))?;
        writeln!(f)?;
        for case in &self.cases {
            write!(f, "{:width$} {:>11.1}", case.problem, case.received_bytes as f64 / 1e6)?;
            for heading in &headings {
                let those = case.predictions.iter().filter(|it| it.heading() == *heading);
                match those.map(|it| it.total_us).min_by(f64::total_cmp) {
                    Some(us) => write!(f, " {us:>10.1}")?,
                    None => write!(f, " {:>10}", "")?,
                }
            }
            writeln!(f)?;
        }
        match headings.contains(&"plain") {
            true => writeln!(
                f,
                "\nplain: the GEMM alone, its inputs already there; auto: the library's choice by these predictions"
            ),
            false => writeln!(f, "\nsequential: by copy engines, which send the MB received"),
        }
    }
}
