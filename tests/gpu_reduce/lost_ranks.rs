//! Reductions when a rank's process is killed or stopped: before a step, in it, and after it.
//!
//! What belongs here: what each rank is told, how soon, and that life goes on; the scenes are `tests/common/scenes.rs`'s. Rows of
//! past steps are NaN, and each step that a rank calls right is compared with `f64`.
//! Invariant: no rank outlives its limit by more than a tenth.

use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::cuda::devices;
use overlap_gemm::group::Group;

use super::work::Step;
use super::world::{Layer, World};
use crate::gpu::Gpu;
use crate::gpu::ranks::Rank;
use crate::processes::variable;
use crate::scenes::{self, LONG, MOST, Told, act};

/// One rank in one group: its operation and its memory, which outlives that.
struct Player {
    layer: Layer,
    work: Box<dyn Step>,
    rank: Rank,
    number: u64,
}

impl Player {
    fn join(all: bool, group: Group, gpu: Gpu, limit: Duration) -> Player {
        let rank = Rank::apart(group, gpu);
        let ranks = rank.group.ranks();
        let world = World::new(&[100, 60, 90, 40][..ranks as usize], 128, 256);
        let world = if all { world.fused() } else { world.by_kernel(4) };
        // Other numbers in each group: memory may hold those of the group before.
        let mut world = World { all, seed: ranks.into(), ..world };
        world.options = world.options.with_timeouts(LONG, limit);
        Player { layer: world.plan(&rank), work: world.work(&rank, 0), rank, number: 0 }
    }
}

impl scenes::Player for Player {
    fn rank(&self) -> &Rank {
        &self.rank
    }

    fn step(&mut self) -> Result<()> {
        self.work.renew(&self.rank, self.number);
        self.number += 1;
        self.work.enqueue(&self.rank, &mut self.layer, None)?;
        self.layer.synchronize(&self.rank.gpu.stream)
    }

    fn check(&mut self) {
        self.work.fetch(&self.rank);
        self.work.check(&self.rank, None);
    }
}

/// Started by the tests below.
#[test]
#[ignore = "is started by the other tests"]
fn a_rank() {
    let all = variable("OVERLAP_GEMM_TEST_ALL") == Some(1);
    act(|group, gpu, limit| Player::join(all, group, gpu, limit));
}

/// Two ranks are left at least. A reduce-scatter by a kernel, which reads the other ranks' memory, or an all-reduce by copies
/// and by products that add up.
fn stage(all: bool, scene: &str) -> Vec<Told> {
    let ranks = (devices().unwrap().len() as u32).clamp(3, 4);
    let all = if all { "1" } else { "0" };
    scenes::stage("lost_ranks::a_rank", ranks, &[("OVERLAP_GEMM_TEST_ALL", all.as_ref())], scene)
}

/// In time, every rank but the last is told what happened to that, or that another one has been told so.
fn check(scene: &str, told: &[Told], kind: &str) {
    let last = format!("peer: {}", told.len());
    // In the middle of a step a rank may wait for another that waits for the stopped one.
    let peer = if scene == "stopped at work" { "peer: " } else { &last };
    let is_named = |told: &Told| told.what.contains(kind) && told.what.contains(peer);
    for one in told {
        assert!(is_named(one) || one.what.contains("Aborted"), "{scene}: {one:?}");
        assert!(one.last_step < MOST, "{scene}: {one:?}");
    }
    assert!(told.iter().any(is_named), "{scene}: {told:?}");
}

fn a_killed_rank_is_named(all: bool) {
    for scene in ["killed before", "killed during", "killed at work", "killed after"] {
        check(scene, &stage(all, scene), "PeerLost");
    }
}

/// The others wait as long as the limit says. The stopped rank goes on when they have ended, and is told, too.
fn a_stopped_rank_is_named(all: bool) {
    for scene in ["stopped before", "stopped at work", "stopped after"] {
        let mut told = stage(all, scene);
        let stopped = told.pop().unwrap();
        assert!(stopped.what.starts_with("Err("), "{scene}: {stopped:?}");
        check(scene, &told, "PeerTimeout");
        let mut timeouts = told.iter().filter(|one| one.what.contains("PeerTimeout"));
        assert!(timeouts.all(|one| one.last_step >= 1000), "{scene}: {told:?}");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_killed_rank_of_a_reduce_scatter_is_named() {
    a_killed_rank_is_named(false);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_killed_rank_of_an_all_reduce_is_named() {
    a_killed_rank_is_named(true);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_stopped_rank_of_a_reduce_scatter_is_named() {
    a_stopped_rank_is_named(false);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_stopped_rank_of_an_all_reduce_is_named() {
    a_stopped_rank_is_named(true);
}
