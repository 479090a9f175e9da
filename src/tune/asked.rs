//! The question to a table: an operation on GPUs, and the choices that the caller leaves open.
//!
//! What belongs here: the values that an answer depends on besides the table. Invariant: equal questions have equal answers.

use super::entry::Multiplying;
use crate::kernels::{Kernel, all_kernels};
use crate::plan::{Operation, Partials, Problem, Way};
use crate::predict::{Machine, Setup, ways_of_sums};

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The GPU of every rank, as the driver calls it.
    pub gpu: &'a str,
    /// Its SMs.
    pub sms: u32,
    /// All-gather + GEMM, or a reduction with a product.
    pub operation: Operation,
    /// The problem.
    pub problem: &'a Problem,
    /// How a reduction's sums travel. Entries are of sums in bf16.
    pub partials: Partials,
}

impl Asked<'_> {
    /// The machine that predictions are for.
    pub(super) fn machine(&self) -> Machine {
        Machine::h200().with_sms(self.sms)
    }
}

/// The choices that the caller can carry out and has left open; by default all, with the default options.
pub trait Fits {
    /// The available kernels.
    fn kernels(&self) -> &[Kernel] {
        all_kernels()
    }

    /// Whether rows or sums can travel this way.
    fn way(&self, _way: &Way) -> bool {
        true
    }

    /// Whether this kernel can multiply with these parameters, in a step that is carried out this way. In a gather the strategy
    /// alone matters.
    fn multiplying(&self, _way: &Way, multiplying: &Multiplying) -> bool {
        let kernel = Kernel::from_name(&multiplying.kernel);
        kernel.is_none_or(|kernel| kernel.fast_accumulation || !kernel.elements.a.is_fp8())
    }

    /// The open ways of a reduction, each with the kernel that is chosen for it without a table.
    fn sums(&self, asked: &Asked<'_>) -> Vec<Setup> {
        let Asked { operation, problem, partials, .. } = *asked;
        let (kernels, machine) = (self.kernels(), asked.machine());
        let ways = ways_of_sums(problem, operation, None).into_iter().filter(|way| self.way(way));
        let setup = |way| Setup::of_sums(kernels, &machine, problem, operation, way, partials).ok();
        ways.filter_map(setup).collect()
    }
}

/// All kernels that can be compiled, with the default options: to look at a table without kernels.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Fits for Anything {}
