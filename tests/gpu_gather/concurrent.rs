//! Operations of one rank on two streams: one after the other, unless they fit the GPU together.

use std::time::Duration;

use crate::gpu::inputs::random_rows;
use crate::gpu::ranks::{Rank, on_ranks, options};
use overlap_gemm::cuda::cudarc::driver::result::{free_host, malloc_host};
use overlap_gemm::cuda::cudarc::driver::sys::cuStreamWaitValue32_v2;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use overlap_gemm::cuda::{AllGatherGemm, Gemm, GemmOptions, RawOperands, Shard};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Engine, Problem, Strategy};
use overlap_gemm::random::Random;

const RANKS: u32 = 2;
const SIZE: u64 = 1024;

/// What stops a stream until it is opened: a word of the host's.
struct Gate(*mut u32);

impl Gate {
    /// What comes next on `stream` waits.
    fn closed(rank: &Rank, stream: &CudaStream) -> Gate {
        rank.gpu.device.context().bind_to_thread().unwrap();
        // SAFETY: freed when this is dropped, as is said there; the word is written before the stream looks at it.
        unsafe {
            let word = malloc_host(size_of::<u32>(), 0).unwrap().cast::<u32>();
            word.write_volatile(0);
            let greater_or_equal = 0;
            cuStreamWaitValue32_v2(stream.cu_stream(), word as u64, 1, greater_or_equal)
                .result()
                .unwrap();
            Gate(word)
        }
    }

    fn open(&self) {
        // SAFETY: it was allocated, and nothing else writes it.
        unsafe { self.0.write_volatile(1) }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
        // SAFETY: this frees what `closed` allocated once the GPU is through with all work, the wait included.
        unsafe { free_host(self.0.cast()) }.unwrap();
    }
}

/// A step of two operations of equal numbers, on two streams, the first of which is stopped.
fn two_steps(rank: &Rank, sm_limit: u32, fit: bool) {
    let device = &rank.gpu.device;
    let gemm = GemmOptions::default().with_sm_limit(sm_limit).with_constant_b(true);
    let problem = Problem::builder(SIZE, SIZE, SIZE).ranks(RANKS.into()).build().unwrap();
    let mut random = Random::new(7);
    let mut matrix = || random_rows::<bf16>(&mut random, SIZE as u32, SIZE as u32, SIZE as u32);
    let [a, b] = [(); 2].map(|()| rank.gpu.upload(&matrix()));
    let blank = || rank.gpu.upload(&vec![bf16::NAN; (SIZE * SIZE) as usize]);
    let [expected, first, second] = [(); 3].map(|()| blank());
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let at = |slice: &CudaSlice<bf16>| slice.device_ptr(&rank.gpu.stream).0;
    let plain = Gemm::plan(device, &problem, &gemm).unwrap();
    // SAFETY: as long as the problem says, and kept until the end of this function, before which the streams are through.
    unsafe {
        plain.enqueue_raw(&rank.gpu.stream, &RawOperands::new(at(&a), at(&b), at(&expected)))
    }
    .unwrap();
    rank.gpu.stream.synchronize().unwrap();
    let copies = options(Engine::CopyEngines { streams: 1 });
    let own = problem.shards().rows(rank.rank()).start;
    let own = at(&a) + u64::from(own) * SIZE * 2;
    let mut layers = [(); 2].map(|()| {
        let strategy = Some(Strategy::Fused);
        AllGatherGemm::plan(&rank.group, device, &problem, strategy, &copies, &gemm).unwrap()
    });
    let gate = Gate::closed(rank, &streams[0]);
    for ((layer, stream), d) in layers.iter_mut().zip(&streams).zip([&first, &second]) {
        let operands = [RawOperands::of_gathered(at(&b), at(d))];
        // SAFETY: as above.
        unsafe { layer.enqueue_raw(stream, Shard::at(own), &operands) }.unwrap();
    }
    if fit {
        layers[1].synchronize(&streams[1]).unwrap();
    } else {
        // Long enough for a step that does not wait.
        let end = streams[1].record_event(None).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!end.is_complete(), "with {sm_limit} SMs the second step waits for the first");
    }
    gate.open();
    for (layer, stream) in layers.iter_mut().zip(&streams) {
        layer.synchronize(stream).unwrap();
    }
    let expected = rank.gpu.download(&expected);
    assert!(expected.iter().all(|value| !value.is_nan()));
    for d in [first, second] {
        assert!(rank.gpu.download(&d) == expected);
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn operations_on_two_streams_fit_the_gpu_or_have_an_order() {
    on_ranks(RANKS, |rank| {
        let half = rank.gpu.device.info().sm_count / 2;
        two_steps(&rank, rank.sms.min(half - 2), true);
        two_steps(&rank, half + 2, false);
    });
}
