//! The all-gather as data: what each rank sends, in which order, and what it waits for.
//!
//! In round d, rank i sends to rank (i − d) mod W, the one that needs i's chunks d-th. So in every
//! round each rank sends to one peer and receives from one, and what is sent to a consumer is sent
//! in the order in which its tiles need it: while ranks keep pace, it arrives so. Round 0 is the rank itself: its shard enters its own
//! slot of the gathered buffer (nothing to do where the producer already wrote there).
//!
//! ```text
//!   W = 4      round 0     round 1     round 2     round 3
//!   rank 0     → 0         → 3         → 2         → 1
//!   rank 1     → 1         → 0         → 3         → 2
//!   rank 2     → 2         → 1         → 0         → 3
//!   rank 3     → 3         → 2         → 1         → 0
//!   so rank 0 hears from  0 (itself),  1,          2,          3
//! ```
//!
//! Two ordered lists a rank: the sender's and the consumer's. They run side by side, and they are
//! repeated every epoch. Invariants: a signal follows its data; a send into a buffer follows the
//! wait for its consumer to have finished the epoch that used it before; no list names another
//! rank's progress except through the two waits, which are the whole protocol.

use super::chunks::Chunks;

/// How often the gathered buffer exists: epoch e lives in buffer e mod 2.
///
/// Two let a rank be filled for the next step while it computes this one; with one, the senders
/// would stand still during every product. A third would only let ranks drift further apart.
pub const BUFFERS: u32 = 2;

/// One step of a rank's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", tag = "step"))]
pub enum SenderStep {
    /// Wait until `peer` has consumed what this epoch's buffer held [`BUFFERS`] epochs ago.
    AwaitConsumed {
        /// The round it belongs to.
        round: u32,
        /// The consumer.
        peer: u32,
    },
    /// Write the rows of `chunk` into the gathered buffer of rank `to`.
    Send {
        /// The round it belongs to.
        round: u32,
        /// Which chunk, one of the sender's own.
        chunk: u32,
        /// The consumer.
        to: u32,
    },
    /// Tell rank `to` that `chunk` is there, after its data.
    Signal {
        /// The round it belongs to.
        round: u32,
        /// Which chunk.
        chunk: u32,
        /// The consumer.
        to: u32,
    },
}

/// One step of a rank's consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", tag = "step"))]
pub enum ConsumerStep {
    /// Wait for the signal of `chunk`, then read it.
    AwaitChunk {
        /// Which chunk.
        chunk: u32,
    },
    /// Tell rank `to` that this epoch's buffer is no longer read.
    PostConsumed {
        /// The rank that may overwrite its part of the buffer.
        to: u32,
    },
}

/// The all-gather of one problem's chunks.
///
/// ```
/// use overlap_gemm::plan::{Chunks, SenderStep, Shards, Transfers};
///
/// let transfers = Transfers::new(&Chunks::even(&Shards::even(8, 4)?, 1)?);
/// let peers: Vec<u32> = (0..4).map(|round| transfers.peer_in_round(1, round)).collect();
/// assert_eq!(peers, [1, 0, 3, 2]);
/// assert_eq!(
///     transfers.sender(1).nth(4),
///     Some(SenderStep::Send { round: 1, chunk: 1, to: 0 })
/// );
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfers {
    chunks: Chunks,
}

impl Transfers {
    /// The all-gather of `chunks`.
    pub fn new(chunks: &Chunks) -> Self {
        Transfers { chunks: chunks.clone() }
    }

    /// The chunks that travel.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The number of ranks, which is also the number of rounds.
    pub fn ranks(&self) -> u32 {
        self.chunks.shards().ranks()
    }

    /// The rank that `rank` sends to in `round`.
    pub fn peer_in_round(&self, rank: u32, round: u32) -> u32 {
        let ranks = self.ranks();
        (rank % ranks + ranks - round % ranks) % ranks
    }

    /// What `rank` sends in one epoch, in order.
    pub fn sender(&self, rank: u32) -> impl Iterator<Item = SenderStep> + '_ {
        (0..self.ranks()).flat_map(move |round| self.round(rank, round))
    }

    /// What `rank` sends in one round of an epoch, in order; nothing if its shard is empty.
    pub fn round(&self, rank: u32, round: u32) -> impl Iterator<Item = SenderStep> + use<> {
        let to = self.peer_in_round(rank, round);
        let own = self.chunks.of_rank(rank);
        let gate = (!own.is_empty()).then_some(SenderStep::AwaitConsumed { round, peer: to });
        gate.into_iter().chain(own.flat_map(move |chunk| {
            [SenderStep::Send { round, chunk, to }, SenderStep::Signal { round, chunk, to }]
        }))
    }

    /// What `rank` waits for and announces in one epoch, in order.
    pub fn consumer(&self, rank: u32) -> impl Iterator<Item = ConsumerStep> + '_ {
        let waits = self.chunks.need_order(rank).map(|chunk| ConsumerStep::AwaitChunk { chunk });
        let told = self.told_consumed(rank).map(|to| ConsumerStep::PostConsumed { to });
        waits.chain(told)
    }

    /// The ranks that `rank` tells that it has consumed a buffer, in order: the one that sends
    /// here first is told first.
    pub fn told_consumed(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let ranks = self.ranks();
        (0..ranks).map(move |round| (rank % ranks + round) % ranks)
    }

    /// The bytes that `rank` sends to others in one epoch, for rows of `row_bytes` bytes.
    pub fn bytes_sent(&self, rank: u32, row_bytes: u64) -> u128 {
        let rows = self.chunks.shards().rows(rank).len() as u128;
        rows * u128::from(row_bytes) * u128::from(self.ranks() - 1)
    }
}
