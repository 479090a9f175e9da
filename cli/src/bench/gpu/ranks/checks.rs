//! What a case of an operation between GPUs reads and leaves on this rank, and how that is checked.
//!
//! What belongs here: whose numbers a rank has, the room for its totals, and the choice between the two checks. Invariant: a result
//! is compared with what all ranks together have to compute; where it lies is NaN before.

use overlap_gemm::Result;
use overlap_gemm::plan::{Operation, Problem};

use super::super::check::{Adder, Check};
use super::super::driver::{Block, Gpu};
use super::super::inputs::{Inputs, Pools};
use super::contenders::{Place, Planned, Summing, bytes_of_total};

/// The rank whose numbers this `rank` has: what is gathered is the same on all ranks, what is added up is each rank's own.
pub fn whose_inputs(operation: Operation, rank: u32) -> u32 {
    if operation.reduces() { rank } else { 0 }
}

/// Room for this rank's totals, for each set; none where nothing is reduced.
pub fn room_for_totals(
    gpu: &Gpu,
    operation: Operation,
    problem: &Problem,
    rank: u32,
    sets: usize,
) -> Result<Vec<Block>> {
    let bytes = bytes_of_total(problem, &operation.output_rows(problem, rank));
    let sets = if operation.reduces() { sets } else { 0 };
    (0..sets).map(|_| gpu.allocate(bytes)).collect()
}

/// How results of a case are checked: one rank's product, or this rank's rows of the total.
pub struct Checks<'a> {
    product: Check<'a>,
    total: Check<'a>,
}

impl<'a> Checks<'a> {
    /// Of that `rank`, whose inputs these are.
    pub fn new(
        pools: &'a Pools,
        operation: Operation,
        problem: &'a Problem,
        inputs: &Inputs,
        (rank, sets): (u32, usize),
        seed: u64,
    ) -> Self {
        let own = operation.output_rows(problem, rank);
        let product = Check::new(pools, problem, inputs, sets, seed);
        Checks { product, total: Check::of_total(pools, problem, own, sets, seed) }
    }

    /// The set that is looked at.
    pub fn set(&self) -> usize {
        self.product.set
    }

    /// Takes a step, and says what is wrong with its result, if anything is.
    pub fn run(&self, case: Summing<'_>, planned: &mut Planned<'_>) -> Result<Result<(), String>> {
        let Summing { place: Place { gpu, inputs, set, .. }, totals, .. } = case;
        let Planned { kind, adder, step, .. } = planned;
        let enqueue = |set| step.enqueue(set);
        if !kind.reduces() {
            return self.product.run(gpu, inputs, enqueue);
        }
        let (partials, total) = (&inputs.sets[set].d, &totals[set]);
        // Where D has the partials, a product has to write them first. A reduction alone finds them there.
        let poisoned = match kind.is_whole() && *adder == Adder::Nccl {
            true => vec![partials, total],
            false => vec![total],
        };
        self.total.run_into(gpu, total, &poisoned, *adder, enqueue)
    }
}
