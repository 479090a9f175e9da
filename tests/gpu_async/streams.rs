//! Streams that come and go while what they have used stays.
//!
//! What belongs here: that an operation keeps nothing of every stream it was used on. Invariant: memory is compared
//! after many streams and after many more; how long that takes is not looked at.

use crate::gpu::Gpu;
use overlap_gemm::cuda::Signals;
use overlap_gemm::cuda::cudarc::driver::result::mem_get_info;

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
