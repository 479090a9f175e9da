//! Measuring for a table, as one rank of several.
//!
//! What belongs here: the problems one after the other; [`heats`] runs one heat, [`search`](super::search) lists the
//! candidates, the bench has the loops and the checks. Invariant: all ranks do the same in the same order. An event on one
//! rank (a wrong result, a refusal, Ctrl-C, the time limit) reaches all ranks before any rank acts on it.

mod heats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use overlap_gemm::Result;
use overlap_gemm::cuda::device::driver_name;
use overlap_gemm::cuda::devices;
use overlap_gemm::group::{Group, GroupOptions, Launch as Seat};
use overlap_gemm::plan::Problem;
use overlap_gemm::tune::{Entry, Family, Shape, Tuning, record};

use self::heats::Here;
use super::course::{Clock, Outcome, Stopped, has};
use super::ranking::Measured;
use super::results::Tuned;
use super::search::{Found, HEATS, search};
use super::{Launches, Wanted};
use crate::bench::cases::{Case, spread};
use crate::bench::gpu::check::Check;
use crate::bench::gpu::driver::Gpu;
use crate::bench::gpu::inputs::Pools;
use crate::bench::gpu::ranks::loops::{LIMIT, SETS};
use crate::bench::gpu::ranks::told;
use crate::bench::gpu::timing::Watch;
use crate::bench::wanted::Launch;
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
    let outcome = told(&tuner.group, tuner.run(&todo));
    tuner.bar.finish_and_clear();
    let outcome = outcome?;
    tuner.group.barrier("the end of tuning", LIMIT)?;
    outcome.end(wanted, wanted.cases.len() - todo.len(), &tuner.clock, output)
}

/// What is to be measured: what rank 0's table does not have, or has with another driver. It is written once before anything is measured, so that
/// nothing is lost to a path that cannot be.
fn todo<'w>(wanted: &'w Wanted, group: &Group, gpu: &Gpu) -> Result<Vec<&'w Case>> {
    let mut missing = vec![1u8; wanted.cases.len()];
    if group.rank() == 0 {
        record(&wanted.file, &[])?;
        let table = Tuning::from_file(&wanted.file)?;
        let (gpu, driver) = (&gpu.device.info().name, driver_name()?);
        for (missing, case) in missing.iter_mut().zip(&wanted.cases) {
            let problem = spread(&case.problem, group.ranks())?;
            if has(&table, &problem, gpu, &driver, wanted.launch) && !wanted.again {
                *missing = 0;
            }
        }
    }
    let all = group.all_gather("what is to be measured", &missing, LIMIT)?;
    let todo = wanted.cases.iter().zip(&all[0]).filter(|(_, missing)| **missing == 1);
    Ok(todo.map(|(case, _)| case).collect())
}

impl Tuner<'_> {
    fn run(&self, todo: &[&Case]) -> Result<Outcome, Failure> {
        let mut pools = Pools::new(self.wanted.seed);
        let mut outcome = Outcome::default();
        for (nth, case) in (0u64..).zip(todo) {
            // A heat with nothing new in it is left out.
            self.bar.set_position(nth * HEATS);
            self.measure(case, &mut pools, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Measures one problem, and keeps what came out; nothing once it is time to stop.
    fn measure(
        &self,
        case: &Case,
        pools: &mut Pools,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        if outcome.stopped.is_none() {
            outcome.stopped = self.stops(outcome.longest)?;
        }
        if outcome.stopped.is_some() {
            return Ok(());
        }
        let begin = Instant::now();
        let problem = spread(&case.problem, self.group.ranks())?;
        let (found, stopped) = self.find(&problem, pools)?;
        outcome.stopped = stopped;
        if stopped.is_some() {
            return Ok(());
        }
        outcome.longest = outcome.longest.max(begin.elapsed());
        outcome.fail(case, found.failed);
        let tried = found.measured;
        let Some(best) = tried.first() else { return Ok(()) };
        let entry = self.entry(&problem, best)?;
        let file = (self.group.rank() == 0).then_some(self.wanted.file.as_path());
        Ok(outcome.add(Tuned { entry, tried }, file)?)
    }

    fn entry(&self, problem: &Problem, best: &Measured) -> Result<Entry> {
        let info = self.gpu.device.info();
        Ok(Entry {
            family: Family::of(problem, &info.name),
            shape: Shape::of(problem),
            sms: info.sm_count,
            driver: driver_name()?,
            crate_version: env!("CARGO_PKG_VERSION").into(),
            way: best.way,
            multiplying: best.multiplying.clone(),
            us: best.us(),
        })
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

    fn find(
        &self,
        problem: &Problem,
        pools: &mut Pools,
    ) -> Result<(Found, Option<Stopped>), Failure> {
        let inputs = pools.inputs(0, self.gpu, problem, self.l2_bytes)?;
        // As the bench does: they take turns, and the last one's A is gathered.
        let sets = if inputs.sets.len() < SETS { 1 } else { SETS };
        let check = Check::new(pools, problem, &inputs, sets, true, self.wanted.seed);
        let mut here = Here { tuner: self, problem, inputs: &inputs, check, sets, stopped: None };
        let known = here.known()?;
        let found = search(&known, &mut here)?;
        Ok((found.unwrap_or_default(), here.stopped))
    }
}
