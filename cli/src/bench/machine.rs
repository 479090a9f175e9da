//! The machine of a bench, as its results have it.
//!
//! Invariant: an unknown value is left out, never made up.

use overlap_gemm::host::Link;
use serde::{Deserialize, Serialize};

use crate::on_threads;

/// One GPU of the machine (all are alike), and what runs on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub gpu: String,
    pub sm_count: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    /// The driver's own version, if NVML tells.
    pub driver: Option<String>,
    /// The CUDA version that the driver supports.
    pub cuda: Option<String>,
    pub cores: usize,
    /// What own kernels were built with, and how many there are; other programs have none.
    pub toolkit: Option<String>,
    pub cutlass: Option<String>,
    #[serde(default)]
    pub kernels: Vec<String>,
    /// Version and file; `None` if it takes no part.
    pub cublaslt: Option<String>,
}

/// The beginning of the name of a machine whose ranks are threads.
const ON_THREADS: &str = "rank on threads (";

impl Machine {
    /// This machine with threads as ranks. The name includes the rate of the link, so that times over two links are not
    /// compared.
    pub fn of_threads(link: Option<Link>) -> Machine {
        let cores = on_threads::cores();
        let processor = on_threads::processor().unwrap_or("a processor without a name".into());
        let mut gpu = format!("{ON_THREADS}{processor}, {cores} cores)");
        if let Some(rate) = on_threads::rate_of(link) {
            gpu += &format!(", {} MB/s", rate / 1e6);
        }
        Machine {
            gpu,
            sm_count: 0,
            memory_bytes: 0,
            l2_bytes: 0,
            driver: None,
            cuda: None,
            cores: cores as usize,
            toolkit: None,
            cutlass: None,
            kernels: Vec::new(),
            cublaslt: None,
        }
    }
}

/// A made-up machine for tests.
#[cfg(test)]
pub fn made_up() -> Machine {
    Machine {
        gpu: "NVIDIA H200".into(),
        sm_count: 132,
        memory_bytes: 1 << 37,
        l2_bytes: 60 << 20,
        driver: Some("580.1".into()),
        cuda: Some("13.0".into()),
        cores: 16,
        toolkit: Some("13.0.88".into()),
        cutlass: Some("4.2.0".into()),
        kernels: vec!["a".into(), "b".into()],
        cublaslt: Some("13.1.0, libcublasLt.so.13".into()),
    }
}
