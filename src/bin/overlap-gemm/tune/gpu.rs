//! Measuring for a table, as one rank of several.
//!
//! What belongs here: the course of it, and how one heat is run; what is tried is [`search`](super::search)'s, how loops
//! are timed and results checked is the bench's. Invariant: all ranks do the same in the same order, so whatever
//! one of them notices (a wrong result, a refusal, Ctrl-C, the time) is told to all before anybody acts on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use overlap_gemm::cuda::device::driver_name;
use overlap_gemm::cuda::{
    AllGatherGemm, Choice, Engine, GatherOptions, GemmOptions, Kernel, Strategy, devices, kernels,
    ranked,
};
use overlap_gemm::group::{Group, GroupOptions, Launch as Seat};
use overlap_gemm::plan::Problem;
use overlap_gemm::tune::{
    Entry, Family, Gathering, Measured, Mover, Multiplying, Order, Shape, Tuning, record, ways,
};
use overlap_gemm::{Error, Result};

use super::results::{Failed, Head, Results, Row};
use super::search::{Candidate, Found, HEATS, Heat, Known, Outcome, Track, WAYS_TO_LAUNCH, search};
use super::{Launches, Wanted};
use crate::bench::cases::{Case, spread};
use crate::bench::gemm::Launch;
use crate::bench::gpu::check::Check;
use crate::bench::gpu::command;
use crate::bench::gpu::driver::Gpu;
use crate::bench::gpu::inputs::{Inputs, Pools};
use crate::bench::gpu::ranks::contenders::{Gathered, Place, Step};
use crate::bench::gpu::ranks::entrant::{self, Entrant, Runner};
use crate::bench::gpu::ranks::{GRAPH_STEPS, LIMIT, SETS};
use crate::bench::gpu::timing::{Watch, turn};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;

/// Why to stop, as ranks tell each other.
const GO_ON: u8 = b'-';
const INTERRUPTED: u8 = b'i';
const TIME_IS_UP: u8 = b't';

/// What all problems share.
struct Tuner<'a> {
    gpu: &'a Gpu,
    group: Arc<Group>,
    watch: Watch,
    l2_bytes: u64,
    wanted: &'a Wanted,
    launches: &'a [Launch],
    clock: Clock,
    interrupt: Interrupt,
    bar: ProgressBar,
}

/// Measures all problems as one rank; rank 0 keeps and shows what came out.
pub fn run(wanted: &Wanted, output: Option<Output>, interrupt: Interrupt) -> Result<(), Failure> {
    let seat = Seat::from_env()?;
    let gpu = Gpu::open(seat.local_rank as usize % devices()?.len().max(1))?;
    // Ranks that share a GPU would find what is true of no machine.
    let options = GroupOptions::default().device(&gpu.device.bus_id()?);
    let group = Arc::new(Group::from_env(&options)?);
    let todo = todo(wanted, &group, &gpu)?;
    let bar = match &output {
        Some(output) => progress::bar(todo.len() as u64 * HEATS, "heats", output),
        None => ProgressBar::hidden(),
    };
    bar.tick();
    let launches: &[Launch] = match wanted.launch {
        Launches::Graph => &[Launch::Graph],
        Launches::Plain => &[Launch::Plain],
        Launches::Both => &[Launch::Graph, Launch::Plain],
    };
    let (watch, l2_bytes) = (Watch::new(&gpu)?, gpu.l2_bytes()?);
    let clock = Clock::new(wanted.minutes);
    let tuner =
        Tuner { gpu: &gpu, group, watch, l2_bytes, wanted, launches, clock, interrupt, bar };
    let outcome = tuner.run(&todo);
    tuner.bar.finish_and_clear();
    let (measured, failed, stopped) = outcome?;
    tuner.group.barrier("the end of tuning", LIMIT)?;
    let wrong = failed.iter().find(|failed| !failed.why.starts_with(REFUSED)).map(|failed| {
        format!("{}: {}; {}: {}", failed.problem, failed.gathering, failed.multiplying, failed.why)
    });
    if let Some(output) = output {
        let results = Results {
            command: command(),
            version: env!("CARGO_PKG_VERSION"),
            file: wanted.file.display().to_string(),
            kept: wanted.cases.len() - todo.len(),
            measured,
            failed,
            seconds: tuner.clock.since.elapsed().as_secs_f64(),
            ended_early: stopped.map(|why| why.to_string()),
        };
        output.write(&results, |stdout| write!(stdout, "{results}"))?;
    }
    match (stopped, wrong) {
        (Some(Stopped::Interrupted), _) => Err(Failure::Interrupted),
        (_, Some(why)) => Err(Failure::CheckFailed(why)),
        _ => Ok(()),
    }
}

/// What is to be measured: what rank 0's table does not have. It is written once before anything is measured, so that
/// nothing is lost to a path that cannot be.
fn todo<'w>(wanted: &'w Wanted, group: &Group, gpu: &Gpu) -> Result<Vec<&'w Case>> {
    let mut missing = vec![1u8; wanted.cases.len()];
    if group.rank() == 0 {
        record(&wanted.file, &[])?;
        let table = Tuning::from_file(&wanted.file)?;
        let [graph, plain] = match wanted.launch {
            Launches::Graph => [true, false],
            Launches::Plain => [false, true],
            Launches::Both => [true, true],
        };
        for (missing, case) in missing.iter_mut().zip(&wanted.cases) {
            let problem = spread(&case.problem, group.ranks())?;
            let (family, shape) =
                (Family::of(&problem, &gpu.device.info().name), Shape::of(&problem));
            let is_done = |entry: &Entry| {
                let done = |one: &Measured| {
                    (one.graph.is_some() || !graph) && (one.plain.is_some() || !plain)
                };
                entry.family == family && entry.shape == shape && entry.best().is_some_and(done)
            };
            if !wanted.again && table.entries().iter().any(is_done) {
                *missing = 0;
            }
        }
    }
    let all = group.all_gather("what is to be measured", &missing, LIMIT)?;
    let todo = wanted.cases.iter().zip(&all[0]).filter(|(_, missing)| **missing == 1);
    Ok(todo.map(|(case, _)| case).collect())
}

/// Why tuning ended before all was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    Interrupted,
    TimeIsUp,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stopped::Interrupted => "interrupted",
            Stopped::TimeIsUp => "the time was up",
        })
    }
}

/// How long it may take, and the longest problem so far.
struct Clock {
    since: Instant,
    limit: Option<Duration>,
}

impl Clock {
    fn new(minutes: Option<f64>) -> Clock {
        let limit = minutes.and_then(|minutes| Duration::try_from_secs_f64(60.0 * minutes).ok());
        Clock { since: Instant::now(), limit }
    }

    /// Whether something that takes so long would not be done by the limit.
    fn is_up(&self, ahead: Duration) -> bool {
        self.limit.is_some_and(|limit| self.since.elapsed() + ahead > limit)
    }
}

type Everything = (Vec<Entry>, Vec<Failed>, Option<Stopped>);

impl Tuner<'_> {
    fn run(&self, todo: &[&Case]) -> Result<Everything, Failure> {
        let mut pools = Pools::new(self.wanted.seed);
        let (mut measured, mut failed) = (Vec::new(), Vec::new());
        let mut longest = Duration::ZERO;
        for (nth, case) in (0u64..).zip(todo) {
            // A heat with nothing new in it is left out.
            self.bar.set_position(nth * HEATS);
            if let Some(why) = self.stops(longest)? {
                return Ok((measured, failed, Some(why)));
            }
            let begin = Instant::now();
            let problem = spread(&case.problem, self.group.ranks())?;
            let (found, stopped) = self.tune(&problem, &mut pools)?;
            if let Some(why) = stopped {
                return Ok((measured, failed, Some(why)));
            }
            longest = longest.max(begin.elapsed());
            failed.extend(found.failed.into_iter().map(|(candidate, why)| Failed {
                problem: case.to_string(),
                gathering: candidate.gathering,
                multiplying: candidate.multiplying,
                why,
            }));
            if found.measured.is_empty() {
                continue;
            }
            let entry = self.entry(&problem, found.measured)?;
            if self.group.rank() == 0 {
                record(&self.wanted.file, std::slice::from_ref(&entry))?;
                let is_first = measured.is_empty();
                self.bar.suspend(|| {
                    if is_first {
                        eprintln!("{Head}");
                    }
                    eprintln!("{}", Row(&entry));
                });
            }
            measured.push(entry);
        }
        Ok((measured, failed, None))
    }

    fn entry(&self, problem: &Problem, measured: Vec<Measured>) -> Result<Entry> {
        let info = self.gpu.device.info();
        let entry = Entry {
            family: Family::of(problem, &info.name),
            shape: Shape::of(problem),
            sms: info.sm_count,
            driver: driver_name()?,
            crate_version: env!("CARGO_PKG_VERSION").into(),
            measured,
        };
        Ok(entry.sorted())
    }

    /// Whether to stop before something that takes as long as `ahead`: what any rank wants, at the same place on all.
    fn stops(&self, ahead: Duration) -> Result<Option<Stopped>> {
        let own = match self.interrupt.check() {
            Err(_) => INTERRUPTED,
            Ok(()) if self.group.rank() == 0 && self.clock.is_up(ahead) => TIME_IS_UP,
            Ok(()) => GO_ON,
        };
        let all = self.group.all_gather("whether to go on", &[own], LIMIT)?;
        let any = |what: u8| all.iter().any(|part| part.as_slice() == [what]);
        Ok(match (any(INTERRUPTED), any(TIME_IS_UP)) {
            (true, _) => Some(Stopped::Interrupted),
            (_, true) => Some(Stopped::TimeIsUp),
            _ => None,
        })
    }

    fn tune(
        &self,
        problem: &Problem,
        pools: &mut Pools,
    ) -> Result<(Found, Option<Stopped>), Failure> {
        let inputs = pools.inputs(self.gpu, problem, self.l2_bytes)?;
        let mut check = Check::new(pools, problem, &inputs, true, self.wanted.seed);
        // As the bench does: they take turns, and the last one's A is gathered.
        let sets = if inputs.sets.len() < SETS { 1 } else { SETS };
        check.set = sets - 1;
        let mut here = Here { tuner: self, problem, inputs: &inputs, check, sets, stopped: None };
        let known = here.known()?;
        let found = search(&known, &mut here)?;
        Ok((found.unwrap_or_default(), here.stopped))
    }
}

/// One problem on this rank.
struct Here<'a> {
    tuner: &'a Tuner<'a>,
    problem: &'a Problem,
    inputs: &'a Inputs,
    check: Check<'a>,
    sets: usize,
    stopped: Option<Stopped>,
}

/// How a reason begins that is no wrong result.
const REFUSED: &str = "refused: ";

impl<'a> Here<'a> {
    fn place(&self) -> Place<'a> {
        let Here { tuner, problem, inputs, .. } = self;
        Place { gpu: tuner.gpu, group: &tuner.group, problem, inputs, set: self.check.set }
    }

    fn plan(
        &self,
        strategy: Strategy,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<AllGatherGemm> {
        let Tuner { gpu, group, .. } = self.tuner;
        let problems = std::slice::from_ref(self.problem);
        let none = Tuning::none();
        AllGatherGemm::plan_tuned(group, &gpu.device, problems, strategy, gather, gemm, &none)
    }

    /// What is chosen without a table, and what else the cost model thinks of.
    fn known(&self) -> Result<Known> {
        let (problem, gemm) = (self.problem, gemm_options());
        let layer = self.plan(Strategy::Auto, &GatherOptions::default(), &gemm)?;
        let order = match layer.strategy() {
            Strategy::Pipelined => Order::Pipelined,
            Strategy::Sequential => Order::Sequential,
            _ => Order::Fused,
        };
        let mover = match layer.engine() {
            Engine::CopyEngines { streams } => Mover::CopyEngines { streams },
            Engine::Kernel { blocks } => Mover::Kernel { blocks },
            other => {
                return Err(Error::Unsupported {
                    what: format!("tuning with {other:?}"),
                    why: "these GPUs do not reach each other's memory, and there is one way only"
                        .into(),
                    remedy: "tune on GPUs that NVLink connects",
                });
            }
        };
        let pieces = layer.planned().chunks().most_per_rank();
        let sms = self.tuner.gpu.device.info().sm_count;
        let all = kernels()?;
        let list = |part: &Problem| -> Result<Vec<Multiplying>> {
            let ranked = ranked(all, part, &gemm, sms)?;
            Ok(ranked.into_iter().map(|(choice, _)| multiplying(all, choice)).collect())
        };
        let most_rows = problem.shards().most_rows();
        let chosen = multiplying(all, layer.choice());
        let (whole, of_rank) = (list(problem)?, list(&problem.of_largest_shard()?)?);
        let by_model = if order == Order::Pipelined { &of_rank } else { &whole }.first();
        Ok(Known {
            untuned: Candidate {
                gathering: Gathering { order, mover, pieces },
                by_model: by_model == Some(&chosen),
                multiplying: chosen,
                untuned: true,
            },
            ways: ways(problem),
            most_rows,
            whole,
            of_rank,
            m: problem.m(),
        })
    }

    /// Plans one candidate for each way of launching, and checks its result.
    fn enter(&self, candidate: &Candidate) -> Result<Result<Vec<Entrant<'a>>, String>> {
        let (gather, gemm) = options(candidate);
        let strategy = match candidate.gathering.order {
            Order::Fused => Strategy::Fused,
            Order::Pipelined => Strategy::Pipelined,
            Order::Sequential => Strategy::Sequential,
        };
        let group = &self.tuner.group;
        let mut entrants = Vec::new();
        for &launch in self.tuner.launches {
            let layer = match self.plan(strategy, &gather, &gemm) {
                Ok(layer) => layer,
                // Refused on all ranks; else the group is over, and so is everything.
                Err(error) if group.check().is_ok() => return Ok(Err(format!("{REFUSED}{error}"))),
                Err(error) => return Err(error),
            };
            let mut step = Gathered::of(self.place(), layer, false)?;
            let enqueue = |set| step.enqueue(set);
            let checked = self.check.run(self.tuner.gpu, self.inputs, enqueue)?;
            step.check()?;
            if let Some(why) = entrant::wrong_anywhere(group, checked.err())? {
                return Ok(Err(why));
            }
            let (name, kind, what) = (String::new(), step.kind(), String::new());
            let (failed, times, host) = (None, Vec::new(), Vec::new());
            let runner = Runner::Here { graph: None, step: Box::new(step) };
            entrants.push(Entrant { name, kind, launch, what, failed, times, host, runner });
        }
        Ok(Ok(entrants))
    }

    /// Everyone's loops by turns. `false`: it is time to stop.
    fn rounds(&mut self, runners: &mut [Entrant<'a>], heat: Heat) -> Result<bool> {
        let Tuner { gpu, group, watch, .. } = self.tuner;
        let track = entrant::Track { gpu, group, watch, sets: self.sets };
        for runner in runners.iter_mut() {
            runner.capture(&track)?;
            // Twice: whoever is first finds cold clocks.
            runner.time(&track, 1)?;
            let first = runner.time(&track, 1)?;
            runner.times.push(first);
        }
        let fastest = |launch: Launch, runners: &[Entrant<'_>]| {
            let alike = runners.iter().filter(|runner| runner.launch == launch);
            alike.map(|runner| runner.times[0]).fold(f64::INFINITY, f64::min)
        };
        let least = [Launch::Graph, Launch::Plain].map(|launch| fastest(launch, runners));
        let goes_on = |runner: &Entrant<'_>| {
            let least = if runner.launch == Launch::Graph { least[0] } else { least[1] };
            runner.times[0] <= heat.give_up * least
        };
        let mut going: Vec<_> = runners.iter_mut().filter(|runner| goes_on(runner)).collect();
        // One loop to get warm; then what was only a first look does not count.
        going.iter_mut().for_each(|runner| runner.times.clear());
        let us = least[0].min(least[1]).max(1.0);
        let graphs = ((1e3 * heat.loop_ms / us).ceil() as usize).div_ceil(GRAPH_STEPS).max(1);
        for round in 0..heat.rounds {
            self.stopped = self.tuner.stops(Duration::ZERO)?;
            if self.stopped.is_some() {
                return Ok(false);
            }
            for nth in turn(round, going.len()) {
                let time = going[nth].time(&track, graphs)?;
                going[nth].times.push(time);
            }
        }
        Ok(true)
    }
}

impl Track<Failure> for Here<'_> {
    fn run(
        &mut self,
        candidates: &[Candidate],
        heat: Heat,
    ) -> Result<Option<Vec<Outcome>>, Failure> {
        let mut runners = Vec::new();
        // Whose each of them is, and who has none.
        let (mut whose, mut failed) = (Vec::new(), vec![None; candidates.len()]);
        for (nth, candidate) in candidates.iter().enumerate() {
            self.stopped = self.tuner.stops(Duration::ZERO)?;
            if self.stopped.is_some() {
                return Ok(None);
            }
            match self.enter(candidate)? {
                Ok(new) => {
                    whose.extend(new.iter().map(|_| nth));
                    runners.extend(new);
                }
                Err(why) => failed[nth] = Some(why),
            }
        }
        if !self.rounds(&mut runners, heat)? {
            return Ok(None);
        }
        self.tuner.bar.inc(1);
        self.tuner.bar.set_message(format!("{}, {}", Shape::of(self.problem), heat.name));
        let mut times = vec![<[Vec<f64>; WAYS_TO_LAUNCH]>::default(); candidates.len()];
        for (nth, runner) in whose.into_iter().zip(runners) {
            times[nth][usize::from(runner.launch == Launch::Plain)] = runner.times;
        }
        let outcome = |(why, times): (Option<String>, _)| match why {
            Some(why) => Outcome::Failed(why),
            None => Outcome::Timed(times),
        };
        Ok(Some(failed.into_iter().zip(times).map(outcome).collect()))
    }
}

/// B is written before the first step, as weights are.
fn gemm_options() -> GemmOptions {
    GemmOptions::default().with_constant_b(true)
}

fn options(candidate: &Candidate) -> (GatherOptions, GemmOptions) {
    let Candidate { gathering, multiplying, .. } = candidate;
    let engine = match gathering.mover {
        Mover::CopyEngines { streams } => Engine::CopyEngines { streams },
        Mover::Kernel { blocks } => Engine::Kernel { blocks },
    };
    let gather = GatherOptions::default().with_engine(engine).with_pieces(gathering.pieces);
    let gemm = gemm_options()
        .with_kernel(&multiplying.kernel)
        .with_swizzle(multiplying.swizzle)
        .with_splits(multiplying.splits);
    (gather, gemm)
}

fn multiplying(kernels: &[Kernel], choice: Choice) -> Multiplying {
    let Kernel { name, tile, cluster, .. } = &kernels[choice.kernel];
    Multiplying {
        kernel: name.clone(),
        tile: *tile,
        cluster: *cluster,
        swizzle: choice.swizzle,
        splits: choice.splits,
    }
}
