//! The twin of `ffi.rs` for a binary without kernels: the same functions, each of which says why.
//!
//! What belongs here: as little as lets the rest of `cuda` compile unchanged. Invariant: nothing
//! here succeeds; [`Prepared`] has no value, so no plan can exist and nothing is ever enqueued.

use std::ffi::c_void;
use std::ops::Range;

use super::call::{Addresses, GatherStep, GatherWords, Input, PadWords};
use super::kernels::Kernel;
use super::shape::Shape;
use crate::error::{Error, Result};

/// Without kernels there is none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Prepared {}

impl Prepared {
    pub(super) fn workspace_bytes(&self) -> u64 {
        match *self {}
    }

    pub(super) fn sm_count(&self) -> u32 {
        match *self {}
    }

    pub(super) fn tile_count(&self) -> u64 {
        match *self {}
    }
}

/// Why there are none.
fn missing() -> Error {
    match super::kernels_built() {
        Ok(()) => unreachable!("kernels_built says so only in a build that has ffi.rs"),
        Err(error) => error,
    }
}

pub(super) fn check_abi() -> Result<()> {
    super::kernels_built()
}

pub(super) fn kernel_count() -> u32 {
    0
}

pub(super) fn kernel_info(_: u32) -> Result<Kernel> {
    Err(missing())
}

pub(super) fn check(_: &Shape) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn prepare(_: &Shape) -> Result<Prepared> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn enqueue(
    prepared: &Prepared,
    _: u32,
    _: &Addresses,
    _: Option<&Input<'_>>,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> Result<()> {
    match *prepared {}
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn epoch_advance(_: u64, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn signal_post(_: u64, _: u32, _: u64, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn gather_begin(
    _: &GatherWords,
    _: &GatherStep<'_>,
    _: *mut c_void,
) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn gather_await(
    _: &GatherWords,
    _: Range<u32>,
    _: u32,
    _: *mut c_void,
) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn pad_meet(
    _: &PadWords,
    _: u32,
    _: Option<u32>,
    _: bool,
    _: bool,
    _: *mut c_void,
) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn signals_prepare() -> Result<()> {
    Err(missing())
}
