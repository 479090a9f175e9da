//! `overlap-gemm launch`: starts a command once for each rank, on this machine.
//!
//! For those without torchrun, mpirun or srun. It sets the variables that torchrun sets, and a secret that
//! only these ranks know. Invariant: when it ends, all ranks have ended, unless it is killed or told to end
//! twice; if one fails, the others get a while to notice by themselves, and are ended then.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::group::{PORT_VARIABLE, SECRET_VARIABLE, Secret};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Start a command once for each rank, on this machine
///
/// Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun does, and
/// OVERLAP_GEMM_PORT and OVERLAP_GEMM_SECRET for Group::from_env. Ends with success if every rank does; else,
/// where it starts overlap-gemm, with the exit code of the rank that failed first.
#[derive(clap::Args)]
pub struct Args {
    /// How many ranks to start
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,

    /// How long the other ranks may go on after one has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u32,

    /// What to start, with its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

const LOOK: Duration = Duration::from_millis(10);
/// For ranks that were interrupted: a round of a bench, and showing what was measured.
const MOMENT: Duration = Duration::from_secs(10);

/// A rank that was started.
struct Started {
    rank: u32,
    child: Child,
    status: Option<ExitStatus>,
}

impl Started {
    /// Sent to the rank and to what it has started, which are a group, unless it has left that. One that has ended
    /// meanwhile hears nothing.
    fn signal(&self, signal: Signal) {
        let rank = Pid::from_child(&self.child);
        if kill_process_group(rank, signal).is_err() {
            let _ = kill_process(rank, signal);
        }
    }
}

/// Starts the ranks and waits for them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let interrupt = Interrupt::install()?;
    let (master, store) = free_ports()?;
    let secret = Secret::random_text()?;
    let mut ranks = Ranks(Vec::new());
    for rank in 0..args.ranks {
        let mut command = Command::new(&args.command[0]);
        // A terminal tells its whole group of Ctrl-C. Ranks, and what they start, hear of it from here alone, or they would
        // take the second word of it for a second Ctrl-C.
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
        let child = command.spawn().map_err(|error| {
            Failure::Usage(format!("cannot start '{}' as rank {rank}: {error}", args.command[0]))
        })?;
        ranks.0.push(Started { rank, child, status: None });
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
            let and = format!("; the others had not ended {seconds} s later, and were ended");
            return Err(failure(status, &and));
        }
        thread::sleep(LOOK);
    }
    let failed = failed.map(|(status, _)| status).or_else(|| ranks.first_failure());
    failed.map_or(Ok(()), |status| Err(failure(&status, "")))
}

/// All ranks; those that still run when this is dropped are killed.
struct Ranks(Vec<Started>);

impl Ranks {
    /// Whether any still runs.
    fn look(&mut self) -> Result<bool, Failure> {
        let mut running = false;
        for started in self.0.iter_mut().filter(|started| started.status.is_none()) {
            let waited = started.child.try_wait();
            started.status = waited.map_err(|error| Failure::Rank {
                what: format!("cannot wait for rank {}: {error}", started.rank),
                code: None,
            })?;
            running |= started.status.is_none();
        }
        Ok(running)
    }

    /// Passes Ctrl-C on, and gives the ranks a moment to end by themselves.
    fn interrupt(&mut self) -> Result<(), Failure> {
        for started in self.0.iter().filter(|started| started.status.is_none()) {
            started.signal(Signal::INT);
        }
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
        self.0.iter().find_map(failure)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for started in self.0.iter_mut().filter(|started| started.status.is_none()) {
            started.signal(Signal::KILL);
            let _ = started.child.wait();
        }
    }
}

/// Whether a command is this program, so that its exit codes mean the same.
fn is_this_program(command: &str) -> bool {
    let own = std::env::current_exe().ok();
    own.is_some_and(|own| own.file_name() == Path::new(command).file_name())
}

/// Two ports that nobody listens on. Below those that the system gives to connections, or one of these
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
