//! Drives `overlap-gemm launch`: what ranks are given, how it ends, and that nothing survives it.
//!
//! What belongs here: ranks that are shells. Invariant of the tests about ends: launcher, ranks and everything they start
//! write to one pipe, and a test waits for the end of the pipe, which comes when the last of them has ended.
#![cfg(unix)]

#[path = "common/binary.rs"]
mod binary;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use binary::{command, refused, run};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Far above what any wait here should take.
const LONG: Duration = Duration::from_secs(30);

/// A launcher, and what it and its ranks write.
struct Launched {
    launcher: Child,
    lines: Receiver<String>,
    /// The groups of ranks that have written theirs: killed if the test fails.
    seen: Vec<Pid>,
}

impl Launched {
    /// A shell script on two ranks.
    fn start(script: &str) -> Launched {
        let mut launcher = command(&["launch", "-n", "2", "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let stdout = BufReader::new(launcher.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().try_for_each(|line| tell.send(line.unwrap())));
        Launched { launcher, lines, seen: Vec::new() }
    }

    /// Waits until both ranks have written their process's number, `$$`.
    fn ready(&mut self) {
        for _ in 0..2 {
            let line = self.lines.recv_timeout(LONG).unwrap();
            self.seen.push(Pid::from_raw(line.parse().unwrap()).unwrap());
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    /// Waits until launcher, ranks and what these started have ended; how the launcher did, the lines that were left, and its
    /// stderr.
    fn ended(mut self) -> (ExitStatus, Vec<String>, String) {
        let (until, mut left) = (Instant::now() + LONG, Vec::new());
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => left.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("something survives: {:?}", self.seen),
            }
        }
        let status = self.launcher.wait().unwrap();
        let mut stderr = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(!stderr.contains("panicked"), "{stderr}");
        (status, left, stderr)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.launcher.kill();
            for group in &self.seen {
                let _ = kill_process_group(*group, Signal::KILL);
            }
        }
    }
}

#[test]
fn a_second_signal_kills_ranks_that_do_not_listen() {
    for _ in 0..3 {
        let mut launched =
            Launched::start("trap '' INT TERM HUP; sleep 600 & echo $$; wait; wait; sleep 600");
        launched.ready();
        let until = Instant::now() + LONG;
        // As a person does it: again and again.
        while launched.launcher.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            launched.signal(Signal::TERM);
            thread::sleep(Duration::from_millis(20));
        }
        let (status, _, stderr) = launched.ended();
        assert_eq!((status.code(), stderr.as_str()), (Some(130), ""));
    }
}

/// A terminal that closes, a service manager and `timeout` send several signals for one wish to end.
#[test]
fn signals_at_the_same_time_let_ranks_end_cleanly() {
    for signals in [[Signal::TERM, Signal::HUP], [Signal::HUP; 2], [Signal::TERM; 2]].repeat(3) {
        // The shell waits already when it says so.
        let script = "trap 'echo clean; exit 0' INT; (echo $$; exec sleep 600)";
        let mut launched = Launched::start(script);
        launched.ready();
        signals.into_iter().for_each(|signal| launched.signal(signal));
        let (status, left, stderr) = launched.ended();
        assert_eq!(left, ["clean"; 2], "{signals:?}");
        assert_eq!(status.code(), Some(130));
        assert!(stderr.contains("interrupted"), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_launcher_that_is_killed_takes_its_ranks_with_it() {
    for _ in 0..5 {
        let mut launched = Launched::start("echo $$; exec sleep 600");
        launched.ready();
        launched.signal(Signal::KILL);
        assert_eq!(launched.ended().0.code(), None);
    }
}

#[test]
fn nothing_that_ranks_start_outlives_the_launcher() {
    for (end, code) in [("exit $RANK", 4), ("kill -9 $$", 4), ("exit 0", 0)] {
        let mut launched = Launched::start(&format!("sleep 600 & echo $$; {end}"));
        launched.ready();
        let (status, _, stderr) = launched.ended();
        assert_eq!(status.code(), Some(code), "{end}: {stderr}");
    }
}

/// Such as a program that writes the rank's log.
#[test]
fn what_ranks_leave_may_finish_its_writing() {
    for _ in 0..5 {
        let script = "(while kill -0 $$ 2>&-; do :; done; echo written) & echo $$; exit 3";
        let mut launched = Launched::start(script);
        let mut lines: Vec<_> =
            (0..4).map(|_| launched.lines.recv_timeout(LONG).unwrap()).collect();
        lines.sort();
        assert_eq!(lines[2..], ["written"; 2], "{lines:?}");
        launched.seen.clear();
        assert_eq!(launched.ended().0.code(), Some(4));
    }
}

#[test]
fn arguments_are_passed_on_byte_by_byte() {
    let bytes = b"\xff\xfe=\x80 \xc3";
    let output = command(&["launch", "-n", "1", "--", "printf", "%s"])
        .arg(std::ffi::OsStr::from_bytes(bytes))
        .output()
        .unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &bytes[..]), "{output:?}");
    // A program's name too.
    let name = std::ffi::OsStr::from_bytes(b"/nowhere/\xff");
    let output = command(&["launch", "-n", "1", "--"]).arg(name).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot start '/nowhere/\u{fffd}' as rank 0"), "{stderr}");
}

/// A shell command on three ranks.
fn launch(more: &[&str], script: &str) -> (i32, String, String) {
    let all = [&["launch", "-n", "3"], more, &["--", "sh", "-c", script]].concat();
    run(&all)
}

#[test]
fn launch_tells_every_rank_who_it_is() {
    let (code, stdout, stderr) = launch(
        &[],
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $OVERLAP_GEMM_SECRET",
    );
    assert_eq!((code, stderr.as_str()), (0, ""));
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    let secret = lines[0].split(' ').nth(3).unwrap();
    assert_eq!(secret.len(), 64);
    let expected = [0, 1, 2].map(|rank| format!("{rank}/3 {rank}/3 127.0.0.1 {secret}"));
    assert_eq!(lines, expected);
    // Another group has another secret.
    assert!(!launch(&[], "echo $OVERLAP_GEMM_SECRET").1.contains(secret));
}

#[test]
fn launch_fails_if_a_rank_does_and_leaves_none_behind() {
    let (code, _, stderr) = launch(&[], "test $RANK != 1");
    assert_eq!(code, 4);
    assert!(stderr.contains("rank 1 ended with exit status: 1"), "{stderr}");
    let (code, _, stderr) =
        launch(&["--grace", "0"], "test $RANK = 0 && kill -9 $$; exec sleep 600");
    assert_eq!(code, 4);
    assert!(
        stderr.contains("rank 0 ended with signal: 9") && stderr.contains("were killed"),
        "{stderr}"
    );
    // What this program ended with means the same here.
    let own = env!("CARGO_BIN_EXE_overlap-gemm");
    let plan = [
        "launch", "-n", "2", "--", own, "plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "0",
    ];
    refused(&plan, 2, &["rank", "ended with exit status: 2"]);
    let nothing = "cannot start '/nowhere/nothing' as rank 0";
    refused(&["launch", "-n", "2", "--", "/nowhere/nothing"], 2, &[nothing]);
    refused(&["launch", "-n", "0", "--", "true"], 2, &["--ranks"]);
    refused(&["launch", "-n", "2"], 2, &["COMMAND"]);
}

/// As a terminal does it: the whole group of the launcher hears of it.
#[test]
fn launched_ranks_hear_of_ctrl_c_once() {
    // Each rank tells of every signal, and goes on for a while after the first. It waits already when it says that it is ready: a
    // signal between the two would be another test.
    let script = "trap 'echo heard' INT; (echo ready; exec sleep 600); sleep 1";
    let mut child = Command::new(env!("CARGO_BIN_EXE_overlap-gemm"))
        .args(["launch", "-n", "2", "--", "sh", "-c", script])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }
    let group = Pid::from_child(&child);
    kill_process_group(group, Signal::INT).unwrap();
    let mut heard = String::new();
    stdout.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "heard\nheard\n");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
