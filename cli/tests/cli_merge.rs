//! Drives `overlap-gemm bench merge`: files in, a table out, no GPU.
//!
//! What belongs here: files, arguments and exit codes; what is in a table is tested beside its code.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;

use binary::{refused, run};
use folder::Folder;
use serde_json::{Value, json};

/// A document of one run.
fn own() -> Value {
    let row = |who: &str, kind: &str, us: f64| {
        json!({ "who": who, "peer": false, "kind": kind, "graph": true, "what": "", "failed": null,
                "rounds_us": [us, 1.02 * us, 0.98 * us], "host_us": [] })
    };
    let problem = |m: u64| {
        json!({ "m": m, "n": 3584, "k": 8192, "elements": { "a": "bf16", "b": "bf16", "d": "bf16" },
                "b_layout": "nk", "lda": 8192, "ldb": 8192, "ldd": 3584, "scaling": "none",
                "shard_rows": [m / 2, m / 2] })
    };
    let case = |m: u64| {
        let us = m as f64 / 10.0;
        json!({ "name": format!("{m}×3584×8192 bf16"), "problem": problem(m), "rows": [
            row("cublaslt", "gemm", us),
            row("nccl-cublaslt", "all-gather-gemm", 1.5 * us),
            row("fused", "all-gather-gemm", 1.1 * us),
        ]})
    };
    json!({ "bench": "all-gather-gemm", "format": 2, "runs": [{
        "command": "overlap-gemm bench all-gather-gemm", "version": "0.1.0",
        "machine": { "gpu": "NVIDIA H200", "sm_count": 132, "memory_bytes": 1, "l2_bytes": 1,
                     "driver": "580.1", "cuda": "13.0", "cores": 32, "toolkit": "13.0.88",
                     "cutlass": "4.2.0", "kernels": [], "cublaslt": null },
        "nccl": "2.28.9", "ranks": 2, "steps": 60, "rounds": 3, "copied": false,
        "cases": [case(1024), case(4096)],
    }]})
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
    assert_eq!(table.matches("1024×3584×8192 bf16").count(), 2, "{table}");
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
            4.into(),
            "4 × NVIDIA H200, driver 580.1, not 2 × NVIDIA H200, driver 580.1",
        ),
        ("/runs/0/machine/gpu", "NVIDIA H100".into(), "2 × NVIDIA H100"),
        ("/runs/0/machine/driver", "1".into(), "driver 1, not"),
        // A terminal obeys ESC: no text of a file brings one.
        ("/runs/0/machine/gpu", "\u{1b}[2J".into(), "2 × \\u{1b}[2J"),
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

#[test]
fn a_part_is_shown_and_written_and_printed_for_a_document() {
    let folder = Folder::new("part");
    let own = folder.file("own.json", &own());
    let part = folder.path("part.json");
    let merge = ["bench", "merge", &own, "--from-m", "2048"];
    let markdown = ["--markdown", "table", "--columns", "gemm,fused/gemm@1.2,fused:E"];
    let (code, text, stderr) = run(&[&merge[..], &markdown, &["--output", &part]].concat());
    assert_eq!(code, 0, "{stderr}");
    let expected = "\
| M × N × K | T_gemm | fused ÷ T_gemm, bar 1.2 | E of fused |
| --- | ---: | ---: | ---: |
| 4096×3584×8192 bf16 | 409.6 | 1.100 | 80 % |

Times in µs, medians of the rounds; a ratio is the median of the rounds' ratios, not the quotient of the times beside it; every round is within 0 % of it.
";
    assert_eq!(text, expected);
    // The file holds what was shown, and no more.
    let (_, again, _) = run(&[&["bench", "merge", &part][..], &markdown].concat());
    assert_eq!(again, expected);
    let refuse = |more: &[&str], words: &[&str]| refused(&[&merge[..], more].concat(), 2, words);
    refuse(&["--shapes", "1024x3584x8192"], &["no 1024x3584x8192"]);
    refuse(&["--launch", "plain"], &["none of these results"]);
    refuse(&["--columns", "fused"], &["--markdown"]);
    refuse(&["--markdown", "table", "--json"], &["--json"]);
    refuse(&["--markdown", "table"], &["--columns"]);
    refuse(&["--markdown", "ranges", "--columns", "fsued"], &["'fsued'", "peer", "fused"]);
    refuse(&["--markdown", "ranges", "--columns", "fused@1"], &["auto/gemm@1.03"]);
}
