//! GEMM + reduce-scatter along columns on threads: each rank gets columns of all rows.
//!
//! What belongs here: which column goes where. Each rank's columns of B are cut out here once more, apart from the library, and the
//! comparison in `f64` is with a plain product of them.

use overlap_gemm::element::{Element, F8E4M3, bf16};
use overlap_gemm::host::{GemmReduceScatter, Group, GroupOptions, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{
    Activation, BLayout, Epilogue, Partials, PlanOptions, Problem, Reduction, Scaling, Strategy,
    Tiling,
};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, Report, compare_reduced};
use proptest::prelude::*;

use crate::threads::on_threads;

/// Several steps of several products.
#[derive(Clone, Debug)]
struct World {
    problem: Problem,
    /// Of each product, the columns of one rank.
    widths: Vec<u64>,
    options: PlanOptions,
    reduction: Reduction,
    /// The rows of A in each step.
    steps: Vec<u32>,
    seed: u64,
}

/// One rank's numbers in a step.
struct Inputs<A, D: Element> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    products: Vec<Weights<A, D>>,
}

/// What belongs to one product.
struct Weights<A, D: Element> {
    b: Vec<A>,
    b_scales: Vec<f32>,
    c: Vec<D::Addend>,
    bias: Vec<D::Addend>,
}

impl World {
    fn random<A: Element, D: Element>(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (ranks, m, k) = (random.within(1..=5), random.within(1..=24), random.within(1..=70));
        let widths: Vec<u64> = (0..random.within(1..=2)).map(|_| random.within(1..=12)).collect();
        let width: u64 = widths.iter().sum();
        let scaling = match A::TYPE.is_fp8() {
            true => random.choose(&[Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let layout = random.choose(&[BLayout::Nk, BLayout::Kn]);
        let row_of_b = if layout == BLayout::Nk { k } else { ranks * width };
        let problem = Problem::builder(m, ranks * width, k)
            .ranks(ranks)
            .scatter_columns(true)
            .elements(A::TYPE, A::TYPE, D::TYPE)
            .scaling(scaling)
            .b_layout(layout)
            .lda(k + random.within(0..=3))
            .ldb(row_of_b + random.within(0..=3))
            .ldd(width + random.within(0..=3));
        let pieces = random.within(1..=3.min(m)) as u32;
        let tiling = Tiling::of_tile(random.within(1..=24) as u32, random.within(1..=16) as u32);
        let strategy = random.choose(&Strategy::ALL);
        World {
            problem: problem.build().unwrap(),
            widths,
            options: PlanOptions { pieces: Some(pieces), tiling, strategy, ..PlanOptions::new() },
            reduction: Reduction {
                partials: random.choose(&[Partials::Bf16, Partials::F32]),
                average: random.choose(&[true, false]),
            },
            steps: vec![m as u32, (m as u32).div_ceil(2), m as u32],
            seed,
        }
    }

    fn rows(&self, step: usize) -> Vec<u32> {
        vec![self.steps[step]; self.problem.ranks() as usize]
    }

    /// Another number of columns than planned, where there are several products.
    fn n(&self, product: usize) -> Option<u64> {
        let n = self.widths[product] * u64::from(self.problem.ranks());
        (self.widths.len() > 1).then_some(n)
    }

    /// The problem of a product in a step.
    fn of(&self, step: usize, product: usize) -> Problem {
        let problem = self.problem.with_shards(&self.rows(step)).unwrap();
        self.n(product).map_or(Ok(problem.clone()), |n| problem.with_n(n)).unwrap()
    }

    fn inputs<A: Element, D: Element>(&self, rank: u32, step: usize) -> Inputs<A, D> {
        let mut random = Random::of_stream(self.seed, u64::from(rank) << 32 | step as u64);
        let (m, scaling) = (self.steps[step], self.problem.scaling());
        let a = random.elements(u64::from(m) * u64::from(self.problem.lda()));
        let a_scales = random.scales(scaling.count(m));
        let weights = |product| {
            let problem = self.of(step, product);
            Weights {
                b: random.elements(problem.b_len()),
                b_scales: random.scales(scaling.count(problem.columns_of_b())),
                c: random.elements(problem.d_len_of(m)),
                bias: random.elements(problem.n().into()),
            }
        };
        Inputs { a, a_scales, products: (0..self.widths.len()).map(weights).collect() }
    }

    /// What this rank gets: step by step, product by product.
    fn run_rank<A: Element, D: Element>(&self, rank: &Rank) -> Vec<Vec<Vec<D>>> {
        let (stream, me) = (Stream::new(2).unwrap(), rank.rank());
        let layer = GemmReduceScatter::<A, A, D>::plan;
        let mut layer = layer(rank, &self.problem, self.options, self.reduction).unwrap();
        let step = |step: usize| {
            let inputs = self.inputs::<A, D>(me, step);
            let poison = |weights: &Weights<A, D>| vec![D::POISON; weights.c.len()];
            let mut outputs: Vec<Vec<D>> = inputs.products.iter().map(poison).collect();
            let products = inputs.products.iter().zip(&mut outputs).enumerate();
            let mut products: Vec<_> = products
                .map(|(nth, (weights, d))| {
                    let product = Product::new(&weights.b, d).scales(&weights.b_scales);
                    let product = product.epilogue(epilogue(weights));
                    match self.n(nth) {
                        Some(n) => product.n(n),
                        None => product,
                    }
                })
                .collect();
            let rows = self.rows(step);
            let shard = Shard::at(&inputs.a).rows(&rows).scales(&inputs.a_scales);
            layer.enqueue_all(&stream, shard, &mut products).unwrap();
            drop(products);
            outputs
        };
        (0..self.steps.len()).map(step).collect()
    }

    /// What each rank has of each step.
    fn run<A: Element, D: Element>(&self) -> Vec<Vec<Vec<Vec<D>>>> {
        let options = GroupOptions { poison: true, ..GroupOptions::default() };
        let ranks = Group::local_with(self.problem.ranks(), options).unwrap();
        on_threads(ranks, |rank| self.run_rank::<A, D>(&rank))
    }

    /// How what `rank` has of a product compares with the columns of the whole.
    fn report<A: Element, D: Element>(
        &self,
        (rank, step, product): (u32, usize, usize),
        d: &[D],
    ) -> Report {
        let problem = self.of(step, product);
        let all: Vec<Inputs<A, D>> =
            (0..problem.ranks()).map(|rank| self.inputs(rank, step)).collect();
        let reference = |one| reference(&problem, one, product);
        let all_ranks: Vec<_> = all.iter().map(reference).collect();
        let ending = epilogue(&all[rank as usize].products[product]);
        let rows = 0..problem.m();
        compare_reduced(&all_ranks, Some(rank), self.reduction, d, rows, ending).unwrap()
    }

    /// The same with a plain product of the columns from `first` on, which the rank alone gets.
    fn report_of_columns<A: Element, D: Element>(
        &self,
        (rank, step, product): (u32, usize, usize),
        d: &[D],
        first: usize,
    ) -> Report {
        let of = self.of(step, product);
        let (n, m) = (of.n() as usize, self.steps[step]);
        let mut rows = vec![0; of.ranks() as usize];
        rows[rank as usize] = m;
        let plain = Problem::builder(m.into(), n as u64, of.k().into())
            .shards(&rows)
            .elements(A::TYPE, A::TYPE, D::TYPE)
            .scaling(of.scaling())
            .lda(of.lda().into())
            .ldd(of.ldd().into())
            .build()
            .unwrap();
        let (k, ldb) = (of.k() as usize, of.ldb() as usize);
        let at = |column: usize, depth: usize| match of.b_layout() {
            BLayout::Nk => column * ldb + depth,
            BLayout::Kn => depth * ldb + column,
        };
        let mut all: Vec<Inputs<A, D>> =
            (0..of.ranks()).map(|rank| self.inputs(rank, step)).collect();
        for one in &mut all {
            let weights = &mut one.products[product];
            let columns = first..first + n;
            let of_column = |column| (0..k).map(move |depth| (column, depth));
            let cut = columns.clone().flat_map(of_column);
            weights.b = cut.map(|(column, depth)| weights.b[at(column, depth)]).collect();
            if of.scaling() == Scaling::Rows {
                weights.b_scales = weights.b_scales[columns].to_vec();
            }
        }
        let all_ranks: Vec<_> = all.iter().map(|one| reference(&plain, one, product)).collect();
        let ending = epilogue(&all[rank as usize].products[product]);
        compare_reduced(&all_ranks, Some(rank), self.reduction, d, 0..m, ending).unwrap()
    }
}

fn reference<'a, A: Element, D: Element>(
    problem: &'a Problem,
    one: &'a Inputs<A, D>,
    product: usize,
) -> Reference<'a, A, A> {
    let weights = &one.products[product];
    Reference::new(problem, &one.a, &weights.b, &one.a_scales, &weights.b_scales).unwrap()
}

fn epilogue<A, D: Element>(weights: &Weights<A, D>) -> Epilogue<'_, D> {
    let (c, bias) = (Some(&weights.c[..]), Some(&weights.bias[..]));
    Epilogue { c, bias, beta: 0.5, activation: Activation::Relu, ..Epilogue::default() }
}

/// Calls `check` with each place, and what is there.
fn for_each<D>(outputs: &[Vec<Vec<Vec<D>>>], mut check: impl FnMut((u32, usize, usize), &[D])) {
    for (rank, steps) in (0..).zip(outputs) {
        for (step, products) in steps.iter().enumerate() {
            for (product, d) in products.iter().enumerate() {
                check((rank, step, product), d);
            }
        }
    }
}

fn assert_right<A: Element, D: Element>(seed: u64) {
    let world = World::random::<A, D>(seed);
    for_each(&world.run::<A, D>(), |at, d| {
        let report = world.report::<A, D>(at, d);
        assert_eq!(report.complaint(), None, "{at:?}, {world:?}");
        let n = world.widths[at.2] as usize;
        let alone = world.report_of_columns::<A, D>(at, d, at.0 as usize * n);
        assert_eq!(alone, report, "{at:?}, {world:?}");
        assert_eq!(report.compared, u64::from(world.steps[at.1]) * n as u64);
    });
}

proptest! {
    // Seeds, not structures, so there is nothing to shrink.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn each_rank_gets_its_columns(seed in any::<u64>()) {
        assert_right::<bf16, bf16>(seed);
        assert_right::<F8E4M3, bf16>(seed ^ 1);
    }
}

/// What a rank gets are not the columns of the rank beside it, by no strategy.
#[test]
fn columns_of_another_rank_are_noticed() {
    for strategy in Strategy::ALL {
        let mut world = World::random::<bf16, f32>(1);
        let f32 = overlap_gemm::ElementType::F32;
        let problem = Problem::builder(12, 3 * 8, 32).ranks(3).scatter_columns(true);
        world.problem = problem.elements(bf16::TYPE, bf16::TYPE, f32).build().unwrap();
        (world.widths, world.steps) = (vec![8], vec![12, 7]);
        world.options = PlanOptions::new().with_strategy(strategy).with_pieces(2);
        for_each(&world.run::<bf16, f32>(), |at, d| {
            let of_rank = |rank| world.report_of_columns::<bf16, f32>(at, d, rank * 8).wrong;
            let wrong = [0, 1, 2].map(|beside| of_rank((at.0 as usize + beside) % 3));
            assert!(wrong[0] == 0 && wrong[1] > 0 && wrong[2] > 0, "{at:?}, {strategy}: {wrong:?}");
        });
    }
}

/// A part of B, or all columns of D, where the other is meant.
#[test]
fn slices_of_other_columns_are_refused() {
    let problem = Problem::builder(4, 16, 8).ranks(2).scatter_columns(true).build().unwrap();
    on_threads(Group::local(2).unwrap(), |rank| {
        let stream = Stream::new(1).unwrap();
        let (options, sum) = (PlanOptions::new(), Reduction::default());
        let mut layer = GemmReduceScatter::<bf16>::plan(&rank, &problem, options, sum).unwrap();
        let numbers = [bf16::ONE; 16 * 8];
        let mut d = [bf16::NAN; 4 * 16];
        let mut refused = |a: usize, b: usize, d: &mut [bf16], bias: usize, rows: &[u32]| {
            let product = Product::new(&numbers[..b], d);
            let bias = Some(&numbers[..bias]);
            let product = product.epilogue(Epilogue { bias, ..Epilogue::default() });
            let shard = Shard::at(&numbers[..a]).rows(rows);
            layer.enqueue_all(&stream, shard, &mut [product]).unwrap_err().to_string()
        };
        let (own, rows) = (4 * 8, &[4, 4][..]);
        let texts = [
            (refused(32, 64, &mut d[..own], 8, rows), "the length of B is 64, but must be 128"),
            (refused(64, 128, &mut d[..own], 8, rows), "the length of A is 64, but must be 32"),
            (refused(32, 128, &mut d[..], 8, rows), "the length of D is 64, but must be 32"),
            (
                refused(32, 128, &mut d[..own], 16, rows),
                "the length of the bias is 16, but must be 8",
            ),
            (refused(32, 128, &mut d[..own], 8, &[4, 3]), "the rows of rank 1 is 3, but must be 4"),
        ];
        for (text, expected) in texts {
            assert!(text.starts_with(expected), "{text}");
        }
        let product = Product::new(&numbers[..], &mut d[..own]);
        layer.enqueue_all(&stream, Shard::at(&numbers[..32]), &mut [product]).unwrap();
        assert_eq!(d[..own], [bf16::narrow(16.0); 4 * 8]);
    });
}
