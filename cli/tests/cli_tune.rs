//! Drives `overlap-gemm tune`, as far as it goes without a GPU: what it refuses, and what it says of tables.
//!
//! What belongs here: arguments, exit codes, files. What it measures needs GPUs to be looked at.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;

use binary::{command, outcome, refused, run};
use folder::Folder;
use overlap_gemm::ElementType;
use overlap_gemm::plan::{
    BLayout, ClusterShape, ElementTypes, Engine, Operation, Scaling, Strategy, TileShape, Way,
};
use overlap_gemm::tune::{Entry, Family, Multiplying, Shape, Times, record};
use serde_json::Value;

/// What the cost model likes for 4096 rows.
const KERNEL: &str = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";

/// M × 3584 × 8192 on two H200, fastest with this number of pieces.
fn entry(m: u32, pieces: u32, us: f64) -> Entry {
    Entry {
        family: Family {
            operation: Operation::AllGatherGemm,
            gpu: "NVIDIA H200".into(),
            ranks: 2,
            elements: ElementTypes::all(ElementType::Bf16),
            scaling: Scaling::None,
            b_layout: BLayout::Nk,
        },
        shape: Shape { m, n: 3584, k: 8192 },
        sms: 132,
        driver: "580.1".into(),
        crate_version: "0.1.0".into(),
        way: Way { strategy: Strategy::Fused, engine: Engine::CopyEngines { streams: 1 }, pieces },
        multiplying: Some(Multiplying {
            kernel: KERNEL.into(),
            tile: TileShape { m: 128, n: 128 },
            cluster: ClusterShape { m: 2, n: 1 },
            swizzle: 4,
            splits: 1,
        }),
        us: Times { graph: Some(us), plain: None },
    }
}

#[test]
fn tune_refuses_what_makes_no_sense() {
    let refused = |args: &str, words: &[&str]| {
        let args: Vec<_> = ["tune"].into_iter().chain(args.split(' ')).collect();
        refused(&args, 2, words);
    };
    refused("--shapes 8x8", &["8x8", "4096x3584x8192"]);
    refused("--shapes 8x8x0 --output x.json", &["k is 0"]);
    refused("--set headline --shapes 8x8x8", &["--set", "--shapes"]);
    refused("--set headline --m 64 --output x.json", &["its own M"]);
    refused("--show --ranks 7 --set gpt3", &["7 ranks"]);
    refused("--ranks 2", &["--show"]);
    refused("--show --ranks 0", &["--ranks"]);
    refused("reduce-scatter", &["reduce-scatter", "gemm-reduce-scatter", "gemm-all-reduce"]);
    refused("gemm-all-reduce --types f16 --output x.json", &["--types", "sums travel in bf16"]);
}

#[test]
fn tune_without_a_launcher_or_a_gpu_says_what_is_missing() {
    let folder = Folder::new("missing");
    let args = ["tune", "--output", &folder.path("table.json")];
    let outcome = |named: &[(&str, &str)]| {
        let mut command = command(&args);
        for name in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
            command.env_remove(name);
        }
        outcome(&args, command.envs(named.iter().copied()).output().unwrap())
    };
    let (code, stdout, stderr) = outcome(&[]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.contains("overlap-gemm launch"), "{stderr}");
    if run(&["doctor", "--require", "gpu"]).0 == 0 {
        return; // ranks could measure here
    }
    let started = |ranks: &str| {
        let place = [("RANK", "0"), ("WORLD_SIZE", ranks), ("LOCAL_RANK", "0")];
        let address = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
        outcome(&[place.as_slice(), &address].concat())
    };
    let (code, _, stderr) = started("1");
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("nothing to gather"), "{stderr}");
    let (code, _, stderr) = started("2");
    assert_eq!(code, 3, "{stderr}");
}

/// `tune --show` for two ranks, with that table.
fn show(table: &str, more: &[&str]) -> (i32, String, String) {
    let args = [&["tune", "--show"], more].concat();
    outcome(&args, command(&args).env("OVERLAP_GEMM_TUNING", table).output().unwrap())
}

#[test]
fn show_says_tuned_nearest_or_modelled() {
    let folder = Folder::new("show");
    let file = folder.path("table.json");
    let entries = [entry(2048, 2, 200.0), entry(4096, 2, 400.0), entry(8192, 1, 800.0)];
    record(file.as_ref(), &entries).unwrap();
    let shapes = ["--shapes", "4096x3584x8192,4800x3584x8192,90x3584x8192"];
    let (code, stdout, stderr) = show(&file, &shapes);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for words in [
        "tuned: measured for this problem, 400.0 µs in graphs",
        "fused, copy engines on one stream, 2 pieces",
        "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong, swizzle 4, K in 1",
        "nearest: measured for 4096×3584×8192, 400.0 µs in graphs",
        "modelled: predicted to take ",
        ", nothing like it is in a table",
    ] {
        assert!(stdout.contains(words), "'{words}' is not in {stdout}");
    }
    let (_, json, _) = show(&file, &[&shapes[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["problems"][1]["way"]["pieces"], 2);
    // Nothing is known of other GPUs, nor of other numbers of ranks.
    let other = show(&file, &[&shapes[..], &["--gpu", "NVIDIA H100 80GB HBM3"]].concat()).1;
    let words = "no figures of NVIDIA H100 80GB HBM3 are known: by those of NVIDIA H200\n";
    assert!(other.contains(words) && !stdout.contains("no figures"), "{other}");
    let eight = show(&file, &[&shapes[..], &["--ranks", "8"]].concat()).1;
    for stdout in [other, eight] {
        assert!(!stdout.contains("tuned:") && !stdout.contains("nearest"), "{stdout}");
    }
}

#[test]
fn show_has_reductions_with_entries_of_their_own() {
    let folder = Folder::new("show-reductions");
    let file = folder.path("table.json");
    let mut reduced = entry(4096, 1, 300.0);
    reduced.family.operation = Operation::GemmReduceScatter;
    (reduced.shape.n, reduced.shape.k) = (8192, 3584);
    record(file.as_ref(), &[reduced, entry(4096, 2, 400.0)]).unwrap();
    let shown = |operation: &str, shapes: &str| {
        let (code, stdout, stderr) = show(&file, &[operation, "--shapes", shapes]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        stdout
    };
    let turned = "4096x8192x3584,4400x8192x3584,64x8192x3584";
    let text = shown("gemm-reduce-scatter", turned);
    for words in [
        "GEMM + reduce-scatter on NVIDIA H200\n",
        "tuned: measured for this problem, 300.0 µs in graphs\n  fused, copy engines on one stream, 1 piece\n  bf16_",
        "nearest: measured for 4096×8192×3584, 300.0 µs in graphs\n",
        // Few rows: by a kernel, and what the other ways are predicted to take.
        "; pipelined, copy engines on one stream, 1 piece: ",
        "\n  sequential, a kernel of 64 blocks, 1 piece\n",
    ] {
        assert!(text.contains(words), "'{words}' is not in {text}");
    }
    assert!(!shown("gemm-all-reduce", turned).contains("measured"));
    assert!(!shown("all-gather-gemm", turned).contains("measured"));
    assert!(shown("all-gather-gemm", "4096x3584x8192").contains("tuned: measured"));
}

#[test]
fn a_table_that_cannot_be_trusted_is_told_of_and_stops_nobody() {
    let folder = Folder::new("bad");
    let file = folder.path("table.json");
    for (text, words) in [
        ("{\"format\"", "damaged"),
        ("{\"some\": \"thing\"}", "no table of this program"),
        (
            "{\"format\":\"overlap-gemm tuning\",\"version\":5,\"new\":[]}",
            "version 5, and this program reads 4",
        ),
        (
            "{\"format\":\"overlap-gemm tuning\",\"version\":3,\"entries\":[]}",
            "version 3, and this program reads 4: use the program that wrote it, or move it away",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let (code, stdout, stderr) = show(&file, &["--shapes", "64x64x64"]);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.contains(&file) && stdout.contains(words), "{stdout}");
        assert!(stdout.contains("modelled"), "{stdout}");
    }
    let (_, stdout, _) = show("none", &["--shapes", "4096x3584x8192"]);
    assert!(stdout.contains("modelled"), "no table at all: {stdout}");
}
