//! One run of nvcc, what its end means, and how many may run at a time.
//!
//! What belongs here: from a command to an object and its log, or to a message that says what to do. Invariants: the
//! object is renamed into place last, so that an object in the cache is a whole one and has its log; no more compilers run
//! than fit into memory, as a machine that swaps is slower than one that waits. Standard library only; tests include this file.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};

/// What one nvcc may take: a source of nine kernels takes 1.9 GB.
pub const BYTES_PER_JOB: u64 = 3 << 30;

/// What nvcc compiles, for messages.
pub struct Source<'a> {
    /// The version of nvcc: `13.0.88`.
    pub version: &'a str,
    /// `csrc/abi.cu`
    pub name: &'a str,
}

/// Runs nvcc, which has all arguments but `-o`, and writes what it printed to `log`.
pub fn run(
    nvcc: &mut Command,
    source: &Source<'_>,
    object: &Path,
    log: &Path,
) -> Result<(), String> {
    let scratch = object.with_extension(format!("{}.o", std::process::id()));
    let program = Path::new(nvcc.get_program()).display().to_string();
    let output = nvcc.arg("-o").arg(&scratch).output();
    let output = output.map_err(|error| format!("{program} does not run: {error}"))?;
    let written = fs::metadata(&scratch).is_ok_and(|file| file.len() > 0);
    if let Some(why) = failure(&program, source, &output, written) {
        // A killed compiler leaves a part of one.
        let _ = fs::remove_file(&scratch);
        return Err(why);
    }
    let said = [output.stdout, output.stderr].concat();
    fs::write(log, said).map_err(|error| format!("{}: {error}", log.display()))?;
    fs::rename(&scratch, object).map_err(|error| format!("{}: {error}", object.display()))
}

/// Why there is no object.
fn failure(
    program: &str,
    Source { version, name }: &Source<'_>,
    output: &Output,
    written: bool,
) -> Option<String> {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let (status, gigabytes) = (output.status, BYTES_PER_JOB >> 30);
    if status.success() {
        return (!written).then(|| {
            format!(
                "nvcc {version} ended with success and wrote no object for csrc/{name}: see whether {program} is the \
                 compiler itself, and what NVCC_PREPEND_FLAGS and NVCC_APPEND_FLAGS add\n{said}"
            )
        });
    }
    Some(match killed(status, &said) {
        true => format!(
            "nvcc {version} was killed while it compiled csrc/{name} ({status}), as systems do when memory runs out: one \
             source takes up to {gigabytes} GiB; compile fewer at a time with `cargo build -j 1`, or where there is \
             more memory\n{said}"
        ),
        false => format!(
            "nvcc {version} could not compile csrc/{name} ({status}); another toolkit can be named in \
             OVERLAP_GEMM_CUDA_HOME, another host compiler in NVCC_CCBIN\n{said}"
        ),
    })
}

/// Whether SIGKILL ended nvcc, or one of the compilers that it runs: then nvcc, g++ or a shell tells of it.
fn killed(status: ExitStatus, said: &str) -> bool {
    let words = ["died due to signal 9", "Killed signal terminated program"];
    status.to_string().starts_with("signal: 9 ")
        || status.code() == Some(128 + 9)
        || words.iter().any(|words| said.contains(words))
}

/// The least of: `cores`, memory over [`BYTES_PER_JOB`], what cargo was told (`NUM_JOBS`), `tasks`.
pub fn jobs(cores: usize, available: Option<u64>, num_jobs: Option<usize>, tasks: usize) -> usize {
    let by_memory = available.map_or(usize::MAX, |bytes| (bytes / BYTES_PER_JOB) as usize);
    cores.min(by_memory).min(num_jobs.unwrap_or(usize::MAX)).min(tasks).max(1)
}

/// The bytes that `/proc/meminfo` says a new process could take without swapping.
pub fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
