//! The contenders of GEMM + reduce-scatter and GEMM + all-reduce; the plain products are beside, in `contenders`.
//!
//! Invariants: in each step all ranks use the set of the same number, each its own matrices; a partial is bf16 and has all
//! rows, a total has the rows that this rank gets and lies in a block of its own.

use std::ops::Range;
use std::rc::Rc;

use overlap_gemm::cuda::nccl::{Communicator, Parts};
use overlap_gemm::cuda::{GatherOptions, Gemm, GemmOptions, GemmReduce, RawOperands, Shard};
use overlap_gemm::plan::{Operation, Problem, Reduction, Scaling, Strategy};
use overlap_gemm::{ElementType, Result};

use super::super::super::report::Kind;
use super::super::check::Adder;
use super::super::cublaslt::Suggested;
use super::super::driver::Block;
use super::super::own::operands;
use super::super::timing::Product;
use super::contenders::{Place, Step};

/// Sums between ranks, and D.
const PARTIALS: ElementType = ElementType::Bf16;

/// A case of a reduction on one rank.
#[derive(Clone, Copy)]
pub struct Summing<'a> {
    pub place: Place<'a>,
    pub operation: Operation,
    /// Room for this rank's totals, for each set.
    pub totals: &'a [Block],
}

/// The rows of D that this rank gets.
pub fn rows(place: &Place<'_>, operation: Operation) -> Range<u32> {
    match operation {
        Operation::GemmAllReduce => 0..place.problem.m(),
        _ => place.problem.shards().rows(place.group.rank()),
    }
}

/// The bytes of their totals; of a row at least, so that there is something to point at.
pub fn bytes(problem: &Problem, rows: &Range<u32>) -> u64 {
    problem.d_len_of(rows.len().max(1) as u32) * u64::from(PARTIALS.size())
}

impl Summing<'_> {
    /// Every rank's rows of D in a set.
    fn parts(&self, set: usize) -> Parts {
        let Place { problem, inputs, .. } = self.place;
        let (shards, row) = (problem.shards(), u64::from(problem.n()) * u64::from(PARTIALS.size()));
        let part = |rank| {
            let rows = shards.rows(rank);
            (u64::from(rows.start) * row, rows.len() as u64 * row)
        };
        let of_ranks = (0..shards.ranks()).map(part).collect();
        Parts { address: inputs.sets[set].d.address, of_ranks }
    }
}

/// NCCL's reduction of what lies in D.
pub struct ByNccl<'a> {
    summing: Summing<'a>,
    nccl: Rc<Communicator>,
    /// Computes D before.
    product: Option<Rc<Suggested>>,
}

impl<'a> ByNccl<'a> {
    /// Behind cuBLASLt's product.
    pub fn behind(summing: Summing<'a>, nccl: Rc<Communicator>, product: Rc<Suggested>) -> Self {
        ByNccl { summing, nccl, product: Some(product) }
    }

    /// Alone. The partials are this crate's products, which all others that write D overwrite by the same, up to rounding.
    pub fn alone(
        summing: Summing<'a>,
        nccl: Rc<Communicator>,
        options: &GemmOptions,
    ) -> Result<Self> {
        let Place { gpu, problem, inputs, .. } = summing.place;
        let gemm = Gemm::plan(&gpu.device, problem, options)?;
        for set in 0..summing.totals.len() {
            // SAFETY: as large as the problem says; they live until the stream is through.
            unsafe { gemm.enqueue_raw(&gpu.stream, &operands(inputs, set)) }?;
        }
        gpu.synchronize()?;
        Ok(ByNccl { summing, nccl, product: None })
    }
}

impl Step for ByNccl<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let Place { gpu, inputs, .. } = self.summing.place;
        if let Some(product) = &self.product {
            product.enqueue(gpu, inputs, set)?;
        }
        let to = &self.summing.totals[set];
        // SAFETY: D has all ranks' rows, a total has room for those that this rank gets, and lies elsewhere; both live until the
        // stream is through.
        unsafe {
            match self.summing.operation {
                Operation::GemmAllReduce => {
                    let from = inputs.sets[set].d.address;
                    self.nccl.all_reduce(from, to.address, to.bytes, PARTIALS, &gpu.stream)
                }
                _ => {
                    let parts = self.summing.parts(set);
                    self.nccl.reduce_scatter(&parts, to.address, PARTIALS, &gpu.stream)
                }
            }
        }
    }

    fn kind(&self) -> Kind {
        match (&self.product, self.summing.operation) {
            (Some(_), operation) => Kind::whole(operation),
            (None, Operation::GemmAllReduce) => Kind::AllReduce,
            (None, _) => Kind::ReduceScatter,
        }
    }

    fn adder(&self) -> Adder {
        Adder::Nccl
    }

    fn describe(&self) -> String {
        match &self.product {
            Some(product) => product.describe(),
            None => format!("NCCL {:?}", self.nccl.version()),
        }
    }
}

/// This crate's GEMM + reduce-scatter, or all-reduce (`ALL`).
pub struct Reduced<'a, const ALL: bool> {
    summing: Summing<'a>,
    layer: GemmReduce<ALL>,
}

impl<'a, const ALL: bool> Reduced<'a, ALL> {
    /// Plans it, and takes a step in each of its two buffers: what is left there is of the first set, and shows in a total of
    /// another.
    pub fn plan(
        summing: Summing<'a>,
        strategy: Option<Strategy>,
        options: &GatherOptions,
        gemm: &GemmOptions,
    ) -> Result<Self> {
        let Place { gpu, group, problem, .. } = summing.place;
        let sum = Reduction::default();
        let layer = GemmReduce::plan(group, &gpu.device, problem, strategy, options, gemm, sum)?;
        let mut it = Reduced { summing, layer };
        for _ in 0..2 {
            it.enqueue(0)?;
        }
        gpu.synchronize()?;
        it.layer.check()?;
        Ok(it)
    }
}

impl<const ALL: bool> Step for Reduced<'_, ALL> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let Place { gpu, problem, inputs, .. } = self.summing.place;
        let RawOperands { a, b, scale_a, .. } = operands(inputs, set);
        let mut total = operands(inputs, set);
        (total.a, total.b, total.d) = (0, b, self.summing.totals[set].address);
        let mut rows = Shard::at(a);
        if problem.scaling() == Scaling::Rows {
            total.scale_a = 0;
            rows = rows.scales(scale_a);
        }
        // SAFETY: A and B are as large as the problem says, a total as the rows that this rank gets; they live until the stream is through,
        // and the total overlaps nothing.
        unsafe { self.layer.enqueue(&gpu.stream, rows, &[total]) }
    }

    fn check(&mut self) -> Result<()> {
        self.layer.check()
    }

    fn kind(&self) -> Kind {
        Kind::whole(self.summing.operation)
    }

    fn describe(&self) -> String {
        self.layer.explain().trim_end().replace('\n', "; ")
    }

    fn identity(&self) -> Option<String> {
        // The first line says why, which differs where somebody asks for what is chosen anyway.
        let explained = self.layer.explain();
        let how: Vec<&str> = explained.lines().skip(1).collect();
        Some(format!("{:?} {how:?}", self.layer.way()))
    }
}
