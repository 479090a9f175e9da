//! GEMM + reduce-scatter and GEMM + all-reduce on threads: random worlds against f64, the same bits whatever arrives first.
//! `PROPTEST_CASES=10000` is the long mode.

use std::ops::Range;
use std::time::Duration;

use overlap_gemm::ElementType;
use overlap_gemm::element::{Element, F8E4M3, bf16, f16};
use overlap_gemm::host::{GemmReduce, Group, GroupOptions, Link, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{
    Activation, BLayout, Epilogue, Partials, PlanOptions, Problem, Reduction, Scaling, Strategy,
    Tiling,
};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, compare_reduced};
use proptest::prelude::*;

use crate::threads::on_threads;

#[path = "additions.rs"]
mod additions;

/// What all ranks do: several steps, each with inputs and rows of its own.
#[derive(Clone, Debug)]
struct World {
    problem: Problem,
    options: PlanOptions,
    reduction: Reduction,
    group: GroupOptions,
    steps: Vec<Vec<u32>>,
    /// The columns of each product.
    columns: Vec<u64>,
    workers: u32,
    seed: u64,
    /// The factor of the bias that is added; the bias that is expected has none.
    bias_times: f32,
    /// An all-reduce, else a reduce-scatter.
    all: bool,
    /// In an all-reduce: all ranks have the same epilogue.
    ends_alike: bool,
    /// Inputs are integers times a power of two of the rank's own, so that its sums are exact and the total is not.
    exact: bool,
}

/// One rank's numbers in a step.
struct Inputs<A, D: Element> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    of_products: Vec<OfProduct<A, D>>,
}

struct OfProduct<A, D: Element> {
    problem: Problem,
    b: Vec<A>,
    b_scales: Vec<f32>,
    ending: Ending<D>,
}

/// The epilogue of a product.
struct Ending<D: Element> {
    alpha: f32,
    beta: f32,
    c: Option<Vec<D::Addend>>,
    bias: Option<Vec<D::Addend>>,
    activation: Activation,
}

impl<D: Element> Ending<D> {
    fn random(random: &mut Random, rows: u64, columns: u64) -> Self {
        let coin = |random: &mut Random| random.within(0..=1) == 1;
        Ending {
            alpha: if coin(random) { random.signed() } else { 1.0 },
            beta: random.signed(),
            c: coin(random).then(|| random.elements(rows * columns)),
            bias: coin(random).then(|| random.elements(columns)),
            activation: random.choose(&Activation::ALL),
        }
    }

    fn epilogue(&self) -> Epilogue<'_, D> {
        let Ending { alpha, beta, ref c, ref bias, activation } = *self;
        let (c, bias) = (c.as_deref(), bias.as_deref());
        Epilogue { alpha, beta, c, bias, activation, ..Epilogue::default() }
    }
}

impl World {
    fn random(seed: u64, elements: [ElementType; 2]) -> World {
        let mut random = Random::new(seed);
        let ranks = random.within(1..=5) as usize;
        let mut rows = |most: u64| -> Vec<u32> {
            let mut rows: Vec<u32> = (0..ranks).map(|_| random.within(0..=most) as u32).collect();
            if rows.iter().all(|rows| *rows == 0) {
                rows[0] = 1;
            }
            rows
        };
        let planned = rows(40);
        let most = u64::from(*planned.iter().max().unwrap());
        let m: u32 = planned.iter().sum();
        let mut steps = vec![planned.clone()];
        steps.extend((0..4).map(|_| rows(most)).filter(|rows| rows.iter().sum::<u32>() <= m));
        let products = random.within(1..=2) as usize;
        let columns: Vec<u64> = (0..products).map(|_| random.within(1..=40)).collect();
        // A step may have fewer columns than were planned.
        let (n, k) = (columns.iter().sum::<u64>() + random.within(0..=5), random.within(1..=70));
        let [a, d] = elements;
        let scaling = match a.is_fp8() {
            true => random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let layout = random.choose(&[BLayout::Nk, BLayout::Kn]);
        let problem = Problem::builder(m.into(), n, k).shards(&planned).elements(a, a, d);
        let problem = problem.scaling(scaling).b_layout(layout).lda(k + random.within(0..=3));
        let pieces = random.within(1..=3.min(most)) as u32;
        let tiling = Tiling::of_tile(random.within(1..=24) as u32, random.within(1..=24) as u32);
        let strategy = random.choose(&Strategy::ALL);
        let jitter = Duration::from_micros(random.within(0..=300));
        let link = Some(Link { bytes_per_second: 1e12, jitter, seed });
        World {
            problem: problem.build().unwrap(),
            options: PlanOptions { pieces: Some(pieces), tiling, strategy, ..PlanOptions::new() },
            reduction: Reduction {
                partials: random.choose(&[Partials::Bf16, Partials::F32]),
                average: random.choose(&[true, false]),
            },
            group: GroupOptions {
                link,
                poison: true,
                first_epoch: random.choose(&[0, u32::MAX - 2, i32::MAX as u32 - 2]),
                ..GroupOptions::default()
            },
            steps,
            columns,
            workers: random.within(1..=3) as u32,
            seed,
            bias_times: 1.0,
            all: random.within(0..=2) == 0,
            ends_alike: true,
            exact: false,
        }
    }

    fn inputs<A: Element, D: Element>(&self, rank: u32, step: usize) -> Inputs<A, D> {
        let mut random = Random::of_stream(self.seed, u64::from(rank) << 32 | step as u64);
        let m: u32 = self.steps[step].iter().sum();
        let gets = self.gets(step, rank as usize).len() as u64;
        // Where all ranks get the same rows, all end them the same way.
        let mut ending = match self.all && self.ends_alike {
            true => Random::of_stream(!self.seed, step as u64),
            false => Random::of_stream(!self.seed, u64::from(rank + 1) << 32 | step as u64),
        };
        let count = |lines: u64| match self.problem.scaling() {
            Scaling::None => 0,
            Scaling::Tensor => 1,
            Scaling::Rows => lines as usize,
        };
        let (a, a_scales) =
            (random.elements(self.problem.a_len(m)), random.scales(count(m.into())));
        let of_product = |n: &u64| {
            let problem = self.problem.with_n(*n).unwrap().with_shards(&self.steps[step]).unwrap();
            let (b, b_scales) = (random.elements(problem.b_len()), random.scales(count(*n)));
            OfProduct { problem, b, b_scales, ending: Ending::random(&mut ending, gets, *n) }
        };
        let of_products = self.columns.iter().map(of_product).collect();
        let mut inputs = Inputs { a, a_scales, of_products };
        if self.exact {
            let power = 2f32.powi(random.within(0..=16) as i32);
            let whole = |x: &mut A, unit| *x = A::narrow((x.widen() * 127.0).trunc() * unit);
            inputs.a.iter_mut().for_each(|a| whole(a, power));
            let b = inputs.of_products.iter_mut().flat_map(|product| &mut product.b);
            b.for_each(|b| whole(b, 1.0));
        }
        inputs
    }

    /// The rows of D that a rank gets.
    fn gets(&self, step: usize, rank: usize) -> Range<usize> {
        let rows = self.steps[step].iter().map(|rows| *rows as usize);
        match self.all {
            true => 0..rows.sum(),
            false => {
                let first = rows.clone().take(rank).sum();
                first..first + self.steps[step][rank] as usize
            }
        }
    }

    /// All outputs: of each rank, of each step, of each product.
    fn run<A: Element, D: Element>(&self) -> Vec<Vec<Vec<Vec<D>>>> {
        let ranks = Group::local_with(self.problem.ranks(), self.group).unwrap();
        on_threads(ranks, |rank| match self.all {
            true => self.run_rank::<true, A, D>(&rank),
            false => self.run_rank::<false, A, D>(&rank),
        })
    }

    fn run_rank<const ALL: bool, A: Element, D: Element>(&self, rank: &Rank) -> Vec<Vec<Vec<D>>> {
        let (problem, options) = (&self.problem, self.options);
        let mut layer =
            GemmReduce::<ALL, A, A, D>::plan(rank, problem, options, self.reduction).unwrap();
        let (stream, me) = (Stream::new(self.workers).unwrap(), rank.rank());
        let step = |step: usize| {
            let mut inputs = self.inputs::<A, D>(me, step);
            for bias in inputs.of_products.iter_mut().flat_map(|product| &mut product.ending.bias) {
                bias.iter_mut()
                    .for_each(|bias| *bias = D::Addend::narrow(bias.widen() * self.bias_times));
            }
            self.step(&mut layer, &stream, (me, step), &inputs)
        };
        let outputs = (0..self.steps.len()).map(step).collect();
        layer.flush().unwrap();
        outputs
    }

    /// The outputs of a rank's step.
    fn step<const ALL: bool, A: Element, D: Element>(
        &self,
        layer: &mut GemmReduce<ALL, A, A, D>,
        stream: &Stream,
        (rank, step): (u32, usize),
        inputs: &Inputs<A, D>,
    ) -> Vec<Vec<D>> {
        let own = self.gets(step, rank as usize).len();
        let outputs = self.columns.iter().map(|n| vec![D::POISON; own * *n as usize]);
        let mut outputs: Vec<Vec<D>> = outputs.collect();
        let mut products: Vec<_> = (outputs.iter_mut().zip(&inputs.of_products))
            .map(|(d, OfProduct { problem, b, b_scales, ending })| {
                let n = problem.n().into();
                Product::new(b, d).n(n).scales(b_scales).epilogue(ending.epilogue())
            })
            .collect();
        let shard = Shard::at(&inputs.a).rows(&self.steps[step]).scales(&inputs.a_scales);
        layer.enqueue_all(stream, shard, &mut products).unwrap();
        outputs
    }

    /// Compares every element with the reference; says what is wrong.
    fn complaint<A: Element, D: Element>(&self, outputs: &[Vec<Vec<Vec<D>>>]) -> Option<String> {
        for (step, _) in self.steps.iter().enumerate() {
            let all: Vec<Inputs<A, D>> =
                (0..self.problem.ranks()).map(|rank| self.inputs(rank, step)).collect();
            for (product, OfProduct { problem, .. }) in all[0].of_products.iter().enumerate() {
                let ranks = all.iter().map(|one| {
                    let OfProduct { b, b_scales, .. } = &one.of_products[product];
                    Reference::new(problem, &one.a, b, &one.a_scales, b_scales).unwrap()
                });
                let ranks: Vec<_> = ranks.collect();
                for (rank, inputs) in (0..).zip(&all) {
                    let d = &outputs[rank as usize][step][product];
                    let (owner, rows) = (self.owner(rank), 0..problem.m());
                    let ending = inputs.of_products[product].ending.epilogue();
                    let report = compare_reduced(&ranks, owner, self.reduction, d, rows, ending);
                    if let Some(complaint) = report.unwrap().complaint() {
                        return Some(format!(
                            "step {step}, rank {rank}, product {product}: {complaint}; {self:?}"
                        ));
                    }
                }
            }
        }
        None
    }

    /// As the reference names what `rank` gets.
    fn owner(&self, rank: u32) -> Option<u32> {
        (!self.all).then_some(rank)
    }
}

fn assert_right<A: Element, D: Element>(seed: u64) {
    let world = World::random(seed, [A::TYPE, D::TYPE]);
    assert_eq!(world.complaint::<A, D>(&world.run::<A, D>()), None);
}

proptest! {
    // Seeds, not structures, so there is nothing to shrink.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn random_worlds_compute_what_the_reference_says(seed in any::<u64>()) {
        assert_right::<bf16, bf16>(seed);
        assert_right::<bf16, f32>(seed ^ 1);
        assert_right::<f16, f16>(seed ^ 2);
        assert_right::<F8E4M3, bf16>(seed ^ 3);
    }
}

/// Four ranks of eight rows, two chunks each.
fn world(strategy: Strategy) -> World {
    world_of(strategy, ElementType::F32)
}

/// With D of that type.
fn world_of(strategy: Strategy, d: ElementType) -> World {
    let options = PlanOptions::new().with_pieces(2).with_tiling(Tiling::of_tile(8, 8));
    let bf16 = ElementType::Bf16;
    let problem = Problem::builder(32, 24, 48).elements(bf16, bf16, d);
    World {
        problem: problem.ranks(4).build().unwrap(),
        options: options.with_strategy(strategy),
        reduction: Reduction::default(),
        group: GroupOptions { poison: true, ..GroupOptions::default() },
        steps: vec![vec![8; 4]; 3],
        columns: vec![24],
        workers: 2,
        seed: 5,
        bias_times: 1.0,
        all: false,
        ends_alike: true,
        exact: false,
    }
}

impl World {
    /// Every rank has what rank 0 has, in every bit.
    fn assert_alike<D: Element>(&self) {
        let outputs = self.run::<bf16, D>();
        let bits = |of: &Vec<Vec<Vec<D>>>| -> Vec<u32> {
            of.iter().flatten().flatten().map(|d| d.widen().to_bits()).collect()
        };
        let first = bits(&outputs[0]);
        assert!(first.iter().all(|d| !f32::from_bits(*d).is_nan()));
        for other in &outputs[1..] {
            assert_eq!(bits(other), first, "{}, {:?}", self.options.strategy, self.reduction);
        }
    }
}

/// What each rank has of an all-reduce is the same, bit for bit.
#[test]
fn all_ranks_of_an_all_reduce_hold_the_same_bits() {
    for strategy in Strategy::ALL {
        for partials in [Partials::Bf16, Partials::F32] {
            let reduction = Reduction { partials, average: true };
            // In two shots the others get what the owner has made of the total.
            let alike: &[bool] =
                if strategy == Strategy::Sequential { &[true] } else { &[true, false] };
            for &ends_alike in alike {
                let of = |d| World { all: true, ends_alike, reduction, ..world_of(strategy, d) };
                of(ElementType::F32).assert_alike::<f32>();
                of(ElementType::Bf16).assert_alike::<bf16>();
            }
        }
    }
}

/// Four ranks that each add the bias add it four times.
#[test]
fn a_bias_that_every_rank_adds_is_noticed() {
    for strategy in Strategy::ALL {
        let right = World { columns: vec![8; 3], ..world(strategy) };
        assert_eq!(right.complaint::<bf16, f32>(&right.run::<bf16, f32>()), None);
        let mutant = World { bias_times: 4.0, columns: vec![8; 3], ..world(strategy) };
        let complaint = mutant.complaint::<bf16, f32>(&mutant.run::<bf16, f32>());
        assert!(complaint.is_some(), "{strategy}");
    }
}

/// Steps of two operations, with ranks held up at random, have the bits of steps that were compared with the reference.
#[test]
fn ten_thousand_steps_of_two_operations_are_right_bit_for_bit() {
    type Layer<const ALL: bool> = GemmReduce<ALL, bf16, bf16, f32>;
    for strategy in Strategy::ALL {
        let steps = || vec![vec![8; 4], vec![0, 5, 1, 8], vec![3, 8, 0, 2]];
        let of = |all| World { all, steps: steps(), ..world(strategy) };
        let worlds = [of(false), of(true)];
        let expected = worlds.each_ref().map(World::run::<bf16, f32>);
        for (world, outputs) in worlds.iter().zip(&expected) {
            assert_eq!(world.complaint::<bf16, f32>(outputs), None);
        }
        let ranks = Group::local_with(4, worlds[0].group).unwrap();
        on_threads(ranks, |rank| {
            let (me, stream) = (rank.rank(), Stream::new(1).unwrap());
            let &World { ref problem, options, reduction, .. } = &worlds[0];
            let mut scatter = Layer::<false>::plan(&rank, problem, options, reduction).unwrap();
            let mut to_all = Layer::<true>::plan(&rank, problem, options, reduction).unwrap();
            let inputs = worlds.each_ref().map(|of| [0, 1, 2].map(|step| of.inputs(me, step)));
            // The same order on all ranks.
            let (mut order, mut delays) = (Random::new(91), Random::of_stream(92, me.into()));
            for number in 0..10_000 {
                let (of, step) = (number % 2, order.within(0..=2) as usize);
                if delays.within(0..=49) == 0 {
                    std::thread::sleep(Duration::from_micros(delays.within(0..=200)));
                }
                let (world, at, inputs) = (&worlds[of], (me, step), &inputs[of][step]);
                let outputs = match of {
                    0 => world.step(&mut scatter, &stream, at, inputs),
                    _ => world.step(&mut to_all, &stream, at, inputs),
                };
                let expected = &expected[of][me as usize][step];
                let [found, expected] = [&outputs, expected].map(|of| of.iter().flatten());
                let same = found.map(|d| d.to_bits()).eq(expected.map(|d| d.to_bits()));
                assert!(same, "{strategy}, rank {me}, step {number}");
            }
            scatter.flush().unwrap();
            to_all.flush().unwrap();
        });
    }
}
