//! The twin of `ffi.rs` for a binary without kernels: the same functions, each of which says why.
//!
//! What belongs here: as little as lets the rest of `cuda` compile unchanged. Invariant: nothing
//! here succeeds; [`Prepared`] has no value, so no plan can exist and nothing is ever enqueued.

use std::ffi::c_void;

use super::call::{
    Addresses, Exchange, GatherStep, GatherWords, Input, PadWords, Slots, Sums, Totals,
};
use super::generated;
use super::shape::Shape;
use crate::error::{Error, Result};
use crate::kernels::Kernel;

/// Without kernels there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepared {}

impl Prepared {
    pub(crate) fn workspace_bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn sm_count(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn tile_count(&self) -> u64 {
        match *self {}
    }
}

/// Why there are none.
fn missing() -> Error {
    Error::KernelsNotBuilt { reason: generated::REASON.into() }
}

pub(crate) fn check_abi() -> Result<()> {
    Err(missing())
}

pub(crate) fn kernel_count() -> u32 {
    0
}

pub(crate) fn kernel_info(_: u32) -> Result<Kernel> {
    Err(missing())
}

pub(crate) fn check(_: &Shape) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn prepare(_: &Shape) -> Result<Prepared> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn enqueue(
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
pub(crate) unsafe fn epoch_advance(_: u64, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn signal_post(_: u64, _: u32, _: u64, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn gather_begin(
    _: &GatherWords,
    _: &GatherStep<'_>,
    _: *mut c_void,
) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn gather_await(_: &GatherWords, _: &Slots, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn reduce(_: &Sums, _: &Totals, _: *mut c_void) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn exchange_sums(
    _: &GatherWords,
    _: &GatherStep<'_>,
    _: &Exchange<'_>,
    _: *mut c_void,
) -> Result<()> {
    Err(missing())
}

/// # Safety
/// None needed; the twin's does.
pub(crate) unsafe fn pad_meet(
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
pub(crate) unsafe fn signals_prepare() -> Result<()> {
    Err(missing())
}
