//! The command `predict`: what it predicts, its choice, and what it refuses.
//!
//! What belongs here: runs of the binary. How near predictions are to measurements is up to predict_results.rs.

#[path = "common/binary.rs"]
mod binary;

use binary::{command, outcome, refused, run};
use serde_json::Value;

/// A problem small enough for a test.
const SMALL: [&str; 8] = ["predict", "--m", "1000", "--n", "512", "--k", "256", "--ranks"];

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no '{name}' in {value}"))
}

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
        let plain = number(all[0], "total_us");
        assert!(all.iter().all(|it| number(it, "total_us") >= plain), "{case}");
    }
    let (code, stdout, _) = run(&[&SMALL[..], &["2,72"]].concat());
    assert_eq!(code, 0);
    for part in ["on 72 ranks", "fused", "sequential", "NCCL first", "auto", "380 GB/s"] {
        assert!(stdout.contains(part), "no '{part}' in\n{stdout}");
    }
}

#[test]
fn reductions_are_predicted_by_each_way_that_gpus_have() {
    for operation in ["gemm-reduce-scatter", "gemm-all-reduce"] {
        let json = predicted("1,2,72", &["--operation", operation]);
        for case in json["cases"].as_array().unwrap() {
            let all = case["predictions"].as_array().unwrap();
            let (auto, all): (Vec<_>, Vec<_>) = all.iter().partition(|it| it["auto"] == true);
            let names: Vec<_> = all.iter().map(|it| it["strategy"].as_str().unwrap()).collect();
            let mut ways = vec!["plain", "pipelined", "sequential"];
            // A kernel has 32 ranks times pieces at most.
            ways.extend((case["ranks"] != 72).then_some("sequential"));
            // With one, two and four pieces of a shard.
            ways.extend(["fused"; 3]);
            assert_eq!(names, ways, "{case}");
            let times = all[1..].iter().map(|it| number(it, "total_us"));
            let least = times.fold(f64::INFINITY, f64::min);
            assert!(least > number(all[0], "total_us"), "{case}");
            assert_eq!(auto.len(), usize::from(case["ranks"] != 1), "{case}");
            assert!(auto.iter().all(|it| number(it, "total_us") == least), "{case}");
        }
        let args = [&SMALL[..], &["2,72", "--operation", operation]].concat();
        let (code, stdout, _) = run(&args);
        assert!(code == 0 && stdout.contains("by kernel"), "{stdout}");
    }
}

#[test]
fn reductions_without_a_product_are_predicted_by_copies_and_by_a_kernel() {
    let mut received = Vec::new();
    for operation in ["reduce-scatter", "all-reduce"] {
        let json = predicted("1,2,72", &["--operation", operation]);
        for case in json["cases"].as_array().unwrap() {
            let all = case["predictions"].as_array().unwrap();
            // A kernel has 32 ranks at most.
            assert_eq!(all.len(), if case["ranks"] == 72 { 1 } else { 2 }, "{case}");
            for one in all {
                assert_eq!((&one["strategy"], &one["auto"]), (&"sequential".into(), &false.into()));
                assert!(one.get("kernel").is_none() && number(one, "total_us") > 0.0, "{one}");
            }
            received.push(number(case, "received_bytes"));
        }
        let args = [&SMALL[..], &["2,72", "--operation", operation]].concat();
        let (code, stdout, _) = run(&args);
        assert!(code == 0 && stdout.contains("by kernel") && !stdout.contains("plain"), "{stdout}");
    }
    // Of 1000 rows of 512 sums, two bytes each: the other ranks' of the own rows, 13 or 14 of 72 ranks; or of all rows.
    let all = 1000.0 * 1024.0;
    assert_eq!(received, [0.0, all / 2.0, 987.0 * 1024.0, 0.0, all, 71.0 * all]);
}

#[test]
fn n_can_be_that_of_all_ranks_and_the_link_another() {
    let json = predicted("2,8", &["--split-n", "--link", "100"]);
    let columns: Vec<_> = json["cases"].as_array().unwrap().iter().map(|case| &case["n"]).collect();
    assert_eq!(columns, [256, 64]);
    // No other rank is reached faster than that, nor more slowly.
    assert_eq!(["link_gbps", "peer_gbps"].map(|of| number(&json["machine"], of)), [100.0; 2]);
}

#[test]
fn what_the_library_would_choose_is_what_an_empty_table_says() {
    let args = "predict --m 4096 --n 3584 --k 8192 --types e4m3 --ranks 8 --json";
    let (_, stdout, _) = run(&args.split(' ').collect::<Vec<_>>());
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let chosen = json["cases"][0]["predictions"].as_array().unwrap().last().unwrap();
    let args = "tune --show --ranks 8 --shapes 4096x3584x8192 --types e4m3 --json";
    let args: Vec<&str> = args.split(' ').collect();
    let shown = command(&args).env("OVERLAP_GEMM_TUNING", "none").output().unwrap();
    let shown: Value = serde_json::from_str(&outcome(&args, shown).1).unwrap();
    let shown = &shown["problems"][0];
    let words = format!("predicted to take {:.1} µs", number(chosen, "total_us"));
    assert!(shown["why"].as_str().unwrap().contains(&words), "{shown}, not {words}");
    assert_eq!(chosen["kernel"], shown["multiplying"]["kernel"]);
    assert_eq!(chosen["auto"], true);
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
    refuse(&["2", "--types", "f32"], &["f32 × f32 → f32"]);
    let sized = |m: &str, n: &str, more: &[&str], words: &[&str]| {
        let args = ["predict", "--m", m, "--n", n, "--k", "64", "--ranks"];
        refused(&[&args[..], more].concat(), 2, words);
    };
    sized("64", "18446744073709551615", &["1", "--split-n"], &["n is 18446744073709551615"]);
    sized("2147483647", "2147483632", &["2"], &["the number of units of work", "134217728"]);
    refused(&["predict"], 2, &["--m"]);
}
