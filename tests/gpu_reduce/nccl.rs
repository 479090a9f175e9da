//! NCCL's reduce-scatter and all-reduce, which benches compare with. NCCL takes one rank a GPU, so there are as many ranks as
//! GPUs. The library has to be installed (OVERLAP_GEMM_NCCL names its file).
//!
//! Invariant: numbers are whole and so small that every order of additions gives the same bits; outputs are NaN before, with
//! a guard behind them.

use overlap_gemm::cuda::cudarc::driver::DevicePtr;
use overlap_gemm::cuda::devices;
use overlap_gemm::cuda::nccl::{Communicator, Nccl, Parts};
use overlap_gemm::element::{bf16, f16};
use overlap_gemm::random::Random;
use overlap_gemm::{Element, ElementType, Error};

use crate::gpu::PATIENCE;
use crate::gpu::call::Number;
use crate::gpu::ranks::{Rank, on_ranks};

const GUARD: usize = 64;
const COLUMNS: usize = 40;

fn join(rank: &Rank) -> Communicator {
    let nccl = Nccl::load(None).unwrap();
    Communicator::join(&nccl, &rank.group, &rank.gpu.device, PATIENCE).unwrap()
}

/// The parts of buffers whose ranks have so many rows.
fn parts(rows: &[usize], size: usize) -> Vec<(u64, u64)> {
    let mut first = 0;
    let part = |rows: &usize| {
        let bytes = (rows * COLUMNS * size) as u64;
        first += bytes;
        (first - bytes, bytes)
    };
    rows.iter().map(part).collect()
}

/// What a rank brings: at most 16 each, of at most 16 ranks: below 2⁸.
fn numbers(seed: u64, rank: usize, count: usize) -> Vec<f32> {
    let mut random = Random::of_stream(seed, rank as u64);
    (0..count).map(|_| random.within(0..=32) as f32 - 16.0).collect()
}

/// Adds up what ranks with so many rows have, twice, with other numbers.
fn sums_are_right<T: Number>(rank: &Rank, communicator: &Communicator, rows: &[usize]) {
    let own = rank.rank() as usize;
    let (all, size) = (rows.iter().sum::<usize>() * COLUMNS, T::TYPE.size() as usize);
    let stream = &rank.gpu.stream;
    for step in 0..2 {
        let numbers = |rank| numbers(47 + step, rank, all);
        let from: Vec<T> = numbers(own).into_iter().map(T::narrow).collect();
        let (from, len) = (rank.gpu.upload(&from), rows[own] * COLUMNS);
        let mut look = vec![T::POISON; len + GUARD];
        let to = rank.gpu.upload(&look);
        let parts = Parts { address: from.device_ptr(stream).0, of_ranks: parts(rows, size) };
        let at = to.device_ptr(stream).0;
        // SAFETY: both buffers are as long as the parts say, and live until the stream is through.
        unsafe { communicator.reduce_scatter(&parts, at, T::TYPE, stream) }.unwrap();
        communicator.wait(stream, PATIENCE).unwrap();
        stream.memcpy_dtoh(&to, &mut look).unwrap();
        stream.synchronize().unwrap();
        let before: usize = rows[..own].iter().sum::<usize>() * COLUMNS;
        let brought: Vec<_> = (0..rows.len()).map(numbers).collect();
        for (at, got) in look[..len].iter().enumerate() {
            let expected: f32 = brought.iter().map(|numbers| numbers[before + at]).sum();
            assert_eq!(got.widen(), expected, "{}, rank {own}, {rows:?}, {at}", T::TYPE);
        }
        assert!(look[len..].iter().all(|x| x.widen().is_nan()), "{rows:?}: beyond its end");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn every_rank_gets_the_sums_of_its_part() {
    let ranks = devices().unwrap().len();
    on_ranks(ranks as u32, |rank| {
        let communicator = join(&rank);
        // Alike: one call. Others: one for each rank, of which the first may have none.
        let mut others: Vec<usize> = (0..ranks).map(|rank| 3 * rank).collect();
        others[ranks - 1] += 5;
        for rows in [&vec![12; ranks], &others] {
            sums_are_right::<bf16>(&rank, &communicator, rows);
            sums_are_right::<f16>(&rank, &communicator, rows);
            sums_are_right::<f32>(&rank, &communicator, rows);
        }
        rank.through();
    });
}

/// In a buffer of its own, then in place.
#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn every_rank_gets_all_sums() {
    const LEN: usize = 12 * COLUMNS;
    let ranks = devices().unwrap().len();
    on_ranks(ranks as u32, |rank| {
        let (communicator, stream) = (join(&rank), &rank.gpu.stream);
        let brought: Vec<_> = (0..ranks).map(|rank| numbers(53, rank, LEN)).collect();
        let own = brought[rank.rank() as usize].iter().map(|x| bf16::narrow(*x));
        let from = rank.gpu.upload(&own.collect::<Vec<_>>());
        let mut look = vec![bf16::POISON; LEN + GUARD];
        let to = rank.gpu.upload(&look);
        let (source, target) = (from.device_ptr(stream).0, to.device_ptr(stream).0);
        let bytes = 2 * LEN as u64;
        for to_address in [target, source] {
            // SAFETY: both buffers are so long, and live until the stream is through.
            unsafe {
                communicator.all_reduce(source, to_address, bytes, ElementType::Bf16, stream)
            }
            .unwrap();
        }
        communicator.wait(stream, PATIENCE).unwrap();
        for (buffer, len) in [(&to, LEN + GUARD), (&from, LEN)] {
            stream.memcpy_dtoh(buffer, &mut look[..len]).unwrap();
            stream.synchronize().unwrap();
            for (at, got) in look[..LEN].iter().enumerate() {
                let expected: f32 = brought.iter().map(|numbers| numbers[at]).sum();
                assert_eq!(got.widen(), expected, "rank {}, {at}", rank.rank());
            }
        }
        assert!(look[LEN..].iter().all(|x| x.widen().is_nan()), "beyond its end");
        rank.through();
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn what_cannot_be_added_up_is_refused() {
    let ranks = devices().unwrap().len();
    on_ranks(ranks as u32, |rank| {
        let (communicator, stream) = (join(&rank), &rank.gpu.stream);
        let room = rank.gpu.upload(&vec![0f32; 64 * ranks]);
        let address = room.device_ptr(stream).0;
        let refused = |of_ranks: Vec<(u64, u64)>, element: ElementType| {
            let parts = Parts { address, of_ranks };
            // SAFETY: refused before anything is touched; the parts are in the room.
            unsafe { communicator.reduce_scatter(&parts, address, element, stream) }.unwrap_err()
        };
        let even = |bytes: u64| (0..ranks as u64).map(|rank| (rank * bytes, bytes)).collect();
        let error = refused(even(64), ElementType::E4m3);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let error = refused(even(66), ElementType::F32);
        assert!(matches!(error, Error::Misaligned { multiple_of: 4, .. }), "{error}");
        let error = refused(vec![(0, 64); ranks + 1], ElementType::F32);
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        rank.through();
    });
}
