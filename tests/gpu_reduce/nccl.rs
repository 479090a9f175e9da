//! NCCL's reduce-scatter and all-reduce, which benches compare with, and which are an engine of reductions. NCCL takes one rank a
//! GPU, so there are as many ranks as GPUs. The library has to be installed (OVERLAP_GEMM_NCCL names its file).
//!
//! Invariant: but for sums of products, which are compared with `f64`, numbers are whole and so small that every order of additions
//! gives the same bits; outputs are NaN before, with a guard behind them.

use overlap_gemm::cuda::cudarc::driver::DevicePtr;
use overlap_gemm::cuda::nccl::{Communicator, Nccl, Parts};
use overlap_gemm::cuda::{Reduce, devices};
use overlap_gemm::element::{bf16, f16};
use overlap_gemm::plan::{Activation, Engine, Partials, Reduction, Strategy};
use overlap_gemm::random::Random;
use overlap_gemm::{Element, ElementType, Error};

use super::results::three_steps;
use super::world::{World, kernel_for};
use crate::gpu::PATIENCE;
use crate::gpu::call::Number;
use crate::gpu::ranks::{Rank, on_ranks, options};

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

/// Rows of ranks of which the first has none.
fn others(ranks: usize) -> Vec<usize> {
    let mut others: Vec<usize> = (0..ranks).map(|rank| 3 * rank).collect();
    others[ranks - 1] += 5;
    others
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
        // Alike: one call. Others: one for each rank.
        for rows in [&vec![12; ranks], &others(ranks)] {
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

/// Products whose sums NCCL adds up: in `f32`, with all that may follow a total; in bf16, to which it rounds between additions, with
/// nothing.
#[test]
#[ignore = "needs 2 Hopper GPUs and NCCL"]
fn sums_of_products_are_right() {
    let ranks = devices().unwrap().len();
    assert!(ranks > 1, "with one GPU nothing is added up");
    let unequal = |rows: Vec<usize>| rows.into_iter().map(|rows| 30 * rows as u32).collect();
    let worlds = [vec![72; ranks], unequal(others(ranks)), unequal((1..=ranks).collect())];
    for (rows, bits) in worlds.iter().flat_map(|rows| (0..4).map(move |bits| (rows, bits))) {
        let (all, is_wide) = (bits & 1 == 1, bits & 2 == 2);
        let partials = if is_wide { Partials::F32 } else { Partials::Bf16 };
        let Some(kernel) = kernel_for(partials) else { continue };
        let world = World::of(kernel, rows, 96, 200).with(|case| {
            if is_wide {
                (case.d, case.alpha, case.beta) = (ElementType::F16, 0.75, -1.5);
                (case.options.bias, case.options.c) = (true, true);
                case.options.activation = Activation::Relu;
            }
        });
        let (strategy, options) = (Strategy::Sequential, options(Engine::Nccl));
        let reduction = Reduction { partials, average: is_wide };
        let ends = three_steps(&World { all, strategy, options, reduction, ..world });
        assert!(!all || ends.iter().all(|bits| *bits == ends[0]), "{rows:?}: ranks differ");
        println!("{rows:?}, to all: {all}, {partials:?}: right");
    }
}

/// Sums that the caller has, in two shapes; totals take their place, then lie elsewhere.
fn callers_sums_are_right<const ALL: bool>(rank: &Rank, rows: &[usize]) {
    let (own, ranks, stream) = (rank.rank() as usize, rows.len(), &rank.gpu.stream);
    let shapes = [rows.to_vec(), rows.iter().rev().copied().collect()];
    let counts = |rows: &[usize]| rows.iter().map(|rows| *rows as u32).collect::<Vec<_>>();
    let (group, device, d) = (&rank.group, &rank.gpu.device, ElementType::Bf16);
    let (options, sum) = (options(Engine::Nccl), Reduction::default());
    let planned = counts(rows);
    let columns = COLUMNS as u32;
    let mut reduce =
        Reduce::<ALL, false>::plan(group, device, &planned, columns, d, &options, sum).unwrap();
    assert_eq!(reduce.way().engine, Engine::Nccl);
    for step in 0..4 {
        let (shape, in_place): (&Vec<usize>, _) = (&shapes[step / 2], step % 2 == 0);
        let before = |rank: usize| shape[..rank].iter().sum::<usize>() * COLUMNS;
        let all = before(ranks);
        let gets = if ALL { 0..all } else { before(own)..before(own + 1) };
        let brought: Vec<_> = (0..ranks).map(|rank| numbers(59 + step as u64, rank, all)).collect();
        let mine: Vec<bf16> = brought[own].iter().map(|x| bf16::narrow(*x)).collect();
        let (sums, to) =
            (rank.gpu.upload(&mine), rank.gpu.upload(&vec![bf16::POISON; gets.len() + GUARD]));
        let (at, elsewhere) = (sums.device_ptr(stream).0, to.device_ptr(stream).0);
        let to_address = if in_place { at + 2 * gets.start as u64 } else { elsewhere };
        // SAFETY: both buffers are as long as the rows say, and live until the stream is through.
        unsafe { reduce.enqueue_raw(stream, Some(&counts(shape)), at, to_address) }.unwrap();
        reduce.synchronize(stream).unwrap();
        let (sums, to) = (rank.gpu.download(&sums), rank.gpu.download(&to));
        let got = if in_place { &sums[gets.clone()] } else { &to[..gets.len()] };
        for (at, got) in gets.clone().zip(got) {
            let expected: f32 = brought.iter().map(|numbers| numbers[at]).sum();
            assert_eq!(got.widen(), expected, "to all: {ALL}, rank {own}, {shape:?}, {at}");
        }
        let is_kept = |at: &usize| !in_place || !gets.contains(at);
        assert!((0..all).filter(is_kept).all(|at| sums[at] == mine[at]), "sums were overwritten");
        let written = if in_place { 0 } else { gets.len() };
        assert!(to[written..].iter().all(|x| x.widen().is_nan()), "{shape:?}: beyond its end");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU and NCCL"]
fn totals_of_the_callers_sums_are_right() {
    let ranks = devices().unwrap().len();
    on_ranks(ranks as u32, |rank| {
        for rows in [&vec![12; ranks], &others(ranks)] {
            callers_sums_are_right::<false>(&rank, rows);
            callers_sums_are_right::<true>(&rank, rows);
        }
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
