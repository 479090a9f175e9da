//! One problem on one rank: its candidates are planned, checked and timed, heat by heat.
//!
//! Invariant: all ranks do the same in the same order, and no candidate is timed with a wrong result on any rank.

use std::time::Duration;

use overlap_gemm::cuda::{AllGatherGemm, Choice, GatherOptions, GemmOptions, kernels, ranked};
use overlap_gemm::plan::{Engine, Problem, Strategy};
use overlap_gemm::tune::{Multiplying, Shape, Tuning, ways};
use overlap_gemm::{Error, Result};

use super::super::course::{REFUSED, Stopped};
use super::super::search::{Candidate, Heat, Known, Outcome, Track, WAYS_TO_LAUNCH};
use super::Tuner;
use crate::bench::gpu::check::Check;
use crate::bench::gpu::inputs::Inputs;
use crate::bench::gpu::ranks::contenders::{Gathered, Place, Step};
use crate::bench::gpu::ranks::entrant::{self, Entrant, Graphs, ONE_GRAPH};
use crate::bench::gpu::ranks::loops::GRAPH_STEPS;
use crate::bench::turns::turn;
use crate::exit::Failure;

/// One problem on this rank.
pub(super) struct Here<'a> {
    pub(super) tuner: &'a Tuner<'a>,
    pub(super) problem: &'a Problem,
    pub(super) inputs: &'a Inputs,
    pub(super) check: Check<'a>,
    pub(super) sets: usize,
    pub(super) stopped: Option<Stopped>,
}

impl<'a> Here<'a> {
    fn place(&self) -> Place<'a> {
        let Here { tuner, problem, inputs, .. } = self;
        Place { gpu: tuner.gpu, group: &tuner.group, problem, inputs, set: self.check.set }
    }

    fn plan(
        &self,
        strategy: Option<Strategy>,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<AllGatherGemm> {
        let Tuner { gpu, group, .. } = self.tuner;
        let problems = std::slice::from_ref(self.problem);
        let none = Tuning::none();
        AllGatherGemm::plan_tuned(group, &gpu.device, problems, strategy, gather, gemm, &none)
    }

    /// What is chosen without a table, and what else the cost model thinks of.
    pub(super) fn known(&self) -> Result<Known> {
        let (problem, gemm) = (self.problem, gemm_options());
        let layer = self.plan(None, &GatherOptions::default(), &gemm)?;
        let way = layer.way();
        if way.engine == Engine::Nccl {
            return Err(Error::Unsupported {
                what: format!("tuning with {}", way.engine),
                why: "these GPUs do not reach each other's memory, and there is one way only"
                    .into(),
                remedy: "tune on GPUs that NVLink connects",
            });
        }
        let sms = self.tuner.gpu.device.info().sm_count;
        let all = kernels()?;
        let of = |choice: Choice| Multiplying::of(&all[choice.kernel], choice);
        let list = |part: &Problem| -> Result<Vec<Multiplying>> {
            let ranked = ranked(all, part, &gemm, sms)?;
            Ok(ranked.into_iter().map(|(choice, _)| of(choice)).collect())
        };
        let most_rows = problem.shards().most_rows();
        let chosen = of(layer.choice());
        let (whole, of_rank) = (list(problem)?, list(&problem.of_largest_shard()?)?);
        let by_model = if way.strategy == Strategy::Pipelined { &of_rank } else { &whole }.first();
        Ok(Known {
            untuned: Candidate {
                way,
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
        let strategy = Some(candidate.way.strategy);
        let group = &self.tuner.group;
        let mut entrants = Vec::new();
        for &launch in self.tuner.launches {
            let layer = match self.plan(strategy, &gather, &gemm) {
                Ok(layer) => layer,
                // Refused on all ranks; else the group is over, and so is everything.
                Err(error) if group.check().is_ok() => return Ok(Err(format!("{REFUSED}{error}"))),
                Err(error) => return Err(error),
            };
            let mut step = Gathered::of(self.place(), layer)?;
            let enqueue = |set| step.enqueue(set);
            let checked = self.check.run(self.tuner.gpu, self.inputs, enqueue)?;
            step.check()?;
            if let Some(why) = entrant::wrong_anywhere(group, checked.err())? {
                return Ok(Err(why));
            }
            entrants.push(Entrant::new("", launch, step.into_step()));
        }
        Ok(Ok(entrants))
    }

    /// The loops of all candidates, interleaved. `false`: it is time to stop.
    fn rounds(&mut self, runners: &mut [Entrant<'a>], heat: Heat) -> Result<bool> {
        let Tuner { gpu, group, watch, .. } = self.tuner;
        let track = entrant::Track { gpu, group, watch, sets: self.sets };
        for runner in runners.iter_mut() {
            runner.capture(&track)?;
            // Twice: the first loop finds cold clocks.
            runner.time(&track, ONE_GRAPH)?;
            let first = runner.time(&track, ONE_GRAPH)?;
            runner.row.rounds_us.extend(first);
        }
        let fastest = |graph: bool, runners: &[Entrant<'_>]| {
            let alike = runners.iter().filter(|runner| runner.row.graph == graph);
            alike.map(|runner| runner.row.rounds_us[0]).fold(f64::INFINITY, f64::min)
        };
        let least = [true, false].map(|graph| fastest(graph, runners));
        let goes_on = |runner: &Entrant<'_>| {
            let least = if runner.row.graph { least[0] } else { least[1] };
            runner.row.rounds_us[0] <= heat.give_up * least
        };
        let mut going: Vec<_> = runners.iter_mut().filter(|runner| goes_on(runner)).collect();
        // One loop to get warm; then what was only a first look does not count.
        going.iter_mut().for_each(|runner| runner.row.rounds_us.clear());
        let us = least[0].min(least[1]).max(1.0);
        let graphs = ((1e3 * heat.loop_ms / us).ceil() as usize).div_ceil(GRAPH_STEPS).max(1);
        for round in 0..heat.rounds {
            self.stopped = self.tuner.stops(Duration::ZERO)?;
            if self.stopped.is_some() {
                return Ok(false);
            }
            for nth in turn(round, going.len()) {
                let time = going[nth].time(&track, Graphs { warm: graphs, timed: graphs })?;
                going[nth].row.rounds_us.extend(time);
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
        // The candidate of each loop; some candidates have none.
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
            times[nth][usize::from(!runner.row.graph)] = runner.row.rounds_us;
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
    let Candidate { way, multiplying, .. } = candidate;
    let gather = GatherOptions::default().with_engine(way.engine).with_pieces(way.pieces);
    let gemm = gemm_options()
        .with_kernel(&multiplying.kernel)
        .with_swizzle(multiplying.swizzle)
        .with_splits(multiplying.splits);
    (gather, gemm)
}
