//! The driver and the GPUs, through NVML and the driver's own library.
//!
//! Both are asked, because each can be absent without the other: a container may have NVML without the driver API, and NVML
//! answers where the driver API cannot start. Invariant: a GPU is suitable only if it is a whole Hopper GPU.

use std::ffi::c_int;

use indicatif::BinaryBytes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use overlap_gemm::topology::Link;
use serde::Serialize;

use super::finding::Finding;
use super::libraries;
use super::links;
use crate::installed::is_absent;

/// What the kernels are compiled for: wgmma and TMA exist on exactly this (`sm_90a`).
const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
const DRIVER_REMEDY: &str =
    "install NVIDIA driver 580 or newer; in a container: --gpus all, which needs the host's driver";
const NVML_REMEDY: &str =
    "it comes with the driver; in a container NVIDIA_DRIVER_CAPABILITIES must include utility";

/// One GPU.
#[derive(Serialize)]
pub struct Gpu {
    index: u32,
    name: String,
    compute_capability: Option<(i32, i32)>,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    mig: bool,
}

impl Gpu {
    /// Whether the kernels are made for it, and can own it whole.
    pub fn suits(&self) -> bool {
        self.compute_capability == Some(COMPUTE_CAPABILITY) && !self.mig
    }

    fn describe(&self) -> String {
        let Gpu { index, name, .. } = self;
        let mut what = format!("{index}: {name}");
        if let Some((major, minor)) = self.compute_capability {
            what += &format!(", compute capability {major}.{minor}");
        }
        if let (Some(free), Some(all)) = (self.free_bytes, self.memory_bytes) {
            what += &format!(", {} free of {}", BinaryBytes(free), BinaryBytes(all));
        }
        what
    }

    fn finding(&self) -> Finding {
        let what = self.describe();
        let (major, minor) = COMPUTE_CAPABILITY;
        if self.compute_capability != Some(COMPUTE_CAPABILITY) {
            return Finding::blocking(
                "GPU",
                format!("{what}: not a Hopper GPU"),
                format!("the kernels need compute capability {major}.{minor} (H100, H200, GH200)"),
            );
        }
        if self.mig {
            let remedy = "MIG slices cannot reach each other: turn MIG off for this GPU";
            return Finding::blocking("GPU", format!("{what}: split by MIG"), remedy);
        }
        Finding::ok("GPU", what)
    }
}

/// The driver and the GPUs.
pub struct Seen {
    /// Driver and GPUs, one each.
    pub findings: Vec<Finding>,
    /// Whether programs can start the driver, and it is new enough.
    pub driver_works: bool,
    /// The GPUs that NVML names.
    pub gpus: Vec<Gpu>,
    /// The links between them.
    pub links: Vec<Vec<Link>>,
}

/// Looks at the driver and at every GPU.
pub fn look() -> Seen {
    let (driver, driver_works) = driver();
    let mut seen = Seen { findings: vec![driver], driver_works, gpus: vec![], links: vec![] };
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            seen.findings.push(nvml_missing(&error));
            return seen;
        }
    };
    if let Ok(version) = nvml.sys_driver_version() {
        seen.findings.push(Finding::ok("NVML", format!("driver {version}")));
    }
    let devices: Vec<Device> = match nvml.device_count() {
        Ok(count) => (0..count).filter_map(|index| nvml.device_by_index(index).ok()).collect(),
        Err(_) => vec![],
    };
    if devices.is_empty() {
        let remedy = "check that the machine has one and that the container may use it";
        seen.findings.push(Finding::blocking("GPU", "NVML names no GPU", remedy));
    }
    seen.gpus = (0..).zip(&devices).map(|(index, device)| ask(index, device)).collect();
    seen.findings.extend(seen.gpus.iter().map(Gpu::finding));
    seen.links = links::between(&devices);
    if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
        let what = format!("CUDA_VISIBLE_DEVICES={}", visible.display());
        let why = "programs see only these GPUs, in this order; the list above has all GPUs";
        seen.findings.push(Finding::note("GPU", what).or(why));
    }
    seen
}

fn ask(index: u32, device: &Device) -> Gpu {
    let memory = device.memory_info().ok();
    Gpu {
        index,
        name: device.name().unwrap_or_else(|_| "unnamed GPU".into()),
        compute_capability: device.cuda_compute_capability().ok().map(|cc| (cc.major, cc.minor)),
        memory_bytes: memory.as_ref().map(|memory| memory.total),
        free_bytes: memory.as_ref().map(|memory| memory.free),
        // An error means that the GPU knows no MIG.
        mig: device.mig_mode().is_ok_and(|mode| mode.current == 1),
    }
}

fn nvml_missing(error: &NvmlError) -> Finding {
    let (what, remedy) = match error {
        NvmlError::LibloadingError(error) if is_absent("libnvidia-ml.so.1", error) => {
            ("libnvidia-ml.so.1 was not found".into(), NVML_REMEDY)
        }
        NvmlError::DriverNotLoaded => (
            "NVML was found, but the driver's kernel module is not loaded".into(),
            "load it (modprobe nvidia) or reboot; in a container, run it with --gpus all",
        ),
        NvmlError::LibRmVersionMismatch => (
            "NVML and the loaded kernel module are of different versions".into(),
            "reboot after a driver update, or repair the container's driver mount",
        ),
        other => (format!("NVML does not start: {other}"), NVML_REMEDY),
    };
    Finding::missing("NVML", what, remedy)
}

/// Starts the driver API, as every CUDA program would.
fn driver() -> (Finding, bool) {
    // SAFETY: this is the driver's library, or one that the machine's owner put in its place. Loading it
    // runs its initialisers, as in every CUDA program.
    let library = match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(library) => library,
        Err(error) if is_absent("libcuda.so.1", &error) => {
            return (
                Finding::blocking("driver", "libcuda.so.1 was not found", DRIVER_REMEDY),
                false,
            );
        }
        Err(error) => {
            let what = format!("libcuda.so.1 was found but cannot be loaded: {error}");
            return (Finding::blocking("driver", what, DRIVER_REMEDY), false);
        }
    };
    // SAFETY: the signature is that of cuda.h: `CUresult cuInit(unsigned int)`.
    let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0") };
    let started = match init {
        // SAFETY: flags must be 0, and it is safe to call at any time and more than once.
        Ok(init) => unsafe { init(0) },
        Err(_) => {
            let what = "libcuda.so.1 is not the driver's: it has no cuInit";
            return (Finding::blocking("driver", what, DRIVER_REMEDY), false);
        }
    };
    if let Some((what, remedy)) = cannot_start(started) {
        let what = format!("the driver does not start: {what} (cuInit returned {started})");
        return (Finding::blocking("driver", what, remedy), false);
    }
    let mut version: c_int = 0;
    // SAFETY: the signature is that of cuda.h: `CUresult cuDriverGetVersion(int *)`.
    let ask = unsafe {
        library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0")
    };
    if let Ok(ask) = ask {
        // SAFETY: `version` outlives the call, which writes one int.
        unsafe { ask(&mut version) };
    }
    // Any version of the same major runs what was built with a newer minor.
    let (major, minor, needed) = (version / 1000, version % 1000 / 10, libraries::cuda_major());
    let what = format!("starts, for programs up to CUDA {major}.{minor}");
    if major >= needed {
        return (Finding::ok("driver", what), true);
    }
    let what = format!("{what}; the kernels need CUDA {needed}");
    (Finding::blocking("driver", what, DRIVER_REMEDY), false)
}

/// What a code of cuInit means and what to do; `None` if it started.
fn cannot_start(code: c_int) -> Option<(&'static str, &'static str)> {
    Some(match code {
        0 => return None,
        100 => (
            "it sees no GPU",
            "give the container a GPU (--gpus all); CUDA_VISIBLE_DEVICES may hide them",
        ),
        802 => (
            "the NVSwitch fabric is not ready",
            "start nvidia-fabricmanager, of the driver's version, on the machine itself",
        ),
        803 => (
            "libcuda.so.1 and the kernel module are of different versions",
            "reboot after a driver update, or repair the container's driver mount",
        ),
        804 => (
            "a compatibility libcuda.so.1 that this GPU does not support is in use",
            "take the cuda-compat folder out of LD_LIBRARY_PATH",
        ),
        _ => ("for an unknown reason", "look for NVRM lines in dmesg"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(compute_capability: Option<(i32, i32)>, mig: bool) -> Gpu {
        Gpu {
            index: 0,
            name: "GPU".into(),
            compute_capability,
            memory_bytes: Some(1 << 34),
            free_bytes: None,
            mig,
        }
    }

    #[test]
    fn only_a_whole_hopper_gpu_suits() {
        assert!(gpu(Some((9, 0)), false).suits());
        for (compute_capability, mig) in
            [(Some((9, 0)), true), (Some((10, 0)), false), (None, false)]
        {
            let gpu = gpu(compute_capability, mig);
            assert!(!gpu.suits() && gpu.finding().keeps_gpus_out, "{}", gpu.describe());
        }
    }
}
