//! How each contender is planned, from what was asked for.
//!
//! Invariant: all own products of a case have the same options, and cuBLASLt's is the fastest of what it suggests.

use std::rc::Rc;

use overlap_gemm::cuda::nccl::Communicator;
use overlap_gemm::cuda::{CollectiveOptions, Gemm, GemmOptions};
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy};
use overlap_gemm::{Error, Result};

use super::super::super::report::Kind;
use super::super::super::wanted::Contender;
use super::super::check::Adder;
use super::super::cublaslt::Suggested;
use super::super::inputs::Inputs;
use super::super::own::operands;
use super::super::timing::estimate_ms;
use super::Bench;
use super::contenders::{
    Gather, Place, Planned, ReducedAlone, Summing, gather_by_nccl, plan_whole, reduce_by_nccl,
};

impl Bench<'_> {
    /// A contender in a case; collective.
    pub(super) fn plan<'c>(&self, who: Contender, case: Summing<'c>) -> Result<Planned<'c>> {
        let Summing { place, operation, totals } = case;
        let Place { gpu, problem, inputs, .. } = place;
        let reduces = operation.reduces();
        // B is written before the first step, as weights are.
        let gemm = GemmOptions::default().with_constant_b(true);
        let mut options = self.collective_options();
        options.strategy = match who {
            Contender::Sequential => Some(Strategy::Sequential),
            Contender::Pipelined => Some(Strategy::Pipelined),
            Contender::Fused => Some(Strategy::Fused),
            _ => None,
        };
        let own = || Gemm::plan(&gpu.device, problem, &gemm);
        // SAFETY: as large as the problem says; they live until the stream is through.
        let enqueue = move |gemm: &Gemm, set| unsafe {
            gemm.enqueue_raw(&gpu.stream, &operands(inputs, set))
        };
        // The partials that a reduction alone finds in D are this crate's products, which all others that write D overwrite by
        // the same, up to rounding.
        let partials = || {
            let gemm = own()?;
            (0..totals.len()).try_for_each(|set| enqueue(&gemm, set))?;
            gpu.synchronize()
        };
        Ok(match who {
            Contender::Cublaslt => {
                let product = self.suggested(problem, inputs)?;
                let what = product.describe();
                Planned::new(Kind::Gemm, what, move |set| product.enqueue(gpu, inputs, set))
            }
            Contender::Own | Contender::OwnSet => {
                let gemm = own()?;
                let what = gemm.kernel().to_string();
                Planned::new(Kind::Gemm, what, move |set| enqueue(&gemm, set))
            }
            Contender::NcclCublaslt => {
                let (product, nccl) = (self.suggested(problem, inputs)?, self.nccl()?);
                let adder = if reduces { Adder::Nccl } else { Adder::Own };
                let what = product.describe();
                let step = move |set| {
                    if !reduces {
                        gather_by_nccl(&place, &nccl, set)?;
                    }
                    product.enqueue(gpu, inputs, set)?;
                    if reduces { reduce_by_nccl(&case, &nccl, set) } else { Ok(()) }
                };
                Planned { adder, ..Planned::new(Kind::whole(operation), what, step) }
            }
            Contender::Nccl => {
                let nccl = self.nccl()?;
                let what = format!("NCCL {:?}", nccl.version());
                if !reduces {
                    let step = move |set| gather_by_nccl(&place, &nccl, set);
                    return Ok(Planned::new(Kind::AllGather, what, step));
                }
                partials()?;
                let step = move |set| reduce_by_nccl(&case, &nccl, set);
                let planned = Planned::new(Kind::reduction(operation), what, step);
                Planned { adder: Adder::Nccl, ..planned }
            }
            Contender::Gather => Gather::plan(place, &options)?,
            Contender::Beside => {
                let gemm = own()?;
                Gather::beside(place, &options, move |set| enqueue(&gemm, set))?
            }
            Contender::Reduce => {
                partials()?;
                match operation {
                    Operation::GemmAllReduce => ReducedAlone::<true>::plan(case, &options)?,
                    _ => ReducedAlone::<false>::plan(case, &options)?,
                }
            }
            Contender::Sequential | Contender::Pipelined | Contender::Fused | Contender::Auto => {
                plan_whole(case, &options, &gemm)?()?.into_contender()
            }
        })
    }

    fn nccl(&self) -> Result<Rc<Communicator>> {
        let missing = || Error::NoDevice { reason: "NCCL is not loaded".into() };
        self.nccl.clone().ok_or_else(missing)
    }

    fn collective_options(&self) -> CollectiveOptions {
        let args = self.wanted.args;
        let mut options = CollectiveOptions::default();
        options.pieces = args.pieces;
        if let Some(streams) = args.streams {
            options.engine = Some(Engine::CopyEngines { streams });
        }
        if let Some(blocks) = args.blocks {
            options.engine = Some(Engine::Kernel { blocks });
        }
        options
    }

    /// The fastest of cuBLASLt's suggestions, in a short loop of each.
    fn suggested(&self, problem: &Problem, inputs: &Inputs) -> Result<Suggested> {
        let missing = || Error::NoDevice { reason: "cuBLASLt is not loaded".into() };
        let library = self.cublaslt.as_ref().ok_or_else(missing)?;
        let mut best: Option<(f64, Suggested)> = None;
        for suggested in Suggested::all(library, problem, inputs)? {
            let enqueue = |set| suggested.enqueue(self.gpu, inputs, set);
            // A suggestion that the library itself then refuses is no contender.
            if enqueue(0).is_err() {
                continue;
            }
            let mut time = f64::INFINITY;
            for _ in 0..5 {
                time = time.min(estimate_ms(self.gpu, &enqueue, inputs.sets.len(), &self.watch)?);
            }
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                best = Some((time, suggested));
            }
        }
        let none = || Error::NoDevice { reason: "cuBLASLt refuses all that it suggests".into() };
        best.map(|(_, suggested)| suggested).ok_or_else(none)
    }
}
