//! Drives `overlap-gemm demo` and `trace` on threads: what they show, draw and write, and what they refuse.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use binary::{refused, run};
use folder::Folder;
use serde_json::Value;

/// A demo small enough for a test.
const SMALL_DEMO: [&str; 13] = [
    "demo", "--m", "96", "--n", "40", "--k", "24", "--ranks", "3", "--chunks", "2", "--steps", "2",
];

#[test]
fn demo_shows_times_a_verdict_and_a_timeline() {
    let (code, stdout, stderr) = run(&SMALL_DEMO);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for part in
        ["96×40×24", "3 ranks", "set equal to compute", "overlapped", "all right", "rank 2", "█"]
    {
        assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
    }
}

#[test]
fn demo_json_has_every_tile_and_transfer_of_a_step() {
    let (code, stdout, _) = run(&[&SMALL_DEMO[..], &["--json"]].concat());
    assert_eq!(code, 0);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["report"]["wrong"], 0);
    // Three ranks, each with two tiles of 16 rows for each of its 32-row shards' two chunks.
    assert_eq!(json["timeline"]["tiles"].as_array().unwrap().len(), 3 * 6);
    assert_eq!(json["timeline"]["transfers"].as_array().unwrap().len(), 3 * 3 * 2);
    // The transfer is set, not measured.
    assert_eq!(json["compute_ms"], json["transfer_ms"]);
    assert!(json["overlapped_ms"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!(json["problem"]["m"], 96);
    assert!((0.0..=1.0).contains(&json["hidden"].as_f64().unwrap()), "{}", json["hidden"]);
}

#[test]
fn demo_draws_a_step() {
    let folder = Folder::new("demo");
    // What was there before is replaced, not written over.
    let svg = folder.file("step.svg", &" ".repeat(1 << 20));
    let file = ["--svg", &svg];
    let (code, stdout, _) = run(&[&SMALL_DEMO[..], &file].concat());
    assert_eq!(code, 0);
    assert!(stdout.contains("rank 1: 6 tiles on") && stdout.contains("% idle"), "{stdout}");
    let picture = folder.read("step.svg");
    assert_eq!(picture.matches("class=\"tile\"").count(), 3 * 6);
    assert!(picture.ends_with("</svg>\n"), "{picture}");
}

#[test]
fn demo_runs_reductions() {
    // A rank sends the sums of two other ranks' chunks, and in an all-reduce the totals of its own to both.
    for (operation, transfers) in
        [("gemm-reduce-scatter", 3 * 2 * 2), ("gemm-all-reduce", 3 * 2 * 2 + 3 * 2 * 2)]
    {
        let args = [&SMALL_DEMO[..], &["--operation", operation]].concat();
        let (code, stdout, stderr) = run(&args);
        assert_eq!((code, stderr.as_str()), (0, ""));
        let title = operation.replacen("gemm-", "GEMM + ", 1);
        for part in [title.as_str(), "sums of a rank over the link", "all right", "rank 2"] {
            assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
        }
        let (_, stdout, _) = run(&[&args[..], &["--json"]].concat());
        let json: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&json["operation"], &json["report"]["wrong"]), (&operation.into(), &0.into()));
        assert_eq!(json["timeline"]["transfers"].as_array().unwrap().len(), transfers);
    }
}

#[test]
fn threads_have_no_reduction_without_a_product() {
    for operation in ["reduce-scatter", "all-reduce"] {
        let more = ["--operation", operation];
        let trace = ["trace", "--host", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2"];
        for args in [&SMALL_DEMO[..], &trace] {
            refused(&[args, &more].concat(), 2, &[operation, "gemm-reduce-scatter"]);
        }
    }
}

#[test]
fn demo_of_one_rank_has_nothing_to_send() {
    let args = ["demo", "--m", "8", "--n", "8", "--k", "8", "--ranks", "1", "--chunks", "1"];
    let (code, stdout, _) = run(&args);
    assert_eq!(code, 0);
    assert!(stdout.contains("nothing to send"), "{stdout}");
}

#[test]
fn demo_refuses_what_cannot_be() {
    for bad in [
        &["--ranks", "0"][..],
        &["--m", "0"],
        &["--n", "18446744073709551616"],
        &["--chunks", "1000"],
        &["--chunks", "0"],
        &["--steps", "0"],
        &["--m", "2147483647", "--k", "2147483647"], // more memory than there is
        &["--n", "2147483647", "--k", "100000"],
    ] {
        refused(&[&["demo"], bad].concat(), 2, &["error:"]);
    }
    refused(&["demo", "--output", "/proc/nope"], 4, &["/proc/nope"]);
}

#[test]
fn trace_shows_one_step_with_pushes_and_signals() {
    let folder = Folder::new("trace");
    let svg = folder.path("step.svg");
    let arguments = ["trace", "--host", "--m", "96", "--n", "40", "--k", "24", "--ranks", "3"];
    let files = ["--chunks", "2", "--link", "1", "--svg", &svg];
    let (code, stdout, stderr) = run(&[&arguments[..], &files].concat());
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(
        stdout.contains("rank 2: 6 tiles on") && stdout.contains("waiting for rows"),
        "{stdout}"
    );
    let picture = folder.read("step.svg");
    assert_eq!(picture.matches("class=\"tile\"").count(), 3 * 6);
    assert!(picture.contains("pushes to 2") && picture.contains(">signals<"), "{picture}");

    let (code, _, stderr) = run(&[&arguments[..], &["--sequential"]].concat());
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--sequential"), "{stderr}");
}
