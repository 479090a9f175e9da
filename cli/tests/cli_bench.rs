//! Drives `overlap-gemm bench`, as far as it goes without a GPU: what it refuses, and what it misses.
//!
//! What belongs here: arguments and exit codes. What a bench measures needs a GPU to be looked at.

#[path = "common/binary.rs"]
mod binary;

use binary::{refused, run};

/// A bench with arguments.
fn bench(line: &str) -> Vec<&str> {
    ["bench"].into_iter().chain(line.split_whitespace()).collect()
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (line, words) in [
        ("gemm --shapes 1024x512", &["1024x512", "4096x3584x8192"][..]),
        ("gemm --shapes 1024x512x0", &["k is 0", "between 1 and 2147483647"]),
        ("gemm --shapes 8x8x8 --types bf16,int8", &["int8", "bf16, f16, f32, e4m3, e5m2"]),
        ("gemm --shapes 8x8x8 --types e4m3:f32", &["e4m3 × e4m3 → f32"]),
        ("gemm --shapes 8x8x8 --types f16xbf16", &["f16 × bf16"]),
        ("gemm --shapes 8x8x8 --scaling rows", &["scaling of bf16 inputs"]),
        ("gemm --set headline --shapes 8x8x8", &["--set", "--shapes"]),
        ("gemm --set large", &["large", "llama3-405b"]),
        ("gemm --set headline,llama3-8b --m 64", &["its own M"]),
        ("gemm --m 64", &["--set"]),
        ("gemm --random 3 --set headline", &["cannot be used with"]),
        ("gemm --random 0", &["1..=10000"]),
        ("gemm --random-step 8", &["--random"]),
        ("gemm --contenders own,fused", &["fused", "own, own-set, cublaslt"]),
        ("gemm --splits 0", &["--splits"]),
        ("gemm --swizzles 0", &["--swizzles"]),
        ("gemm --rounds 0", &["--rounds"]),
        ("gemm --target-ms 0", &["1..=60000"]),
        ("all-gather-gemm --streams 1 --blocks 8", &["cannot be used with"]),
        ("all-gather-gemm --ranks 3", &["--host"]),
        ("all-gather-gemm --host --peer x", &["cannot be used with"]),
        (
            "gemm-reduce-scatter --contenders gather",
            &["nccl-cublaslt, nccl, reduce, sequential, pipelined, fused"],
        ),
        ("gemm-reduce-scatter --streams 1 --blocks 8", &["cannot be used with"]),
        ("gemm-reduce-scatter --host", &["--host"]),
        ("gemm-reduce-scatter --types f16", &["give f16xf16:bf16"]),
        ("gemm-all-reduce --types bf16,bf16xbf16:f32", &["has D in f32"]),
        ("gemm-all-reduce --shapes 1024x512", &["1024x512"]),
        (
            "tensor-parallel-mlp --contenders own,nccl",
            &["'nccl' does not measure an MLP", "fused, auto"],
        ),
        ("tensor-parallel-mlp --peer x", &["--peer", "leave it out"]),
    ] {
        refused(&bench(line), 2, words);
    }
    let (code, _, stderr) = run(&["bench"]);
    assert!(code == 2 && stderr.contains("gemm"), "{stderr}");
}

#[test]
fn between_gpus_a_launcher_is_missed() {
    for operation in
        ["all-gather-gemm", "gemm-reduce-scatter", "gemm-all-reduce", "tensor-parallel-mlp"]
    {
        let (code, stdout, stderr) = run(&bench(&format!("{operation} --shapes 64x64x64")));
        assert!(code != 0 && stdout.is_empty() && stderr.contains("launch"), "{code} {stderr}");
        assert_eq!(stderr.contains("--host"), operation == "all-gather-gemm", "{stderr}");
    }
}

/// Where a GPU is, `doctor --require gpu` says so, and this says nothing.
#[test]
fn bench_without_a_gpu_says_what_is_missing() {
    if run(&["doctor", "--require", "gpu"]).0 == 0 {
        return;
    }
    let small = bench("gemm --shapes 8x8x8 --contenders own");
    let (code, stdout, stderr) = run(&small);
    assert_eq!((code, stdout.as_str()), (3, ""), "{stderr}");
    assert!(["no usable GPU", "CUDA kernels"].iter().any(|word| stderr.contains(word)), "{stderr}");
    // The file is named before the GPU is looked for.
    refused(&[&small[..], &["--output", "/proc/nope"]].concat(), 4, &["/proc/nope"]);
}
