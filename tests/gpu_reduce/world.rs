//! What all ranks of a reduction do: sizes, types, options.
//!
//! What belongs here: plain values, and drawing them; one rank's memory of a step is in `work`. Invariants: whatever is drawn
//! here can be planned; sums of past steps are NaN, unless a test says otherwise.

use std::ops::Range;
use std::sync::Arc;

use overlap_gemm::cuda::cudarc::driver::CudaStream;
use overlap_gemm::cuda::{
    CollectiveOptions, GemmAllReduce, GemmReduceScatter, Kernel, RawOperands, Shard, StepRecord,
};
use overlap_gemm::plan::{
    Activation, Engine, Operation, Partials, Plan, PlanOptions, Problem, Reduction, Scaling,
    Schedule, Strategy,
};
use overlap_gemm::random::Random;
use overlap_gemm::{ElementType, Error};

use super::work::{Step, Work};
use crate::gpu::case::Case;
use crate::gpu::inputs::{factor, shards};
use crate::gpu::ranks::{Rank, options};
use crate::gpu::tried_kernels;

/// What all ranks do.
#[derive(Clone, Debug)]
pub struct World {
    /// An all-reduce, not a reduce-scatter.
    pub all: bool,
    /// One for each product of A, alike but for B and D, which is what becomes of the totals.
    pub cases: Vec<Case>,
    /// Of each batch of A and D, as planned.
    pub rows: Vec<u32>,
    pub strategy: Strategy,
    pub options: CollectiveOptions,
    pub reduction: Reduction,
    pub seed: u64,
    /// Inputs are integers times a power of two of the rank's own: sums are exact, and totals depend on the order of additions.
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
    pub unsafe fn enqueue_raw(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        either!(self, layer => unsafe { layer.enqueue_raw(stream, a, operands) })
    }

    pub fn step_record(&self) -> Result<StepRecord, Error> {
        either!(self, layer => layer.step_record())
    }

    /// # Safety
    /// That of the operation.
    pub unsafe fn enqueue_recorded(
        &mut self,
        stream: &Arc<CudaStream>,
        a: Shard<'_>,
        operands: &[RawOperands],
        record: &mut StepRecord,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        either!(self, layer => unsafe { layer.enqueue_recorded(stream, a, operands, record) })
    }

    pub fn planned(&self) -> &Plan {
        either!(self, layer => layer.planned())
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
        World::of(kernel_for(Partials::Bf16).expect("a kernel of bf16"), rows, n, k)
    }

    /// The same by another kernel.
    pub fn of(kernel: &'static Kernel, rows: &[u32], n: u64, k: u64) -> World {
        let m = rows.iter().map(|rows| u64::from(*rows)).sum();
        let partials = match kernel.elements.d {
            ElementType::F32 => Partials::F32,
            _ => Partials::Bf16,
        };
        World {
            all: false,
            cases: vec![Case::new(kernel, m, n, k)],
            rows: rows.to_vec(),
            strategy: Strategy::Pipelined,
            options: options(Engine::CopyEngines { streams: 1 }),
            reduction: Reduction { partials, ..Reduction::default() },
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

    /// An all-reduce of it by a kernel, of so many columns that half of these rows are too many for one shot.
    pub fn in_two_shots_by_kernel(mut self, blocks: u32) -> World {
        let (ranks, rows) = (u64::from(self.ranks()), self.rows.iter().sum::<u32>());
        assert!(ranks > 2, "one shot sends as much");
        let elements = (1 << 20) * ranks / ((ranks - 1) * (ranks - 2)) / 2;
        let columns = (elements / u64::from(rows / 2) + 1).next_multiple_of(8);
        self.cases.iter_mut().for_each(|case| case.size[1] = columns);
        let world = World { all: true, ..self.by_kernel(blocks) };
        let mut half = vec![0; ranks as usize];
        half[0] = rows / 2;
        assert!(world.has_two_shots(&world.rows) && world.has_two_shots(&half));
        world
    }

    /// Whether a step in which ranks own `rows` has two shots by a kernel.
    pub fn has_two_shots(&self, rows: &[u32]) -> bool {
        self.plan_of(0, rows).has_two_shots()
    }

    /// What the reference has to know of a step: who adds up which sums, in which order.
    pub fn plan_of(&self, product: usize, rows: &[u32]) -> Plan {
        let operation =
            if self.all { Operation::GemmAllReduce } else { Operation::GemmReduceScatter };
        let engine = self.options.engine.expect("a world names its engine");
        let options = PlanOptions { operation, engine, ..PlanOptions::new() };
        let problem = self.cases[product].sharded(&self.rows).with_shards(rows).unwrap();
        Plan::new(&problem, options.with_strategy(self.strategy)).unwrap()
    }

    /// The same by products that add the others' sums, of half a rank's rows each.
    pub fn fused(mut self) -> World {
        self.strategy = Strategy::Fused;
        self.options = self.options.with_pieces(2);
        self
    }

    /// The same of several batches of these rows.
    pub fn in_batches(self, batches: u64) -> World {
        self.with(|case| (case.batches, case.size[0]) = (batches, case.size[0] * batches))
    }

    /// The same along columns, of which each rank gets as many as all were: ranks have to have as many rows.
    pub fn in_columns(self) -> World {
        let (ranks, rows) = (u64::from(self.ranks()), u64::from(self.rows[0]));
        self.with(|case| {
            case.scatter_columns = true;
            (case.size[0], case.size[1]) = (rows, case.size[1] * ranks);
        })
    }

    /// The same with other cases.
    pub fn with(mut self, change: impl Fn(&mut Case)) -> World {
        self.cases.iter_mut().for_each(change);
        self
    }

    /// Anything that can be asked for, with that kernel.
    pub fn random(kernel: &'static Kernel, seed: u64) -> World {
        let mut random = Random::new(seed);
        let ranks = random.within(1..=if kernel.cluster_size() > 4 { 6 } else { 8 }) as u32;
        let (m, k) = (random.within(1..=700), random.within(1..=500));
        let rows = shards(m, ranks, &mut random);
        let is_fp8 = kernel.elements.a.is_fp8();
        let types = [ElementType::Bf16, ElementType::F16, ElementType::F32];
        let mut case = Case::new(kernel, m, 8, k);
        case.d = random.choose(if is_fp8 { &types[..2] } else { &types });
        if is_fp8 {
            case.scaling = random.choose(&[Scaling::None, Scaling::Tensor, Scaling::Rows]);
        }
        case.options = (case.options.clone())
            .with_splits(random.within(1..=case.most_splits().into()) as u32)
            .with_constant_b(random.within(0..=1) == 1)
            .with_c(random.within(0..=1) == 1);
        (case.alpha, case.beta) = (factor(&mut random), factor(&mut random));
        case.pads[0] = random.within(0..=2);
        let d_pad = u64::from(case.d.size()) / 2;
        let cases = (0..random.within(1..=2)).map(|_| Case {
            size: [m, 8 * random.within(1..=40), k],
            // Rows of D lie a multiple of 8 elements apart.
            pads: [case.pads[0], random.within(0..=1), random.within(0..=2) * d_pad],
            // What comes after its sums is each product's own.
            options: (case.options.clone())
                .with_activation(random.choose(&Activation::ALL))
                .with_bias(random.within(0..=1) == 1),
            ..case.clone()
        });
        let cases = cases.collect();
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
        let mut world = World::of(kernel, &rows, 8, k);
        world.options = options(engine).with_pieces(pieces).with_first_epoch(epoch);
        world.reduction.average = random.within(0..=1) == 1;
        let all = seed % 3 == 2;
        let adds =
            kernel.adds_others && case.d == ElementType::Bf16 && case.scaling == Scaling::None;
        let fuses = adds && seed.is_multiple_of(2);
        let strategy = match strategy {
            Strategy::Pipelined if fuses => Strategy::Fused,
            strategy => strategy,
        };
        let world = World { all, cases, strategy, seed, ..world };
        let batches = if all { 1 } else { random.within(1..=3) };
        world.in_batches(batches)
    }

    /// Whether totals are rounded to bf16 between additions: then nothing may follow them.
    pub fn rounds_additions(&self) -> bool {
        self.options.engine == Some(Engine::Nccl) && self.reduction.partials == Partials::Bf16
    }

    pub fn ranks(&self) -> u32 {
        self.rows.len() as u32
    }

    pub fn problems(&self) -> Vec<Problem> {
        self.cases.iter().map(|case| case.sharded(&self.rows)).collect()
    }

    /// The rows of D that a rank gets in a step in which ranks own `rows` of each batch.
    pub fn output_rows(&self, rows: &[u32], rank: u32) -> Range<u32> {
        if self.all {
            return 0..rows.iter().sum();
        }
        let batches = self.cases[0].batches as u32;
        let first: u32 = rows[..rank as usize].iter().sum();
        batches * first..batches * (first + rows[rank as usize])
    }

    /// The most rows of D that a rank gets in any step.
    pub fn most_output_rows(&self) -> u32 {
        match self.all {
            true => self.rows.iter().sum(),
            false => self.cases[0].batches as u32 * self.rows.iter().max().unwrap(),
        }
    }

    pub fn plan(&self, rank: &Rank) -> Layer {
        self.try_plan(rank).unwrap()
    }

    pub fn try_plan(&self, rank: &Rank) -> Result<Layer, Error> {
        let problems = self.problems();
        let options = rank.that_fit(&self.options, &problems[0]).with_strategy(self.strategy);
        let gemm = |case: &Case| case.options.clone().with_sm_limit(rank.sms_for(case.kernel));
        let products: Vec<_> = problems.into_iter().zip(self.cases.iter().map(gemm)).collect();
        let (group, device, sum) = (&rank.group, &rank.gpu.device, self.reduction);
        match self.all {
            true => {
                GemmAllReduce::plan_all(group, device, &products, &options, sum).map(Layer::All)
            }
            false => GemmReduceScatter::plan_all(group, device, &products, &options, sum)
                .map(Layer::Scatter),
        }
    }

    /// One rank's memory of step `number`, in the types of the world.
    pub fn work(&self, rank: &Rank, number: u64) -> Box<dyn Step> {
        macro_rules! of {
            ($a:ty, $b:ty, $d:ty) => {
                Box::new(Work::<$a, $b, $d>::new(self, rank, number))
            };
        }
        overlap_gemm::element::of_types!(
            self.problems()[0].elements(),
            of,
            panic!("no kernel can have the types of {}", self.problems()[0])
        )
    }
}
