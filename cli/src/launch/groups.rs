//! The ranks' process groups, and a keeper process that kills them if this process dies.
//!
//! Each rank leads a process group; what the rank starts belongs to it. [`Groups`] lists the groups that have members,
//! and the keeper holds a copy of the list, which it receives over a pipe: the pipe closes when this process ends,
//! however it ends. Invariant: a group leaves the list as soon as it is seen to be empty, because the system
//! may give its number to a foreign process afterwards.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, kill_process_group, test_kill_process_group,
};

use crate::exit::Failure;

/// The hidden subcommand that the keeper runs.
pub const KEEPER: &str = "keep-ranks";

/// The groups that may have members. Clones share one list: the thread that handles Ctrl-C has one.
#[derive(Clone)]
pub struct Groups(Arc<Mutex<List>>);

struct List {
    groups: Vec<Pid>,
    /// Those of them whose leader has not been waited for: a rank may have left its group.
    running: Vec<Pid>,
    keeper: Child,
}

impl Groups {
    /// No groups yet, and a keeper that waits for them.
    pub fn begin() -> Result<Groups, Failure> {
        // The keeper is this very program, even if its file was replaced since it started.
        let program = match cfg!(target_os = "linux") {
            true => Ok(PathBuf::from("/proc/self/exe")),
            false => std::env::current_exe(),
        };
        // A group of its own: Ctrl-C at a terminal does not reach it. No output: a reader of this process's
        // output sees its end when the ranks have ended.
        let keeper = program.and_then(|program| {
            let mut command = Command::new(program);
            command.arg0("overlap-gemm").arg(KEEPER).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        });
        let keeper = keeper.map_err(|error| {
            let what = "cannot start the process that ends the ranks if this one is killed";
            Failure::Missing(format!("{what}: {error}"))
        })?;
        Ok(Groups(Arc::new(Mutex::new(List { groups: Vec::new(), running: Vec::new(), keeper }))))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a rank join the keeper's list before it runs anything, and die with this process where the system can do that:
    /// for a rank that this process does not live to start, and for a keeper that was killed as well.
    pub fn before_start(&self, rank: &mut Command) -> Result<(), Failure> {
        let list = self.list();
        let pipe = list.keeper.stdin.as_ref().map(|pipe| pipe.as_fd().try_clone_to_owned());
        let pipe = pipe.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        let pipe =
            pipe.map_err(|source| Failure::Write { target: "to the keeper".into(), source })?;
        let launcher = getpid();
        let join = move || {
            #[cfg(target_os = "linux")]
            // It dies with the thread that started it: the main thread, which lives as long as the process.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // A launcher that died before that sends nothing.
            match getppid() == Some(launcher) {
                true => Ok(rustix::io::write(&pipe, &message(JOINED, getpid())).map(drop)?),
                false => Err(Errno::SRCH.into()),
            }
        };
        // SAFETY: between fork and exec the closure makes system calls; it neither allocates nor takes a lock.
        unsafe { rank.pre_exec(join) };
        Ok(())
    }

    /// The group of a rank that has started.
    pub fn add(&self, leader: Pid) {
        let mut list = self.list();
        list.groups.push(leader);
        list.running.push(leader);
    }

    /// Runs `reap`, which waits for ranks that have ended and returns those that have not, and forgets the groups that are
    /// empty then. Both happen under one lock, so that no signal reaches a group whose number is free already.
    /// Returns whether any rank still runs.
    pub fn forget_empty(
        &self,
        reap: impl FnOnce() -> Result<Vec<Pid>, Failure>,
    ) -> Result<bool, Failure> {
        let mut list = self.list();
        list.running = reap()?;
        let has_member =
            |group: &Pid| test_kill_process_group(*group).is_ok() || list.running.contains(group);
        let (some, empty): (Vec<Pid>, Vec<Pid>) = list.groups.iter().partition(|g| has_member(g));
        list.groups = some;
        for group in empty {
            // A keeper that was killed needs to know nothing.
            let _ = list.keeper.stdin.as_ref().map(|mut to| to.write_all(&message(EMPTY, group)));
        }
        Ok(!list.running.is_empty())
    }

    /// Whether no group has a member.
    pub fn is_empty(&self) -> bool {
        self.list().groups.is_empty()
    }

    /// Sends a signal to every rank and to everything in the groups.
    pub fn signal(&self, signal: Signal) {
        let list = self.list();
        for group in &list.groups {
            if kill_process_group(*group, signal).is_err() && list.running.contains(group) {
                let _ = kill_process(*group, signal);
            }
        }
    }

    /// Ends the keeper, once everything in the groups was sent SIGKILL.
    pub fn dismiss_keeper(&self) {
        let keeper = &mut self.list().keeper;
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
}

/// What the keeper learns of a group, in a byte, and the group's number. A pipe takes so few bytes whole or not at all.
type Message = [u8; 5];
const JOINED: u8 = b'+';
const EMPTY: u8 = b'-';

fn message(what: u8, group: Pid) -> Message {
    let [a, b, c, d] = group.as_raw_nonzero().get().to_ne_bytes();
    [what, a, b, c, d]
}

/// The keeper: follows the list until the launcher closes the pipe or dies, and kills all groups that are in it then.
pub fn keep() -> Result<(), Failure> {
    let mut groups: Vec<Pid> = Vec::new();
    let (mut stdin, mut message) = (io::stdin().lock(), Message::default());
    while stdin.read_exact(&mut message).is_ok() {
        let [what, number @ ..] = message;
        // 1 would mean every process there is.
        let number = Some(i32::from_ne_bytes(number)).filter(|number| *number > 1);
        let Some(group) = number.and_then(Pid::from_raw) else {
            return Err(Failure::Usage(format!(
                "'{KEEPER}' is started by 'launch', and by nothing else"
            )));
        };
        groups.retain(|known| *known != group);
        if what == JOINED {
            groups.push(group);
        }
    }
    for group in groups {
        // A group that has ended meanwhile is no failure.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(())
}
