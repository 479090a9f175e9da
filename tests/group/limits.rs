//! Groups where something runs out: open files, or somebody's patience.
//!
//! What belongs here: ranks that are stopped, and processes that may open few files. Where a limit is a
//! process's, the ranks are threads of one that is this test's own binary, started again. Invariant: nobody
//! gives up before its own limit, nobody waits much longer, and the error names what ran out.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};

use crate::processes::{SECRET, free_port, signal, start_rank, variable};
use crate::{LONG, meet};

/// This binary as a process that runs `many_ranks` alone, after what `prefix` does in its shell.
fn start_many(prefix: &str, variables: &[(&str, String)]) -> Child {
    let own = std::env::current_exe().unwrap();
    let run = "--exact limits::many_ranks --nocapture";
    Command::new("sh")
        .args(["-c", &format!("{prefix} exec '{}' {run}", own.display())])
        .envs(variables.iter().cloned())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Many ranks as threads of a process: all, rank 0 alone, or all others. Run by the tests below; by itself there is nothing
/// to do.
#[test]
fn many_ranks() {
    let Some(ranks) = variable("OVERLAP_GEMM_TEST_RANKS") else { return };
    let part = std::env::var("OVERLAP_GEMM_TEST_PART").unwrap_or_default();
    let port = variable("OVERLAP_GEMM_TEST_PORT").map_or_else(free_port, |port| port as u16);
    thread::scope(|scope| {
        for rank in if part == "first" { 0..0 } else { 1..ranks } {
            let run = move || meet(rank, ranks, port).and_then(|group| group.barrier("all", LONG));
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).unwrap();
        }
        if part == "others" {
            return;
        }
        let begin = Instant::now();
        let result = meet(0, ranks, port).and_then(|group| {
            group.barrier("all", LONG)?;
            println!("result: {} files", std::fs::read_dir("/proc/self/fd").unwrap().count());
            Ok(())
        });
        if let Err(error) = result {
            println!("result after {} s: {error}", begin.elapsed().as_secs());
            // Those that still look for rank 0 have a minute for it.
            std::process::exit(0);
        }
    });
}

/// What rank 0 of many says.
fn said(rank_0: Child) -> String {
    let output = rank_0.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.split_once("result"));
    found.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

/// Both ends of each connection are in one process: a rank costs two files, where it is alone one.
#[test]
fn four_hundred_ranks_need_few_open_files() {
    let ranks = ("OVERLAP_GEMM_TEST_RANKS", "400".into());
    let text = said(start_many("ulimit -n 1024;", &[ranks]));
    assert!(text.ends_with(" files"), "{text}");
}

/// Rank 0 has a process for itself: the others would take files from it, and who finds none cannot tell rank 0.
#[test]
fn too_few_open_files_are_named_at_once() {
    let port = free_port();
    let start = |prefix: &str, part: &str| {
        let variables = [
            ("OVERLAP_GEMM_TEST_RANKS", "100".into()),
            ("OVERLAP_GEMM_TEST_PART", part.into()),
            ("OVERLAP_GEMM_TEST_PORT", port.to_string()),
        ];
        start_many(prefix, &variables)
    };
    let mut others = start("", "others");
    let text = said(start("ulimit -n 64;", "first"));
    others.kill().unwrap();
    others.wait().unwrap();
    assert!(text.contains("64 open files") && text.contains("ulimit -n"), "{text}");
    let seconds = text.split(' ').nth(2).and_then(|seconds| seconds.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds < 30), "{text}");
}

/// The most that one of three ranks may bring, nearly; all of it fits into no socket's buffers.
const MUCH: usize = 5 << 20;

/// What a rank brings.
fn much(rank: u32) -> Vec<u8> {
    let mut random = Random::new(rank.into());
    (0..MUCH / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// One exchange of much, then one of nothing.
fn exchange(group: &Group) -> Result<()> {
    let parts = group.all_gather("much", &much(group.rank()), LONG)?;
    assert!(parts.iter().zip(0..).all(|(part, rank)| *part == much(rank)));
    group.barrier("all have it", LONG)
}

/// The last rank, that a test stops. Run by the tests below; by itself there is nothing to do.
#[test]
fn a_rank() {
    let Some(port) = variable("OVERLAP_GEMM_TEST_STOPPED_AT") else { return };
    let (rank, ranks) = (variable("RANK").unwrap(), variable("WORLD_SIZE").unwrap());
    let group = meet(rank, ranks, port as u16).unwrap();
    println!("met");
    println!("ended: {:?}", exchange(&group).is_ok());
}

/// A rank that is a process.
struct Apart(Child, BufReader<std::process::ChildStdout>);

impl Apart {
    fn start(rank: u32, ranks: u32, port: u16) -> Apart {
        let port = port.to_string();
        let others = [("OVERLAP_GEMM_TEST_STOPPED_AT", port.as_ref())];
        let mut child = start_rank("limits::a_rank", rank, ranks, &others);
        let said = BufReader::new(child.stdout.take().unwrap());
        Apart(child, said)
    }

    /// Waits until it says so; with the rest of that line.
    fn says(&mut self, what: &str) -> String {
        let lines = self.1.by_ref().lines().map(Result::unwrap);
        let mut rest = lines.filter_map(|line| Some(line.split_once(what)?.1.to_owned()));
        rest.next().expect("the rank has ended")
    }

    fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks 0 and 1 of three, and the third, which has brought its part (or soon would) and is stopped.
fn with_a_stopped_rank() -> ([Group; 2], Apart) {
    let port = free_port();
    let mut apart = Apart::start(2, 3, port);
    let groups = thread::scope(|scope| {
        [0, 1]
            .map(|rank| scope.spawn(move || meet(rank, 3, port)))
            .map(|rank| rank.join().unwrap().unwrap())
    });
    apart.says("met");
    // For the case that is to be tested. Should its part come later, there is less to test.
    thread::sleep(Duration::from_secs(1));
    apart.signal("STOP");
    (groups, apart)
}

#[test]
fn a_rank_that_is_stopped_for_less_than_the_limit_is_not_lost() {
    let (groups, mut apart) = with_a_stopped_rank();
    thread::scope(|scope| {
        let ranks = groups.each_ref().map(|group| scope.spawn(move || exchange(group)));
        thread::sleep(Duration::from_secs(9));
        apart.signal("CONT");
        assert_eq!(ranks.map(|rank| rank.join().unwrap()), [Ok(()), Ok(())]);
    });
    assert_eq!(apart.says("ended: "), "true");
}

#[test]
fn a_stopped_rank_is_waited_for_as_long_as_the_limit_says() {
    let limit = Duration::from_secs(8);
    let (groups, _apart) = with_a_stopped_rank();
    thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                group.all_gather("much", &much(group.rank()), LONG).unwrap();
                let begin = Instant::now();
                let error = group.barrier("all have it", limit).unwrap_err();
                // The one is first; the other is told.
                let text = error.to_string();
                assert!(
                    text.contains("rank 2 did not come to the exchange 'all have it'"),
                    "{text}"
                );
                assert!(
                    begin.elapsed() > limit / 2 && begin.elapsed() < limit + LONG / 2,
                    "{text}"
                );
            });
        }
    });
    let begin = Instant::now();
    drop(groups);
    assert!(begin.elapsed() < LONG / 2, "leaving took {:?}", begin.elapsed());
}

#[test]
fn a_stopped_rank_0_is_waited_for_as_long_as_the_limit_says() {
    let (port, limit) = (free_port(), Duration::from_secs(8));
    let mut apart = Apart::start(0, 2, port);
    let group = meet(1, 2, port).unwrap();
    apart.says("met");
    apart.signal("STOP");
    let begin = Instant::now();
    let error = group.all_gather("much", &much(1), limit).unwrap_err();
    assert!(matches!(&error, Error::Absent { absent, .. } if *absent == [0]), "{error:?}");
    assert!(
        begin.elapsed() >= limit && begin.elapsed() < limit + LONG / 2,
        "{:?}",
        begin.elapsed()
    );
    let begin = Instant::now();
    drop(group);
    assert!(begin.elapsed() < LONG / 2, "leaving took {:?}", begin.elapsed());
}

#[test]
fn a_name_without_an_address_is_named() {
    let limit = Duration::from_secs(3);
    for rank in 0..2 {
        let launch = Launch::at(rank, 2, "no-such-host.invalid", free_port());
        let begin = Instant::now();
        let options = GroupOptions::default().limit(limit);
        let text = Group::meet(&launch, &Secret::of(SECRET), &options).unwrap_err().to_string();
        assert!(begin.elapsed() < LONG / 2, "{:?}", begin.elapsed());
        assert!(text.contains("no-such-host.invalid"), "{text}");
        if rank == 0 {
            assert!(
                text.contains("MASTER_ADDR") && !text.contains("choose another port"),
                "{text}"
            );
        }
    }
}
