//! Drives `overlap-gemm bench`, as far as it goes without a GPU: what it refuses, and what it misses.
//!
//! What belongs here: arguments and exit codes. What a bench measures needs a GPU to be looked at.

#[path = "common/binary.rs"]
mod binary;

use binary::{refused, run};

#[test]
fn bench_refuses_what_makes_no_sense() {
    let refused = |args: &str, words: &[&str]| {
        let args: Vec<_> = ["bench", "gemm"].into_iter().chain(args.split(' ')).collect();
        refused(&args, 2, words);
    };
    refused("--shapes 1024x512", &["1024x512", "4096x3584x8192"]);
    refused("--shapes 1024x512x0", &["k is 0", "between 1 and 2147483647"]);
    refused("--shapes 8x8x8 --types bf16,int8", &["int8", "bf16, f16, f32, e4m3, e5m2"]);
    refused("--shapes 8x8x8 --types e4m3:f32", &["e4m3 × e4m3 → f32"]);
    refused("--shapes 8x8x8 --scaling rows", &["scaling of bf16 inputs"]);
    refused("--scaling rows", &["--shapes"]);
    refused("--set bf16 --shapes 8x8x8", &["--set", "--shapes"]);
    refused("--set large", &["large", "small-m"]);
    refused("--contenders own,cublas", &["cublas", "cublaslt"]);
    refused("--contenders cublaslt --no-cublaslt", &["no contender is left"]);
    refused("--kernels all,auto", &["--kernels has 'all'"]);
    refused("--splits 0", &["0 is no swizzle and no number of slices"]);
    refused("--rounds 0", &["--rounds"]);
    refused("--target-ms NaN", &["NaN", "from 1 to 60000"]);
    refused("--target-ms 1e300", &["from 1 to 60000"]);
    refused("--chunks 257", &["257"]);
    let (code, _, stderr) = run(&["bench"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("gemm"), "{stderr}");
}

#[test]
fn a_reduction_refuses_what_makes_no_sense_and_misses_a_launcher() {
    for (operation, what) in
        [("gemm-reduce-scatter", "GEMM + reduce-scatter"), ("gemm-all-reduce", "GEMM + all-reduce")]
    {
        check_reduction(operation, what);
    }
}

fn check_reduction(operation: &'static str, what: &str) {
    let bench = |args: &'static str| -> Vec<&str> {
        ["bench", operation].into_iter().chain(args.split_whitespace()).collect()
    };
    refused(
        &bench("--contenders fused"),
        2,
        &["fused", "nccl-cublaslt, nccl, sequential, pipelined"],
    );
    refused(&bench("--shapes 1024x512"), 2, &["1024x512"]);
    refused(&bench("--host"), 2, &["--host"]);
    let (code, help, _) = run(&bench("--help"));
    assert!(
        code == 0 && help.contains("K of one rank") && help.contains("NCCL's reduction"),
        "{help}"
    );
    assert!(help.starts_with(&format!("Time {what} between GPUs")), "{help}");
    let (code, stdout, stderr) = run(&bench("--shapes 64x64x64"));
    assert!(code != 0 && stdout.is_empty() && stderr.contains("launch"), "{code} {stderr}");
    assert!(!stderr.contains("--host"), "{stderr}");
}

/// Where a GPU is, `doctor --require gpu` says so, and this says nothing.
#[test]
fn bench_without_a_gpu_says_what_is_missing() {
    if run(&["doctor", "--require", "gpu"]).0 == 0 {
        return;
    }
    let small = ["bench", "gemm", "--shapes", "8x8x8", "--no-cublaslt"];
    let (code, stdout, stderr) = run(&small);
    assert_eq!((code, stdout.as_str()), (3, ""), "{stderr}");
    assert!(["no usable GPU", "CUDA kernels"].iter().any(|word| stderr.contains(word)), "{stderr}");
    // The file is named before the GPU is looked for.
    refused(&[&small[..], &["--output", "/proc/nope"]].concat(), 4, &["/proc/nope"]);
}
