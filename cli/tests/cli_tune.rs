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
    BLayout, ClusterShape, ElementTypes, Engine, Scaling, Strategy, TileShape, Way,
};
use overlap_gemm::tune::{Entry, Family, Multiplying, Shape, Times, Tuning, record};
use serde_json::Value;

/// What the cost model likes for 4096 rows.
const KERNEL: &str = "bf16_bf16_bf16_nk_128x128x64_2x1_pingpong";

/// M × 3584 × 8192 on two H200, fastest with this number of pieces.
fn entry(m: u32, pieces: u32, us: f64) -> Entry {
    Entry {
        family: Family {
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
        multiplying: Multiplying {
            kernel: KERNEL.into(),
            tile: TileShape { m: 128, n: 128 },
            cluster: ClusterShape { m: 2, n: 1 },
            swizzle: 4,
            splits: 1,
        },
        us: Times { graph: Some(us), plain: None },
    }
}

fn table(file: &str) {
    let entries = [entry(2048, 2, 200.0), entry(4096, 2, 400.0), entry(8192, 1, 800.0)];
    record(file.as_ref(), &entries).unwrap();
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
    refused("--launch sometimes", &["sometimes", "graph", "plain", "both"]);
    refused("--minutes 0", &["above zero"]);
    refused("--minutes -1", &["above zero"]);
    refused("--minutes NaN", &["above zero"]);
    refused("--ranks 2", &["--show"]);
    refused("--show --ranks 0", &["--ranks"]);
    refused("--merge a.json", &["--output"]);
    refused("--show --ranks 2 --gpu RTX-4090", &["Hopper", "RTX-4090", "H100, H200"]);
    let show = "--show --table /no/such/table.json";
    refused(show, &["/no/such/table.json", "cannot be read"]);
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

#[test]
fn show_says_tuned_nearest_or_modelled() {
    let folder = Folder::new("show");
    let file = folder.path("table.json");
    table(&file);
    let shapes = "4096x3584x8192,4800x3584x8192,64x3584x8192";
    let args = ["tune", "--show", "--ranks", "2", "--shapes", shapes, "--table", &file];
    let (code, stdout, stderr) = run(&args);
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
    let (_, stdout, _) = run(&[&args[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let how: Vec<_> = (0..3).map(|nth| json["problems"][nth]["how"].as_str().unwrap()).collect();
    assert_eq!(how, ["tuned", "nearest", "modelled"]);
    assert_eq!(json["problems"][1]["from"]["m"], 4096);
    // Nothing is known of other GPUs, nor of other numbers of ranks.
    let shown = |ranks, more: &[&str]| {
        let mut args = [&args[..], more].concat();
        args[3] = ranks;
        run(&args).1
    };
    let other = shown("2", &["--gpu", "NVIDIA H100 80GB HBM3"]);
    let words = "no figures of NVIDIA H100 80GB HBM3 are known: by those of NVIDIA H200\n";
    assert!(other.contains(words) && !stdout.contains("no figures"), "{other}");
    for stdout in [other, shown("4", &[])] {
        assert!(!stdout.contains("tuned:") && !stdout.contains("nearest"), "{stdout}");
    }
}

#[test]
fn a_table_that_cannot_be_trusted_is_told_of_and_stops_nobody() {
    let folder = Folder::new("bad");
    let file = folder.path("table.json");
    let show = ["tune", "--show", "--ranks", "2", "--shapes", "64x64x64"];
    for (text, words) in [
        ("{\"format\"", "damaged"),
        ("{\"some\": \"thing\"}", "no table of this program"),
        (
            "{\"format\":\"overlap-gemm tuning\",\"version\":4,\"new\":[]}",
            "version 4, and this program reads 3",
        ),
        (
            "{\"format\":\"overlap-gemm tuning\",\"version\":1,\"entries\":[]}",
            "version 1, and this program reads 3: move it away",
        ),
    ] {
        fs::write(&file, text).unwrap();
        refused(&[&show[..], &["--table", &file]].concat(), 2, &[&file, words]);
        // A plan would go on, and so does this.
        let output = command(&show).env("OVERLAP_GEMM_TUNING", &file).output().unwrap();
        let (code, stdout, stderr) = outcome(&show, output);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.contains(&file) && stdout.contains(words), "{stdout}");
        assert!(stdout.contains("modelled"), "{stdout}");
    }
    let output = command(&show).env("OVERLAP_GEMM_TUNING", "none").output().unwrap();
    assert!(outcome(&show, output).1.contains("no table was read"));
}

#[test]
fn merge_adds_tables_and_the_last_one_counts() {
    let folder = Folder::new("merge");
    let [one, two, all] = ["one.json", "two.json", "all.json"].map(|name| folder.path(name));
    table(&one);
    record(two.as_ref(), &[entry(4096, 4, 390.0), entry(64, 1, 20.0)]).unwrap();
    let tables = format!("{one},{two}");
    let (code, stdout, stderr) = run(&["tune", "--merge", &tables, "--output", &all]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("5 problems were added") && stdout.contains("has 4 now"), "{stdout}");
    let read = Tuning::from_file(&all).unwrap();
    let pieces = |m| {
        let entry = read.entries().iter().find(|entry| entry.shape.m == m).unwrap();
        entry.way.pieces
    };
    assert_eq!([pieces(64), pieces(2048), pieces(4096)], [1, 2, 4]);

    // A table that cannot be written is no bad input.
    let nowhere = ["tune", "--merge", &two, "--output", "/proc/nope.json"];
    refused(&nowhere, 4, &["/proc/nope.json cannot be written", "--output"]);

    // One that is damaged adds nothing, nor do the others.
    fs::write(&two, "{}").unwrap();
    let before = fs::read_to_string(&all).unwrap();
    refused(&["tune", "--merge", &tables, "--output", &all], 2, &[&two]);
    assert_eq!(fs::read_to_string(&all).unwrap(), before);
}
