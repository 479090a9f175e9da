//! Records of steps: every tile, push and addition of the step that was recorded, and of no other.

use overlap_gemm::plan::{Engine, Lane, Step, Strategy};
use overlap_gemm::trace::Timeline;

use super::world::World;
use crate::gpu::ranks::on_ranks;

/// What a rank's schedule says, sorted: the tiles of each of its products, `(receiver, chunk)` of each push by a copy engine, and the
/// chunks that no product adds up.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    tiles: Vec<(u32, u32, u32)>,
    pushes: Vec<(u32, u32)>,
    additions: Vec<u32>,
}

impl Parts {
    fn planned(world: &World, plan: &overlap_gemm::plan::Plan, rank: u32) -> Parts {
        let steps = plan.schedule(rank).steps;
        let (mut tiles, mut pushes, mut additions) = (Vec::new(), Vec::new(), Vec::new());
        let (tile, by_copies) = (
            world.cases[0].kernel.tile,
            matches!(world.options.engine, Some(Engine::CopyEngines { .. })),
        );
        let columns = world.problems()[0].n().div_ceil(tile.n);
        let mut products = 0;
        for (lane, step) in &steps {
            match (lane, step) {
                (_, Step::Multiply { rows, .. }) => {
                    let some = (0..(rows.len() as u32).div_ceil(tile.m))
                        .flat_map(|m| (0..columns).map(move |n| (products, m, n)));
                    tiles.extend(some);
                    products += 1;
                }
                (Lane::Push(_), Step::Move { chunk, to }) if by_copies => {
                    pushes.push((*to, *chunk))
                }
                (_, Step::Reduce { chunk }) => {
                    let is_own = plan.chunks().rank_of(*chunk) == rank;
                    if !(world.strategy == Strategy::Fused && is_own) {
                        additions.push(*chunk);
                    }
                }
                _ => {}
            }
        }
        Parts { tiles, pushes, additions }.sorted()
    }

    fn recorded(told: &Timeline) -> Parts {
        let tiles = told.tiles.iter().map(|event| (event.product, event.tile.m, event.tile.n));
        let pushes = told.transfers.iter().map(|push| (push.to, push.chunk));
        let additions = told.additions.iter().map(|added| added.chunk);
        Parts { tiles: tiles.collect(), pushes: pushes.collect(), additions: additions.collect() }
            .sorted()
    }

    fn sorted(mut self) -> Parts {
        self.tiles.sort_unstable();
        self.pushes.sort_unstable();
        self.additions.sort_unstable();
        self
    }
}

/// The second step takes over the record of the first.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_record_is_of_the_last_step_that_was_given_it() {
    let rows = [200, 0, 141];
    for all in [false, true] {
        let worlds = [
            World::new(&rows, 328, 200),
            World::new(&rows, 328, 200).fused(),
            World::new(&rows, 328, 200).by_kernel(4),
        ];
        for world in worlds {
            let world = World { all, ..world };
            on_ranks(world.ranks(), |rank| {
                let (mut layer, stream) = (world.plan(&rank), &rank.gpu.stream);
                let mut work = world.work(&rank, 0);
                let mut record = layer.step_record().unwrap();
                let expected = Parts::planned(&world, layer.planned(), rank.rank());
                for number in 0..2 {
                    work.renew(&rank, number);
                    let (a, operands) = work.addresses(&rank);
                    // SAFETY: the step's own memory, and the stream is awaited.
                    unsafe { layer.enqueue_recorded(stream, a, &operands, &mut record) }.unwrap();
                    layer.synchronize(stream).unwrap();
                    work.fetch(&rank);
                    work.check(&rank, None);
                    let told = record.timeline(stream).unwrap();
                    assert_eq!(Parts::recorded(&told), expected, "rank {}", rank.rank());
                    let tiles = told.tiles.iter().map(|tile| (tile.wait_begin, tile.done));
                    let pushes = told.transfers.iter().map(|push| (push.begin, push.signalled));
                    let additions = told.additions.iter().map(|added| (added.begin, added.done));
                    for (begin, end) in tiles.chain(pushes).chain(additions) {
                        assert!(begin <= end, "rank {}", rank.rank());
                    }
                }
                rank.through();
            });
            println!("{:?}, to all: {all}: right", world.strategy);
        }
    }
}
