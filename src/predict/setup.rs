//! How a step is carried out: the strategy, who moves the rows, in how many pieces, and which kernel multiplies.
//!
//! What belongs here: the values, and what the GPU executor takes where nothing is asked for. Invariant: a setup's
//! kernel computes what its problem asks for.

use std::fmt;

use super::kernel::{Kernel, kind};
use super::machine::Machine;
use super::product::{cheapest, choices};
use crate::error::{Error, Result};
use crate::plan::{Plan, PlanOptions, Problem};

/// The most streams that rows are pushed on, by the GPU executor, and so here and in tables.
pub const MOST_STREAMS: u32 = 8;
/// The most blocks of its kernel that pushes.
pub const MOST_BLOCKS: u32 = 128;

/// In which order gathering and multiplying go: the names that `cuda::Strategy` has, and the product alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Strategy {
    /// The product of an A that is there: what nothing that gathers is faster than.
    Plain,
    /// One product that waits, tile by tile, for the rows that it needs.
    Fused,
    /// A product for each rank's rows, one after the other, each behind its rows.
    Pipelined,
    /// All rows first, then one product.
    Sequential,
}

impl Strategy {
    /// All of them, the plain product first.
    pub const ALL: [Strategy; 4] =
        [Strategy::Plain, Strategy::Fused, Strategy::Pipelined, Strategy::Sequential];

    /// What one product multiplies at most.
    pub(crate) fn part_of(self, problem: &Problem) -> Result<Problem> {
        match self {
            Strategy::Pipelined => problem.of_largest_shard(),
            _ => Ok(problem.clone()),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strategy::Plain => "plain",
            Strategy::Fused => "fused",
            Strategy::Pipelined => "pipelined",
            Strategy::Sequential => "sequential",
        })
    }
}

/// Who moves the rows: as `cuda::Engine`, which has one more that chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Engine {
    /// Copy engines, by so many streams.
    CopyEngines {
        /// 1 to [`MOST_STREAMS`].
        streams: u32,
    },
    /// A kernel before the product, of so many blocks.
    Kernel {
        /// 1 to [`MOST_BLOCKS`].
        blocks: u32,
    },
    /// NCCL, which tells nothing before all rows are there.
    Nccl,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::CopyEngines { streams: 1 } => f.write_str("copy engines on one stream"),
            Engine::CopyEngines { streams } => write!(f, "copy engines on {streams} streams"),
            Engine::Kernel { blocks } => write!(f, "a kernel of {blocks} blocks"),
            Engine::Nccl => f.write_str("NCCL"),
        }
    }
}

/// The most bytes a shard may have to be pushed by a kernel, unless something else is asked for.
pub const SMALL_SHARD: u64 = 4 << 20;
/// Pieces of a shard are no smaller by default, for each rank: each piece costs a copy engine some microseconds for each peer,
/// and with more ranks there are more pieces as it is.
const SMALLEST_PIECE: u128 = 4 << 20;
/// More pieces than this gain nothing.
const MOST_PIECES: u128 = 2;
/// Nor do any where one rank has more columns: its own rows take longer to multiply than the next rank's take to come, and pieces
/// only part rows that would sweep over B together.
const MOST_COLUMNS_IN_PIECES: u32 = 4096;

impl Engine {
    /// A kernel that pushes, of as few blocks as fill the link, unless something else is asked for: each keeps an SM from the
    /// product as long as it pushes, and clusters that come late have fewer tiles often, so that a few are no loss.
    pub const PUSHING: Engine = Engine::Kernel { blocks: 16 };

    /// An error unless it has as many streams or blocks as the GPU executor can give it.
    pub fn check(self) -> Result<()> {
        let (what, value, most) = match self {
            Engine::CopyEngines { streams } => ("the number of streams", streams, MOST_STREAMS),
            Engine::Kernel { blocks } => ("the number of blocks", blocks, MOST_BLOCKS),
            Engine::Nccl => return Ok(()),
        };
        match (1..=most).contains(&value) {
            true => Ok(()),
            false => {
                let remedy = "ask for a number in that range";
                Err(Error::out_of_range(what, value.into(), 1, most.into(), remedy))
            }
        }
    }

    /// What the GPU executor takes for `problem` where GPUs reach each other's memory and nothing is asked for.
    pub fn usual(problem: &Problem) -> Self {
        if shard_bytes(problem) <= SMALL_SHARD.into() {
            Engine::PUSHING
        } else {
            // Copies to two peers at once take longer than one after the other.
            Engine::CopyEngines { streams: 1 }
        }
    }

    /// Into how many pieces the GPU executor then cuts a shard.
    pub fn usual_pieces(self, problem: &Problem) -> u32 {
        let pieces = match self {
            Engine::Nccl => 1,
            _ if problem.n() > MOST_COLUMNS_IN_PIECES => 1,
            _ => {
                let smallest = SMALLEST_PIECE * u128::from(problem.ranks().max(2));
                (shard_bytes(problem) / smallest).clamp(1, MOST_PIECES) as u32
            }
        };
        pieces.min(problem.shards().most_rows())
    }
}

/// Bytes of the largest shard.
fn shard_bytes(problem: &Problem) -> u128 {
    problem.row_bytes(&(0..problem.shards().most_rows()))
}

/// Everything that a step's time depends on besides the problem and the machine.
///
/// ```
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::predict::{Engine, Machine, Setup, Strategy};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(8).build()?;
/// let usual = Setup::usual(&Machine::h200(), &problem, Strategy::Fused)?;
/// assert_eq!(usual.engine, Engine::CopyEngines { streams: 1 });
/// assert_eq!(usual.plan(&problem)?.chunks().len(), 8);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// In which order gathering and multiplying go.
    pub strategy: Strategy,
    /// Who moves the rows.
    pub engine: Engine,
    /// Into how many pieces each shard is cut.
    pub pieces: u32,
    /// What multiplies.
    pub kernel: Kernel,
    /// Unit rows that sweep over the columns together.
    pub swizzle: u32,
    /// Slices that K is cut into.
    pub splits: u32,
}

impl Setup {
    /// What the GPU executor would choose, had it been built with every kernel.
    pub fn usual(machine: &Machine, problem: &Problem, strategy: Strategy) -> Result<Self> {
        Self::of_kernels(super::all_kernels(), machine, problem, strategy)
    }

    /// What it would choose of these kernels.
    pub fn of_kernels(
        kernels: &[Kernel],
        machine: &Machine,
        problem: &Problem,
        strategy: Strategy,
    ) -> Result<Self> {
        let part = strategy.part_of(problem)?;
        let serves = |kernel: &Kernel| kernel.serves(problem.elements(), problem.b_layout(), true);
        let choices = choices(kernels, &part, machine.sms, serves);
        let Some(choice) = cheapest(kernels, &part, &choices, machine.sms) else {
            return Err(Error::Unsupported {
                what: format!(
                    "the product {} on the GPU",
                    kind(problem.elements(), problem.b_layout(), true)
                ),
                why: "no kernel computes it".into(),
                remedy: "use bf16, f16 or e4m3 inputs with B as N×K",
            });
        };
        let engine = Engine::usual(problem);
        Ok(Setup {
            strategy,
            engine,
            pieces: engine.usual_pieces(problem),
            kernel: kernels[choice.kernel].clone(),
            swizzle: choice.swizzle,
            splits: choice.splits,
        })
    }

    /// With that engine, and the pieces that go with it.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine, problem: &Problem) -> Self {
        (self.engine, self.pieces) = (engine, engine.usual_pieces(problem));
        self
    }

    /// The plan of `problem` that is carried out so.
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        let tiling = self.kernel.tiling(self.swizzle);
        Plan::new(problem, PlanOptions { chunks_per_shard: Some(self.pieces), tiling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;

    fn usual(m: u64, ranks: u64) -> Setup {
        let problem = Problem::builder(m, 3584, 8192).ranks(ranks).build().unwrap();
        Setup::usual(&Machine::h200(), &problem, Strategy::Fused).unwrap()
    }

    #[test]
    fn the_engine_goes_by_size() {
        let of = |setup: &Setup| (setup.engine, setup.pieces);
        assert_eq!(of(&usual(64, 4)), (Engine::Kernel { blocks: 16 }, 1));
        assert_eq!(of(&usual(4096, 4)), (Engine::CopyEngines { streams: 1 }, 1));
        assert_eq!(of(&usual(8192, 4)), (Engine::CopyEngines { streams: 1 }, 2));
        assert_eq!(of(&usual(4096, 2)), (Engine::CopyEngines { streams: 1 }, 2));
        assert_eq!(of(&usual(2, 2)), (Engine::Kernel { blocks: 16 }, 1));
        let wide = Problem::builder(8192, 5120, 8192).ranks(2).build().unwrap();
        let wide = Setup::usual(&Machine::h200(), &wide, Strategy::Fused).unwrap();
        assert_eq!(of(&wide), (Engine::CopyEngines { streams: 1 }, 1));
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let problem = Problem::builder(64, 64, 64)
            .elements(ElementType::F32, ElementType::F32, ElementType::F32)
            .build()
            .unwrap();
        let error = Setup::usual(&Machine::h200(), &problem, Strategy::Plain).unwrap_err();
        assert!(error.to_string().starts_with("the product f32 × f32 → f32"), "{error}");
    }

    #[test]
    fn a_pipelined_product_is_that_of_one_shard() {
        let problem = Problem::builder(128, 3584, 8192).ranks(8).build().unwrap();
        let setup = Setup::usual(&Machine::h200(), &problem, Strategy::Pipelined).unwrap();
        assert_eq!(setup.kernel.tile.m, 16);
    }
}
