//! Which GPUs there are, and whether this crate can use them.
//!
//! What belongs here: everything between "is there a driver" and an open device. Invariant: no
//! panic, with any part missing. `cudarc` panics at the first driver call if the driver library is
//! absent (even when it only formats an error), so every path into it goes through [`driver`]
//! first. Looking costs no context: [`devices`] leaves the GPUs as they were.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::Driver;
use crate::error::{Error, Result};
use crate::group::{Group, GroupOptions, Launch};

/// What the driver says about one GPU.
///
/// ```no_run
/// use overlap_gemm::cuda::devices;
///
/// let hopper: Vec<_> = devices()?.into_iter().filter(|gpu| gpu.check().is_ok()).collect();
/// println!("{} GPUs that the kernels run on", hopper.len());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its number, as `CUDA_VISIBLE_DEVICES` and [`Device::open`] count.
    pub ordinal: usize,
    /// `NVIDIA H200`.
    pub name: String,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// `(9, 0)` for Hopper.
    pub compute_capability: (u32, u32),
    /// Bytes of device memory.
    pub memory_bytes: u64,
}

impl DeviceInfo {
    /// An H200, for tests without one.
    #[cfg(test)]
    pub(crate) fn made_up() -> Self {
        DeviceInfo {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            sm_count: 132,
            compute_capability: (9, 0),
            memory_bytes: 1 << 37,
        }
    }

    /// Whether the kernels run on this GPU: compute capability 9.0, nothing older and nothing newer,
    /// for they use instructions that exist there alone.
    pub fn check(&self) -> Result<()> {
        if self.compute_capability == (9, 0) {
            return Ok(());
        }
        let (major, minor) = self.compute_capability;
        Err(Error::NoDevice {
            reason: format!(
                "GPU {} ({}) has compute capability {major}.{minor}, the kernels are for 9.0: use a \
                 Hopper GPU (H100, H200, GH200) or the host executor",
                self.ordinal, self.name
            ),
        })
    }
}

/// The CUDA version that the driver supports, `(13, 0)`, or why there is no usable driver.
///
/// ```no_run
/// use overlap_gemm::cuda::device::driver;
///
/// let (major, minor) = driver()?;
/// println!("CUDA {major}.{minor}");
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn driver() -> Result<(u32, u32)> {
    static DRIVER: OnceLock<Result<(u32, u32)>> = OnceLock::new();
    DRIVER.get_or_init(find_driver).clone()
}

fn find_driver() -> Result<(u32, u32)> {
    // SAFETY: loads and unloads a library that has no requirements of its own.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDevice {
            reason:
                "the CUDA driver library (libcuda.so.1) could not be loaded: install the NVIDIA \
                     driver, and in a container pass the GPUs in (docker run --gpus all)"
                    .into(),
        });
    }
    result::init().map_err(|error| Error::NoDevice {
        reason: format!(
            "the CUDA driver does not start ({error}): see whether nvidia-smi lists a GPU, whether \
             CUDA_VISIBLE_DEVICES hides it, and whether /dev/nvidia* may be opened"
        ),
    })?;
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().in_call("cuDriverGetVersion")?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// Which driver it is, for people and for comparing: its own version (`580.159.04`) where the system tells, else the
/// CUDA version that it supports (`CUDA 13.0`).
///
/// ```no_run
/// println!("{}", overlap_gemm::cuda::device::driver_name()?);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn driver_name() -> Result<String> {
    let (major, minor) = driver()?;
    let told = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(release(&told).unwrap_or_else(|| format!("CUDA {major}.{minor}")))
}

/// The version in `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …`.
fn release(told: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    told.lines().next()?.split_whitespace().find(is_version).map(String::from)
}

/// Whether the driver is new enough for the runtime that the kernels are linked with: any version
/// of the same CUDA major, or of a later one.
fn check_driver_version() -> Result<()> {
    let (major, minor) = driver()?;
    let built = super::build_info::build_info()?.toolkit;
    match built.split('.').next().and_then(|part| part.parse::<u32>().ok()) {
        Some(needed) if major < needed => Err(Error::NoDevice {
            reason: format!(
                "the driver supports CUDA {major}.{minor}, the kernels were built with CUDA {built}: \
                 update the driver, or build with a toolkit of CUDA {major} (OVERLAP_GEMM_CUDA_HOME)"
            ),
        }),
        _ => Ok(()),
    }
}

/// All GPUs that the driver shows; there may be none. Creates no context.
///
/// ```
/// match overlap_gemm::cuda::devices() {
///     Ok(all) => all.iter().for_each(|gpu| println!("{}: {}", gpu.ordinal, gpu.name)),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub fn devices() -> Result<Vec<DeviceInfo>> {
    driver()?;
    let count = result::device::get_count().in_call("cuDeviceGetCount")?;
    (0..count).map(info).collect()
}

fn info(ordinal: i32) -> Result<DeviceInfo> {
    let device = result::device::get(ordinal).in_call("cuDeviceGet")?;
    let name = result::device::get_name(device).in_call("cuDeviceGetName")?;
    let attribute = |which| {
        // SAFETY: `device` is one that the driver has just named.
        unsafe { result::device::get_attribute(device, which) }
            .map(i32::unsigned_abs)
            .in_call("cuDeviceGetAttribute")
    };
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) };
    Ok(DeviceInfo {
        ordinal: ordinal as usize,
        name,
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: memory.in_call("cuDeviceTotalMem")? as u64,
    })
}

/// An open GPU that the kernels run on: its description and its primary context.
///
/// ```no_run
/// use overlap_gemm::cuda::Device;
///
/// let device = Device::open(0)?;
/// let stream = device.new_stream()?;
/// println!("{}: {} SMs", device.info().name, device.info().sm_count);
/// # drop(stream);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    /// `cudarc` tracks who uses memory of a context that has made a stream: see `check_tracked`.
    _tracks_uses: Arc<CudaStream>,
}

impl Device {
    /// Opens a GPU by its number. Fails if there is no driver or no such GPU, if it is not a Hopper GPU, if this binary has
    /// no kernels, and if the driver is of an older CUDA major than they are.
    pub fn open(ordinal: usize) -> Result<Device> {
        let all = devices()?;
        let Some(info) = all.get(ordinal) else {
            return Err(Error::NoDevice {
                reason: format!(
                    "there is no GPU {ordinal}, the driver shows {}: see CUDA_VISIBLE_DEVICES",
                    all.len()
                ),
            });
        };
        info.check()?;
        check_driver_version()?;
        let context = CudaContext::new(ordinal).in_call("cuDevicePrimaryCtxRetain")?;
        // SAFETY: nobody else has this context yet, so nothing of it goes untracked.
        let tracks_uses = unsafe {
            // While it tracks, the first stream that it makes waits for all work of the process. A fork would touch the legacy
            // stream instead, which fails, and spoils a capture, while another thread captures a blocking stream.
            context.disable_event_tracking();
            let made = context.new_stream();
            context.enable_event_tracking();
            made
        };
        let tracks_uses = tracks_uses.in_call("cuStreamCreate")?;
        Ok(Device { info: info.clone(), context, _tracks_uses: tracks_uses })
    }

    /// Opens the GPU of this process's local rank, and joins its launcher's group with it ([`Group::from_env`]): `options` need not
    /// name it. Blocks until all ranks have joined. If there are fewer GPUs than local ranks, several ranks take one GPU; the group
    /// refuses that unless [`GroupOptions::shared_devices`] allows it.
    pub fn join(options: &GroupOptions) -> Result<(Arc<Group>, Device)> {
        let local_rank = Launch::from_env()?.local_rank as usize;
        // A launcher may show each process no GPU but its own.
        let device = Device::open(local_rank % devices()?.len().max(1))?;
        let group = Group::from_env(&options.clone().device(&device.bus_id()?))?;
        Ok((Arc::new(group), device))
    }

    /// What the driver says about it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its primary context, which the CUDA runtime and other libraries of the process use too: operations take streams and memory
    /// that any of them made on this GPU. To use a `CudaContext` that you have, open its [`ordinal`](CudaContext::ordinal).
    ///
    /// ```no_run
    /// use overlap_gemm::cuda::Device;
    /// use overlap_gemm::cuda::cudarc::driver::CudaContext;
    ///
    /// let theirs = CudaContext::new(0)?; // of another library
    /// let device = Device::open(theirs.ordinal())?;
    /// assert_eq!(device.context(), &theirs);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Where it is on the PCI bus, as the driver writes it: `0000:1b:00.0`. What
    /// [`GroupOptions::device`](crate::group::GroupOptions::device) wants to know.
    pub fn bus_id(&self) -> Result<String> {
        let mut text = [0u8; 32];
        // SAFETY: the driver writes at most the given number of bytes, the last of them 0.
        unsafe {
            let (start, length) = (text.as_mut_ptr().cast(), text.len() as i32);
            sys::cuDeviceGetPCIBusId(start, length, self.context.cu_device())
        }
        .result()
        .in_call("cuDeviceGetPCIBusId")?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().to_lowercase())
    }

    /// A new stream that does not wait for the default stream.
    pub fn new_stream(&self) -> Result<Arc<CudaStream>> {
        self.context.new_stream().in_call("cuStreamCreate")
    }

    /// An error unless work on `stream` runs on this device, in one order for all that enqueue it.
    pub(crate) fn check_stream(&self, stream: &CudaStream) -> Result<()> {
        /// The handle that means another stream on each thread.
        const PER_THREAD: usize = 2;
        check_context("the stream", stream.context(), &self.context)?;
        if stream.cu_stream() as usize != PER_THREAD {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "the per-thread default stream".into(),
            why: "it is another stream on each thread, so its uses have no order".into(),
            remedy: "make a stream with Device::new_stream",
        })
    }

    /// Makes the context current on this thread, so that C++ code finds it.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().in_call("cuCtxSetCurrent")
    }
}

/// An error unless something belongs to the device of the plan.
pub(crate) fn check_context(
    what: &str,
    got: &Arc<CudaContext>,
    expected: &Arc<CudaContext>,
) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    let remedy = "use one device for the plan, its streams and its memory";
    let (got, expected) = (got.ordinal(), expected.ordinal());
    Err(Error::mismatch(format!("the device of {what}"), got, expected, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hopper_will_do() {
        let gpu = |compute_capability| DeviceInfo {
            ordinal: 3,
            name: "some GPU".into(),
            compute_capability,
            ..DeviceInfo::made_up()
        };
        assert_eq!(gpu((9, 0)).check(), Ok(()));
        for other in [(8, 0), (8, 9), (10, 0), (12, 0)] {
            let error = gpu(other).check().unwrap_err().to_string();
            assert!(error.contains("GPU 3 (some GPU)") && error.contains("9.0"), "{error}");
        }
    }

    #[test]
    fn a_driver_s_version_is_found_in_what_it_says_of_itself() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC \
                    version:  gcc version 12.2.0";
        assert_eq!(release(open).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024";
        assert_eq!(release(closed).as_deref(), Some("550.54.15"));
        assert_eq!(release(""), None);
        assert_eq!(release("NVRM version: something else\n12.3"), None);
    }

    #[test]
    fn looking_for_gpus_never_panics() {
        match devices() {
            Ok(all) => {
                let error = Device::open(all.len()).map(|_| ()).unwrap_err();
                assert!(matches!(error, Error::NoDevice { .. }), "{error}");
            }
            Err(error) => {
                assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
                assert_eq!(Device::open(0).map(|_| ()).unwrap_err(), error);
            }
        }
    }
}
