//! Compiles the kernel by the nvcc, the CUTLASS and the headers that overlap-gemm was built with.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(own_kernel)");
    println!("cargo::rerun-if-changed=csrc");
    // What overlap-gemm's build script tells the crates that depend on it; nothing where it has built no kernels.
    let told = |key: &str| env::var_os(format!("DEP_OVERLAP_GEMM_{key}"));
    let [Some(nvcc), Some(include), Some(cutlass)] = ["NVCC", "INCLUDE", "CUTLASS"].map(told)
    else {
        return;
    };
    let out_dir = env::var("OUT_DIR").expect("cargo says where");
    let mut compiler = Command::new(nvcc);
    compiler.args(["-gencode", "arch=compute_90a,code=sm_90a", "-O3", "-std=c++17", "-DNDEBUG"]);
    compiler.args(["--expt-relaxed-constexpr", "-Xcompiler", "-fPIC"]);
    compiler.arg("-I").arg(include).arg("-isystem").arg(cutlass);
    compiler
        .args(["-lib", "csrc/swiglu.cu", "-o"])
        .arg(Path::new(&out_dir).join("libown_kernel.a"));
    let ended = compiler.status().expect("nvcc starts");
    assert!(ended.success(), "nvcc: {ended}");
    println!("cargo::rustc-link-search=native={out_dir}");
    println!("cargo::rustc-link-lib=static=own_kernel");
    println!("cargo::rustc-cfg=own_kernel");
}
