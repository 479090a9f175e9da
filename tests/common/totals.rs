//! Reductions without a product, on threads and on GPUs: what ranks bring, and what has to come of it.
//!
//! What belongs here: numbers, and the comparison of totals, bit for bit with the order of the ranks, in which every way adds up where
//! nothing is multiplied, and with `f64`. Invariant: all numbers differ from rank to rank and from step to step.

use std::ops::Range;

use overlap_gemm::plan::{Operation, Partials, Plan, PlanOptions, Problem, Reduction};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Epilogue, reduced};
use overlap_gemm::{Element, ElementType};

/// A step: its number, the rows of each rank, the columns of all.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    pub number: u64,
    pub rows: &'a [u32],
    pub columns: u32,
}

pub fn partials<S: Element>() -> Partials {
    if S::TYPE == ElementType::F32 { Partials::F32 } else { Partials::Bf16 }
}

pub fn bits<T: Element>(values: &[T]) -> Vec<u32> {
    values.iter().map(|value| value.widen().to_bits()).collect()
}

impl Step<'_> {
    pub fn problem<D: Element>(&self) -> Problem {
        let m = self.rows.iter().map(|rows| u64::from(*rows)).sum();
        let problem = Problem::builder(m, self.columns.into(), 16).shards(self.rows);
        problem.elements(ElementType::Bf16, ElementType::Bf16, D::TYPE).build().unwrap()
    }

    /// What a rank brings: so far apart from rank to rank that `f32` rounds totals, and another order gives other bits.
    pub fn brought<S: Element, D: Element>(&self, rank: u32) -> Vec<S> {
        let mut random = Random::of_stream(77, u64::from(rank) << 32 | self.number);
        let power = [0, 20, 20, 0, 10][rank as usize % 5];
        let power = if D::TYPE == ElementType::F16 { 1.0 } else { 2f32.powi(power) };
        let numbers = random.elements::<S>(self.elements() as u64);
        numbers.into_iter().map(|x| S::narrow(x.widen() * power)).collect()
    }

    /// How many elements all sums have.
    pub fn elements(&self) -> usize {
        (self.rows.iter().sum::<u32>() * self.columns) as usize
    }

    /// The elements of the totals that a rank gets, in a matrix of all: of an all-reduce, or of a reduce-scatter.
    pub fn own(&self, is_all_reduce: bool, rank: u32) -> Range<usize> {
        let before =
            |rank: u32| (self.rows[..rank as usize].iter().sum::<u32>() * self.columns) as usize;
        if is_all_reduce { 0..self.elements() } else { before(rank)..before(rank + 1) }
    }

    /// Totals of all rows.
    pub fn totals<S: Element, D: Element>(&self, average: bool) -> Vec<D> {
        let of_ranks = self.of_ranks::<S, D>();
        let sums: Vec<&[f32]> = of_ranks.iter().map(Vec::as_slice).collect();
        let reduction = Reduction { partials: partials::<S>(), average };
        let options = PlanOptions { operation: Operation::AllReduce, ..PlanOptions::new() };
        let plan = Plan::new(&self.problem::<D>(), options).unwrap();
        reduced(&plan, 0, &sums, reduction, Epilogue::default()).unwrap()
    }

    /// Panics unless the bits `got` are those of the totals in `range`.
    pub fn check_totals<S: Element, D: Element>(
        &self,
        average: bool,
        range: Range<usize>,
        got: &[u32],
        what: &str,
    ) {
        let all = self.totals::<S, D>(average);
        assert!(got == bits(&all[range.clone()]), "{what}: other bits");
        let (of_ranks, size) = (self.of_ranks::<S, D>(), self.rows.len() as f64);
        for (at, got) in range.zip(got) {
            let each = of_ranks.iter().map(|sums| f64::from(sums[at]));
            let (sum, most) = (each.clone().sum::<f64>(), each.map(f64::abs).sum::<f64>());
            let exact = if average { sum / size } else { sum };
            let bound = (size + 1.0) * 2f64.powi(-24) * most
                + 1.01 * D::TYPE.unit_roundoff() * exact.abs()
                + 2f64.powi(-24);
            let error = (f64::from(f32::from_bits(*got)) - exact).abs();
            assert!(error <= bound, "{what}: element {at} is off by {error}, not by {bound}");
        }
    }

    /// Panics unless a rank's `sums` are what it brought, but for those that totals have `replaced`.
    pub fn check_kept<S: Element, D: Element>(
        &self,
        rank: u32,
        sums: &[S],
        replaced: &Range<usize>,
        what: &str,
    ) {
        let before = bits(&self.brought::<S, D>(rank));
        let mut kept = before.iter().zip(bits(sums)).enumerate();
        let is_kept = kept.all(|(at, (before, sum))| replaced.contains(&at) || *before == sum);
        assert!(is_kept, "{what}: sums were overwritten");
    }

    fn of_ranks<S: Element, D: Element>(&self) -> Vec<Vec<f32>> {
        let brought = |rank| self.brought::<S, D>(rank).into_iter().map(Element::widen).collect();
        (0..self.rows.len() as u32).map(brought).collect()
    }
}
