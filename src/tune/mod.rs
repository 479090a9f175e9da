//! What was measured of the whole operation, kept, and asked before anybody guesses.
//!
//! What belongs here: the table ([`Tuning`]) of how `cuda::AllGatherGemm` was fastest for which problem ([`Entry`]), its file,
//! and looking things up in it ([`Tuning::look_up`]). No device, no clock: `overlap-gemm tune` measures, the `cuda` module obeys.
//!
//! Three answers are possible, and whoever asks is told which it was:
//!
//! ```text
//!   the same problem was measured ──────► tuned      what was fastest
//!   one was that is near enough ────────► nearest    what was fastest for that one
//!   nothing near ───────────────────────► modelled   what `predict` expects to be fastest
//! ```
//!
//! Invariants: the same table and question have the same answer on every rank; an answer is never something that
//! the asker has called impossible ([`Fits`]); a file that is damaged, of another program or of another version
//! is refused as a whole, with its name and the reason, and stops nobody from planning.

mod candidates;
mod entry;
mod file;
mod lookup;
mod table;
mod words;

#[cfg(test)]
mod made_up;

pub use candidates::ways;
pub use entry::{Entry, Family, Multiplying, Shape, Times};
pub use file::{FORMAT, TUNING_VARIABLE, VERSION, default_path, record};
pub use lookup::{Answer, Anything, Asked, FARTHEST, Fits, Source};
pub use table::Tuning;
