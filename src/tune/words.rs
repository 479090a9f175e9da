//! Kernels as a table has them, and as the cost model does.
//!
//! Invariant: a table's entry names a kernel and how it runs; all else about it follows from the name.

use super::entry::Multiplying;
use super::lookup::Answer;
use crate::kernels::{Choice, Kernel};
use crate::plan::Operation;
use crate::predict::Setup;

impl Multiplying {
    /// That kernel, run that way.
    pub fn of(kernel: &Kernel, choice: Choice) -> Multiplying {
        let Kernel { name, tile, cluster, .. } = kernel;
        let Choice { swizzle, splits, .. } = choice;
        Multiplying { kernel: name.clone(), tile: *tile, cluster: *cluster, swizzle, splits }
    }
}

impl Answer {
    /// How a step is carried out by it; `None`: whoever asks chooses the kernel, or nobody knows it.
    pub fn setup(&self) -> Option<Setup> {
        let multiplying = self.multiplying.as_ref()?;
        Some(Setup {
            operation: Operation::AllGatherGemm,
            way: self.way,
            kernel: Kernel::from_name(&multiplying.kernel)?,
            swizzle: multiplying.swizzle,
            splits: multiplying.splits,
        })
    }
}
