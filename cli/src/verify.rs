//! `overlap-gemm verify`: random problems on the host executor against the f64 reference.
//!
//! Invariant: a case follows from the seed and its number alone, so the printed command
//! repeats a case that failed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use overlap_gemm::exercise::Exercise;
use overlap_gemm::plan::model::Schedules;
use overlap_gemm::plan::{Engine, Operation, Plan, PlanOptions, Strategy};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Report;
use serde::Serialize;

use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::OutputArgs;
use crate::plan::run_order;
use crate::progress;

/// Run random problems on all ranks and compare every result with an f64 reference
///
/// The seed determines the operation (all-gather + GEMM, GEMM + reduce-scatter or GEMM + all-reduce), strategies, types,
/// those of partial sums, sum or average, sizes, layouts, shards (some empty), chunks, tiles, scales, delays, steps of
/// varying m, and epochs near their wrap. A schedule of each case also runs on the model: that of threads, or of GPUs by copy
/// engines or a kernel; of a reduction with its product or alone.
#[derive(clap::Args)]
pub struct Args {
    /// Number of cases [default: 500, or as many as --seconds allow]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Time limit
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,

    /// Seed of the cases [default: from the clock; printed]
    #[arg(long)]
    seed: Option<u64>,

    /// Run this case only, and show it
    #[arg(long, conflicts_with_all = ["count", "seconds"])]
    case: Option<u64>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Cases run where neither a count nor a time was given: some seconds.
const DEFAULT_COUNT: u64 = 500;

/// What was found.
#[derive(Serialize)]
struct Summary {
    seed: u64,
    cases: u64,
    /// The number of cases by operation.
    operations: BTreeMap<String, u64>,
    /// The same of the schedules on the model, where reductions are also alone.
    schedules: BTreeMap<String, u64>,
    seconds: f64,
    report: Report,
    /// The case that was shown, if only one was run.
    shown: Option<String>,
    /// The first case that failed, and how to repeat it.
    failure: Option<String>,
}

/// Runs the cases and tells.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = args.output.open()?;
    let interrupt = Interrupt::install()?;
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let (first, count) = match (args.case, args.count, args.seconds) {
        (Some(case), ..) => (case, 1),
        (None, Some(count), _) => (0, count),
        (None, None, Some(_)) => (0, u64::MAX),
        (None, None, None) => (0, DEFAULT_COUNT),
    };
    let limit = args.seconds.map(|seconds| Duration::from_secs(seconds.into()));
    // With a time limit alone the number of cases is unknown, and the bar counts seconds.
    let seconds = limit.filter(|_| args.count.is_none());
    let bar = match seconds {
        Some(limit) => progress::bar(limit.as_secs(), "seconds", &output),
        None => progress::bar(count, "cases", &output),
    };
    let begin = Instant::now();
    let mut summary = Summary {
        seed,
        cases: 0,
        operations: BTreeMap::new(),
        schedules: BTreeMap::new(),
        seconds: 0.0,
        report: Report::default(),
        shown: None,
        failure: None,
    };
    for case in (0..count).map(|nth| first.wrapping_add(nth)) {
        if limit.is_some_and(|limit| begin.elapsed() >= limit) {
            break;
        }
        let exercise = Exercise::random(seed_of_case(seed, case))?;
        let mut random = Random::of_stream(exercise.seed, 1);
        let modelled = modelled_options(&exercise, &mut random);
        let outcome = run_case(&exercise, modelled, &mut random, interrupt);
        interrupt.check()?;
        summary.cases += 1;
        tally(&mut summary.operations, exercise.options.operation);
        tally(&mut summary.schedules, modelled.operation);
        if args.case.is_some() {
            summary.shown = Some(format!("{exercise:#?}"));
        }
        match outcome {
            Ok(report) => summary.report.merge(&report),
            Err(why) => {
                let problem = &exercise.problem;
                summary.failure = Some(format!(
                    "case {case} failed: {why}\n  problem: {problem}\n  \
                     again:   overlap-gemm verify --seed {seed} --case {case}"
                ));
                break;
            }
        }
        match seconds {
            Some(_) => bar.set_position(begin.elapsed().as_secs()),
            None => bar.inc(1),
        }
    }
    bar.finish_and_clear();
    summary.seconds = begin.elapsed().as_secs_f64();
    output.write(&summary, |stdout| write!(stdout, "{summary}"))?;
    summary.failure.map_or(Ok(()), |failure| Err(Failure::CheckFailed(failure)))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(shown) = &self.shown {
            writeln!(f, "{shown}\n")?;
        }
        let Summary { seed, cases, seconds, report, .. } = self;
        let plural = if *cases == 1 { "" } else { "s" };
        writeln!(f, "{cases} case{plural} from seed {seed} in {seconds:.1} s")?;
        for (what, counted) in [("on threads", &self.operations), ("on the model", &self.schedules)]
        {
            let counted = counted.iter().map(|(operation, count)| format!("{count} {operation}"));
            writeln!(f, "{what}: {}", counted.collect::<Vec<_>>().join(", "))?;
        }
        let Report { compared, wrong, worst_fraction, .. } = report;
        let percent = 100.0 * worst_fraction;
        writeln!(
            f,
            "{compared} results compared, {wrong} wrong; worst error {percent:.1} % of its bound"
        )
    }
}

fn tally(counts: &mut BTreeMap<String, u64>, operation: Operation) {
    *counts.entry(operation.to_string()).or_default() += 1;
}

/// How the case is planned for the model: moved by any engine; GPUs have each reduction without its product, too.
fn modelled_options(exercise: &Exercise, random: &mut Random) -> PlanOptions {
    let copies = |streams| Engine::CopyEngines { streams };
    let engine = random.choose(&[Engine::Thread, copies(1), copies(2), Engine::PUSHING]);
    let options = exercise.options.with_engine(engine);
    let alone = match options.operation {
        // Sums that a caller has are scattered along rows.
        Operation::GemmReduceScatter if exercise.problem.scatters_columns() => options.operation,
        Operation::GemmReduceScatter => Operation::ReduceScatter,
        Operation::GemmAllReduce => Operation::AllReduce,
        _ => return options,
    };
    let operation = random.choose(&[options.operation, alone]);
    match engine {
        // It adds up when all sums have been computed.
        Engine::Kernel { .. } => {
            PlanOptions { operation, ..options.with_strategy(Strategy::Sequential) }
        }
        _ => PlanOptions { operation, ..options },
    }
}

/// One case, on the model and for real; what was wrong with it, if anything was.
fn run_case(
    exercise: &Exercise,
    modelled: PlanOptions,
    random: &mut Random,
    interrupt: Interrupt,
) -> Result<Report, String> {
    let plan = Plan::new(&exercise.problem, modelled).map_err(|error| error.to_string())?;
    let schedules = Schedules::new(&plan);
    let ran = schedules.check_order().and_then(|()| run_order(&schedules, random.next_u64()));
    ran.map_err(|violation| {
        let PlanOptions { operation, engine, .. } = modelled;
        format!("{operation} on the model, moved by {engine}: {violation}")
    })?;

    let outcome =
        exercise.run(&|| interrupt.check().is_err()).map_err(|error| error.to_string())?;
    outcome.report.complaint().map_or(Ok(outcome.report), Err)
}

fn seed_of_case(seed: u64, case: u64) -> u64 {
    Random::of_stream(seed, case).next_u64()
}

/// Short enough to be typed.
fn seed_of_the_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff_ffff)
}
