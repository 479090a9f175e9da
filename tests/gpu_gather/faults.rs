//! All-gather + GEMM when a rank dies, is late, does something else, or is stopped: with real processes on
//! real GPUs.
//!
//! What belongs here: what each rank is told, how soon, and that life goes on. Each test starts this binary
//! again as ranks that play a scene (`a_rank`): good steps, the fault, and then good steps of a new group
//! of those that are left, on the same contexts. Invariant: no rank outlives its limit by more than a tenth
//! and the second that forming groups may take; what is called right is right.

use std::process::Child;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::all_gather_gemm::Work;
use crate::gpu::case::Case;
use crate::gpu::ranks::Rank;
use crate::gpu::{Gpu, one_kernel};
use crate::processes::{SECRET, die, ended, free_port, start_rank, variable};
use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions, Device, RawOperands, Shard, devices};
use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};

const M: u64 = 512;
/// For forming groups and first steps, with several contexts on one GPU perhaps.
const LONG: Duration = Duration::from_secs(60);
/// How a rank ends that has lost its context.
const LOST: i32 = 77;
/// What the fault scenes wait for a chunk.
const LIMIT: Duration = Duration::from_secs(1);

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

    fn step(&mut self) -> Result<()> {
        let (shard, operands) = self.renew();
        self.enqueue(shard, operands)?;
        self.layer.synchronize(&self.rank.gpu.stream)
    }

    /// A step in which all goes well, and whose result is right.
    fn good_step(&mut self) {
        self.step().unwrap();
        self.check();
    }

    fn check(&mut self) {
        assert!(self.work.is_right(&self.rank, &mut Random::new(5)), "wrong rows");
    }
}

/// Unequal rows for so many ranks.
fn rows(ranks: u32) -> Vec<u32> {
    let mut rows = vec![M as u32 / ranks; ranks as usize];
    rows[0] += M as u32 - rows.iter().sum::<u32>();
    rows
}

/// A rank of a scene, if the environment says which; started by the tests below.
#[test]
#[ignore = "is started by the other tests"]
fn a_rank() {
    let Ok(scene) = std::env::var("OVERLAP_GEMM_TEST_SCENE") else { return };
    let second_port = variable("OVERLAP_GEMM_TEST_SECOND_PORT").unwrap() as u16;
    let (rank, ranks) = (variable("RANK").unwrap(), variable("WORLD_SIZE").unwrap());
    let device = Device::open(rank as usize % devices().unwrap().len()).unwrap();
    let gpu = Gpu::of(&device);
    let group = Group::from_env(&GroupOptions::default().shared_devices(true)).unwrap();
    // Who is told of a departure does not wait for the limit.
    let is_long = scene == "patient" || scene.starts_with("leaves");
    let limit = if is_long { Duration::from_secs(10) } else { LIMIT };
    let mut player = Player::join(group, gpu.clone(), limit);
    (0..3).for_each(|_| player.good_step());
    player.rank.group.barrier("the fault", LONG).unwrap();

    let last = ranks - 1;
    let begin = Instant::now();
    let result = play(&scene, &mut player, rank == last);
    // On contexts that are shared by turns, a step takes its time.
    println!("rank {rank}: {:?} after {} ms", result, begin.elapsed().as_millis());
    let leaves = scene.starts_with("killed") || scene == "lost context";
    drop(player);

    // Those that are left form a new group, on the same contexts.
    let left = if leaves { ranks - 1 } else { ranks };
    let (launch, secret) = (Launch::at(rank, left, "127.0.0.1", second_port), Secret::of(SECRET));
    let group =
        Group::meet(&launch, &secret, &GroupOptions::default().shared_devices(true)).unwrap();
    let mut player = Player::join(group, gpu, LONG);
    (0..3).for_each(|_| player.good_step());
    player.rank.group.barrier("the end", LONG).unwrap();
    println!("rank {rank}: again");
}

/// What happens, and what this rank is told. `odd`: this is the rank that does otherwise.
fn play(scene: &str, player: &mut Player, odd: bool) -> Result<()> {
    let pause = Duration::from_millis(300);
    match (scene, odd) {
        ("killed before", true) => die(),
        ("killed before", false) => {
            sleep(pause);
            player.step()
        }
        ("killed during", true) => {
            sleep(pause);
            die()
        }
        ("killed after", true) => {
            player.good_step();
            sleep(pause);
            die()
        }
        ("killed after", false) => {
            player.good_step();
            sleep(3 * pause);
            player.step()
        }
        ("leaves during", true) => {
            sleep(pause);
            Ok(())
        }
        ("leaves after", true) => player.step().inspect(|()| player.check()),
        ("leaves after", false) => {
            // All that it needs of the rank that leaves is there.
            player.good_step();
            player.step()
        }
        ("late" | "patient", true) => {
            sleep(Duration::from_secs(2));
            player.step().inspect(|()| player.check())
        }
        ("patient", false) => player.step().inspect(|()| player.check()),
        ("other rows", true) => {
            let rows =
                [&[M as u32 - 8][..], &vec![0; player.rank.group.ranks() as usize - 2], &[8]]
                    .concat();
            let (shard, operands) = player.renew();
            player.enqueue(shard.rows(&rows), operands)?;
            player.layer.synchronize(&player.rank.gpu.stream)
        }
        ("driver error", true) => {
            sleep(pause);
            // No memory is there: the driver refuses the copy.
            let (_, operands) = player.renew();
            player.enqueue(Shard::at(64), operands)
        }
        ("lost context", true) => {
            sleep(pause);
            // D is where no memory is: the product faults, and the context is lost with it.
            let (shard, mut operands) = player.renew();
            operands.d = 1 << 12;
            let begun = player.enqueue(shard, operands);
            let told = begun.and_then(|()| player.layer.synchronize(&player.rank.gpu.stream));
            assert!(matches!(told, Err(Error::Cuda { .. })), "{told:?}");
            std::process::exit(LOST);
        }
        ("lost context", false) => {
            // The other's rows still come; then it is told.
            let first = player.step().inspect(|()| player.check());
            sleep(2 * pause);
            first.and_then(|()| player.step())
        }
        ("stopped", true) => {
            sleep(pause);
            let group = Arc::clone(&player.rank.group);
            std::thread::spawn(move || group.abort("a person wants it")).join().unwrap();
            player.step()
        }
        // The others wait for what does not come.
        _ => player.step(),
    }
}

/// Plays a scene; returns what each rank was told, and after how many milliseconds, but the dead ones.
fn stage(scene: &str) -> Vec<(String, u64)> {
    let ranks = (devices().unwrap().len() as u32).clamp(2, 4);
    let [port, second] = [free_port(), free_port()].map(|port| port.to_string());
    let others = [
        ("OVERLAP_GEMM_PORT", port.as_ref()),
        ("OVERLAP_GEMM_TEST_SCENE", scene.as_ref()),
        ("OVERLAP_GEMM_TEST_SECOND_PORT", second.as_ref()),
    ];
    let start = |rank| start_rank("faults::a_rank", rank, ranks, &others);
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let mut told = Vec::new();
    for (rank, child) in (0..).zip(children) {
        let (status, text) = ended(child);
        if rank == ranks - 1 && (scene.starts_with("killed") || scene == "lost context") {
            let code = (scene == "lost context").then_some(LOST);
            assert_eq!(status.code(), code, "it ended otherwise: {text}");
            continue;
        }
        assert!(status.success(), "rank {rank}: {text}");
        assert!(text.contains(&format!("rank {rank}: again")), "rank {rank}: {text}");
        let mark = format!("rank {rank}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&mark)).unwrap().to_owned();
        println!("{scene}, rank {rank}: {line}");
        let (what, after) = line.rsplit_once(" after ").unwrap();
        told.push((what.to_owned(), after.trim_end_matches(" ms").parse().unwrap()));
    }
    told
}

/// The most milliseconds until a rank is told, from the limit on.
const MOST: u64 = LIMIT.as_millis() as u64 * 11 / 10;

/// Every rank is told one of these in time.
fn all_are_told(scene: &str, kinds: &[&str], most: u64) {
    for (what, after) in stage(scene) {
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
    let (left, _) = told.pop().unwrap();
    assert_eq!(left, "Ok(())");
    let who = format!("peer: {}", told.len());
    for (what, after) in &told {
        let is_first = what.contains("PeerLost") && what.contains(&who);
        assert!(is_first || what.contains("Aborted"), "{what}");
        assert!(*after < 900 + MOST, "{what} after {after} ms");
    }
    assert!(told.iter().any(|(what, _)| what.contains("PeerLost")), "{told:?}");
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
    for (what, after) in stage("patient") {
        assert!(what == "Ok(())" && after >= 1900, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_that_is_too_late_is_named() {
    let mut told = stage("late");
    // It hears that the others did not wait.
    let (late, _) = told.pop().unwrap();
    assert!(late.contains("Aborted") || late.contains("PeerTimeout"), "{late}");
    for (what, after) in &told {
        assert!((1000..MOST).contains(after), "{what} after {after} ms");
        assert!(what.contains("PeerTimeout") || what.contains("Aborted"), "{what}");
    }
    assert!(told.iter().any(|(what, _)| what.contains("PeerTimeout")), "{told:?}");
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
    assert!(told[told.len() - 1].0.contains("Cuda {"), "{told:?}");
    for (what, after) in &told[..told.len() - 1] {
        assert!(what.contains("Aborted") && what.contains("cuMemcpy"), "{what}");
        assert!(*after < MOST, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_person_can_stop_it() {
    for (what, after) in stage("stopped") {
        assert!(what.contains("Aborted") && what.contains("a person wants it"), "{what}");
        assert!(after < MOST, "{what} after {after} ms");
    }
}
