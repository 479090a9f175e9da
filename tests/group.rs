//! Groups of ranks from the outside, over real connections.
//!
//! What belongs here: what the files in `tests/group` share. Where only the connection matters, a rank is a thread that comes
//! to the store as a process would; where a process matters, ranks are this binary, started again.
//! Invariant: every wait has a limit far above what it should take, and no process outlives its test.
#![cfg(all(feature = "group", unix))]

#[path = "common/processes.rs"]
mod processes;
#[path = "common/threads.rs"]
mod threads;

#[path = "group/between.rs"]
mod between;
#[path = "group/environment.rs"]
mod environment;
#[path = "group/leaving.rs"]
mod leaving;
#[cfg(target_os = "linux")]
#[path = "group/limits.rs"]
mod limits;
#[path = "group/meeting.rs"]
mod meeting;
#[path = "group/parts.rs"]
mod parts;

use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
use processes::{SECRET, free_port};

/// For waits that should end by themselves.
const LONG: Duration = Duration::from_secs(60);

fn meet(rank: u32, ranks: u32, port: u16) -> Result<Group> {
    meet_with(rank, ranks, port, &GroupOptions::default().limit(LONG))
}

fn meet_with(rank: u32, ranks: u32, port: u16, options: &GroupOptions) -> Result<Group> {
    Group::meet(&Launch::at(rank, ranks, "127.0.0.1", port), &Secret::of(SECRET), options)
}

/// Runs a rank on each of `ranks` threads, over connections.
fn on_threads<T: Send>(ranks: u32, run: impl Fn(u32, u16) -> T + Sync) -> Vec<T> {
    let port = free_port();
    threads::on_threads(0..ranks, |rank| run(rank, port))
}
