//! Tables of measured plans (feature `tune`): all-gather + GEMM, GEMM + reduce-scatter and GEMM + all-reduce on GPUs look a problem
//! up before they use a prediction.
//!
//! What belongs here: the table ([`Tuning`]) of the fastest measured plan of each problem ([`Entry`]), its file,
//! and the look-up ([`Tuning::look_up`]). No device, no clock: `overlap-gemm tune` measures, the `cuda` module uses the table.
//!
//! An answer is of one of three kinds, and names it:
//!
//! ```text
//!   the problem was measured ───────────► tuned      its fastest plan
//!   a near problem was measured ────────► nearest    the fastest plan of that problem
//!   no near entry ──────────────────────► modelled   the fastest plan by `predict`
//! ```
//!
//! Invariants: equal tables and problems give equal answers on every rank; an answer never contains a choice that the caller
//! excludes ([`Fits`]); a file that is damaged, of another program or of another version is refused as a whole, with its name
//! and the reason, and plans continue without it.

mod asked;
mod candidates;
mod entry;
mod file;
mod lookup;
mod table;

#[cfg(test)]
mod made_up;

pub use asked::{Anything, Asked, Fits};
pub use candidates::{Candidate, candidates, ways};
pub use entry::{Entry, Family, Multiplying, Shape, Times};
pub use file::{TUNING_VARIABLE, default_path, record};
pub use lookup::{Answer, Source};
pub use table::Tuning;
