//! All-gather + GEMM when a rank dies, is late, does something else, or is stopped: with real processes on
//! real GPUs.
//!
//! What belongs here: what each rank is told, how soon, and that life goes on. Each test starts this binary
//! again as ranks that play a scene (`tests/common/scenes.rs`). Invariant: no rank outlives its limit by more than a tenth
//! and the second that forming groups may take; what is called right is right.

use std::time::Duration;

use crate::all_gather_gemm::Work;
use crate::gpu::case::Case;
use crate::gpu::ranks::Rank;
use crate::gpu::{Gpu, one_kernel};
use crate::scenes::{LONG, LOST, MOST, PAUSE, Told, act, stage as play};
use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions, RawOperands, Shard, devices};
use overlap_gemm::group::Group;
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};

const M: u64 = 512;

/// One rank in one group: its operation, and the numbers of its steps.
struct Player {
    rank: Rank,
    work: Work,
    layer: AllGatherGemm,
    random: Random,
}

impl Player {
    fn join(group: Group, gpu: Gpu, limit: Duration) -> Player {
        let rank = Rank::apart(group, gpu);
        let case = Case::new(one_kernel(), M, 256, 512);
        let case = case.with(|options| options.with_sm_limit(rank.sms));
        let mut random = Random::new(u64::from(rank.group.ranks()));
        let work = Work::new(&rank, &case, &rows(rank.group.ranks()), &mut random);
        let options = CollectiveOptions::default().with_timeouts(LONG, limit).with_poison(true);
        let layer = work.fused(&rank, &options);
        Player { rank, work, layer, random }
    }

    /// New numbers: this rank's rows of A, and the operands of a step.
    fn renew(&mut self) -> (Shard<'static>, RawOperands) {
        self.work.renew(&self.rank, &mut self.random);
        (self.work.shard(&self.rank, None), self.work.operands(&self.rank))
    }

    /// A step that is not awaited.
    fn enqueue(&mut self, shard: Shard<'_>, operands: RawOperands) -> Result<()> {
        // SAFETY: the call's own memory, which stays until the stream has been awaited; what is not, is what the
        // scene is about.
        unsafe { self.layer.enqueue_raw(&self.rank.gpu.stream, shard, &[operands]) }
    }
}

impl crate::scenes::Player for Player {
    fn rank(&self) -> &Rank {
        &self.rank
    }

    fn step(&mut self) -> Result<()> {
        let (shard, operands) = self.renew();
        self.enqueue(shard, operands)?;
        self.layer.synchronize(&self.rank.gpu.stream)
    }

    fn check(&mut self) {
        assert!(self.work.is_right(&self.rank, &mut Random::new(5)), "wrong rows");
    }

    fn odd(&mut self, scene: &str) -> Result<()> {
        if scene != "other rows" {
            std::thread::sleep(PAUSE);
        }
        let (shard, mut operands) = self.renew();
        match scene {
            "other rows" => {
                let others = vec![0; self.rank.group.ranks() as usize - 2];
                let rows = [&[M as u32 - 8][..], &others, &[8]].concat();
                self.enqueue(shard.rows(&rows), operands)?;
                self.layer.synchronize(&self.rank.gpu.stream)
            }
            // No memory is there: the driver refuses the copy.
            "driver error" => self.enqueue(Shard::at(64), operands),
            "lost context" => {
                // D is where no memory is: the product faults, and the context is lost with it.
                operands.d = 1 << 12;
                let begun = self.enqueue(shard, operands);
                let told = begun.and_then(|()| self.layer.synchronize(&self.rank.gpu.stream));
                assert!(matches!(told, Err(Error::Cuda { .. })), "{told:?}");
                std::process::exit(LOST);
            }
            _ => unreachable!("no scene is called '{scene}'"),
        }
    }
}

/// Unequal rows for so many ranks.
fn rows(ranks: u32) -> Vec<u32> {
    let mut rows = vec![M as u32 / ranks; ranks as usize];
    rows[0] += M as u32 - rows.iter().sum::<u32>();
    rows
}

/// Started by the tests below.
#[test]
#[ignore = "is started by the other tests"]
fn a_rank() {
    act(Player::join);
}

fn stage(scene: &str) -> Vec<Told> {
    let ranks = (devices().unwrap().len() as u32).clamp(2, 4);
    play("faults::a_rank", ranks, &[], scene)
}

/// Every rank is told one of these in time.
fn all_are_told(scene: &str, kinds: &[&str], most: u64) {
    for Told { what, after, .. } in stage(scene) {
        let is_told = kinds.iter().any(|kind| what.contains(kind));
        assert!(is_told && after < most, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_is_killed_or_loses_its_context_is_noticed() {
    all_are_told("killed before", &["PeerLost"], MOST);
    all_are_told("killed during", &["PeerLost"], MOST);
    all_are_told("killed after", &["PeerLost"], 900 + MOST);
    // The step that learns of it begins after 600 ms.
    all_are_told("lost context", &["Aborted", "PeerLost"], 600 + MOST);
}

/// The last rank leaves; the others hear of it at once, and of whom.
fn check_departure(scene: &str) {
    let mut told = stage(scene);
    let left = told.pop().unwrap();
    assert_eq!(left.what, "Ok(())");
    let who = format!("peer: {}", told.len());
    for Told { what, after, .. } in &told {
        let is_first = what.contains("PeerLost") && what.contains(&who);
        assert!(is_first || what.contains("Aborted"), "{what}");
        assert!(*after < 900 + MOST, "{what} after {after} ms");
    }
    assert!(told.iter().any(|told| told.what.contains("PeerLost")), "{told:?}");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_leaves_during_a_step_is_noticed_at_once() {
    check_departure("leaves during");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_leaves_after_a_step_spoils_the_next_one_alone() {
    check_departure("leaves after");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_late_rank_is_waited_for_within_the_limit() {
    for Told { what, after, .. } in stage("patient") {
        assert!(what == "Ok(())" && after >= 1900, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_is_too_late_is_named() {
    let mut told = stage("late");
    // It hears that the others did not wait.
    let late = told.pop().unwrap().what;
    assert!(late.contains("Aborted") || late.contains("PeerTimeout"), "{late}");
    for Told { what, after, .. } in &told {
        assert!((1000..MOST).contains(after), "{what} after {after} ms");
        assert!(what.contains("PeerTimeout") || what.contains("Aborted"), "{what}");
    }
    assert!(told.iter().any(|told| told.what.contains("PeerTimeout")), "{told:?}");
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ranks_with_other_rows_are_refused() {
    all_are_told("other rows", &["Mismatch", "Aborted"], MOST);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_driver_error_on_one_rank_is_told_to_all() {
    let told = stage("driver error");
    assert!(told[told.len() - 1].what.contains("Cuda {"), "{told:?}");
    for Told { what, after, .. } in &told[..told.len() - 1] {
        assert!(what.contains("Aborted") && what.contains("cuMemcpy"), "{what}");
        assert!(*after < MOST, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_person_can_stop_it() {
    for Told { what, after, .. } in stage("aborted") {
        assert!(what.contains("Aborted") && what.contains("a person wants it"), "{what}");
        assert!(after < MOST, "{what} after {after} ms");
    }
}
