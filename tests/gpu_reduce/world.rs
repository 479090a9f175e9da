//! What all ranks of a reduction do: sizes, types, options.
//!
//! What belongs here: plain values, and drawing them; one rank's memory of a step is in `work`. Invariants: whatever is drawn
//! here can be planned; sums of past steps are NaN, unless a test says otherwise.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::CudaStream;
use overlap_gemm::cuda::{
    GatherOptions, GemmAllReduce, GemmOptions, GemmReduceScatter, Kernel, MAX_SPLITS, RawOperands,
    Shard,
};
use overlap_gemm::plan::{
    Activation, BLayout, Engine, Partials, Problem, Reduction, Scaling, Schedule, Strategy,
};
use overlap_gemm::random::Random;
use overlap_gemm::{ElementType, Error};

use super::work::{Step, Work};
use crate::gpu::inputs::{factor, shards};
use crate::gpu::ranks::Rank;
use crate::gpu::{of_types, tried_kernels};

/// Far longer than anything here takes, far shorter than anybody watches a test.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What all ranks do.
#[derive(Clone, Debug)]
pub struct World {
    /// An all-reduce, not a reduce-scatter.
    pub all: bool,
    pub kernel: &'static Kernel,
    /// One for each product of A; D is what becomes of the totals.
    pub problems: Vec<Problem>,
    pub gemm: GemmOptions,
    pub alpha: f32,
    pub beta: f32,
    pub strategy: Strategy,
    pub options: GatherOptions,
    pub reduction: Reduction,
    pub seed: u64,
    /// Inputs are integers times a power of two of the rank's own: sums are exact, and totals depend on the order.
    pub exact: bool,
}

/// One rank's operation.
#[derive(Debug)]
pub enum Layer {
    Scatter(GemmReduceScatter),
    All(GemmAllReduce),
}

macro_rules! either {
    ($layer:expr, $it:ident => $call:expr) => {
        match $layer {
            Layer::Scatter($it) => $call,
            Layer::All($it) => $call,
        }
    };
}

impl Layer {
    /// # Safety
    /// That of the operation.
    pub unsafe fn enqueue(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        either!(self, layer => unsafe { layer.enqueue(stream, a, operands) })
    }

    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        either!(self, layer => layer.synchronize(stream))
    }

    pub fn check(&mut self) -> Result<(), Error> {
        either!(self, layer => layer.check())
    }

    pub fn abort(&mut self, reason: &str) {
        either!(self, layer => layer.abort(reason));
    }

    /// # Safety
    /// That of the operation.
    pub unsafe fn change_schedule(
        &mut self,
        change: impl FnOnce(&mut Schedule) -> bool,
    ) -> Result<bool, Error> {
        // SAFETY: the caller's promise.
        either!(self, layer => unsafe { layer.change_schedule(change) })
    }
}

/// The kernels of 16-bit inputs whose outputs are partials of that type.
pub fn kernel_for(partials: Partials) -> Option<&'static Kernel> {
    let serves = |kernel: &&Kernel| {
        let types = kernel.elements;
        types.d == partials.element() && types.a == ElementType::Bf16 && !kernel.transposed
    };
    tried_kernels().into_iter().find(serves)
}

impl World {
    /// One product in bf16 of so many rows a rank, pipelined, on one stream.
    pub fn new(rows: &[u32], n: u64, k: u64) -> World {
        let kernel = kernel_for(Partials::Bf16).expect("a kernel of bf16");
        let m = rows.iter().map(|rows| u64::from(*rows)).sum();
        let options = GatherOptions::default().with_engine(Engine::CopyEngines { streams: 1 });
        World {
            all: false,
            kernel,
            problems: vec![Problem::builder(m, n, k).shards(rows).build().unwrap()],
            gemm: GemmOptions::default().with_kernel(kernel.name.as_str()).with_splits(1),
            alpha: 1.0,
            beta: 0.0,
            strategy: Strategy::Pipelined,
            options: options.with_poison(true).with_timeouts(PATIENCE, PATIENCE),
            reduction: Reduction::default(),
            seed: 1,
            exact: false,
        }
    }

    /// The same by a kernel behind the product of all rows.
    pub fn by_kernel(mut self, blocks: u32) -> World {
        self.strategy = Strategy::Sequential;
        self.options = self.options.with_engine(Engine::Kernel { blocks });
        self
    }

    /// The same with D of that type.
    pub fn with_d(mut self, d: ElementType) -> World {
        for problem in &mut self.problems {
            let rows = problem.shards().to_rows();
            let (a, b) = (problem.elements().a, problem.elements().b);
            let [m, n, k] = [problem.m(), problem.n(), problem.k()].map(u64::from);
            let built = Problem::builder(m, n, k).shards(&rows).elements(a, b, d).build();
            *problem = built.unwrap();
        }
        self
    }

    /// Anything that can be asked for, with that kernel.
    pub fn random(kernel: &'static Kernel, seed: u64) -> World {
        let mut random = Random::new(seed);
        let ranks = random.within(1..=if kernel.cluster_size() > 4 { 6 } else { 8 }) as u32;
        let (m, k) = (random.within(1..=700), random.within(1..=500));
        let rows = shards(m, ranks, &mut random);
        let types = kernel.elements;
        let d = match types.a.is_fp8() {
            true => random.choose(&[ElementType::Bf16, ElementType::F16]),
            false => random.choose(&[ElementType::Bf16, ElementType::F16, ElementType::F32]),
        };
        let scaling = match types.a.is_fp8() {
            true => random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]),
            false => Scaling::None,
        };
        let lda = k.next_multiple_of(16) + 16 * random.within(0..=1);
        let products = random.within(1..=2);
        let problem = |random: &mut Random| {
            let n = 8 * random.within(1..=40);
            let (b_row, pad) = match kernel.b_layout {
                BLayout::Nk => (k, 16),
                BLayout::Kn => (n, 8),
            };
            let problem = Problem::builder(m, n, k).shards(&rows).scaling(scaling);
            let problem = problem.elements(types.a, types.b, d).b_layout(kernel.b_layout);
            let problem = problem.lda(lda).ldb(b_row.next_multiple_of(pad));
            problem.ldd(n + 8 * random.within(0..=2)).build().unwrap()
        };
        let problems = (0..products).map(|_| problem(&mut random)).collect();
        let most = *rows.iter().max().unwrap();
        let pieces = random.within(1..=u64::from(most.min(5))) as u32;
        let strategy = random.choose(&[Strategy::Pipelined, Strategy::Sequential]);
        let streams = random.within(1..=3) as u32;
        let (engine, pieces) = match strategy {
            Strategy::Sequential if streams < 3 => {
                // So many chunks of each rank as one kernel sends.
                (Engine::Kernel { blocks: random.choose(&[1, 2, 3, 8, 16]) }, pieces.min(4))
            }
            _ => (Engine::CopyEngines { streams }, pieces),
        };
        let epoch = random.choose(&[0, 1, u32::MAX - 2, i32::MAX as u32 - 1]);
        let options = GatherOptions::default().with_engine(engine).with_pieces(pieces);
        let options = options.with_poison(true).with_first_epoch(epoch);
        let steps = (k as u32).div_ceil(kernel.tile_k);
        let splits = kernel.max_splits.min(steps).min(MAX_SPLITS);
        let gemm = GemmOptions::default().with_kernel(kernel.name.as_str());
        let gemm = gemm.with_fast_accumulation(kernel.fast_accumulation);
        World {
            all: seed % 3 == 2,
            kernel,
            problems,
            gemm: gemm
                .with_splits(random.within(1..=splits.into()) as u32)
                .with_constant_b(random.within(0..=1) == 1)
                .with_activation(random.choose(&Activation::ALL))
                .with_bias(random.within(0..=1) == 1)
                .with_c(random.within(0..=1) == 1),
            alpha: factor(&mut random),
            beta: factor(&mut random),
            strategy,
            options: options.with_timeouts(PATIENCE, PATIENCE),
            reduction: Reduction {
                partials: match types.d {
                    ElementType::F32 => Partials::F32,
                    _ => Partials::Bf16,
                },
                average: random.within(0..=1) == 1,
            },
            seed,
            exact: false,
        }
    }

    pub fn ranks(&self) -> u32 {
        self.problems[0].ranks()
    }

    pub fn rows(&self) -> Vec<u32> {
        self.problems[0].shards().to_rows()
    }

    /// The rows of D that a rank gets in a step in which ranks own `rows`.
    pub fn output_rows(&self, rows: &[u32], rank: u32) -> Range<u32> {
        if self.all {
            return 0..rows.iter().sum();
        }
        let first = rows[..rank as usize].iter().sum();
        first..first + rows[rank as usize]
    }

    /// The most rows of D that a rank gets in any step.
    pub fn most_output_rows(&self) -> u32 {
        let problem = &self.problems[0];
        if self.all { problem.m() } else { problem.shards().most_rows() }
    }

    pub fn plan(&self, rank: &Rank) -> Layer {
        self.try_plan(rank).unwrap()
    }

    pub fn try_plan(&self, rank: &Rank) -> Result<Layer, Error> {
        let gemm = self.gemm.clone().with_sm_limit(rank.sms_for(self.kernel));
        let options = rank.that_fit(&self.options, &self.problems[0]);
        let (group, device, strategy) = (&rank.group, &rank.gpu.device, Some(self.strategy));
        let (problems, sum) = (&self.problems[..], self.reduction);
        if self.all {
            let plan = GemmAllReduce::plan_all;
            return plan(group, device, problems, strategy, &options, &gemm, sum).map(Layer::All);
        }
        let plan = GemmReduceScatter::plan_all;
        plan(group, device, problems, strategy, &options, &gemm, sum).map(Layer::Scatter)
    }

    /// One rank's memory of step `number`, in the types of the world.
    pub fn work(&self, rank: &Rank, number: u64) -> Box<dyn Step> {
        macro_rules! of {
            ($a:ty, $b:ty, $d:ty) => {
                Box::new(Work::<$a, $b, $d>::new(self, rank, number))
            };
        }
        of_types!(self.problems[0].elements(), of)
    }
}
