//! The processor and the memory, which the host executor uses.
//!
//! Other systems than Linux report less, and unreported values are left out. Invariant: none of this keeps the host executor
//! from running, so nothing here is ever missing.

use std::fs;

use indicatif::BinaryBytes;

use super::finding::Finding;

/// Examines the processor and the memory.
pub fn look() -> Vec<Finding> {
    [Some(processor()), memory()].into_iter().flatten().collect()
}

fn processor() -> Finding {
    let model = crate::on_threads::processor();
    let cores = match std::thread::available_parallelism() {
        Ok(cores) => format!("{cores} hardware threads to use"),
        Err(_) => "an unknown number of hardware threads".into(),
    };
    let (vectors, fast) = vector_units();
    let parts = model.into_iter().chain([cores, vectors]);
    let what = parts.collect::<Vec<_>>().join(", ");
    match fast {
        true => Finding::ok("processor", what),
        false => Finding::note("processor", what).or(
            "products on host threads will be slow without vector units; the results are right",
        ),
    }
}

/// The vector instructions that the matrix product on host threads can use, and whether it is fast.
fn vector_units() -> (String, bool) {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    {
        let found: Vec<&str> = [
            ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
            ("FMA", std::arch::is_x86_feature_detected!("fma")),
            ("AVX-512", std::arch::is_x86_feature_detected!("avx512f")),
        ]
        .into_iter()
        .filter_map(|(name, found)| found.then_some(name))
        .collect();
        let fast = found.contains(&"AVX2") && found.contains(&"FMA");
        (if found.is_empty() { "no AVX2".into() } else { found.join(" ") }, fast)
    }
    #[cfg(target_arch = "aarch64")]
    {
        ("NEON".into(), true) // every such processor has it
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    {
        ("no known vector units".into(), false)
    }
}

fn memory() -> Option<Finding> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let (available, total) = (bytes("MemAvailable:")?, bytes("MemTotal:")?);
    let what = format!("{} free of {}", BinaryBytes(available), BinaryBytes(total));
    // A container's limit, where it is tighter than the machine.
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    match limit.and_then(|limit| limit.trim().parse::<u64>().ok()) {
        Some(limit) if limit < total => Some(Finding::ok(
            "memory",
            format!("{what}, of which this container may use {}", BinaryBytes(limit)),
        )),
        _ => Some(Finding::ok("memory", what)),
    }
}
