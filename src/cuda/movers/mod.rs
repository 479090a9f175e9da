//! How rows and sums travel between GPUs: copy engines, a kernel that pushes, NCCL.
//!
//! What belongs here: carrying out the moves and words of a [`Schedule`](crate::plan::Schedule); products are the callers'.
//! Invariant: no kernel is enqueued on a stream behind a wait that ends only once that kernel has run.
//!
//! - `gather`: a rank's part in an operation, its steps, and what comes before and after them; `course`: where it is in
//!   the sequence of steps;
//! - `options`: what may be asked for; `engines`: the choice of what was left open;
//! - `copy_engines`, `by_nccl`, [`nccl`]: the ways; `marks`, `step_record`: when each part of a step was.

mod by_nccl;
pub(crate) mod copy_engines;
mod course;
pub(crate) mod engines;
pub(crate) mod gather;
pub(crate) mod marks;
pub mod nccl;
pub(crate) mod options;
pub(crate) mod step_record;
