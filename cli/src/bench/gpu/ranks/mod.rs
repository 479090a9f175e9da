//! The benches of operations on several GPUs: this process's part as one rank.
//!
//! What belongs here: the course of them; the contenders are beside (`contenders`, `reducing`), and how each is planned
//! (`planning`). Every rank does the same in the same order, because steps are collective. Invariants: a time is that of the
//! slowest rank; a wrong result has no time; measured times are shown even if a later case ends the bench.

pub mod contenders;
pub mod entrant;
pub mod exchange;
pub mod loops;
mod peer;
mod planning;
mod process;
mod reducing;
pub mod timeline;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use indicatif::ProgressBar;
use overlap_gemm::Result;
use overlap_gemm::cuda::devices;
use overlap_gemm::cuda::nccl::{Communicator, NCCL_VARIABLE, Nccl};
use overlap_gemm::group::{Group, GroupOptions, Launch as Place};
use overlap_gemm::plan::{Problem, Strategy};
use overlap_gemm::tune::Tuning;

use super::super::cases::{Case, spread};
use super::super::lineup::Lineup;
use super::super::report::{CaseReport, Kind, Run, Shown};
use super::super::turns::turn;
use super::super::wanted::{Contender, Gatherer, Launch, OnGpus};
use super::check::{Adder, Check};
use super::cublaslt::Cublaslt;
use super::driver::{Block, Gpu};
use super::inputs::Pools;
use super::machine;
use super::timing::Watch;
use crate::exit::Failure;
use crate::installed::{self, Found};
use crate::interrupt::Interrupt;
use crate::progress;
use contenders::Step;
use entrant::{Entrant, Graphs, ONE_GRAPH, Runner, Track, wrong_anywhere};
use exchange::all_values;
use loops::{GRAPH_STEPS, LIMIT, SETS};
use peer::{Limits, Peer};
use reducing::Summing;

/// What all cases share.
struct Bench<'a> {
    gpu: &'a Gpu,
    group: Arc<Group>,
    wanted: &'a OnGpus,
    cublaslt: Option<Rc<Cublaslt>>,
    nccl: Option<Rc<Communicator>>,
    peer: Option<RefCell<Peer>>,
    watch: Watch,
    l2_bytes: u64,
    interrupt: Interrupt,
    /// One step a contender that is planned, and one a round; hidden but on rank 0.
    bar: ProgressBar,
}

/// How results of a case are checked: one rank's product, or this rank's rows of the total.
struct Checks<'a> {
    product: Check<'a>,
    total: Check<'a>,
}

impl Checks<'_> {
    /// Takes a step, and says what is wrong with its result, if anything is.
    fn run(&self, summing: Summing<'_>, step: &mut dyn Step) -> Result<Result<(), String>> {
        let Summing { place: contenders::Place { gpu, inputs, set, .. }, totals, .. } = summing;
        let (kind, adder) = (step.kind(), step.adder());
        let enqueue = |set| step.enqueue(set);
        if !kind.reduces() {
            return self.product.run(gpu, inputs, enqueue);
        }
        let (partials, total) = (&inputs.sets[set].d, &totals[set]);
        // Where D has the partials, a product has to write them first. A reduction alone finds them there.
        let poisoned = match kind.is_whole() && adder == Adder::Nccl {
            true => vec![partials, total],
            false => vec![total],
        };
        self.total.run_into(gpu, total, &poisoned, adder, enqueue)
    }
}

/// Runs all cases as one rank; rank 0 shows what they gave.
pub fn run(wanted: &OnGpus, mut shown: Option<Shown>, interrupt: Interrupt) -> Result<(), Failure> {
    let place = Place::from_env()?;
    let count = devices()?.len().max(1);
    let gpu = Gpu::open(place.local_rank as usize % count)?;
    let shared = GroupOptions::default().shared_devices(true);
    let group = Arc::new(Group::from_env(&shared)?);
    // What reduces has the names of what gathers, and needs the same.
    let named = |name: &str| wanted.contenders.iter().any(|who| who.name() == name);
    let takes_part = |all: &[Gatherer]| all.iter().any(|who| named(who.name()));
    let cublaslt = match takes_part(&[Gatherer::Cublaslt, Gatherer::NcclCublaslt]) {
        true => Some(Cublaslt::open(&gpu, wanted.cublaslt.as_deref())?),
        false => None,
    };
    let nccl = match takes_part(&[Gatherer::Nccl, Gatherer::NcclCublaslt]) {
        true => {
            let nccl = Nccl::load(wanted.nccl.clone().or_else(packaged_nccl).as_deref())?;
            // As others use it: the quicker way.
            Some(Rc::new(Communicator::join_without_limits(&nccl, &group, &gpu.device)?))
        }
        false => None,
    };
    let peer = match &wanted.peer {
        Some(command) => {
            Some(RefCell::new(Peer::start(command, &place, &group, Limits::default())?))
        }
        None => None,
    };
    let machine = machine::describe(&gpu, cublaslt.as_deref())?;
    let (watch, l2_bytes) = (Watch::new(&gpu)?, machine.l2_bytes);
    if shown.is_some() && wanted.contenders.contains(&Contender::Gather(Gatherer::Auto)) {
        // Tables that are not used, and why.
        Tuning::found().notes().iter().for_each(|note| eprintln!("{note}"));
    }
    let bar = match &shown {
        Some(shown) => progress::bar(steps(wanted), "steps", &shown.output),
        None => ProgressBar::hidden(),
    };
    bar.tick();
    let bench =
        Bench { gpu: &gpu, group, wanted, cublaslt, nccl, peer, watch, l2_bytes, interrupt, bar };
    let mut run = Run {
        nccl: bench.nccl.as_ref().map(|nccl| {
            let (major, minor, patch) = nccl.version();
            format!("{major}.{minor}.{patch}")
        }),
        operation: wanted.operation,
        copied: wanted.copied,
        ..Run::begin(machine, bench.group.ranks(), wanted.steps, wanted.rounds)
    };
    let outcome = told(&bench.group, bench.run_all(&mut run, shown.as_mut()));
    bench.bar.finish_and_clear();
    match shown {
        Some(shown) => shown.end(run, outcome),
        None => outcome,
    }
}

/// What came of something that all ranks do together. If it failed here, the others learn of it, and stop waiting.
pub fn told<T>(group: &Group, outcome: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(failure) = &outcome {
        group.abort(&failure.to_string());
    }
    outcome
}

/// NCCL's file where a package has it and the loader does not, unless somebody names one.
fn packaged_nccl() -> Option<PathBuf> {
    if std::env::var_os(NCCL_VARIABLE).is_some() {
        return None;
    }
    match installed::nccl() {
        Found::OffPath(path, _) => Some(path),
        _ => None,
    }
}

/// What the bar counts: for each case the contenders that are planned, and the rounds.
fn steps(wanted: &OnGpus) -> u64 {
    let planned = wanted.contenders.len() * wanted.launch.len();
    (wanted.cases.len() * (planned + wanted.rounds)) as u64
}

impl Bench<'_> {
    fn barrier(&self, what: &str) -> Result<()> {
        self.group.barrier(what, LIMIT)
    }

    /// Runs all cases, and adds each to the run; where they are shown, each as soon as it is there.
    fn run_all(&self, run: &mut Run, mut shown: Option<&mut Shown>) -> Result<(), Failure> {
        let mut pools = Pools::new(self.wanted.seed);
        for case in &self.wanted.cases {
            let (report, drawn) = self.run(case, &mut pools)?;
            run.cases.push(report);
            if let Some(shown) = &mut shown {
                shown.keep(run)?;
            }
            drawn?;
        }
        self.barrier("the end of the bench")?;
        Ok(())
    }

    /// One case, and whether its picture could be drawn, if one is wanted.
    fn run(
        &self,
        case: &Case,
        pools: &mut Pools,
    ) -> Result<(CaseReport, Result<(), Failure>), Failure> {
        let (gpu, wanted) = (self.gpu, self.wanted);
        let problem = spread(&case.problem, self.group.ranks())?;
        // What is gathered is the same on all ranks, what is added up is each rank's own.
        let (reduces, rank) = (wanted.operation.reduces(), self.group.rank());
        let inputs =
            pools.inputs_of(if reduces { rank } else { 0 }, gpu, &problem, self.l2_bytes)?;
        // A set has the same number everywhere, also where one GPU has less memory.
        let sets = if inputs.sets.len() < SETS { 1 } else { SETS };
        let sets = all_values(&self.group, "the number of sets", &sets)?;
        let sets = sets.into_iter().min().unwrap_or(1);
        let mut check = Check::new(pools, &problem, &inputs, true, wanted.seed);
        check.set = sets - 1;
        let place = contenders::Place {
            gpu,
            group: &self.group,
            problem: &problem,
            inputs: &inputs,
            set: check.set,
        };
        let own = reducing::rows(&place, wanted.operation);
        let total = |_| gpu.allocate(reducing::bytes(&problem, &own));
        let checks = Checks {
            product: check,
            total: Check::of_total(pools, &problem, own.clone(), sets, true, wanted.seed),
        };
        let totals = match reduces {
            true => (0..sets).map(total).collect::<Result<Vec<Block>>>()?,
            false => Vec::new(),
        };
        let summing = Summing { place, operation: wanted.operation, totals: &totals };
        let mut lineup: Lineup<Entrant<'_>> = Lineup::new();
        for &who in &wanted.contenders {
            for &launch in &wanted.launch {
                self.interrupt.check()?;
                let mut step = self.plan(who, summing)?;
                let (name, what) = (who.name().to_owned(), step.describe());
                // Ranks have agreed on plans, so they find the same.
                let so = step.identity();
                let is_so = |other: &Entrant<'_>| other.launch == launch && other.identity() == so;
                self.bar.inc(1);
                if so.is_some() && lineup.add_twin(&name, &what, is_so) {
                    continue;
                }
                let kind = step.kind();
                let failed = match kind {
                    Kind::AllGather => None,
                    _ => {
                        let checked = checks.run(summing, &mut *step)?;
                        step.check()?;
                        wrong_anywhere(&self.group, checked.err())?
                    }
                };
                let runner = Runner::Here { graph: None, step };
                let (times, host) = (Vec::new(), Vec::new());
                let new = Entrant { name, kind, launch, what, failed, times, host, runner };
                lineup.entrants.push(new);
            }
        }
        if let Some(peer) = &self.peer {
            self.invite(peer, &problem, &mut lineup.entrants)?;
        }
        let track = Track { gpu, group: &self.group, watch: &self.watch, sets };
        self.rounds(&mut lineup.entrants, &track)?;
        let drawn = match &wanted.timelines {
            Some(folder) => self.draw(folder, case, place),
            None => Ok(()),
        };
        let rows = lineup.into_rows(Entrant::into_row);
        Ok((CaseReport { name: case.to_string(), rows, problem }, drawn))
    }

    /// Draws one step of the fused product.
    fn draw(
        &self,
        folder: &Path,
        case: &Case,
        place: contenders::Place<'_>,
    ) -> Result<(), Failure> {
        let (gather, gemm) = (self.gather_options(), self.gemm_options());
        let (strategy, copied) = (Some(Strategy::Fused), self.wanted.copied);
        let mut step = contenders::Gathered::plan(place, strategy, &gather, &gemm, copied)?;
        let own = step.record()?;
        let all = timeline::merge(&self.group, step.planned(), &own)?;
        if self.group.rank() == 0 {
            timeline::draw(folder, &case.to_string(), &all)?;
            let summaries = all.summaries();
            self.bar.suspend(|| summaries.iter().for_each(|rank| eprintln!("{case}: {rank}")));
        }
        Ok(())
    }

    /// Adds another program's contenders.
    fn invite<'c>(
        &self,
        peer: &'c RefCell<Peer>,
        problem: &Problem,
        entrants: &mut Vec<Entrant<'c>>,
    ) -> Result<()> {
        let operation = self.wanted.operation;
        let whole = Kind::whole(operation);
        for told in peer.borrow_mut().prepare(&self.group, operation, problem, GRAPH_STEPS)? {
            for &launch in &self.wanted.launch {
                if launch == Launch::Graph && !told.graph {
                    continue;
                }
                entrants.push(Entrant {
                    name: told.name.clone(),
                    kind: if told.kind == "gemm" { Kind::Gemm } else { whole },
                    launch,
                    what: "the peer's".into(),
                    failed: told.failed.clone(),
                    times: Vec::new(),
                    host: Vec::new(),
                    runner: Runner::Peer { peer, before: None },
                });
            }
        }
        Ok(())
    }

    /// All loops, in turns that are the same on every rank. A contender that is wrong, or hangs, does not run.
    fn rounds(&self, entrants: &mut [Entrant<'_>], track: &Track<'_>) -> Result<(), Failure> {
        let mut entrants: Vec<_> =
            entrants.iter_mut().filter(|entrant| entrant.failed.is_none()).collect();
        let mut fastest = f64::INFINITY;
        for entrant in &mut entrants {
            entrant.capture(track)?;
            fastest = fastest.min(entrant.time(track, ONE_GRAPH)?.unwrap_or(f64::INFINITY));
        }
        // Long enough for the fastest; the same for all.
        let wanted = |ms: f64| {
            let steps = (1e3 * ms / fastest.max(1.0)).ceil() as usize;
            steps.max(self.wanted.steps).div_ceil(GRAPH_STEPS)
        };
        let loops = self.wanted.loops;
        let graphs = Graphs { warm: wanted(loops.warm_ms), timed: wanted(loops.timed_ms) };
        for round in 0..self.wanted.rounds {
            self.interrupt.check()?;
            for nth in turn(round, entrants.len()) {
                let Some(time) = entrants[nth].time(track, graphs)? else { continue };
                entrants[nth].times.push(time);
                entrants[nth].time_host(track)?;
            }
            self.bar.inc(1);
        }
        Ok(())
    }
}
