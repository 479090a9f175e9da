//! Streams that come and go while what they have used stays.
//!
//! What belongs here: that an operation keeps nothing of every stream it was used on. Invariant: memory is compared
//! after many streams and after many more; how long that takes is not looked at.

use crate::gpu::Gpu;
use overlap_gemm::cuda::cudarc::driver::result::mem_get_info;
use overlap_gemm::cuda::cudarc::driver::{CudaContext, CudaSlice, DevicePtr as _};
use overlap_gemm::cuda::{Gemm, GemmOptions, Operands, Signals};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::Problem;

const STREAMS: usize = 100_000;
/// Streams before the first look: pools of the driver's own have grown by then.
const FIRST: usize = 10_000;
/// What may be added by the others: less than a hundredth of what keeping them would take.
const MOST_BYTES: usize = 8 << 20;

/// Bytes of this process in the host's memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_hundred_thousand_streams_leave_nothing_behind() {
    let gpu = Gpu::untracked();
    let signals = Signals::new(&gpu.device, 4).unwrap();
    let mut before = (0, 0);
    for number in 0..STREAMS {
        if number == FIRST {
            before = (resident(), mem_get_info().unwrap().0);
        }
        let stream = gpu.device.new_stream().unwrap();
        if number % 100 == 0 {
            signals.advance(&stream).unwrap();
        }
        signals.post(&stream, (number % 4) as u32).unwrap();
        // Streams are unordered, and the host may run far ahead of them.
        if number % 1000 == 999 {
            stream.synchronize().unwrap();
        }
    }
    let grown = resident().saturating_sub(before.0);
    let taken = before.1.saturating_sub(mem_get_info().unwrap().0);
    println!("{} streams more: {grown} bytes on the host, {taken} on the device", STREAMS - FIRST);
    assert!(grown < MOST_BYTES && taken < MOST_BYTES, "{grown} and {taken} bytes");
    assert_eq!(signals.epoch() as usize, STREAMS / 100);
}

/// Products over views, on streams and contexts that were made outside, of which each is used for some steps.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn streams_views_and_contexts_made_outside_leave_nothing_behind() {
    const STEPS: usize = 100_000;
    const STEPS_OF_STREAM: usize = 100;
    const SIDE: usize = 64;
    let gpu = Gpu::open();
    let problem = Problem::builder(SIDE as u64, SIDE as u64, SIDE as u64).build().unwrap();
    let gemm = Gemm::plan(&gpu.device, &problem, &GemmOptions::default()).unwrap();
    let ones = gpu.upload(&vec![bf16::ONE; 2 * SIDE * SIDE]);
    let mut d = gpu.upload(&vec![bf16::NAN; SIDE * SIDE]);
    let mut before = (0, 0);
    for number in 0..STEPS / STEPS_OF_STREAM {
        if number == 100 {
            before = (resident(), mem_get_info().unwrap().0);
        }
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        for _ in 0..STEPS_OF_STREAM {
            let (a, b) = ones.split_at(SIDE * SIDE);
            let mut whole = d.slice_mut(..);
            gemm.enqueue(&stream, Operands::new(&a, &b, &mut whole)).unwrap();
        }
        stream.synchronize().unwrap();
    }
    let grown = resident().saturating_sub(before.0);
    let taken = before.1.saturating_sub(mem_get_info().unwrap().0);
    println!("{grown} bytes on the host, {taken} on the device");
    assert!(grown < MOST_BYTES && taken < MOST_BYTES, "{grown} and {taken} bytes");
    assert!(gpu.download(&d).iter().all(|value| *value == bf16::from_f32(SIDE as f32)));
}

/// Memory and a stream of raw ones, whose owner keeps them.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn raw_memory_and_streams_serve_as_slices() {
    const SIDE: usize = 128;
    let gpu = Gpu::open();
    let problem = Problem::builder(SIDE as u64, SIDE as u64, SIDE as u64).build().unwrap();
    let gemm = Gemm::plan(&gpu.device, &problem, &GemmOptions::default()).unwrap();
    let matrix = |value| gpu.upload(&vec![value; SIDE * SIDE]);
    let [a, b, d] = [bf16::ONE, bf16::from_f32(0.5), bf16::NAN].map(matrix);
    let at = |slice: &CudaSlice<bf16>| slice.device_ptr(&gpu.stream).0;
    // SAFETY: the stream and the slices live longer than these, and are so long.
    let (stream, [raw_a, raw_b, mut raw_d]) = unsafe {
        let stream = gpu.device.context().wrap_borrowed_stream(gpu.stream.cu_stream());
        let raw = |slice| stream.upgrade_device_ptr::<bf16>(at(slice), SIDE * SIDE);
        let all = [&a, &b, &d].map(raw);
        (stream, all)
    };
    gemm.enqueue(&stream, Operands::new(&raw_a, &raw_b, &mut raw_d)).unwrap();
    for raw in [raw_a, raw_b, raw_d] {
        raw.leak();
    }
    let expected = bf16::from_f32(SIDE as f32 / 2.0);
    assert!(gpu.download(&d).iter().all(|value| *value == expected));
}

/// What was enqueued on streams that are long gone is waited for all the same.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn dropping_waits_for_streams_that_are_gone() {
    let gpu = Gpu::untracked();
    let signals = Signals::new(&gpu.device, 1).unwrap();
    for _ in 0..100 {
        let stream = gpu.device.new_stream().unwrap();
        signals.advance(&stream).unwrap();
        signals.post(&stream, 0).unwrap();
    }
    drop(signals);
    gpu.device.context().synchronize().unwrap();
}
