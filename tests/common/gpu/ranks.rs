//! Ranks as threads, each on a GPU: several on one where there are fewer GPUs than ranks.
//!
//! Invariant: ranks that share a GPU never wait for SMs that another's waiting product holds: each has a
//! share of them, and of the places for blocks that push; nor does one free memory while others are at work
//! ([`Rank::through`]). A rank that fails ends its group, so that no other waits for it.

use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::cuda::{Device, devices};
use overlap_gemm::group::Group;

use super::Gpu;

/// One rank: its place in the group, its GPU, how many SMs its products may take, and how many blocks may push its rows.
pub struct Rank {
    pub group: Arc<Group>,
    pub gpu: Gpu,
    pub sms: u32,
    pub pushing_blocks: u32,
}

/// How long the others may take to end, which have limits of their own.
const THROUGH: Duration = Duration::from_secs(60);
/// SMs that are left for the small kernels that begin steps and push rows, and how many blocks of such kernels all ranks of
/// a GPU may have for each of them: blocks run one after the other, but the first of every rank has to find a place.
const LEFT: u32 = 16;
const BLOCKS_AN_SM: u32 = 4;

impl Rank {
    pub fn rank(&self) -> u32 {
        self.group.rank()
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
                    let sms = (device.info().sm_count - LEFT) / share / 2 * 2;
                    let pushing_blocks = LEFT * BLOCKS_AN_SM / share;
                    each(Rank { group: Arc::new(group), gpu, sms, pushing_blocks })
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
