//! A rank's part in the memory that the ranks of a gather have in common.
//!
//! What belongs here: addresses. Invariant: every rank has the same layout, so an offset means the same on all of them.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::layout::Layout;
use super::symmetric::SymmetricMemory;
use crate::error::Result;

/// The memory, and where everything lies in it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<SymmetricMemory>,
}

impl Part {
    /// Where this rank's part starts.
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.memory.own_address()
    }

    /// A word of this rank's.
    pub(crate) fn word(&self, at: u32) -> CUdeviceptr {
        self.start() + Layout::word(at)
    }

    /// A word of another's.
    pub(crate) fn word_of(&self, peer: u32, at: u32) -> Result<CUdeviceptr> {
        Ok(self.memory.address(peer)? + Layout::word(at))
    }
}
