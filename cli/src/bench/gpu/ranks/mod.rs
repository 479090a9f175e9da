//! The benches of operations on several GPUs: this process's part as one rank.
//!
//! What belongs here: the course of them; the contenders are beside (`contenders`), how each is planned (`planning`), and how its
//! results are checked (`checks`).
//! Every rank does the same in the same order, because steps are collective. Invariants: a time is that of the
//! slowest rank; a wrong result has no time; measured times are shown even if a later case ends the bench.

pub mod checks;
pub mod contenders;
pub mod entrant;
pub mod exchange;
pub mod loops;
mod peer;
mod planning;
mod process;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use indicatif::ProgressBar;
use overlap_gemm::Result;
use overlap_gemm::cuda::nccl::{Communicator, NCCL_VARIABLE, Nccl};
use overlap_gemm::group::{self, Group, GroupOptions};
use overlap_gemm::plan::{Operation, Problem};
use overlap_gemm::tune::Tuning;

use super::super::between::OnGpus;
use super::super::cases::{Case, gate_and_up, spread};
use super::super::machine::Machine;
use super::super::report::{CaseReport, Kind, Row, Run};
use super::super::turns::turn;
use super::super::wanted::{Contender, Launch};
use super::cublaslt::Cublaslt;
use super::driver::Gpu;
use super::inputs::Pools;
use super::timing::Watch;
use crate::exit::Failure;
use crate::installed::{self, Found};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;
use checks::{Checks, room_for_totals, whose_inputs};
use contenders::{Place, Planned, Summing};
use entrant::{Entrant, Graphs, ONE_GRAPH, Track, wrong_anywhere};
use exchange::common_sets;
use loops::{GRAPH_STEPS, LIMIT};
use peer::{Limits, Peer};

/// Steps in a loop, at least.
const STEPS: usize = 60;
/// How long a case's contenders run before any is timed: after 0.7 to 1 s of work a GPU takes up to 28 % longer for a moment, with any
/// contender (benches/results/2026-11-28-h200x2-first-second.txt).
const UNTIMED_MS: f64 = 1100.0;

/// What all cases share.
struct Bench<'a> {
    gpu: &'a Gpu,
    group: Arc<Group>,
    wanted: &'a OnGpus<'a>,
    cublaslt: Option<Rc<Cublaslt>>,
    nccl: Option<Rc<Communicator>>,
    peer: Option<RefCell<Peer>>,
    watch: Watch,
    l2_bytes: u64,
    interrupt: Interrupt,
    /// One step a contender that is planned, and one a round; hidden but on rank 0.
    bar: ProgressBar,
}

/// Runs all cases as one rank; rank 0 shows what they gave.
pub fn run(
    wanted: &OnGpus<'_>,
    mut output: Option<Output>,
    interrupt: Interrupt,
) -> Result<(), Failure> {
    let place = group::Launch::from_env()?;
    let (group, gpu) = Gpu::join(&GroupOptions::default().shared_devices(true))?;
    let takes_part = |all: &[Contender]| all.iter().any(|who| wanted.contenders.contains(who));
    let cublaslt = match takes_part(&[Contender::Cublaslt, Contender::NcclCublaslt]) {
        true => Some(Cublaslt::open(&gpu)?),
        false => None,
    };
    let nccl = match takes_part(&[Contender::Nccl, Contender::NcclCublaslt]) {
        true => {
            let nccl = Nccl::load(packaged_nccl().as_deref())?;
            // As others use it: the quicker way.
            Some(Rc::new(Communicator::join_without_limits(&nccl, &group, &gpu.device)?))
        }
        false => None,
    };
    let peer = match &wanted.args.peer {
        Some(command) => {
            Some(RefCell::new(Peer::start(command, &place, &group, Limits::default())?))
        }
        None => None,
    };
    let machine = Machine::of_gpus(&gpu, cublaslt.as_deref())?;
    let (watch, l2_bytes) = (Watch::new(&gpu)?, machine.l2_bytes);
    if output.is_some() && takes_part(&[Contender::Auto]) {
        // Tables that are not used, and why.
        Tuning::found().notes().iter().for_each(|note| eprintln!("{note}"));
    }
    let bar = match &output {
        Some(output) => progress::bar(bar_steps(wanted), "steps", output),
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
        ..Run::begin(machine, bench.group.ranks(), STEPS, wanted.args.common.rounds())
    };
    let outcome = told(&bench.group, bench.run_all(&mut run, output.as_mut()));
    bench.bar.finish_and_clear();
    match output {
        Some(output) => run.end(output, outcome),
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
fn bar_steps(wanted: &OnGpus<'_>) -> u64 {
    let planned = wanted.contenders.len() * wanted.args.launch.len();
    (wanted.cases.len() * (planned + wanted.args.common.rounds())) as u64
}

impl Bench<'_> {
    /// Runs all cases, and adds each to the run; where they are shown, each as soon as it is there.
    fn run_all(&self, run: &mut Run, mut output: Option<&mut Output>) -> Result<(), Failure> {
        let mut pools = Pools::new(self.wanted.args.common.seed);
        for case in &self.wanted.cases {
            run.cases.push(self.run(case, &mut pools)?);
            if let Some(output) = &mut output {
                run.keep(output)?;
            }
        }
        Ok(self.group.barrier("the end of the bench", LIMIT)?)
    }

    fn run(&self, case: &Case, pools: &mut Pools) -> Result<CaseReport, Failure> {
        let (gpu, group, seed) = (self.gpu, &self.group, self.wanted.args.common.seed);
        let OnGpus { args, operation, is_mlp, contenders, .. } = *self.wanted;
        let problem = spread(&case.problem, group.ranks())?;
        let before = is_mlp.then(|| gate_and_up(&problem)).transpose()?;
        let layers = || {
            let before = before.iter().map(|before| (Operation::AllGatherGemm, before));
            before.chain([(operation, &problem)])
        };
        let rank = group.rank();
        let inputs = layers()
            .map(|(of, problem)| pools.inputs(whose_inputs(of, rank), gpu, problem, self.l2_bytes))
            .collect::<Result<Vec<_>>>()?;
        let sets = common_sets(group, &inputs)?;
        let pools = &*pools;
        let totals = layers()
            .map(|(of, problem)| room_for_totals(gpu, of, problem, rank, sets))
            .collect::<Result<Vec<_>>>()?;
        let steps =
            layers().zip(&inputs).zip(&totals).map(|(((operation, problem), inputs), totals)| {
                let checks = Checks::new(pools, operation, problem, inputs, (rank, sets), seed);
                let place = Place { gpu, group, problem, inputs, set: checks.set() };
                (checks, Summing { place, operation, totals })
            });
        let steps: Vec<_> = steps.collect();
        let mut entrants: Vec<Entrant<'_>> = Vec::new();
        for &who in contenders {
            for &launch in &args.launch {
                self.interrupt.check()?;
                let planned = steps.iter().map(|(_, summing)| self.plan(who, *summing));
                let mut planned = planned.collect::<Result<Vec<_>>>()?;
                self.bar.inc(1);
                let mut failed = None;
                for ((checks, summing), planned) in steps.iter().zip(&mut planned) {
                    if planned.kind != Kind::AllGather {
                        let checked = checks.run(*summing, planned)?;
                        planned.step.check()?;
                        failed = failed.or(wrong_anywhere(group, checked.err())?);
                    }
                }
                let Some(planned) = planned.into_iter().reduce(Planned::then) else { continue };
                // Ranks have agreed on plans, so they find the same.
                let is_so = |other: &&mut Entrant<'_>| {
                    planned.identity.is_some()
                        && other.row.graph == (launch == Launch::Graph)
                        && other.identity == planned.identity
                };
                if let Some(other) = entrants.iter_mut().find(is_so).filter(|_| failed.is_none()) {
                    other.twins.push((who, planned.what));
                    continue;
                }
                let mut new = Entrant::new(&who.name(), launch, planned);
                new.row.failed = failed;
                entrants.push(new);
            }
        }
        if let Some(peer) = &self.peer {
            self.invite(peer, &problem, &mut entrants)?;
        }
        let track = Track { gpu, group, watch: &self.watch, sets };
        self.rounds(&problem, &mut entrants, &track)?;
        let rows = entrants.into_iter().flat_map(Entrant::into_rows).collect();
        let name = match &before {
            Some(first) => format!("{}×{}×{}, then {case}", first.m(), first.n(), first.k()),
            None => case.to_string(),
        };
        Ok(CaseReport { name, rows, problem, before })
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
            for launch in &self.wanted.args.launch {
                let graph = *launch == Launch::Graph;
                if graph && !told.graph {
                    continue;
                }
                let kind = if told.kind == "gemm" { Kind::Gemm } else { whole };
                let row = Row::new(&told.name, kind, graph, "the peer's".into());
                entrants.push(Entrant::of_peer(Row { failed: told.failed.clone(), ..row }, peer));
            }
        }
        Ok(())
    }

    /// All loops, in turns that are the same on every rank. A contender that is wrong, or hangs, does not run.
    fn rounds(
        &self,
        problem: &Problem,
        entrants: &mut [Entrant<'_>],
        track: &Track<'_>,
    ) -> Result<(), Failure> {
        let mut entrants: Vec<_> =
            entrants.iter_mut().filter(|entrant| entrant.row.failed.is_none()).collect();
        let mut times = Vec::new();
        for entrant in &mut entrants {
            entrant.capture(track)?;
            times.push(entrant.time(track, ONE_GRAPH)?.unwrap_or(f64::INFINITY));
        }
        let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
        // Long enough for the fastest; the same for all.
        let wanted = |ms: f64| {
            let steps = (1e3 * ms / fastest.max(1.0)).ceil() as usize;
            steps.max(STEPS).div_ceil(GRAPH_STEPS)
        };
        let common = &self.wanted.args.common;
        let loops = common.loop_times();
        let graphs = Graphs { warm: wanted(loops.warm_ms), timed: wanted(loops.timed_ms) };
        // Each has its share; a peer goes by its timed steps, before which it takes as many untimed ones.
        let shares = times.iter().filter(|us| us.is_finite()).count().max(1);
        let half_us = 0.5e3 * UNTIMED_MS / shares as f64;
        for (entrant, us) in entrants.iter_mut().zip(times) {
            let half = (half_us / (us.max(1.0) * GRAPH_STEPS as f64)).ceil() as usize;
            entrant.time(track, Graphs { warm: half, timed: half })?;
        }
        for round in 0..common.rounds() {
            self.interrupt.check()?;
            for nth in turn(problem, round, entrants.len()) {
                let Some(time) = entrants[nth].time(track, graphs)? else { continue };
                entrants[nth].row.rounds_us.push(time);
                entrants[nth].time_host(track)?;
            }
            self.bar.inc(1);
        }
        Ok(())
    }
}
