//! The kernels that can be compiled, what each should cost, and which is the cheapest.
//!
//! What belongs here: facts and arithmetic over them. `cuda` asks here which kernel to take, `predict` how long it takes,
//! `tune` which are worth trying. Invariant: nothing here needs a compiled kernel, a device or a clock; the same question
//! has the same answer everywhere.

mod cost;
mod kernel;

pub use cost::Choice;
#[cfg(all(feature = "cuda", test))]
pub(crate) use cost::cost;
#[cfg(any(feature = "cuda", feature = "tune"))]
pub(crate) use cost::ranked;
pub(crate) use cost::{Work, beside, cheapest, choices};
#[cfg(feature = "cuda")]
pub(crate) use cost::{most_splits, square_waves};
pub(crate) use kernel::kind;
pub use kernel::{Kernel, all_kernels};
