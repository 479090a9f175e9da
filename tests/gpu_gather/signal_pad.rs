//! Signals between ranks' GPUs, and bytes that are put and got between them.
//!
//! Ranks are threads, on as many GPUs as there are; several may share one, so nothing here holds an SM that
//! another needs. Every round moves other bytes.

use std::time::{Duration, Instant};

use crate::gpu::captured;
use crate::gpu::inputs::{random_bytes, read_bytes};
use crate::gpu::ranks::{Rank, on_ranks, options};
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{DevicePtr as _, result};
use overlap_gemm::cuda::{AllGather, MAX_CHANNELS, SignalPad, SymmetricMemory};
use overlap_gemm::plan::Engine;
use overlap_gemm::random::Random;

const LIMIT: Duration = Duration::from_secs(20);
const PART: usize = 3000;

/// What rank `from` brings in a round.
fn bytes(from: u32, round: u64) -> Vec<u8> {
    random_bytes(from, round, PART as u64)
}

fn memory(rank: &Rank) -> SymmetricMemory {
    let bytes = u64::from(rank.group.ranks()) * PART as u64;
    SymmetricMemory::new(&rank.group, &rank.gpu.device, bytes, LIMIT).unwrap()
}

fn pad(rank: &Rank, channels: u32, limit: Duration) -> SignalPad {
    SignalPad::new(&rank.group, &rank.gpu.device, channels, limit).unwrap()
}

fn read(at: u64, bytes: usize) -> Vec<u8> {
    // SAFETY: the callers name so many bytes of memory that nobody writes to meanwhile.
    unsafe { read_bytes(at, bytes) }
}

/// Each rank puts its bytes to all; a barrier; each looks; another barrier, after which they may change.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_was_put_before_a_barrier_is_there_behind_it() {
    for ranks in [1, 2, 5] {
        on_ranks(ranks, |rank| {
            let (me, stream) = (rank.rank(), &rank.gpu.stream);
            let (memory, pad) = (memory(&rank), pad(&rank, 2, LIMIT));
            let mut delays = Random::of_stream(1, me.into());
            for round in 0..50 {
                let own = rank.gpu.upload(&bytes(me, round));
                if delays.within(0..=3) == 0 {
                    std::thread::sleep(Duration::from_micros(delays.within(0..=3000)));
                }
                for peer in 0..ranks {
                    let (at, from) = (u64::from(me) * PART as u64, own.device_ptr(stream).0);
                    // SAFETY: the bytes are kept until the stream is through.
                    unsafe { memory.put(stream, peer, at, from, PART as u64) }.unwrap();
                }
                pad.barrier(stream, 0).unwrap();
                stream.synchronize().unwrap();
                let all = read(memory.own_address(), ranks as usize * PART);
                for (from, part) in (0..).zip(all.chunks(PART)) {
                    assert!(part == bytes(from, round), "from {from} to {me}, round {round}");
                }
                pad.barrier(stream, 1).unwrap();
                stream.synchronize().unwrap();
                pad.check().unwrap();
            }
            rank.through();
        });
    }
}

/// Round the ring by signals of one pair each, and the other way by gets, in a graph that is launched again.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_ring_goes_round_in_a_graph() {
    on_ranks(3, |rank| {
        let (me, ranks, stream) = (rank.rank(), rank.group.ranks(), &rank.gpu.stream);
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let (memory, pad) = (memory(&rank), pad(&rank, 1, LIMIT));
        let (own, got) = (rank.gpu.upload(&[0u8; PART]), rank.gpu.upload(&[0u8; PART]));
        let (from, to) = (own.device_ptr(stream).0, got.device_ptr(stream).0);
        let round = || {
            // SAFETY: all memory is kept until the stream is through.
            unsafe {
                memory.put(stream, next, 0, from, PART as u64).unwrap();
                pad.put(stream, next, 0).unwrap();
                pad.wait(stream, before, 0).unwrap();
                // What the next rank was given is what it has.
                pad.barrier(stream, 0).unwrap();
                let theirs = memory.address(next).unwrap();
                result::memcpy_dtod_async(to, theirs, PART, stream.cu_stream()).unwrap();
                pad.barrier(stream, 0).unwrap();
            }
        };
        round();
        let graph = captured(stream, false, round);
        for launch in 0..30 {
            let bytes_of_launch = bytes(me, launch);
            // SAFETY: the stream is through, and the memory so long.
            unsafe { result::memcpy_htod_async(from, &bytes_of_launch, stream.cu_stream()) }
                .unwrap();
            stream.synchronize().unwrap();
            graph.launch().unwrap();
            stream.synchronize().unwrap();
            pad.check().unwrap();
            assert!(read(to, PART) == bytes(me, launch), "rank {me}, launch {launch}");
            assert!(read(memory.own_address(), PART) == bytes(before, launch), "rank {me}");
            // The next launch of another rank writes there.
            rank.group.barrier("looked", LIMIT).unwrap();
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_is_outside_of_a_part_is_refused() {
    on_ranks(2, |rank| {
        let (memory, stream) = (memory(&rank), &rank.gpu.stream);
        let own = memory.own_address();
        // SAFETY: refused, both.
        let (outside, nobody) = unsafe {
            (memory.put(stream, 0, memory.bytes(), own, 1), memory.put(stream, 2, 0, own, 1))
        };
        let outside = outside.unwrap_err();
        assert!(matches!(outside, Error::OutOfRange { .. }), "{outside:?}");
        let nobody = nobody.unwrap_err().to_string();
        assert!(nobody.starts_with("the rank is 2"), "{nobody}");
    });
}

/// A rank that never puts is named by those who wait for it, in time, and the others are told.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn who_does_not_come_is_named() {
    const SHORT: Duration = Duration::from_secs(1);
    let told = on_ranks(3, |rank| {
        let pad = pad(&rank, 1, SHORT);
        pad.barrier(&rank.gpu.stream, 0).unwrap();
        rank.gpu.stream.synchronize().unwrap();
        pad.check().unwrap();
        let begin = Instant::now();
        if rank.rank() != 2 {
            pad.barrier(&rank.gpu.stream, 0).unwrap();
            rank.gpu.stream.synchronize().unwrap();
        } else {
            std::thread::sleep(2 * SHORT);
        }
        let error = pad.check().unwrap_err();
        // Over is over: nothing waits any more.
        pad.wait(&rank.gpu.stream, 2, 0).unwrap();
        rank.gpu.stream.synchronize().unwrap();
        assert_eq!(pad.check().unwrap_err(), error);
        let none = pad.put(&rank.gpu.stream, 3, 0).unwrap_err().to_string();
        assert!(none.starts_with("the rank is 3"), "{none}");
        let none = pad.put(&rank.gpu.stream, 0, 1).unwrap_err().to_string();
        assert!(none.starts_with("the channel is 1"), "{none}");
        (error, begin.elapsed())
    });
    for (rank, (error, after)) in told.iter().enumerate() {
        println!("rank {rank}: {error} after {after:?}");
        assert!(*after < SHORT * 11 / 10 || rank == 2, "{after:?}");
        match error {
            Error::PeerTimeout { peer, limit, .. } => assert_eq!((*peer, *limit), (2, SHORT)),
            other => assert!(matches!(other, Error::Aborted { .. }), "{other:?}"),
        }
    }
    let named = |(error, _): &(Error, _)| matches!(error, Error::PeerTimeout { .. });
    assert!(told.iter().any(named) && !named(&told[2]), "{told:?}");
}

/// The stream waits for a signal that is put only after the checks have returned: if a check waited for the stream, the wait would come
/// to its limit. It is the legacy stream, for which a copy from the device would wait.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_check_does_not_wait_for_the_stream() {
    on_ranks(1, |rank| {
        let (group, device) = (&rank.group, &rank.gpu.device);
        let (stream, options) =
            (device.context().default_stream(), options(Engine::Kernel { blocks: 8 }));
        let rows = [(PART / 48) as u32];
        let mut gather = AllGather::plan(group, device, &rows, 48, &options).unwrap();
        let pad = pad(&rank, 1, LIMIT);
        let own = rank.gpu.upload(&bytes(0, 0));
        pad.wait(&stream, 0, 0).unwrap();
        // SAFETY: as long as the rows say, and kept until the stream is through.
        unsafe { gather.start(&stream, None, Some(own.device_ptr(&rank.gpu.stream).0)) }.unwrap();
        gather.finish(&stream).unwrap();
        gather.check().unwrap();
        pad.check().unwrap();
        pad.put(&rank.gpu.stream, 0, 0).unwrap();
        gather.synchronize(&stream).unwrap();
        pad.check().unwrap();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_pad_has_one_to_1024_channels() {
    on_ranks(1, |rank| {
        for channels in [0, MAX_CHANNELS + 1] {
            let made = SignalPad::new(&rank.group, &rank.gpu.device, channels, LIMIT);
            let text = made.map(drop).unwrap_err().to_string();
            let expected = format!("the number of channels is {channels}, but must be between 1");
            assert!(text.starts_with(&expected), "{text}");
        }
        rank.group.check().unwrap();
    });
}

/// Somebody ends the group: who waits is told at once.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn the_end_of_the_group_ends_waits() {
    on_ranks(2, |rank| {
        let pad = pad(&rank, 1, LIMIT);
        let begin = Instant::now();
        if rank.rank() == 0 {
            pad.wait(&rank.gpu.stream, 1, 0).unwrap();
            rank.gpu.stream.synchronize().unwrap();
        } else {
            std::thread::sleep(Duration::from_millis(200));
            rank.group.abort("a person wants it");
        }
        let error = pad.check().unwrap_err().to_string();
        assert!(error.contains("a person wants it"), "{error}");
        assert!(begin.elapsed() < LIMIT / 4, "{:?}", begin.elapsed());
    });
}
