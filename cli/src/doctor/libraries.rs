//! NCCL, cuBLASLt, the CUDA compiler, and the kernels of this binary.
//!
//! Invariant: a library that the loader does not find is reported with the setting that makes the loader find it.

use std::path::Path;
use std::process::Command;

#[cfg(feature = "cuda")]
use overlap_gemm::Error;

use super::Finding;
use crate::installed::{self, Found, toolkit_roots};

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
            Finding::missing("kernels", "this binary was built without them", reason)
        }
        Err(error) => Finding::missing("kernels", error.to_string(), "build the binary again"),
    }
    #[cfg(not(feature = "cuda"))]
    Finding::missing(
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

pub fn nccl() -> Finding {
    let lacks = "needed to compare with NCCL, and to fall back to it: pip install nvidia-nccl-cu13; to fall back, also \
                 name its file by OVERLAP_GEMM_NCCL, or add its folder to LD_LIBRARY_PATH";
    library("NCCL", installed::nccl(), lacks)
}

pub fn cublaslt() -> Finding {
    let lacks = "needed to compare with cuBLAS only: pip install nvidia-cublas";
    library("cuBLASLt", installed::cublaslt(), lacks)
}

fn library(topic: &'static str, found: Found, lacks: &str) -> Finding {
    match found {
        Found::ByLoader(name, _) => Finding::ok(topic, name),
        Found::OffPath(path, _) => {
            let folder = path.parent().unwrap_or(Path::new("")).display();
            let remedy =
                format!("the benches find it there; for others add {folder} to LD_LIBRARY_PATH");
            Finding::note(topic, format!("in {folder}, where the loader does not look"), remedy)
        }
        Found::Broken(path, reason) => {
            let what = format!("{} was found but cannot be loaded", path.display());
            Finding::note(topic, what, reason)
        }
        Found::Nowhere => Finding::note(topic, "not found", lacks),
    }
}

pub fn toolkit() -> Finding {
    for (place, root) in toolkit_roots() {
        let Ok(output) = Command::new(root.join("bin/nvcc")).arg("--version").output() else {
            continue;
        };
        // `Cuda compilation tools, release 13.0, V13.0.88`.
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some((_, release)) = text.split_once("release ") {
            let release = release.split([',', '\n']).next().unwrap_or_default();
            let what = format!("{release}, in {} ({place})", root.display());
            return Finding::ok("CUDA toolkit", what);
        }
    }
    let lacks =
        "needed to build the kernels only: third_party/fetch, in the repository, brings one";
    Finding::note("CUDA toolkit", "not found", lacks)
}
