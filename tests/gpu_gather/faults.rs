//! All-gather + GEMM when a rank dies, is late, does something else, or is stopped: with real processes on
//! real GPUs.
//!
//! What belongs here: what each rank is told, how soon, and that life goes on. Each test starts this binary
//! again as ranks that play a scene (`a_rank`): good steps, the fault, and then good steps of a new group
//! of those that are left, on the same contexts. Invariant: no rank outlives its limit by more than a tenth
//! and the second that forming groups may take; what is called right is right.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::gpu::Gpu;
use crate::gpu::call::{Call, call};
use crate::gpu::case::Case;
use crate::gpu::tried_kernels;
use crate::port::free_port;
use overlap_gemm::cuda::{AllGatherGemm, Device, GatherOptions, RawOperands, Shard, devices};
use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
use overlap_gemm::plan::{Problem, Strategy};
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};

const SECRET: &str = "a secret of these tests";
const M: u64 = 512;
/// For forming groups and first steps, with several contexts on one GPU perhaps.
const LONG: Duration = Duration::from_secs(60);
/// How a rank ends that has lost its context.
const LOST: i32 = 77;
/// What the fault scenes wait for a chunk.
const LIMIT: Duration = Duration::from_secs(1);

/// One rank in one group: its operation, and the numbers of its steps.
struct Player {
    group: Arc<Group>,
    gpu: Gpu,
    problem: Problem,
    call: Box<dyn Call>,
    layer: AllGatherGemm,
    random: Random,
}

impl Player {
    fn join(group: Group, gpu: Gpu, limit: Duration) -> Player {
        let ranks = group.ranks();
        let kernel = tried_kernels().into_iter().find(|kernel| !kernel.transposed).unwrap();
        let mut case = Case::new(kernel, M, 256, 512);
        // Ranks may share a GPU, by turns.
        case.options.sm_limit = Some(64);
        let mut random = Random::new(u64::from(ranks));
        let problem = case.sharded(&rows(ranks));
        let call = call(&gpu, &case, &mut random);
        let group = Arc::new(group);
        let options = GatherOptions::default().with_timeouts(LONG, limit).with_poison(true);
        let layer = AllGatherGemm::plan(
            &group,
            &gpu.device,
            &problem,
            Some(Strategy::Fused),
            &options,
            &case.options,
        )
        .unwrap();
        Player { group, gpu, problem, call, layer, random }
    }

    /// New numbers: this rank's rows of A, and the operands of a step.
    fn renew(&mut self) -> (Shard<'static>, RawOperands) {
        let stream = &self.gpu.stream;
        self.call.renew_a(&mut self.random);
        self.call.copy_rows(0..M as u32, stream);
        self.call.poison_d(stream);
        let mut operands = self.call.addresses(stream);
        let first = self.problem.shards().rows(self.group.rank()).start;
        let row = u64::from(self.problem.lda()) * u64::from(self.problem.elements().a.size());
        let shard = Shard::at(operands.a + u64::from(first) * row);
        operands.a = 0;
        (shard, operands)
    }

    /// A step that is not awaited.
    fn enqueue(&mut self, shard: Shard<'_>, operands: RawOperands) -> Result<()> {
        // SAFETY: the call's own memory, which stays until the stream has been awaited; what is not, is what the
        // scene is about.
        unsafe { self.layer.enqueue(&self.gpu.stream, shard, &[operands]) }
    }

    fn step(&mut self) -> Result<()> {
        let (shard, operands) = self.renew();
        self.enqueue(shard, operands)?;
        self.layer.synchronize(&self.gpu.stream)
    }

    /// A step in which all goes well, and whose result is right.
    fn good_step(&mut self) {
        self.step().unwrap();
        self.check();
    }

    fn check(&mut self) {
        self.call.fetch(&self.gpu.stream);
        let rows: Vec<u32> = (0..M as u32).step_by(37).collect();
        let report = self.call.report(&rows);
        assert_eq!(report.wrong, 0, "{report:?}");
    }
}

/// Unequal rows for so many ranks.
fn rows(ranks: u32) -> Vec<u32> {
    let mut rows = vec![M as u32 / ranks; ranks as usize];
    rows[0] += M as u32 - rows.iter().sum::<u32>();
    rows
}

fn number(name: &str) -> u32 {
    std::env::var(name).unwrap().parse().unwrap()
}

/// A rank of a scene, if the environment says which; started by the tests below.
#[test]
#[ignore = "is started by the other tests"]
fn a_rank() {
    let Ok(scene) = std::env::var("OVERLAP_GEMM_TEST_SCENE") else { return };
    let second_port = number("OVERLAP_GEMM_TEST_SECOND_PORT") as u16;
    let (rank, ranks) = (number("RANK"), number("WORLD_SIZE"));
    let device = Device::open(rank as usize % devices().unwrap().len()).unwrap();
    let gpu = Gpu::of(&device);
    let group = Group::from_env(&GroupOptions::default()).unwrap();
    // Who is told of a departure does not wait for the limit.
    let is_long = scene == "patient" || scene.starts_with("leaves");
    let limit = if is_long { Duration::from_secs(10) } else { LIMIT };
    let mut player = Player::join(group, gpu.clone(), limit);
    (0..3).for_each(|_| player.good_step());
    player.group.barrier("the fault", LONG).unwrap();

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
    player.group.barrier("the end", LONG).unwrap();
    println!("rank {rank}: again");
}

fn die() -> ! {
    let kill = format!("kill -9 {}", std::process::id());
    let _ = Command::new("sh").args(["-c", &kill]).status();
    sleep(LONG);
    unreachable!("killed");
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
                [&[M as u32 - 8][..], &vec![0; player.group.ranks() as usize - 2], &[8]].concat();
            let (shard, operands) = player.renew();
            player.enqueue(shard.rows(&rows), operands)?;
            player.layer.synchronize(&player.gpu.stream)
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
            let told = begun.and_then(|()| player.layer.synchronize(&player.gpu.stream));
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
            let group = Arc::clone(&player.group);
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
    let (port, second) = (free_port(), free_port());
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::a_rank", "--nocapture", "--ignored"])
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("OVERLAP_GEMM_PORT", port.to_string())
            .env("OVERLAP_GEMM_SECRET", SECRET)
            .env("OVERLAP_GEMM_TEST_SCENE", scene)
            .env("OVERLAP_GEMM_TEST_SECOND_PORT", second.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let mut told = Vec::new();
    for (rank, child) in (0..).zip(children) {
        let output = child.wait_with_output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if rank == ranks - 1 && (scene.starts_with("killed") || scene == "lost context") {
            let code = (scene == "lost context").then_some(LOST);
            assert_eq!(output.status.code(), code, "it ended otherwise: {text}");
            continue;
        }
        assert!(output.status.success(), "rank {rank}: {text}");
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

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_killed_before_a_step_is_noticed() {
    for (what, after) in stage("killed before") {
        assert!(what.contains("PeerLost") && after < MOST, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_killed_during_a_step_is_noticed() {
    for (what, after) in stage("killed during") {
        assert!(what.contains("PeerLost") && after < MOST, "{what} after {after} ms");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn a_rank_killed_after_a_step_is_noticed_and_the_step_is_right() {
    for (what, after) in stage("killed after") {
        assert!(what.contains("PeerLost") && after < 900 + MOST, "{what} after {after} ms");
    }
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
    for (what, after) in stage("other rows") {
        assert!(what.contains("Mismatch") || what.contains("Aborted"), "{what}");
        assert!(after < MOST, "{what} after {after} ms");
    }
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
fn a_lost_context_on_one_rank_is_told_to_all() {
    for (what, after) in stage("lost context") {
        assert!(what.contains("Aborted") || what.contains("PeerLost"), "{what}");
        // The step that learns of it begins after 600 ms.
        assert!(after < 600 + MOST, "{what} after {after} ms");
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

/// The errors that the scenes look for are those of this crate.
#[test]
fn errors_print_their_kind() {
    let error = Error::PeerLost { rank: 0, peer: 1, before: "a step".into() };
    assert!(format!("{:?}", Err::<(), _>(error)).contains("PeerLost"));
}
