//! Drives the built binary: what it prints, how it refuses, and with which exit code it ends.
//!
//! What belongs here: every subcommand but those that have a file of their own (`cli_bench.rs`, `cli_launch.rs`, …). Runs go through
//! `common/binary.rs`, which checks of each that no panic reaches stderr.

#[path = "common/binary.rs"]
mod binary;
#[path = "common/folder.rs"]
mod folder;

use std::process::{Command, Stdio};

use binary::{command, outcome, refused, run};
use folder::Folder;
use overlap_gemm::plan::{Plan, PlanOptions, Problem};
use serde_json::Value;

const SMALL: &[&str] = &["plan", "--m", "1024", "--n", "512", "--k", "256", "--ranks", "4"];

/// `plan` of a small problem with further arguments.
fn plan(more: &[&str]) -> (i32, String, String) {
    run(&[SMALL, more].concat())
}

#[test]
fn help_names_the_subcommands_and_the_exit_codes() {
    let (code, stdout, _) = run(&["--help"]);
    assert_eq!(code, 0);
    let subcommands = ["bench", "demo", "doctor", "launch", "verify", "plan"];
    for word in subcommands.into_iter().chain(["Exit codes:", "130  ended by Ctrl-C"]) {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    for subcommand in ["bench gemm", "demo", "doctor", "verify", "plan"] {
        let words: Vec<_> = subcommand.split(' ').chain(["--help"]).collect();
        let (code, stdout, _) = run(&words);
        assert_eq!(code, 0);
        assert!(stdout.contains("--json"), "{stdout}");
    }
    assert!(run(&["--version"]).1.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn plan_text_is_the_library_s() {
    let problem = Problem::builder(1024, 512, 256).ranks(4).build().unwrap();
    let expected = Plan::new(&problem, PlanOptions::default()).unwrap();
    assert_eq!(plan(&[]), (0, expected.to_string(), String::new()));
    let one = expected.of_rank(3).unwrap().to_string();
    assert_eq!(plan(&["--rank", "3"]), (0, one, String::new()));
}

#[test]
fn plan_text_shows_what_travels_and_when() {
    let (_, stdout, _) = plan(&["--tile", "128x64", "--chunks", "4"]);
    for line in [
        "1024×512×256 (bf16 × bf16 → bf16) on 4 ranks",
        "  rank 1    rows 256..512, chunks 4..8 of 64 rows",
        "  push 0    await landed 0",
        "            post landed 3 → 1",
    ] {
        assert!(stdout.lines().any(|shown| shown == line), "no line '{line}' in\n{stdout}");
    }
}

#[test]
fn plan_json_is_the_plan() {
    let (code, stdout, stderr) = plan(&["--json", "--chunks", "2", "--b-layout", "kn"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["problem"]["b_layout"], "kn");
    assert_eq!(json["problem"]["shard_rows"], serde_json::json!([256, 256, 256, 256]));
    assert_eq!(json["chunks"].as_array().unwrap().len(), 8);
    let first = &json["schedules"][1]["steps"][0];
    let posts = serde_json::json!({"post": {"word": {"consumed": {"by": 1}}, "to": 1, "age": 1}});
    assert_eq!(*first, serde_json::json!(["compute", posts]));
    assert_eq!(json["tile_orders"][2]["visits"][0], serde_json::json!([2, 0]));
    assert_eq!(json.get("check"), None);
    let read: Plan = serde_json::from_str(&stdout).unwrap();
    assert_eq!((read.chunks().len(), read.problem().ranks()), (8, 4));
}

#[test]
fn plan_json_of_one_rank_has_that_rank_s_lists() {
    let (_, whole, _) = plan(&["--json"]);
    let (_, one, _) = plan(&["--json", "--rank", "2"]);
    let (whole, one): (Value, Value) =
        (serde_json::from_str(&whole).unwrap(), serde_json::from_str(&one).unwrap());
    for list in ["schedules", "tile_orders"] {
        assert_eq!(one[list].as_array().unwrap().len(), 1);
        assert_eq!(one[list][0], whole[list][2]);
    }
    assert_eq!(one["chunks"], whole["chunks"]);
    assert_eq!(one["problem"], whole["problem"]);
}

#[test]
fn plan_takes_fp8_and_unequal_shards() {
    let args = ["--m", "1000", "--n", "512", "--k", "512", "--shards", "600,0,400"];
    let fp8 = ["--chunks", "4", "--types", "e4m3xe5m2:f16", "--scaling", "rows", "--json"];
    let (code, stdout, stderr) = run(&[&["plan"], &args[..], &fp8[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        json["problem"]["elements"],
        serde_json::json!({"a": "e4m3", "b": "e5m2", "d": "f16"})
    );
    assert_eq!(json["problem"]["scaling"], "rows");
    assert_eq!(json["chunks"][4]["rank"], 2);
}

#[test]
fn plan_check_says_what_it_did() {
    let (code, stdout, stderr) = plan(&["--check", "20", "--seed", "7"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("Check: 20 random orders of 5 epochs from seed 7: no deadlock"));
    let (_, stdout, _) = plan(&["--check", "3", "--json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["check"]["orders"], 3);
    assert_eq!(json["check"]["violation"], Value::Null);
    serde_json::from_str::<Plan>(&stdout).unwrap();
}

#[test]
fn plans_of_every_reduction_are_shown_and_checked() {
    for (operation, gets) in [
        ("gemm-reduce-scatter", "gets its own rows"),
        ("gemm-all-reduce", "gets all rows"),
        ("reduce-scatter", "gets its own rows"),
        ("all-reduce", "gets all rows"),
    ] {
        for engine in ["thread", "copies", "kernel"] {
            let args = ["--operation", operation, "--engine", engine, "--strategy", "sequential"];
            let (code, stdout, stderr) = plan(&[&args[..], &["--check", "10"]].concat());
            assert_eq!((code, stderr.as_str()), (0, ""));
            let title = operation.replacen("gemm-", "GEMM + ", 1);
            for part in [&format!("  {title}: D ("), gets, "lane by lane: sequential", "reach"] {
                assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
            }
            // Nothing is multiplied in a reduction alone.
            assert_eq!(
                stdout.contains("Tiles of rank"),
                operation.starts_with("gemm-"),
                "{stdout}"
            );
            assert_eq!(engine == "kernel", stdout.contains("a kernel of 64 blocks"), "{stdout}");
        }
        // Where nothing is multiplied, the usual strategy needs not be taken back.
        let (code, ..) = plan(&["--operation", operation, "--engine", "kernel"]);
        assert_eq!(code, if operation.starts_with("gemm-") { 2 } else { 0 }, "{operation}");
        let nccl = ["--operation", operation, "--engine", "nccl", "--strategy", "sequential"];
        let (code, stdout, stderr) = plan(&[&nccl[..], &["--check", "10"]].concat());
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.contains("lane by lane: sequential, NCCL, 1 piece"), "{stdout}");
    }
}

#[test]
fn unknown_arguments_are_refused_with_usage() {
    refused(&["plan", "--bogus"], 2, &["--bogus", "Usage:"]);
    refused(&["bogus"], 2, &["bogus", "Usage:"]);
    refused(&["doctor", "--require", "tpu"], 2, &["tpu", "gpu"]);
    let (code, _, stderr) = run(&[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("Usage:"), "{stderr}");
    refused(&["plan", "--m", "4", "--n", "4", "--k", "4"], 2, &["--ranks", "Usage:"]);
}

#[test]
fn impossible_sizes_are_refused_by_name_value_and_limit() {
    let sizes = |m, n, k, ranks| ["plan", "--m", m, "--n", n, "--k", k, "--ranks", ranks];
    refused(&sizes("0", "8", "8", "2"), 2, &["m is 0", "between 1 and 2147483647"]);
    refused(&sizes("8", "0", "8", "2"), 2, &["n is 0"]);
    refused(&sizes("8", "8", "0", "2"), 2, &["k is 0"]);
    refused(&sizes("2147483648", "8", "8", "2"), 2, &["m is 2147483648", "2147483647"]);
    refused(&sizes("8", "4294967296", "8", "2"), 2, &["n is 4294967296"]);
    refused(&sizes("99999999999999999999", "8", "8", "2"), 2, &["99999999999999999999", "--m"]);
    refused(&sizes("-1", "8", "8", "2"), 2, &["-1", "--m"]);
    refused(&sizes("8.5", "8", "8", "2"), 2, &["8.5", "--m"]);
    refused(&sizes("8", "8", "8", "0"), 2, &["ranks is 0", "between 1 and 1024"]);
    refused(&sizes("8", "8", "8", "4294967297"), 2, &["ranks is 4294967297"]);
}

#[test]
fn impossible_cuts_are_refused() {
    let refused = |more: &[&str], words: &[&str]| refused(&[SMALL, more].concat(), 2, words);
    refused(&["--chunks", "257"], &["257", "between 1 and 256"]);
    refused(&["--chunks", "0"], &["chunks a shard is 0"]);
    for tile in ["", "128", "128x", "x", "axb", "1x2x3", "-1x2", "1x4294967296"] {
        refused(&[&format!("--tile={tile}")], &["--tile", "128x256"]);
    }
    refused(&["--tile", "0x128"], &["the tile's rows is 0"]);
    refused(&["--cluster", "1x99999"], &["99999"]);
    refused(&["--swizzle", "0"], &["the swizzle is 0"]);
    refused(&["--rank", "4"], &["rank is 4", "between 0 and 3"]);
    refused(&["--types", "int8"], &["int8", "bf16, f16, f32, e4m3, e5m2"]);
    refused(&["--types", "f16xbf16"], &["f16 × bf16"]);
    refused(&["--scaling", "rows"], &["scaling of bf16"]);
    refused(&["--scaling", "some"], &["some", "tensor"]);
    refused(&["--check", "0"], &["--check"]);
    refused(&["--seed", "3"], &["--check"]);
}

#[test]
fn shards_must_sum_to_m_and_agree_with_ranks() {
    let shards = |rows| ["plan", "--m", "10", "--n", "8", "--k", "8", "--shards", rows];
    refused(&shards("5,4"), 2, &["rows is 9", "must be 10"]);
    refused(&shards("0,0"), 2, &["is 0"]);
    refused(&shards("4294967295,4294967295"), 2, &["8589934590"]);
    refused(&shards("5,,5"), 2, &["--shards"]);
    refused(&[&shards("5,5")[..], &["--ranks", "3"]].concat(), 2, &["is 2", "must be 3"]);
    assert_eq!(run(&[&shards("5,5")[..], &["--ranks", "2"]].concat()).0, 0);
}

#[test]
fn huge_plans_have_a_short_text_and_checks_of_hours_are_refused() {
    let huge = ["plan", "--m", "2147483647", "--n", "2147483647", "--k", "2147483647"];
    let huge = [&huge[..], &["--ranks", "1024", "--chunks", "64", "--tile", "1x1"]].concat();
    refused(&[&huge[..], &["--check", "1"]].concat(), 2, &["fewer ranks or chunks"]);
    // The text is an overview, however huge the plan.
    let (code, stdout, _) = run(&huge);
    assert_eq!(code, 0);
    assert!(stdout.len() < 30_000, "{} bytes", stdout.len());
    refused(&[SMALL, &["--check", "4294967295"]].concat(), 2, &["4294967295", "fewer orders"]);
}

#[test]
fn json_goes_to_a_file_beside_the_text() {
    let folder = Folder::new("json");
    let name = folder.file("plan.json", &"x".repeat(1 << 20)); // longer than what replaces it
    let (code, stdout, _) = plan(&["--output", &name]);
    assert_eq!(code, 0);
    assert!(stdout.contains("lane by lane"), "{stdout}");
    serde_json::from_str::<Plan>(&folder.read("plan.json")).unwrap();
}

#[test]
fn a_refused_command_leaves_the_file_as_it_was() {
    let folder = Folder::new("kept");
    let name = folder.file("plan.json", &"kept");
    refused(&[SMALL, &["--output", &name, "--check", "4294967295"]].concat(), 2, &["fewer orders"]);
    assert_eq!(folder.read("plan.json"), "kept");
}

#[test]
fn unwritable_files_are_run_time_failures() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().unwrap();
    refused(&[SMALL, &["--output", folder]].concat(), 4, &["cannot write", folder, "because"]);
    refused(&[SMALL, &["--output", "/proc/nope"]].concat(), 4, &["cannot write /proc/nope"]);
    refused(&["doctor", "--output", "/proc/nope"], 4, &["cannot write /proc/nope"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_run_time_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (code, _, stderr) = outcome(SMALL, command(SMALL).stdout(full).output().unwrap());
    assert_eq!(code, 4);
    assert!(stderr.contains("cannot write to stdout"), "{stderr}");
}

#[test]
#[cfg(target_os = "linux")]
fn help_and_version_that_cannot_be_written_are_failures() {
    for args in [&["--help"][..], &["--version"], &["bench", "gemm", "--help"], &["help", "plan"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, _, stderr) = outcome(args, command(args).stdout(full).output().unwrap());
        assert_eq!(code, 4, "{args:?}");
        assert!(stderr.contains("cannot write to stdout"), "{stderr}");
    }
    // What is wrong with arguments is told by the exit code, even where nothing can be printed.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(command(&["--bogus"]).stderr(full).status().unwrap().code(), Some(2));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    for args in [SMALL.to_vec(), [SMALL, &["--json"]].concat(), vec!["plan", "--help"]] {
        let mut child =
            command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let (code, _, stderr) = outcome(&args, child.wait_with_output().unwrap());
        assert_eq!((code, stderr.as_str()), (0, ""));
    }
}

/// Starts a command that would run for long, interrupts it, and expects a clean end.
#[cfg(target_os = "linux")]
fn assert_interruptible(args: &[&str]) {
    let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A signal before the handler is installed would end it the hard way: wait until it is.
    let handles_sigint = |pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 1) != 0
    };
    while !handles_sigint(child.id()) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(child.try_wait().unwrap().is_none(), "it was too short to interrupt");
    // The shell's own kill: a bare system has no program of that name.
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let (code, stdout, stderr) = outcome(args, child.wait_with_output().unwrap());
    assert_eq!((code, stdout.as_str()), (130, ""));
    assert!(stderr.contains("interrupted"), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_long_check_cleanly() {
    assert_interruptible(&[SMALL, &["--check", "300000"]].concat());
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_long_verify_cleanly() {
    assert_interruptible(&["verify", "--seconds", "600"]);
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_long_demo_cleanly() {
    // Steps that would take hours.
    assert_interruptible(&["demo", "--m", "8192", "--steps", "10000"]);
}

#[test]
fn nothing_is_coloured_or_drawn_for_a_pipe() {
    for args in [&["doctor"][..], &[SMALL, &["--check", "50"]].concat(), &["plan", "--m", "0"]] {
        let (_, stdout, stderr) = run(args);
        assert!(!stdout.contains('\x1b') && !stderr.contains('\x1b'), "{args:?}");
    }
}

#[test]
fn doctor_always_answers() {
    let (code, stdout, stderr) = run(&["doctor"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for topic in ["processor", "driver", "kernels", "NCCL", "cuBLASLt", "CUDA toolkit"] {
        assert!(stdout.contains(topic), "{topic}: {stdout}");
    }
    assert!(stdout.contains("This binary can use: CPU threads; "), "{stdout}");
}

#[test]
fn doctor_json_gives_a_remedy_for_whatever_is_missing() {
    let (code, stdout, _) = run(&["doctor", "--json"]);
    assert_eq!(code, 0);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    for finding in json["findings"].as_array().unwrap() {
        let state = finding["state"].as_str().unwrap();
        assert!(["ok", "missing", "note"].contains(&state), "{finding}");
        assert!(state != "missing" || finding["remedy"].is_string(), "{finding}");
    }
    let usable = json["usable_gpus"].as_u64().unwrap();
    // The same look decides what --require says.
    let (code, _, stderr) = run(&["doctor", "--require", "gpu"]);
    assert_eq!(code, if usable == 0 { 3 } else { 0 }, "{stderr}");
    assert_eq!(stderr.contains("no usable GPU: "), usable == 0, "{stderr}");
}

/// Names on the loader's path that are no libraries of that kind must not harm.
#[test]
#[cfg(target_os = "linux")]
fn doctor_survives_files_that_are_no_libraries() {
    let folder = std::env::temp_dir().join(format!("overlap-gemm-fake-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libcublasLt.so.13"] {
        std::fs::write(folder.join(name), "no library").unwrap();
    }
    std::fs::write(folder.join("bin/nvcc"), "no program").unwrap();
    let args = ["doctor"];
    let output = command(&args)
        .env("LD_LIBRARY_PATH", &folder)
        .env("CUDA_HOME", &folder)
        .env("PATH", folder.join("bin"))
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let (code, stdout, _) = outcome(&args, output);
    assert_eq!(code, 0);
    assert_eq!(stdout.matches("found but cannot be loaded").count(), 3, "{stdout}");
    assert!(stdout.contains("NVML does not start"), "{stdout}");
}

#[test]
fn verify_runs_cases_and_one_case_again() {
    let (code, stdout, stderr) = run(&["verify", "--count", "7", "--seed", "5"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(
        stdout.contains("7 cases from seed 5") && stdout.contains("on the model: "),
        "{stdout}"
    );
    assert!(stdout.contains(" 0 wrong"), "{stdout}");
    let (code, stdout, _) = run(&["verify", "--count", "40", "--seed", "5", "--json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, json["cases"].as_u64()), (0, Some(40)));
    let with_product = ["GEMM + all-reduce", "GEMM + reduce-scatter", "all-gather + GEMM"];
    let all = [&with_product[..], &["all-reduce", "reduce-scatter"]].concat();
    for (list, mut operations) in [("operations", with_product.to_vec()), ("schedules", all)] {
        operations.sort_unstable();
        let counts = json[list].as_object().unwrap();
        assert_eq!(counts.keys().collect::<Vec<_>>(), operations, "{list}");
        assert_eq!(counts.values().filter_map(Value::as_u64).sum::<u64>(), 40, "{list}");
    }
    let (code, stdout, _) = run(&["verify", "--seed", "5", "--case", "3", "--json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["cases"], &json["failure"]), (0, &1.into(), &Value::Null));
    assert!(json["shown"].as_str().unwrap().contains("problem"));
    for bad in [&["--count", "0"][..], &["--seconds", "0"], &["--case", "1", "--count", "2"]] {
        assert_eq!(run(&[&["verify"], bad].concat()).0, 2);
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_launched_ranks_cleanly() {
    assert_interruptible(&["launch", "-n", "2", "--", "sleep", "600"]);
}
