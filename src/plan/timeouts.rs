//! How long ranks wait for each other.
//!
//! Invariant: plain values, the same for both executors.

use std::time::Duration;

/// How long a rank waits for one chunk, or for one buffer, before it gives the step up.
///
/// Progress counts: a step of many chunks may take longer, as long as no single one does.
///
/// ```
/// use std::time::Duration;
/// use overlap_gemm::plan::Timeouts;
///
/// let timeouts = Timeouts { steady: Duration::from_secs(2), ..Timeouts::default() };
/// assert_eq!(timeouts.first, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// In an operation's first step, when peers may still be starting.
    pub first: Duration,
    /// In every later step, and in graphs.
    pub steady: Duration,
}

impl Timeouts {
    /// One for the first step, one for all later ones.
    pub const fn new(first: Duration, steady: Duration) -> Self {
        Timeouts { first, steady }
    }
}

impl Default for Timeouts {
    /// A minute for the first step, ten seconds from then on.
    fn default() -> Self {
        Timeouts { first: Duration::from_secs(60), steady: Duration::from_secs(10) }
    }
}
