//! Memory that all ranks reach: nothing leaks, and nobody waits to drop it. What is put and got is in `signal_pad`.

use std::time::{Duration, Instant};

use crate::gpu::ranks::{Rank, on_ranks};
use overlap_gemm::Error;
use overlap_gemm::cuda::SymmetricMemory;
use overlap_gemm::cuda::cudarc::driver::result;

const LIMIT: Duration = Duration::from_secs(30);

fn memory(rank: &Rank, bytes: u64) -> SymmetricMemory {
    SymmetricMemory::new(&rank.group, &rank.gpu.device, bytes, LIMIT).unwrap()
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn nothing_leaks() {
    const CYCLES: u32 = 10_000;
    on_ranks(2, |rank| {
        let context = rank.gpu.device.context();
        let free = || {
            context.bind_to_thread().unwrap();
            result::mem_get_info().unwrap().0
        };
        let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let cycle = || {
            let memory = memory(&rank, 4 << 20);
            assert!(memory.bytes() >= 4 << 20);
        };
        (0..10).for_each(|_| cycle());
        rank.group.barrier("before", LIMIT).unwrap();
        let (free_before, files_before) = (free(), open_files());
        rank.group.barrier("measured", LIMIT).unwrap();
        (0..CYCLES).for_each(|_| cycle());
        rank.group.barrier("after", LIMIT).unwrap();
        let (free_after, files_after) = (free(), open_files());
        rank.group.barrier("measured again", LIMIT).unwrap();
        // Others may use the GPU for a little; a leak would be 80 GB.
        assert!(free_before < free_after + (64 << 20), "{free_before} bytes, then {free_after}");
        // The other rank's sockets come and go.
        assert!(files_after < files_before + 16, "{files_before} files, then {files_after}");
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn sizes_have_to_be_the_same() {
    on_ranks(3, |rank| {
        let bytes = if rank.rank() == 2 { 1 << 20 } else { 1 << 21 };
        let refused = SymmetricMemory::new(&rank.group, &rank.gpu.device, bytes, LIMIT);
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
        assert!(error.to_string().contains("the bytes of symmetric memory on rank"), "{error}");
        // A wrong call is not the end.
        memory(&rank, 1 << 20);
    });
}

/// Memory outlives the rank that it came from.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn dropping_waits_for_nobody() {
    on_ranks(2, |rank| {
        let memory = memory(&rank, 1 << 20);
        rank.group.barrier("mapped", LIMIT).unwrap();
        if rank.rank() == 1 {
            return; // drops its part, and leaves
        }
        std::thread::sleep(Duration::from_millis(300));
        let at = memory.address(1).unwrap();
        // SAFETY: mapped here, so it is alive, and nobody else uses it.
        unsafe {
            result::memcpy_htod_sync(at, &[7u8; 64]).unwrap();
            let mut back = [0u8; 64];
            result::memcpy_dtoh_sync(&mut back, at).unwrap();
            assert_eq!(back, [7; 64]);
        }
        let begin = Instant::now();
        drop(memory);
        assert!(begin.elapsed() < LIMIT / 10, "{:?}", begin.elapsed());
    });
}
