//! All-gather + GEMM between ranks on GPUs: what comes out is what the product of the whole A is.
//!
//! What belongs here: results. Ranks are threads; where there are fewer GPUs than ranks, several share one.
//! Every output is compared with the reference, and bit for bit with the same kernel on an A that was
//! there; inputs are new in every step, and rows of past steps are NaN.

use std::time::Duration;

use crate::gpu::call::{self, Call, call, of_gathered};
use crate::gpu::case::Case;
use crate::gpu::inputs::{read_bytes, shards, some_rows};
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, captured, one_kernel, share_of_rounds, tried_kernels};
use overlap_gemm::cuda::cudarc::driver::CudaGraph;
use overlap_gemm::cuda::cudarc::driver::sys::CUdeviceptr;
use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions, Gemm, Kernel, RawOperands, Shard};
use overlap_gemm::plan::{Activation, Engine, Plan, PlanOptions, Problem, Scaling, Strategy};
use overlap_gemm::random::Random;

/// Sizes that are drawn are at most this.
const MOST: u64 = 700;

/// Anything that a gather may be asked for.
fn random_options(most_rows: u32, random: &mut Random) -> CollectiveOptions {
    let engine = random.choose(&[
        None,
        Some(Engine::CopyEngines { streams: 1 }),
        Some(Engine::CopyEngines { streams: 3 }),
        Some(Engine::Kernel { blocks: 1 }),
        Some(Engine::Kernel { blocks: 5 }),
        // More words than a warp looks at together; fewer where ranks share a GPU (`that_fit`).
        Some(Engine::Kernel { blocks: 40 }),
    ]);
    let epoch = random.choose(&[0, 1, u32::MAX - 2, i32::MAX as u32 - 1]);
    let mut options = options(Engine::PUSHING).with_first_epoch(epoch);
    options.engine = engine;
    match random.within(0..=2) {
        0 => options,
        _ => options.with_pieces(random.within(1..=u64::from(most_rows.min(6))) as u32),
    }
}

/// One rank's operands, and what it needs to check them.
pub struct Work {
    case: Case,
    pub problem: Problem,
    pub call: Box<dyn Call>,
    pub plain: Gemm,
    /// Each rank has the row scales of all rows.
    replicated: bool,
}

impl Work {
    /// The same numbers on every rank, if `random` is.
    pub fn new(rank: &Rank, case: &Case, rows: &[u32], random: &mut Random) -> Work {
        let problem = case.sharded(rows);
        let plain = Gemm::plan(&rank.gpu.device, &problem, &case.options).unwrap();
        let (case, call, replicated) = (case.clone(), call(&rank.gpu, case, random), false);
        Work { case, problem, call, plain, replicated }
    }

    /// The problem of a step with these rows, or as planned.
    pub fn step(&self, rows: Option<&[u32]>) -> Problem {
        rows.map_or(self.problem.clone(), |rows| self.problem.with_shards(rows).unwrap())
    }

    /// Where this rank's rows of A are, and their scales.
    pub fn shard<'a>(&self, rank: &Rank, rows: Option<&'a [u32]>) -> Shard<'a> {
        let m = self.step(rows);
        let addresses = self.call.addresses(&rank.gpu.stream);
        let own = m.shards().rows(rank.rank());
        let size = u64::from(m.elements().a.size());
        let at = addresses.a + u64::from(own.start) * u64::from(m.lda()) * size;
        let shard = Shard::at(at);
        let shard = match rows {
            Some(rows) => shard.rows(rows),
            None => shard,
        };
        match m.scaling() == Scaling::Rows {
            true if self.replicated => shard.scales(addresses.scale_a),
            true if !own.is_empty() => shard.scales(addresses.scale_a + 4 * u64::from(own.start)),
            _ => shard,
        }
    }

    pub fn operands(&self, rank: &Rank) -> RawOperands {
        of_gathered(self.call.addresses(&rank.gpu.stream), self.problem.scaling())
    }

    /// One step of this rank, not awaited.
    pub fn enqueue(&self, rank: &Rank, layer: &mut AllGatherGemm, rows: Option<&[u32]>) {
        let (shard, operands) = (self.shard(rank, rows), self.operands(rank));
        // SAFETY: the call's own memory; tests await the stream before they drop or look at it.
        unsafe { layer.enqueue_raw(&rank.gpu.stream, shard, &[operands]) }.unwrap();
    }

    /// The fused operation that this is a step of.
    pub fn fused(&self, rank: &Rank, options: &CollectiveOptions) -> AllGatherGemm {
        let (group, device, gemm) = (&rank.group, &rank.gpu.device, &self.case.options);
        let fused = options.clone().with_strategy(Strategy::Fused);
        AllGatherGemm::plan(group, device, &self.problem, &fused, gemm).unwrap()
    }

    /// New rows of A, on both sides; D is as before a product.
    pub fn renew(&mut self, rank: &Rank, random: &mut Random) {
        self.call.renew_a(random);
        self.call.copy_part(0..self.problem.m(), 0..self.problem.k(), &rank.gpu.stream);
        self.call.poison_d(&rank.gpu.stream);
        rank.gpu.stream.synchronize().unwrap();
    }

    /// Whether D is what the reference says, in some rows of each shard.
    pub fn is_right(&mut self, rank: &Rank, random: &mut Random) -> bool {
        self.call.fetch(&rank.gpu.stream);
        let shards = self.problem.shards();
        let firsts =
            (0..shards.ranks()).map(|rank| shards.rows(rank)).filter(|rows| !rows.is_empty());
        let mut rows = some_rows(self.problem.m(), random);
        rows.extend(firsts.flat_map(|rows| [rows.start, rows.end - 1]));
        rows.sort_unstable();
        rows.dedup();
        self.call.report(&rows).wrong == 0
    }

    /// D is what the reference says, and what the same kernel makes of an A that is there.
    pub fn check(&mut self, rank: &Rank, m: u32, random: &mut Random) {
        let stream = &rank.gpu.stream;
        call::check(&mut *self.call, stream, &self.case, m, random);
        self.call.poison_d(stream);
        let operands = self.call.addresses(stream).rows(m);
        // SAFETY: the call's own memory, and the stream is awaited before it is looked at.
        unsafe { self.plain.enqueue_raw(stream, &operands) }.unwrap();
        self.call.fetch(stream);
        assert_eq!(self.call.difference(), None, "rank {}: {:?}", rank.rank(), self.case);
    }

    /// The gathered A is A, row by row.
    fn check_gathered(&self, rank: &Rank, step: &Problem, at: CUdeviceptr) {
        // SAFETY: the gathered rows are so long, and the stream is through.
        let gathered = unsafe { read_bytes(at, self.call.bytes_of(0..step.m()).end) };
        for row in 0..step.m() {
            let start = self.call.bytes_of(row..row + 1).start;
            // What lies between rows may be anything.
            let bytes = start..start + (step.k() * step.elements().a.size()) as usize;
            let same = gathered[bytes.clone()] == self.call.bytes()[bytes];
            assert!(same, "rank {}: row {row} of {:?}", rank.rank(), self.case);
        }
    }
}

/// A case for ranks that may share a GPU.
fn some_case(kernel: &'static Kernel, sms: u32, random: &mut Random) -> Case {
    let mut case = Case::random(kernel, MOST, random);
    let least = kernel.cluster_size();
    case.options.sm_limit = Some(sms.max(least) / least * least);
    case
}

/// Three steps of one operation.
fn steps(
    rank: &Rank,
    case: &Case,
    strategy: Strategy,
    options: &CollectiveOptions,
    rows: &[u32],
    seed: u64,
) {
    let mut random = Random::new(seed);
    let mut work = Work::new(rank, case, rows, &mut random);
    let problem = work.problem.clone();
    let (group, device) = (&rank.group, &rank.gpu.device);
    work.replicated = case.scaling == Scaling::Rows && seed % 2 == 1;
    let options = rank.that_fit(options, &problem).with_replicated_row_scales(work.replicated);
    let options = options.with_strategy(strategy);
    let mut layer = AllGatherGemm::plan(group, device, &problem, &options, &case.options).unwrap();
    for step in 0..3 {
        work.renew(rank, &mut random);
        // In one of three the rows of the step are others than planned.
        let other = shards(random.within(1..=problem.m().into()), group.ranks(), &mut random);
        let rows = (step == 1).then_some(&other[..]);
        let shape = work.step(rows);
        work.enqueue(rank, &mut layer, rows);
        layer.synchronize(&rank.gpu.stream).unwrap();
        let (at, _) = layer.gathered().unwrap();
        work.check_gathered(rank, &shape, at);
        work.check(rank, shape.m(), &mut random);
    }
    rank.through();
}

fn try_every_kernel(strategy: Strategy, rounds: u64, seed: u64) {
    for kernel in tried_kernels() {
        // The widths of one kernel draw other cases.
        let mut random = Random::of_stream(seed, u64::from(kernel.tile.m + kernel.tile.n));
        for round in 0..share_of_rounds(kernel, rounds) {
            // Of clusters of eight, six find their places beside blocks that push.
            let most = if kernel.cluster_size() > 4 { 6 } else { 8 };
            let ranks = random.within(1..=most) as u32;
            let mut case = some_case(kernel, (100 / ranks).max(4), &mut random);
            let rows = shards(case.size[0], ranks, &mut random);
            let options = random_options(*rows.iter().max().unwrap(), &mut random);
            if strategy != Strategy::Fused {
                // Rows of one rank may be too few for what was drawn for all.
                case.options.swizzle = None;
            }
            println!("{kernel}: {ranks} ranks, rows {rows:?}, {options:?}, {case:?}");
            on_ranks(ranks, |rank| {
                let mut case = case.clone();
                case.options.sm_limit = Some(rank.sms_for(kernel));
                steps(&rank, &case, strategy, &options, &rows, seed + round);
            });
        }
        println!("{kernel}: right");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn fused_products_are_right() {
    try_every_kernel(Strategy::Fused, 6, 51);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn pipelined_products_are_right() {
    try_every_kernel(Strategy::Pipelined, 2, 52);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sequential_products_are_right() {
    try_every_kernel(Strategy::Sequential, 2, 53);
}

/// Enqueues steps one behind the other, with inputs of their own, each after what `delay` does; in the end each step's D is
/// looked at.
fn steps_without_waiting(
    case: &Case,
    rows: &[u32],
    steps: usize,
    options: &CollectiveOptions,
    delay: impl Fn(&mut Random) + Sync,
) {
    on_ranks(rows.len() as u32, |rank| {
        let mut random = Random::new(61);
        let case = case.clone().with(|options| options.with_sm_limit(rank.sms));
        let mut all: Vec<Work> =
            (0..steps).map(|_| Work::new(&rank, &case, rows, &mut random)).collect();
        let mut layer = all[0].fused(&rank, options);
        all.iter_mut().for_each(|work| work.call.poison_d(&rank.gpu.stream));
        rank.gpu.stream.synchronize().unwrap();
        let mut delays = Random::of_stream(62, rank.rank().into());
        for work in &all {
            delay(&mut delays);
            work.enqueue(&rank, &mut layer, None);
        }
        layer.synchronize(&rank.gpu.stream).unwrap();
        all.iter_mut().for_each(|work| {
            let m = work.problem.m();
            work.check(&rank, m, &mut random);
        });
        rank.through();
    });
}

/// Steps that nobody waits for: ranks drift, inputs change.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn many_steps_without_waiting_are_right() {
    let case = Case::new(one_kernel(), 512, 256, 512);
    for engine in [Engine::CopyEngines { streams: 2 }, Engine::Kernel { blocks: 4 }] {
        for ranks in [2, 3] {
            let rows = shards(512, ranks, &mut Random::new(61));
            steps_without_waiting(&case, &rows, 40, &options(engine).with_pieces(3), |delays| {
                if delays.within(0..=3) == 0 {
                    std::thread::sleep(Duration::from_micros(delays.within(0..=2000)));
                }
            });
            println!("{engine:?}, {ranks} ranks: right");
        }
    }
}

/// Shards of more than a kernel signals to all peers at once, in several pieces: each is signalled by itself.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn pieces_of_large_shards_are_right() {
    large_shards(&Case::new(one_kernel(), 1100, 6144, 2200), &[&[600, 500], &[300, 300, 500]], 1);
}

/// The same, with so few outputs that rows are pushed in spans of columns.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn spans_of_large_shards_are_right() {
    let rows = [&[300, 212][..], &[230, 140, 142]];
    // The last span is shorter, and ends with half a load.
    large_shards(&Case::new(one_kernel(), 512, 128, 4012), &rows, 4);
    let kernels = tried_kernels();
    if let Some(kernel) = kernels.into_iter().find(|kernel| kernel.elements.a.is_fp8()) {
        let mut case = Case::new(kernel, 512, 128, 8000);
        case.scaling = Scaling::Rows;
        large_shards(&case, &rows, 4);
    }
}

fn large_shards(case: &Case, shards: &[&[u32]], spans: u32) {
    for rows in shards {
        // Not a power of two: signals have words that belong to no block.
        let engine = Engine::Kernel { blocks: 5 };
        let plan = PlanOptions::new().with_engine(engine).with_pieces(3);
        let plan = Plan::new(&case.sharded(rows), plan).unwrap();
        assert_eq!(plan.chunks().spans(), spans);
        steps_without_waiting(case, rows, 6, &options(engine).with_pieces(3), |_| ());
        println!("{case}, rows {rows:?}: right");
    }
}

/// Launches graphs of these steps in random order, with other inputs each time; a graph's steps have `m` rows.
pub fn replay(
    rank: &Rank,
    layer: &mut AllGatherGemm,
    graphs: &[(CudaGraph, u32)],
    steps: &mut [Work],
    replays: usize,
    random: &mut Random,
) {
    for _ in 0..replays {
        steps.iter_mut().for_each(|work| work.renew(rank, random));
        // The same on all ranks.
        let (graph, m) = &graphs[random.within(0..=graphs.len() as u64 - 1) as usize];
        graph.launch().unwrap();
        layer.synchronize(&rank.gpu.stream).unwrap();
        steps.iter_mut().for_each(|work| work.check(rank, *m, random));
    }
}

/// Two graphs of one operation, whose steps have other rows each, replayed with other inputs; plain steps before and after.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn graphs_replay_with_changing_inputs() {
    const REPLAYS: usize = 100;
    let kernel = one_kernel();
    for engine in [Engine::CopyEngines { streams: 2 }, Engine::Kernel { blocks: 4 }] {
        for steps in [1, 2] {
            on_ranks(2, |rank| {
                let mut case = Case::new(kernel, 300, 256, 320);
                case.options.sm_limit = Some(rank.sms);
                let mut random = Random::new(71);
                let mut all: Vec<Work> =
                    (0..steps).map(|_| Work::new(&rank, &case, &[140, 160], &mut random)).collect();
                let mut layer = all[0].fused(&rank, &options(engine));
                let stream = &rank.gpu.stream;
                for round in 0..2 {
                    // A plain step; the second time after the graph.
                    all[0].renew(&rank, &mut random);
                    all[0].enqueue(&rank, &mut layer, None);
                    layer.synchronize(stream).unwrap();
                    all[0].check(&rank, 300, &mut random);
                    if round == 1 {
                        break;
                    }
                    let graphs = [[140, 160], [33, 90]].map(|rows| {
                        let graph = captured(stream, false, || {
                            let rows = Some(&rows[..]);
                            all.iter().for_each(|work| work.enqueue(&rank, &mut layer, rows));
                        });
                        (graph, rows.iter().sum())
                    });
                    replay(&rank, &mut layer, &graphs, &mut all, REPLAYS, &mut random);
                }
            });
            println!("{engine:?}, {steps} steps in a graph: right");
        }
    }
}

/// Two products of one gathered A.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn several_products_of_one_gather_are_right() {
    let kernel = one_kernel();
    for strategy in Strategy::ALL {
        on_ranks(3, |rank| {
            let mut random = Random::new(91);
            let rows = shards(500, 3, &mut random);
            // A is what the first seed gives, B another for each, and what comes after the sum.
            let mut both =
                [(128, Activation::Relu), (320, Activation::None)].map(|(n, function)| {
                    let mut case = Case::new(kernel, 500, n, 192);
                    case.options.sm_limit = Some(rank.sms);
                    case.options.activation = function;
                    case.options.bias = function == Activation::None;
                    Work::new(&rank, &case, &rows, &mut random)
                });
            let products =
                both.each_ref().map(|work| (work.problem.clone(), work.case.options.clone()));
            let options = CollectiveOptions::default()
                .with_strategy(strategy)
                .with_poison(true)
                .with_timeouts(PATIENCE, PATIENCE);
            let (group, device) = (&rank.group, &rank.gpu.device);
            let mut layer = AllGatherGemm::plan_all(group, device, &products, &options).unwrap();
            for step in 0..4 {
                // The same A for both: drawn from the same numbers.
                let seed = random.next_u64();
                both.iter_mut().for_each(|work| work.renew(&rank, &mut Random::new(seed)));
                let shard = both[0].shard(&rank, None);
                let operands = [both[0].operands(&rank), both[1].operands(&rank)];
                // SAFETY: the calls' own memory, and the stream is awaited.
                unsafe { layer.enqueue_raw(&rank.gpu.stream, shard, &operands) }.unwrap();
                layer.synchronize(&rank.gpu.stream).unwrap();
                both.iter_mut().for_each(|work| work.check(&rank, 500, &mut random));
                if step == 3 {
                    // SAFETY: refused before anything is enqueued.
                    let refused =
                        unsafe { layer.enqueue_raw(&rank.gpu.stream, shard, &operands[..1]) };
                    let error = refused.unwrap_err().to_string();
                    assert!(
                        error.starts_with("the number of operands is 1, but must be 2"),
                        "{error}"
                    );
                }
            }
            rank.through();
        });
        println!("{strategy:?}: right");
    }
}
