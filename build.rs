//! Builds the device code, under feature `cuda` only (`build/cuda.rs`); otherwise it does nothing.

#[cfg(feature = "cuda")]
#[path = "build/cuda.rs"]
mod cuda;

fn main() {
    // First, before anything can return: what decides whether this script runs again.
    println!("cargo::rustc-check-cfg=cfg(overlap_gemm_kernels)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    #[cfg(feature = "cuda")]
    cuda::build();
}
