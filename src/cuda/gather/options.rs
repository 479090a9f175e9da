//! What may be asked of a gather.
//!
//! What belongs here: plain values, the same on every rank. Invariant: the default is right on any machine
//! whose GPUs reach each other, and fast on NVLink.

use std::time::Duration;

/// Who moves the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// A kernel for shards of up to [`SMALL_SHARD`] bytes, copy engines for larger ones; NCCL where some
    /// GPU cannot reach another's memory.
    Auto,
    /// Copy engines, by so many streams: they take no SM, and cost some microseconds a piece.
    CopyEngines {
        /// 1 to 8; with two, one chunk's signal does not hold up the next chunk. Chunks go round the streams, and copies to
        /// several peers at once take longer than one after the other: more streams than a shard has pieces are slower.
        streams: u32,
    },
    /// A kernel of so many blocks, on the stream of the product and before it: the quickest way for
    /// little, for nothing has to be handed from stream to stream.
    Kernel {
        /// 1 to 128.
        blocks: u32,
    },
    /// NCCL, loaded at run time ([`nccl`](crate::cuda::nccl)): the way between GPUs that do not reach each other's
    /// memory, on several machines, say. Nothing is told while rows are on their way, so it goes with
    /// [`Strategy::Sequential`](crate::cuda::Strategy::Sequential) and
    /// [`AllGather`](crate::cuda::AllGather) only. Its kernels know no limit:
    /// limits hold where the operation's `synchronize` waits, once for each step that was begun since the last
    /// time (a graph's when it is captured, however often it is launched), and beginning a step takes some 50 µs of the host's time (not in graphs); who waits for the stream by other means may wait for as long as a rank is stuck. A step with other
    /// rows than the one before makes the ranks agree on the host, so its beginning waits for the others.
    Nccl,
}

/// The most bytes a shard may have for [`Engine::Auto`] to push it by a kernel.
pub use crate::predict::SMALL_SHARD;

/// How rows are to be gathered. All ranks have to ask for the same.
///
/// ```
/// use overlap_gemm::cuda::{Engine, GatherOptions};
/// let options = GatherOptions::default().with_engine(Engine::CopyEngines { streams: 2 });
/// assert_eq!(options.pieces, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatherOptions {
    /// Who moves the rows.
    pub engine: Engine,
    /// Chunks a shard (default: by its size and the columns of the first product).
    pub pieces: Option<u32>,
    /// Fills the other ranks' rows of a step with NaN when the next one begins, so that rows which are read too
    /// early, or too late, are seen in the result. For finding faults; costs two memsets a step.
    pub poison: bool,
    /// How long to wait for others when the operation is planned, and in its first step.
    pub first_limit: Duration,
    /// How long to wait for any chunk in later steps, and in graphs.
    pub limit: Duration,
    /// The epoch before the first.
    pub first_epoch: u32,
}

impl Default for GatherOptions {
    /// A minute for the first step, ten seconds from then on.
    fn default() -> Self {
        GatherOptions {
            engine: Engine::Auto,
            pieces: None,
            poison: false,
            first_limit: Duration::from_secs(60),
            limit: Duration::from_secs(10),
            first_epoch: 0,
        }
    }
}

impl GatherOptions {
    /// Who moves the rows.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Chunks a shard.
    #[must_use]
    pub fn with_pieces(mut self, pieces: u32) -> Self {
        self.pieces = Some(pieces);
        self
    }

    /// Whether rows of past steps are filled with NaN.
    #[must_use]
    pub fn with_poison(mut self, poison: bool) -> Self {
        self.poison = poison;
        self
    }

    /// How long to wait: in the first step, and later.
    #[must_use]
    pub fn with_limits(mut self, first: Duration, steady: Duration) -> Self {
        (self.first_limit, self.limit) = (first, steady);
        self
    }

    /// Begins as if `epoch` had been the last step's: for tests of the wrap.
    #[must_use]
    pub fn with_first_epoch(mut self, epoch: u32) -> Self {
        self.first_epoch = epoch;
        self
    }
}
