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
    pub(super) signals: u64,
    pub(super) epoch: u64,
    pub(super) stop: u64,
    pub(super) abort: u64,
    pub(super) failure: u64,
    pub(super) timeout_ns: u64,
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
}
