//! Operations that share a workspace: each computes what it would in memory of its own.
//!
//! What belongs here: steps of different operations one behind the other. Invariant: operations send and keep different numbers
//! in the same bytes, so that one which reads or overwrites another's is seen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, result};
use overlap_gemm::cuda::{AllGather, Gemm, GemmOptions, RawOperands, SharedWorkspace};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Engine, Problem};
use overlap_gemm::random::Random;

use super::world::{Layer, World};
use crate::gpu::inputs::random_bytes;
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, captured};

const ROWS: [u32; 3] = [140, 0, 160];
pub(super) const COPIES: Engine = Engine::CopyEngines { streams: 2 };
pub(super) const KERNEL: Engine = Engine::Kernel { blocks: 4 };
/// Bytes of a row that is gathered.
pub(super) const ROW: u64 = 4096;

pub(super) fn workspace(rank: &Rank) -> SharedWorkspace {
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
