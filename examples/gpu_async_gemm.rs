//! GEMM on rows that another process delivers, without a gather:
//! `overlap-gemm launch -n 2 -- target/…/examples/gpu_async_gemm`.
//!
//! Rank 1 writes A chunk by chunk into memory of rank 0, and behind each chunk its word. Rank 0 multiplies meanwhile: each tile
//! waits for the words of its rows. No group operation moves rows; rank 0 tells rank 1 by a `SignalPad` when it has read them.

use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::{DevicePtr, result};
use overlap_gemm::cuda::{
    AsyncGemm, Device, DeviceMatrix, GemmOptions, Operands, SignalPad, Signals, SymmetricMemory,
};
use overlap_gemm::element::bf16;
use overlap_gemm::group::GroupOptions;
use overlap_gemm::plan::{Chunks, Problem};

const M: usize = 4096;
const N: usize = 3584;
const K: usize = 8192;
const CHUNKS: u32 = 8;
const STEPS: u32 = 10;
const LIMIT: Duration = Duration::from_secs(30);

/// Behind A, in the same memory: a word for each chunk.
const WORDS_AT: u64 = (M * K * size_of::<bf16>()) as u64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (group, device) = Device::join(&GroupOptions::default())?;
    let problem = Problem::builder(M as u64, N as u64, K as u64).build()?;
    let chunks = Chunks::even(problem.shards(), CHUNKS)?;
    let memory = SymmetricMemory::new(&group, &device, WORDS_AT + u64::from(CHUNKS) * 4, LIMIT)?;
    // Rank 0 tells rank 1 that it has read the rows of a step.
    let pad = SignalPad::new(&group, &device, 1, LIMIT)?;
    // SAFETY: the words are this rank's, and nobody uses them before the barrier.
    unsafe { result::memcpy_htod_sync(memory.own_address() + WORDS_AT, &[0u32; CHUNKS as usize])? };
    device.context().synchronize()?;
    group.barrier("all words are 0", LIMIT)?;

    match group.rank() {
        0 => multiply(&device, &problem, &chunks, &memory, &pad)?,
        1 => deliver(&device, &chunks, &memory, &pad)?,
        _ => {}
    }
    group.barrier("all are through", LIMIT)?;
    Ok(())
}

/// Row r of A is r mod 7 plus the number of the step.
fn value(row: usize, step: u32) -> f32 {
    (row % 7) as f32 + step as f32
}

fn deliver(
    device: &Device,
    chunks: &Chunks,
    memory: &SymmetricMemory,
    pad: &SignalPad,
) -> Result<(), Box<dyn std::error::Error>> {
    let stream = device.new_stream()?;
    for step in 0..STEPS {
        let rows = (0..M).flat_map(|row| std::iter::repeat_n(bf16::from_f32(value(row, step)), K));
        let rows = stream.clone_htod(&rows.collect::<Vec<_>>())?;
        if step > 0 {
            pad.wait(&stream, 0, 0)?;
        }
        for chunk in chunks.need_order(0) {
            let part = chunks.rows(chunk);
            let row_bytes = (K * size_of::<bf16>()) as u64;
            let (at, bytes) = (u64::from(part.start) * row_bytes, part.len() as u64 * row_bytes);
            // SAFETY: `rows` stays until the stream is through, and rank 0 has read the rows of the step before.
            unsafe {
                memory.put(&stream, 0, at, rows.device_ptr(&stream).0 + at, bytes)?;
                memory.post(&stream, 0, WORDS_AT + u64::from(chunk) * 4, step + 1)?;
            }
        }
        stream.synchronize()?;
    }
    Ok(pad.check()?)
}

fn multiply(
    device: &Device,
    problem: &Problem,
    chunks: &Chunks,
    memory: &SymmetricMemory,
    pad: &SignalPad,
) -> Result<(), Box<dyn std::error::Error>> {
    let stream = device.new_stream()?;
    let gemm = AsyncGemm::plan(device, problem, chunks, 0, &GemmOptions::default())?;
    // SAFETY: the memory outlives the signals.
    let signals = unsafe { Signals::at(device, memory.own_address() + WORDS_AT, CHUNKS, 0)? };
    let b = stream.clone_htod(&vec![bf16::from_f32(1.0 / K as f32); N * K])?;
    let mut d = stream.alloc_zeros::<bf16>(M * N)?;
    // SAFETY: A is so large. Rank 1 writes a chunk before its word, and not before `pad` says that it was read.
    let a = unsafe { DeviceMatrix::<bf16>::from_raw(memory.own_address(), M as u64, K as u64) };
    for step in 0..STEPS {
        signals.advance(&stream)?;
        gemm.enqueue(&stream, [Operands::new(a, &b, &mut d)], None, &signals)?;
        pad.put(&stream, 1, 0)?;
        stream.synchronize()?;
        signals.check()?; // a chunk that did not come in time is named here
        let found = stream.clone_dtoh(&d)?;
        for row in [0, M / 3, M - 1] {
            assert_eq!(found[row * N].to_f32(), value(row, step), "row {row}, step {step}");
        }
    }
    println!("{STEPS} steps on rows of another process: right");
    Ok(pad.check()?)
}
