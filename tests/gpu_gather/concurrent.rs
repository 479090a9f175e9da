//! Operations of one rank on several streams, of one group or of several: one after the other, unless they fit the GPU together.

use std::sync::Arc;
use std::time::Duration;

use crate::gpu::inputs::random_rows;
use crate::gpu::one_kernel;
use crate::gpu::ranks::{Rank, on_gpus, on_ranks, options};
use overlap_gemm::cuda::cudarc::driver::result::{free_host, malloc_host};
use overlap_gemm::cuda::cudarc::driver::sys::cuStreamWaitValue32_v2;
use overlap_gemm::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use overlap_gemm::cuda::{AllGatherGemm, Gemm, GemmOptions, RawOperands, Shard};
use overlap_gemm::element::bf16;
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::plan::{Engine, Problem, Strategy};
use overlap_gemm::random::Random;

const RANKS: u32 = 2;
/// So many tiles that limits, not tiles, say how many SMs a product keeps.
const SIZE: u64 = 3072;
/// Those that push a rank's rows. A step keeps as many SMs more.
const BLOCKS: u32 = 8;

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

/// A step each of operations of equal numbers with these limits, each on a stream, and in its place of `groups`. The first stream is
/// stopped: the others wait for it unless they `fit`.
fn steps(rank: &Rank, groups: &[Arc<Group>], limits: &[u32], fit: bool) {
    let device = &rank.gpu.device;
    let options_of = |limit| GemmOptions::default().with_sm_limit(limit).with_constant_b(true);
    // The same for all, whose results are compared bit for bit.
    let kernel = one_kernel().name.as_str();
    let gemm = |limit: u32| options_of(limit).with_kernel(kernel).with_splits(1);
    let problem = Problem::builder(SIZE, SIZE, SIZE).ranks(RANKS.into()).build().unwrap();
    let mut random = Random::new(7);
    let mut matrix = || random_rows::<bf16>(&mut random, SIZE as u32, SIZE as u32, SIZE as u32);
    let [a, b] = [(); 2].map(|()| rank.gpu.upload(&matrix()));
    let blank = || rank.gpu.upload(&vec![bf16::NAN; (SIZE * SIZE) as usize]);
    let expected = blank();
    let outputs: Vec<_> = limits.iter().map(|_| blank()).collect();
    let streams: Vec<_> = limits.iter().map(|_| device.new_stream().unwrap()).collect();
    let at = |slice: &CudaSlice<bf16>| slice.device_ptr(&rank.gpu.stream).0;
    let plain = Gemm::plan(device, &problem, &gemm(limits[0])).unwrap();
    // SAFETY: as long as the problem says, and kept until the end of this function, before which the streams are through.
    unsafe {
        plain.enqueue_raw(&rank.gpu.stream, &RawOperands::new(at(&a), at(&b), at(&expected)))
    }
    .unwrap();
    rank.gpu.stream.synchronize().unwrap();
    // Not by copies: from rank to rank on one GPU these need SMs, and waiting products may have taken all.
    let pushed = options(Engine::Kernel { blocks: BLOCKS }).with_strategy(Strategy::Fused);
    let own = problem.shards().rows(rank.rank()).start;
    let own = at(&a) + u64::from(own) * SIZE * 2;
    let plan = |(limit, group): (&u32, &Arc<Group>)| {
        AllGatherGemm::plan(group, device, &problem, &pushed, &gemm(*limit)).unwrap()
    };
    let mut layers: Vec<_> = limits.iter().zip(groups.iter().cycle()).map(plan).collect();
    let gate = Gate::closed(rank, &streams[0]);
    for ((layer, stream), d) in layers.iter_mut().zip(&streams).zip(&outputs) {
        let operands = [RawOperands::of_gathered(at(&b), at(d))];
        // SAFETY: as above.
        unsafe { layer.enqueue_raw(stream, Shard::at(own), &operands) }.unwrap();
    }
    if fit {
        for (layer, stream) in layers.iter_mut().zip(&streams).skip(1) {
            layer.synchronize(stream).unwrap();
        }
    } else {
        let end = |stream: &Arc<CudaStream>| stream.record_event(None).unwrap();
        let ends: Vec<_> = streams[1..].iter().map(end).collect();
        // Long enough for a step that does not wait.
        std::thread::sleep(Duration::from_millis(100));
        let waits = ends.iter().all(|end| !end.is_complete());
        assert!(waits, "with {limits:?} SMs all steps wait for the first");
    }
    gate.open();
    for (layer, stream) in layers.iter_mut().zip(&streams) {
        let ended = layer.synchronize(stream);
        assert!(ended.is_ok(), "with {limits:?} SMs: {ended:?}");
    }
    let expected = rank.gpu.download(&expected);
    assert!(expected.iter().all(|value| !value.is_nan()));
    for d in &outputs {
        assert!(rank.gpu.download(d) == expected);
    }
}

fn on_streams(limits: impl Fn(&Rank) -> Vec<u32> + Sync, fit: bool) {
    on_ranks(RANKS, |rank| steps(&rank, &[Arc::clone(&rank.group)], &limits(&rank), fit));
}

fn all_sms(rank: &Rank) -> u32 {
    rank.gpu.device.info().sm_count
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_that_fit_the_gpu_run_at_a_time() {
    on_streams(|rank| vec![rank.sms.min(all_sms(rank) / 2 - BLOCKS); 2], true);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_that_do_not_fit_follow_each_other() {
    on_streams(|rank| vec![all_sms(rank) / 2 + 2; 2], false);
}

/// Both ranks' second and third run at a time, perhaps on one GPU.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_step_beside_one_that_follows_follows_too() {
    on_streams(
        |rank| {
            let few = all_sms(rank) / 4 - 1;
            vec![all_sms(rank) - few + 1, few, few]
        },
        false,
    );
}

/// Each rank has a GPU in both groups, which know nothing of each other.
#[test]
#[ignore = "needs 2 Hopper GPUs"]
fn steps_of_two_groups_follow_each_other() {
    on_gpus(RANKS, |rank| {
        let part = || Arc::new(rank.group.split(0, &GroupOptions::default()).unwrap());
        steps(&rank, &[part(), part()], &[all_sms(&rank) / 2 + 2; 2], false);
    });
}
