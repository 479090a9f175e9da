//! How an operation is carried out: the order of gathering and multiplying, the engine that moves the rows, the pieces.
//!
//! What belongs here: the one set of types for these choices, and the rules for their defaults. Plan, cost model, tables,
//! executors and JSON all use these types. Invariant: a default follows from the problem alone, so all ranks choose the same.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::chunks::MAX_SPANS;
use super::problem::Problem;
use crate::error::{Error, Result};

/// The most streams that copy engines push on.
pub const MAX_STREAMS: u32 = 8;
/// The most blocks of a kernel that pushes.
pub const MAX_BLOCKS: u32 = 128;
/// The most pieces that a kernel pushes to one rank; in a reduction, the most ranks times pieces of a shard.
pub const MAX_PUSHED: u32 = 32;
/// The most bytes of a shard that a kernel pushes by default, but for shards that travel in spans of columns.
pub const SMALL_SHARD: u64 = 4 << 20;
/// The most bytes of a shard that eight blocks push, but for shards that travel in spans of columns. Sixteen would gain less
/// than what the product loses, whose clusters find fewer SMs free (benches/results/2026-11-27-h200x2-blocks.txt).
const SMALLEST_SHARD: u128 = 512 << 10;

/// A kernel that sends no more than this many bytes to each peer signals all peers together, after the last (`kFewBytes` in
/// `csrc/gather.cu`): the rows arrive sooner than a block can know that its stores have arrived.
pub(super) const FEW_BYTES: u64 = 1 << 20;
/// Bytes of a shard in each span, about: for each span a block waits until it knows that its stores have arrived, 1.6 µs.
const SPAN_BYTES: u128 = 512 << 10;
/// The largest shard that is pushed in spans; and by default: twice the largest that was measured when the default was chosen
/// (benches/results/2026-11-27-h200x2-spans.md).
const MOST_BYTES_IN_SPANS: u128 = 64 << 20;
const USUAL_BYTES_IN_SPANS: u128 = 16 << 20;
/// The elements of D that a GPU computes at the same time: 132 SMs, a tile of 256×192 each.
const OUTPUTS_AT_ONCE: u64 = 132 * 256 * 192;
/// With no more columns on one rank, rows take about as long to arrive as to be multiplied, or longer, so that own rows do not hide the
/// others'. That gains for shards that a kernel does not push by default (benches/results/2026-11-27-h200x2-few-columns.md).
const FEW_COLUMNS: u32 = 2048;
/// The most times that a GPU then computes as many tiles as it can: those of a later time wait for nothing.
const FEW_TIMES: u64 = 2;
/// The most blocks that push spans: the product leaves them their SMs.
const MOST_BLOCKS_OF_SPANS: u32 = 16;

/// The order of gathering and multiplying.
///
/// ```
/// use overlap_gemm::plan::{PlanOptions, Strategy};
///
/// let options = PlanOptions::new().with_strategy(Strategy::Pipelined);
/// assert_eq!(options.strategy.to_string(), "pipelined");
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// One product that waits, tile by tile, for the rows that it needs. In a reduction each chunk is a product; on GPUs, those of
    /// a rank's own rows add the other ranks' sums to their own.
    #[default]
    Fused,
    /// A product for each rank's rows, one after the other, each after its rows have arrived; also called decomposition.
    Pipelined,
    /// All rows first, then one product; in a reduction one product first, then all sums. With [`Engine::Nccl`]: the baseline.
    Sequential,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 3] = [Strategy::Fused, Strategy::Pipelined, Strategy::Sequential];

    /// The largest product of a step; not of a fused reduction, where each chunk is a product.
    pub fn part_of(self, problem: &Problem) -> Result<Problem> {
        match self {
            Strategy::Pipelined => problem.of_largest_shard(),
            Strategy::Fused | Strategy::Sequential => Ok(problem.clone()),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strategy::Fused => "fused",
            Strategy::Pipelined => "pipelined",
            Strategy::Sequential => "sequential",
        })
    }
}

/// The engine that moves the rows.
///
/// ```
/// use overlap_gemm::plan::{Engine, Problem, Strategy};
///
/// // What moves the rows if nobody asks: a kernel for small shards, copy engines for others.
/// let usual = |m| -> overlap_gemm::Result<Engine> {
///     let problem = Problem::builder(m, 3584, 8192).ranks(2).build()?;
///     Ok(Engine::usual(&problem, Strategy::Fused))
/// };
/// assert!(matches!(usual(64)?, Engine::Kernel { .. }));
/// assert!(matches!(usual(8192)?, Engine::CopyEngines { .. }));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Engine {
    /// A thread of each rank: the host executor.
    Thread,
    /// Copy engines of a GPU. They take no SM, and a piece costs them some microseconds. In CUDA graphs: leave
    /// `CUDA_DEVICE_MAX_CONNECTIONS` unset; with 32, each step takes 24 to 35 µs longer.
    CopyEngines {
        /// 1 to [`MAX_STREAMS`]. Chunks take the streams in turn; with two, no chunk waits for the previous one's
        /// signal. Copies to several peers at once take longer than one after the other, so more streams than a shard
        /// has pieces are slower.
        streams: u32,
    },
    /// A kernel before the product, on the same stream: the fastest engine for small shards, as no stream waits for
    /// another. In a reduction: a kernel behind the product, which waits for all ranks' sums and adds them up, where they lie; in an
    /// all-reduce it may also send the totals ([`Plan::has_two_shots`](super::Plan::has_two_shots)).
    /// Its blocks hold SMs while they wait, so ranks that share a GPU need room for a product beside them.
    Kernel {
        /// 1 to [`MAX_BLOCKS`].
        blocks: u32,
    },
    /// NCCL, loaded at run time: the engine between GPUs that do not reach each other's memory, on several machines, for
    /// example. It signals nothing before all rows have arrived, so it works with [`Strategy::Sequential`] only.
    ///
    /// In a reduction it adds up all ranks' sums behind the product, in an order of its own, and may round to the type of the
    /// partials after each addition. So outputs may differ in their last bits from those of the other engines, and with the version
    /// of NCCL, its settings and the GPUs. Between ranks they do not differ: NCCL promises each rank of an all-reduce identical
    /// totals, of which all ranks compute D alike.
    ///
    /// Its kernels have no timeout. Only the operation's `synchronize` has one: the sum of the timeouts of all steps
    /// enqueued since its last call, and `steady` at least. The steps of a graph count when they are captured, not when
    /// the graph is launched: call `synchronize` before the launches since its last call take longer than its timeout.
    /// Any other wait on the stream can hang as long as a rank is stuck. Enqueuing a step takes some 50 µs of the host's
    /// time (not in graphs). If a step's rows differ from those of the step before, enqueuing it also blocks the host
    /// until all ranks have come to it.
    Nccl,
}

/// The smallest default piece of a shard, per rank: each piece costs a copy engine some microseconds for each
/// peer, and more ranks mean more pieces.
const SMALLEST_PIECE: u128 = 4 << 20;
/// More pieces than this gain nothing.
const MOST_PIECES: u128 = 2;
/// With more columns on one rank, one piece is enough: its own rows take longer to multiply than the next rank's take to
/// arrive, and more pieces only separate rows that would sweep over B together.
const MOST_COLUMNS_IN_PIECES: u32 = 4096;

impl Engine {
    /// A kernel with as few blocks as fill the link beside a product: each occupies an SM while it pushes.
    pub const PUSHING: Engine = Engine::Kernel { blocks: 16 };

    /// A kernel that reads all ranks' sums and adds them up, which takes more blocks than filling the link.
    pub const EXCHANGING: Engine = Engine::Kernel { blocks: 64 };

    /// An error if its number of streams or blocks is out of range.
    pub fn check(self) -> Result<()> {
        let (what, value, most) = match self {
            Engine::CopyEngines { streams } => ("the number of streams", streams, MAX_STREAMS),
            Engine::Kernel { blocks } => ("the number of blocks", blocks, MAX_BLOCKS),
            Engine::Thread | Engine::Nccl => return Ok(()),
        };
        Error::check_range(what, value, 1..=most, "choose a number in that range")
    }

    /// The blocks of a kernel that pushes.
    pub(crate) fn pushing_blocks(self) -> u32 {
        if let Engine::Kernel { blocks } = self { blocks } else { 0 }
    }

    /// The default on GPUs that reach each other's memory, for products that are computed in that order.
    pub fn usual(problem: &Problem, strategy: Strategy) -> Self {
        match problem.shard_bytes() {
            0..=SMALLEST_SHARD => Engine::Kernel { blocks: 8 },
            bytes
                if strategy == Strategy::Fused
                    && gains_by_spans(problem)
                    && bytes <= USUAL_BYTES_IN_SPANS
                    && outputs(problem) <= OUTPUTS_AT_ONCE =>
            {
                let blocks = if bytes < SMALL_SHARD.into() { 8 } else { MOST_BLOCKS_OF_SPANS };
                Engine::Kernel { blocks }
            }
            bytes if bytes <= SMALL_SHARD.into() => Engine::PUSHING,
            // Copies to two peers at once take longer than one after the other.
            _ => Engine::CopyEngines { streams: 1 },
        }
    }

    /// The default number of pieces of a shard.
    pub fn usual_pieces(self, problem: &Problem) -> u32 {
        let pieces = match self {
            Engine::Nccl => 1,
            _ if problem.n() > MOST_COLUMNS_IN_PIECES => 1,
            _ => {
                let smallest = SMALLEST_PIECE * u128::from(problem.ranks().max(2));
                (problem.shard_bytes() / smallest).clamp(1, MOST_PIECES) as u32
            }
        };
        pieces.min(problem.shards().most_rows())
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Thread => f.write_str("a thread"),
            Engine::CopyEngines { streams: 1 } => f.write_str("copy engines on one stream"),
            Engine::CopyEngines { streams } => write!(f, "copy engines on {streams} streams"),
            Engine::Kernel { blocks } => write!(f, "a kernel of {blocks} blocks"),
            Engine::Nccl => f.write_str("NCCL"),
        }
    }
}

/// Whether the other ranks' rows arrive at least twice as fast as a rank multiplies them.
pub(super) fn rows_come_early(problem: &Problem) -> bool {
    problem.n() > MOST_COLUMNS_IN_PIECES
}

/// Whether spans gain: multiplying the own rows hides little of the transfer, and a shard is too large to arrive at once.
fn gains_by_spans(problem: &Problem) -> bool {
    let bytes = problem.shard_bytes();
    let come_slowly = problem.n() <= FEW_COLUMNS && bytes > SMALL_SHARD.into();
    problem.ranks() > 1
        && bytes > FEW_BYTES.into()
        && bytes <= MOST_BYTES_IN_SPANS
        && outputs(problem) <= if come_slowly { FEW_TIMES } else { 1 } * OUTPUTS_AT_ONCE
}

/// The elements of D on one rank.
fn outputs(problem: &Problem) -> u64 {
    u64::from(problem.m()) * u64::from(problem.n())
}

/// Strategy, engine and pieces: how an operation is carried out.
///
/// ```
/// use overlap_gemm::plan::{Engine, Strategy, Way};
///
/// let way = Way { strategy: Strategy::Fused, engine: Engine::CopyEngines { streams: 1 }, pieces: 2 };
/// assert_eq!(way.to_string(), "fused, copy engines on one stream, 2 pieces");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// The order of gathering and multiplying.
    pub strategy: Strategy,
    /// The engine that moves the rows.
    pub engine: Engine,
    /// Chunks per shard.
    pub pieces: u32,
}

impl Way {
    /// The number of spans in which a kernel pushes each chunk to a product that waits. One, if a chunk arrives before a
    /// block's fence would end, or if the product multiplies its own rows meanwhile.
    pub(crate) fn spans(self, problem: &Problem) -> u32 {
        let is_pushed =
            matches!(self.engine, Engine::Kernel { blocks } if blocks <= MOST_BLOCKS_OF_SPANS);
        if !is_pushed || self.strategy != Strategy::Fused || !gains_by_spans(problem) {
            return 1;
        }
        ((problem.shard_bytes() / SPAN_BYTES).min(MAX_SPANS.into()) as u32).next_power_of_two()
    }

    /// The SMs, of `all`, that a product takes beside the blocks that push to the others. While spans travel no tile should
    /// wait for a block's SM: else nothing is gained. But a small part of a GPU has no SMs to spare.
    pub(crate) fn sms_of_product(self, problem: &Problem, all: u32) -> u32 {
        let blocks = self.engine.pushing_blocks();
        if self.spans(problem) > 1 && 2 * blocks <= all { all - blocks } else { all }
    }

    /// The largest product of a reduction's step: in a fused one each chunk is a product, and of a chunk each of its parts.
    pub(crate) fn part_of_sums(self, problem: &Problem) -> Result<Problem> {
        let most = problem.shards().most_rows();
        let in_a_part = most / problem.batches();
        match self.strategy {
            Strategy::Fused => problem.truncated(most.div_ceil(self.pieces.max(1)).min(in_a_part)),
            _ if problem.batches() > 1 || problem.scatters_columns() => {
                problem.truncated(in_a_part)
            }
            strategy => strategy.part_of(problem),
        }
    }

    /// An error if this engine cannot carry out this strategy, or this number of pieces.
    pub fn check(self) -> Result<()> {
        self.engine.check()?;
        if self.engine != Engine::Nccl {
            return Ok(());
        }
        if self.strategy != Strategy::Sequential {
            return Err(Error::Unsupported {
                what: "waiting for some of the rows or sums that NCCL moves".into(),
                why: "it signals nothing before all of them have arrived".into(),
                remedy: "use Strategy::Sequential, or another engine",
            });
        }
        let (what, remedy) = ("the number of pieces a shard", "NCCL moves all at once");
        Error::check_range(what, self.pieces, 1..=1, remedy)
    }
}

impl fmt::Display for Way {
    /// `fused, copy engines on one stream, 2 pieces`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = if self.pieces == 1 { "piece" } else { "pieces" };
        write!(f, "{}, {}, {} {pieces}", self.strategy, self.engine, self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_goes_by_size() {
        let usual = |m: u64, n: u64, ranks: u64| {
            let problem = Problem::builder(m, n, 8192).ranks(ranks).build().unwrap();
            let engine = Engine::usual(&problem, Strategy::Fused);
            (engine, engine.usual_pieces(&problem))
        };
        let copies = Engine::CopyEngines { streams: 1 };
        assert_eq!(usual(64, 3584, 4), (Engine::Kernel { blocks: 8 }, 1));
        assert_eq!(usual(256, 3584, 4), (Engine::Kernel { blocks: 16 }, 1));
        assert_eq!(usual(4096, 3584, 4), (copies, 1));
        assert_eq!(usual(8192, 3584, 4), (copies, 2));
        assert_eq!(usual(4096, 3584, 2), (copies, 2));
        assert_eq!(usual(2, 3584, 2), (Engine::Kernel { blocks: 8 }, 1));
        assert_eq!(usual(8192, 5120, 2), (copies, 1));
    }

    #[test]
    fn rows_travel_in_spans_where_no_others_hide_them() {
        let spans = |m: u64, n: u64, k: u64, engine: Option<Engine>| {
            let problem = Problem::builder(m, n, k).ranks(2).build().unwrap();
            let engine = engine.unwrap_or(Engine::usual(&problem, Strategy::Fused));
            let way = Way { strategy: Strategy::Fused, engine, pieces: 1 };
            (engine.pushing_blocks(), way.spans(&problem), way.sms_of_product(&problem, 132))
        };
        assert_eq!(spans(512, 3584, 8192, None), (16, 8, 116));
        assert_eq!(spans(256, 3584, 8192, None), (8, 4, 124));
        assert_eq!(spans(160, 3584, 8192, None), (8, 2, 124));
        // Few columns: rows take longer to arrive than to be multiplied. With more, own rows hide them.
        assert_eq!(spans(6144, 1152, 2688, None), (0, 1, 132));
        assert_eq!(spans(6144, 1152, 2688, Some(Engine::PUSHING)), (16, 8, 116));
        assert_eq!(spans(6144, 2176, 2688, Some(Engine::PUSHING)), (16, 1, 132));
        assert_eq!(spans(16_384, 1152, 2688, Some(Engine::PUSHING)), (16, 1, 132));
        // A small shard goes as before, and so does a very large one.
        assert_eq!(spans(4096, 2048, 1024, None), (16, 1, 132));
        assert_eq!(spans(8192, 1024, 16_384, Some(Engine::PUSHING)), (16, 1, 132));
        let problem = Problem::builder(512, 3584, 8192).ranks(2).build().unwrap();
        let way = Way { strategy: Strategy::Fused, engine: Engine::PUSHING, pieces: 1 };
        assert_eq!(way.sms_of_product(&problem, 14), 14);
        // Alone, copies move a large shard.
        let gathered = Problem::builder(16_384, 16, 8192).ranks(2).build().unwrap();
        let copies = Engine::CopyEngines { streams: 1 };
        assert_eq!(Engine::usual(&gathered, Strategy::Sequential), copies);
        // It arrives at once; own rows hide the others'; it is too large; its blocks take too many SMs; it copies.
        assert_eq!(spans(128, 3584, 8192, None), (16, 1, 132));
        assert_eq!(spans(512, 14_336, 4096, None), (16, 1, 132));
        assert_eq!(spans(262_144, 16, 8192, None), (0, 1, 132));
        assert_eq!(spans(512, 3584, 8192, Some(Engine::Kernel { blocks: 17 })), (17, 1, 132));
        assert_eq!(spans(512, 3584, 8192, Some(copies)), (0, 1, 132));
    }

    #[test]
    fn what_an_engine_cannot_do_is_refused() {
        let refused = |strategy, engine, pieces| {
            Way { strategy, engine, pieces }.check().unwrap_err().to_string()
        };
        let text = refused(Strategy::Fused, Engine::Nccl, 1);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let text = refused(Strategy::Sequential, Engine::Nccl, 2);
        assert!(text.starts_with("the number of pieces a shard is 2"), "{text}");
        let text = refused(Strategy::Fused, Engine::CopyEngines { streams: 9 }, 1);
        assert!(text.starts_with("the number of streams is 9"), "{text}");
        let text = refused(Strategy::Fused, Engine::Kernel { blocks: 129 }, 1);
        assert!(text.starts_with("the number of blocks is 129"), "{text}");
    }
}
