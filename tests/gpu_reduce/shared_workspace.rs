//! Operations that share a workspace: each computes what it would in memory of its own, and together they take no more memory than
//! the largest.
//!
//! What belongs here: steps of different operations one behind the other. Invariant: operations send and keep different numbers
//! in the same bytes, so that one which reads or overwrites another's is seen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, result};
use overlap_gemm::cuda::{
    AllGather, AllGatherGemm, CollectiveOptions, Gemm, GemmOptions, GemmReduceScatter, Operands,
    RawOperands, Shard, SharedWorkspace,
};
use overlap_gemm::element::bf16;
use overlap_gemm::group::Group;
use overlap_gemm::plan::{Engine, Problem, Reduction, Strategy};
use overlap_gemm::random::Random;

use super::world::{Layer, World};
use crate::gpu::inputs::{random_bytes, read_bytes};
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, captured};

const ROWS: [u32; 3] = [140, 0, 160];
const COPIES: Engine = Engine::CopyEngines { streams: 2 };
const KERNEL: Engine = Engine::Kernel { blocks: 4 };
/// Bytes of a row that is gathered.
const ROW: u64 = 4096;

fn workspace(rank: &Rank) -> SharedWorkspace {
    SharedWorkspace::new(&rank.group, &rank.gpu.device, PATIENCE).unwrap()
}

/// Reductions of several kinds, of other sizes each.
fn worlds() -> Vec<World> {
    let world = |n, k| World::new(&ROWS, n, k);
    let all = |world| World { all: true, ..world };
    let worlds = [
        world(256, 320),
        world(96, 64).by_kernel(4),
        all(world(128, 192).fused()),
        all(world(160, 64).by_kernel(3)),
        world(512, 64).fused(),
    ];
    worlds.into_iter().zip(1..).map(|(world, seed)| World { seed, ..world }).collect()
}

fn in_workspace(world: World, workspace: &SharedWorkspace) -> World {
    World { options: world.options.with_workspace(workspace), ..world }
}

/// A gather alone.
struct Gathered {
    gather: AllGather,
    steps: Vec<GatheredStep>,
}

/// This rank's rows in a step, and a place for all ranks'.
struct GatheredStep {
    number: u64,
    own: CudaSlice<u8>,
    seen: CudaSlice<u8>,
}

impl GatheredStep {
    fn new(rank: &Rank, number: u64) -> GatheredStep {
        let own = u64::from(ROWS[rank.rank() as usize]) * ROW;
        let own = [random_bytes(rank.rank(), number, own), vec![0; 16]].concat();
        let seen = vec![0xffu8; expected(number).len()];
        GatheredStep { number, own: rank.gpu.upload(&own), seen: rank.gpu.upload(&seen) }
    }

    /// Rows are copied out when `stream` comes there, and `before` has ended.
    fn enqueue(
        &self,
        gather: &mut AllGather,
        stream: &Arc<CudaStream>,
        before: impl FnOnce(&Arc<CudaStream>),
    ) {
        // SAFETY: the shard is long enough, and kept until the stream is through.
        unsafe { gather.start(stream, None, Some(self.own.device_ptr(stream).0)) }.unwrap();
        let from = gather.finish(stream).unwrap();
        before(stream);
        let (to, bytes) = (self.seen.device_ptr(stream).0, self.seen.len());
        // SAFETY: there are so many bytes on both sides, kept until the stream is through.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.unwrap();
    }

    fn check(&self, rank: &Rank) {
        let is_right = rank.gpu.download(&self.seen) == expected(self.number);
        assert!(is_right, "rank {}, step {}", rank.rank(), self.number);
    }
}

impl Gathered {
    fn plan(rank: &Rank, workspace: &SharedWorkspace, engine: Engine) -> Gathered {
        Gathered::within(rank, workspace, engine, PATIENCE)
    }

    /// The same with another limit behind the first step.
    fn within(
        rank: &Rank,
        workspace: &SharedWorkspace,
        engine: Engine,
        limit: Duration,
    ) -> Gathered {
        let options = options(engine).with_timeouts(PATIENCE, limit).with_workspace(workspace);
        let (group, device) = (&rank.group, &rank.gpu.device);
        let gather = AllGather::plan(group, device, &ROWS, ROW, &options).unwrap();
        Gathered { gather, steps: Vec::new() }
    }

    /// A step that is right.
    fn step(&mut self, rank: &Rank, number: u64) {
        let step = GatheredStep::new(rank, number);
        step.enqueue(&mut self.gather, &rank.gpu.stream, |_| ());
        rank.gpu.stream.synchronize().unwrap();
        step.check(rank);
    }
}

/// All ranks' rows of a step.
fn expected(number: u64) -> Vec<u8> {
    let of_ranks = (0..).zip(ROWS);
    of_ranks.flat_map(|(from, rows)| random_bytes(from, number, u64::from(rows) * ROW)).collect()
}

/// In the same order on all ranks, with delays of each rank's own; nothing waits between two steps, and all memory is there before.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_of_operations_in_any_order_are_right() {
    const STEPS: u64 = 60;
    on_ranks(ROWS.len() as u32, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let worlds = worlds().into_iter().map(|world| in_workspace(world, &workspace));
        let mut reductions: Vec<(Layer, World)> =
            worlds.map(|world| (world.plan(&rank), world)).collect();
        let mut gathers = [COPIES, KERNEL].map(|engine| Gathered::plan(&rank, &workspace, engine));
        let (mut order, mut delays) = (Random::new(41), Random::of_stream(42, rank.rank().into()));
        let order: Vec<usize> = (0..STEPS).map(|_| order.within(0..=6) as usize).collect();
        let mut works = Vec::new();
        for (number, which) in (0..).zip(&order) {
            match reductions.get(*which) {
                Some((_, world)) => works.push(world.work(&rank, number)),
                None => gathers[which - 5].steps.push(GatheredStep::new(&rank, number)),
            }
        }
        let (mut next_work, mut next_steps) = (works.iter(), [0; 2]);
        for which in &order {
            if delays.within(0..=3) == 0 {
                std::thread::sleep(Duration::from_micros(delays.within(0..=3000)));
            }
            match reductions.get_mut(*which) {
                Some((layer, _)) => next_work.next().unwrap().enqueue(&rank, layer, None).unwrap(),
                None => {
                    let (Gathered { gather, steps }, next) =
                        (&mut gathers[which - 5], &mut next_steps[which - 5]);
                    steps[*next].enqueue(gather, stream, |_| ());
                    *next += 1;
                }
            }
        }
        stream.synchronize().unwrap();
        reductions.iter_mut().for_each(|(layer, _)| layer.check().unwrap());
        for work in &mut works {
            work.fetch(&rank);
            work.check(&rank, None);
        }
        for Gathered { gather, steps } in &mut gathers {
            gather.check().unwrap();
            steps.iter().for_each(|step| step.check(&rank));
        }
        rank.through();
    });
}

/// Two graphs, one of steps of both operations, the other of one alone, are launched in random order; steps outside come between.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn graphs_of_operations_are_right() {
    const ROUNDS: u64 = 60;
    let [first, second] = [worlds().remove(0), worlds().remove(1)];
    on_ranks(ROWS.len() as u32, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let worlds = [&first, &second].map(|world| in_workspace(world.clone(), &workspace));
        let mut layers = worlds.each_ref().map(|world| world.plan(&rank));
        let mut works = worlds.each_ref().map(|world| [0, 1].map(|step| world.work(&rank, step)));
        for (work, layer) in works.iter_mut().zip(&mut layers) {
            work[0].step(&rank, layer, 2, None);
        }
        let mut capture = |chosen: &[(usize, usize)]| {
            captured(stream, false, || {
                for &(which, step) in chosen {
                    works[which][step].enqueue(&rank, &mut layers[which], None).unwrap();
                }
            })
        };
        let graphs = [capture(&[(0, 0), (1, 0), (0, 1), (1, 1)]), capture(&[(1, 0), (1, 1)])];
        let mut random = Random::new(43);
        for round in 1..=ROUNDS {
            let which = random.within(0..=2) as usize;
            for (at, work) in works.iter_mut().flatten().enumerate() {
                work.renew(&rank, 4 * round + at as u64);
            }
            match graphs.get(which) {
                Some(graph) => graph.launch().unwrap(),
                None => works[0][0].enqueue(&rank, &mut layers[0], None).unwrap(),
            }
            layers[1].synchronize(stream).unwrap();
            layers[0].check().unwrap();
            let enqueued: &[(usize, usize)] =
                [&[(0, 0), (1, 0), (0, 1), (1, 1)][..], &[(1, 0), (1, 1)], &[(0, 0)]][which];
            for &(which, step) in enqueued {
                works[which][step].fetch(&rank);
                works[which][step].check(&rank, None);
            }
        }
        rank.through();
    });
}

/// A rank still reads the rows of one operation, behind a long product, while the others go on to the next, which sends other rows
/// to the same bytes.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn rows_stay_until_every_rank_has_read_them() {
    for engine in [COPIES, KERNEL] {
        on_ranks(ROWS.len() as u32, |rank| {
            let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
            let mut gathers = [(); 2].map(|()| Gathered::plan(&rank, &workspace, engine));
            let slow = Slow::new(&rank);
            for number in 0..20 {
                let late = rank.rank() == number as u32 % ROWS.len() as u32;
                let steps = [2 * number, 2 * number + 1].map(|step| GatheredStep::new(&rank, step));
                for (step, Gathered { gather, .. }) in steps.iter().zip(&mut gathers) {
                    step.enqueue(gather, stream, |stream| {
                        if late {
                            slow.enqueue(stream);
                        }
                    });
                }
                stream.synchronize().unwrap();
                steps.iter().for_each(|step| step.check(&rank));
            }
            gathers.iter_mut().for_each(|gathered| gathered.gather.check().unwrap());
            rank.through();
        });
    }
}

/// A product that takes some milliseconds.
struct Slow {
    gemm: Gemm,
    operands: [CudaSlice<bf16>; 3],
}

impl Slow {
    fn new(rank: &Rank) -> Slow {
        let problem = Problem::builder(1024, 1024, 8192).build().unwrap();
        let few = GemmOptions::default().with_sm_limit(2);
        let gemm = Gemm::plan(&rank.gpu.device, &problem, &few).unwrap();
        let zeros = |count: u64| rank.gpu.upload(&vec![bf16::ZERO; count as usize]);
        Slow { gemm, operands: [zeros(1024 * 8192), zeros(1024 * 8192), zeros(1024 * 1024)] }
    }

    fn enqueue(&self, stream: &Arc<CudaStream>) {
        let [a, b, d] = self.operands.each_ref().map(|slice| slice.device_ptr(stream).0);
        // SAFETY: as long as the problem says, kept until the stream is through.
        unsafe { self.gemm.enqueue_raw(stream, &RawOperands::new(a, b, d)) }.unwrap();
    }
}

/// 80 layers of two shapes take the memory of the larger, and 5 % of it.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn layers_take_the_memory_of_the_largest() {
    const LAYERS: usize = 80;
    on_ranks(2, |rank| {
        let (group, device) = (&rank.group, &rank.gpu.device);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let problem = |n, k| Problem::builder(8192, n, k).ranks(2).build().unwrap();
        let (wide, narrow) = (problem(3584, 8192), problem(8192, 3584));
        let plan_up =
            |options: &_| AllGatherGemm::plan(group, device, &wide, options, &gemm).unwrap();
        let (plain, sum) = (options(COPIES), Reduction::default());
        let plan_down = |options: &CollectiveOptions| {
            let pipelined = options.clone().with_strategy(Strategy::Pipelined);
            GemmReduceScatter::plan(group, device, &narrow, &pipelined, &gemm, sum).unwrap()
        };
        let free = || {
            group.barrier("nobody allocates", PATIENCE).unwrap();
            device.context().bind_to_thread().unwrap();
            let free = result::mem_get_info().unwrap().0;
            group.barrier("measured", PATIENCE).unwrap();
            free
        };
        // What the first plans of a process take, kernels for example.
        drop((plan_up(&plain), plan_down(&plain)));
        let mut before = free();
        // Of both ranks, if they share the GPU.
        let mut taken = || {
            let now = free();
            std::mem::replace(&mut before, now).saturating_sub(now)
        };
        let up = plan_up(&plain);
        let of_up = taken();
        drop(up);
        taken();
        let down = plan_down(&plain);
        let largest = taken().max(of_up);
        drop(down);
        taken();
        let shared = plain.with_workspace(&workspace(&rank));
        let mut layers: Vec<_> =
            (0..LAYERS).map(|_| (plan_up(&shared), plan_down(&shared))).collect();
        let together = taken();
        println!("one of its own: {largest} bytes, {LAYERS} layers: {together}");
        assert!(together <= largest + largest / 20, "{together} bytes, and {largest}");

        let mut random = Random::of_stream(44, rank.rank().into());
        let mut numbers = |count: u64| rank.gpu.upload(&random.elements::<bf16>(count));
        let (stream, shard) = (&rank.gpu.stream, numbers(4096 * 8192));
        let weights = [numbers(3584 * 8192), numbers(8192 * 3584)];
        let mut hidden = rank.gpu.upload(&vec![bf16::NAN; 8192 * 3584]);
        let mut first = None;
        for (up, down) in &mut layers {
            let mut d = rank.gpu.upload(&vec![bf16::NAN; 4096 * 8192]);
            up.enqueue(stream, [Operands::new(&shard, &weights[0], &mut hidden)]).unwrap();
            down.enqueue(stream, [Operands::new(&hidden, &weights[1], &mut d)]).unwrap();
            down.synchronize(stream).unwrap();
            up.check().unwrap();
            let d = rank.gpu.download(&d);
            assert!(d.iter().all(|value| value.is_finite()));
            assert!(*first.get_or_insert_with(|| d.clone()) == d, "layers with the same numbers");
        }
        rank.through();
    });
}

/// A rank that does not come to the next operation is named; one that was late learns that the others went on without it, though
/// nobody has told its host.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_does_not_hand_over_is_named() {
    const SHORT: Duration = Duration::from_secs(1);
    let told = on_ranks(3, |rank| {
        let workspace = SharedWorkspace::new(&rank.group, &rank.gpu.device, SHORT).unwrap();
        let mut gathers = [(); 2].map(|()| Gathered::plan(&rank, &workspace, KERNEL));
        gathers[0].step(&rank, 0);
        gathers[1].step(&rank, 1);
        gathers.iter_mut().for_each(|gathered| gathered.gather.check().unwrap());
        rank.group.barrier("both were right", PATIENCE).unwrap();
        let step = GatheredStep::new(&rank, 2);
        let (stream, own) = (&rank.gpu.stream, &step.own);
        if rank.rank() < 2 {
            // SAFETY: kept until the stream is through.
            unsafe { gathers[0].gather.start(stream, None, Some(own.device_ptr(stream).0)) }
                .unwrap();
        }
        // The late one looks first, until the others have gone on.
        let begin = Instant::now();
        while rank.rank() < 2 && rank.group.check().is_ok() && begin.elapsed() < PATIENCE {
            std::thread::sleep(SHORT / 20);
        }
        let error = loop {
            match gathers[0].gather.check() {
                Err(error) => break error,
                Ok(()) => assert!(begin.elapsed() < PATIENCE, "nobody has gone on"),
            }
            std::thread::sleep(SHORT / 20);
        };
        // The other operation is over, too.
        let other = gathers[1].gather.check().unwrap_err();
        println!("rank {}: {error}; {other}", rank.rank());
        error
    });
    let named = |error: &Error| matches!(error, Error::PeerTimeout { peer: 2, .. });
    assert!(told[..2].iter().any(named), "{told:?}");
    assert!(matches!(told[2], Error::Aborted { .. }), "{told:?}");
    assert!(told[2].to_string().contains("gave up a step or a wait, and went on"), "{told:?}");
}

/// A rank comes to a step when the others have given it up, and wait for it where the next operation begins. What it sends of the first
/// may still be on its way then, so nothing that comes behind it is a result, though nobody has told its host.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_step_behind_one_that_was_given_up_is_no_result() {
    const SHORT: Duration = Duration::from_secs(1);
    for engine in [COPIES, KERNEL] {
        on_ranks(3, |rank| {
            let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
            let plan = |limit| Gathered::within(&rank, &workspace, engine, limit);
            let mut gathers = [plan(SHORT), plan(PATIENCE)];
            // The latest step is the first operation's, and its rows stay: so its next step begins without the late rank.
            [1, 1, 0, 0].into_iter().for_each(|which| gathers[which].step(&rank, which as u64));
            gathers.iter_mut().for_each(|gathered| gathered.gather.check().unwrap());
            rank.group.barrier("both were right", PATIENCE).unwrap();
            let step = GatheredStep::new(&rank, 2);
            if rank.rank() == 2 {
                std::thread::sleep(SHORT * 4);
            }
            for Gathered { gather, .. } in &mut gathers {
                step.enqueue(gather, stream, |_| ());
            }
            stream.synchronize().unwrap();
            // The late one looks first.
            while rank.rank() < 2 && rank.group.check().is_ok() {
                std::thread::sleep(SHORT / 20);
            }
            // The words of the first operation are not those of the second.
            let [second, first] = [1, 0].map(|which| gathers[which].gather.check());
            println!("rank {}, {engine}: {second:?}; {first:?}", rank.rank());
            assert!(second.is_err() && first.is_err());
            rank.through();
        });
    }
}

/// An operation that is dropped in a step leaves rows that nobody waits for.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn an_operation_that_is_dropped_in_a_step_ends_the_others() {
    on_ranks(2, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let options = options(KERNEL).with_workspace(&workspace);
        let (group, device) = (&rank.group, &rank.gpu.device);
        let plan = || AllGather::plan(group, device, &[8, 8], ROW, &options).unwrap();
        let [mut dropped, mut other] = [plan(), plan()];
        let own = rank.gpu.upload(&random_bytes(rank.rank(), 0, 8 * ROW));
        // SAFETY: kept until the stream is through.
        unsafe { dropped.start(stream, None, Some(own.device_ptr(stream).0)) }.unwrap();
        rank.group.barrier("all are in the step", PATIENCE).unwrap();
        drop(dropped);
        let error = other.check().unwrap_err().to_string();
        assert!(error.contains("an operation was dropped in a step"), "{error}");
        rank.through();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_cannot_share_is_refused() {
    on_ranks(2, |rank| {
        let (stream, workspace) = (&rank.gpu.stream, workspace(&rank));
        let (group, device) = (&rank.group, &rank.gpu.device);
        let gemm = GemmOptions::default().with_sm_limit(rank.sms);
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let shared = options(KERNEL).with_strategy(Strategy::Fused).with_workspace(&workspace);
        let plan = |group, options| AllGatherGemm::plan(group, device, &problem, options, &gemm);
        let mut layer = plan(group, &shared).unwrap();
        let refused = |result: Result<(), Error>, expected: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        let in_place = "rows in place in a shared workspace";
        refused(layer.local_shard(None).map(|_| ()), in_place);
        let [b, d] = [64 * 64, 64 * 64].map(|count| rank.gpu.upload(&vec![bf16::ONE; count]));
        let operands = [RawOperands::of_gathered(b.device_ptr(stream).0, d.device_ptr(stream).0)];
        // SAFETY: refused before anything is enqueued.
        refused(unsafe { layer.enqueue_raw(stream, Shard::in_place(), &operands) }, in_place);
        let by_nccl = shared.clone().with_engine(Engine::Nccl).with_strategy(Strategy::Sequential);
        let plan_nccl = plan(group, &by_nccl);
        refused(plan_nccl.map(|_| ()), "NCCL in a shared workspace");
        let other = Arc::new(Group::local(1).unwrap().remove(0));
        refused(plan(&other, &shared).map(|_| ()), "the group of the workspace is another");

        // A step that has not ended; the refusal ends nothing.
        let mut gather = AllGather::plan(
            group,
            device,
            &[8, 8],
            ROW,
            &options(KERNEL).with_workspace(&workspace),
        )
        .unwrap();
        let own = rank.gpu.upload(&random_bytes(rank.rank(), 0, 8 * ROW));
        let shard = || Some(own.device_ptr(stream).0);
        // SAFETY: kept until the stream is through.
        unsafe { gather.start(stream, None, shard()) }.unwrap();
        let rows = || Shard::at(own.device_ptr(stream).0);
        // SAFETY: refused.
        refused(
            unsafe { layer.enqueue_raw(stream, rows(), &operands) },
            "the step before is not ended",
        );
        assert_eq!(layer.gathered(), None);
        let at = gather.finish(stream).unwrap();
        gather.synchronize(stream).unwrap();
        // SAFETY: so many bytes lie there, and the stream is through.
        let got = unsafe { read_bytes(at, 16 * ROW as usize) };
        assert!(got == [0, 1].map(|from| random_bytes(from, 0, 8 * ROW)).concat());
        // SAFETY: kept until the stream is through; a shard of 32 rows is shorter.
        unsafe { layer.enqueue_raw(stream, rows(), &operands) }.unwrap();
        layer.synchronize(stream).unwrap();
        assert!(layer.gathered().is_some());
        rank.through();
    });
}

/// Operations come and go: their words are used again, when no rank has them any more.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn operations_come_and_go() {
    /// More than there are words for.
    const PLANS: u64 = 1100;
    on_ranks(2, |rank| {
        let workspace = workspace(&rank);
        let options = options(KERNEL).with_workspace(&workspace);
        let (group, device, stream) = (&rank.group, &rank.gpu.device, &rank.gpu.stream);
        let mut kept = None;
        for number in 0..PLANS {
            let mut gather = AllGather::plan(group, device, &[8, 8], ROW, &options).unwrap();
            let own = rank.gpu.upload(&random_bytes(rank.rank(), number, 8 * ROW));
            // SAFETY: kept until the stream is through.
            unsafe { gather.start(stream, None, Some(own.device_ptr(stream).0)) }.unwrap();
            let at = gather.finish(stream).unwrap();
            gather.synchronize(stream).unwrap();
            // SAFETY: so many bytes lie there, and the stream is through.
            let got = unsafe { read_bytes(at, 16 * ROW as usize) };
            assert!(got == [0, 1].map(|from| random_bytes(from, number, 8 * ROW)).concat());
            // One rank drops it before the next plan, the other behind it.
            kept = (rank.rank() == 1).then_some(gather);
        }
        drop(kept);
        assert!(workspace.bytes() <= 6 << 20, "{} bytes", workspace.bytes());
        rank.through();
    });
}
