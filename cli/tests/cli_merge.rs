//! Drives `overlap-gemm bench merge`: files in, a table out, no GPU.
//!
//! What belongs here: files, arguments and exit codes; what is in a table is tested beside its code.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;

use binary::{refused, run};
use folder::Folder;
use serde_json::{Value, json};

/// A document of one run on four GPUs.
fn own() -> Value {
    let file = "../benches/results/2026-11-22-h200x4-graphs.json";
    serde_json::from_slice(&fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap())
        .unwrap()
}

#[test]
fn several_files_become_one_table_and_one_file() {
    let folder = Folder::new("both");
    let mut other = own();
    other["runs"][0]["nccl"] = "2.28.3".into();
    let (own, other) = (folder.file("own.json", &own()), folder.file("other.json", &other));
    let both = folder.path("both.json");
    let (code, table, stderr) = run(&["bench", "merge", &own, &other, "--output", &both]);
    assert_eq!(code, 0, "{stderr}");
    for part in ["NCCL 2.28.9", "NCCL 2.28.3"] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    assert_eq!(table.matches("\n4096×3584×8192 bf16").count(), 2, "{table}");
    // The written file can be read again, and holds the same.
    let (code, again, stderr) = run(&["bench", "merge", &both]);
    assert_eq!((code, again), (0, table), "{stderr}");
    let (code, json, _) = run(&["bench", "merge", &both, "--json"]);
    assert_eq!((code, json), (0, folder.read("both.json")));
}

#[test]
fn results_of_several_places_are_refused() {
    let folder = Folder::new("places");
    let changed = |name: &str, path: &str, to: Value| {
        let mut other = own();
        *other.pointer_mut(path).unwrap() = to;
        folder.file(name, &other)
    };
    let own = folder.file("own.json", &own());
    for (path, to, words) in [
        (
            "/runs/0/ranks",
            2.into(),
            "2 × NVIDIA H200, driver 580.159.04, not 4 × NVIDIA H200, driver",
        ),
        ("/runs/0/machine/gpu", "NVIDIA H100".into(), "4 × NVIDIA H100"),
        ("/runs/0/machine/driver", "1".into(), "driver 1, not"),
        // A terminal obeys ESC: no text of a file brings one.
        ("/runs/0/machine/gpu", "\u{1b}[2J".into(), "4 × \\u{1b}[2J"),
    ] {
        let other = changed("other.json", path, to);
        refused(&["bench", "merge", &own, &other], 2, &["other.json", words, "one by one"]);
    }
    let shown = changed("shown.json", "/runs/0/cases/0/rows/0/who", "\u{1b}[2J".into());
    let (code, table, _) = run(&["bench", "merge", &shown]);
    assert!(code == 0 && table.contains("\\u{1b}[2J") && !table.contains('\u{1b}'), "{table}");
}

#[test]
fn unfit_files_are_named() {
    let folder = Folder::new("unfit");
    let good = folder.file("good.json", &own());
    let newer = json!({ "bench": "all-gather-gemm", "format": 99, "runs": [] });
    let newer = folder.file("newer.json", &newer);
    refused(&["bench", "merge", &good, &newer], 2, &["newer.json", "format 99", "reads format 2"]);
    let foreign = folder.file("foreign.json", &json!({ "name": "somebody else's" }));
    refused(&["bench", "merge", &foreign], 2, &["foreign.json", "no results of a bench"]);
    fs::write(folder.path("cut.json"), &own().to_string()[..100]).unwrap();
    refused(&["bench", "merge", &folder.path("cut.json")], 2, &["cut.json", "cut off"]);
    refused(&["bench", "merge", &folder.path("none.json")], 4, &["none.json", "No such file"]);
    refused(&["bench", "merge"], 2, &["FILE"]);
    let empty = json!({ "bench": "all-gather-gemm", "format": 2, "runs": [] });
    let empty = folder.file("empty.json", &empty);
    refused(&["bench", "merge", &good, &empty], 2, &["empty.json", "no measured problem"]);
    let mut reduced = own();
    reduced["bench"] = "gemm-reduce-scatter".into();
    reduced["runs"][0]["operation"] = "gemm-reduce-scatter".into();
    let reduced = folder.file("reduced.json", &reduced);
    refused(&["bench", "merge", &good, &reduced], 2, &["reduced.json", "GEMM + reduce-scatter"]);
    let (code, table, _) = run(&["bench", "merge", &reduced]);
    assert!(
        code == 0 && table.lines().next().unwrap().ends_with("GEMM + reduce-scatter"),
        "{table}"
    );
    // A file that is asked for and cannot be written is noticed before anything is shown.
    refused(&["bench", "merge", &good, "--output", "/proc/nope"], 4, &["/proc/nope"]);
}
