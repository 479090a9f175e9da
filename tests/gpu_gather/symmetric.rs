//! Memory that all ranks reach: nothing leaks, nobody waits to drop it, and a peer that writes rows and words there feeds a
//! product. What else is put and got is in `signal_pad`.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use crate::gpu::Gpu;
use crate::gpu::ranks::{Rank, on_ranks};
use crate::processes::{ended, free_port, start_rank, variable};
use overlap_gemm::Error;
use overlap_gemm::cuda::cudarc::driver::{DevicePtr as _, result};
use overlap_gemm::cuda::{
    AsyncGemm, Device, Gemm, GemmOptions, RawOperands, SignalPad, Signals, SymmetricMemory, devices,
};
use overlap_gemm::element::bf16;
use overlap_gemm::group::{Group, GroupOptions, PORT_VARIABLE};
use overlap_gemm::plan::{Chunks, Problem};
use overlap_gemm::random::Random;

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

/// The product's words are in symmetric memory. Rank 1 writes the rows of A and the words, by puts and posts alone, late and
/// chunk by chunk; rank 0 multiplies. Results have to be, bit for bit, what the same kernel computes when all rows are there.
fn feeds_or_multiplies(rank: &Rank) {
    const M: u64 = 700;
    const N: u64 = 256;
    const K: u64 = 512;
    const STEPS: u32 = 40;
    // The epochs wrap.
    const START: u32 = u32::MAX - 3;
    const WORDS_AT: u64 = M * K * 2;
    let (device, stream) = (&rank.gpu.device, &rank.gpu.stream);
    let problem = Problem::builder(M, N, K).build().unwrap();
    let chunks = Chunks::even(problem.shards(), 7).unwrap();
    let memory = memory(rank, WORDS_AT + u64::from(chunks.len()) * 4);
    // Rank 0 has read the rows of a step: rank 1 may write the next.
    let pad = SignalPad::new(&rank.group, device, 1, LIMIT).unwrap();
    device.context().bind_to_thread().unwrap();
    // SAFETY: this rank's part, which nobody uses before the barrier.
    unsafe {
        result::memset_d8_sync(memory.own_address(), 0xff, WORDS_AT as usize).unwrap();
        let words = vec![START; chunks.len() as usize];
        result::memcpy_htod_sync(memory.own_address() + WORDS_AT, &words).unwrap();
    }
    device.context().synchronize().unwrap();
    // Before any rank waits: where ranks share a GPU, loading a kernel may wait for all kernels that run.
    let options = GemmOptions::default().with_sm_limit(rank.sms);
    let gemm = AsyncGemm::plan(device, &problem, &chunks, 0, &options)
        .unwrap()
        .with_timeouts(LIMIT, LIMIT);
    let plain = options.clone().with_kernel(&gemm.kernel().name).with_splits(gemm.choice().splits);
    let plain = Gemm::plan(device, &problem, &plain).unwrap();
    rank.group.barrier("words hold the epoch before the first", LIMIT).unwrap();

    let mut random = Random::of_stream(7, rank.rank().into());
    if rank.rank() == 1 {
        for step in 0..STEPS {
            let epoch = START.wrapping_add(1 + step);
            let rows = rank.gpu.upload(&random.elements::<bf16>(M * K));
            if step > 0 {
                pad.wait(stream, 0, 0).unwrap();
            }
            for chunk in chunks.need_order(0) {
                if random.within(0..=3) == 0 {
                    std::thread::sleep(Duration::from_micros(random.within(0..=500)));
                }
                let part = chunks.rows(chunk);
                let (at, bytes) = (u64::from(part.start) * K * 2, part.len() as u64 * K * 2);
                let word = WORDS_AT + u64::from(chunk) * 4;
                // SAFETY: the rows are kept until the stream is through; rank 0 has read those of the step before.
                unsafe {
                    memory.put(stream, 0, at, rows.device_ptr(stream).0 + at, bytes).unwrap();
                    memory.post(stream, 0, word, epoch).unwrap();
                }
            }
            stream.synchronize().unwrap();
        }
        let words = memory.bytes();
        // SAFETY: what is refused touches nothing.
        let refused = |at| unsafe { memory.post(stream, 0, at, 0) }.unwrap_err().to_string();
        assert!(refused(2).contains("the offset of a word is 2"), "{}", refused(2));
        assert!(refused(words).contains("the offset in symmetric memory"), "{}", refused(words));
    } else {
        let words = memory.own_address() + WORDS_AT;
        // SAFETY: the memory outlives the signals.
        let at = |words| unsafe { Signals::at(device, words, chunks.len(), START) };
        let signals = at(words).unwrap();
        let text = at(words + 2).unwrap_err().to_string();
        assert!(text.starts_with("the address of the signals is"), "{text}");
        let b = rank.gpu.upload(&random.elements::<bf16>(N * K));
        let outputs = [(); 2].map(|()| rank.gpu.upload(&vec![bf16::NAN; (M * N) as usize]));
        let [operands, expected] = outputs.each_ref().map(|d| {
            let (b, d) = (b.device_ptr(stream).0, d.device_ptr(stream).0);
            RawOperands::new(memory.own_address(), b, d)
        });
        for step in 0..STEPS {
            signals.advance(stream).unwrap();
            // SAFETY: everything is as large as the problem says, and lives until the stream is through.
            unsafe {
                gemm.enqueue_raw(stream, &operands, &signals).unwrap();
                plain.enqueue_raw(stream, &expected).unwrap();
            }
            stream.synchronize().unwrap();
            signals.check().unwrap();
            let [seen, expected] = outputs.each_ref().map(|d| rank.gpu.download(d));
            assert!(seen.iter().all(|value| value.is_finite()), "step {step}");
            assert!(seen == expected, "step {step}");
            pad.put(stream, 1, 0).unwrap();
        }
        stream.synchronize().unwrap();
    }
    pad.check().unwrap();
    rank.through();
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_peer_that_writes_rows_and_words_feeds_a_product() {
    on_ranks(2, |rank| feeds_or_multiplies(&rank));
}

/// Each rank is a process, which this test starts again as itself.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn another_process_that_writes_rows_and_words_feeds_a_product() {
    const TEST: &str = "symmetric::another_process_that_writes_rows_and_words_feeds_a_product";
    if variable("OVERLAP_GEMM_TEST_RANK").is_some() {
        let group = Group::from_env(&GroupOptions::default().shared_devices(true)).unwrap();
        let device = Device::open(group.rank() as usize % devices().unwrap().len()).unwrap();
        feeds_or_multiplies(&Rank::apart(group, Gpu::of(&device)));
        return;
    }
    let port = OsString::from(free_port().to_string());
    let others = [(PORT_VARIABLE, port.as_os_str()), ("OVERLAP_GEMM_TEST_RANK", OsStr::new("1"))];
    let ranks = [0, 1].map(|rank| start_rank(TEST, rank, 2, &others));
    for (rank, child) in ranks.into_iter().enumerate() {
        let (status, text) = ended(child);
        assert!(status.success(), "rank {rank}: {text}");
    }
}
