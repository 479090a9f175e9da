//! How a layer is carried out, in the words of the cost model: what [`predict`](crate::predict) has to know of it.
//!
//! Invariant: whatever can be carried out has such words; a test goes through all of it.

use super::all_gather_gemm::AllGatherGemm;
use super::gather::Engine;
use super::strategy::Strategy;
use crate::plan::Problem;
use crate::predict::{self, Setup};

impl AllGatherGemm {
    /// How it is carried out, for [`predict::estimate`] and [`predict::timeline`] of [`AllGatherGemm::planned`]; of
    /// several products the first, alone.
    pub fn setup(&self) -> Setup {
        let (plan, choice) = (self.planned(), self.choice());
        Setup {
            strategy: strategy(self.strategy()),
            engine: engine(self.engine(), plan.problem()),
            pieces: plan.chunks().most_per_rank(),
            kernel: self.kernel().clone(),
            swizzle: choice.swizzle,
            splits: choice.splits,
        }
    }
}

pub(super) fn strategy(strategy: Strategy) -> predict::Strategy {
    match strategy {
        // Undecided, which no layer is: a step would be fused.
        Strategy::Auto | Strategy::Fused => predict::Strategy::Fused,
        Strategy::Pipelined => predict::Strategy::Pipelined,
        Strategy::Sequential => predict::Strategy::Sequential,
    }
}

pub(super) fn engine(engine: Engine, problem: &Problem) -> predict::Engine {
    match engine {
        Engine::Auto => predict::Engine::usual(problem),
        Engine::CopyEngines { streams } => predict::Engine::CopyEngines { streams },
        Engine::Kernel { blocks } => predict::Engine::Kernel { blocks },
        Engine::Nccl => predict::Engine::Nccl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_model_has_words_for_whatever_is_carried_out() {
        for one in [Strategy::Fused, Strategy::Pipelined, Strategy::Sequential] {
            assert_eq!(strategy(one).to_string(), format!("{one:?}").to_lowercase());
        }
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        for (one, expected) in [
            (Engine::CopyEngines { streams: 3 }, predict::Engine::CopyEngines { streams: 3 }),
            (Engine::Kernel { blocks: 16 }, predict::Engine::Kernel { blocks: 16 }),
            (Engine::Nccl, predict::Engine::Nccl),
            (Engine::Auto, predict::Engine::usual(&problem)),
        ] {
            assert_eq!(engine(one, &problem), expected);
        }
    }
}
