//! The contenders of a case, and their loops.
//!
//! Invariant: all timed loops of a case have the same number of steps, each behind untimed ones of the same contender; all ranks
//! begin one together.

use std::cell::RefCell;
use std::time::Instant;

use overlap_gemm::Result;
use overlap_gemm::cuda::cudarc::driver::CudaGraph;
use overlap_gemm::group::Group;
use overlap_gemm::predict::Setup;

use super::super::super::report::{CarriedOut, Row};
use super::super::super::wanted::{Contender, Launch};
use super::super::driver::{Gpu, call};
use super::super::timing::{Watch, capture};
use super::contenders::{Planned, Step};
use super::loops::{GRAPH_STEPS, LIMIT};
use super::peer::Peer;
use crate::statistics::median;

/// Steps that are enqueued in one go to see how long the host takes: few enough that the driver never waits.
const HOST_STEPS: usize = 20;
/// Bursts of that many.
const HOST_BURSTS: usize = 9;

/// A contender, launched in one way.
pub struct Entrant<'a> {
    /// What is shown of it. Its times are those of the slowest rank.
    pub row: Row,
    /// [`Planned::identity`].
    pub identity: Option<String>,
    /// Other contenders with the same identity, in words: timed once, because a difference would be noise.
    pub twins: Vec<(Contender, String)>,
    runner: Runner<'a>,
}

/// Who carries out its steps.
enum Runner<'a> {
    /// This process. The graph goes first, for what is in it has to outlive it.
    Here { graph: Option<CudaGraph>, step: Box<dyn Step + 'a> },
    /// Another program; what a step took in the loop before, in microseconds.
    Peer { peer: &'a RefCell<Peer>, before: Option<f64> },
}

/// What loops are run on.
pub struct Track<'a> {
    pub gpu: &'a Gpu,
    pub group: &'a Group,
    pub watch: &'a Watch,
    /// Matrices that take turns.
    pub sets: usize,
}

/// What is wrong on any rank, sent to all ranks: one may be wrong where the others are right, and then none waits for it.
pub fn wrong_anywhere(group: &Group, own: Option<String>) -> Result<Option<String>> {
    let own = own.unwrap_or_default();
    let all = group.all_gather("whether results are right", own.as_bytes(), LIMIT)?;
    let first = all.iter().enumerate().find(|(_, why)| !why.is_empty());
    Ok(first.map(|(rank, why)| format!("rank {rank}: {}", String::from_utf8_lossy(why))))
}

/// The length of a loop, in graphs of [`GRAPH_STEPS`] steps, or as many steps that are launched one by one.
#[derive(Clone, Copy)]
pub struct Graphs {
    /// Before those that are timed.
    pub warm: usize,
    pub timed: usize,
}

/// The shortest loop.
pub const ONE_GRAPH: Graphs = Graphs { warm: 1, timed: 1 };

impl Track<'_> {
    /// The largest of all ranks' numbers.
    fn slowest(&self, number: f64) -> Result<f64> {
        let all = self.group.all_gather("a time", &number.to_le_bytes(), LIMIT)?;
        let all = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
        Ok(all.map(f64::from_le_bytes).fold(0.0, f64::max))
    }
}

impl<'a> Entrant<'a> {
    /// One that this process carries out.
    pub fn new(name: &str, launch: Launch, planned: Planned<'a>) -> Entrant<'a> {
        let Planned { kind, what, setup, identity, step, .. } = planned;
        let plan = setup.map(|Setup { way, kernel, swizzle, splits, sms, .. }| CarriedOut {
            way,
            kernel: kernel.name,
            swizzle,
            splits,
            sms,
        });
        let row = Row { plan, ..Row::new(name, kind, launch == Launch::Graph, what) };
        Entrant { row, identity, twins: Vec::new(), runner: Runner::Here { graph: None, step } }
    }

    /// One of another program.
    pub fn of_peer(row: Row, peer: &'a RefCell<Peer>) -> Entrant<'a> {
        let row = Row { peer: true, ..row };
        let runner = Runner::Peer { peer, before: None };
        Entrant { row, identity: None, twins: Vec::new(), runner }
    }

    /// What is shown of it: no time for a wrong result.
    pub fn into_rows(mut self) -> Vec<Row> {
        if self.row.failed.is_some() {
            self.row.rounds_us.clear();
        }
        self.row.with_twins(self.twins)
    }

    /// Captures the graph, if there is to be one.
    pub fn capture(&mut self, track: &Track<'_>) -> Result<()> {
        if let (true, Runner::Here { step, graph }) = (self.row.graph, &mut self.runner) {
            let steps = || (0..GRAPH_STEPS).try_for_each(|nth| step.enqueue(nth % track.sets));
            *graph = capture(track.gpu, steps)?;
        }
        Ok(())
    }

    /// One loop: microseconds a step; none if it has failed, on all ranks alike.
    pub fn time(&mut self, track: &Track<'_>, graphs: Graphs) -> Result<Option<f64>> {
        if self.row.failed.is_some() {
            return Ok(None);
        }
        let steps = graphs.timed * GRAPH_STEPS;
        track.group.barrier("a loop", LIMIT)?;
        let us = match &mut self.runner {
            Runner::Peer { peer, before } => {
                let Row { who, graph, failed, .. } = &mut self.row;
                match peer.borrow_mut().run(track.group, who, *graph, steps, *before)? {
                    Ok(us) => *before.insert(us),
                    Err(why) => {
                        *failed = Some(why);
                        return Ok(None);
                    }
                }
            }
            Runner::Here { step, graph } => {
                let mut run = |graphs: usize| match graph {
                    Some(graph) => {
                        (0..graphs).try_for_each(|_| call("cuGraphLaunch", graph.launch()))
                    }
                    None => {
                        (0..graphs * GRAPH_STEPS).try_for_each(|nth| step.enqueue(nth % track.sets))
                    }
                };
                // Not timed: ranks fall into step, clocks and caches are those of this contender.
                run(graphs.warm)?;
                let ms = track.watch.time(track.gpu, || run(graphs.timed))?;
                track.gpu.synchronize()?;
                step.check()?;
                track.slowest(1e3 * ms / steps as f64)?
            }
        };
        Ok(Some(us))
    }

    /// Adds the host's microseconds for one enqueue among many, where it is the host that enqueues steps: the median burst's, as
    /// the first ones find cold caches.
    pub fn time_host(&mut self, track: &Track<'_>) -> Result<()> {
        let (false, Runner::Here { step, .. }) = (self.row.graph, &mut self.runner) else {
            return Ok(());
        };
        track.group.barrier("the bursts", LIMIT)?;
        let mut burst = || -> Result<f64> {
            let begin = Instant::now();
            (0..HOST_STEPS).try_for_each(|nth| step.enqueue(nth % track.sets))?;
            let us = begin.elapsed().as_secs_f64() * 1e6 / HOST_STEPS as f64;
            track.gpu.synchronize()?;
            Ok(us)
        };
        let bursts = (0..HOST_BURSTS).map(|_| burst()).collect::<Result<Vec<_>>>()?;
        step.check()?;
        let us = median(&bursts).unwrap_or(f64::NAN);
        self.row.host_us.push(track.slowest(us)?);
        Ok(())
    }
}
