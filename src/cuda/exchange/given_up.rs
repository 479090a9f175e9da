//! Which ranks have given up, as each says in its own host's memory.
//!
//! What belongs here: exchanging these pages, and looking at them. A rank's kernels set the word before they send or signal
//! anything that may be wrong; so a host that has waited for its stream finds it there, and needs no copy from the device, which
//! could wait for other work. Invariant: looking never blocks.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::cuda::sys::bindings::og_failure;
use crate::cuda::sys::host_words::Page;
use crate::error::Result;
use crate::group::Group;

/// All ranks' words, in their order; none where ranks tell each other nothing in this way.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Vec<Page>);

impl GivenUp {
    /// Each rank brings the file of its host's words. Collective; all ranks are on one machine.
    pub(crate) fn exchange(group: &Group, own: &OwnedFd, limit: Duration) -> Result<Self> {
        let files =
            group.exchange_handles("where a rank tells of failures", &[own.as_fd()], limit)?;
        let pages = files.iter().flatten().map(|file| Page::of(file.as_fd()));
        Ok(GivenUp(pages.collect::<Result<_>>()?))
    }

    /// The first rank that has given up, and its record, if it is there already.
    pub(crate) fn first(&self) -> Option<(u32, Option<og_failure>)> {
        let mut pages = (0..).zip(&self.0);
        pages.find(|(_, page)| page.has_given_up()).map(|(rank, page)| (rank, page.failure()))
    }
}
