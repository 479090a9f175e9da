//! Drives `overlap-gemm bench merge`: files in, a table out, no GPU.
//!
//! What belongs here: files, arguments and exit codes, and what peers' scripts write; what is in a table is tested
//! beside its code.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;
use std::process::Command;

use binary::{refused, run};
use folder::Folder;
use serde_json::{Value, json};

/// The repository: documents, results and peers are the library's.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

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

/// What the script for peers writes, with contenders that are made up.
fn by_the_script(folder: &Folder, name: &str) -> String {
    let script = r#"
import argparse, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))
import standalone
parser = argparse.ArgumentParser()
standalone.add_arguments(parser)
args = parser.parse_args()
contenders = [
    {"name": "torch-mm", "kind": "gemm", "graph": True, "failed": None},
    {"name": "torch-new", "kind": "all-gather-gemm", "graph": False, "failed": None},
    {"name": "torch-wrong", "kind": "all-gather-gemm", "graph": True, "failed": "off by 1"},
]
loops = []
def run(name, graph, steps):
    assert name != "torch-wrong"
    loops.append(steps)
    return 100.0 + len(name)
reports = [standalone.report(case, 2, contenders, args, run) for case in standalone.cases(args, 2)]
# Forty milliseconds at 108 µs, in graphs of twenty steps.
assert set(loops) == {20, 380}, set(loops)
machine = {"gpu": "NVIDIA H200", "sm_count": 132, "memory_bytes": 1, "l2_bytes": 1, "driver": None, "cores": 32}
standalone.write(args.output, standalone.document("PyTorch", "2.11", machine, "2.28.9", 2, args, reports))
"#;
    let (path, peers) = (folder.path(name), root().join("benches/peers"));
    let arguments =
        ["--shapes", "1024x3584x8192,64x128x256", "--types", "bf16,e4m3", "--rounds", "4"];
    let output = Command::new("python3")
        .args(["-c", script, peers.to_str().unwrap(), "--output", &path])
        .args(arguments)
        .output()
        .expect("python3, as everything of this project that is a script");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

#[test]
fn own_results_and_a_peer_s_become_one_table() {
    let folder = Folder::new("both");
    let (own, peer) = (folder.file("own.json", &own()), by_the_script(&folder, "peer.json"));
    let both = folder.path("both.json");
    let (code, table, stderr) = run(&["bench", "merge", &own, &peer, "--output", &both]);
    assert_eq!(code, 0, "{stderr}");
    for part in [
        "[1] overlap-gemm 0.1.0",
        "[2] PyTorch 2.11",
        "torch-wrong",
        "FAILED: off by 1",
        "e4m3→bf16 tensor",
    ] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    // What was put together can be read again, and says the same.
    let (code, again, stderr) = run(&["bench", "merge", &both]);
    assert_eq!((code, again), (0, table), "{stderr}");
    let (code, json, _) = run(&["bench", "merge", &both, "--json"]);
    assert_eq!((code, json), (0, folder.read("both.json")));
}

#[test]
fn what_cannot_be_compared_is_refused_unless_asked_for() {
    let folder = Folder::new("mixed");
    let mut other = own();
    other["runs"][0]["ranks"] = 4.into();
    for case in other["runs"][0]["cases"].as_array_mut().unwrap() {
        let quarter = case["problem"]["m"].as_u64().unwrap() / 4;
        case["problem"]["shard_rows"] = json!(vec![quarter; 4]);
    }
    let (two, four) = (folder.file("two.json", &own()), folder.file("four.json", &other));
    let merge = ["bench", "merge", &two, &four];
    refused(&merge, 2, &["four.json", "two.json", "4 ranks, not 2", "--mixed"]);
    let (code, table, stderr) = run(&[&merge[..], &["--mixed"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(table.contains("4 × NVIDIA H200, driver 580.1: 1024×3584×8192 bf16"), "{table}");
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
| 4096×3584×8192 bf16 | 409.6 | **1.100** | 80 % |

Times in µs, medians of the rounds; a ratio is the median of the rounds' ratios, not the quotient of the times beside it: no round's is more than 0 % from it.
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
    refuse(&["--markdown", "ranges", "--columns", "fsued"], &["'fsued'", "peer", "fused"]);
    refuse(&["--markdown", "ranges", "--columns", "fused@1"], &["auto/gemm@1.03"]);
}
