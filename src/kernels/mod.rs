//! The kernels that can be compiled, a cost model of each, and the choice of the cheapest.
//!
//! What belongs here: properties of kernels and arithmetic over them. `cuda` uses it to choose a kernel, `predict` to
//! predict its time, `tune` to list candidates. Invariant: nothing here needs a compiled kernel, a device or a clock; equal
//! arguments give equal results everywhere.

mod cost;
mod kernel;

pub use cost::Choice;
#[cfg(all(feature = "cuda", test))]
pub(crate) use cost::cost;
#[cfg(feature = "cuda")]
pub(crate) use cost::most_splits;
#[cfg(any(feature = "cuda", feature = "tune"))]
pub(crate) use cost::ranked;
pub(crate) use cost::{
    Work, beside, cheapest, choices, clusters_beside, sms_beside_push, that_serve,
};
pub(crate) use kernel::kind;
pub use kernel::{Kernel, all_kernels};
