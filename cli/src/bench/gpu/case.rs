//! The course of one case: everyone is checked, the many are thinned out, the few run by turns.
//!
//! Invariant: what is compared was timed in the same rounds, in loops of the same length, on the same
//! matrices. Who cannot take part says why, and the others go on; what breaks the GPU's context ends
//! the bench.

use std::rc::Rc;

use overlap_gemm::cuda::GemmOptions;
use overlap_gemm::plan::Problem;
use overlap_gemm::{Error, Result};

use super::super::cases::Case;
use super::super::gemm::{Wanted, Who};
use super::super::results::{CaseResult, Checked, Contender, Dropped, Outcome};
use super::super::statistics::{Summary, median};
use super::super::turns::turn;
use super::check::Check;
use super::cublaslt::{Cublaslt, Suggested};
use super::driver::Gpu;
use super::inputs::{Inputs, Pools};
use super::machine::Gauge;
use super::own::{self, Own, OwnSet};
use super::timing::{Length, Loop, Product, Watch, estimate_ms};
use super::trickle::Trickle;
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Rounds of the first heat, and the part of a loop's length that it has.
const HEAT_ROUNDS: usize = 3;
const HEAT_PART: f64 = 0.25;

/// How long the GPU works before the rounds, so that its clocks are those of steady work.
const WARM_UP_MS: f64 = 200.0;

/// What all cases share.
pub struct Bench<'a> {
    pub gpu: &'a Gpu,
    pub wanted: &'a Wanted,
    pub cublaslt: Option<Rc<Cublaslt>>,
    pub l2_bytes: u64,
    pub watch: Watch,
    pub gauge: Gauge,
    pub interrupt: Interrupt,
}

/// Somebody who can be timed.
struct Entrant {
    who: Who,
    what: String,
    product: Box<dyn Product>,
    checked: Option<Checked>,
}

/// One case, while it runs.
struct Course<'a> {
    bench: &'a Bench<'a>,
    problem: &'a Problem,
    inputs: &'a Inputs,
    check: &'a Check<'a>,
    entrants: Vec<Entrant>,
    /// Those without times.
    others: Vec<Contender>,
    dropped: Vec<Dropped>,
}

impl Bench<'_> {
    /// Runs one case.
    pub fn run(&self, case: &Case, pools: &mut Pools) -> Result<CaseResult, Failure> {
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
            dropped: vec![],
        };
        let takes_part = |who| wanted.contenders.contains(&who);
        // Products that wait run with the kernel of the one that does not, so that one is needed too.
        let chosen = match [Who::Own, Who::OwnSet, Who::OwnTrickle].into_iter().any(takes_part) {
            true => course.own()?,
            false => None,
        };
        if takes_part(Who::OwnSet)
            && let Some(options) = &chosen
        {
            course.own_set(options)?;
        }
        if let Some(library) = &self.cublaslt {
            course.cublaslt(library)?;
        }
        let length = course.rounds_length()?;
        let mut contenders = course.rounds(length)?;
        let mut trickle = None;
        if takes_part(Who::OwnTrickle)
            && let Some(options) = &chosen
        {
            trickle = course.trickle(options)?;
        }
        let afterwards = self.gauge.read();
        contenders.append(&mut course.others);
        // A stable sort: the variants of a kind stay as they are, the fastest first.
        contenders.sort_by_key(|contender| contender.who as u8);
        contenders.retain(|contender| takes_part(contender.who));
        let set = inputs.sets.first();
        let bytes = set.map_or(0, |set| set.a.bytes + set.b.bytes + set.d.bytes);
        Ok(CaseResult {
            name: case.to_string(),
            problem: problem.clone(),
            group: case.group,
            sets: inputs.sets.len(),
            bytes: bytes * inputs.sets.len() as u64,
            launches: length.products(),
            contenders,
            dropped: course.dropped,
            trickle,
            afterwards,
        })
    }
}

impl Course<'_> {
    /// Plans, checks and thins out own variants. The options of the one there is, if it is one.
    fn own(&mut self) -> Result<Option<GemmOptions>, Failure> {
        let Bench { gpu, wanted, .. } = *self.bench;
        let sm_count = gpu.device.info().sm_count;
        let variants = match own::variants(wanted, self.problem, sm_count) {
            Ok(variants) => variants,
            Err(error) => return self.absent(Who::Own, error).map(|()| None),
        };
        let alone = variants.len() == 1;
        let mut entrants = Vec::new();
        let mut chosen = None;
        for options in &variants {
            self.bench.interrupt.check()?;
            let planned = match Own::plan(gpu, self.problem, options) {
                Ok(planned) => planned,
                Err(error) if alone => return self.absent(Who::Own, error).map(|()| None),
                Err(error) => {
                    let why = refusal(error)?.to_string();
                    let what = own::describe(options);
                    self.dropped.push(Dropped { what, first_heat_us: None, why: Some(why) });
                    continue;
                }
            };
            let options = planned.chosen();
            let what = own::describe(&options);
            if let Some(entrant) = self.admit(Who::Own, what, Box::new(planned))? {
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
                let entrant = self.admit(Who::OwnSet, what, Box::new(planned))?;
                self.entrants.extend(entrant);
                Ok(())
            }
            Err(error) => self.absent(Who::OwnSet, error),
        }
    }

    /// Keeps the fastest of cuBLASLt's suggestions.
    fn cublaslt(&mut self, library: &Rc<Cublaslt>) -> Result<(), Failure> {
        let Wanted { suggestions, fast_accumulation, .. } = *self.bench.wanted;
        let (problem, inputs) = (self.problem, self.inputs);
        let all = match Suggested::all(library, problem, inputs, fast_accumulation, suggestions) {
            Ok(all) => all,
            Err(error) => return self.absent(Who::Cublaslt, error),
        };
        let mut entrants = Vec::new();
        for suggested in all {
            let what = suggested.describe();
            // A suggestion that the library itself then refuses is no contender.
            if suggested.enqueue(self.bench.gpu, inputs, 0).is_ok() {
                let product = Box::new(suggested);
                entrants.push(Entrant { who: Who::Cublaslt, what, product, checked: None });
            }
        }
        self.bench.gpu.synchronize()?;
        let known = self.dropped.len();
        let mut kept = self.heat(entrants, 1)?;
        self.dropped.truncate(known);
        if let Some(Entrant { who, what, product, .. }) = kept.pop() {
            let entrant = self.admit(who, what, product)?;
            self.entrants.extend(entrant);
        }
        Ok(())
    }

    /// Checks the product, and with it loads whatever a first use loads; nobody, if it is wrong.
    fn admit(
        &mut self,
        who: Who,
        what: String,
        product: Box<dyn Product>,
    ) -> Result<Option<Entrant>, Failure> {
        let Bench { gpu, wanted, .. } = *self.bench;
        let enqueue = |set| product.enqueue(gpu, self.inputs, set);
        if !wanted.check {
            enqueue(0)?;
            gpu.synchronize()?;
            return Ok(Some(Entrant { who, what, product, checked: None }));
        }
        match self.check.run(gpu, self.inputs, enqueue)? {
            Ok(checked) => Ok(Some(Entrant { who, what, product, checked: Some(checked) })),
            Err(why) => {
                let outcome = Outcome::Failed(why);
                self.others.push(Contender { who, what, outcome });
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
        let length = self.length(&entrants, wanted.target_ms * HEAT_PART)?;
        let times = self.timed(
            &entrants,
            length,
            HEAT_ROUNDS,
            |entrant| Loop::new(gpu, entrant.product.as_ref(), self.inputs, length, wanted.launch),
            watch,
        )?;
        let mut ranked: Vec<(f64, Entrant)> = times
            .iter()
            .map(|times| median(times).unwrap_or(f64::INFINITY))
            .zip(entrants)
            .collect();
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        let slower = ranked.split_off(keep.min(ranked.len()));
        self.dropped.extend(slower.into_iter().map(|(time, entrant)| Dropped {
            what: entrant.what,
            first_heat_us: Some(time),
            why: None,
        }));
        Ok(ranked.into_iter().map(|(_, entrant)| entrant).collect())
    }

    /// How long a loop is that nobody ends before `target_ms`.
    fn length(&self, entrants: &[Entrant], target_ms: f64) -> Result<Length> {
        let Bench { gpu, watch, .. } = self.bench;
        let mut fastest = f64::INFINITY;
        for entrant in entrants {
            let ms = estimate_ms(gpu, entrant.product.as_ref(), self.inputs, watch)?;
            fastest = fastest.min(ms);
        }
        Ok(Length::new(fastest, self.inputs.sets.len(), target_ms))
    }

    fn rounds_length(&self) -> Result<Length> {
        self.length(&self.entrants, self.bench.wanted.target_ms)
    }

    /// The rounds: everyone's times, by turns.
    fn rounds(&mut self, length: Length) -> Result<Vec<Contender>, Failure> {
        let Bench { gpu, wanted, watch, .. } = self.bench;
        let times = self.timed(
            &self.entrants,
            length,
            wanted.rounds,
            |entrant| Loop::new(gpu, entrant.product.as_ref(), self.inputs, length, wanted.launch),
            watch,
        )?;
        let mut contenders = Vec::new();
        for (entrant, rounds) in self.entrants.iter().zip(times) {
            let Entrant { who, what, checked, .. } = entrant;
            let outcome = match Summary::of(&rounds) {
                Some(summary) => Outcome::Timed { rounds, summary, checked: *checked },
                None => Outcome::Absent("there was no round".into()),
            };
            contenders.push(Contender { who: *who, what: what.clone(), outcome });
        }
        contenders.sort_by(|one, other| {
            let time = |contender: &Contender| contender.outcome.median().unwrap_or(f64::INFINITY);
            time(one).total_cmp(&time(other))
        });
        Ok(contenders)
    }

    /// Times everyone's loop in every round.
    fn timed<'l>(
        &self,
        entrants: &'l [Entrant],
        length: Length,
        rounds: usize,
        prepare: impl Fn(&'l Entrant) -> Result<Loop<'l>>,
        watch: &Watch,
    ) -> Result<Vec<Vec<f64>>, Failure> {
        let gpu = self.bench.gpu;
        let loops = entrants.iter().map(prepare).collect::<Result<Vec<_>>>()?;
        let mut warm_ms = 0.0;
        while let Some(first) = loops.first().filter(|_| warm_ms < WARM_UP_MS) {
            warm_ms += (1e-3 * first.time(gpu, watch)? * length.products() as f64).max(1.0);
        }
        let mut times = vec![Vec::new(); loops.len()];
        for round in 0..rounds {
            self.bench.interrupt.check()?;
            for nth in turn(round, loops.len()) {
                times[nth].push(loops[nth].time(gpu, watch)?);
            }
        }
        Ok(times)
    }

    /// The product with arriving chunks; nothing if it is wrong or cannot be.
    fn trickle(
        &mut self,
        options: &GemmOptions,
    ) -> Result<Option<super::super::results::Trickle>, Failure> {
        let Bench { gpu, wanted, .. } = *self.bench;
        let Some(own) = self.entrants.iter().find(|entrant| entrant.who == Who::Own) else {
            return Ok(None);
        };
        let planned = own::chunks(self.problem, wanted.chunks).and_then(|(problem, chunks)| {
            let rate = wanted.trickle_bytes_per_second;
            let product = own.product.as_ref();
            Trickle::plan(gpu, self.inputs, product, (&problem, chunks), options, rate)
        });
        let trickle = match planned {
            Ok(trickle) => trickle,
            Err(error) => return self.absent(Who::OwnTrickle, error).map(|()| None),
        };
        if wanted.check {
            let checked = self.check.run(gpu, self.inputs, |set| trickle.enqueue(set))?;
            trickle.check()?;
            if let Err(why) = checked {
                let (who, what) = (Who::OwnTrickle, own::describe(options));
                self.others.push(Contender { who, what, outcome: Outcome::Failed(why) });
                return Ok(None);
            }
        }
        let product_ms = estimate_ms(gpu, own.product.as_ref(), self.inputs, &self.bench.watch)?;
        let mut rounds = Vec::new();
        for nth in 0..wanted.rounds {
            self.bench.interrupt.check()?;
            rounds.push(trickle.round(nth, product_ms, wanted.target_ms)?);
        }
        Ok(Some(trickle.results(&rounds)))
    }

    /// Notes who takes no part, if the error is about that; others are the bench's.
    fn absent(&mut self, who: Who, error: Error) -> Result<(), Failure> {
        let outcome = Outcome::Absent(refusal(error)?.to_string());
        self.others.push(Contender { who, what: "–".into(), outcome });
        Ok(())
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
