//! `overlap-gemm launch`: starts a command once for each rank, on this machine.
//!
//! A replacement for torchrun, mpirun and srun on one machine. It sets the variables that torchrun sets, and a secret that
//! only these ranks know. Each rank leads a process group; what the rank starts belongs to it. Invariant: when it ends, all
//! ranks and all processes in their groups have ended, also after a second signal; a SIGKILL of this process kills
//! the ranks. A group leaves the list as soon as it is seen to be empty, because the system may give its number to a foreign
//! process afterwards. If one rank fails, the others get `--grace` seconds to notice by themselves, and are killed then.
//! Other processes in a rank's group, such as one that writes its log, get a second after the last rank.

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::group::{PORT_VARIABLE, SECRET_VARIABLE, Secret};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, kill_process_group, test_kill_process_group,
};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Start a command once for each rank, on this machine
///
/// Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun does, and
/// OVERLAP_GEMM_PORT and OVERLAP_GEMM_SECRET for Group::from_env. Succeeds if every rank does. If the command is
/// overlap-gemm, a failure has the exit code of the rank that failed first. Ctrl-C, SIGTERM and SIGHUP interrupt
/// the ranks; another signal, a second or more later, kills them. Each rank leads a process group; processes that remain
/// in it are killed a second after the last rank has ended.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks to start
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,

    /// Seconds that the other ranks may continue after one has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u32,

    /// Command to start, with its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

const LOOK: Duration = Duration::from_millis(10);
/// For ranks that were interrupted: a round of a bench, and showing what was measured.
const MOMENT: Duration = Duration::from_secs(10);

/// For what ranks leave in their groups.
const LEFT: Duration = Duration::from_secs(1);

/// A rank that was started.
struct Started {
    rank: u32,
    child: Child,
    status: Option<ExitStatus>,
}

/// Starts the ranks and waits for them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let groups = Groups::default();
    let mut ranks = Ranks { started: Vec::new(), groups: groups.clone() };
    let interrupt = Interrupt::install_with(move || groups.signal(Signal::KILL))?;
    let (master, store) = free_ports()?;
    let secret = Secret::random_text()?;
    for rank in 0..args.ranks {
        let mut command = Command::new(&args.command[0]);
        // A terminal sends Ctrl-C to its whole foreground group. Ranks, and what they start, receive it from this process
        // alone, or they would receive it twice.
        command.process_group(0).args(&args.command[1..]).envs([
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", args.ranks.to_string()),
            ("LOCAL_WORLD_SIZE", args.ranks.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", master.to_string()),
            (PORT_VARIABLE, store.to_string()),
            (SECRET_VARIABLE, secret.clone()),
        ]);
        die_with_this_process(&mut command);
        let child = command.spawn().map_err(|error| {
            let program = args.command[0].display();
            Failure::Usage(format!("cannot start '{program}' as rank {rank}: {error}"))
        })?;
        ranks.groups.add(Pid::from_child(&child));
        ranks.started.push(Started { rank, child, status: None });
    }
    let is_own = is_this_program(&args.command[0]);
    let failure = |status: &(String, Option<u8>), and: &str| Failure::Rank {
        what: format!("{}{and}", status.0),
        code: status.1.filter(|_| is_own),
    };
    let mut failed = None;
    while ranks.look()? {
        if let Err(interrupted) = interrupt.check() {
            ranks.interrupt()?;
            return Err(interrupted);
        }
        if failed.is_none() {
            failed = ranks.first_failure().map(|status| (status, Instant::now()));
        }
        if let Some((status, since)) = &failed
            && since.elapsed() > Duration::from_secs(args.grace.into())
        {
            let seconds = args.grace;
            let and = format!("; the others had not ended {seconds} s later, and were killed");
            return Err(failure(status, &and));
        }
        thread::sleep(LOOK);
    }
    let failed = failed.map(|(status, _)| status).or_else(|| ranks.first_failure());
    failed.map_or(Ok(()), |status| Err(failure(&status, "")))
}

/// Has a rank end with this process, however this process ends.
fn die_with_this_process(rank: &mut Command) {
    let launcher = getpid();
    let join = move || {
        // It dies with the thread that started it: the main thread, which lives as long as the process.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before that.
        if getppid() == Some(launcher) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes system calls; it neither allocates nor takes a lock.
    unsafe { rank.pre_exec(join) };
}

/// The process groups that may have members. Clones share one list: the thread that handles Ctrl-C has one.
#[derive(Clone, Default)]
struct Groups(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    groups: Vec<Pid>,
    /// Those of them whose leader has not been waited for: a rank may have left its group.
    running: Vec<Pid>,
}

impl Groups {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group of a rank that has started.
    fn add(&self, leader: Pid) {
        let mut list = self.list();
        list.groups.push(leader);
        list.running.push(leader);
    }

    /// Runs `reap`, which waits for ranks that have ended and returns those that have not, and forgets the groups that are
    /// empty then. Both happen under one lock, so that no signal reaches a group whose number is free already.
    /// Returns whether any rank still runs.
    fn forget_empty(
        &self,
        reap: impl FnOnce() -> Result<Vec<Pid>, Failure>,
    ) -> Result<bool, Failure> {
        let mut list = self.list();
        let running = reap()?;
        list.groups
            .retain(|group| test_kill_process_group(*group).is_ok() || running.contains(group));
        list.running = running;
        Ok(!list.running.is_empty())
    }

    /// Whether no group has a member.
    fn is_empty(&self) -> bool {
        self.list().groups.is_empty()
    }

    /// Sends a signal to every rank and to everything in the groups.
    fn signal(&self, signal: Signal) {
        let list = self.list();
        for group in &list.groups {
            if kill_process_group(*group, signal).is_err() && list.running.contains(group) {
                let _ = kill_process(*group, signal);
            }
        }
    }
}

/// All ranks; what still runs when this is dropped is killed.
struct Ranks {
    started: Vec<Started>,
    groups: Groups,
}

impl Ranks {
    /// Whether any still runs.
    fn look(&mut self) -> Result<bool, Failure> {
        let started = &mut self.started;
        self.groups.forget_empty(|| {
            let mut running = Vec::new();
            for started in started.iter_mut().filter(|started| started.status.is_none()) {
                let waited = started.child.try_wait();
                started.status = waited.map_err(|error| Failure::Rank {
                    what: format!("cannot wait for rank {}: {error}", started.rank),
                    code: None,
                })?;
                if started.status.is_none() {
                    running.push(Pid::from_child(&started.child));
                }
            }
            Ok(running)
        })
    }

    /// Passes Ctrl-C on, and gives the ranks a moment to end by themselves.
    fn interrupt(&mut self) -> Result<(), Failure> {
        self.groups.signal(Signal::INT);
        let since = Instant::now();
        while self.look()? && since.elapsed() < MOMENT {
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Which rank has failed, and its exit code.
    fn first_failure(&self) -> Option<(String, Option<u8>)> {
        let failure = |started: &Started| {
            let status = started.status.filter(|status| !status.success())?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            Some((format!("rank {} ended with {status}", started.rank), code))
        };
        self.started.iter().find_map(failure)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let since = Instant::now();
        // A rank that runs is killed with its group at once; so is a rank that cannot be waited for.
        while self.look().is_ok_and(|running| !running)
            && !self.groups.is_empty()
            && since.elapsed() < LEFT
        {
            thread::sleep(LOOK);
        }
        self.groups.signal(Signal::KILL);
        for started in self.started.iter_mut().filter(|started| started.status.is_none()) {
            let _ = started.child.wait();
        }
    }
}

/// Whether a command is this program, so that its exit codes mean the same.
fn is_this_program(command: &OsStr) -> bool {
    let own = std::env::current_exe().ok();
    own.is_some_and(|own| own.file_name() == Path::new(command).file_name())
}

/// Two ports without a listener. Below those that the system gives to connections, or one of these
/// could take a port before its listener does.
fn free_ports() -> Result<(u16, u16), Failure> {
    const LEAST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Launchers that start at the same time begin their search at different places.
    let begin = (std::process::id().wrapping_mul(61) % u32::from(COUNT)) as u16;
    let mut free = (0..COUNT).map(|step| LEAST + (begin + step) % COUNT).filter(is_free);
    let missing = || Failure::Missing(format!("no two ports from {LEAST} on are free"));
    let first = free.next().ok_or_else(missing)?;
    Ok((first, free.next().ok_or_else(missing)?))
}
