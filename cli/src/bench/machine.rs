//! The machine of a bench, as its results have it.
//!
//! Invariant: an unknown value is left out, never made up.

use overlap_gemm::host::Link;
#[cfg(feature = "cuda")]
use overlap_gemm::{
    Result,
    cuda::device::{driver, driver_name},
    cuda::{self, BuildInfo},
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use super::gpu::{cublaslt::Cublaslt, driver::Gpu};
use crate::on_threads;

/// One GPU of the machine (all are alike), and what runs on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

impl Machine {
    /// This machine with threads as ranks. The name includes the rate of the link, so that times over two links are not
    /// compared.
    pub fn of_threads(link: Option<Link>) -> Machine {
        let cores = on_threads::cores();
        let processor = on_threads::processor().unwrap_or("a processor without a name".into());
        let mut gpu = format!("rank on threads ({processor}, {cores} cores)");
        if let Some(rate) = on_threads::rate_of(link) {
            gpu += &format!(", {} MB/s", rate / 1e6);
        }
        Machine { gpu, cores: cores as usize, ..Machine::default() }
    }
}

#[cfg(feature = "cuda")]
impl Machine {
    /// This machine with GPUs as ranks.
    pub fn of_gpus(gpu: &Gpu, cublaslt: Option<&Cublaslt>) -> Result<Machine> {
        let (info, BuildInfo { toolkit, cutlass, .. }) = (gpu.device.info(), cuda::build_info()?);
        let (major, minor) = driver()?;
        Ok(Machine {
            gpu: info.name.clone(),
            sm_count: info.sm_count,
            memory_bytes: info.memory_bytes,
            l2_bytes: gpu.l2_bytes()?,
            driver: Some(driver_name()?),
            cuda: Some(format!("{major}.{minor}")),
            cores: on_threads::cores() as usize,
            toolkit: Some(toolkit.to_owned()),
            cutlass: Some(cutlass.to_owned()),
            kernels: cuda::kernels()?.iter().map(|kernel| kernel.name.clone()).collect(),
            cublaslt: cublaslt.map(Cublaslt::version),
        })
    }
}

/// A made-up machine for tests.
#[cfg(test)]
pub fn made_up() -> Machine {
    Machine {
        gpu: "NVIDIA H200".into(),
        driver: Some("580.1".into()),
        kernels: vec!["a".into(), "b".into()],
        ..Machine::default()
    }
}
