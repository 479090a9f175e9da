//! The driver and the GPUs, through NVML and the driver's own library.
//!
//! Both are asked, because each can be absent without the other: a container may have NVML without the driver API, and NVML
//! answers where the driver API cannot start. Invariant: a GPU is suitable only if it is a whole Hopper GPU.

use std::ffi::c_int;

use indicatif::BinaryBytes;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Finding, libraries};
use crate::installed::is_absent;

/// What a GPU's finding is about.
pub const TOPIC: &str = "GPU";
/// What the kernels are compiled for: wgmma and TMA exist on exactly this (`sm_90a`).
const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
/// The most NVLinks that a GPU of NVML's can have.
const MAX_LINKS: u32 = 18;
const DRIVER_REMEDY: &str =
    "install NVIDIA driver 580 or newer; in a container: --gpus all, which needs the host's driver";
const NVML_REMEDY: &str =
    "it comes with the driver; in a container NVIDIA_DRIVER_CAPABILITIES must include utility";

/// NVML, its GPUs, and the links between them.
pub fn devices() -> Vec<Finding> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => return vec![nvml_missing(&error)],
    };
    let version = nvml.sys_driver_version().unwrap_or("of unknown version".into());
    let mut findings = vec![Finding::ok("NVML", format!("driver {version}"))];
    let count = nvml.device_count().unwrap_or(0);
    let devices: Vec<Device> =
        (0..count).filter_map(|index| nvml.device_by_index(index).ok()).collect();
    if devices.is_empty() {
        let remedy = "check that the machine has one and that the container may use it";
        findings.push(Finding::missing(TOPIC, "NVML names no GPU", remedy));
    }
    findings.extend((0..).zip(&devices).map(|(index, device)| one(index, device)));
    if devices.len() > 1 {
        findings.push(links(&devices));
    }
    if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
        let what = format!("CUDA_VISIBLE_DEVICES={}", visible.display());
        let why = "programs see only these GPUs, in this order; the list above has all GPUs";
        findings.push(Finding::note(TOPIC, what, why));
    }
    findings
}

fn one(index: usize, device: &Device) -> Finding {
    let name = device.name().unwrap_or_else(|_| "unnamed GPU".into());
    let mut what = format!("{index}: {name}");
    let capability = device.cuda_compute_capability().ok().map(|cc| (cc.major, cc.minor));
    if let Some((major, minor)) = capability {
        what += &format!(", compute capability {major}.{minor}");
    }
    if let Ok(memory) = device.memory_info() {
        what += &format!(", {} free of {}", BinaryBytes(memory.free), BinaryBytes(memory.total));
    }
    // An error means that the GPU knows no MIG.
    suitable(what, capability, device.mig_mode().is_ok_and(|mode| mode.current == 1))
}

fn suitable(what: String, capability: Option<(i32, i32)>, mig: bool) -> Finding {
    match (capability == Some(COMPUTE_CAPABILITY), mig) {
        (false, _) => {
            let remedy = "the kernels need compute capability 9.0 (H100, H200, GH200)";
            Finding::missing(TOPIC, what + ": not a Hopper GPU", remedy)
        }
        (true, true) => {
            let remedy = "MIG slices cannot reach each other: turn MIG off for this GPU";
            Finding::missing(TOPIC, what + ": split by MIG", remedy)
        }
        (true, false) => Finding::ok(TOPIC, what),
    }
}

/// Whether each GPU can read the others' memory, and by NVLink or PCIe.
fn links(devices: &[Device]) -> Finding {
    const TOPIC: &str = "links";
    for (from, device) in devices.iter().enumerate() {
        for (to, other) in devices.iter().enumerate().filter(|(to, _)| *to != from) {
            let unknown = match device.p2p_status(other, P2pCapabilitiesIndex::Read) {
                Ok(P2pStatus::Ok) => continue,
                Ok(P2pStatus::Unknown) | Err(_) => true,
                Ok(_) => false,
            };
            let what = match unknown {
                true => format!("NVML does not say whether GPU {from} can read GPU {to}'s memory"),
                false => format!("GPU {from} cannot read GPU {to}'s memory"),
            };
            return Finding::note(TOPIC, what, "without that, rows travel by NCCL only");
        }
    }
    let nvlinks = |device: &Device| {
        let active = |link: &u32| device.link_wrapper_for(*link).is_active().unwrap_or(false);
        (0..MAX_LINKS).filter(active).count()
    };
    match devices.iter().map(nvlinks).min().unwrap_or(0) {
        0 => {
            let slow = "several times slower than NVLink: nothing here was tuned for it";
            Finding::note(TOPIC, "all GPUs reach each other, some over PCIe", slow)
        }
        least => Finding::ok(
            TOPIC,
            format!("all GPUs reach each other, with {least} NVLinks or more each"),
        ),
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

/// The driver API, started as every CUDA program would.
pub fn driver() -> Finding {
    match start() {
        Ok(what) => Finding::ok("driver", what),
        Err((what, remedy)) => Finding::missing("driver", what, remedy),
    }
}

/// What it can, or what it lacks and the remedy.
fn start() -> Result<String, (String, &'static str)> {
    let refused = |what: String| (what, DRIVER_REMEDY);
    // SAFETY: this is the driver's library, or one that the machine's owner put in its place. Loading it
    // runs its initialisers, as in every CUDA program.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| {
        refused(match is_absent("libcuda.so.1", &error) {
            true => "libcuda.so.1 was not found".into(),
            false => format!("libcuda.so.1 was found but cannot be loaded: {error}"),
        })
    })?;
    // SAFETY: the signature is that of cuda.h: `CUresult cuInit(unsigned int)`.
    let init = unsafe { library.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0") };
    let init =
        init.map_err(|_| refused("libcuda.so.1 is not the driver's: it has no cuInit".into()))?;
    // SAFETY: flags must be 0, and it is safe to call at any time and more than once.
    let started = unsafe { init(0) };
    if let Some((what, remedy)) = cannot_start(started) {
        let what = format!("the driver does not start: {what} (cuInit returned {started})");
        return Err((what, remedy));
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
    match major >= needed {
        true => Ok(what),
        false => Err(refused(format!("{what}; the kernels need CUDA {needed}"))),
    }
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
    use super::super::State;
    use super::*;

    #[test]
    fn only_a_whole_hopper_gpu_suits() {
        let state = |capability, mig| suitable("0: GPU".into(), capability, mig).state;
        assert!(state(Some((9, 0)), false) == State::Ok);
        for (capability, mig) in [(Some((9, 0)), true), (Some((10, 0)), false), (None, false)] {
            assert!(state(capability, mig) == State::Missing);
        }
    }
}
