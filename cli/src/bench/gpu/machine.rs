//! Which machine it is, and how the GPU is doing.
//!
//! Invariant: what NVML does not tell is left out; nothing here keeps a bench from running.

use std::num::NonZero;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use overlap_gemm::Result;
use overlap_gemm::cuda::{self, BuildInfo};

use super::super::machine::Machine;
use super::super::results::Condition;
use super::cublaslt::Cublaslt;
use super::driver::{Gpu, call};

/// Reads clocks, power and temperature.
pub struct Gauge {
    nvml: Option<Nvml>,
    uuid: String,
}

impl Gauge {
    /// For the GPU that is open, whatever number NVML gives it.
    pub fn new(gpu: &Gpu) -> Result<Gauge> {
        let uuid = call("cuDeviceGetUuid", gpu.device.context().uuid())?;
        let bytes: Vec<u8> = uuid.bytes.iter().map(|&byte| byte as u8).collect();
        Ok(Gauge { nvml: Nvml::init().ok(), uuid: uuid_text(&bytes) })
    }

    /// Right now.
    pub fn read(&self) -> Option<Condition> {
        let device = self.nvml.as_ref()?.device_by_uuid(self.uuid.as_str()).ok()?;
        Some(Condition {
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            power_watts: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        })
    }

    fn driver(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }
}

/// `GPU-01020304-…`, as NVML writes it.
fn uuid_text(bytes: &[u8]) -> String {
    let mut text = String::from("GPU");
    for (place, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&place) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// Everything a reader of the results wants to know.
pub fn describe(gpu: &Gpu, gauge: &Gauge, cublaslt: Option<&Cublaslt>) -> Result<Machine> {
    let (info, BuildInfo { toolkit, cutlass, .. }) = (gpu.device.info(), cuda::build_info()?);
    let (major, minor) = cuda::device::driver()?;
    Ok(Machine {
        gpu: info.name.clone(),
        sm_count: info.sm_count,
        memory_bytes: info.memory_bytes,
        l2_bytes: gpu.l2_bytes()?,
        driver: gauge.driver(),
        cuda: Some(format!("{major}.{minor}")),
        cores: std::thread::available_parallelism().map_or(1, NonZero::get),
        toolkit: Some(toolkit.to_owned()),
        cutlass: Some(cutlass.to_owned()),
        kernels: cuda::kernels()?.iter().map(|kernel| kernel.name.clone()).collect(),
        cublaslt: cublaslt.map(Cublaslt::version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvml_does() {
        let bytes: Vec<u8> = (0..16).map(|i| 0x11 * i).collect();
        assert_eq!(uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
