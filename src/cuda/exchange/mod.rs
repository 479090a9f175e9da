//! What ranks exchange beside rows: memory that all reach, the words in it, and what they agree on.
//!
//! What belongs here: where words and rows lie, what a word means, and which ranks reach which; it moves no rows.
//! Invariant: two ranks that hold equal plans agree on every word and byte.
//!
//! - `symmetric`: memory that all ranks map; `reach`: which GPUs can, and whether all ranks plan the same; `signal_pad`:
//!   signals between their GPUs, at points that the caller chooses;
//! - `signals`: the words and the epoch of the chunk protocol on one GPU; `chunk_wait`: how a kernel waits for them;
//!   `waiters`: the errors that failed waits become; `given_up`: which ranks have given up; `chunk_table`: the chunks, as the device takes them;
//! - `words`: where the words at the beginning of a rank's memory are; `layout`: where everything of a gather lies; `step_shape`:
//!   what stays the same between steps with the same rows; `step_order`: the order of steps; `concurrent`: which may run at the
//!   same time; `shared_workspace`: memory that several operations use.

pub(crate) mod chunk_table;
pub(crate) mod chunk_wait;
pub(crate) mod concurrent;
pub(crate) mod given_up;
pub(crate) mod layout;
pub(crate) mod reach;
pub(crate) mod shared_workspace;
pub(crate) mod signal_pad;
pub mod signals;
pub(crate) mod step_order;
pub(crate) mod step_shape;
pub(crate) mod symmetric;
pub(crate) mod waiters;
pub(crate) mod words;
