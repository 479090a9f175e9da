//! The one error type of the crate.
//!
//! Every message names the value, the limit and the remedy. Variants are grouped by the time at which they
//! occur: while a plan is made (a number of the caller is wrong; nothing has run), while a step
//! runs (a peer failed or was late; the output is poisoned), and where the
//! environment lacks something (a driver, a device, compiled kernels).

use std::time::Duration;

/// `Result` with this crate's [`Error`].
///
/// ```
/// use overlap_gemm::plan::Shards;
///
/// fn even(m: u32) -> overlap_gemm::Result<Shards> {
///     Shards::even(m, 8)
/// }
/// assert_eq!(even(64)?.rows(1), 8..16);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// All errors, each with its remedy.
///
/// ```
/// use overlap_gemm::Error;
/// use overlap_gemm::plan::Problem;
///
/// let error = Problem::builder(64, 64, 64).ranks(0).build().unwrap_err();
/// assert!(matches!(error, Error::OutOfRange { value: 0, min: 1, .. }), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number lies outside what is possible.
    #[error("{what} is {value}, but must be between {min} and {max}: {remedy}")]
    OutOfRange {
        /// The name of the number.
        what: String,
        /// Its value.
        value: u64,
        /// The least value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
        /// The remedy.
        remedy: &'static str,
    },

    /// Two things that must agree do not (lengths, sums, element types, ranks).
    #[error("{what} is {got}, but must be {expected}: {remedy}")]
    Mismatch {
        /// Which quantity.
        what: String,
        /// Its value.
        got: String,
        /// The expected value.
        expected: String,
        /// The remedy.
        remedy: &'static str,
    },

    /// A pitch or an address does not meet the 16-byte rule of TMA.
    #[error("{what} is {bytes} bytes, which is not a multiple of {multiple_of}: {remedy}")]
    Misaligned {
        /// Which pitch or address.
        what: &'static str,
        /// Its value in bytes.
        bytes: u64,
        /// The multiple it has to be.
        multiple_of: u64,
        /// The remedy.
        remedy: &'static str,
    },

    /// A combination that this crate, or this executor, does not offer.
    #[error("{what} is not supported: {why}; {remedy}")]
    Unsupported {
        /// The combination.
        what: String,
        /// Why not.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },

    /// A scale is NaN or infinite.
    #[error("{what} is {value}, but must be finite: {remedy}")]
    NotFinite {
        /// Which scale, with its index where it is one of many.
        what: String,
        /// Its value.
        value: String,
        /// The remedy.
        remedy: &'static str,
    },

    /// A chunk, or the acknowledgement of a buffer, did not arrive within the limit.
    #[error(
        "rank {rank}: {awaited} from rank {peer} did not come within {limit:?} (epoch {epoch} \
         expected, {epoch_seen} seen): see whether rank {peer} is stuck or slow, or raise the timeout"
    )]
    PeerTimeout {
        /// The rank that waited.
        rank: u32,
        /// The rank that should have posted the signal.
        peer: u32,
        /// The awaited signal: `chunk 3 (for tile (0, 2))`, `the consumption of a buffer`.
        awaited: String,
        /// The epoch that was awaited.
        epoch: u32,
        /// The epoch that the signal carried when the limit ran out.
        epoch_seen: u32,
        /// The limit.
        limit: Duration,
    },

    /// A peer left the group, or its process ended, before it had sent all that others wait for.
    #[error(
        "rank {rank}: rank {peer} left the group before {before} was complete: form a new group"
    )]
    PeerLost {
        /// The rank that noticed.
        rank: u32,
        /// The rank that is gone.
        peer: u32,
        /// The step or exchange that cannot complete: `epoch 3`, `the exchange 'a plan'`.
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
        /// The meeting that they missed: `the group`, `the exchange 'a plan'`.
        what: String,
        /// The limit.
        limit: Duration,
    },

    /// The ranks form no group: they cannot connect, do not match, or do not make the same calls.
    #[error("no group: {reason}; {remedy}")]
    NoGroup {
        /// The difference, with the ranks' names.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },

    /// The step ended early because of an abort, or because another rank failed.
    #[error(
        "rank {rank}: the step was aborted: {reason}; to go on, plan the operation again, in a new group if \
         this one has ended (cuda::AsyncGemm: clear the abort)"
    )]
    Aborted {
        /// The rank whose step ended.
        rank: u32,
        /// The reason of the abort, or the other rank's error.
        reason: String,
    },

    /// A call of an operation that an earlier error has ended.
    #[error("rank {rank}: this operation is over; plan again (it ended with: {cause})")]
    Over {
        /// The rank that called.
        rank: u32,
        /// The text of the error that ended the operation.
        cause: String,
    },

    /// The compute kernels are not part of this binary.
    #[error("the CUDA kernels are not in this binary: {reason}")]
    KernelsNotBuilt {
        /// Why they were not built, and the remedy.
        reason: String,
    },

    /// No usable GPU, driver or GPU library was found.
    #[error("no usable GPU: {reason}")]
    NoDevice {
        /// The missing part, and the remedy.
        reason: String,
    },

    /// A file of measurements cannot be used: it is damaged, of another program, or of a later version. Plans are made
    /// without it.
    #[error("the tuning file {file} is not used: {reason}")]
    Tuning {
        /// Which file.
        file: String,
        /// The fault, and the remedy.
        reason: String,
    },

    /// A file of measurements cannot be written.
    #[error("the tuning file {file} cannot be written: {reason}; name another with --output")]
    TuningNotWritten {
        /// Which file.
        file: String,
        /// The system's message.
        reason: String,
    },

    /// A call of CUDA or NCCL, or a kernel of this crate, failed.
    #[error("{call} failed: {detail}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// The code that the call returned, such as 2 for out of memory: a `CUresult`, which the runtime's codes are, too. A call
        /// whose name begins with `nccl` returns an `ncclResult_t`. `None`: the failure has no such code.
        code: Option<u32>,
        /// What failed, in CUDA's or NCCL's words where there are some.
        detail: String,
    },
}

/// Numbers, for people: `1, 2`.
fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// What a call returns after `cause` has ended the operation on this rank.
    pub(crate) fn over(rank: u32, cause: &Error) -> Self {
        Error::Over { rank, cause: cause.reason() }
    }

    /// Its text; of an abort, the reason alone.
    pub(crate) fn reason(&self) -> String {
        match self {
            Error::Aborted { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

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

    /// An error unless `value` is in `range`.
    pub(crate) fn check_range<T: Copy + PartialOrd + Into<u64>>(
        what: impl Into<String>,
        value: T,
        range: std::ops::RangeInclusive<T>,
        remedy: &'static str,
    ) -> Result<()> {
        if range.contains(&value) {
            return Ok(());
        }
        let (min, max) = ((*range.start()).into(), (*range.end()).into());
        Err(Error::out_of_range(what, value.into(), min, max, remedy))
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
