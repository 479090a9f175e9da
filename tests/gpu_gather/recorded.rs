//! Records of steps: every tile and every push of the step that was recorded, and of no other.

use std::collections::HashSet;

use crate::all_gather_gemm::Work;
use crate::gpu::case::Case;
use crate::gpu::one_kernel;
use crate::gpu::ranks::{on_ranks, options};
use overlap_gemm::plan::{Engine, Tile};
use overlap_gemm::random::Random;

/// The second step has fewer rows than the first, whose record it takes over; the third has all of them again.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_record_is_of_the_last_step_that_was_given_it() {
    const N: u64 = 320;
    const PIECES: u32 = 2;
    let kernel = one_kernel();
    for engine in [Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 4 }] {
        on_ranks(2, |rank| {
            let mut random = Random::new(101);
            let mut case = Case::new(kernel, 700, N, 192);
            case.options.sm_limit = Some(rank.sms);
            let mut work = Work::new(&rank, &case, &[300, 400], &mut random);
            let options = options(engine).with_pieces(PIECES);
            let (mut layer, stream) = (work.fused(&rank, &options), &rank.gpu.stream);
            let mut record = layer.step_record().unwrap();
            for rows in [None, Some(&[60, 80][..]), None] {
                work.renew(&rank, &mut random);
                let step = work.step(rows);
                let (shard, operands) = (work.shard(&rank, rows), work.operands(&rank));
                // SAFETY: the call's own memory, and the stream is awaited.
                unsafe { layer.enqueue_recorded(stream, shard, &[operands], &mut record) }.unwrap();
                layer.synchronize(stream).unwrap();
                work.check(&rank, step.m(), &mut random);

                let told = record.timeline(stream).unwrap();
                let tiles = [u64::from(step.m()), N]
                    .iter()
                    .zip([kernel.tile.m, kernel.tile.n])
                    .map(|(size, tile)| size.div_ceil(u64::from(tile)) as u32)
                    .collect::<Vec<_>>();
                let all = (0..tiles[0]).flat_map(|m| (0..tiles[1]).map(move |n| Tile { m, n }));
                let all: HashSet<Tile> = all.collect();
                let each: HashSet<Tile> = told.tiles.iter().map(|event| event.tile).collect();
                assert_eq!(each, all, "rank {}, {} rows", rank.rank(), step.m());
                assert_eq!(told.tiles.len(), all.len(), "tiles that were computed twice");
                for event in &told.tiles {
                    let in_order = event.wait_begin <= event.ready && event.ready <= event.done;
                    assert!(in_order, "rank {}: {event:?}", rank.rank());
                }
                let to: Vec<u32> = told.transfers.iter().map(|push| push.to).collect();
                assert_eq!(to, [1 - rank.rank(); PIECES as usize], "rank {}", rank.rank());
            }
            rank.through();
        });
        println!("{engine:?}: right");
    }
}
