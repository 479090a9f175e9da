//! The operations, and which rows each has in and out.
//!
//! What belongs here: what follows from the operation and the problem alone.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::way::{Engine, Strategy};
use crate::error::{Error, Result};

/// The operation.
///
/// ```
/// use overlap_gemm::plan::{Operation, Problem};
///
/// let problem = Problem::builder(96, 64, 64).ranks(2).build()?;
/// assert_eq!(Operation::GemmReduceScatter.output_rows(&problem, 1), 48..96);
/// assert_eq!(Operation::GemmAllReduce.output_rows(&problem, 1), 0..96);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// Every rank gets all ranks' rows of A, and multiplies them by its own B.
    #[default]
    AllGatherGemm,
    /// Every rank gets all ranks' rows.
    AllGather,
    /// Every rank multiplies an A that is already gathered: the lower bound of every step with a gather.
    Gemm,
    /// Every rank multiplies its slice of K; each rank gets the sums of its own rows.
    GemmReduceScatter,
    /// Every rank multiplies its slice of K; each rank gets the sums of all rows.
    GemmAllReduce,
    /// Every rank has sums of all rows; each rank gets the totals of its own rows.
    ReduceScatter,
    /// Every rank has sums of all rows; each rank gets the totals of all rows.
    AllReduce,
}

impl Operation {
    /// An error if this engine cannot carry out this operation by this strategy.
    pub(crate) fn check(self, strategy: Strategy, engine: Engine) -> Result<()> {
        let strategy = self.strategy(strategy);
        let adds_up_all = matches!(engine, Engine::Kernel { .. } | Engine::Nccl);
        if !self.reduces() || !adds_up_all || strategy == Strategy::Sequential {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{strategy} {self} with {engine}"),
            why: "it adds up sums when all of them have been computed".into(),
            remedy: "use Strategy::Sequential, or Engine::CopyEngines",
        })
    }

    /// Whether sums of D travel, not rows of A.
    pub fn reduces(self) -> bool {
        matches!(self, Operation::GemmReduceScatter | Operation::ReduceScatter)
            || self.is_all_reduce()
    }

    /// Whether every rank gets the totals of all rows.
    pub fn is_all_reduce(self) -> bool {
        matches!(self, Operation::GemmAllReduce | Operation::AllReduce)
    }

    /// Whether something travels and nothing is multiplied: there is no order of the two to choose.
    pub fn is_alone(self) -> bool {
        matches!(self, Operation::AllGather | Operation::ReduceScatter | Operation::AllReduce)
    }

    /// The strategy that is carried out: what travels alone and a plain product have no fused form.
    pub(super) fn strategy(self, asked: Strategy) -> Strategy {
        if self == Operation::Gemm || self.is_alone() { Strategy::Sequential } else { asked }
    }

    /// Whether the products of a rank's own rows add the others' sums before they store.
    pub(crate) fn products_add_up(self, strategy: Strategy, engine: Engine) -> bool {
        let by_copies = matches!(engine, Engine::CopyEngines { .. });
        self.reduces() && by_copies && self.strategy(strategy) == Strategy::Fused
    }

    /// The rows of D that `rank` gets: in a reduce-scatter its own, else all.
    pub fn output_rows(self, problem: &Problem, rank: u32) -> Range<u32> {
        match self {
            Operation::GemmReduceScatter | Operation::ReduceScatter => problem.shards().rows(rank),
            _ => 0..problem.m(),
        }
    }

    /// The most rows of D that a rank gets.
    pub(crate) fn most_output_rows(self, problem: &Problem) -> u32 {
        match self {
            Operation::GemmReduceScatter | Operation::ReduceScatter => problem.shards().most_rows(),
            _ => problem.m(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllGatherGemm => "all-gather + GEMM",
            Operation::AllGather => "all-gather",
            Operation::Gemm => "GEMM",
            Operation::GemmReduceScatter => "GEMM + reduce-scatter",
            Operation::GemmAllReduce => "GEMM + all-reduce",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::AllReduce => "all-reduce",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_adds_up_whole_products_is_refused_without_them() {
        let copies = Engine::CopyEngines { streams: 1 };
        let refused = |strategy, engine| {
            assert_eq!(Operation::AllGatherGemm.check(strategy, engine), Ok(()));
            let scattered = Operation::GemmReduceScatter.check(strategy, engine);
            let to_all = Operation::GemmAllReduce.check(strategy, engine);
            assert_eq!(scattered.is_ok(), to_all.is_ok());
            // Without a product the strategy says nothing.
            assert_eq!(Operation::ReduceScatter.check(strategy, engine), Ok(()));
            to_all.err().map(|error| error.to_string())
        };
        for strategy in Strategy::ALL {
            assert_eq!(refused(strategy, Engine::Thread), None);
            for engine in [Engine::PUSHING, Engine::Nccl] {
                let text = refused(strategy, engine).unwrap_or_default();
                let is_sequential = strategy == Strategy::Sequential;
                assert_ne!(text.contains("Strategy::Sequential"), is_sequential, "{text}");
            }
            assert_eq!(refused(strategy, copies), None);
        }
    }
}
