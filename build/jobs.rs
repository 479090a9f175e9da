//! How many compilers may run at a time.
//!
//! What belongs here: arithmetic on cores and memory. Invariant: at least one, and never more
//! than fit into memory: a source of five CUTLASS kernels takes 7.1 GB to compile, and
//! a machine that swaps is slower than one that waits. Standard library only; tests include this file.

/// What one nvcc may take.
pub const BYTES_PER_JOB: u64 = 7 << 30;

/// The least of: `cores`, memory over [`BYTES_PER_JOB`], what cargo was told (`NUM_JOBS`), `tasks`.
pub fn count(cores: usize, available: Option<u64>, num_jobs: Option<usize>, tasks: usize) -> usize {
    let by_memory = available.map_or(usize::MAX, |bytes| (bytes / BYTES_PER_JOB) as usize);
    cores.min(by_memory).min(num_jobs.unwrap_or(usize::MAX)).min(tasks).max(1)
}

/// The bytes that `/proc/meminfo` says a new process could take without swapping.
pub fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
