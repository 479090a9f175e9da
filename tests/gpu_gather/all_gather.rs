//! All-gathers between ranks on GPUs, for their own sake: what comes out is what went in, byte for byte.
//!
//! Ranks are threads, on as many GPUs as there are. Every step gathers other bytes, many gather other rows,
//! and two operations are under way at a time beside a product that needs neither.

use std::time::Duration;

use crate::gpu::call::call;
use crate::gpu::case::Case;
use crate::gpu::inputs::{random_bytes, read_bytes};
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, captured, one_kernel};
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{DevicePtr, result};
use overlap_gemm::cuda::{AllGather, CollectiveOptions, Gemm};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::Engine;
use overlap_gemm::random::Random;

const ROW: u64 = 48;

/// What rank `rank` brings to a step: rows that nobody else brings, nor anybody at another time.
fn rows_of(rank: u32, step: u64, rows: u32) -> Vec<u8> {
    random_bytes(rank, step, u64::from(rows) * ROW)
}

fn gather(rank: &Rank, rows: &[u32], engine: Engine) -> AllGather {
    AllGather::plan(&rank.group, &rank.gpu.device, rows, ROW, &options(engine)).unwrap()
}

/// Starts a step, in place or copied.
fn start(rank: &Rank, gather: &mut AllGather, rows: Option<&[u32]>, planned: &[u32], step: u64) {
    let stream = &rank.gpu.stream;
    let own = rows.unwrap_or(planned)[rank.rank() as usize];
    let bytes = rows_of(rank.rank(), step, own);
    if step.is_multiple_of(2) {
        let (slot, room) = gather.local_shard(rows).unwrap();
        assert_eq!(room, bytes.len() as u64);
        stream.synchronize().unwrap();
        // SAFETY: the slot is so long, and free once the step before is through.
        unsafe { result::memcpy_htod_async(slot, &bytes, stream.cu_stream()) }.unwrap();
        stream.synchronize().unwrap();
        // SAFETY: the rows are in their slot.
        unsafe { gather.start(stream, rows, None) }.unwrap();
        return;
    }
    let shard = rank.gpu.upload(&[&bytes[..], &[0; 16]].concat());
    // SAFETY: the shard is long enough, and is kept until it has been copied.
    unsafe { gather.start(stream, rows, Some(shard.device_ptr(stream).0)) }.unwrap();
    stream.synchronize().unwrap();
}

/// Ends the step, and looks at every byte.
fn finish(rank: &Rank, gather: &mut AllGather, rows: &[u32], step: u64) {
    let at = gather.finish(&rank.gpu.stream).unwrap();
    gather.synchronize(&rank.gpu.stream).unwrap();
    let expected: Vec<u8> =
        (0..).zip(rows).flat_map(|(from, &rows)| rows_of(from, step, rows)).collect();
    // SAFETY: the gathered rows are so long, and the stream is through.
    let got = unsafe { read_bytes(at, expected.len()) };
    assert!(got == expected, "rank {}, step {step}, rows {rows:?}", rank.rank());
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn bytes_come_out_as_they_went_in() {
    for engine in [Engine::CopyEngines { streams: 2 }, Engine::Kernel { blocks: 3 }] {
        // The last has ranks with more than a kernel tells all peers of at once, and one with less.
        for planned in [&[64][..], &[100, 33], &[7, 0, 250, 64, 1], &[30_000, 100, 23_000]] {
            on_ranks(planned.len() as u32, |rank| {
                let mut gather = gather(&rank, planned, engine);
                let reversed: Vec<u32> = planned.iter().rev().copied().collect();
                for step in 0..20 {
                    let rows = (step % 3 == 2).then_some(&reversed[..]);
                    start(&rank, &mut gather, rows, planned, step);
                    finish(&rank, &mut gather, rows.unwrap_or(planned), step);
                }
                rank.through();
            });
        }
        println!("{engine:?}: right");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn slices_come_out_as_they_went_in() {
    let planned = [40, 0, 100];
    on_ranks(3, |rank| {
        let stream = &rank.gpu.stream;
        let mut gather = gather(&rank, &planned, Engine::CopyEngines { streams: 1 });
        // Bits of any kind, so compared as bits.
        let elements = |bytes: &[u8]| -> Vec<bf16> {
            bytes
                .chunks(2)
                .map(|two| bf16::from_bits(u16::from_le_bytes([two[0], two[1]])))
                .collect()
        };
        let bits = |elements: &[bf16]| elements.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        for step in 0..20 {
            let rows = [planned, [100, 40, 0]][step as usize % 2];
            let own = elements(&rows_of(rank.rank(), step, rows[rank.rank() as usize]));
            // A slice has at least one element.
            let shard = rank.gpu.upload(if own.is_empty() { &[bf16::NAN][..] } else { &own });
            let mut all = rank.gpu.upload(&vec![bf16::NAN; (140 * ROW / 2) as usize]);
            let given = shard.slice(..own.len());
            gather.enqueue(stream, Some(&rows), &given, &mut all).unwrap();
            drop(shard);
            gather.synchronize(stream).unwrap();
            let expected: Vec<u8> =
                (0..).zip(&rows).flat_map(|(from, &rows)| rows_of(from, step, rows)).collect();
            let got = bits(&rank.gpu.download(&all));
            assert!(got == bits(&elements(&expected)), "rank {}, step {step}", rank.rank());
        }
        let (shard, mut short) = (rank.gpu.upload(&[0f32; 12]), rank.gpu.upload(&[0f32; 12]));
        let error = gather.enqueue(stream, None, &shard, &mut short).unwrap_err().to_string();
        assert!(error.starts_with("the length of the "), "{error}");
        rank.through();
    });
}

/// A graph follows at once a step outside of graphs that used the buffer of the graph's first step, while rank 0 still sends its
/// many rows from there. Between ranks on one GPU copies are so quick that the fault shows on two alone.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_graph_waits_for_what_the_step_before_sends() {
    const ROWS: [u32; 2] = [16_384, 16];
    const ROW: u64 = 4096;
    on_ranks(2, |rank| {
        let (group, device, stream) = (&rank.group, &rank.gpu.device, &rank.gpu.stream);
        let options = options(Engine::CopyEngines { streams: 1 });
        let mut gather = AllGather::plan(group, device, &ROWS, ROW, &options).unwrap();
        let bytes =
            |from: u32, time| random_bytes(from, time, u64::from(ROWS[from as usize]) * ROW);
        let shards = [0, 1, 2].map(|time| rank.gpu.upload(&bytes(rank.rank(), time)));
        let seen = rank.gpu.upload(&vec![0xffu8; bytes(0, 0).len()]);
        let expected = bytes(0, 2);
        let mut step = |time: usize| {
            let shard = shards[time].device_ptr(stream).0;
            // SAFETY: as long as the rows say, and kept until the stream is through.
            unsafe { gather.start(stream, None, Some(shard)) }.unwrap();
            gather.finish(stream).unwrap()
        };
        let graph = captured(stream, false, || {
            step(0);
            step(1);
        });
        for _ in 0..10 {
            let rows = step(2);
            if rank.rank() == 1 {
                let (to, bytes) = (seen.device_ptr(stream).0, seen.len());
                // SAFETY: so many bytes on both sides, kept until the stream is through.
                unsafe { result::memcpy_dtod_async(to, rows, bytes, stream.cu_stream()) }.unwrap();
            }
            graph.launch().unwrap();
            stream.synchronize().unwrap();
            let is_right = rank.rank() == 0 || rank.gpu.download(&seen) == expected;
            assert!(is_right, "rows of the graph's first step");
        }
        gather.check().unwrap();
        rank.through();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn two_gathers_beside_a_product() {
    let kernel = one_kernel();
    on_ranks(2, |rank| {
        let copies = Engine::CopyEngines { streams: 1 };
        let rows = [&[500, 300][..], &[64, 640]];
        let mut both = rows.map(|rows| gather(&rank, rows, copies));
        let mut case = Case::new(kernel, 512, 512, 512);
        case.options.sm_limit = Some(rank.sms);
        let mut call = call(&rank.gpu, &case, &mut Random::new(5));
        let gemm = Gemm::plan(&rank.gpu.device, &case.problem(), &case.options).unwrap();
        for step in 0..10 {
            for (nth, (gather, rows)) in (0..).zip(both.iter_mut().zip(rows)) {
                start(&rank, gather, None, rows, 2 * step + nth);
            }
            call.poison_d(&rank.gpu.stream);
            call.enqueue(&gemm, &rank.gpu.stream);
            for (nth, (gather, rows)) in (0..).zip(both.iter_mut().zip(rows)) {
                finish(&rank, gather, rows, 2 * step + nth);
            }
            call.fetch(&rank.gpu.stream);
            let report = call.report(&[0, 100, 511]);
            assert_eq!(report.wrong, 0, "{report:?}");
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_does_not_fit_is_refused_on_every_rank() {
    on_ranks(2, |rank| {
        let (group, device) = (&rank.group, &rank.gpu.device);
        let options = CollectiveOptions::default().with_timeouts(PATIENCE, PATIENCE);
        let plan = |rows: &[u32], row| AllGather::plan(group, device, rows, row, &options);
        let ranks = plan(&[1, 2, 3], 48).unwrap_err();
        assert!(ranks.to_string().contains("the number of ranks in the plan is 3"), "{ranks}");
        // One rank cannot plan: the other is told why.
        let one = plan(&[10, 20], if rank.rank() == 0 { 48 } else { 50 }).unwrap_err();
        match rank.rank() {
            0 => assert!(
                matches!(&one, Error::Aborted { reason, .. } if reason.contains("50 bytes"))
            ),
            _ => assert!(matches!(one, Error::Misaligned { .. }), "{one:?}"),
        }
        // The group lives on; steps out of order are refused.
        let mut gather = plan(&[10, 20], 48).unwrap();
        let early = gather.finish(&rank.gpu.stream).unwrap_err().to_string();
        assert!(early.starts_with("the step is not started"), "{early}");
        start(&rank, &mut gather, None, &[10, 20], 0);
        // SAFETY: refused.
        let twice = unsafe { gather.start(&rank.gpu.stream, None, None) }.unwrap_err().to_string();
        assert!(twice.starts_with("the step before is not finished"), "{twice}");
        let elsewhere = gather.finish(&device.new_stream().unwrap()).unwrap_err().to_string();
        assert!(elsewhere.starts_with("the stream is another"), "{elsewhere}");
        finish(&rank, &mut gather, &[10, 20], 0);
        // SAFETY: refused.
        let nowhere = unsafe { gather.start(&rank.gpu.stream, None, Some(0)) };
        let nowhere = nowhere.unwrap_err().to_string();
        assert!(nowhere.starts_with("the address of the shard is 0"), "{nowhere}");
    });
}

/// What an operation computes may come from another one that failed: its check says so, also before the other one's does, and
/// after the other one was dropped.
fn tells_of_another_that_failed(is_dropped: bool) {
    const SHORT: Duration = Duration::from_millis(300);
    const ROWS: [u32; 2] = [64; 2];
    on_ranks(2, |rank| {
        let plan = |limit| {
            let options = options(Engine::Kernel { blocks: 8 }).with_timeouts(PATIENCE, limit);
            AllGather::plan(&rank.group, &rank.gpu.device, &ROWS, ROW, &options).unwrap()
        };
        let [mut first, mut second] = [plan(SHORT), plan(PATIENCE)];
        for gather in [&mut first, &mut second] {
            start(&rank, gather, None, &ROWS, 1);
            finish(&rank, gather, &ROWS, 1);
        }
        let is_late = rank.rank() == 1;
        if !is_late {
            start(&rank, &mut first, None, &ROWS, 3);
            first.finish(&rank.gpu.stream).unwrap();
        }
        start(&rank, &mut second, None, &ROWS, 3);
        second.finish(&rank.gpu.stream).unwrap();
        rank.gpu.stream.synchronize().unwrap();
        if is_late {
            return;
        }
        if is_dropped {
            drop(first);
            second.check().unwrap_err();
            return;
        }
        let told = second.check().unwrap_err();
        assert!(matches!(told, Error::Aborted { rank: 0, .. }), "{told}");
        let cause = first.check().unwrap_err();
        assert!(matches!(cause, Error::PeerTimeout { peer: 1, .. }), "{cause}");
        assert!(told.to_string().contains(&cause.to_string()), "{told}");
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_check_tells_of_another_operation_that_failed() {
    tells_of_another_that_failed(false);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_check_tells_of_a_dropped_operation_that_failed() {
    tells_of_another_that_failed(true);
}
