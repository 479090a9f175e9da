//! One rank's memory of a step of a reduction, and the comparison of what came out.
//!
//! Invariants: every number of every rank follows from a seed, so that each rank knows what all others brought; D is NaN
//! before a step, between guards that nothing may touch.

use std::fmt::Debug;

use overlap_gemm::cuda::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use overlap_gemm::cuda::{RawOperands, Shard};
use overlap_gemm::plan::{Problem, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Accumulation, Epilogue, Reference, compare_reduced, reduced};
use overlap_gemm::{Element, Error};

use super::world::{Layer, World};
use crate::gpu::inputs::{factor, random_rows, some_rows};
use crate::gpu::ranks::Rank;

/// Elements before and after D that nothing may touch: a multiple of 16, to keep D aligned.
const GUARD: usize = 1024;

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
    fn check(&self, rank: &Rank, rows: &[u32]);
    /// Whether some rows of the last look are what the reference says.
    fn is_right(&self, rank: &Rank, rows: &[u32]) -> bool;
    /// The bits of this rank's rows in the last look.
    fn bits(&self, rank: &Rank, rows: &[u32]) -> Vec<u32>;
    /// The bits that these rows have to have, of a world that is exact.
    fn exact_bits(&self, rank: &Rank, rows: &[u32]) -> Vec<u32>;
    /// The addresses of A and of the operands.
    fn addresses(&self, rank: &Rank) -> (Shard<'static>, Vec<RawOperands>);
}

/// A type that lives on both sides.
pub trait Number: Element + DeviceRepr + Debug {}
impl<T: Element + DeviceRepr + Debug> Number for T {}

/// What one rank brings to a step: as many rows as were planned, of C as many as any rank may get.
struct Inputs<A, B, D> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    of_products: Vec<OfProduct<B, D>>,
}

struct OfProduct<B, D> {
    b: Vec<B>,
    b_scales: Vec<f32>,
    c: Option<Vec<D>>,
    bias: Option<Vec<D>>,
}

impl<A: Element, B: Element, D: Element> Inputs<A, B, D> {
    fn of(world: &World, rank: u32, number: u64) -> Self {
        let mut random = Random::of_stream(world.seed, u64::from(rank) << 32 | number);
        let problem = &world.problems[0];
        let scales = |random: &mut Random, lines: u32| {
            let count = match problem.scaling() {
                Scaling::None => 0,
                Scaling::Tensor => 1,
                Scaling::Rows => lines,
            };
            (0..count).map(|_| factor(random)).collect::<Vec<f32>>()
        };
        let most = world.most_output_rows();
        let mut inputs = Inputs {
            a: random_rows(&mut random, problem.m(), problem.k(), problem.lda()),
            a_scales: scales(&mut random, problem.m()),
            of_products: Vec::new(),
        };
        for problem in &world.problems {
            let ((b_rows, b_columns), n) = (problem.b_extent(), problem.n());
            inputs.of_products.push(OfProduct {
                b: random_rows(&mut random, b_rows, b_columns, problem.ldb()),
                b_scales: scales(&mut random, n),
                c: (world.gemm.c).then(|| random_rows(&mut random, most, n, problem.ldd())),
                bias: (world.gemm.bias).then(|| random_rows(&mut random, 1, n, n)),
            });
        }
        if world.all {
            // All ranks add the same, so that all have the same results.
            let mut same = Random::of_stream(world.seed, number);
            for (product, problem) in inputs.of_products.iter_mut().zip(&world.problems) {
                let (n, ldd) = (problem.n(), problem.ldd());
                product.c = (world.gemm.c).then(|| random_rows(&mut same, most, n, ldd));
                product.bias = (world.gemm.bias).then(|| random_rows(&mut same, 1, n, n));
            }
        }
        if world.exact {
            // So far apart that `f32` rounds totals, of bf16 partials, too: another order gives other bits.
            let power = 2f32.powi([0, 20, 20, 0, 10][rank as usize % 5]);
            // At most 127: K of 64 of them stay below 2²⁴.
            let whole = |x: f32| (x * 40.0).trunc().clamp(-127.0, 127.0);
            inputs.a.iter_mut().for_each(|a: &mut A| *a = A::narrow(whole(a.widen()) * power));
            let b = inputs.of_products.iter_mut().flat_map(|product| &mut product.b);
            b.for_each(|b: &mut B| *b = B::narrow(whole(b.widen())));
        }
        inputs
    }
}

pub struct Work<A, B, D> {
    world: World,
    number: u64,
    inputs: Inputs<A, B, D>,
    device: Device<A, B, D>,
    /// Every D and its guards, as before a step, and as last looked at.
    blanks: Vec<Vec<D>>,
    looks: Vec<Vec<D>>,
}

struct Device<A, B, D> {
    a: CudaSlice<A>,
    /// One more than there are.
    a_scales: CudaSlice<f32>,
    b: Vec<CudaSlice<B>>,
    b_scales: Vec<CudaSlice<f32>>,
    c: Vec<Option<CudaSlice<D>>>,
    bias: Vec<Option<CudaSlice<D>>>,
    d: Vec<CudaSlice<D>>,
}

impl<A: Number, B: Number, D: Number> Work<A, B, D> {
    pub fn new(world: &World, rank: &Rank, number: u64) -> Self {
        let inputs = Inputs::<A, B, D>::of(world, rank.rank(), number);
        let most = world.most_output_rows() as usize;
        let blanks = world.problems.iter().map(|problem| blank::<D>(problem, most));
        let blanks: Vec<Vec<D>> = blanks.collect();
        let gpu = &rank.gpu;
        let products = &inputs.of_products;
        let some = |scales: &[f32]| gpu.upload(&[scales, &[1.0]].concat());
        let device = Device {
            a: gpu.upload(&inputs.a),
            a_scales: some(&inputs.a_scales),
            b: products.iter().map(|one| gpu.upload(&one.b)).collect(),
            b_scales: products.iter().map(|one| some(&one.b_scales)).collect(),
            c: products.iter().map(|one| one.c.as_ref().map(|c| gpu.upload(c))).collect(),
            bias: products.iter().map(|one| one.bias.as_ref().map(|b| gpu.upload(b))).collect(),
            d: blanks.iter().map(|blank| gpu.upload(blank)).collect(),
        };
        let looks = blanks.clone();
        Work { world: world.clone(), number, inputs, device, blanks, looks }
    }

    /// The rows of D that this rank gets, as last looked at.
    fn output_rows(&self, product: usize, own: usize) -> impl Iterator<Item = &[D]> {
        let problem = &self.world.problems[product];
        let (n, ldd) = (problem.n() as usize, problem.ldd() as usize);
        self.looks[product][GUARD..].chunks(ldd).take(own).map(move |row| &row[..n])
    }

    /// This rank's rows in the place that they have in the whole D.
    fn in_whole(&self, product: usize, rows: &[u32], rank: u32, own: &[D]) -> Vec<D> {
        let problem = self.world.problems[product].with_shards(rows).unwrap();
        let ldd = problem.ldd() as usize;
        let mut whole = vec![D::POISON; problem.m() as usize * ldd];
        let place = self.world.output_rows(rows, rank);
        let place = place.start as usize * ldd..place.end as usize * ldd;
        let len = place.len().min(own.len());
        whole[place][..len].copy_from_slice(&own[..len]);
        whole
    }

    /// What comes after the sum, with C as long as the whole D.
    fn epilogue<'a>(&'a self, product: usize, c: Option<&'a [D]>) -> Epilogue<'a, D> {
        Epilogue {
            alpha: self.world.alpha,
            beta: self.world.beta,
            c,
            bias: self.inputs.of_products[product].bias.as_deref(),
            activation: self.world.gemm.activation,
        }
    }

    /// What is wrong with this rank's rows, if anything is.
    fn complaint(&self, rank: u32, rows: &[u32]) -> Option<String> {
        let inputs = (0..self.world.ranks())
            .map(|rank| Inputs::<A, B, D>::of(&self.world, rank, self.number));
        let inputs: Vec<Inputs<A, B, D>> = inputs.collect();
        let mut random = Random::of_stream(self.world.seed, u64::MAX - self.number);
        for (product, planned) in self.world.problems.iter().enumerate() {
            let step = planned.with_shards(rows).unwrap();
            let own = self.world.output_rows(rows, rank);
            if own.is_empty() {
                continue;
            }
            let (m, lda) = (step.m() as usize, step.lda() as usize);
            let accumulation = match (step.elements().a.is_fp8(), self.world.gemm.fast_accumulation)
            {
                (false, _) => Accumulation::F32,
                (true, true) => Accumulation::Fp8,
                (true, false) => Accumulation::Fp8Promoted,
            };
            let references: Vec<_> = (inputs.iter())
                .map(|inputs| {
                    let a = &inputs.a[..(m * lda).min(inputs.a.len())];
                    let lines = if step.scaling() == Scaling::Rows { m } else { usize::MAX };
                    let a_scales = &inputs.a_scales[..lines.min(inputs.a_scales.len())];
                    let OfProduct { b, b_scales, .. } = &inputs.of_products[product];
                    Reference::new(&step, a, b, a_scales, b_scales)
                        .unwrap()
                        .with_accumulation(accumulation)
                })
                .collect();
            let some = some_rows(own.len() as u32, &mut random);
            let looked = &self.looks[product][GUARD..];
            let d = self.in_whole(product, rows, rank, looked);
            let c = self.inputs.of_products[product].c.as_ref();
            let c = c.map(|c| self.in_whole(product, rows, rank, c));
            let epilogue = self.epilogue(product, c.as_deref());
            // All ranks' sums are rounded, the owner's, too: so it is in an all-reduce, which has no owner.
            let rows_of_d = some.into_iter().map(|row| own.start + row);
            let reduction = self.world.reduction;
            let report = compare_reduced(&references, None, reduction, &d, rows_of_d, epilogue);
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
        self.inputs = Inputs::of(&self.world, rank.rank(), number);
        let (stream, device) = (&rank.gpu.stream, &mut self.device);
        let some = |scales: &[f32]| [scales, &[1.0]].concat();
        stream.memcpy_htod(&self.inputs.a, &mut device.a).unwrap();
        stream.memcpy_htod(&some(&self.inputs.a_scales), &mut device.a_scales).unwrap();
        for (at, product) in self.inputs.of_products.iter().enumerate() {
            stream.memcpy_htod(&product.b, &mut device.b[at]).unwrap();
            stream.memcpy_htod(&some(&product.b_scales), &mut device.b_scales[at]).unwrap();
            for (from, to) in
                [(&product.c, &mut device.c[at]), (&product.bias, &mut device.bias[at])]
            {
                from.iter().zip(to).for_each(|(from, to)| stream.memcpy_htod(from, to).unwrap());
            }
        }
        self.poison(rank);
    }

    fn poison(&mut self, rank: &Rank) {
        for (blank, d) in self.blanks.iter().zip(&mut self.device.d) {
            rank.gpu.stream.memcpy_htod(blank, d).unwrap();
        }
        rank.gpu.stream.synchronize().unwrap();
    }

    fn enqueue(&self, rank: &Rank, layer: &mut Layer, rows: Option<&[u32]>) -> Result<(), Error> {
        let (shard, operands) = self.addresses(rank);
        let shard = match rows {
            Some(rows) => shard.rows(rows),
            None => shard,
        };
        // SAFETY: this value's own memory; tests await the stream before they drop or look at it.
        unsafe { layer.enqueue(&rank.gpu.stream, shard, &operands) }
    }

    fn fetch(&mut self, rank: &Rank) {
        for (d, look) in self.device.d.iter().zip(&mut self.looks) {
            rank.gpu.stream.memcpy_dtoh(d, look).unwrap();
        }
        rank.gpu.stream.synchronize().unwrap();
    }

    fn check(&self, rank: &Rank, rows: &[u32]) {
        let own = self.world.output_rows(rows, rank.rank()).len();
        let is_same = |a: &D, b: &D| a.widen().to_bits() == b.widen().to_bits();
        for (product, (look, blank)) in self.looks.iter().zip(&self.blanks).enumerate() {
            let problem = &self.world.problems[product];
            let (n, ldd) = (problem.n() as usize, problem.ldd() as usize);
            for (at, (is, was)) in look.iter().zip(blank).enumerate() {
                let place = at.checked_sub(GUARD).map(|at| (at / ldd, at % ldd));
                let is_output = place.is_some_and(|(row, column)| row < own && column < n);
                let right = if is_output { !is.widen().is_nan() } else { is_same(is, was) };
                let rank = rank.rank();
                assert!(right, "rank {rank}, D {product}, {place:?} is {is:?}: {:?}", self.world);
            }
        }
        let complaint = self.complaint(rank.rank(), rows);
        assert_eq!(complaint, None, "{rows:?}, {:?}", self.world);
    }

    fn is_right(&self, rank: &Rank, rows: &[u32]) -> bool {
        self.complaint(rank.rank(), rows).is_none()
    }

    fn bits(&self, rank: &Rank, rows: &[u32]) -> Vec<u32> {
        let own = self.world.output_rows(rows, rank.rank()).len();
        let all = (0..self.world.problems.len()).flat_map(|product| self.output_rows(product, own));
        all.flatten().map(|d| d.widen().to_bits()).collect()
    }

    fn exact_bits(&self, rank: &Rank, rows: &[u32]) -> Vec<u32> {
        let mut bits = Vec::new();
        for (product, planned) in self.world.problems.iter().enumerate() {
            let step = planned.with_shards(rows).unwrap();
            let [n, k, lda, ldb] =
                [step.n(), step.k(), step.lda(), step.ldb()].map(|extent| extent as usize);
            let sums = (0..self.world.ranks()).map(|rank| -> Vec<f32> {
                let inputs = Inputs::<A, B, D>::of(&self.world, rank, self.number);
                let sum = |row: usize, column: usize| -> f32 {
                    let (a, b) = (&inputs.a[row * lda..], &inputs.of_products[product].b);
                    (0..k).map(|depth| a[depth].widen() * b[column * ldb + depth].widen()).sum()
                };
                let places = (0..step.m() as usize).flat_map(|m| (0..n).map(move |n| (m, n)));
                places.map(|(row, column)| sum(row, column)).collect()
            });
            let sums: Vec<Vec<f32>> = sums.collect();
            let sums: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
            let c = self.inputs.of_products[product].c.as_ref();
            let c = c.map(|c| self.in_whole(product, rows, rank.rank(), c));
            let epilogue = self.epilogue(product, c.as_deref());
            let d = reduced(&step, &sums, None, self.world.reduction, epilogue).unwrap();
            let own = self.world.output_rows(rows, rank.rank());
            let own = own.start as usize * n..own.end as usize * n;
            bits.extend(d[own].iter().map(|d| d.widen().to_bits()));
        }
        bits
    }

    fn addresses(&self, rank: &Rank) -> (Shard<'static>, Vec<RawOperands>) {
        let (stream, device) = (&rank.gpu.stream, &self.device);
        let scaling = self.world.problems[0].scaling();
        let shard = Shard::at(device.a.device_ptr(stream).0);
        let a_scales = device.a_scales.device_ptr(stream).0;
        let shard = if scaling == Scaling::Rows { shard.scales(a_scales) } else { shard };
        let operands = (0..self.world.problems.len()).map(|at| {
            let b = device.b[at].device_ptr(stream).0;
            let d = device.d[at].device_ptr(stream).0 + (GUARD * size_of::<D>()) as u64;
            let mut operands = RawOperands::of_gathered(b, d).alpha(self.world.alpha);
            if let Some(c) = &device.c[at] {
                operands = operands.c(c.device_ptr(stream).0, self.world.beta);
            }
            if let Some(bias) = &device.bias[at] {
                operands = operands.bias(bias.device_ptr(stream).0);
            }
            let b_scales = device.b_scales[at].device_ptr(stream).0;
            match scaling {
                Scaling::None => operands,
                Scaling::Tensor => operands.scales(a_scales, b_scales),
                Scaling::Rows => operands.scales(0, b_scales),
            }
        });
        (shard, operands.collect())
    }
}

/// A guarded, poisoned D of so many rows.
fn blank<D: Element>(problem: &Problem, rows: usize) -> Vec<D> {
    let (n, ldd) = (problem.n() as usize, problem.ldd() as usize);
    // A number that no test computes.
    let mut d = vec![D::narrow(-23456.0); GUARD + rows * ldd + GUARD];
    d[GUARD..][..rows * ldd].chunks_mut(ldd).for_each(|row| row[..n].fill(D::POISON));
    d
}
