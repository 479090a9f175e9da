//! GEMM + reduce-scatter of inputs of three dimensions on threads: each rank gets a part of every batch's sequence.
//!
//! What belongs here: which row goes where. The row of A that each row of D is made of is worked out here once more, apart from the
//! library, and the comparison in `f64` reads A by it.

use overlap_gemm::element::{Element, F8E4M3, bf16};
use overlap_gemm::host::{GemmReduceScatter, Group, GroupOptions, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{
    Epilogue, Partials, PlanOptions, Problem, Reduction, Scaling, Strategy, Tiling,
};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, Report, compare_reduced};
use proptest::prelude::*;

use crate::threads::on_threads;

/// Several steps; the rows of each rank in each step are of one batch.
#[derive(Clone, Debug)]
struct World {
    problem: Problem,
    options: PlanOptions,
    reduction: Reduction,
    steps: Vec<Vec<u32>>,
    seed: u64,
}

/// One rank's numbers in a step.
struct Inputs<A, D: Element> {
    a: Vec<A>,
    a_scales: Vec<f32>,
    b: Vec<A>,
    b_scales: Vec<f32>,
    c: Vec<D::Addend>,
}

impl World {
    fn random<A: Element, D: Element>(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (ranks, batches) = (random.within(1..=5), random.within(1..=4));
        let mut planned: Vec<u32> = (0..ranks).map(|_| random.within(0..=12) as u32).collect();
        planned[0] = planned[0].max(1);
        // The planned rows in another order, and fewer of them.
        let mut fewer: Vec<u32> = planned.iter().rev().map(|rows| rows.div_ceil(2)).collect();
        fewer.rotate_left(random.within(0..=4) as usize % ranks as usize);
        let m = batches * u64::from(planned.iter().sum::<u32>());
        let (n, k) = (random.within(1..=40), random.within(1..=70));
        let scaling = match A::TYPE.is_fp8() {
            true => random.choose(&[Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let problem = Problem::builder(m, n, k).batches(batches).shards(&planned);
        let problem = problem.elements(A::TYPE, A::TYPE, D::TYPE).scaling(scaling);
        let most = batches * u64::from(*planned.iter().max().unwrap());
        let pieces = random.within(1..=3.min(most)) as u32;
        let tiling = Tiling::of_tile(random.within(1..=24) as u32, random.within(1..=24) as u32);
        let strategy = random.choose(&Strategy::ALL);
        World {
            problem: problem.lda(k + random.within(0..=3)).build().unwrap(),
            options: PlanOptions { pieces: Some(pieces), tiling, strategy, ..PlanOptions::new() },
            reduction: Reduction {
                partials: random.choose(&[Partials::Bf16, Partials::F32]),
                average: random.choose(&[true, false]),
            },
            steps: vec![planned.clone(), fewer, planned],
            seed,
        }
    }

    /// The problem of a step.
    fn of(&self, step: usize) -> Problem {
        self.problem.with_shards(&self.steps[step]).unwrap()
    }

    fn inputs<A: Element, D: Element>(&self, rank: u32, step: usize) -> Inputs<A, D> {
        let mut random = Random::of_stream(self.seed, u64::from(rank) << 32 | step as u64);
        let problem = self.of(step);
        let scales = |lines| problem.scaling().count(lines);
        let own = problem.shards().rows(rank).len() as u32;
        Inputs {
            a: random.elements(u64::from(problem.m()) * u64::from(problem.lda())),
            a_scales: random.scales(scales(problem.m())),
            b: random.elements(problem.b_len()),
            b_scales: random.scales(scales(problem.n())),
            c: random.elements(problem.d_len_of(own)),
        }
    }

    fn run_rank<A: Element, D: Element>(&self, rank: &Rank) -> Vec<Vec<D>> {
        let (stream, me) = (Stream::new(2).unwrap(), rank.rank());
        let layer = GemmReduceScatter::<A, A, D>::plan;
        let mut layer = layer(rank, &self.problem, self.options, self.reduction).unwrap();
        let step = |step: usize| {
            let inputs = self.inputs::<A, D>(me, step);
            let mut d = vec![D::POISON; inputs.c.len()];
            let shard = Shard::at(&inputs.a).rows(&self.steps[step]).scales(&inputs.a_scales);
            let product = Product::new(&inputs.b, &mut d).scales(&inputs.b_scales);
            let products = &mut [product.epilogue(epilogue(&inputs))];
            layer.enqueue_all(&stream, shard, products).unwrap();
            d
        };
        (0..self.steps.len()).map(step).collect()
    }

    /// How what `rank` has of a step compares: with A as it is, of that many batches; and with a plain A of these rows.
    fn reports<A: Element, D: Element>(
        &self,
        (rank, step): (u32, usize),
        d: &[D],
        rows_of_a: &[usize],
    ) -> [Report; 2] {
        let problem = self.of(step);
        let plain = Problem::builder(problem.m().into(), problem.n().into(), problem.k().into())
            .elements(A::TYPE, A::TYPE, D::TYPE)
            .scaling(problem.scaling())
            .lda(problem.lda().into())
            .shards(&problem.shards().to_rows())
            .build()
            .unwrap();
        let all: Vec<Inputs<A, D>> =
            (0..problem.ranks()).map(|rank| self.inputs(rank, step)).collect();
        let lda = problem.lda() as usize;
        let moved: Vec<(Vec<A>, Vec<f32>)> = (all.iter())
            .map(|one| {
                let row = |row: &usize| &one.a[row * lda..][..lda];
                let scales = match problem.scaling() {
                    Scaling::Rows => rows_of_a.iter().map(|row| one.a_scales[*row]).collect(),
                    _ => one.a_scales.clone(),
                };
                (rows_of_a.iter().flat_map(row).copied().collect(), scales)
            })
            .collect();
        let as_it_is: Vec<_> = (all.iter())
            .map(|one| Reference::new(&problem, &one.a, &one.b, &one.a_scales, &one.b_scales))
            .collect::<Result<_, _>>()
            .unwrap();
        let moved: Vec<_> = (all.iter().zip(&moved))
            .map(|(one, (a, scales))| Reference::new(&plain, a, &one.b, scales, &one.b_scales))
            .collect::<Result<_, _>>()
            .unwrap();
        let ending = || epilogue(&all[rank as usize]);
        [as_it_is, moved].map(|ranks| {
            let rows = 0..problem.m();
            compare_reduced(&ranks, Some(rank), self.reduction, d, rows, ending()).unwrap()
        })
    }

    /// Calls `check` with what each rank has of each step, and the row of A that each row of all ranks' D is made of.
    fn run<A: Element, D: Element>(&self, check: impl Fn((u32, usize), &[D], Vec<usize>)) {
        let options = GroupOptions { poison: true, ..GroupOptions::default() };
        let ranks = Group::local_with(self.problem.ranks(), options).unwrap();
        let outputs = on_threads(ranks, |rank| self.run_rank::<A, D>(&rank));
        for (rank, steps) in (0..).zip(&outputs) {
            for (step, d) in steps.iter().enumerate() {
                check((rank, step), d, self.rows_of_a(step));
            }
        }
    }

    /// By rank, by batch, by row.
    fn rows_of_a(&self, step: usize) -> Vec<usize> {
        let sequence: u32 = self.steps[step].iter().sum();
        let (mut rows, mut first) = (Vec::new(), 0);
        for own in &self.steps[step] {
            for batch in 0..self.problem.batches() {
                rows.extend((first..first + own).map(|row| (batch * sequence + row) as usize));
            }
            first += own;
        }
        rows
    }
}

fn epilogue<A, D: Element>(inputs: &Inputs<A, D>) -> Epilogue<'_, D> {
    Epilogue { c: Some(&inputs.c), beta: 0.5, ..Epilogue::default() }
}

fn assert_right<A: Element, D: Element>(seed: u64) {
    let world = World::random::<A, D>(seed);
    world.run::<A, D>(|at, d, rows| {
        let [as_it_is, moved] = world.reports::<A, D>(at, d, &rows);
        assert_eq!(as_it_is.complaint(), None, "{at:?}, {world:?}");
        assert_eq!(moved, as_it_is, "{at:?}, {world:?}");
    });
}

proptest! {
    // Seeds, not structures, so there is nothing to shrink.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn each_rank_gets_its_part_of_every_batch(seed in any::<u64>()) {
        assert_right::<bf16, bf16>(seed);
        assert_right::<F8E4M3, bf16>(seed ^ 1);
    }
}

/// In the order of A, rows of D would be those of whole batches.
#[test]
fn rows_in_the_order_of_a_are_noticed() {
    let mut world = World::random::<bf16, f32>(1);
    let problem = Problem::builder(24, 8, 32).batches(3).shards(&[3, 0, 5]);
    let f32 = overlap_gemm::ElementType::F32;
    world.problem = problem.elements(bf16::TYPE, bf16::TYPE, f32).build().unwrap();
    for strategy in Strategy::ALL {
        world.steps = vec![vec![3, 0, 5], vec![5, 3, 0]];
        world.options = PlanOptions::new().with_strategy(strategy).with_pieces(2);
        world.run::<bf16, f32>(|at, d, rows| {
            assert_eq!(world.reports::<bf16, f32>(at, d, &rows)[1].wrong, 0);
            let in_order: Vec<usize> = (0..24).collect();
            let report = world.reports::<bf16, f32>(at, d, &in_order)[1];
            assert!(report.wrong > 0 || d.is_empty(), "{at:?}, {strategy}");
        });
    }
}
