//! Streams that come and go while what they have used stays.
//!
//! What belongs here: that an operation keeps nothing of every stream it was used on. Invariant: memory is compared
//! after many streams and after many more; how long that takes is not looked at.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gpu::Gpu;
use crate::gpu::memory::InUse;
use overlap_gemm::cuda::cudarc::driver::{CudaContext, CudaSlice, DevicePtr as _, sys};
use overlap_gemm::cuda::{
    Device, DeviceMatrix, DeviceMatrixMut, Gemm, GemmOptions, Operands, Signals,
};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::Problem;

const STREAMS: usize = 100_000;
/// Streams before the first look: pools of the driver's own have grown by then.
const FIRST: usize = 10_000;

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_hundred_thousand_streams_leave_nothing_behind() {
    let gpu = Gpu::untracked();
    let signals = Signals::new(&gpu.device, 4).unwrap();
    let mut before = None;
    for number in 0..STREAMS {
        if number == FIRST {
            before = Some(InUse::now());
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
    before.unwrap().check();
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
    let mut before = None;
    for number in 0..STEPS / STEPS_OF_STREAM {
        if number == 100 {
            before = Some(InUse::now());
        }
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        for _ in 0..STEPS_OF_STREAM {
            let (a, b) = ones.split_at(SIDE * SIDE);
            let mut whole = d.slice_mut(..);
            gemm.enqueue(&stream, Operands::new(&a, &b, &mut whole)).unwrap();
        }
        stream.synchronize().unwrap();
    }
    before.unwrap().check();
    assert!(gpu.download(&d).iter().all(|value| *value == bf16::from_f32(SIDE as f32)));
}

/// Memory and a stream of another owner, who keeps them.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn raw_memory_and_a_borrowed_stream_serve_a_call() {
    const SIDE: usize = 128;
    /// Of D, wider than its rows; what lies between them stays.
    const STRIDE: usize = SIDE + 8;
    let gpu = Gpu::open();
    let side = SIDE as u64;
    let problem = Problem::builder(side, side, side).ldd(STRIDE as u64).build().unwrap();
    let gemm = Gemm::plan(&gpu.device, &problem, &GemmOptions::default()).unwrap();
    let matrix = |value, columns| gpu.upload(&vec![value; SIDE * columns]);
    let (a, b) = (matrix(bf16::ONE, SIDE), matrix(bf16::from_f32(0.5), SIDE));
    let d = matrix(bf16::from_f32(7.0), STRIDE);
    let at = |slice: &CudaSlice<bf16>| slice.device_ptr(&gpu.stream).0;
    // SAFETY: the stream and the slices live longer than these, and are so long.
    let (stream, raw_a, raw_b, raw_d) = unsafe {
        let stream = gpu.device.context().wrap_borrowed_stream(gpu.stream.cu_stream());
        let raw_a = DeviceMatrix::<bf16>::from_raw(at(&a), side, side);
        // Or as a slice of `cudarc`.
        let raw_b = stream.upgrade_device_ptr::<bf16>(at(&b), SIDE * SIDE);
        (stream, raw_a, raw_b, DeviceMatrixMut::<bf16>::from_raw(at(&d), side, side))
    };
    let raw_d = raw_d.with_row_stride(STRIDE as u64);
    gemm.enqueue(&stream, Operands::new(raw_a, &raw_b, raw_d)).unwrap();
    raw_b.leak();
    for (index, value) in gpu.download(&d).iter().enumerate() {
        let expected = if index % STRIDE < SIDE { SIDE as f32 / 2.0 } else { 7.0 };
        assert_eq!(value.to_f32(), expected, "{index}");
    }
}

/// Lets the stream go on that waits in [`wait_for_release`].
static IS_RELEASED: AtomicBool = AtomicBool::new(false);

extern "C" fn wait_for_release(_: *mut c_void) {
    while !IS_RELEASED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Slices that are dropped right behind a call on a borrowed stream are kept until that has used them, though their context has
/// made no stream for anybody.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn slices_outlive_their_use_on_a_borrowed_stream() {
    const SIDE: usize = 128;
    let gpu = Gpu::open();
    let side = SIDE as u64;
    let problem = Problem::builder(side, side, side).build().unwrap();
    let gemm = Gemm::plan(&gpu.device, &problem, &GemmOptions::default()).unwrap();
    let mut d = gpu.upload(&vec![bf16::NAN; SIDE * SIDE]);
    gpu.stream.synchronize().unwrap();

    let device = Device::open(0).unwrap();
    let memory = device.context().default_stream();
    let ones = || memory.clone_htod(&vec![bf16::ONE; SIDE * SIDE]).unwrap();
    let (a, b) = (ones(), ones());
    memory.synchronize().unwrap();
    // SAFETY: `gpu` keeps the stream, and the function takes no data.
    let borrowed = unsafe {
        let borrowed = device.context().wrap_borrowed_stream(gpu.stream.cu_stream());
        let launched =
            sys::cuLaunchHostFunc(borrowed.cu_stream(), Some(wait_for_release), null_mut());
        launched.result().unwrap();
        borrowed
    };
    let enqueued = gemm.enqueue(&borrowed, Operands::new(&a, &b, &mut d));
    drop((a, b));
    // What is free is taken, and overwritten.
    let zeros = [(); 4].map(|()| memory.alloc_zeros::<bf16>(SIDE * SIDE).unwrap());
    IS_RELEASED.store(true, Ordering::Release);
    enqueued.unwrap();
    assert!(gpu.download(&d).iter().all(|value| *value == bf16::from_f32(SIDE as f32)));
    drop(zeros);

    // A context of other code: nothing tracks its memory.
    let context = CudaContext::new(0).unwrap();
    let a = context.default_stream().clone_htod(&vec![bf16::ONE; SIDE * SIDE]).unwrap();
    let error = gemm.enqueue(&gpu.stream, Operands::new(&a, &a, &mut d)).unwrap_err();
    assert!(error.to_string().starts_with("memory of another stream than the call's"), "{error}");
    gemm.enqueue(&context.default_stream(), Operands::new(&a, &a, &mut d)).unwrap_err();
    // Nor would the other streams of `device` learn what that context enqueues on the default stream, which is everybody's.
    let mut shared = memory.alloc_zeros::<bf16>(SIDE * SIDE).unwrap();
    let operands = Operands::new(&a, &a, &mut shared);
    gemm.enqueue(&context.default_stream(), operands).unwrap_err();
    let _stream = context.new_stream().unwrap();
    gemm.enqueue(&gpu.stream, Operands::new(&a, &a, &mut d)).unwrap();
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
