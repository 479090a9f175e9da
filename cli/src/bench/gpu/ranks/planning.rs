//! How each contender is planned, from what was asked for.
//!
//! Invariant: all own products of a case have the same options, and cuBLASLt's is the fastest of what it suggests.

use std::rc::Rc;

use overlap_gemm::cuda::nccl::Communicator;
use overlap_gemm::cuda::{GatherOptions, Gemm, GemmOptions};
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy};
use overlap_gemm::{Error, Result};

use super::super::super::wanted::{Contender, Gatherer, Reducer};
use super::super::cublaslt::Suggested;
use super::super::inputs::Inputs;
use super::super::timing::{Product, estimate_ms};
use super::Bench;
use super::contenders::{self, Gathered, Place, Step};
use super::reducing::{ByNccl, Reduced, Summing};

/// Suggestions of cuBLASLt that are tried.
const SUGGESTIONS: u32 = 16;

type Planned<'a> = Box<dyn Step + 'a>;

impl Bench<'_> {
    /// A contender in a case; collective.
    pub(super) fn plan<'c>(&self, who: Contender, case: Summing<'c>) -> Result<Planned<'c>> {
        match who {
            Contender::Gather(who) => self.plan_gather(who, case.place),
            Contender::Reduce(who) => self.plan_reduce(who, case),
        }
    }

    fn plan_gather<'c>(&self, who: Gatherer, place: Place<'c>) -> Result<Planned<'c>> {
        let gemm = self.gemm_options();
        let gather = self.gather_options();
        let gathered_by = |gather: &GatherOptions, strategy| {
            let copied = self.wanted.copied;
            let planned = Gathered::plan(place, strategy, gather, &gemm, copied)?;
            Ok(Box::new(planned) as Planned<'c>)
        };
        let gathered = |strategy| gathered_by(&gather, strategy);
        Ok(match who {
            Gatherer::Cublaslt => self.cublaslt(place)?,
            Gatherer::NcclCublaslt => {
                let product = self.suggested(place.problem, place.inputs)?;
                Box::new(contenders::Cublaslt { place, product, nccl: Some(self.nccl()?) })
            }
            Gatherer::Nccl => Box::new(contenders::NcclAlone { place, nccl: self.nccl()? }),
            Gatherer::Own => self.own(place)?,
            Gatherer::Beside => Box::new(contenders::Beside::plan(place, &gemm)?),
            Gatherer::Gather => Box::new(contenders::GatherAlone::plan(place, &gather)?),
            Gatherer::NcclOwn => {
                let by_nccl = GatherOptions::default().with_engine(Engine::Nccl);
                gathered_by(&by_nccl, Some(Strategy::Sequential))?
            }
            Gatherer::Sequential => gathered(Some(Strategy::Sequential))?,
            Gatherer::Pipelined => gathered(Some(Strategy::Pipelined))?,
            Gatherer::Fused => gathered(Some(Strategy::Fused))?,
            Gatherer::Auto => gathered(None)?,
        })
    }

    fn plan_reduce<'c>(&self, who: Reducer, case: Summing<'c>) -> Result<Planned<'c>> {
        let Summing { place, operation, .. } = case;
        let (gather, gemm) = (self.gather_options(), self.gemm_options());
        let reduced = |strategy| -> Result<Planned<'c>> {
            Ok(match operation {
                Operation::GemmAllReduce => {
                    Box::new(Reduced::<true>::plan(case, strategy, &gather, &gemm)?)
                }
                _ => Box::new(Reduced::<false>::plan(case, strategy, &gather, &gemm)?),
            })
        };
        Ok(match who {
            Reducer::Cublaslt => self.cublaslt(place)?,
            Reducer::Own => self.own(place)?,
            Reducer::NcclCublaslt => {
                let product = self.suggested(place.problem, place.inputs)?;
                Box::new(ByNccl::behind(case, self.nccl()?, product))
            }
            Reducer::Nccl => Box::new(ByNccl::alone(case, self.nccl()?, &gemm)?),
            Reducer::Sequential => reduced(Some(Strategy::Sequential))?,
            Reducer::Pipelined => reduced(Some(Strategy::Pipelined))?,
            Reducer::Auto => reduced(None)?,
        })
    }

    fn cublaslt<'c>(&self, place: Place<'c>) -> Result<Planned<'c>> {
        let product = self.suggested(place.problem, place.inputs)?;
        Ok(Box::new(contenders::Cublaslt { place, product, nccl: None }))
    }

    fn own<'c>(&self, place: Place<'c>) -> Result<Planned<'c>> {
        let gemm = Gemm::plan(&self.gpu.device, place.problem, &self.gemm_options())?;
        Ok(Box::new(contenders::Own { place, gemm }))
    }

    fn nccl(&self) -> Result<Rc<Communicator>> {
        let missing = || Error::NoDevice { reason: "NCCL is not loaded".into() };
        self.nccl.clone().ok_or_else(missing)
    }

    pub(super) fn gemm_options(&self) -> GemmOptions {
        // As weights are.
        let mut gemm = GemmOptions::default().with_constant_b(true);
        gemm.kernel.clone_from(&self.wanted.kernel);
        (gemm.splits, gemm.swizzle) = (self.wanted.splits, self.wanted.swizzle);
        gemm
    }

    pub(super) fn gather_options(&self) -> GatherOptions {
        let wanted = self.wanted;
        let mut options = GatherOptions::default();
        options.pieces = wanted.pieces;
        if let Some(streams) = wanted.streams {
            options.engine = Some(Engine::CopyEngines { streams });
        }
        if let Some(blocks) = wanted.blocks {
            options.engine = Some(Engine::Kernel { blocks });
        }
        options
    }

    /// The fastest of cuBLASLt's suggestions, in a short loop of each.
    fn suggested(&self, problem: &Problem, inputs: &Inputs) -> Result<Rc<Suggested>> {
        let missing = || Error::NoDevice { reason: "cuBLASLt is not loaded".into() };
        let library = self.cublaslt.as_ref().ok_or_else(missing)?;
        let mut best: Option<(f64, Suggested)> = None;
        for suggested in Suggested::all(library, problem, inputs, true, SUGGESTIONS)? {
            // A suggestion that the library itself then refuses is no contender.
            if suggested.enqueue(self.gpu, inputs, 0).is_err() {
                continue;
            }
            let mut times = Vec::new();
            for _ in 0..5 {
                times.push(estimate_ms(self.gpu, &suggested, inputs, &self.watch)?);
            }
            let time = times.into_iter().fold(f64::INFINITY, f64::min);
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                best = Some((time, suggested));
            }
        }
        let none = || Error::NoDevice { reason: "cuBLASLt refuses all that it suggests".into() };
        best.map(|(_, suggested)| Rc::new(suggested)).ok_or_else(none)
    }
}
