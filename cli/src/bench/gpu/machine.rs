//! Which machine it is.

use std::num::NonZero;

use overlap_gemm::Result;
use overlap_gemm::cuda::device::{driver, driver_name};
use overlap_gemm::cuda::{self, BuildInfo};

use super::super::machine::Machine;
use super::cublaslt::Cublaslt;
use super::driver::Gpu;

/// Everything a reader of the results wants to know.
pub fn describe(gpu: &Gpu, cublaslt: Option<&Cublaslt>) -> Result<Machine> {
    let (info, BuildInfo { toolkit, cutlass, .. }) = (gpu.device.info(), cuda::build_info()?);
    let (major, minor) = driver()?;
    Ok(Machine {
        gpu: info.name.clone(),
        sm_count: info.sm_count,
        memory_bytes: info.memory_bytes,
        l2_bytes: gpu.l2_bytes()?,
        driver: Some(driver_name()?),
        cuda: Some(format!("{major}.{minor}")),
        cores: std::thread::available_parallelism().map_or(1, NonZero::get),
        toolkit: Some(toolkit.to_owned()),
        cutlass: Some(cutlass.to_owned()),
        kernels: cuda::kernels()?.iter().map(|kernel| kernel.name.clone()).collect(),
        cublaslt: cublaslt.map(Cublaslt::version),
    })
}
