//! NCCL, cuBLASLt, the CUDA compiler, and the kernels of this binary.
//!
//! Invariant: a library that the loader does not find is reported with the setting that makes the loader find it.

use std::ffi::c_int;
use std::path::Path;
use std::process::Command;

use libloading::Library;
#[cfg(feature = "cuda")]
use overlap_gemm::Error;

use super::finding::Finding;
use crate::installed::{self, Found, toolkit_roots};

/// Looks for the libraries and the compiler.
pub fn look() -> Vec<Finding> {
    vec![nccl(), cublaslt(), toolkit()]
}

/// Whether this binary carries the kernels.
pub fn kernels() -> Finding {
    #[cfg(feature = "cuda")]
    match overlap_gemm::cuda::build_info() {
        Ok(info) => {
            let (toolkit, cutlass) = (info.toolkit, info.cutlass);
            let (here, all) = (info.instances.len(), overlap_gemm::kernels::all_kernels().len());
            let what = format!("{here} of {all}, with CUDA {toolkit} and CUTLASS {cutlass}");
            Finding::ok("kernels", what)
        }
        Err(Error::KernelsNotBuilt { reason }) => {
            Finding::blocking("kernels", "this binary was built without them", reason)
        }
        Err(error) => Finding::blocking("kernels", error.to_string(), "build the binary again"),
    }
    #[cfg(not(feature = "cuda"))]
    Finding::blocking(
        "kernels",
        "this binary was built without the feature `cuda`",
        "build it with --features cuda",
    )
}

/// The CUDA major version that the driver must support for the kernels to run.
pub fn cuda_major() -> i32 {
    /// That of the toolkit which third_party/fetch brings: what a build would use.
    const PINNED: i32 = 13;
    #[cfg(feature = "cuda")]
    if let Ok(info) = overlap_gemm::cuda::build_info() {
        let major = info.toolkit.split('.').next().and_then(|major| major.parse().ok());
        return major.unwrap_or(PINNED);
    }
    PINNED
}

fn nccl() -> Finding {
    let found = installed::nccl();
    let version = |library: &Library| {
        let mut version: c_int = 0;
        // SAFETY: the signature is that of nccl.h: `ncclResult_t ncclGetVersion(int *)`; `version`
        // outlives the call.
        let code = unsafe {
            let ask = library
                .get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0")
                .ok()?;
            ask(&mut version)
        };
        (code == 0).then(|| nccl_version(version))
    };
    let lacks = "needed to compare with NCCL, and to fall back to it: pip install nvidia-nccl-cu13; to fall back, also \
                 name its file by OVERLAP_GEMM_NCCL, or add its folder to LD_LIBRARY_PATH";
    report("NCCL", found, version, lacks)
}

/// 2.9 and later write 22100 for 2.21.0; before, 2804 meant 2.8.4.
fn nccl_version(code: c_int) -> String {
    let step = if code < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", code / step, code % step / 100, code % 100)
}

fn cublaslt() -> Finding {
    let found = installed::cublaslt();
    let version = |library: &Library| {
        // SAFETY: the signature is that of cublasLt.h: `size_t cublasLtGetVersion(void)`.
        let code = unsafe {
            library.get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion\0").ok()?()
        };
        Some(installed::cublaslt_version(code))
    };
    let lacks = "needed to compare with cuBLAS only: pip install nvidia-cublas";
    report("cuBLASLt", found, version, lacks)
}

fn report(
    topic: &'static str,
    found: Found,
    version: impl Fn(&Library) -> Option<String>,
    lacks: &str,
) -> Finding {
    let describe = |library: &Library| version(library).unwrap_or("of unknown version".into());
    match found {
        Found::ByLoader(name, library) => {
            Finding::ok(topic, format!("{}, as {name}", describe(&library)))
        }
        Found::OffPath(path, library) => {
            let folder = path.parent().unwrap_or(Path::new("")).display();
            let what =
                format!("{}, in {folder}, where the loader does not look", describe(&library));
            let remedy =
                format!("the benches find it there; for others add {folder} to LD_LIBRARY_PATH");
            Finding::note(topic, what).or(remedy)
        }
        Found::Broken(path, reason) => {
            let what = format!("{} was found but cannot be loaded", path.display());
            Finding::note(topic, what).or(reason)
        }
        Found::Nowhere => Finding::note(topic, "not found").or(lacks),
    }
}

fn toolkit() -> Finding {
    let lacks =
        "needed to build the kernels only: third_party/fetch, in the repository, brings one";
    for (place, root) in toolkit_roots() {
        let nvcc = root.join("bin/nvcc");
        let Ok(output) = Command::new(&nvcc).arg("--version").output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some(release) = release(&text) {
            return Finding::ok(
                "CUDA toolkit",
                format!("{release}, in {} ({place})", root.display()),
            );
        }
        let what = format!("{} --version names no release", nvcc.display());
        return Finding::note("CUDA toolkit", what).or(lacks);
    }
    Finding::note("CUDA toolkit", "not found").or(lacks)
}

/// `13.0` out of what nvcc prints: `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(text: &str) -> Option<&str> {
    text.split_once("release ")?.1.split([',', '\n']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(nccl_version(22_703), "2.27.3");
        assert_eq!(nccl_version(2804), "2.8.4");
        assert_eq!(release("Cuda compilation tools, release 13.0, V13.0.88\n"), Some("13.0"));
        assert_eq!(release("no such thing"), None);
    }
}
