//! The course of one case: all contenders are checked, the slow ones drop out, the rest run interleaved.
//!
//! Invariant: what is compared was timed in the same rounds, in loops of the same length, on the same
//! matrices. Who cannot take part says why, and the others go on; what breaks the GPU's context ends
//! the bench.

use std::rc::Rc;
use std::time::Duration;

use overlap_gemm::cuda::GemmOptions;
use overlap_gemm::plan::Problem;
use overlap_gemm::{Error, Result};

use super::super::cases::Case;
use super::super::report::{CaseReport, Kind, Power, Row};
use super::super::turns::turn;
use super::super::wanted::{Launch, LoopTimes, Multiplier, Products};
use super::check::Check;
use super::cublaslt::{Cublaslt, Suggested};
use super::driver::Gpu;
use super::inputs::{Inputs, Pools};
use super::own::{self, Own, OwnSet};
use super::power::Meter;
use super::timing::{Length, Loop, Product, Watch, estimate_ms};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::statistics::median;

/// Rounds of the first heat, and its longest loops.
const HEAT_ROUNDS: usize = 3;
const HEAT_MS: f64 = 6.0;

/// How long the GPU works before the rounds, so that its clocks are those of steady work.
const WARM_UP_MS: f64 = 200.0;

/// What all cases share.
pub struct Bench<'a> {
    pub gpu: &'a Gpu,
    pub wanted: &'a Products,
    pub cublaslt: Option<Rc<Cublaslt>>,
    pub l2_bytes: u64,
    pub watch: Watch,
    pub meter: Meter,
    pub interrupt: Interrupt,
}

/// Somebody who can be timed.
struct Entrant {
    who: Multiplier,
    what: String,
    product: Box<dyn Product>,
}

/// What the rounds of a contender gave.
#[derive(Clone, Default)]
struct Timed {
    rounds_us: Vec<f64>,
    power: Vec<Power>,
}

/// One case, while it runs.
struct Course<'a> {
    bench: &'a Bench<'a>,
    problem: &'a Problem,
    inputs: &'a Inputs,
    check: &'a Check<'a>,
    entrants: Vec<Entrant>,
    /// Those without times.
    others: Vec<(Multiplier, Row)>,
}

impl Bench<'_> {
    /// Runs one case: its report, and how many products a loop had.
    pub fn run(&self, case: &Case, pools: &mut Pools) -> Result<(CaseReport, usize), Failure> {
        let (gpu, wanted, problem) = (self.gpu, self.wanted, &case.problem);
        let inputs = pools.inputs(gpu, problem, self.l2_bytes)?;
        let check = Check::new(pools, problem, &inputs, wanted.fast_accumulation, wanted.seed);
        let mut course = Course {
            bench: self,
            problem,
            inputs: &inputs,
            check: &check,
            entrants: vec![],
            others: vec![],
        };
        let takes_part = |who| wanted.contenders.contains(&who);
        // Products that wait run with the kernel of the one that does not, so that one is needed too.
        let chosen = match takes_part(Multiplier::Own) || takes_part(Multiplier::OwnSet) {
            true => course.own()?,
            false => None,
        };
        if takes_part(Multiplier::OwnSet)
            && let Some(options) = &chosen
        {
            course.own_set(options)?;
        }
        if let Some(library) = &self.cublaslt {
            course.cublaslt(library)?;
        }
        let length = course.rounds_length()?;
        let mut rows = course.rounds(length)?;
        rows.append(&mut course.others);
        // A stable sort: the variants of a kind stay as they are, the fastest first.
        rows.sort_by_key(|(who, _)| *who);
        rows.retain(|(who, _)| takes_part(*who));
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        let report = CaseReport { name: case.to_string(), problem: problem.clone(), rows };
        Ok((report, length.products()))
    }
}

impl Course<'_> {
    /// Plans, checks and thins out own variants. The options of the one there is, if it is one.
    fn own(&mut self) -> Result<Option<GemmOptions>, Failure> {
        let Bench { gpu, wanted, .. } = *self.bench;
        let sm_count = gpu.device.info().sm_count;
        let variants = match own::variants(wanted, self.problem, sm_count) {
            Ok(variants) => variants,
            Err(error) => return self.absent(Multiplier::Own, error).map(|()| None),
        };
        let alone = variants.len() == 1;
        let mut entrants = Vec::new();
        let mut chosen = None;
        for options in &variants {
            self.bench.interrupt.check()?;
            let planned = match Own::plan(gpu, self.problem, options) {
                Ok(planned) => planned,
                Err(error) if alone => return self.absent(Multiplier::Own, error).map(|()| None),
                Err(error) => {
                    let why = refusal(error)?.to_string();
                    self.leave_out(Multiplier::Own, own::describe(options), why);
                    continue;
                }
            };
            let options = planned.chosen();
            let what = own::describe(&options);
            if let Some(entrant) = self.admit(Multiplier::Own, what, Box::new(planned))? {
                entrants.push(entrant);
                chosen = alone.then_some(options);
            }
        }
        let kept = self.heat(entrants, wanted.keep)?;
        self.entrants.extend(kept);
        Ok(chosen)
    }

    fn own_set(&mut self, options: &GemmOptions) -> Result<(), Failure> {
        let planned = own::chunks(self.problem, self.bench.wanted.chunks)
            .and_then(|(problem, chunks)| OwnSet::plan(self.bench.gpu, &problem, &chunks, options));
        match planned {
            Ok(planned) => {
                let what = own::describe(options);
                let entrant = self.admit(Multiplier::OwnSet, what, Box::new(planned))?;
                self.entrants.extend(entrant);
                Ok(())
            }
            Err(error) => self.absent(Multiplier::OwnSet, error),
        }
    }

    /// Keeps the fastest of cuBLASLt's suggestions.
    fn cublaslt(&mut self, library: &Rc<Cublaslt>) -> Result<(), Failure> {
        let Products { suggestions, fast_accumulation, .. } = *self.bench.wanted;
        let (problem, inputs) = (self.problem, self.inputs);
        let all = match Suggested::all(library, problem, inputs, fast_accumulation, suggestions) {
            Ok(all) => all,
            Err(error) => return self.absent(Multiplier::Cublaslt, error),
        };
        let mut entrants = Vec::new();
        for suggested in all {
            let what = suggested.describe();
            // A suggestion that the library itself then refuses is no contender.
            if suggested.enqueue(self.bench.gpu, inputs, 0).is_ok() {
                let product = Box::new(suggested);
                entrants.push(Entrant { who: Multiplier::Cublaslt, what, product });
            }
        }
        self.bench.gpu.synchronize()?;
        let known = self.others.len();
        let mut kept = self.heat(entrants, 1)?;
        self.others.truncate(known);
        if let Some(Entrant { who, what, product, .. }) = kept.pop() {
            let entrant = self.admit(who, what, product)?;
            self.entrants.extend(entrant);
        }
        Ok(())
    }

    /// Checks the product, and so loads what its first use loads; `None` if its result is wrong.
    fn admit(
        &mut self,
        who: Multiplier,
        what: String,
        product: Box<dyn Product>,
    ) -> Result<Option<Entrant>, Failure> {
        let Bench { gpu, wanted, .. } = *self.bench;
        let enqueue = |set| product.enqueue(gpu, self.inputs, set);
        if !wanted.check {
            enqueue(0)?;
            gpu.synchronize()?;
            return Ok(Some(Entrant { who, what, product }));
        }
        match self.check.run(gpu, self.inputs, enqueue)? {
            Ok(()) => Ok(Some(Entrant { who, what, product })),
            Err(why) => {
                let failed = Row { failed: Some(why), ..self.row(who, what) };
                self.others.push((who, failed));
                Ok(None)
            }
        }
    }

    /// A short run of all, of which the `keep` fastest go on; the fastest first.
    fn heat(&mut self, entrants: Vec<Entrant>, keep: usize) -> Result<Vec<Entrant>, Failure> {
        if entrants.len() < 2 {
            return Ok(entrants);
        }
        let Bench { gpu, wanted, watch, .. } = self.bench;
        let heat_ms = HEAT_MS.min(wanted.loops.timed_ms);
        let short = LoopTimes { warm_ms: heat_ms, timed_ms: heat_ms };
        let length = self.length(&entrants, short)?;
        let times = self.timed(
            &entrants,
            length,
            HEAT_ROUNDS,
            |entrant| Loop::new(gpu, entrant.product.as_ref(), self.inputs, length, wanted.launch),
            watch,
        )?;
        let mut ranked: Vec<(f64, Entrant)> = times
            .iter()
            .map(|timed| median(&timed.rounds_us).unwrap_or(f64::INFINITY))
            .zip(entrants)
            .collect();
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        let slower = ranked.split_off(keep.min(ranked.len()));
        for (time, Entrant { who, what, .. }) in slower {
            self.leave_out(who, what, format!("slower in the first heat, some {time:.1} µs"));
        }
        Ok(ranked.into_iter().map(|(_, entrant)| entrant).collect())
    }

    /// How long a loop is that nobody ends before `times`.
    fn length(&self, entrants: &[Entrant], times: LoopTimes) -> Result<Length> {
        let Bench { gpu, watch, .. } = self.bench;
        let mut fastest = f64::INFINITY;
        for entrant in entrants {
            let ms = estimate_ms(gpu, entrant.product.as_ref(), self.inputs, watch)?;
            fastest = fastest.min(ms);
        }
        Ok(Length::new(fastest, self.inputs.sets.len(), times))
    }

    fn rounds_length(&self) -> Result<Length> {
        self.length(&self.entrants, self.bench.wanted.loops)
    }

    /// The rounds: the times of all contenders, interleaved; the fastest first.
    fn rounds(&mut self, length: Length) -> Result<Vec<(Multiplier, Row)>, Failure> {
        let Bench { gpu, wanted, watch, .. } = self.bench;
        let times = self.timed(
            &self.entrants,
            length,
            wanted.rounds,
            |entrant| Loop::new(gpu, entrant.product.as_ref(), self.inputs, length, wanted.launch),
            watch,
        )?;
        let row = |(Entrant { who, what, .. }, timed): (&Entrant, Timed)| {
            let Timed { rounds_us, power } = timed;
            (*who, Row { rounds_us, power, ..self.row(*who, what.clone()) })
        };
        let mut rows: Vec<_> = self.entrants.iter().zip(times).map(row).collect();
        rows.sort_by(|(_, one), (_, other)| {
            let time = |row: &Row| median(&row.rounds_us).unwrap_or(f64::INFINITY);
            time(one).total_cmp(&time(other))
        });
        Ok(rows)
    }

    /// Times everyone's loop in every round, and measures its power.
    fn timed<'l>(
        &self,
        entrants: &'l [Entrant],
        length: Length,
        rounds: usize,
        prepare: impl Fn(&'l Entrant) -> Result<Loop<'l>>,
        watch: &Watch,
    ) -> Result<Vec<Timed>, Failure> {
        let gpu = self.bench.gpu;
        let loops = entrants.iter().map(prepare).collect::<Result<Vec<_>>>()?;
        let mut warm_ms = 0.0;
        while let Some(first) = loops.first().filter(|_| warm_ms < WARM_UP_MS) {
            warm_ms += (1e-3 * first.time(gpu, watch)? * length.products() as f64).max(1.0);
        }
        let mut measured = vec![Timed::default(); loops.len()];
        for round in 0..rounds {
            self.bench.interrupt.check()?;
            for nth in turn(round, loops.len()) {
                let mut us = 0.0;
                let (_, power) = self.bench.meter.around(|| -> Result<Duration> {
                    us = loops[nth].time(gpu, watch)?;
                    Ok(Duration::from_secs_f64(1e-6 * us * length.products() as f64))
                })?;
                measured[nth].rounds_us.push(us);
                measured[nth].power.extend(power);
            }
        }
        Ok(measured)
    }

    /// Notes an absent contender, if the error is about that; other errors end the bench.
    fn absent(&mut self, who: Multiplier, error: Error) -> Result<(), Failure> {
        let why = refusal(error)?.to_string();
        self.leave_out(who, "–".into(), why);
        Ok(())
    }

    fn leave_out(&mut self, who: Multiplier, what: String, why: String) {
        let row = Row { absent: Some(why), ..self.row(who, what) };
        self.others.push((who, row));
    }

    fn row(&self, who: Multiplier, what: String) -> Row {
        let kind = match who {
            Multiplier::Own | Multiplier::Cublaslt => Kind::Gemm,
            Multiplier::OwnSet => Kind::GemmAllSignalled,
        };
        Row::new(who.name(), kind, self.bench.wanted.launch == Launch::Graph, what)
    }
}

/// The error back if it says that something cannot be done, rather than that something broke.
fn refusal(error: Error) -> Result<Error> {
    match error {
        Error::OutOfRange { .. }
        | Error::Mismatch { .. }
        | Error::Misaligned { .. }
        | Error::Unsupported { .. } => Ok(error),
        broken => Err(broken),
    }
}
