//! What one call hands to the C side: addresses and numbers, nothing that owns.
//!
//! What belongs here: the plain structs on the way from the safe values to `ffi`. Those marked
//! `repr(C)` are passed on as they are; `ffi.rs` holds their layout against the header's.

#![cfg_attr(
    not(overlap_gemm_kernels),
    expect(dead_code, reason = "without kernels nobody reads what would be passed on")
)]

use super::options::Activation;

/// What the product reads and writes; 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) d: u64,
    pub(super) bias: u64,
    pub(super) scale_a: u64,
    pub(super) scale_b: u64,
    /// One scale for each row of A and each column of D, not one for all.
    pub(super) scales_per_line: bool,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) activation: Activation,
    /// Nothing that may still run writes B.
    pub(super) b_is_there: bool,
}

/// A run of rows that arrives as one: `og_chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Chunk {
    pub(super) first_row: i32,
    pub(super) signal: i32,
}

/// How the input arrives: `og_gemm_input`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    pub(super) chunks: &'a [Chunk],
    pub(super) pivot_row: i32,
    /// What is before it on the stream began when B was there.
    pub(super) b_is_there: bool,
    pub(super) signals: u64,
    pub(super) epoch: u64,
    /// Not 0: the word that a step's beginning, right before it on the stream, sets first.
    pub(super) begun: u64,
    pub(super) stop: u64,
    pub(super) abort: u64,
    pub(super) failure: u64,
    pub(super) timeout_ns: u64,
    /// Signal s is written by rank s / slots_per_rank; 0: by nobody whose departure is announced.
    pub(super) slots_per_rank: i32,
}

impl Input<'_> {
    /// The same for a product that comes behind another one of the step, and may read what that writes as anything but
    /// A and B.
    pub(super) fn after_another(self) -> Self {
        Input { begun: 0, ..self }
    }
}

/// What a kernel that gave up leaves in host memory: `og_failure`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct FailureRecord {
    pub(super) chunk: u32,
    pub(super) signal: u32,
    pub(super) epoch: u32,
    pub(super) tile_m: u32,
    pub(super) tile_n: u32,
    pub(super) reserved: [u32; 2],
    pub(super) kind: u32,
}

impl FailureRecord {
    pub(super) const NONE: u32 = 0;
    pub(super) const TIMEOUT: u32 = 1;
    pub(super) const ABORTED: u32 = 2;
    pub(super) const ABSENT: u32 = 3;
    pub(super) const LAYOUT: u32 = 4;
    pub(super) const LEFT: u32 = 5;
    pub(super) const SLICE: u32 = 6;
}

/// Where the words of a gather are, and how this rank waits: `og_gather`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct GatherWords {
    /// Device memory: the start of each rank's words.
    pub(super) words: u64,
    /// Device memory: those of this rank.
    pub(super) own: u64,
    pub(super) ranks: i32,
    pub(super) rank: i32,
    pub(super) slots: i32,
    pub(super) stop_at: i32,
    pub(super) begun_at: i32,
    pub(super) epoch_at: i32,
    pub(super) over_at: i32,
    pub(super) last_buffer_at: i32,
    pub(super) last_use_at: i32,
    pub(super) sent_at: i32,
    pub(super) signals_at: i32,
    pub(super) toggles_at: i32,
    pub(super) consumed_at: i32,
    pub(super) torn_at: i32,
    pub(super) layouts_at: i32,
    pub(super) abort: u64,
    pub(super) failure: u64,
    pub(super) timeout_ns: u64,
}

/// Where the words of a signal pad are: `og_pad`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct PadWords {
    /// Device memory: the start of each rank's words, and of this rank's.
    pub(super) words: u64,
    pub(super) own: u64,
    pub(super) ranks: i32,
    pub(super) rank: i32,
    pub(super) channels: i32,
    pub(super) reserved: i32,
    pub(super) abort: u64,
    pub(super) failure: u64,
    pub(super) timeout_ns: u64,
}

impl PadWords {
    /// Words before the first channel's.
    pub(super) const HEADER: u32 = 32;
}

/// What a toggle is set to.
pub(super) const TOGGLE_SET: u32 = 1;

/// One step of a gather: `og_gather_step`.
#[derive(Clone, Debug)]
pub(super) struct GatherStep<'a> {
    pub(super) buffer: u32,
    pub(super) layout: u32,
    /// This rank's own slots.
    pub(super) slots: std::ops::Range<u32>,
    pub(super) toggled: bool,
    /// A product that looks at `begun` comes next on the stream; it may start, and read B, at once.
    pub(super) product_follows: bool,
    pub(super) product_may_start: bool,
    pub(super) senders: u32,
    /// What a kernel of `blocks` blocks pushes.
    pub(super) pushes: &'a [Push],
    pub(super) blocks: u32,
    pub(super) counters: u64,
}

/// Rows that are pushed, and signalled, as one: `og_push`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Push {
    /// From the start of every rank's words: the rows, then their scales.
    pub(super) offset: [u64; 2],
    pub(super) bytes: [u64; 2],
    pub(super) slot: i32,
    pub(super) reserved: i32,
}

/// Numbers of the C side are signed; what does not fit is refused there.
pub(super) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
