//! The twin of `ffi.rs` for a binary without kernels: the same functions, each of which says why.
//!
//! What belongs here: as little as lets the rest of `cuda` compile unchanged. Invariant: nothing
//! here succeeds; [`Prepared`] has no value, so no plan can exist and nothing is ever enqueued.

use std::ffi::c_void;

use super::gemm::{Addresses, Product};
use crate::error::Result;

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
}

pub(super) fn check_abi() -> Result<()> {
    super::kernels_built()
}

pub(super) fn check(_: &Product, _: &Addresses) -> Result<()> {
    super::kernels_built()
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn prepare(_: &Product) -> Result<Prepared> {
    match super::kernels_built() {
        Ok(()) => unreachable!("kernels_built says so only in a build that has ffi.rs"),
        Err(error) => Err(error),
    }
}

/// # Safety
/// None needed; the twin's does.
pub(super) unsafe fn enqueue(
    _: &Product,
    prepared: &Prepared,
    _: &Addresses,
    _: u64,
    _: *mut c_void,
) -> Result<()> {
    match *prepared {}
}
