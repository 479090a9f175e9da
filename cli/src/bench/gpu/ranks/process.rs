//! Another program's process on one rank: started, asked, and ended with everything that it has started.
//!
//! What belongs here: pipes, limits and signals; what is said through the pipes is the caller's (`peer.rs`).
//! Invariants: no call waits longer than its limit; the process and its descendants are one process group, which
//! is killed when this value is dropped, and when this program ends in any way, killed or not. A descendant that
//! leaves the group by itself is not followed.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How often to look whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);
/// For what a process said just before it ended, and for its exit status after it closed its output.
const LAST: Duration = Duration::from_secs(1);
/// How long a process may take to end after it was asked to.
const QUIT: Duration = Duration::from_secs(5);
/// The longest line that is read as one, in bytes.
const LONGEST: u64 = 64 << 10;
/// Lines that wait to be read; the process waits when there are more.
const LINES: usize = 16;

/// Ends the process group when its input does, which is when this program has ended.
const GUARD: &str = "trap '' HUP INT QUIT TERM; read -r _; kill -s KILL 0";

/// A process that runs, or has ended and is not known to.
pub struct Process {
    /// The leader of the process group: as long as nobody has waited for it, no other group has its number.
    guard: Child,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    killed: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Vain {
    /// It said nothing within the limit.
    Hung(Duration),
    /// It has ended, or closed its output.
    Ended(String),
    /// It said something else.
    Garbled(String),
}

impl fmt::Display for Vain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vain::Hung(limit) => write!(f, "no answer within {limit:.0?}"),
            Vain::Ended(how) => write!(f, "it ended ({how})"),
            Vain::Garbled(what) => write!(f, "it said {what}"),
        }
    }
}

impl Process {
    /// Starts a shell's command with these variables in its environment.
    pub fn start(command: &str, variables: &[(&str, String)]) -> io::Result<Process> {
        let mut guard = Command::new("sh")
            .args(["-c", GUARD])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let child = Command::new("sh")
            .args(["-c", command])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(guard.id() as i32)
            .spawn();
        let mut child = child.inspect_err(|_| {
            let _ = guard.kill();
            let _ = guard.wait();
        })?;
        let (orders, stdout) = (child.stdin.take(), child.stdout.take());
        let (orders, stdout) = orders.zip(stdout).expect("both were asked for");
        let (tell, answers) = sync_channel(LINES);
        let process = Process { guard, child, orders, answers, killed: false };
        // A thread, so that a process that says nothing holds nobody up.
        thread::Builder::new().spawn(move || read_lines(stdout, &tell))?;
        Ok(process)
    }

    /// Gives an order, and waits for the answer.
    pub fn ask<A: DeserializeOwned>(&mut self, order: &Value, limit: Duration) -> Result<A, Vain> {
        // An order is far shorter than a pipe has room for, and there is one at a time. A process that does not
        // listen any more has ended, or will not answer.
        let _ = writeln!(self.orders, "{order}");
        self.hear(limit)
    }

    /// Waits for what it says next.
    pub fn hear<A: DeserializeOwned>(&mut self, limit: Duration) -> Result<A, Vain> {
        let line = self.line(limit)?;
        serde_json::from_str(&line).map_err(|error| {
            let begin: String = line.chars().take(200).collect();
            Vain::Garbled(format!("'{}' ({error})", begin.escape_debug()))
        })
    }

    fn line(&mut self, limit: Duration) -> Result<String, Vain> {
        let begin = Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Vain::Hung(limit)),
                Err(RecvTimeoutError::Timeout) => {
                    // What it has started may keep the pipe open.
                    if let Ok(Some(status)) = self.child.try_wait() {
                        let last = self.answers.recv_timeout(LAST);
                        return last.map_err(|_| Vain::Ended(status.to_string()));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = wait(&mut self.child, LAST);
                    let status = status.unwrap_or("its output is closed".into());
                    return Err(Vain::Ended(status));
                }
            }
        }
    }

    /// Asks it to end, and gives it a moment for that.
    pub fn quit(&mut self, order: &Value) {
        if writeln!(self.orders, "{order}").is_ok() {
            let _ = wait(&mut self.child, QUIT);
        }
    }

    /// Kills it with all that it has started, and waits until it has ended: then its GPU is free.
    pub fn kill(&mut self, limit: Duration) -> Result<(), String> {
        if std::mem::replace(&mut self.killed, true) {
            return Ok(());
        }
        let _ = kill_process_group(Pid::from_child(&self.guard), Signal::KILL);
        // It may have left the group.
        let _ = self.child.kill();
        match wait(&mut self.child, limit).and(wait(&mut self.guard, limit)) {
            Some(_) => Ok(()),
            None => Err(format!("it had not ended {limit:.0?} after it was killed")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill(QUIT);
    }
}

/// The exit status of a process that ends within the limit.
fn wait(child: &mut Child, limit: Duration) -> Option<String> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begin.elapsed() < limit => thread::sleep(LOOK),
            Ok(status) => return status.map(|status| status.to_string()),
            Err(_) => return None,
        }
    }
}

/// Passes on the lines that may be answers, until the pipe or the receiver is gone.
fn read_lines(stdout: ChildStdout, tell: &SyncSender<String>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        // A line without an end is not collected for ever.
        match stdout.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            // Libraries print on stdout, too.
            Ok(_) if line.first() != Some(&b'{') => {}
            Ok(_) => {
                if tell.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        }
    }
}
