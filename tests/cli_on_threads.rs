//! Drives `bench all-gather-gemm` and `tune` on threads, where nothing is missing: what they measure, keep, show and refuse.
//!
//! What belongs here: files, exit codes, and that times are there; nothing asks how long anything took.

#![cfg(feature = "cli")]

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::fs;

use binary::{command, outcome, refused, run};
use folder::Folder;
use overlap_gemm::tune::{Entry, Order, Tuning, record, threads_name};
use serde_json::Value;

const BENCH: [&str; 7] = ["bench", "all-gather-gemm", "--host", "--steps", "2", "--rounds", "2"];

#[test]
fn a_bench_has_times_of_everybody_and_can_be_read_and_drawn_again() {
    let folder = Folder::new("bench");
    let (json, plot) = (folder.path("host.json"), folder.path("host.svg"));
    let shapes = ["--ranks", "3", "--shapes", "40x24x32,80x24x32", "--types", "bf16,e4m3"];
    let files = ["--link", "400", "--output", &json, "--plot", &plot];
    let (code, stdout, stderr) = run(&[&BENCH[..], &shapes, &files].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("3 × rank on threads ("), "{stdout}");
    let written: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let cases = written["runs"][0]["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let rows = case["rows"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["who"].as_str().unwrap()).collect();
        assert_eq!(names, ["own", "sequential", "fused", "auto"]);
        for row in rows {
            assert_eq!(
                (row["failed"].is_null(), &row["graph"]),
                (true, &Value::from(false)),
                "{row}"
            );
            assert_eq!(row["rounds_us"].as_array().unwrap().len(), 2, "{row}");
        }
    }
    let picture = fs::read_to_string(&plot).unwrap();
    assert!(picture.contains("3 × rank on threads") && picture.contains("sequential"), "{picture}");
    refused(&["predict", "--check", &json], 2, &["host.json", "times of threads", "of GPUs"]);
    let (code, merged, stderr) = run(&["bench", "merge", &json, "--from-m", "80"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        merged.contains("80×24×32 e4m3→bf16 tensor") && !merged.contains("40×24×32"),
        "{merged}"
    );
}

#[test]
fn what_was_tuned_is_kept_shown_and_planned_by() {
    let folder = Folder::new("tune");
    let file = folder.path("table.json");
    let tune = ["tune", "--host", "--ranks", "3", "--shapes", "300x24x32", "--output", &file];
    let (code, stdout, stderr) = run(&tune);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.contains("3 × threads (")
            && stdout.contains("cores), bf16")
            && stdout.contains("1 measured"),
        "{stdout}"
    );

    let table = Tuning::from_file(&file).unwrap();
    let [entry] = table.entries() else { panic!("{:?}", table.entries()) };
    let cores = std::thread::available_parallelism().unwrap().get() as u32;
    assert_eq!((entry.family.gpu.clone(), entry.family.ranks), (threads_name(cores, None), 3));
    assert!(entry.untuned().is_some(), "what is planned without a table is in the finals");
    let orders = |order| entry.measured.iter().any(|one| one.gathering.order == order);
    assert!(orders(Order::Fused) && orders(Order::Sequential));
    assert!(entry.measured.iter().all(|one| one.plain.is_some() && one.graph.is_none()));

    let (_, again, _) = run(&tune);
    assert!(
        again.contains("1 were in the table already") && again.contains("0 measured"),
        "{again}"
    );
    // What another processor took says nothing of this one.
    let elsewhere = Entry { driver: "Another CPU".into(), ..entry.clone() };
    record(file.as_ref(), &[elsewhere]).unwrap();
    let shown = run(&[
        "tune",
        "--show",
        "--host",
        "--ranks",
        "3",
        "--shapes",
        "300x24x32",
        "--table",
        &file,
    ])
    .1;
    assert!(shown.contains("on Another CPU, and here is "), "{shown}");
    let (_, again, told) = run(&tune);
    assert!(told.contains("1 was measured on another processor, and is measured again"), "{told}");
    assert!(again.contains("1 measured") && !again.contains("already"), "{again}");
    let renewed = Tuning::from_file(&file).unwrap();
    assert_eq!(renewed.entries()[0].driver, entry.driver);

    let show = |shapes: &str| {
        let asked = ["tune", "--show", "--host", "--ranks", "3", "--shapes", shapes];
        run(&[&asked[..], &["--table", &file]].concat()).1
    };
    assert!(
        show("300x24x32").contains("tuned: measured for this problem"),
        "{}",
        show("300x24x32")
    );
    assert!(show("290x24x32").contains("300×24×32 on 3 ranks, the nearest"));
    assert!(show("9600x2400x320").contains("by the rules"));
    // What is best over another link is another question.
    let slow = [&tune[..], &["--link", "500"]].concat();
    assert!(run(&slow).1.contains("cores), 500 MB/s, bf16"), "{}", run(&slow).1);
    let names: Vec<_> = Tuning::from_file(&file)
        .unwrap()
        .entries()
        .iter()
        .map(|entry| entry.family.gpu.clone())
        .collect();
    assert_eq!(names, [None, Some(5e8)].map(|rate| threads_name(cores, rate)));
    // Nothing is predicted of threads, so nothing is held out.
    let checked = "no answer was measured\n2 entries of threads are left out: nothing predicts steps on threads\n";
    assert_eq!(run(&["tune", "--check", &file]).1, checked);

    let asked = [&BENCH[..], &["--ranks", "3", "--shapes", "300x24x32", "--json"]].concat();
    let auto = |more: &[&str]| {
        let args = [&asked[..], more].concat();
        let output = command(&args).env("OVERLAP_GEMM_TUNING", &file).output().unwrap();
        let json: Value = serde_json::from_str(&outcome(&args, output).1).unwrap();
        let row = &json["runs"][0]["cases"][0]["rows"][3];
        assert_eq!(row["who"], "auto");
        row["what"].as_str().unwrap().to_owned()
    };
    let told = auto(&[]);
    assert!(told.contains("tuned: measured for this problem"), "{told}");
    let told = auto(&["--pieces", "3"]);
    assert!(told.starts_with("3 chunks a rank"), "{told}");
}

#[test]
fn times_over_two_links_are_not_compared() {
    let folder = Folder::new("links");
    let files = ["memory.json", "slow.json"].map(|name| folder.path(name));
    for (file, link) in files.iter().zip([&[][..], &["--link", "300"]]) {
        let args = [&BENCH[..], &["--shapes", "40x24x32", "--output", file], link].concat();
        assert_eq!(run(&args).0, 0);
    }
    refused(&["bench", "merge", &files[0], &files[1]], 2, &["300 MB/s", "--mixed"]);
}

#[test]
fn a_table_that_cannot_be_read_is_told_of() {
    let bench = [&BENCH[..], &["--shapes", "40x24x32", "--json"]].concat();
    let missing =
        command(&bench).env("OVERLAP_GEMM_TUNING", "/no/such/table.json").output().unwrap();
    let (_, stdout, stderr) = outcome(&bench, missing);
    // Once of the table, and once of what was planned without it.
    assert_eq!(
        stderr.lines().filter(|line| line.starts_with("the tuning file ")).count(),
        1,
        "{stderr}"
    );
    assert!(stderr.contains("\n  auto: ") && stderr.contains("timed as fused\n"), "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let rows = json["runs"][0]["cases"][0]["rows"].as_array().unwrap();
    let told = rows[3]["what"].as_str().unwrap();
    assert!(told.contains("by the rules") && told.contains("/no/such/table.json"), "{told}");
    // So it has the plan of what is fused without a table, and the same times.
    assert!(
        told.contains("timed as fused") && rows[3]["rounds_us"] == rows[2]["rounds_us"],
        "{told}"
    );
}

#[test]
fn what_threads_cannot_do_is_refused() {
    let bench = |args: &str, words: &[&str]| {
        let args: Vec<_> = BENCH.into_iter().chain(args.split(' ')).collect();
        refused(&args, 2, words);
    };
    bench("--contenders own,nccl", &["'nccl' needs GPUs", "own, sequential, fused, auto"]);
    bench("--blocks 16", &["--blocks", "--host"]);
    bench("--launch graph", &["--launch", "--host"]);
    bench("--ranks 1", &["--ranks"]);
    bench("--link 0", &["--link", "above zero"]);
    bench("--link -3", &["--link", "above zero"]);
    let slow = ["a rank sends 1280 bytes", "0.0001 MB a second", "10 s", "at least 0.000128"];
    bench("--link 0.0001 --shapes 40x24x32 --contenders sequential", &slow);
    bench("--shapes 40x24x32 --pieces 41", &["chunks", "41"]);
    bench("--shapes 20000x8x8", &["m is 20000", "16384"]);
    bench("--draw gather --plot x.svg", &["'gather'; there are own"]);
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
    let tune = |args: &str, words: &[&str]| {
        let args: Vec<_> = ["tune", "--host"].into_iter().chain(args.split(' ')).collect();
        refused(&args, 2, words);
    };
    tune("--ranks 1", &["nothing to gather"]);
    tune("--link 0 --output x.json", &["--link", "above zero"]);
    let slow = ["a rank sends 1280 bytes", "at least 0.000128"];
    tune("--link 1e-4 --shapes 40x24x32 --output x.json", &slow);
    let trace = ["trace", "--host", "--m", "40", "--n", "24", "--k", "32", "--ranks", "2"];
    refused(
        &[&trace[..], &["--link", "0.00001"]].concat(),
        2,
        &["in 4 chunks", "at least 0.000032"],
    );
    tune("--refine", &["--refine", "--host"]);
    tune("--launch graph", &["--launch", "--host"]);
    tune("--shapes 8x8x0 --output x.json", &["k is 0"]);
}
