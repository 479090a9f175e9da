//! The course of one case: all contenders are checked, the slow ones drop out, the rest run interleaved.
//!
//! Invariant: what is compared was timed in the same rounds, in loops of the same length, on the same
//! matrices. Who cannot take part says why, and the others go on; what breaks the GPU's context ends
//! the bench.

use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

use overlap_gemm::cuda::GemmOptions;
use overlap_gemm::plan::Problem;
use overlap_gemm::{Error, Result};

use super::super::cases::Case;
use super::super::gemm::Args;
use super::super::report::{CaseReport, Kind, Row};
use super::super::turns::turn;
use super::super::wanted::{Contender, Launch, LoopTimes};
use super::check::Check;
use super::cublaslt::{Cublaslt, Suggested};
use super::driver::Gpu;
use super::inputs::{Inputs, Pools};
use super::own;
use super::power::Meter;
use super::timing::{Length, Loop, Product, Watch, estimate_ms};
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Own variants that go on after the first heat; of cuBLASLt's suggestions one does.
const KEPT: usize = 8;

/// Rounds of the first heat, and its longest loops.
const HEAT_ROUNDS: usize = 3;
const HEAT_MS: f64 = 6.0;

/// How long the GPU works before the rounds, so that its clocks are those of steady work.
const WARM_UP_MS: f64 = 200.0;

/// What all cases share.
pub struct Bench<'a> {
    pub gpu: &'a Gpu,
    pub args: &'a Args,
    pub cublaslt: Option<Rc<Cublaslt>>,
    pub l2_bytes: u64,
    pub watch: Watch,
    pub meter: Meter,
    pub interrupt: Interrupt,
}

/// Somebody who can be timed.
struct Entrant<'a> {
    who: Contender,
    what: String,
    product: Box<Product<'a>>,
}

/// One case, while it runs.
struct Course<'a> {
    bench: &'a Bench<'a>,
    problem: &'a Problem,
    inputs: &'a Inputs,
    check: &'a Check<'a>,
    entrants: Vec<Entrant<'a>>,
    /// Those without times.
    others: Vec<Row>,
}

impl Bench<'_> {
    /// Runs one case: its report, and how many products a loop had.
    pub fn run(&self, case: &Case, pools: &mut Pools) -> Result<(CaseReport, usize), Failure> {
        let (args, problem) = (self.args, &case.problem);
        let inputs = pools.inputs(0, self.gpu, problem, self.l2_bytes)?;
        let check = Check::new(pools, problem, &inputs, inputs.sets.len(), args.common.seed);
        let (inputs, check) = (&inputs, &check);
        let mut course =
            Course { bench: self, problem, inputs, check, entrants: vec![], others: vec![] };
        let takes_part = |who| args.contenders.contains(&who);
        // Products that wait run with the kernel of the one that does not, so that one is needed too.
        let chosen = match takes_part(Contender::Own) || takes_part(Contender::OwnSet) {
            true => course.own()?,
            false => None,
        };
        if let Some(options) = chosen.filter(|_| takes_part(Contender::OwnSet)) {
            course.own_set(&options)?;
        }
        if let Some(library) = &self.cublaslt {
            course.cublaslt(library)?;
        }
        let (length, mut rows) =
            course.timed(&course.entrants, args.common.loop_times(), args.common.rounds())?;
        rows.sort_by(by_time);
        rows.append(&mut course.others);
        // A stable sort: the variants of a kind stay as they are, the fastest first.
        let place = |row: &Row| args.contenders.iter().position(|who| who.name() == row.who);
        rows.retain(|row| place(row).is_some());
        rows.sort_by_key(place);
        let report =
            CaseReport { name: case.to_string(), problem: problem.clone(), before: None, rows };
        Ok((report, length.products()))
    }
}

impl<'a> Course<'a> {
    /// Plans, checks and thins out own variants. The options of the one there is, if it is one.
    fn own(&mut self) -> Result<Option<GemmOptions>, Failure> {
        let Bench { gpu, args, .. } = *self.bench;
        let sm_count = gpu.device.info().sm_count;
        let variants = match own::variants(args, self.problem, sm_count) {
            Ok(variants) => variants,
            Err(error) => return self.absent(Contender::Own, "–".into(), error).map(|()| None),
        };
        let alone = variants.len() == 1;
        let mut entrants = Vec::new();
        let mut chosen = None;
        for options in &variants {
            self.bench.interrupt.check()?;
            match own::own(gpu, self.inputs, self.problem, options) {
                Ok((options, product)) => {
                    let what = own::describe(&options);
                    if let Some(entrant) = self.admit(Contender::Own, what, product)? {
                        entrants.push(entrant);
                        chosen = alone.then_some(options);
                    }
                }
                Err(error) => self.absent(Contender::Own, own::describe(options), error)?,
            }
        }
        let kept = self.heat(entrants, KEPT)?;
        self.entrants.extend(kept);
        Ok(chosen)
    }

    fn own_set(&mut self, options: &GemmOptions) -> Result<(), Failure> {
        let what = own::describe(options);
        match own::own_set(self.bench.gpu, self.inputs, self.problem, options) {
            Ok(product) => {
                let entrant = self.admit(Contender::OwnSet, what, product)?;
                self.entrants.extend(entrant);
                Ok(())
            }
            Err(error) => self.absent(Contender::OwnSet, what, error),
        }
    }

    /// Keeps the fastest of cuBLASLt's suggestions.
    fn cublaslt(&mut self, library: &Rc<Cublaslt>) -> Result<(), Failure> {
        let (gpu, inputs) = (self.bench.gpu, self.inputs);
        let all = match Suggested::all(library, self.problem, inputs) {
            Ok(all) => all,
            Err(error) => return self.absent(Contender::Cublaslt, "–".into(), error),
        };
        let mut entrants = Vec::new();
        for suggested in all {
            let what = suggested.describe();
            // A suggestion that the library itself then refuses is no contender.
            if suggested.enqueue(gpu, inputs, 0).is_ok() {
                let product = Box::new(move |set| suggested.enqueue(gpu, inputs, set));
                entrants.push(Entrant { who: Contender::Cublaslt, what, product });
            }
        }
        gpu.synchronize()?;
        let known = self.others.len();
        let mut kept = self.heat(entrants, 1)?;
        self.others.truncate(known);
        if let Some(Entrant { who, what, product }) = kept.pop() {
            let entrant = self.admit(who, what, product)?;
            self.entrants.extend(entrant);
        }
        Ok(())
    }

    /// Checks the product, and so loads what its first use loads; `None` if its result is wrong.
    fn admit(
        &mut self,
        who: Contender,
        what: String,
        product: Box<Product<'a>>,
    ) -> Result<Option<Entrant<'a>>, Failure> {
        let gpu = self.bench.gpu;
        if self.bench.args.no_check {
            product(0)?;
            gpu.synchronize()?;
        } else if let Err(why) = self.check.run(gpu, self.inputs, &product)? {
            self.others.push(Row { failed: Some(why), ..self.row(who, what) });
            return Ok(None);
        }
        Ok(Some(Entrant { who, what, product }))
    }

    /// A short run of all, of which the `keep` fastest go on; the fastest first.
    fn heat(
        &mut self,
        entrants: Vec<Entrant<'a>>,
        keep: usize,
    ) -> Result<Vec<Entrant<'a>>, Failure> {
        if entrants.len() < 2 {
            return Ok(entrants);
        }
        let heat_ms = HEAT_MS.min(self.bench.args.common.loop_times().timed_ms);
        let short = LoopTimes { warm_ms: heat_ms, timed_ms: heat_ms };
        let (_, rows) = self.timed(&entrants, short, HEAT_ROUNDS)?;
        let mut ranked: Vec<(Row, Entrant<'_>)> = rows.into_iter().zip(entrants).collect();
        ranked.sort_by(|(one, _), (other, _)| by_time(one, other));
        for (row, Entrant { who, what, .. }) in ranked.split_off(keep.min(ranked.len())) {
            let time = row.median().unwrap_or(f64::INFINITY);
            let absent = Some(format!("slower in the first heat, some {time:.1} µs"));
            self.others.push(Row { absent, ..self.row(who, what) });
        }
        Ok(ranked.into_iter().map(|(_, entrant)| entrant).collect())
    }

    /// Times everyone's loop in every round, interleaved, and measures its power: how long a loop was, and a row each.
    fn timed(
        &self,
        entrants: &[Entrant<'_>],
        times: LoopTimes,
        rounds: usize,
    ) -> Result<(Length, Vec<Row>), Failure> {
        let Bench { gpu, args, watch, meter, interrupt, .. } = self.bench;
        let (sets, mut fastest) = (self.inputs.sets.len(), f64::INFINITY);
        for entrant in entrants {
            fastest = fastest.min(estimate_ms(gpu, &entrant.product, sets, watch)?);
        }
        let length = Length::new(fastest, sets, times);
        let mut loops = Vec::new();
        for entrant in entrants {
            loops.push(Loop::new(gpu, &entrant.product, sets, length, args.launch)?);
        }
        let mut warm_ms = 0.0;
        while let Some(first) = loops.first().filter(|_| warm_ms < WARM_UP_MS) {
            warm_ms += (1e-3 * first.time(gpu, watch)? * length.products() as f64).max(1.0);
        }
        let row = |entrant: &Entrant<'_>| self.row(entrant.who, entrant.what.clone());
        let mut rows: Vec<Row> = entrants.iter().map(row).collect();
        for round in 0..rounds {
            interrupt.check()?;
            for nth in turn(self.problem, round, loops.len()) {
                let mut us = 0.0;
                let power = meter.around(|| -> Result<Duration> {
                    us = loops[nth].time(gpu, watch)?;
                    Ok(Duration::from_secs_f64(1e-6 * us * length.products() as f64))
                })?;
                rows[nth].rounds_us.push(us);
                rows[nth].power.extend(power);
            }
        }
        Ok((length, rows))
    }

    /// Notes an absent contender, if the error is about that; other errors end the bench.
    fn absent(&mut self, who: Contender, what: String, error: Error) -> Result<(), Failure> {
        let absent = Some(refusal(error)?.to_string());
        self.others.push(Row { absent, ..self.row(who, what) });
        Ok(())
    }

    fn row(&self, who: Contender, what: String) -> Row {
        let kind = if who == Contender::OwnSet { Kind::GemmAllSignalled } else { Kind::Gemm };
        Row::new(&who.name(), kind, self.bench.args.launch == Launch::Graph, what)
    }
}

fn by_time(one: &Row, other: &Row) -> Ordering {
    let time = |row: &Row| row.median().unwrap_or(f64::INFINITY);
    time(one).total_cmp(&time(other))
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
