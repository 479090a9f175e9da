//! Ranks as threads, each on a GPU: several on one where there are fewer GPUs than ranks.
//!
//! Invariant: ranks that share a GPU never wait for SMs that another's waiting product or push holds: all of them together
//! find their places, wherever the hardware puts blocks; nor for a queue of the GPU that another's waiting stream holds up;
//! nor does one free memory while others are at work ([`Rank::through`]). A rank that fails ends its group, so that no other
//! waits for it.

use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::cuda::{CollectiveOptions, Device, devices};
use overlap_gemm::group::Group;
use overlap_gemm::kernels::Kernel;
use overlap_gemm::plan::{Engine, Problem, Strategy};

use super::{Gpu, PATIENCE};

/// One rank: its place in the group, its GPU, how many SMs its products may take, and how many blocks may push its rows.
pub struct Rank {
    pub group: Arc<Group>,
    pub gpu: Gpu,
    pub sms: u32,
    pub pushing_blocks: u32,
    copy_streams: u32,
}

/// A gather or a reduction whose past rows are NaN, and that fails before anybody gives the test up.
pub fn options(engine: Engine) -> CollectiveOptions {
    let options = CollectiveOptions::default().with_engine(engine).with_poison(true);
    options.with_timeouts(PATIENCE, PATIENCE)
}

/// How long the others may take to end, which have limits of their own.
const THROUGH: Duration = Duration::from_secs(60);

/// What each of `ranks` on a GPU may occupy: the SMs of its products, and blocks that push.
///
/// Together they have to find their places, for a product that does not fit holds up the next rank's push, for which the
/// others wait. The hardware spreads blocks, so each pair that pushes may take a pair of SMs from clusters; and clusters of
/// more than two need free SMs of one GPC. A rank alone waits for nobody on its GPU: there a push ends without its product.
fn share_of(sms: u32, ranks: u32) -> (u32, u32) {
    let pairs = sms / 2 / ranks;
    match ranks {
        1 => (sms - 16, 64),
        _ => (pairs * 7 / 8 / 2 * 2, (pairs / 4 * 2).max(1)),
    }
}

/// The streams of copies that each of `ranks` on a GPU may have, beside the one of its products.
///
/// A GPU has 32 queues at most (`CUDA_DEVICE_MAX_CONNECTIONS`). Of two streams in one queue, one waits for what the other
/// waits for; some queues are left for streams of the driver and of the test.
fn copy_streams_of(ranks: u32) -> u32 {
    (28 / ranks).max(2) - 1
}

impl Rank {
    /// A rank that is a process: others may share the GPU, by turns.
    pub fn apart(group: Group, gpu: Gpu) -> Rank {
        Rank { group: Arc::new(group), gpu, sms: 64, pushing_blocks: 64, copy_streams: 1 }
    }

    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// The same rank with another stream.
    pub fn with_new_stream(&self) -> Rank {
        let (group, gpu) = (Arc::clone(&self.group), Gpu::of(&self.gpu.device));
        Rank { group, gpu, ..*self }
    }

    /// The SMs that a product of this kernel may take: whole clusters, at least one.
    pub fn sms_for(&self, kernel: &Kernel) -> u32 {
        let size = kernel.cluster_size();
        (self.sms / size).max(1) * size
    }

    /// `options` with no more blocks that push than find a place, which they hold until all ranks push, and no more streams
    /// than have a queue each.
    pub fn that_fit(&self, options: &CollectiveOptions, problem: &Problem) -> CollectiveOptions {
        let most = self.pushing_blocks;
        match options.engine.unwrap_or(Engine::usual(problem, Strategy::Fused)) {
            // An odd number does not lie in pairs.
            Engine::Kernel { blocks }
                if blocks > most || blocks % 2 * blocks > most.div_ceil(2) =>
            {
                options.clone().with_engine(Engine::Kernel { blocks: most })
            }
            Engine::CopyEngines { streams } if streams > self.copy_streams => {
                options.clone().with_engine(Engine::CopyEngines { streams: self.copy_streams })
            }
            _ => options.clone(),
        }
    }

    /// Waits for all ranks, at the end of what more than two do; what they hold is dropped behind it.
    ///
    /// Freeing memory waits for all work on the GPU, and holds up the driver's other callers meanwhile. Where ranks share a
    /// GPU, one that is through would wait for a product that waits for rows, and hold up the rank that has yet to push them.
    pub fn through(&self) {
        // A rank that failed has said so.
        let _ = self.group.barrier("the end of a test", THROUGH);
    }
}

/// [`on_ranks`], where no two of them may share a GPU; panics if there are fewer.
pub fn on_gpus<T: Send>(ranks: u32, each: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let found = devices().unwrap().len();
    assert!(found >= ranks as usize, "this test needs {ranks} GPUs, and there are {found}");
    on_ranks(ranks, each)
}

/// Runs `each` on so many ranks and returns what they return, in order; panics if any did.
pub fn on_ranks<T: Send>(ranks: u32, each: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let devices = open_all();
    let share = ranks.div_ceil(devices.len() as u32);
    let groups = Group::local(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let device = &devices[group.rank() as usize % devices.len()];
                let each = &each;
                scope.spawn(move || {
                    let gpu = Gpu::of(device);
                    let (sms, pushing_blocks) = share_of(device.info().sm_count, share);
                    let (group, copy_streams) = (Arc::new(group), copy_streams_of(share));
                    each(Rank { group, gpu, sms, pushing_blocks, copy_streams })
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().map(|result| result.expect("a rank failed, as said above")).collect()
    })
}

/// All GPUs there are, without `cudarc`'s own ordering of buffers: tests order by streams.
fn open_all() -> Vec<Device> {
    let count = devices().unwrap().len();
    let open = |number| {
        let device = Device::open(number).unwrap();
        // SAFETY: the tests keep their buffers until their streams are through.
        unsafe { device.context().disable_event_tracking() };
        device
    };
    (0..count).map(open).collect()
}
