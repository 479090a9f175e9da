//! Where the words are with which a rank's memory of a gather or a reduction begins, and that of `Signals` alone.
//!
//! What belongs here: offsets in words, in their order, the same on all ranks. Invariant: nothing overlaps; words of 64 bits are at
//! even offsets; the stop words, the epoch and the signals begin lines. Other ranks write to none of the words before the signals
//! but `SCRATCH_AT`, in planning. The rest of the layout lies behind the signals (`layout`).

use crate::plan::MAX_STREAMS;

pub(crate) const WORD: u64 = size_of::<u32>() as u64;

/// The two stop words, of 64 bits each.
pub(crate) const STOP_AT: u32 = 0;
/// 64 bits, looked at together with the stop words.
pub(crate) const BEGUN_AT: u32 = 4;
/// [`SENT_AT`] for steps with toggles.
pub(crate) const SENT_TOGGLES_AT: u32 = 8;
pub(crate) const EPOCH_AT: u32 = 32;
pub(crate) const OVER_AT: u32 = 40;
pub(crate) const LAST_BUFFER_AT: u32 = 41;
/// Two words, one for each buffer.
pub(crate) const LAST_USE_AT: u32 = 42;
/// Holds what a toggle is set to: the epoch of those who look at toggles.
pub(crate) const TOGGLE_EPOCH_AT: u32 = 44;
/// Four words, where anybody may write anything: to try the way.
pub(crate) const SCRATCH_AT: u32 = 48;
/// One for each stream that pushes.
pub(crate) const SENT_AT: u32 = 52;
pub(crate) const MOST_SENDERS: u32 = MAX_STREAMS;
pub(crate) const SIGNALS_AT: u32 = 64;

const _: () = assert!(SENT_TOGGLES_AT + MOST_SENDERS <= EPOCH_AT);
const _: () = assert!(SENT_AT + MOST_SENDERS <= SIGNALS_AT);
