//! Steps in graphs, which do not know their epoch.
//!
//! Invariant: steps that follow each other have other inputs each, so that one which adds up sums of another is seen.

use overlap_gemm::cuda::cudarc::driver::CudaGraph;
use overlap_gemm::plan::{Engine, Strategy};
use overlap_gemm::random::Random;

use super::work::{Known, Step};
use super::world::World;
use crate::gpu::captured;
use crate::gpu::ranks::{Rank, on_ranks};

const REPLAYS: u64 = 500;
/// Steps have so many inputs in turn: more than there are sums of at a time; a prime, so that each comes to every step of a graph.
const INPUTS: u64 = 7;

/// Two graphs of one operation whose steps have other rows each, launched in random order, with plain steps before and
/// after.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn graphs_of_two_shapes_replay_with_changing_inputs() {
    let (copies, kernel) =
        (|streams| Engine::CopyEngines { streams }, Engine::Kernel { blocks: 8 });
    for (steps, engine, strategy, all) in [
        (1, copies(1), Strategy::Pipelined, false),
        (2, copies(2), Strategy::Pipelined, false),
        (1, copies(2), Strategy::Sequential, false),
        (2, copies(1), Strategy::Sequential, false),
        (1, copies(1), Strategy::Fused, false),
        (2, copies(2), Strategy::Fused, false),
        (1, copies(2), Strategy::Pipelined, true),
        (2, copies(1), Strategy::Fused, true),
        // A buffer again in the same graph, whose copies nothing in it follows.
        (3, copies(1), Strategy::Pipelined, false),
        (4, copies(2), Strategy::Fused, false),
        (3, copies(2), Strategy::Fused, true),
        (2, copies(1), Strategy::Sequential, true),
        (1, kernel, Strategy::Sequential, false),
        (2, kernel, Strategy::Sequential, false),
        (2, kernel, Strategy::Sequential, true),
        (1, kernel, Strategy::Sequential, true),
    ] {
        let mut world = World::new(&[140, 160], 256, 320);
        world.all = all;
        world.strategy = strategy;
        world.options = world.options.with_engine(engine).with_pieces(3);
        on_ranks(2, |rank| replay(&world, &rank, steps, &[&[140, 160], &[33, 0]]));
        println!("{strategy}, {engine}, {steps} steps in a graph, to all: {all}: right");
    }
}

/// The second shape has one shot.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn graphs_of_one_and_of_two_shots_replay_with_changing_inputs() {
    let world = World::new(&[140, 160, 100], 8, 128).in_two_shots_by_kernel(8);
    for steps in [1, 2] {
        on_ranks(3, |rank| replay(&world, &rank, steps, &[&[140, 160, 100], &[33, 0, 20]]));
    }
}

fn replay(world: &World, rank: &Rank, steps: u64, shapes: &[&[u32]; 2]) {
    let (mut layer, stream) = (world.plan(rank), &rank.gpu.stream);
    let mut works: Vec<Box<dyn Step>> = (0..steps).map(|step| world.work(rank, step)).collect();
    let mut number = steps + 1;
    let (mut random, mut known) = (Random::new(71), Known::default());
    let graphs: Vec<CudaGraph> = {
        works[0].step(rank, &mut layer, steps, None);
        shapes
            .iter()
            .map(|rows| {
                captured(stream, false, || {
                    let rows = Some(*rows);
                    works.iter().for_each(|work| work.enqueue(rank, &mut layer, rows).unwrap());
                })
            })
            .collect()
    };
    for _ in 0..REPLAYS {
        for work in &mut works {
            work.renew(rank, number % INPUTS);
            number += 1;
        }
        // The same on all ranks.
        let shape = random.within(0..=1) as usize;
        graphs[shape].launch().unwrap();
        layer.synchronize(stream).unwrap();
        for work in &mut works {
            work.fetch(rank);
            work.check_again(rank, Some(shapes[shape]), &mut known);
        }
    }
    works[0].step(rank, &mut layer, number, None);
    rank.through();
}
