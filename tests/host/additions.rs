//! The order of additions: threads have the bits of the reference, and so do orders that GPUs are compared with.
//!
//! What belongs here: sums that are exact, so far apart that another order has other bits. Invariant: orders are the plan's
//! (`Plan::additions`), but for those that a test breaks, or writes down.

use std::time::Duration;

use overlap_gemm::ElementType;
use overlap_gemm::element::{Element, bf16};
use overlap_gemm::host::{GroupOptions, Link};
use overlap_gemm::plan::{
    BLayout, Engine, Epilogue, Operation, Partials, Plan, PlanOptions, Problem, Reduction, Strategy,
};
use overlap_gemm::reference::reduced;
use proptest::prelude::*;

use super::{OfProduct, World, world};

impl World {
    /// The plan of one product of a step.
    fn planned(&self, step: usize, columns: u64) -> Plan {
        let operation =
            if self.all { Operation::GemmAllReduce } else { Operation::GemmReduceScatter };
        let options = PlanOptions { operation, ..self.options };
        let plan = Plan::new(&self.problem.with_n(columns).unwrap(), options).unwrap();
        plan.for_rows(&self.steps[step]).unwrap()
    }

    /// All ranks' sums of the rows of `owner`, which are exact.
    fn exact_sums<D: Element>(
        &self,
        [step, at]: [usize; 2],
        owner: u32,
        product: &Problem,
    ) -> Vec<Vec<f32>> {
        let rows = self.gets(step, owner as usize);
        let [k, lda, ldb] =
            [product.k(), product.lda(), product.ldb()].map(|extent| extent as usize);
        let of_rank = |rank| {
            let inputs = self.inputs::<bf16, D>(rank, step);
            let all_of_b = &inputs.of_products[at].b;
            let b = |column: usize, depth: usize| match product.b_layout() {
                BLayout::Nk => all_of_b[column * ldb + depth].widen(),
                BLayout::Kn => all_of_b[depth * ldb + column].widen(),
            };
            let sum = |row: usize, column: usize| -> f32 {
                let a = &inputs.a[row * lda..];
                // From +0, as products do: `Iterator::sum` begins at -0, which one product of -0 would leave.
                (0..k).fold(0.0, |sum, depth| sum + a[depth].widen() * b(column, depth))
            };
            let n = product.n() as usize;
            rows.clone()
                .flat_map(|row| (0..n).map(move |n| (row, n)))
                .map(|(r, n)| sum(r, n))
                .collect()
        };
        (0..self.problem.ranks()).map(of_rank).collect()
    }

    /// The bits of every output as the order of additions gives them; `change` may break the order.
    fn exact<D: Element>(&self, change: impl Fn(&mut Vec<&[f32]>, &mut u32)) -> Vec<u32> {
        let mut all = Vec::new();
        for owner in 0..self.problem.ranks() {
            for step in 0..self.steps.len() {
                let products = self.inputs::<bf16, D>(owner, step).of_products;
                for (at, OfProduct { problem, ending, .. }) in products.iter().enumerate() {
                    let sums = self.exact_sums::<D>([step, at], owner, problem);
                    let (plan, mut rank) = (self.planned(step, problem.n().into()), owner);
                    let mut sums = sums.iter().map(Vec::as_slice).collect();
                    change(&mut sums, &mut rank);
                    let d = reduced(&plan, rank, &sums, self.reduction, ending.epilogue());
                    all.extend(d.unwrap().iter().map(|d: &D| d.widen().to_bits()));
                }
            }
        }
        all
    }

    /// An error unless twenty runs, with other delays each, have these bits.
    fn has_always<D: Element>(&self, bits: &[u32]) -> Result<(), TestCaseError> {
        for seed in 0..20 {
            let jitter = Duration::from_micros(400);
            let link = Some(Link { bytes_per_second: 1e12, jitter, seed });
            let world = World { group: GroupOptions { link, ..self.group }, ..self.clone() };
            let got = world.run::<bf16, D>().concat().concat().concat();
            let got: Vec<u32> = got.iter().map(|d| d.widen().to_bits()).collect();
            prop_assert!(got == bits, "run {seed} of {self:?}");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 0,
        cases: ProptestConfig::default().cases.div_ceil(16),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_bit_is_that_of_the_order_of_the_ranks(seed in any::<u64>()) {
        let elements = [ElementType::Bf16, ElementType::F32];
        let world = World { exact: true, ..World::random(seed, elements) };
        world.has_always::<f32>(&world.exact::<f32>(|_, _| {}))?;
    }
}

#[test]
fn another_order_of_additions_has_other_bits() {
    // Backwards, the owner's sums still its own. With partials in f32 more totals tell the order.
    type Change = fn(&mut Vec<&[f32]>, &mut u32);
    let backwards: Change = |sums, owner| {
        sums.reverse();
        *owner = 3 - *owner;
    };
    let another_is_unrounded: Change = |_, owner| *owner = (*owner + 1) % 4;
    let mutants = [(Partials::F32, backwards), (Partials::Bf16, another_is_unrounded)];
    for (strategy, (partials, mutant)) in
        Strategy::ALL.into_iter().flat_map(|strategy| mutants.map(|mutant| (strategy, mutant)))
    {
        let reduction = Reduction { partials, average: false };
        let world = World { exact: true, reduction, ..world(strategy) };
        let right = world.exact::<f32>(|_, _| {});
        world.has_always::<f32>(&right).unwrap();
        let other = world.exact::<f32>(mutant);
        let differ = right.iter().zip(&other).filter(|(right, other)| right != other).count();
        assert!(differ > 100, "{strategy}, {partials:?}: {differ} of {}", right.len());
    }
}

/// What GPUs are compared with, in `tests/gpu_reduce`.
#[test]
fn every_way_adds_up_in_its_order() {
    const LARGE: f32 = (1u64 << 40) as f32;
    let f32s = ElementType::F32;
    let problem = Problem::builder(3, 1, 16).ranks(3).elements(f32s, f32s, f32s).build().unwrap();
    // Each rank owns a row; rank r's sum is the same of all rows. Of 257 a bf16 has 256.
    let totals = |operation, (strategy, engine), sums: [f32; 3], average| -> [f32; 3] {
        let options = PlanOptions { operation, strategy, engine, ..PlanOptions::new() };
        let plan = Plan::new(&problem, options).unwrap();
        let reduction = Reduction { average, ..Reduction::default() };
        let of_rank = |rank: u32| -> Vec<f32> {
            let rows = plan.output_rows(rank).len();
            let sums = sums.map(|sum| vec![sum; rows]);
            let sums = sums.each_ref().map(Vec::as_slice);
            reduced(&plan, rank, &sums, reduction, Epilogue::default()).unwrap()
        };
        let got = [0, 1, 2].map(of_rank);
        match operation {
            Operation::GemmReduceScatter => got.map(|own| own[0]),
            _ => {
                assert!(got.iter().all(|all| *all == got[0]), "ranks differ");
                got[0][..].try_into().unwrap()
            }
        }
    };
    let copies = Engine::CopyEngines { streams: 1 };
    let fused = (Strategy::Fused, copies);
    let in_rank_order = [
        (Strategy::Pipelined, copies),
        (Strategy::Sequential, copies),
        (Strategy::Sequential, Engine::EXCHANGING),
    ];
    let (last, between) = ([LARGE, -LARGE, 257.0], [LARGE, 257.0, -LARGE]);
    for operation in [Operation::GemmReduceScatter, Operation::GemmAllReduce] {
        for way in in_rank_order {
            assert_eq!(totals(operation, way, last, false), [256.0; 3], "{operation} {way:?}");
            assert_eq!(totals(operation, way, between, false), [0.0; 3], "{operation} {way:?}");
        }
        assert_eq!(totals(operation, fused, last, false), [256.0, 256.0, 0.0]);
        assert_eq!(totals(operation, fused, between, false), [0.0, 0.0, 256.0]);
        // Its product has a third of alpha.
        let (ours, third) = ([5.0, 2.0, 0.0], 1.0 / 3.0);
        assert_ne!(7.0 * third, 7.0 / 3.0f32);
        assert_eq!(totals(operation, fused, ours, true), [7.0 * third; 3]);
        assert_eq!(totals(operation, in_rank_order[0], ours, true), [7.0 / 3.0; 3]);
    }
    for strategy in Strategy::ALL {
        let way = (strategy, Engine::Thread);
        let scattered = totals(Operation::GemmReduceScatter, way, last, false);
        assert_eq!(scattered, [256.0, 256.0, 257.0]);
        assert_eq!(totals(Operation::GemmAllReduce, way, last, false), [256.0; 3]);
    }
}
