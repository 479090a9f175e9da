//! GEMM + reduce-scatter on threads: random worlds against f64, the same bits whatever arrives first, and what goes wrong.
//! `PROPTEST_CASES=10000` is the long mode.

use std::time::Duration;

use overlap_gemm::element::{Element, F8E4M3, bf16, f16};
use overlap_gemm::host::{
    GemmReduceScatter, Group, GroupOptions, Link, Product, Rank, Shard, Stream,
};
use overlap_gemm::plan::{
    BLayout, Partials, PlanOptions, Problem, Reduction, Scaling, Strategy, Tiling, Timeouts,
};
use overlap_gemm::random::Random;
use overlap_gemm::{ElementType, Error};
use proptest::prelude::*;

/// Half a unit in the last place of an `f32`, relative.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// What all ranks do: several steps, each with inputs and rows of its own.
#[derive(Debug)]
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
}

/// One rank's numbers in a step.
struct Inputs<A> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    b: Vec<Vec<A>>,
    b_scales: Vec<Vec<f32>>,
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
        let scalings = if a.is_fp8() {
            &[Scaling::None, Scaling::Tensor, Scaling::Rows][..]
        } else {
            &[Scaling::None]
        };
        let scaling = scalings[random.within(0..=scalings.len() as u64 - 1) as usize];
        let layout = if random.within(0..=1) == 0 { BLayout::Nk } else { BLayout::Kn };
        let problem = Problem::builder(m.into(), n, k).shards(&planned).elements(a, a, d);
        let problem = problem.scaling(scaling).b_layout(layout).lda(k + random.within(0..=3));
        let pieces = random.within(1..=3) as u32;
        let pieces = pieces.min(planned.iter().copied().max().unwrap());
        let tiling = Tiling::of_tile(random.within(1..=24) as u32, random.within(1..=24) as u32);
        let strategy = Strategy::ALL[random.within(0..=2) as usize];
        let jitter = Duration::from_micros(random.within(0..=300));
        let link = Some(Link { bytes_per_second: 1e12, jitter, seed });
        World {
            problem: problem.build().unwrap(),
            options: PlanOptions::new()
                .with_pieces(pieces)
                .with_tiling(tiling)
                .with_strategy(strategy),
            reduction: Reduction {
                partials: [Partials::Bf16, Partials::F32][random.within(0..=1) as usize],
                average: random.within(0..=1) == 1,
            },
            group: GroupOptions {
                link,
                poison: true,
                first_epoch: [0, u32::MAX - 2, i32::MAX as u32 - 2][random.within(0..=2) as usize],
                ..GroupOptions::default()
            },
            steps,
            columns,
            workers: random.within(1..=3) as u32,
            seed,
        }
    }

    fn inputs<A: Element>(&self, rank: u32, step: usize) -> Inputs<A> {
        let mut random = Random::of_stream(self.seed, u64::from(rank) << 32 | step as u64);
        let m: u32 = self.steps[step].iter().sum();
        let count = |lines: u64| match self.problem.scaling() {
            Scaling::None => 0,
            Scaling::Tensor => 1,
            Scaling::Rows => lines as usize,
        };
        Inputs {
            a: random.elements(self.problem.a_len(m)),
            a_scales: random.scales(count(m.into())),
            b: self.products().iter().map(|one| random.elements(one.b_len())).collect(),
            b_scales: self.columns.iter().map(|n| random.scales(count(*n))).collect(),
        }
    }

    /// The problem of each product.
    fn products(&self) -> Vec<Problem> {
        self.columns.iter().map(|n| self.problem.with_n(*n).unwrap()).collect()
    }

    /// All outputs: of each rank, of each step, of each product.
    fn run<A: Element, D: Element>(&self) -> Vec<Vec<Vec<Vec<D>>>> {
        let ranks = Group::local_with(self.problem.ranks(), self.group).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|rank| scope.spawn(move || self.run_rank::<A, D>(&rank)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn run_rank<A: Element, D: Element>(&self, rank: &Rank) -> Vec<Vec<Vec<D>>> {
        let (problem, options) = (&self.problem, self.options);
        let mut layer =
            GemmReduceScatter::<A, A, D>::plan(rank, problem, options, self.reduction).unwrap();
        let (stream, me) = (Stream::new(self.workers).unwrap(), rank.rank());
        let step = |(step, rows): (usize, &Vec<u32>)| {
            let inputs = self.inputs::<A>(me, step);
            let own = rows[me as usize] as usize;
            let outputs = self.columns.iter().map(|n| vec![D::POISON; own * *n as usize]);
            let mut outputs: Vec<Vec<D>> = outputs.collect();
            let mut products: Vec<_> = (outputs.iter_mut().zip(&inputs.b).zip(&inputs.b_scales))
                .zip(&self.columns)
                .map(|(((d, b), scales), n)| Product::new(b, d).n(*n).scales(scales))
                .collect();
            let shard = Shard::at(&inputs.a).rows(rows).scales(&inputs.a_scales);
            layer.enqueue_all(&stream, shard, &mut products).unwrap();
            outputs
        };
        let outputs = self.steps.iter().enumerate().map(step).collect();
        layer.flush().unwrap();
        outputs
    }

    /// Compares every element with an f64 sum, within a bound from the steps of the arithmetic.
    fn check<A: Element, D: Element>(&self, outputs: &[Vec<Vec<Vec<D>>>]) {
        let ranks = self.problem.ranks();
        for (step, rows) in self.steps.iter().enumerate() {
            let all: Vec<Inputs<A>> = (0..ranks).map(|rank| self.inputs(rank, step)).collect();
            let mut first = 0;
            for (owner, own) in rows.iter().enumerate() {
                for (product, problem) in self.products().iter().enumerate() {
                    let n = problem.n() as usize;
                    for (at, got) in outputs[owner][step][product].iter().enumerate() {
                        let (row, column) = (first + at / n, at % n);
                        let (value, bound) =
                            self.expected::<A, D>(&all, product, [row, column], owner);
                        let off = (f64::from(got.widen()) - value).abs();
                        // Written so that NaN fails.
                        assert!(
                            off <= bound,
                            "step {step}, rank {owner}, product {product}, row {row}, column {column}: \
                             {got:?}, not {value} ± {bound}; {self:?}"
                        );
                    }
                }
                first += *own as usize;
            }
        }
    }

    fn expected<A: Element, D: Element>(
        &self,
        all: &[Inputs<A>],
        product: usize,
        [row, column]: [usize; 2],
        owner: usize,
    ) -> (f64, f64) {
        let problem = &self.products()[product];
        let (k, lda, ldb) = (problem.k() as usize, problem.lda() as usize, problem.ldb() as usize);
        let scale = |scales: &[f32], line: usize| match scales {
            [] => 1.0,
            [one] => f64::from(*one),
            each => f64::from(each[line]),
        };
        let (mut total, mut bound, mut magnitude) = (0.0, 0.0, 0.0);
        for (rank, inputs) in all.iter().enumerate() {
            let b = |depth: usize| match problem.b_layout() {
                BLayout::Nk => inputs.b[product][column * ldb + depth],
                BLayout::Kn => inputs.b[product][depth * ldb + column],
            };
            let products = (0..k).map(|depth| {
                let a = inputs.a[row * lda + depth];
                f64::from(a.widen()) * f64::from(b(depth).widen())
            });
            let scales = scale(&inputs.a_scales, row) * scale(&inputs.b_scales[product], column);
            let (sum, size) =
                products.fold((0.0, 0.0), |(sum, size), one: f64| (sum + one, size + one.abs()));
            let (sum, size) = (sum * scales, size * scales.abs());
            let mut lost = (k + 4) as f64 * UNIT * size * 1.01 + 1e-40;
            if rank != owner && self.reduction.partials == Partials::Bf16 {
                lost += (sum.abs() + lost) * ElementType::Bf16.unit_roundoff();
            }
            total += sum;
            bound += lost;
            magnitude += sum.abs() + lost;
        }
        bound += (all.len() + 1) as f64 * UNIT * magnitude * 1.01;
        if self.reduction.average {
            total /= all.len() as f64;
            bound /= all.len() as f64;
        }
        let rounding = (total.abs() + bound) * D::TYPE.unit_roundoff();
        (total, bound + rounding + D::TYPE.min_positive())
    }
}

fn assert_right<A: Element, D: Element>(seed: u64) {
    let world = World::random(seed, [A::TYPE, D::TYPE]);
    world.check::<A, D>(&world.run::<A, D>());
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
    let options = PlanOptions::new().with_pieces(2).with_tiling(Tiling::of_tile(8, 8));
    let (bf16, f32) = (ElementType::Bf16, ElementType::F32);
    let problem = Problem::builder(32, 24, 48).elements(bf16, bf16, f32);
    World {
        problem: problem.ranks(4).build().unwrap(),
        options: options.with_strategy(strategy),
        reduction: Reduction::default(),
        group: GroupOptions { poison: true, ..GroupOptions::default() },
        steps: vec![vec![8; 4]; 3],
        columns: vec![24],
        workers: 2,
        seed: 5,
    }
}

#[test]
fn the_bits_do_not_depend_on_what_arrives_first() {
    for strategy in Strategy::ALL {
        let run = |seed| {
            let jitter = Duration::from_micros(400);
            let link = Some(Link { bytes_per_second: 1e12, jitter, seed });
            let group = GroupOptions { link, poison: true, ..GroupOptions::default() };
            let outputs = World { group, ..world(strategy) }.run::<bf16, f32>();
            outputs.concat().concat().concat().iter().map(|d| d.to_bits()).collect::<Vec<_>>()
        };
        let first = run(0);
        assert!((1..20).all(|seed| run(seed) == first), "{strategy}");
    }
}

/// With K = 1 a rank's sum is one product, so the bits of the total tell the order in which ranks were added.
#[test]
fn sums_are_added_in_the_order_of_the_ranks() {
    let f32 = ElementType::F32;
    let problem = Problem::builder(32, 24, 1).elements(f32, f32, f32).ranks(4).build().unwrap();
    let reduction = Reduction { partials: Partials::F32, average: false };
    let world = World { problem, reduction, ..world(Strategy::Fused) };
    let outputs = world.run::<f32, f32>();
    let inputs: Vec<Inputs<f32>> = (0..4).map(|rank| world.inputs(rank, 0)).collect();
    let mut differ = 0;
    for (row, column) in (0..32).flat_map(|row| (0..24).map(move |column| (row, column))) {
        let sum = |rank: usize| inputs[rank].a[row] * inputs[rank].b[0][column];
        let forwards = (1..4).fold(sum(0), |total, rank| total + sum(rank));
        let backwards = (0..3).rev().fold(sum(3), |total, rank| total + sum(rank));
        differ += u32::from(forwards != backwards);
        let got = outputs[row / 8][0][0][row % 8 * 24 + column];
        assert_eq!(got.to_bits(), forwards.to_bits(), "row {row}, column {column}");
    }
    assert!(differ > 100, "only {differ} of 768 sums depend on the order");
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_sent() {
    let mut ranks = Group::local(1).unwrap();
    let rank = ranks.remove(0);
    let problem = Problem::builder(8, 4, 16).build().unwrap();
    let plan = |rank: &Rank| {
        GemmReduceScatter::<bf16>::plan(rank, &problem, PlanOptions::new(), Reduction::default())
    };
    let (mut layer, stream) = (plan(&rank).unwrap(), Stream::new(1).unwrap());
    let (a, b) = (vec![bf16::ONE; 8 * 16], vec![bf16::ONE; 4 * 16]);
    let mut d = vec![bf16::ZERO; 8 * 4];
    let mut refused = |a: Shard<'_, bf16>, b: &[bf16], d: &mut [bf16], words: &str| {
        let text = layer.enqueue(&stream, a, b, d).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(Shard::at(&a[1..]), &b, &mut d, "the length of A is 127");
    refused(Shard::at(&a), &b[1..], &mut d, "the length of B is 63");
    refused(Shard::at(&a), &b, &mut d[1..], "the length of D is 31");
    refused(Shard::at(&a).scales(&[1.0]), &b, &mut d, "the number of the scales of A");
    refused(Shard::in_place(), &b, &mut d, "pass the rows with Shard::at");
    refused(Shard::at(&a).rows(&[9]), &b, &mut d, "m of this step is 9");
    let mut wide = [bf16::ZERO; 8 * 5];
    let five = [bf16::ONE; 5 * 16];
    let mut product = [Product::new(&five, &mut wide).n(5)];
    let text = layer.enqueue_all(&stream, &a, &mut product).unwrap_err().to_string();
    assert!(text.contains("the columns of all products together is 5"), "{text}");
    // None of them ended the operation.
    layer.enqueue(&stream, &a, &b, &mut d).unwrap();
    assert!(d.iter().all(|d| d.to_f32() == 16.0));
}

#[test]
fn a_rank_gets_no_more_rows_than_were_planned_for_any() {
    let problem = Problem::builder(8, 4, 16).ranks(2).build().unwrap();
    let ranks = Group::local(2).unwrap();
    let (options, reduction) = (PlanOptions::new(), Reduction::default());
    let mut layer =
        GemmReduceScatter::<bf16>::plan(&ranks[0], &problem, options, reduction).unwrap();
    let (a, b, mut d) = ([bf16::ONE; 96], [bf16::ONE; 64], [bf16::ZERO; 20]);
    let shard = Shard::at(&a).rows(&[5, 1]);
    let error = layer.enqueue(&Stream::new(1).unwrap(), shard, &b, &mut d).unwrap_err();
    let words = "the rows that one rank gets in this step is 5, but must be between 0 and 4";
    assert!(error.to_string().starts_with(words), "{error}");
    // The other rank plans another reduction.
    let average = Reduction { average: true, ..reduction };
    let error = GemmReduceScatter::<bf16>::plan(&ranks[1], &problem, options, average).unwrap_err();
    assert!(error.to_string().starts_with("the reduction is"), "{error}");
}

#[test]
fn ranks_that_give_other_products_are_refused_before_anything_is_sent() {
    let ranks = Group::local(2).unwrap();
    let problem = Problem::builder(8, 8, 16).ranks(2).build().unwrap();
    let results = std::thread::scope(|scope| {
        let problem = &problem;
        let threads = ranks.into_iter().zip([[4, 4], [2, 6]]).map(|(rank, columns)| {
            scope.spawn(move || {
                let (options, reduction) = (PlanOptions::new(), Reduction::default());
                let mut layer =
                    GemmReduceScatter::<bf16>::plan(&rank, problem, options, reduction).unwrap();
                let a = vec![bf16::ONE; 8 * 16];
                let b = columns.map(|n: u64| vec![bf16::ONE; n as usize * 16]);
                let mut d = columns.map(|n| vec![bf16::ONE; 4 * n as usize]);
                let mut products: Vec<_> = (d.iter_mut().zip(&b).zip(columns))
                    .map(|((d, b), n)| Product::new(b, d).n(n))
                    .collect();
                let result = layer.enqueue_all(&Stream::new(1).unwrap(), &a, &mut products);
                assert!(d.concat().iter().all(|d| d.is_nan()));
                result.unwrap_err().to_string()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    // Whoever comes second says so, and the other hears of it.
    let words = "the columns of the products that rank";
    assert!(results.iter().all(|text| text.contains(words)), "{results:?}");
}

/// One rank of a small world, its inputs ones.
fn step(layer: &mut GemmReduceScatter<bf16>, d: &mut [bf16]) -> Result<(), Error> {
    let (a, b) = ([bf16::ONE; 16 * 8], [bf16::ONE; 4 * 8]);
    layer.enqueue(&Stream::new(1).unwrap(), &a[..], &b, d)
}

fn of_two(limit: Duration) -> [GemmReduceScatter<bf16>; 2] {
    let group = GroupOptions { timeouts: Timeouts::new(limit, limit), ..GroupOptions::default() };
    let ranks = Group::local_with(2, group).unwrap();
    let problem = Problem::builder(16, 4, 8).ranks(2).build().unwrap();
    let plan = |rank: &Rank| {
        GemmReduceScatter::plan(rank, &problem, PlanOptions::new(), Reduction::default()).unwrap()
    };
    [plan(&ranks[0]), plan(&ranks[1])]
}

#[test]
fn a_late_rank_is_named_and_no_partial_sum_passes_for_a_result() {
    let [mut here, _late] = of_two(Duration::from_millis(200));
    let mut d = [bf16::ONE; 8 * 4];
    let error = step(&mut here, &mut d).unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { rank: 0, peer: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("the sums of chunk 0"), "{error}");
    assert!(d.iter().all(|d| d.is_nan()));
    assert!(matches!(step(&mut here, &mut d), Err(Error::Over { .. })));
}

#[test]
fn a_rank_that_leaves_or_aborts_ends_the_step_of_the_others() {
    let [mut here, gone] = of_two(Duration::from_secs(60));
    drop(gone);
    let mut d = [bf16::ONE; 8 * 4];
    let error = step(&mut here, &mut d).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 0, peer: 1, .. }), "{error:?}");
    assert!(d.iter().all(|d| d.is_nan()));

    let [mut here, there] = of_two(Duration::from_secs(60));
    let waiting = std::thread::spawn(move || {
        let mut d = [bf16::ONE; 8 * 4];
        (step(&mut here, &mut d), d)
    });
    there.aborter().abort("enough");
    let (result, d) = waiting.join().unwrap();
    let error = result.unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
    assert!(d.iter().all(|d| d.is_nan()));
}
