//! One rank's memory of a step of a reduction, and the comparison of what came out.
//!
//! Invariant: every number of every rank follows from a seed, so that each rank knows what all others brought.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use overlap_gemm::cuda::{RawOperands, Shard};
use overlap_gemm::plan::Scaling;
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Epilogue, Reference, compare_in_partials, compare_reduced, reduced};
use overlap_gemm::{Element, Error};

use super::world::{Layer, World};
use crate::gpu::call::{Buffers, Call, Number, of_gathered};
use crate::gpu::case::Case;
use crate::gpu::inputs::{Inputs, random_rows, some_rows};
use crate::gpu::ranks::Rank;

/// The bits of steps that were compared with the reference, by numbers and rows.
pub type Known = HashMap<(u64, Option<Vec<u32>>), Vec<u32>>;

/// One rank's memory of a step, whatever its types.
pub trait Step: Send {
    /// Other numbers, on both sides; D is as before a step.
    fn renew(&mut self, rank: &Rank, number: u64);
    /// D as it is before a step.
    fn poison(&mut self, rank: &Rank);
    /// One step of this rank, not awaited; `rows`: those of each rank, if not as planned.
    fn enqueue(&self, rank: &Rank, layer: &mut Layer, rows: Option<&[u32]>) -> Result<(), Error>;
    /// Takes a look at every D, when the stream is through.
    fn fetch(&mut self, rank: &Rank);
    /// What surrounds D is as it was, this rank's rows are numbers, and within the bound of the reference.
    fn check(&self, rank: &Rank, rows: Option<&[u32]>);
    /// As `check`; but where the same numbers and rows were compared with the reference before, all bits have to be the same.
    fn check_again(&self, rank: &Rank, rows: Option<&[u32]>, known: &mut Known);
    /// Whether some rows of the last look are what the reference says, of a step as planned, as is all below.
    fn is_right(&self, rank: &Rank) -> bool;
    /// The bits of this rank's rows in the last look.
    fn bits(&self, rank: &Rank) -> Vec<u32>;
    /// The bits that these rows have to have, of a world that is exact.
    fn exact_bits(&self, rank: &Rank) -> Vec<u32>;
    /// A step with other numbers, awaited and checked.
    fn step(&mut self, rank: &Rank, layer: &mut Layer, number: u64, rows: Option<&[u32]>) {
        self.renew(rank, number);
        self.enqueue(rank, layer, rows).unwrap();
        layer.synchronize(&rank.gpu.stream).unwrap();
        self.fetch(rank);
        self.check(rank, rows);
    }
    /// The addresses of A and of the operands.
    fn addresses(&self, rank: &Rank) -> (Shard<'static>, Vec<RawOperands>);
}

/// What one rank brings to a step, product by product: as many rows as were planned, of C as many as any rank may get.
fn brought<A: Element, B: Element, D: Element>(
    world: &World,
    rank: u32,
    number: u64,
) -> Vec<Inputs<A, B, D>> {
    // Rank 2 brings what rank 1 brings, negated.
    let source = if world.exact && rank == 2 { 1 } else { rank };
    let mut random = Random::of_stream(world.seed, u64::from(source) << 32 | number);
    let (most, problems) = (world.most_output_rows(), world.problems());
    let products = world.cases.iter().zip(&problems);
    let mut all: Vec<Inputs<A, B, D>> =
        products.map(|(case, problem)| Inputs::random(case, problem, most, &mut random)).collect();
    if world.exact {
        // Beside two ranks' sums `f32` rounds the others'; in the end the two cancel each other. So another order gives other bits,
        // of totals in bf16, too.
        let large = 2f32.powi(20);
        let power = [1.0, large, -large, 1.0, 1.0][rank as usize % 5];
        // At most 127: K of 1000 of them stay below 2²⁴.
        let whole = |x: f32| (x * 40.0).trunc().clamp(-127.0, 127.0);
        for inputs in &mut all {
            inputs.a.iter_mut().for_each(|a| *a = A::narrow(whole(a.widen()) * power));
            inputs.b.iter_mut().for_each(|b| *b = B::narrow(whole(b.widen())));
        }
    }
    // All products have the same A.
    let (a, a_scales) = (all[0].a.clone(), all[0].a_scales.clone());
    let mut same = Random::of_stream(world.seed, number);
    for (inputs, problem) in all.iter_mut().zip(&problems) {
        (inputs.a, inputs.a_scales) = (a.clone(), a_scales.clone());
        if world.all {
            // All ranks add the same, so that all have the same results.
            let (n, ldd) = (problem.n(), problem.ldd());
            inputs.c = inputs.c.is_some().then(|| random_rows(&mut same, most, n, ldd));
            inputs.bias = inputs.bias.is_some().then(|| random_rows(&mut same, 1, n, n));
        }
        if world.exact {
            // Not lost beside the sums.
            let bias = inputs.bias.iter_mut().flatten();
            bias.for_each(|bias| *bias = D::Addend::narrow(bias.widen() * 4096.0));
        }
    }
    all
}

pub struct Work<A, B, D: Element> {
    world: World,
    number: u64,
    products: Vec<Buffers<A, B, D>>,
}

impl<A: Number, B: Number, D: Number> Work<A, B, D> {
    pub fn new(world: &World, rank: &Rank, number: u64) -> Self {
        let most = world.most_output_rows();
        let inputs = brought(world, rank.rank(), number);
        let products = (world.cases.iter().zip(world.problems()).zip(inputs))
            .map(|((case, problem), inputs)| Buffers::new(&rank.gpu, case, &problem, most, inputs));
        Work { world: world.clone(), number, products: products.collect() }
    }

    /// What each rank brings to this step.
    fn of_ranks(&self) -> Vec<Vec<Inputs<A, B, D>>> {
        (0..self.world.ranks()).map(|rank| brought(&self.world, rank, self.number)).collect()
    }

    /// This rank's rows in the place that they have in the whole D.
    fn in_whole<T: Element>(&self, product: usize, rows: &[u32], rank: u32, own: &[T]) -> Vec<T> {
        let problem =
            self.world.cases[product].sharded(&self.world.rows).with_shards(rows).unwrap();
        let ldd = problem.ldd() as usize;
        let mut whole = vec![T::POISON; problem.m() as usize * ldd];
        let place = self.world.output_rows(rows, rank);
        let place = place.start as usize * ldd..place.end as usize * ldd;
        let len = place.len().min(own.len());
        whole[place][..len].copy_from_slice(&own[..len]);
        whole
    }

    /// What comes after the sum.
    fn epilogue<'a>(&'a self, product: usize, c: Option<&'a [D::Addend]>) -> Epilogue<'a, D> {
        let case = &self.world.cases[product];
        let bias = self.products[product].inputs.bias.as_deref();
        let activation = case.options.activation;
        let Case { alpha, beta, .. } = *case;
        Epilogue { alpha, beta, c, bias, activation, ..Epilogue::default() }
    }

    /// C where this rank's rows are in the whole D.
    fn whole_c(&self, product: usize, rows: &[u32], rank: u32) -> Option<Vec<D::Addend>> {
        let c = self.products[product].inputs.c.as_ref();
        c.map(|c| self.in_whole(product, rows, rank, c))
    }

    /// What surrounds D is as it was, and this rank's rows are numbers.
    fn check_written(&self, rank: &Rank, rows: Option<&[u32]>) {
        let rows = rows.unwrap_or(&self.world.rows);
        let own = self.world.output_rows(rows, rank.rank()).len() as u32;
        self.products.iter().for_each(|product| product.check_written(own));
    }

    /// What is wrong with this rank's rows, if anything is.
    fn complaint(&self, rank: u32, rows: &[u32]) -> Option<String> {
        let inputs = self.of_ranks();
        let mut random = Random::of_stream(self.world.seed, u64::MAX - self.number);
        for (product, planned) in self.world.problems().iter().enumerate() {
            let step = planned.with_shards(rows).unwrap();
            let own = self.world.output_rows(rows, rank);
            if own.is_empty() {
                continue;
            }
            let (m, lda) = (step.rows_of_a() as usize, step.lda() as usize);
            let references: Vec<_> = (inputs.iter())
                .map(|inputs| {
                    let Inputs { a, b, a_scales, b_scales, .. } = &inputs[product];
                    let a = &a[..(m * lda).min(a.len())];
                    let lines = if step.scaling() == Scaling::Rows { m } else { usize::MAX };
                    let a_scales = &a_scales[..lines.min(a_scales.len())];
                    Reference::new(&step, a, b, a_scales, b_scales)
                        .unwrap()
                        .with_accumulation(self.world.cases[product].accumulation())
                })
                .collect();
            let some = some_rows(own.len() as u32, &mut random);
            let d = self.in_whole(product, rows, rank, self.products[product].last_d());
            let c = self.whole_c(product, rows, rank);
            let epilogue = self.epilogue(product, c.as_deref());
            // All ranks' sums are rounded, the owner's, too: so it is in an all-reduce, which has no owner.
            let rows_of_d = some.into_iter().map(|row| own.start + row);
            let reduction = self.world.reduction;
            let report = match self.world.rounds_additions() {
                true => compare_in_partials(&references, reduction, &d, rows_of_d),
                false => compare_reduced(&references, None, reduction, &d, rows_of_d, epilogue),
            };
            if let Some(complaint) = report.unwrap().complaint() {
                return Some(format!("rank {rank}, product {product}: {complaint}"));
            }
        }
        None
    }
}

impl<A: Number, B: Number, D: Number> Step for Work<A, B, D> {
    fn renew(&mut self, rank: &Rank, number: u64) {
        self.number = number;
        let inputs = brought(&self.world, rank.rank(), number);
        for (product, inputs) in self.products.iter_mut().zip(inputs) {
            product.replace(&rank.gpu.stream, inputs);
        }
        self.poison(rank);
    }

    fn poison(&mut self, rank: &Rank) {
        self.products.iter_mut().for_each(|product| product.poison_d(&rank.gpu.stream));
    }

    fn enqueue(&self, rank: &Rank, layer: &mut Layer, rows: Option<&[u32]>) -> Result<(), Error> {
        let (shard, operands) = self.addresses(rank);
        let shard = match rows {
            Some(rows) => shard.rows(rows),
            None => shard,
        };
        // SAFETY: this value's own memory; tests await the stream before they drop or look at it.
        unsafe { layer.enqueue_raw(&rank.gpu.stream, shard, &operands) }
    }

    fn fetch(&mut self, rank: &Rank) {
        self.products.iter_mut().for_each(|product| product.fetch(&rank.gpu.stream));
    }

    fn check(&self, rank: &Rank, rows: Option<&[u32]>) {
        self.check_written(rank, rows);
        let rows = rows.unwrap_or(&self.world.rows);
        let complaint = self.complaint(rank.rank(), rows);
        assert_eq!(complaint, None, "{rows:?}, {:?}", self.world);
    }

    fn check_again(&self, rank: &Rank, rows: Option<&[u32]>, known: &mut Known) {
        match known.entry((self.number, rows.map(<[u32]>::to_vec))) {
            Entry::Vacant(first) => {
                self.check(rank, rows);
                first.insert(self.bits(rank));
            }
            Entry::Occupied(first) => {
                self.check_written(rank, rows);
                let (is_same, rank) = (self.bits(rank) == *first.get(), rank.rank());
                assert!(is_same, "other bits: rank {rank}, {:?}, {:?}", first.key(), self.world);
            }
        }
    }

    fn is_right(&self, rank: &Rank) -> bool {
        self.complaint(rank.rank(), &self.world.rows).is_none()
    }

    fn bits(&self, rank: &Rank) -> Vec<u32> {
        let own = self.world.output_rows(&self.world.rows, rank.rank()).len();
        let all = self.products.iter().flat_map(|product| product.rows().take(own));
        all.flatten().map(|d| d.widen().to_bits()).collect()
    }

    fn exact_bits(&self, rank: &Rank) -> Vec<u32> {
        let (inputs, mut bits, rows) = (self.of_ranks(), Vec::new(), &self.world.rows);
        let own = self.world.output_rows(rows, rank.rank());
        for (product, step) in self.world.problems().iter().enumerate() {
            let [n, k, lda, ldb, ldd] = [step.n(), step.k(), step.lda(), step.ldb(), step.ldd()]
                .map(|extent| extent as usize);
            let sums = inputs.iter().map(|inputs| -> Vec<f32> {
                let Inputs { a, b, .. } = &inputs[product];
                let sum = |row: usize, column: usize| -> f32 {
                    let (a, b) = (&a[row * lda..][..k], &b[column * ldb..]);
                    a.iter().zip(b).map(|(a, b)| a.widen() * b.widen()).sum()
                };
                let places = own.clone().flat_map(|m| (0..n).map(move |n| (m as usize, n)));
                places.map(|(row, column)| sum(row, column)).collect()
            });
            let sums: Vec<Vec<f32>> = sums.collect();
            let sums: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
            // There is room for the most rows that a rank gets.
            let c = self.products[product].inputs.c.as_deref();
            let c = c.map(|c| &c[..c.len().min(own.len() * ldd)]);
            let (plan, epilogue) = (self.world.plan_of(product, rows), self.epilogue(product, c));
            let d = reduced(&plan, rank.rank(), &sums, self.world.reduction, epilogue).unwrap();
            bits.extend(d.iter().map(|d: &D| d.widen().to_bits()));
        }
        bits
    }

    fn addresses(&self, rank: &Rank) -> (Shard<'static>, Vec<RawOperands>) {
        let stream = &rank.gpu.stream;
        let operands: Vec<_> =
            self.products.iter().map(|product| product.addresses(stream)).collect();
        let (scaling, shard) = (self.world.cases[0].scaling, Shard::at(operands[0].a));
        let shard = match scaling {
            Scaling::Rows => shard.scales(operands[0].scale_a),
            _ => shard,
        };
        (shard, operands.into_iter().map(|one| of_gathered(one, scaling)).collect())
    }
}
