//! How rows travel between GPUs: copy engines, a kernel that pushes, NCCL.
//!
//! What belongs here: carrying out the moves and words of a [`Schedule`](crate::plan::Schedule). What is multiplied is
//! none of its business. Invariant: nothing that needs an SM comes behind what waits for it on its stream.
//!
//! - `gather`: a rank's part in an all-gather, its steps, and what comes before and after them; `course`: where it is in
//!   the sequence of steps;
//! - `options`: what may be asked for; `engines`: the choice of what was left open;
//! - `copy_engines`, `by_nccl`, [`nccl`]: the ways; `marks`: when the pushes of a step were.

mod by_nccl;
mod copy_engines;
mod course;
pub(crate) mod engines;
pub(crate) mod gather;
pub(crate) mod marks;
pub mod nccl;
pub(crate) mod options;
