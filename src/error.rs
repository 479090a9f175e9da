//! The one error type of the crate.
//!
//! Every message names the value, the limit and the remedy. Variants are grouped by when they
//! occur: while a plan is made (the caller's numbers are at fault; nothing has run), while a step
//! runs (a peer or the caller's timing is at fault; the output is poisoned), and where the
//! environment lacks something (a driver, a device, compiled kernels).

use std::time::Duration;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, each with what to do about it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number lies outside what is possible.
    #[error("{what} is {value}, but must be between {min} and {max}: {remedy}")]
    OutOfRange {
        /// Which number.
        what: String,
        /// What it was.
        value: u64,
        /// The least value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
        /// What to do instead.
        remedy: &'static str,
    },

    /// Two things that must agree do not (lengths, sums, element types, ranks).
    #[error("{what} is {got}, but must be {expected}: {remedy}")]
    Mismatch {
        /// Which quantity.
        what: String,
        /// What it was.
        got: String,
        /// What it has to be.
        expected: String,
        /// What to do instead.
        remedy: &'static str,
    },

    /// A pitch or an address does not meet the 16-byte rule of TMA.
    #[error("{what} is {bytes} bytes, which is no multiple of {multiple_of}: {remedy}")]
    Misaligned {
        /// Which pitch or address.
        what: &'static str,
        /// Its value in bytes.
        bytes: u64,
        /// The multiple it has to be.
        multiple_of: u64,
        /// What to do instead.
        remedy: &'static str,
    },

    /// A combination that this crate, or this executor, does not offer.
    #[error("{what} is not supported: {why}; {remedy}")]
    Unsupported {
        /// The combination.
        what: String,
        /// Why not.
        why: String,
        /// What to do instead.
        remedy: &'static str,
    },

    /// A scale is NaN or infinite.
    #[error("{what} is {value}, but must be finite: {remedy}")]
    NotFinite {
        /// Which scale, with its index where it is one of many.
        what: String,
        /// What it was.
        value: String,
        /// What to do instead.
        remedy: &'static str,
    },

    /// A chunk, or the acknowledgement of a buffer, did not come within the limit.
    #[error(
        "rank {rank}: {awaited} from rank {peer} did not come within {limit:?} (epoch {epoch} \
         expected, {epoch_seen} seen): see whether rank {peer} is stuck or slow, or raise the deadline"
    )]
    PeerTimeout {
        /// The rank that waited.
        rank: u32,
        /// The rank that owed the signal.
        peer: u32,
        /// What was awaited: `chunk 3 (for tile (0, 2))`, `consumption`.
        awaited: String,
        /// The epoch that was awaited.
        epoch: u32,
        /// The epoch that the signal carried when the limit ran out.
        epoch_seen: u32,
        /// The limit.
        limit: Duration,
    },

    /// A peer left the group while it still owed something, or its process ended.
    #[error(
        "rank {rank}: rank {peer} left the group before {before} was complete: form a new group"
    )]
    PeerLost {
        /// The rank that noticed.
        rank: u32,
        /// The rank that is gone.
        peer: u32,
        /// What can no longer complete: `epoch 3`, `the exchange 'a plan'`.
        before: String,
    },

    /// Ranks did not come to an exchange, or to the group itself, within the limit.
    #[error(
        "rank {rank}: rank {} did not come to {what} within {limit:?}: see whether it is stuck or was never \
         started, or raise the limit", list(.absent)
    )]
    Absent {
        /// The rank that waited.
        rank: u32,
        /// The ranks that it waited for.
        absent: Vec<u32>,
        /// Where they should have come: `the group`, `the exchange 'a plan'`.
        what: String,
        /// The limit.
        limit: Duration,
    },

    /// The ranks are no group: they cannot find each other, do not fit together, or do not do the same.
    #[error("no group: {reason}; {remedy}")]
    NoGroup {
        /// What was found, with the ranks' names.
        reason: String,
        /// What to do instead.
        remedy: &'static str,
    },

    /// The step was given up because somebody asked for it or another rank failed.
    #[error(
        "rank {rank}: the step was aborted: {reason}; to go on, plan the operation again (on a GPU: \
         clear the abort)"
    )]
    Aborted {
        /// The rank that was told to stop.
        rank: u32,
        /// Who asked, and why.
        reason: String,
    },

    /// The compute kernels are not part of this binary.
    #[error("the CUDA kernels are not in this binary: {reason}")]
    KernelsNotBuilt {
        /// Why they were not built, and what to do.
        reason: String,
    },

    /// No usable GPU, driver or GPU library was found.
    #[error("no usable GPU: {reason}")]
    NoDevice {
        /// What was looked for, and what to do.
        reason: String,
    },

    /// A file of measurements cannot be used: it is damaged, of another program, or of a later version. Plans are made
    /// without it.
    #[error("the tuning file {file} is not used: {reason}")]
    Tuning {
        /// Which file.
        file: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },

    /// A file of measurements cannot be written.
    #[error("the tuning file {file} cannot be written: {reason}; name another with --output")]
    TuningNotWritten {
        /// Which file.
        file: String,
        /// What the system said.
        reason: String,
    },

    /// A call of the CUDA driver, or a kernel of this crate, failed.
    #[error("{call} failed: {detail}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// The driver's code and words.
        detail: String,
    },
}

/// Numbers, for people: `1, 2`.
fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// `OutOfRange`, shorter to write.
    pub(crate) fn out_of_range(
        what: impl Into<String>,
        value: u64,
        min: u64,
        max: u64,
        remedy: &'static str,
    ) -> Self {
        Error::OutOfRange { what: what.into(), value, min, max, remedy }
    }

    /// `Mismatch`, shorter to write.
    pub(crate) fn mismatch(
        what: impl Into<String>,
        got: impl ToString,
        expected: impl ToString,
        remedy: &'static str,
    ) -> Self {
        Error::Mismatch {
            what: what.into(),
            got: got.to_string(),
            expected: expected.to_string(),
            remedy,
        }
    }
}
