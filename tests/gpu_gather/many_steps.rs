//! Many steps of one all-gather + GEMM: in random order, with delays, and on streams that come and go.
//!
//! Invariant: each result is bit for bit that of the same kernel on an A that was there.

use std::time::Duration;

use crate::all_gather_gemm::Work;
use crate::gpu::case::Case;
use crate::gpu::inputs::shuffled;
use crate::gpu::memory::InUse;
use crate::gpu::one_kernel;
use crate::gpu::ranks::{on_ranks, options};
use overlap_gemm::plan::Engine;
use overlap_gemm::random::Random;

/// Steps on streams that come and go. By one rank: the driver has few queues for the streams of a GPU, and in one of them a rank's
/// step would wait behind that of a rank which waits for it.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_on_a_thousand_streams_leave_nothing_behind() {
    const STREAMS: u32 = 1000;
    const STEPS_OF_STREAM: u32 = 100;
    on_ranks(1, |rank| {
        let mut case = Case::new(one_kernel(), 128, 128, 128);
        case.options.sm_limit = Some(rank.sms);
        let mut random = Random::new(83);
        let mut work = Work::new(&rank, &case, &[128], &mut random);
        work.renew(&rank, &mut random);
        let mut layer = work.fused(&rank, &options(Engine::Kernel { blocks: 4 }));
        let (shard, operands) = (work.shard(&rank, None), [work.operands(&rank)]);
        let mut before = None;
        for number in 0..STREAMS {
            if number == STREAMS / 10 {
                before = Some(InUse::now());
            }
            let stream = rank.gpu.device.new_stream().unwrap();
            for _ in 0..STEPS_OF_STREAM {
                // SAFETY: the call's own memory, and the stream is awaited before it is looked at.
                unsafe { layer.enqueue_raw(&stream, shard, &operands) }.unwrap();
            }
            layer.synchronize(&stream).unwrap();
        }
        before.unwrap().check();
        work.check(&rank, 128, &mut random);
        rank.through();
    });
}

/// Ten thousand steps in random order of inputs, with random ranks held up at random: after each burst that
/// nobody waited within, every D is bit for bit what it has to be. So many blocks push that a count of them which is not
/// set back reaches its limit.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ten_thousand_steps_with_delays_are_right() {
    const BURST: usize = 40;
    const BURSTS: usize = 125;
    let kernel = one_kernel();
    for engine in [Engine::CopyEngines { streams: 2 }, Engine::Kernel { blocks: 16 }] {
        on_ranks(2, |rank| {
            let mut case = Case::new(kernel, 384, 128, 256);
            case.options.sm_limit = Some(rank.sms);
            let (mut random, stream) = (Random::new(81), &rank.gpu.stream);
            let options = options(engine).with_pieces(2);
            let mut all: Vec<Work> =
                (0..BURST).map(|_| Work::new(&rank, &case, &[200, 184], &mut random)).collect();
            for work in &mut all {
                work.call.poison_d(stream);
                // SAFETY: the call's own memory, and the stream is awaited before it is looked at.
                unsafe { work.plain.enqueue_raw(stream, &work.call.addresses(stream)) }.unwrap();
                work.call.fetch(stream);
            }
            let mut layer = all[0].fused(&rank, &options);
            let mut delays = Random::of_stream(82, rank.rank().into());
            for _ in 0..BURSTS {
                all.iter_mut().for_each(|work| work.call.poison_d(stream));
                // The same order on all ranks.
                for at in shuffled(0..BURST, &mut random) {
                    if delays.within(0..=9) == 0 {
                        std::thread::sleep(Duration::from_micros(delays.within(0..=300)));
                    }
                    all[at].enqueue(&rank, &mut layer, None);
                }
                layer.synchronize(stream).unwrap();
                for work in &mut all {
                    work.call.fetch(stream);
                    assert_eq!(work.call.difference(), None, "rank {}", rank.rank());
                }
            }
        });
        println!("{engine:?}: right");
    }
}
