//! Planning all-gather + GEMM: what is asked for, what a table decides of it, and the products and the gather that come
//! of it.
//!
//! Invariant: a rank that cannot plan a product says so where all agree on the gather, so that none waits for it.

use std::sync::Arc;

use super::AllGatherGemm;
use super::tuned::{self, Open};
use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::choose;
use crate::cuda::movers::gather::Gatherer;
use crate::cuda::movers::gather::joining::Purpose;
use crate::cuda::movers::options::GatherOptions;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::{Product, check_alike};
use crate::cuda::sys::device::Device;
use crate::error::Result;
use crate::group::Group;
use crate::plan::{Engine, Operation, Problem, Strategy, Way};
use crate::tune::Tuning;

impl AllGatherGemm {
    /// Plans the operation: all ranks call it, with the same. Returns when all have.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        strategy: Option<Strategy>,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        Self::plan_all(group, device, std::slice::from_ref(problem), strategy, gather, gemm)
    }

    /// [`AllGatherGemm::plan`] for several products of the same gathered A: problems that differ in N, in
    /// B's layout and in D, and in nothing else.
    pub fn plan_all(
        group: &Arc<Group>,
        device: &Device,
        problems: &[Problem],
        strategy: Option<Strategy>,
        gather: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        Self::plan_tuned(group, device, problems, strategy, gather, gemm, Tuning::found())
    }

    /// [`AllGatherGemm::plan_all`] by the caller's table, the same on all ranks, instead of [`Tuning::found`].
    ///
    /// Without a strategy the table decides all that `gather` and `gemm` leave open, if it has anything near
    /// the problem; what they fix is never replaced. [`AllGatherGemm::explain`] says what it was.
    pub fn plan_tuned(
        group: &Arc<Group>,
        device: &Device,
        problems: &[Problem],
        strategy: Option<Strategy>,
        gather: &GatherOptions,
        gemm: &GemmOptions,
        tuning: &Tuning,
    ) -> Result<Self> {
        let asked = strategy;
        let obstacle = obstacle(group, device, gather.timeouts.first)?;
        let refuse = |error| Gatherer::refuse(group, gather, error);
        let first = check_alike(problems).map_err(refuse)?;
        let open = Open { problems, strategy, gather, gemm, in_the_way: obstacle.is_some() };
        let advice = tuned::advise(tuning, device.info(), &open);
        let (strategy, gather, gemm) = (advice.strategy, &advice.gather, &advice.gemm);
        let obstacle = obstacle.as_deref();
        // What cannot be is refused below, where all ranks agree.
        let pushing = match choose(gather, first, strategy, obstacle) {
            Ok((Way { strategy: Strategy::Fused, engine: Engine::Kernel { blocks }, .. }, _))
                if first.ranks() > 1 =>
            {
                blocks
            }
            _ => 0,
        };
        let planned: Result<Vec<_>> = (problems.iter().enumerate())
            .map(|(index, problem)| {
                // Undecided, a step would be fused.
                let part = strategy.unwrap_or_default().part_of(problem)?;
                // Products behind the first begin when all is pushed.
                let pushing = if index == 0 { pushing } else { 0 };
                Product::plan_beside_push(device, &part, gemm, pushing)
            })
            .collect();
        let tiling = match &planned {
            Ok(products) => Ok(products[0].kernel.tiling(products[0].choice.swizzle)),
            Err(error) => Err(error.clone()),
        };
        // What a table has decided is in it, so that ranks with different tables notice.
        let kind = format!("all-gather + GEMM {asked:?} {strategy:?} {problems:?} {gemm:?}");
        let operation = Operation::AllGatherGemm;
        let purpose = Purpose { kind: &kind, tiling, operation, strategy, sums: None };
        let gatherer = Gatherer::join(group, device, first, &purpose, gather, obstacle)?;
        let products = planned?;
        let (why, way) = (advice.explain(gatherer.why()), gatherer.plan().way());
        tracing::debug!(rank = group.rank(), problem = %first, %way, why, "planned all-gather + GEMM");
        Ok(AllGatherGemm { gatherer, products, why, latest: None })
    }
}
