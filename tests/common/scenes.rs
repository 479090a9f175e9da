//! Scenes that ranks play as processes on GPUs: something happens to the last of them.
//!
//! What belongs here: starting the ranks, what happens, and what each is told; operations are the tests'. A test starts its own
//! binary again as ranks: good steps, the fault, and then good steps of a new group of those that are left, on the same contexts.
//! Invariant: what is called right is right, and a rank that is left has a context that works.

#![allow(dead_code)] // each test file uses its share

use std::ffi::OsStr;
use std::process::Child;
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use overlap_gemm::Result;
use overlap_gemm::cuda::{Device, devices};
use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};

use crate::gpu::Gpu;
use crate::gpu::ranks::Rank;
use crate::processes::{SECRET, die, ended, free_port, signal, start_rank, variable};

/// For forming groups and first steps, with several contexts on one GPU perhaps.
pub const LONG: Duration = Duration::from_secs(60);
/// How a rank ends that has lost its context.
pub const LOST: i32 = 77;
/// What the fault scenes wait for another rank in a step.
const LIMIT: Duration = Duration::from_secs(1);
/// The most milliseconds until a rank is told, from the limit on.
pub const MOST: u64 = LIMIT.as_millis() as u64 * 11 / 10;
/// How long the others are in a step, or have been through it, before something happens.
pub const PAUSE: Duration = Duration::from_millis(300);

/// One rank of one group, and its operation.
pub trait Player {
    fn rank(&self) -> &Rank;
    /// A step with new numbers, awaited.
    fn step(&mut self) -> Result<()>;
    /// Panics unless the last step's result is right.
    fn check(&mut self);
    /// What the last rank does in a scene of this operation's own.
    fn odd(&mut self, scene: &str) -> Result<()> {
        unreachable!("no scene is called '{scene}'")
    }
    /// A step in which all goes well, and whose result is right.
    fn good_step(&mut self) {
        self.step().unwrap();
        self.check();
    }
}

/// What a rank was told, how many milliseconds after the scene's beginning, and how many its last step took.
#[derive(Debug)]
pub struct Told {
    pub what: String,
    pub after: u64,
    pub last_step: u64,
}

/// Whether the last rank has no part in the new group.
fn loses_one(scene: &str) -> bool {
    scene.starts_with("killed") || scene.starts_with("stopped") || scene == "lost context"
}

/// A rank of a scene, if the environment says which: a test of its own, which [`stage`] starts.
pub fn act<P: Player>(join: impl Fn(Group, Gpu, Duration) -> P) {
    let Ok(scene) = std::env::var("OVERLAP_GEMM_TEST_SCENE") else { return };
    let second_port = variable("OVERLAP_GEMM_TEST_SECOND_PORT").unwrap() as u16;
    let (rank, ranks) = (variable("RANK").unwrap(), variable("WORLD_SIZE").unwrap());
    let device = Device::open(rank as usize % devices().unwrap().len()).unwrap();
    let gpu = Gpu::of(&device);
    let group = Group::from_env(&GroupOptions::default().shared_devices(true)).unwrap();
    // Who is told of a departure does not wait for the limit.
    let is_long = scene == "patient" || scene.starts_with("leaves");
    let limit = if is_long { Duration::from_secs(10) } else { LIMIT };
    let mut player = join(group, gpu.clone(), limit);
    (0..3).for_each(|_| player.good_step());
    player.rank().group.barrier("the fault", LONG).unwrap();

    let is_last = rank == ranks - 1;
    let begin = Instant::now();
    let mut timed = Timed { player, took: Duration::ZERO };
    let result = play(&scene, &mut timed, is_last);
    let [after, step] = [begin.elapsed(), timed.took].map(|time| time.as_millis());
    println!("rank {rank}: {result:?} after {after} ms, its last step {step}");
    drop(timed);
    if is_last && loses_one(&scene) {
        return;
    }

    // Those that are left form a new group, on the same contexts.
    let left = if loses_one(&scene) { ranks - 1 } else { ranks };
    let (launch, secret) = (Launch::at(rank, left, "127.0.0.1", second_port), Secret::of(SECRET));
    let group =
        Group::meet(&launch, &secret, &GroupOptions::default().shared_devices(true)).unwrap();
    let mut player = join(group, gpu, LONG);
    (0..3).for_each(|_| player.good_step());
    player.rank().group.barrier("the end", LONG).unwrap();
    println!("rank {rank}: again");
}

/// A player, and how long its last step took.
struct Timed<P> {
    player: P,
    took: Duration,
}

impl<P: Player> Player for Timed<P> {
    fn rank(&self) -> &Rank {
        self.player.rank()
    }

    fn step(&mut self) -> Result<()> {
        let begin = Instant::now();
        let result = self.player.step();
        self.took = begin.elapsed();
        result
    }

    fn check(&mut self) {
        self.player.check();
    }

    fn odd(&mut self, scene: &str) -> Result<()> {
        self.player.odd(scene)
    }
}

/// Kills or stops this process. Returns from the latter when another process lets this one go on.
fn hit(what: &str) {
    match what {
        "killed" => die(),
        _ => signal(std::process::id(), "STOP"),
    }
}

/// What happens, and what this rank is told. `odd`: this is the rank that does otherwise.
fn play(scene: &str, player: &mut impl Player, odd: bool) -> Result<()> {
    let (what, when) = scene.split_once(' ').unwrap_or((scene, ""));
    match (what, when, odd) {
        ("killed" | "stopped", "before", true) => {
            hit(what);
            player.step()
        }
        ("killed" | "stopped", "before", false) => {
            sleep(PAUSE);
            player.step()
        }
        ("killed", "during", true) => {
            sleep(PAUSE);
            die()
        }
        // At any moment of a step: all ranks go on with steps until they are told.
        ("killed" | "stopped", "at work", odd) => {
            if odd {
                let what = what.to_owned();
                spawn(move || {
                    sleep(PAUSE);
                    hit(&what);
                });
            }
            loop {
                player.step()?;
                player.check();
            }
        }
        ("killed" | "stopped", "after", true) => {
            player.good_step();
            sleep(PAUSE);
            hit(what);
            player.step()
        }
        ("killed" | "stopped", "after", false) => {
            player.good_step();
            sleep(3 * PAUSE);
            player.step()
        }
        ("leaves", "during", true) => {
            sleep(PAUSE);
            Ok(())
        }
        ("leaves", "after", true) => player.step().inspect(|()| player.check()),
        ("leaves", "after", false) => {
            // All that it needs of the rank that leaves is there.
            player.good_step();
            player.step()
        }
        ("late" | "patient", _, true) => {
            sleep(Duration::from_secs(2));
            player.step().inspect(|()| player.check())
        }
        ("patient", _, false) => player.step().inspect(|()| player.check()),
        ("aborted", _, true) => {
            sleep(PAUSE);
            let group = Arc::clone(&player.rank().group);
            spawn(move || group.abort("a person wants it")).join().unwrap();
            player.step()
        }
        ("lost", "context", false) => {
            // The other's rows still come; then it is told.
            let first = player.step().inspect(|()| player.check());
            sleep(2 * PAUSE);
            first.and_then(|()| player.step())
        }
        (_, _, true) => player.odd(scene),
        // The others wait for what does not come.
        _ => player.step(),
    }
}

/// Plays a scene with so many ranks, each a process that runs `test`, with other variables besides; returns what each was told, but
/// the dead ones.
pub fn stage(test: &str, ranks: u32, others: &[(&str, &OsStr)], scene: &str) -> Vec<Told> {
    let [port, second] = [free_port(), free_port()].map(|port| port.to_string());
    let of_scene = [
        ("OVERLAP_GEMM_PORT", port.as_ref()),
        ("OVERLAP_GEMM_TEST_SCENE", scene.as_ref()),
        ("OVERLAP_GEMM_TEST_SECOND_PORT", second.as_ref()),
    ];
    let others = [&of_scene, others].concat();
    let mut children: Vec<Child> =
        (0..ranks).map(|rank| start_rank(test, rank, ranks, &others)).collect();
    let mut last = children.pop().unwrap();
    let mut ends: Vec<_> = children.into_iter().map(ended).collect();
    // Again and again: where another rank fails early, it stops behind that.
    while scene.starts_with("stopped") && last.try_wait().unwrap().is_none() {
        signal(last.id(), "CONT");
        sleep(PAUSE);
    }
    ends.push(ended(last));
    let mut told = Vec::new();
    for (rank, (status, text)) in (0..).zip(ends) {
        let is_last = rank == ranks - 1;
        if is_last && (scene.starts_with("killed") || scene == "lost context") {
            let code = (scene == "lost context").then_some(LOST);
            assert_eq!(status.code(), code, "it ended otherwise: {text}");
            continue;
        }
        assert!(status.success(), "rank {rank}: {text}");
        let is_left = !(is_last && loses_one(scene));
        let again = text.contains(&format!("rank {rank}: again"));
        assert_eq!(again, is_left, "rank {rank}: {text}");
        let mark = format!("rank {rank}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&mark)).unwrap();
        println!("{scene}, rank {rank}: {line}");
        let (line, last_step) = line.rsplit_once(" ms, its last step ").unwrap();
        let (what, after) = line.rsplit_once(" after ").unwrap();
        let [after, last_step] = [after, last_step].map(|number| number.parse().unwrap());
        told.push(Told { what: what.to_owned(), after, last_step });
    }
    told
}
