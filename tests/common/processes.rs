//! Ranks that are processes: a test's own binary, started again as a test that plays a rank.

#![allow(dead_code)] // each test file uses its share

use std::ffi::OsStr;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub const SECRET: &str = "a secret of these tests";

/// A port that nobody listens on, and that no other test here is given: tests run at the same time. Below
/// those that the system gives to connections, or one of these could take it meanwhile.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Relaxed: a counter.
        let offset =
            std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (offset % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// This binary as a process that runs `test` alone, as rank `rank` of `ranks`, with other variables besides.
pub fn start_rank(test: &str, rank: u32, ranks: u32, others: &[(&str, &OsStr)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env_remove("MASTER_PORT")
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("MASTER_ADDR", "localhost")
        .env("OVERLAP_GEMM_SECRET", SECRET)
        .envs(others.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A number among this process's variables.
pub fn variable(name: &str) -> Option<u32> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// How a process ended, and all that it printed.
pub fn ended(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status, text.into_owned())
}

/// Sends a signal to a process, perhaps to this one.
pub fn signal(process: u32, signal: &str) {
    let kill = format!("kill -{signal} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Ends this process as nothing else would.
pub fn die() -> ! {
    signal(std::process::id(), "KILL");
    std::thread::sleep(std::time::Duration::from_secs(60));
    unreachable!("killed");
}
