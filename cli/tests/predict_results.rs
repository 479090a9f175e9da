//! Predictions beside the measurements in `benches/results`: how far off they may be. (What the document says of them,
//! `numbers` compares.)
//!
//! What belongs here: files that are read; nothing is timed.

#[path = "common/binary.rs"]
mod binary;

use std::path::{Path, PathBuf};

use binary::{command, outcome, refused, run};
use serde_json::Value;

/// The bench's results that predictions are compared with: all contenders interleaved, between two GPUs;
const OF_TWO: [&str; 4] = [
    "2026-11-22-h200x2-refined-a.json",
    "2026-11-22-h200x2-refined-b.json",
    "2026-11-22-h200x2-fp8-tuned-tensor.json",
    "2026-11-22-h200x2-fp8-tuned-rows.json",
];
/// the same, with products that start later behind kernels that push (`docs/predicting.md` shows these);
const OF_TWO_LATER: [&str; 4] = [
    "2026-11-22-h200x2-beside-pytorch.json",
    "2026-11-22-h200x2-beside-pytorch-rest.json",
    "2026-11-22-h200x2-fp8-table.json",
    "2026-11-22-h200x2-fp8-tuned-rows.json",
];
/// between four;
const OF_FOUR: [&str; 4] = [
    "2026-11-22-h200x4-one-stream-pytorch.json",
    "2026-11-22-h200x4-told-together.json",
    "2026-11-22-h200x4-graphs.json",
    "2026-11-22-h200x4-two-streams.json",
];
/// and strategies alone, of more problems, between two.
const OF_STRATEGIES: [&str; 3] = [
    "2026-11-23-h200x2-held-out-headline.json",
    "2026-11-23-h200x2-held-out-others.json",
    "2026-11-23-h200x2-held-out-third.json",
];
/// The rest of what the table has between two; the smallest of these wait for the host when they are launched one by one,
/// of which predictions know nothing.
const OF_THE_REST: [&str; 2] =
    ["2026-11-23-h200x2-held-out-fourth.json", "2026-11-23-h200x2-held-out-fifth.json"];

/// The repository: documents and results are the library's.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// What `predict --check` says of these results.
fn checked(results: &[&str]) -> Value {
    let files: Vec<PathBuf> =
        results.iter().map(|name| root().join("benches/results").join(name)).collect();
    let mut args = vec!["predict", "--json", "--check"];
    args.extend(files.iter().map(|file| file.to_str().unwrap()));
    let (code, stdout, stderr) = run(&args);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no '{name}' in {value}"))
}

#[test]
fn predictions_are_near_what_was_measured() {
    for results in [&OF_TWO[..], &OF_FOUR] {
        let report = checked(results);
        let summaries = report["summaries"].as_array().unwrap();
        assert_eq!(summaries.len(), 6, "{summaries:?}");
        for of in summaries {
            assert!(number(of, "median_abs_error") <= 0.10, "{of}");
            // One problem of `auto`'s, 512×1792×4096, is predicted far too slow.
            let worst = if of["who"] == "auto" { 0.25 } else { 0.15 };
            assert!(number(of, "worst_abs_error") <= worst, "{of}");
        }
    }
    let report = checked(&OF_TWO);
    let fused = &report["summaries"][1];
    assert_eq!(fused["who"], "fused");
    assert!(number(fused, "median_abs_error") <= 0.05, "{fused}");
    assert!(number(fused, "lines") >= 32.0, "{fused}");
    let report = checked(&OF_TWO_LATER);
    let summaries = report["summaries"].as_array().unwrap();
    assert_eq!(summaries.len(), 6, "{summaries:?}");
    for of in summaries {
        assert!(number(of, "lines") >= 24.0, "{of}");
        assert!(number(of, "median_abs_error") <= 0.05, "{of}");
        assert!(number(of, "worst_abs_error") <= 0.25, "{of}");
    }
    for (results, worst) in [(&OF_STRATEGIES[..], 0.20), (&OF_THE_REST, 0.30)] {
        let report = checked(results);
        let summaries = report["summaries"].as_array().unwrap();
        assert_eq!(summaries.len(), 4, "{summaries:?}");
        for of in summaries {
            assert_eq!(number(of, "lines"), 72.0, "{of}");
            assert!(number(of, "median_abs_error") <= 0.05, "{of}");
            assert!(number(of, "worst_abs_error") <= worst, "{of}");
        }
    }
}

#[test]
fn what_is_predicted_is_what_was_carried_out() {
    for results in [&OF_TWO, &OF_TWO_LATER] {
        for line in checked(results)["lines"].as_array().unwrap() {
            // The product alone does not say how it sweeps, and NCCL's is another library's.
            let told = !["own", "nccl-cublaslt"].contains(&line["who"].as_str().unwrap());
            assert_eq!(line["as_told"], told, "{line}");
        }
    }
}

/// A problem small enough for a test.
const SMALL: [&str; 8] = ["predict", "--m", "1000", "--n", "512", "--k", "256", "--ranks"];

fn predicted(ranks: &str, more: &[&str]) -> Value {
    let (code, stdout, stderr) = run(&[&SMALL[..], &[ranks, "--json"], more].concat());
    assert_eq!((code, stderr.as_str()), (0, ""));
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn any_number_of_ranks_that_a_plan_takes_is_predicted() {
    let json = predicted("1,2,4,8,16,72,1000", &[]);
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        // Last of all what the library would choose, where there is a choice.
        let all = case["predictions"].as_array().unwrap();
        let (auto, all): (Vec<_>, Vec<_>) = all.iter().partition(|it| it["auto"] == true);
        assert_eq!(auto.len(), usize::from(case["ranks"] != 1), "{case}");
        let names: Vec<_> = all.iter().map(|it| it["strategy"].as_str().unwrap()).collect();
        assert_eq!(names, ["plain", "fused", "pipelined", "sequential", "sequential"]);
        assert!(all.iter().all(|it| number(it, "over_plain") >= 1.0), "{case}");
    }
    let (code, stdout, _) = run(&[&SMALL[..], &["2,72"]].concat());
    assert_eq!(code, 0);
    for part in ["on 72 ranks", "fused", "sequential (NCCL)", "exposed", "380 GB/s"] {
        assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
    }
}

#[test]
fn n_can_be_that_of_all_ranks_and_the_link_another() {
    let json = predicted("2,8", &["--split-n", "--link", "100", "--peer-link", "50"]);
    let columns: Vec<_> = json["cases"].as_array().unwrap().iter().map(|case| &case["n"]).collect();
    assert_eq!(columns, [256, 64]);
    assert_eq!(
        (number(&json["machine"], "link_gbps"), number(&json["machine"], "peer_gbps")),
        (100.0, 50.0)
    );
}

#[test]
fn what_the_library_would_choose_is_what_an_empty_table_says() {
    let auto = |more: &[&str]| {
        let args =
            ["predict", "--m", "4096", "--n", "3584", "--k", "8192", "--a", "e4m3", "--ranks", "8"];
        let (_, stdout, _) = run(&[&args[..], &["--json"], more].concat());
        let json: Value = serde_json::from_str(&stdout).unwrap();
        json["cases"][0]["predictions"].as_array().unwrap().last().unwrap().clone()
    };
    let args = [
        "tune",
        "--show",
        "--ranks",
        "8",
        "--shapes",
        "4096x3584x8192",
        "--types",
        "e4m3",
        "--json",
    ];
    let shown = command(&args).env("OVERLAP_GEMM_TUNING", "none").output().unwrap();
    let shown: Value = serde_json::from_str(&outcome(&args, shown).1).unwrap();
    let (shown, chosen) = (&shown["problems"][0], auto(&[]));
    let words = format!("predicted to take {:.1} µs", number(&chosen, "total_us"));
    assert!(shown["why"].as_str().unwrap().contains(&words), "{shown}, not {words}");
    assert_eq!(chosen["kernel"], shown["multiplying"]["kernel"]);
    // Who fixes something has less to choose from.
    assert_eq!((&chosen["auto"], &auto(&["--pieces", "2"])["auto"]), (&true.into(), &false.into()));
}

#[test]
fn engine_and_pieces_can_be_named() {
    let of = |more: &[&str]| {
        let json = predicted("4", more);
        let fused = &json["cases"][0]["predictions"][1];
        (fused["engine"].clone(), fused["pieces"].as_u64().unwrap())
    };
    assert_eq!(of(&[]).0, serde_json::json!({"kernel": {"blocks": 16}}));
    let copies = serde_json::json!({"copy-engines": {"streams": 3}});
    assert_eq!(of(&["--engine", "copies", "--streams", "3", "--pieces", "5"]), (copies, 5));
}

#[test]
fn a_predicted_step_is_drawn() {
    let folder = std::env::temp_dir().join(format!("overlap-gemm-predict-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [svg, events] = ["step.svg", "step.json"].map(|name| folder.join(name));
    let [svg_name, events_name] = [&svg, &events].map(|path| path.to_str().unwrap());
    let drawn = ["2", "--svg", svg_name, "--events", events_name];
    let (code, _, stderr) = run(&[&SMALL[..], &drawn].concat());
    assert_eq!((code, stderr.as_str()), (0, ""));
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("fused, predicted") && picture.contains("rank 1"));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&events).unwrap()).unwrap();
    assert!(json["traceEvents"].as_array().unwrap().len() > 10);
    let more = ["2,4", "--svg", svg_name];
    refused(&[&SMALL[..], &more].concat(), 2, &["one number of --ranks"]);
    let rank = ["2", "--svg", svg_name, "--rank", "2"];
    refused(&[&SMALL[..], &rank].concat(), 2, &["rank is 2"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refuse = |more: &[&str], words: &[&str]| refused(&[&SMALL[..], more].concat(), 2, words);
    refuse(&["1025"], &["1025", "between 1 and 1024"]);
    refuse(&["0"], &["the number of ranks is 0"]);
    refuse(&["2", "--link", "-1"], &["the link's GB/s", "-1"]);
    refuse(&["2", "--link", "NaN"], &["the link's GB/s"]);
    refuse(&["2", "--sms", "0"], &["--sms", "1.."]);
    refuse(&["2", "--sms", "4294967295"], &["the number of SMs is 4294967295", "65536"]);
    refuse(&["2", "--streams", "9"], &["--streams", "1..=8"]);
    // What is asked for is not dropped: a kernel has no streams, and moves so few rows.
    let words = ["--streams 2", "a kernel moves the rows", "--engine copies"];
    refuse(&["2", "--streams", "2"], &words);
    refuse(&["2", "--streams", "2", "--engine", "kernel"], &words);
    refuse(&["2", "--a", "f32"], &["f32 × f32 → f32"]);
    refuse(&["2", "--pieces", "0"], &["the number of chunks a shard is 0"]);
    let sized = |m: &str, n: &str, more: &[&str], words: &[&str]| {
        let args = ["predict", "--m", m, "--n", n, "--k", "64", "--ranks"];
        refused(&[&args[..], more].concat(), 2, words);
    };
    sized("64", "18446744073709551615", &["1", "--split-n"], &["n is 18446744073709551615"]);
    sized("2147483647", "2147483632", &["2"], &["the number of units of work", "134217728"]);
    let many = ["1024", "--pieces", "64"];
    sized("65535", "128", &many, &["the number of transfers to predict is 67042305"]);
    refused(&["predict"], 2, &["--m"]);
    refused(&["predict", "--check", "no-such-file.json"], 4, &["no-such-file.json"]);
    let manifest = root().join("Cargo.toml");
    refused(&["predict", "--check", manifest.to_str().unwrap()], 2, &["Cargo.toml", "no JSON"]);
}
