//! The question to a table: a problem on a GPU, and the choices that the caller leaves open.

use super::entry::Multiplying;
use crate::kernels::{Kernel, all_kernels};
use crate::plan::{Problem, Strategy, Way};

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The GPU of every rank, as the driver calls it.
    pub gpu: &'a str,
    /// Its SMs.
    pub sms: u32,
    /// The problem.
    pub problem: &'a Problem,
}

/// The choices that the caller can carry out and has left open; by default all, with the default options.
pub trait Fits {
    /// The available kernels.
    fn kernels(&self) -> &[Kernel] {
        all_kernels()
    }

    /// Whether the rows can travel this way.
    fn way(&self, _way: &Way) -> bool {
        true
    }

    /// Whether this kernel can multiply with these parameters, in the order of this strategy.
    fn multiplying(&self, _strategy: Strategy, multiplying: &Multiplying) -> bool {
        let kernel = Kernel::from_name(&multiplying.kernel);
        kernel.is_none_or(|kernel| kernel.fast_accumulation || !kernel.elements.a.is_fp8())
    }
}

/// All kernels that can be compiled, with the default options: to look at a table without kernels.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Fits for Anything {}
