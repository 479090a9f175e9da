//! What the host and the C side hand to each other: addresses and numbers, nothing that owns.
//!
//! What belongs here: the plain structs on the way from the safe values to `ffi`, and those that the device writes. Those marked
//! `repr(C)` are passed on as they are; `ffi.rs` holds their layout against the header's.

#![cfg_attr(
    not(overlap_gemm_kernels),
    expect(dead_code, reason = "without kernels nobody reads what would be passed on")
)]

use crate::element::ElementType;
use crate::plan::{Activation, Reduction, Tile};

/// The most chunks a product waits for: they travel as parameters of the kernel.
pub const MAX_CHUNKS: u32 = 256;

/// The most pieces of a shard that one kernel pushes, for the same reason.
pub const MAX_PUSHED: u32 = 32;

/// The largest `share_bits`: a signal is `1 << share_bits` words.
pub(crate) const MAX_SHARE_BITS: u32 = 7;

/// Bits of the abort word, `OG_ABORT_ASKED` and `OG_ABORT_LEFT`: everybody gives up; ranks have left.
pub(crate) const ASKED: u32 = 1;
pub(crate) const LEFT: u32 = 2;

/// One tile, or one slice of K of it; times are nanoseconds of the GPU's global timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TileRecord {
    /// When the wait for its chunks began.
    pub wait_begin: u64,
    /// When the last of them was there.
    pub ready: u64,
    /// When it had been computed; where K is cut, only in the record of the last slice, which adds the
    /// others up (`u64::MAX` in theirs).
    pub done: u64,
    /// Its place in the visiting order ([`TileOrder::index_of`](crate::plan::TileOrder::index_of)),
    /// times the number of splits, plus the slice of K.
    pub index: u64,
    /// The SM that computed it.
    pub sm: u32,
    /// Its tile row.
    pub tile_m: u32,
    /// Its tile column.
    pub tile_n: u32,
    /// The last of the chunks that its rows touch; `u32::MAX` where the product waits for none.
    pub chunk: u32,
}

impl TileRecord {
    /// Which tile.
    pub fn tile(&self) -> Tile {
        Tile { m: self.tile_m, n: self.tile_n }
    }

    /// The last of the chunks that it had to wait for.
    pub fn waited_for(&self) -> Option<u32> {
        (self.chunk != u32::MAX).then_some(self.chunk)
    }
}

/// What the product reads and writes; 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) d: u64,
    pub(crate) bias: u64,
    pub(crate) scale_a: u64,
    pub(crate) scale_b: u64,
    /// One scale for each row of A and each column of D, not one for all.
    pub(crate) scales_per_line: bool,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) activation: Activation,
    /// Nothing that may still run writes B.
    pub(crate) b_is_there: bool,
}

/// A run of rows that arrives as one: `og_chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Chunk {
    pub(crate) first_row: i32,
    pub(crate) signal: i32,
}

/// How the input arrives: `og_gemm_input`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) chunks: &'a [Chunk],
    pub(crate) pivot_row: i32,
    /// What is before it on the stream began when B was there.
    pub(crate) b_is_there: bool,
    pub(crate) signals: u64,
    pub(crate) epoch: u64,
    /// Not 0: the word that a step's beginning, right before it on the stream, sets first.
    pub(crate) begun: u64,
    pub(crate) stop: u64,
    pub(crate) abort: u64,
    pub(crate) failure: u64,
    pub(crate) timeout_ns: u64,
    /// Signal s is written by rank s / slots_per_rank; 0: by nobody whose departure is announced.
    pub(crate) slots_per_rank: i32,
    /// A signal is `1 << share_bits` words.
    pub(crate) share_bits: i32,
}

impl Input<'_> {
    /// The same for a product that comes behind another one of the step, and may read what that writes as anything but
    /// A and B.
    pub(crate) fn after_another(self) -> Self {
        Input { begun: 0, ..self }
    }
}

/// What a kernel that gave up leaves in host memory: `og_failure`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FailureRecord {
    pub(crate) chunk: u32,
    pub(crate) signal: u32,
    pub(crate) epoch: u32,
    pub(crate) tile_m: u32,
    pub(crate) tile_n: u32,
    pub(crate) reserved: [u32; 2],
    pub(crate) kind: u32,
}

impl FailureRecord {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const TIMEOUT: u32 = 1;
    pub(crate) const ABORTED: u32 = 2;
    pub(crate) const ABSENT: u32 = 3;
    pub(crate) const LAYOUT: u32 = 4;
    pub(crate) const LEFT: u32 = 5;
    pub(crate) const SLICE: u32 = 6;
}

/// Where the words of a gather are, and how this rank waits: `og_gather`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GatherWords {
    /// Device memory: the start of each rank's words.
    pub(crate) words: u64,
    /// Device memory: those of this rank.
    pub(crate) own: u64,
    pub(crate) ranks: i32,
    pub(crate) rank: i32,
    pub(crate) slots: i32,
    pub(crate) share_bits: i32,
    pub(crate) stop_at: i32,
    pub(crate) begun_at: i32,
    pub(crate) epoch_at: i32,
    pub(crate) over_at: i32,
    pub(crate) last_buffer_at: i32,
    pub(crate) last_use_at: i32,
    pub(crate) sent_at: i32,
    pub(crate) signals_at: i32,
    pub(crate) toggles_at: i32,
    pub(crate) consumed_at: i32,
    pub(crate) torn_at: i32,
    pub(crate) layouts_at: i32,
    pub(crate) abort: u64,
    pub(crate) failure: u64,
    pub(crate) timeout_ns: u64,
}

/// Where the words of a signal pad are: `og_pad`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PadWords {
    /// Device memory: the start of each rank's words, and of this rank's.
    pub(crate) words: u64,
    pub(crate) own: u64,
    pub(crate) ranks: i32,
    pub(crate) rank: i32,
    pub(crate) channels: i32,
    pub(crate) reserved: i32,
    pub(crate) abort: u64,
    pub(crate) failure: u64,
    pub(crate) timeout_ns: u64,
}

impl PadWords {
    /// Words before the first channel's.
    pub(crate) const HEADER: u32 = 32;
}

/// What a toggle is set to.
pub(crate) const TOGGLE_SET: u32 = 1;

/// One step of a gather: `og_gather_step`.
#[derive(Clone, Debug)]
pub(crate) struct GatherStep<'a> {
    pub(crate) buffer: u32,
    pub(crate) layout: u32,
    /// This rank's own slots.
    pub(crate) slots: std::ops::Range<u32>,
    pub(crate) toggled: bool,
    /// A product that looks at `begun` comes next on the stream; it may start, and read B, at once.
    pub(crate) product_follows: bool,
    pub(crate) product_may_start: bool,
    pub(crate) senders: u32,
    /// What a kernel of `blocks` blocks pushes.
    pub(crate) pushes: &'a [Push],
    pub(crate) blocks: u32,
    pub(crate) counter: u64,
}

/// Rows that are pushed, and signalled, as one: `og_push`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Push {
    /// From the start of every rank's words: the rows, then their scales.
    pub(crate) offset: [u64; 2],
    pub(crate) bytes: [u64; 2],
    pub(crate) slot: i32,
    pub(crate) reserved: i32,
}

/// Slots whose signals one kernel awaits: the first, and each `stride`-th behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) stride: u32,
    /// What a failure calls the first; those behind it count on.
    pub(crate) name: u32,
}

/// Rows of this rank's sums that a kernel sends to one rank: `og_sums_run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SumsRun {
    /// Where they land, in bytes from the start of the receiver's words.
    pub(crate) to: u64,
    pub(crate) first_row: i64,
    pub(crate) rows: i64,
    pub(crate) peer: i32,
    /// The slots of their signals, side by side.
    pub(crate) slot: i32,
    pub(crate) slots: i32,
    pub(crate) reserved: i32,
}

/// What follows the product of a reduction, by one kernel: `og_exchange`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    /// Row 0 of this rank's sums, and bytes from one row to the next.
    pub(crate) own: u64,
    pub(crate) row_bytes: u64,
    pub(crate) runs: &'a [SumsRun],
    pub(crate) awaited: &'a [Slots],
    /// What the kernel adds up.
    pub(crate) total: Option<(&'a Sums, &'a Totals)>,
}

/// All ranks' sums of some rows, and the words of their step. Pitches count elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    /// This rank's, and the first slot of the others'.
    pub(crate) own: u64,
    pub(crate) slots: u64,
    pub(crate) slot_pitch: u64,
    pub(crate) pitch: u64,
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    pub(crate) stop: u64,
    pub(crate) epoch: u64,
}

/// How sums become outputs: with [`Sums`], an `og_reduction`. Alignment and factors are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) rows: u32,
    pub(crate) n: u32,
    pub(crate) reduction: Reduction,
    pub(crate) d_type: ElementType,
    pub(crate) d: u64,
    pub(crate) c: u64,
    pub(crate) bias: u64,
    pub(crate) ldd: u32,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) activation: Activation,
}

/// Numbers of the C side are signed; what does not fit is refused there.
pub(crate) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
