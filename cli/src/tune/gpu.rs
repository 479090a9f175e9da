//! Measuring for a table, as one rank of several.
//!
//! What belongs here: the problems one after the other, and one heat of the [`search`]; the bench has the
//! contenders, the loops and the checks. Invariant: all ranks do the same in the same order. An event on one rank (a wrong
//! result, a refusal, Ctrl-C) reaches all ranks before any rank acts on it. No candidate is timed with a wrong result on any
//! rank.

use std::path::Path;
use std::slice;
use std::sync::Arc;

use overlap_gemm::cuda::device::driver_name;
use overlap_gemm::cuda::{
    AllGatherGemm, CollectiveOptions, GemmAllReduce, GemmOptions, GemmReduceScatter, kernels,
};
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::kernels::Kernel;
use overlap_gemm::plan::{Engine, Operation, Problem, Reduction};
use overlap_gemm::tune::{
    Asked, Candidate as Predicted, Entry, Family, Fits, Multiplying, Shape, Times, Tuning,
    candidates, record,
};
use overlap_gemm::{Error, Result};

use super::SEED;
use super::results::{Failed, Results, Tuned};
use super::search::{self, Candidate, Heat, Tried, search};
use crate::bench::cases::{Case, spread};
use crate::bench::gpu::driver::Gpu;
use crate::bench::gpu::inputs::Pools;
use crate::bench::gpu::ranks::checks::{Checks, room_for_totals, whose_inputs};
use crate::bench::gpu::ranks::contenders::{Place, Summing, plan_whole};
use crate::bench::gpu::ranks::entrant::{Entrant, Graphs, ONE_GRAPH, Track, wrong_anywhere};
use crate::bench::gpu::ranks::exchange::common_sets;
use crate::bench::gpu::ranks::loops::{GRAPH_STEPS, LIMIT};
use crate::bench::gpu::ranks::told;
use crate::bench::gpu::timing::Watch;
use crate::bench::report::command;
use crate::bench::turns::turn;
use crate::bench::wanted::Launch;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress;
use crate::statistics::median;

const LAUNCHES: [Launch; 2] = [Launch::Graph, Launch::Plain];

/// What all problems share.
struct Tuner<'a> {
    gpu: &'a Gpu,
    group: Arc<Group>,
    operation: Operation,
    watch: Watch,
    file: &'a Path,
    interrupt: Interrupt,
}

/// Measures all problems as one rank; rank 0 keeps and shows what came out.
pub fn run(
    operation: Operation,
    cases: &[Case],
    file: &Path,
    output: Option<Output>,
    interrupt: Interrupt,
) -> Result<(), Failure> {
    // Ranks that share a GPU would find what is true of no machine: these options refuse that.
    let (group, gpu) = Gpu::join(&GroupOptions::default())?;
    let watch = Watch::new(&gpu)?;
    let tuner = Tuner { gpu: &gpu, group, operation, watch, file, interrupt };
    let bar = output.as_ref().map(|output| progress::bar(cases.len() as u64, "problems", output));
    let mut results = Results {
        command: command(),
        version: env!("CARGO_PKG_VERSION"),
        machine: format!(
            "{} × {}, driver {}",
            tuner.group.ranks(),
            gpu.device.info().name,
            driver_name()?
        ),
        operation,
        file: file.display().to_string(),
        measured: Vec::new(),
        failed: Vec::new(),
        interrupted: false,
    };
    let measured = tuner.run(cases, &mut results, || bar.iter().for_each(|bar| bar.inc(1)));
    bar.iter().for_each(|bar| bar.finish_and_clear());
    told(&tuner.group, measured)?;
    tuner.group.barrier("the end of tuning", LIMIT)?;
    if let Some(output) = output {
        output.write(&results, |stdout| write!(stdout, "{results}"))?;
    }
    if results.interrupted {
        return Err(Failure::Interrupted);
    }
    let wrong = results.failed.iter().find(|failed| failed.wrong);
    wrong.map_or(Ok(()), |failed| Err(Failure::CheckFailed(failed.to_string())))
}

impl Tuner<'_> {
    fn run(
        &self,
        cases: &[Case],
        results: &mut Results,
        mut done: impl FnMut(),
    ) -> Result<(), Failure> {
        if self.group.rank() == 0 {
            // Written before anything is measured, so that nothing is lost to a path that cannot be.
            record(self.file, &[])?;
        }
        let mut pools = Pools::new(SEED);
        let Tuner { gpu, ref group, operation, .. } = *self;
        let (rank, l2_bytes) = (group.rank(), gpu.l2_bytes()?);
        for case in cases {
            let problem = spread(&case.problem, group.ranks())?;
            let inputs = pools.inputs(whose_inputs(operation, rank), gpu, &problem, l2_bytes)?;
            // As the bench does: they take turns, and the last one's A is gathered.
            let sets = common_sets(group, slice::from_ref(&inputs))?;
            let totals = room_for_totals(gpu, operation, &problem, rank, sets)?;
            let checks = Checks::new(&pools, operation, &problem, &inputs, (rank, sets), SEED);
            let set = checks.set();
            let place = Place { gpu, group, problem: &problem, inputs: &inputs, set };
            let mut here = Here {
                tuner: self,
                name: case.to_string(),
                case: Summing { place, operation, totals: &totals },
                checks,
                sets,
                failed: &mut results.failed,
            };
            let candidates = here.candidates()?;
            let found = search(candidates, |candidates, heat| here.heat(candidates, heat))?;
            let Some(tried) = found else {
                results.interrupted = true;
                break;
            };
            if let Some(best) = tried.first() {
                let entry = self.entry(&problem, best)?;
                if self.group.rank() == 0 {
                    record(self.file, slice::from_ref(&entry))?;
                }
                results.measured.push(Tuned { problem: case.to_string(), entry, tried });
            }
            done();
        }
        Ok(())
    }

    fn entry(&self, problem: &Problem, best: &Tried) -> Result<Entry> {
        // To the nanosecond.
        let us = |us: f64| Some((us * 1e3).round() / 1e3);
        let info = self.gpu.device.info();
        Ok(Entry {
            family: Family::of(self.operation, problem, &info.name),
            shape: Shape::of(problem),
            sms: info.sm_count,
            driver: driver_name()?,
            crate_version: env!("CARGO_PKG_VERSION").into(),
            way: best.candidate.way,
            multiplying: best.candidate.multiplying.clone(),
            us: Times { graph: us(best.graph), plain: us(best.plain) },
        })
    }

    /// Whether any rank was interrupted, at the same place on all.
    fn stops(&self) -> Result<bool> {
        let own = [u8::from(self.interrupt.check().is_err())];
        let all = self.group.all_gather("whether to go on", &own, LIMIT)?;
        Ok(all.iter().any(|part| part.as_slice() == [1]))
    }
}

/// One problem on this rank.
struct Here<'a> {
    tuner: &'a Tuner<'a>,
    name: String,
    case: Summing<'a>,
    checks: Checks<'a>,
    sets: usize,
    failed: &'a mut Vec<Failed>,
}

/// The kernels of this binary, with the default options.
struct Compiled(&'static [Kernel]);

impl Fits for Compiled {
    fn kernels(&self) -> &[Kernel] {
        self.0
    }
}

impl<'a> Here<'a> {
    /// The plan without a table, and each way with its best kernels, by prediction.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let Summing { place: Place { gpu, problem, .. }, operation, .. } = self.case;
        let (info, partials) = (gpu.device.info(), Reduction::default().partials);
        let asked = Asked { gpu: &info.name, sms: info.sm_count, operation, problem, partials };
        let predicted = candidates(&asked, &Compiled(kernels()?));
        Ok(search::candidates(self.untuned(&predicted)?, predicted))
    }

    /// The plan without a table.
    fn untuned(&self, predicted: &[Predicted]) -> Result<Candidate> {
        let Summing { place: Place { gpu, group, problem, .. }, operation, .. } = self.case;
        let (products, device) = ([(problem.clone(), gemm_options())], &gpu.device);
        let (options, sum) = (CollectiveOptions::default(), Reduction::default());
        let none = &Tuning::none();
        let (way, kernel) = match operation {
            Operation::GemmReduceScatter => {
                let plan = GemmReduceScatter::plan_tuned;
                (plan(group, device, &products, &options, sum, none)?.way(), None)
            }
            Operation::GemmAllReduce => {
                let plan = GemmAllReduce::plan_tuned;
                (plan(group, device, &products, &options, sum, none)?.way(), None)
            }
            _ => {
                let layer = AllGatherGemm::plan_tuned(group, device, &products, &options, none)?;
                let (kernel, choice) = (layer.kernel(), layer.choice());
                let multiplying = Multiplying::of(kernel, choice.swizzle, choice.splits);
                (layer.way(), Some(multiplying))
            }
        };
        if way.engine == Engine::Nccl {
            return Err(Error::Unsupported {
                what: format!("tuning with {}", way.engine),
                why: "these GPUs do not reach each other's memory, and there is one way only"
                    .into(),
                remedy: "tune on GPUs that NVLink connects",
            });
        }
        // A reduction has the kernel that the first prediction for its way is made with.
        let unpredicted = || Error::Unsupported {
            what: format!("tuning {operation} of {problem}"),
            why: "no prediction holds for it".into(),
            remedy: "leave this problem out",
        };
        let of_way = || predicted.iter().find(|one| one.way == way).ok_or_else(unpredicted);
        let multiplying = match kernel {
            Some(_) => kernel,
            None => of_way()?.multiplying.clone(),
        };
        Ok(Candidate { way, multiplying, untuned: true })
    }

    /// Plans, checks and times the candidates, interleaved. `None`: interrupted.
    fn heat(&mut self, candidates: Vec<Candidate>, heat: Heat) -> Result<Option<Vec<Tried>>> {
        let (mut runners, mut entered) = (Vec::new(), Vec::new());
        for candidate in candidates {
            if self.tuner.stops()? {
                return Ok(None);
            }
            if let Some(new) = self.enter(&candidate)? {
                runners.extend(new);
                entered.push(candidate);
            }
        }
        if !self.rounds(&mut runners, heat)? {
            return Ok(None);
        }
        let time = |runner: &Entrant<'_>| median(&runner.row.rounds_us).unwrap_or(f64::INFINITY);
        let pairs = entered.into_iter().zip(runners.chunks(LAUNCHES.len()));
        let tried = pairs.map(|(candidate, of_it)| {
            let [graph, plain] = [time(&of_it[0]), time(&of_it[1])];
            Tried { candidate, graph, plain }
        });
        Ok(Some(tried.collect()))
    }

    /// Plans one candidate for each launch mode, and checks its results; `None` if it is refused or wrong.
    fn enter(&mut self, candidate: &Candidate) -> Result<Option<Vec<Entrant<'a>>>> {
        let (case, group) = (self.case, self.case.place.group);
        let Candidate { way, multiplying, .. } = candidate;
        let options = CollectiveOptions::default()
            .with_strategy(way.strategy)
            .with_engine(way.engine)
            .with_pieces(way.pieces);
        let gemm = match multiplying {
            Some(multiplying) => gemm_options()
                .with_kernel(&multiplying.kernel)
                .with_swizzle(multiplying.swizzle)
                .with_splits(multiplying.splits),
            None => gemm_options(),
        };
        let mut entrants = Vec::new();
        for launch in LAUNCHES {
            let start = match plan_whole(case, &options, &gemm) {
                Ok(start) => start,
                // Refused on all ranks; else the group is over, and so is everything.
                Err(error) if group.check().is_ok() => {
                    self.fail(candidate, false, format!("refused: {error}"));
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let mut planned = start()?.into_contender();
            let checked = self.checks.run(case, &mut planned)?;
            planned.step.check()?;
            if let Some(why) = wrong_anywhere(group, checked.err())? {
                self.fail(candidate, true, why);
                return Ok(None);
            }
            entrants.push(Entrant::new("", launch, planned));
        }
        Ok(Some(entrants))
    }

    fn fail(&mut self, candidate: &Candidate, wrong: bool, why: String) {
        let (problem, candidate) = (self.name.clone(), candidate.clone());
        self.failed.push(Failed { problem, candidate, wrong, why });
    }

    /// The loops of all candidates, interleaved. `false`: interrupted.
    fn rounds(&self, runners: &mut [Entrant<'a>], heat: Heat) -> Result<bool> {
        let Tuner { gpu, group, watch, .. } = self.tuner;
        let track = Track { gpu, group, watch, sets: self.sets };
        for runner in runners.iter_mut() {
            runner.capture(&track)?;
            // Twice: the first loop finds cold clocks.
            runner.time(&track, ONE_GRAPH)?;
            let first = runner.time(&track, ONE_GRAPH)?;
            runner.row.rounds_us.extend(first);
        }
        let least = [true, false].map(|graph| {
            let alike = runners.iter().filter(|runner| runner.row.graph == graph);
            alike.map(|runner| runner.row.rounds_us[0]).fold(f64::INFINITY, f64::min)
        });
        let goes_on = |runner: &Entrant<'_>| {
            let least = if runner.row.graph { least[0] } else { least[1] };
            runner.row.rounds_us[0] <= heat.give_up * least
        };
        let mut going: Vec<_> = runners.iter_mut().filter(|runner| goes_on(runner)).collect();
        // What was only a first look does not count.
        going.iter_mut().for_each(|runner| runner.row.rounds_us.clear());
        let us = least[0].min(least[1]).max(1.0);
        let graphs = ((1e3 * heat.loop_ms / us).ceil() as usize).div_ceil(GRAPH_STEPS).max(1);
        for round in 0..heat.rounds {
            if self.tuner.stops()? {
                return Ok(false);
            }
            for nth in turn(self.case.place.problem, round, going.len()) {
                let time = going[nth].time(&track, Graphs { warm: graphs, timed: graphs })?;
                going[nth].row.rounds_us.extend(time);
            }
        }
        Ok(true)
    }
}

/// B is written before the first step, as weights are.
fn gemm_options() -> GemmOptions {
    GemmOptions::default().with_constant_b(true)
}
