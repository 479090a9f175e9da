//! What was measured of the whole operation, kept, and asked before anybody guesses.
//!
//! What belongs here: the table ([`Tuning`]) of what `cuda::AllGatherGemm` took with one
//! engine, kernel or number of pieces and with another ([`Entry`]), its file, and looking things up in it
//! ([`Tuning::look_up`]). No device, no clock: `overlap-gemm tune` measures, the `cuda` module obeys.
//!
//! Three answers are possible, and whoever asks is told which it was:
//!
//! ```text
//!   the same problem was measured ──────► tuned          what was fastest
//!   some like it were, near enough ─────► interpolated   what `predict` expects to be fastest, corrected by how far off
//!                                                        it was for those
//!   nothing near ───────────────────────► modelled       what `predict` expects to be fastest
//! ```
//!
//! Invariants: the same table and question have the same answer on every rank; an answer is never something that
//! the asker has called impossible ([`Fits`]); a file that is damaged, of another program or of a later version
//! is refused as a whole, with its name and the reason, and stops nobody from planning.

mod candidates;
mod correction;
mod entry;
mod file;
mod held_out;
mod lookup;
mod ranking;
mod table;
mod words;

#[cfg(test)]
mod made_up;

pub use crate::predict::{MOST_BLOCKS, MOST_STREAMS};
pub use candidates::ways;
pub use entry::{
    Entry, Family, Gathering, Measured, Mover, Multiplying, Order, Place, Shape, Time,
};
pub use file::{FORMAT, TUNING_VARIABLE, VERSION, default_path, record};
pub use held_out::{HeldOut, hold_out};
pub use lookup::{Answer, Anything, Asked, Fits, Source};
pub use table::Tuning;
