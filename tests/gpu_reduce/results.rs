//! Reductions between ranks on GPUs: what comes out is the total of all ranks' products.
//!
//! What belongs here: results. Ranks are threads; where there are fewer GPUs than ranks, several share one. Outputs are
//! compared with `f64`, and where sums are exact, bit for bit with the one order of additions that there is.

use std::time::Duration;

use overlap_gemm::ElementType;
use overlap_gemm::cuda::{Kernel, Shard};
use overlap_gemm::plan::{Activation, Engine, Partials, Reduction, Scaling, Strategy};
use overlap_gemm::random::Random;

use super::work::{Known, Step};
use super::world::{World, kernel_for};
use crate::gpu::inputs::{shards, shuffled};
use crate::gpu::ranks::{Rank, on_ranks};
use crate::gpu::tried_kernels;

/// Three steps of one operation; in the second, ranks own other rows than planned. The bits of the last, on each rank.
pub fn three_steps(world: &World) -> Vec<Vec<u32>> {
    on_ranks(world.ranks(), |rank| {
        let mut random = Random::new(world.seed ^ 1);
        let mut layer = world.plan(&rank);
        let mut work = world.work(&rank, 0);
        for step in 0..3 {
            // Any order of the planned rows, each fewer by a few.
            let mut other = world.rows.clone();
            other.rotate_left(random.within(0..=7) as usize % world.rows.len());
            let fewer = |rows: &mut u32| *rows -= random.within(0..=u64::from(*rows) / 2) as u32;
            other.iter_mut().for_each(fewer);
            if world.cases[0].scatter_columns {
                let rows = other[0];
                other.fill(rows);
            }
            let varies = step == 1 && other.iter().sum::<u32>() > 0;
            work.step(&rank, &mut layer, step, varies.then_some(&other[..]));
        }
        rank.through();
        work.bits(&rank)
    })
}

/// Enqueues steps one behind the other, with inputs of their own, each after what `delay` does on the rank; in the end each
/// step's D is looked at.
fn steps_without_waiting(world: &World, steps: u64, delay: impl Fn(&Rank, &mut Random) + Sync) {
    on_ranks(world.ranks(), |rank| {
        let mut layer = world.plan(&rank);
        let mut all: Vec<Box<dyn Step>> = (0..steps).map(|step| world.work(&rank, step)).collect();
        let mut delays = Random::of_stream(62, rank.rank().into());
        for work in &all {
            delay(&rank, &mut delays);
            work.enqueue(&rank, &mut layer, None).unwrap();
        }
        layer.synchronize(&rank.gpu.stream).unwrap();
        for work in &mut all {
            work.fetch(&rank);
            work.check(&rank, None);
        }
        rank.through();
    });
}

/// Three choices, in each combination.
fn each_of_three() -> impl Iterator<Item = [bool; 3]> {
    (0..8).map(|bits| [0, 1, 2].map(|bit| bits >> bit & 1 == 1))
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn random_worlds_are_right() {
    const ROUNDS: u64 = 60;
    let partials = [ElementType::Bf16, ElementType::F32];
    let kernels: Vec<_> =
        tried_kernels().into_iter().filter(|one| partials.contains(&one.elements.d)).collect();
    // Both types of partials in turn, where both were compiled.
    let of = |d| kernels.iter().copied().filter(move |one| one.elements.d == d).collect::<Vec<_>>();
    let mut random = Random::new(31);
    for round in 0..ROUNDS {
        let some = of(partials[round as usize % 2]);
        let some = if some.is_empty() { kernels.clone() } else { some };
        let world = World::random(random.choose(&some), round);
        println!("{world:?}");
        three_steps(&world);
    }
}

/// Small integers times powers of two: the sums are exact, and each order of additions gives other bits.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_are_added_in_the_order_of_the_ranks() {
    let of = |partials, average, all, by_kernel| {
        let world = World::of(kernel_for(partials)?, &[60, 0, 41, 100, 9], 96, 64);
        let world = if by_kernel { world.by_kernel(4) } else { world };
        let world = world.with(|case| {
            (case.d, case.alpha, case.beta) = (ElementType::F32, 0.75, -1.5);
            (case.options.bias, case.options.c) = (true, true);
            case.options.activation = Activation::Relu;
        });
        Some(World { all, exact: true, reduction: Reduction { partials, average }, ..world })
    };
    let worlds = [Partials::Bf16, Partials::F32].into_iter().flat_map(|partials| {
        each_of_three()
            .filter_map(move |[average, all, by_kernel]| of(partials, average, all, by_kernel))
    });
    for world in worlds {
        twenty_steps_have_the_bits_of_the_reference(&world);
    }
}

/// Of a world that is exact; each step comes after a delay of its own.
fn twenty_steps_have_the_bits_of_the_reference(world: &World) {
    on_ranks(world.ranks(), |rank| {
        let mut layer = world.plan(&rank);
        let mut work = world.work(&rank, 3);
        let expected = work.exact_bits(&rank);
        let mut delays = Random::of_stream(32, rank.rank().into());
        for repeat in 0..20 {
            work.poison(&rank);
            std::thread::sleep(Duration::from_micros(delays.within(0..=400)));
            work.enqueue(&rank, &mut layer, None).unwrap();
            layer.synchronize(&rank.gpu.stream).unwrap();
            work.fetch(&rank);
            let is_same = work.bits(&rank) == expected;
            assert!(is_same, "rank {}, repeat {repeat}: {world:?}", rank.rank());
        }
        rank.through();
    });
    println!("{:?}, to all: {}, {:?}: right", world.reduction, world.all, world.strategy);
}

/// Products that add up begin with their rank's own sums, unrounded, whatever arrives first. (C is left out: see `reduced`.)
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn products_add_up_in_one_order() {
    for (average, all) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new(&[200, 0, 141, 300, 9], 328, 200).fused();
        let world = world.with(|case| (case.alpha, case.options.bias) = (0.75, true));
        let reduction = Reduction { average, ..world.reduction };
        let world = World { all, exact: true, reduction, ..world };
        twenty_steps_have_the_bits_of_the_reference(&world);
    }
}

/// Whatever rounds a product's sums, all ranks add up the same.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn all_ranks_have_the_same_bits_of_an_all_reduce() {
    const RANKS: u32 = 4;
    let copies = |strategy| World { strategy, ..World::new(&[50, 0, 33, 64], 136, 200) };
    let kernel = World::new(&[50, 0, 33, 64], 136, 200).by_kernel(4);
    let [pipelined, sequential, fused] =
        [Strategy::Pipelined, Strategy::Sequential, Strategy::Fused].map(copies);
    let two_shots = World::new(&[50, 0, 33, 64], 8, 200).in_two_shots_by_kernel(4);
    for world in [pipelined, sequential, fused, kernel, two_shots] {
        let world = world.with(|case| {
            (case.alpha, case.beta) = (0.3, 1.7);
            (case.options.bias, case.options.c) = (true, true);
        });
        let world = World { all: true, ..world };
        let steps = on_ranks(RANKS, |rank| {
            let mut layer = world.plan(&rank);
            let mut work = world.work(&rank, 0);
            let step = |number| {
                work.step(&rank, &mut layer, number, None);
                work.bits(&rank)
            };
            let bits: Vec<Vec<u32>> = (0..4).map(step).collect();
            rank.through();
            bits
        });
        assert_eq!(steps[0][0].len(), 147 * world.cases[0].size[1] as usize);
        assert!(steps.iter().all(|bits| *bits == steps[0]), "{world:?}");
    }
}

/// In two shots rows of D travel: of each product, with a pitch of its own.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_travel_from_the_outputs_of_several_products() {
    for (rows, streams) in [(&[140, 0, 33][..], 1), (&[140, 0, 33], 3), (&[37], 1)] {
        let mut world = World { all: true, ..World::new(rows, 128, 200).fused() };
        world.options = world.options.with_engine(Engine::CopyEngines { streams });
        let mut world = world.with(|case| {
            (case.pads, case.beta) = ([1, 1, 1], 0.5);
            (case.options.bias, case.options.c) = (true, true);
        });
        let mut other = world.cases[0].clone();
        other.size[1] = 264;
        world.cases.push(other);
        three_steps(&world);
        println!("{rows:?}, {streams} streams: right");
    }
}

/// A kernel sends few rows in one shot, and more in two: in any order of steps, with ranks that own no rows.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_of_one_and_of_two_shots_follow_each_other() {
    let rows: [&[u32]; 6] =
        [&[100, 60, 90], &[10, 6, 9], &[0, 110, 80], &[1, 0, 0], &[110, 60, 0], &[0, 0, 25]];
    for (partials, pieces) in [(Partials::Bf16, 1), (Partials::F32, 1), (Partials::Bf16, 3)] {
        let Some(kernel) = kernel_for(partials) else { continue };
        let world = World::of(kernel, &[110, 110, 90], 8, 64);
        let mut world = world.with(|case| case.d = ElementType::F16).in_two_shots_by_kernel(5);
        world.options = world.options.with_pieces(pieces);
        let world = world.with(|case| {
            (case.alpha, case.beta) = (0.75, -1.5);
            (case.pads, case.options.bias, case.options.c) = ([1, 1, 1], true, true);
            case.options.activation = Activation::Relu;
        });
        let shots = rows.map(|rows| world.has_two_shots(rows));
        assert_eq!(shots, [true, false, true, false, true, false]);
        on_ranks(3, |rank| {
            let mut layer = world.plan(&rank);
            let mut work = world.work(&rank, 0);
            let mut random = Random::new(64);
            for step in 0..24 {
                work.step(&rank, &mut layer, step, Some(random.choose(&rows)));
            }
            rank.through();
        });
        println!("{partials:?}, {pieces} pieces: right");
    }
}

/// In each step another rank comes late; the others wait for its sums, and read no older ones.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn late_ranks_are_waited_for() {
    const RANKS: u32 = 4;
    let world = || World::new(&[90, 70, 0, 130], 128, 320);
    let others = each_of_three().map(|[is_whole, all, by_kernel]| {
        let mut world = if by_kernel { world().by_kernel(4) } else { world() };
        world.options = world.options.with_pieces(if is_whole { 1 } else { 3 });
        World { all, ..world }
    });
    let fused = [false, true].map(|all| World { all, ..world().fused() });
    let two_shots = [1, 2].map(|pieces| {
        let mut world = world().in_two_shots_by_kernel(4);
        world.options = world.options.with_pieces(pieces);
        world
    });
    for world in others.chain(fused).chain(two_shots) {
        on_ranks(RANKS, |rank| {
            let mut layer = world.plan(&rank);
            let mut work = world.work(&rank, 0);
            for step in 0..8 {
                if step as u32 % RANKS == rank.rank() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                work.step(&rank, &mut layer, step, None);
            }
            rank.through();
        });
        println!("{}, {:?}, to all: {}: right", world.strategy, world.options, world.all);
    }
}

/// A rank that gets no rows waits for no sums, and is ahead of the owner of all rows, which is late: it sends none into slots
/// that the owner still needs, and computes none where the owner still reads older ones.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sums_are_overwritten_when_all_have_read_them() {
    let world = || World::new(&[0, 300], 128, 320);
    // Reading takes one block far longer than the next product but one begins later.
    let by_kernel = World::new(&[0, 2000], 1024, 64).by_kernel(1);
    for world in [world(), world().fused(), by_kernel] {
        steps_without_waiting(&world, 6, |rank, _| {
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }
}

/// Steps that nobody waits for: ranks drift, inputs change, and each step's D is looked at in the end.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn many_steps_without_waiting_are_right() {
    const STEPS: u64 = 40;
    for (ranks, streams, all) in [(2, 1, false), (3, 2, false), (3, 2, true)] {
        let copies = Engine::CopyEngines { streams };
        for (strategy, engine) in [
            (Strategy::Pipelined, copies),
            (Strategy::Sequential, copies),
            (Strategy::Sequential, Engine::Kernel { blocks: 7 }),
            (Strategy::Fused, copies),
        ] {
            let mut world = World::new(&shards(512, ranks, &mut Random::new(61)), 256, 512);
            (world.strategy, world.all) = (strategy, all);
            world.options = world.options.with_engine(engine).with_pieces(3);
            steps_without_waiting(&world, STEPS, |_, delays| {
                if delays.within(0..=3) == 0 {
                    std::thread::sleep(Duration::from_micros(delays.within(0..=2000)));
                }
            });
            println!("{ranks} ranks, {strategy}, {engine}, to all: {all}: right");
        }
    }
    let world = World::new(&[200, 0, 150, 162], 8, 64).in_two_shots_by_kernel(7);
    steps_without_waiting(&world, STEPS, |_, delays| {
        if delays.within(0..=3) == 0 {
            std::thread::sleep(Duration::from_micros(delays.within(0..=2000)));
        }
    });
}

/// Ten thousand steps of two operations, each on a stream of its own: all ranks enqueue bursts of steps of both in random order,
/// with delays of their own, and then wait. All steps of a burst have other inputs.
fn two_operations(worlds: [World; 2]) {
    const BURST: u64 = 20;
    const BURSTS: u64 = 10_000 / (2 * BURST);
    on_ranks(worlds[0].ranks(), |rank| {
        // The same rank with another stream.
        let other = rank.with_new_stream();
        let both = [&rank, &other];
        let mut layers = [0, 1].map(|at| worlds[at].plan(both[at]));
        let work = |step| [0, 1].map(|at| worlds[at].work(both[at], step));
        let mut works: Vec<[Box<dyn Step>; 2]> = (0..BURST).map(work).collect();
        let mut known = [(); 2].map(|()| Known::new());
        // The same order on all ranks.
        let (mut order, mut delays) = (Random::new(64), Random::of_stream(63, rank.rank().into()));
        for _ in 0..BURSTS {
            works.iter_mut().for_each(|of| [0, 1].iter().for_each(|&at| of[at].poison(both[at])));
            let steps = (0..works.len()).flat_map(|step| [(step, 0), (step, 1)]);
            for (step, at) in shuffled(steps, &mut order) {
                if delays.within(0..=9) == 0 {
                    std::thread::sleep(Duration::from_micros(delays.within(0..=300)));
                }
                works[step][at].enqueue(both[at], &mut layers[at], None).unwrap();
            }
            for at in [1, 0] {
                layers[at].synchronize(&both[at].gpu.stream).unwrap();
                for work in &mut works {
                    work[at].fetch(both[at]);
                    work[at].check_again(both[at], None, &mut known[at]);
                }
            }
        }
        rank.through();
    });
    println!("{} and {}: right", worlds[0].strategy, worlds[1].strategy);
}

/// A reduce-scatter and an all-reduce.
fn two_worlds(rows: [&[u32]; 2], [n, other]: [u64; 2]) -> [World; 2] {
    let of = |rows, n, seed| World { seed, ..World::new(rows, n, 256) };
    [of(rows[0], n, 7), World { all: true, ..of(rows[1], other, 8) }]
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ten_thousand_steps_on_two_streams_are_right() {
    let [scatter, to_all] = two_worlds([&[200, 184], &[30, 290]], [128, 320]);
    two_operations([scatter, to_all.fused()]);
    let [scatter, to_all] = two_worlds([&[90, 0, 130], &[60, 70, 0]], [128, 192]);
    two_operations([scatter.fused(), World { strategy: Strategy::Sequential, ..to_all }]);
}

/// The same by kernels that send and wait. The products leave room for the kernels' blocks.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ten_thousand_steps_of_kernels_on_two_streams_are_right() {
    two_operations(two_worlds([&[20, 44], &[30, 2]], [128, 256]).map(|world| world.by_kernel(4)));
}

/// What `run-gpu-tests --sanitize` runs. Its tools may hold up every other call while a kernel runs, and with it the rank that
/// the kernel waits for: one rank.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn small_steps_for_the_sanitizer() {
    for partials in [Partials::Bf16, Partials::F32] {
        let Some(kernel) = kernel_for(partials) else { continue };
        let types = [ElementType::Bf16, ElementType::F16, ElementType::F32];
        for (d, by_kernel) in types.into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let world = World::of(kernel, &[37], 72, 64);
            let world = if by_kernel { world.by_kernel(4) } else { world };
            let world = world.with(|case| {
                (case.d, case.alpha, case.beta) = (d, 0.5, 1.5);
                (case.options.bias, case.options.c) = (true, true);
                case.options.activation = Activation::Silu;
            });
            on_ranks(1, |rank| {
                let mut layer = world.plan(&rank);
                let mut work = world.work(&rank, 0);
                (0..2).for_each(|step| work.step(&rank, &mut layer, step, None));
            });
        }
    }
}

/// Each rank gets its part of every batch. Chunks end within batches, and a rank has no rows.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sequences_of_batches_are_scattered() {
    let world = || World::new(&[37, 0, 150], 136, 200);
    let sequential = World { strategy: Strategy::Sequential, ..world() };
    for world in [world(), sequential, world().by_kernel(4), world().fused()] {
        let mut world = world.in_batches(3).with(|case| {
            (case.pads, case.beta) = ([1, 1, 1], 0.5);
            (case.options.bias, case.options.c) = (true, true);
        });
        world.options = world.options.with_pieces(4);
        three_steps(&world);
        println!("{}, {:?}: right", world.strategy, world.options);
    }
    let fp8 = |kernel: &&Kernel| {
        kernel.elements.a.is_fp8() && kernel.elements.d == ElementType::Bf16 && !kernel.transposed
    };
    let Some(kernel) = tried_kernels().into_iter().find(fp8) else { return };
    let world = World::of(kernel, &[37, 0, 150], 136, 208).in_batches(3);
    three_steps(&world.with(|case| case.scaling = Scaling::Rows));
}

/// What cannot be is refused on all ranks, and the group lives on.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn wrong_calls_are_refused() {
    let world = World::new(&[64, 32], 64, 64);
    on_ranks(2, |rank| {
        let refused = |strategy, engine| {
            let options = world.options.clone().with_engine(engine);
            let world = World { strategy, options, ..world.clone() };
            world.try_plan(&rank).unwrap_err().to_string()
        };
        let text = refused(Strategy::Fused, Engine::PUSHING);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let fused = |change: &dyn Fn(&mut World)| {
            let mut world = world.clone().fused();
            change(&mut world);
            world.try_plan(&rank).unwrap_err().to_string()
        };
        let text = fused(&|world| world.cases[0].d = ElementType::F16);
        assert!(text.contains("a fused reduction of sums in bf16 to a D in f16"), "{text}");
        let text = fused(&|world| world.cases[0].gated = true);
        assert!(text.contains("a reduction of gated products"), "{text}");
        let text = refused(Strategy::Pipelined, Engine::PUSHING);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let all = World { all: true, ..world.clone().in_batches(2) };
        let text = all.try_plan(&rank).unwrap_err().to_string();
        assert!(text.contains("GEMM + all-reduce of 2 batches"), "{text}");
        let equal = World::new(&[64, 64], 64, 64).in_columns();
        let text = World { all: true, ..equal }.try_plan(&rank).unwrap_err().to_string();
        assert!(text.contains("GEMM + all-reduce along columns"), "{text}");
        let text = refused(Strategy::Pipelined, Engine::Nccl);
        assert!(text.contains("Strategy::Sequential"), "{text}");

        let mut layer = world.plan(&rank);
        let work = world.work(&rank, 0);
        let (shard, operands) = work.addresses(&rank);
        let stream = &rank.gpu.stream;
        let given = &operands[..];
        let calls = [
            (Shard::in_place(), given, "an input in place"),
            (shard, &[][..], "the number of operands is 0"),
            (shard.rows(&[31, 65]), given, "the rows of one rank in this step is 65"),
            (shard.rows(&[64]), given, "the number of shards is 1"),
            (shard.rows(&[64, 33]), given, "m of this step is 97"),
            (shard.scales(16), given, "the scales of the shard is there"),
        ];
        for (shard, operands, expected) in calls {
            // SAFETY: refused before anything is enqueued.
            let error = unsafe { layer.enqueue_raw(stream, shard, operands) }.unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        let bias = [operands[0].bias(1024)];
        // SAFETY: as above.
        let error = unsafe { layer.enqueue_raw(stream, shard, &bias) }.unwrap_err();
        assert!(error.to_string().starts_with("the bias is there"), "{error}");
        // None of them has reached the other rank.
        work.enqueue(&rank, &mut layer, None).unwrap();
        layer.synchronize(stream).unwrap();
        rank.through();
    });
}
