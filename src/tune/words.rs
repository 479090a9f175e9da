//! Conversion between the kernels of a table and those of the cost model.
//!
//! Invariant: a conversion and its inverse give the original.

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
    /// The setup of a step by this answer; `None`: the caller chooses the kernel, or the kernel is unknown.
    pub fn setup(&self) -> Option<Setup> {
        let multiplying = self.multiplying.as_ref()?;
        Some(Setup {
            operation: Operation::AllGatherGemm,
            way: self.way,
            kernel: Kernel::from_name(&multiplying.kernel)?,
            swizzle: multiplying.swizzle,
            splits: multiplying.splits,
            sms: None,
        })
    }
}
