//! Drives `bench all-gather-gemm` on threads, where nothing is missing: what it measures, keeps, shows and refuses.
//!
//! What belongs here: files, exit codes, and that times are there; nothing asks how long anything took.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;

use binary::{command, outcome, refused, run};
use folder::Folder;
use serde_json::Value;

const BENCH: [&str; 7] = ["bench", "all-gather-gemm", "--host", "--steps", "2", "--rounds", "2"];

#[test]
fn a_bench_has_times_of_everybody_and_can_be_read_again() {
    let folder = Folder::new("bench");
    let json = folder.path("host.json");
    let shapes = ["--ranks", "3", "--shapes", "40x24x32,80x24x32", "--types", "bf16,e4m3"];
    let files = ["--link", "400", "--output", &json];
    let (code, stdout, stderr) = run(&[&BENCH[..], &shapes, &files].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("3 ranks on threads ("), "{stdout}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let cases = written["runs"][0]["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let rows = case["rows"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["who"].as_str().unwrap()).collect();
        assert_eq!(names, ["own", "sequential", "fused"]);
        for row in rows {
            assert_eq!(
                (row["failed"].is_null(), &row["graph"]),
                (true, &Value::from(false)),
                "{row}"
            );
            assert_eq!(row["rounds_us"].as_array().unwrap().len(), 2, "{row}");
        }
    }
    assert_eq!(run(&["bench", "merge", &json]), (0, stdout, String::new()));
}

#[test]
fn times_over_two_links_are_not_compared() {
    let folder = Folder::new("links");
    let files = ["memory.json", "slow.json"].map(|name| folder.path(name));
    for (file, link) in files.iter().zip([&[][..], &["--link", "300"]]) {
        let args = [&BENCH[..], &["--shapes", "40x24x32", "--output", file], link].concat();
        assert_eq!(run(&args).0, 0);
    }
    refused(&["bench", "merge", &files[0], &files[1]], 2, &["300 MB/s", "one by one"]);
}

#[test]
fn what_threads_cannot_do_is_refused() {
    let bench = |args: &str, words: &[&str]| {
        let args: Vec<_> = BENCH.into_iter().chain(args.split(' ')).collect();
        refused(&args, 2, words);
    };
    bench("--contenders own,nccl", &["'nccl' needs GPUs", "own, sequential, fused"]);
    bench("--contenders own,auto", &["'auto' needs GPUs"]);
    bench("--blocks 16", &["--blocks", "--host"]);
    bench("--launch graph", &["--launch", "--host"]);
    bench("--ranks 1", &["--ranks"]);
    bench("--link 0", &["--link", "above zero"]);
    bench("--link -3", &["--link", "above zero"]);
    let slow = ["a rank sends 1280 bytes", "0.0001 MB a second", "10 s", "at least 0.000128"];
    bench("--link 0.0001 --shapes 40x24x32 --contenders sequential", &slow);
    bench("--shapes 40x24x32 --pieces 41", &["chunks", "41"]);
    refused(&["bench", "all-gather-gemm", "--ranks", "2"], 2, &["--host"]);
    refused(&["bench", "all-gather-gemm", "--link", "2"], 2, &["--host"]);
    let launched = command(&BENCH)
        .envs([
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
        ])
        .output()
        .unwrap();
    let (code, _, stderr) = outcome(&BENCH, launched);
    assert!(code == 2 && stderr.contains("one of 2 that were launched"), "{code}: {stderr}");
    let trace = ["trace", "--host", "--m", "40", "--n", "24", "--k", "32", "--ranks", "2"];
    refused(
        &[&trace[..], &["--link", "0.00001"]].concat(),
        2,
        &["in 4 chunks", "at least 0.000032"],
    );
    let reduces = ["--operation", "gemm-reduce-scatter"];
    // 20 rows of 24 sums of two bytes each, in four chunks.
    let slow = ["a rank sends 960 bytes", "in 4 chunks", "at least 0.000024"];
    refused(&[&trace[..], &reduces, &["--link", "0.00001"]].concat(), 2, &slow);
}

#[test]
fn a_step_of_every_operation_is_drawn() {
    let folder = Folder::new("trace");
    for operation in ["all-gather-gemm", "gemm-reduce-scatter", "gemm-all-reduce"] {
        let picture = folder.path(&format!("{operation}.svg"));
        let problem = ["--m", "40", "--n", "24", "--k", "32", "--ranks", "3"];
        let what = ["trace", "--host", "--operation", operation, "--svg", &picture];
        let (code, text, stderr) = run(&[&what[..], &problem].concat());
        assert_eq!(code, 0, "{stderr}");
        for rank in ["rank 0", "rank 1", "rank 2"] {
            assert!(text.contains(rank), "{text}");
        }
        assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg"));
        let (_, json, _) = run(&[&what[..4], &problem, &["--json"]].concat());
        let json: Value = serde_json::from_str(&json).unwrap();
        let sent = json["timeline"]["transfers"].as_array().unwrap();
        // A gather moves a rank's rows to itself, too; sums of a rank's own rows stay.
        let stays = sent.iter().any(|sent| sent["from"] == sent["to"]);
        assert_eq!((stays, sent.is_empty()), (operation == "all-gather-gemm", false), "{json}");
        // Each rank adds up the four chunks of its rows; in an all-reduce it also stores the totals of the others'.
        let each = match operation {
            "gemm-reduce-scatter" => 4,
            "gemm-all-reduce" => 3 * 4,
            _ => 0,
        };
        let added = json["timeline"]["additions"].as_array().unwrap();
        assert_eq!((added.len(), text.contains("adds up")), (3 * each, each > 0), "{json}");
        let drawn = fs::read_to_string(&picture).unwrap().matches(r#"class="add""#).count();
        assert_eq!(drawn, 3 * each);
    }
}
