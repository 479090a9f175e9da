//! Tests of the pictures: who and what is on them, and what they say where nothing is.

use super::super::made_up::{case, row, run, usual_case};
use super::*;

const EVERYBODY: Drawn<'static> = Drawn { only: &[] };

#[test]
fn who_gathers_and_multiplies_is_drawn_over_the_floor() {
    let mut other = usual_case(64);
    other.rows.iter_mut().for_each(|row| row.graph = false);
    let runs = [run(vec![usual_case(1024), usual_case(4096), other])];
    let all = Comparison::of(&runs);
    let picture = time_against_m(&all, &EVERYBODY, true);
    assert_eq!(picture.matches("</title></").count(), 3 * 2, "three contenders, two cases");
    for told in ["fused, 1024: 105.0 µs", "torch-fused, 4096: 520.0 µs", "T_gemm", "3584×8192 bf16"]
    {
        assert!(picture.contains(told), "no {told} in {picture}");
    }
    assert!(!picture.contains("torch-native") && !picture.contains("gather, "), "{picture}");
    let plain = time_against_m(&all, &EVERYBODY, false);
    assert!(plain.contains("fused, 64: 6.6 µs") && plain.contains("one by one"), "{plain}");
}

#[test]
fn what_is_no_curve_is_named_and_not_drawn() {
    let mut single = usual_case(512);
    single.name = "512×64×8192 bf16".into();
    let runs = [run(vec![single, usual_case(1024), usual_case(4096)])];
    let all = Comparison::of(&runs);
    let picture = time_against_m(&all, &EVERYBODY, true);
    assert!(picture.contains("one M only: N×K = 64×8192 bf16"), "{picture}");
    assert!(!picture.contains("fused, 512:") && picture.contains("fused, 1024:"), "{picture}");
    // Alone it is drawn.
    let runs = [run(vec![usual_case(512)])];
    let picture = time_against_m(&Comparison::of(&runs), &EVERYBODY, true);
    assert!(picture.contains("fused, 512:") && !picture.contains("Not drawn"), "{picture}");
}

#[test]
fn some_can_be_left_out_but_nobody_who_is_not_there_asked_for() {
    let runs = [run(vec![usual_case(1024)])];
    let all = Comparison::of(&runs);
    let only = ["fused".to_owned(), "nccl-cublaslt".into()];
    let drawn = Drawn { only: &only };
    assert_eq!(drawn.unknown(&all), None);
    let picture = time_against_m(&all, &drawn, true);
    assert!(picture.contains("fused") && !picture.contains("torch-"), "{picture}");
    let only = ["fsued".to_owned()];
    let why = Drawn { only: &only }.unknown(&all).unwrap();
    assert!(why.contains("'fsued'; there are cublaslt, torch-mm, own"), "{why}");
}

#[test]
fn runs_and_machines_are_told_apart() {
    let mut other = run(vec![usual_case(1024)]);
    other.ranks = 4;
    let runs = [run(vec![usual_case(1024)]), run(vec![usual_case(1024)]), other];
    let all = Comparison::of(&runs);
    let picture = time_against_m(&all, &EVERYBODY, true);
    for told in ["fused [1]", "fused [2]", "fused [3]", "on 4 × NVIDIA H200", "on 2 × NVIDIA H200"]
    {
        assert!(picture.contains(told), "no {told} in {picture}");
    }
}

#[test]
fn only_setups_that_are_drawn_are_in_the_head() {
    let mut plain = [usual_case(64), usual_case(512)];
    plain.iter_mut().flat_map(|case| &mut case.rows).for_each(|row| row.graph = false);
    let mut threads = run(plain.to_vec());
    (threads.machine.gpu, threads.machine.sm_count) = ("rank on threads (some)".into(), 0);
    let runs = [threads, run(vec![usual_case(1024), usual_case(4096)])];
    let all = Comparison::of(&runs);
    let picture = time_against_m(&all, &EVERYBODY, true);
    assert!(picture.contains(">2 × NVIDIA H200; steady loops in CUDA graphs"), "{picture}");
    let why = "Not drawn, for nobody gathers and multiplies in CUDA graphs (--plot-launch plain draws the others):<";
    assert!(picture.contains(why) && picture.contains(">2 ranks on threads (some)<"), "{picture}");
}

#[test]
fn where_nothing_is_drawn_the_picture_says_what_helps() {
    let of = |names: &[&str]| {
        let mut case = usual_case(64);
        case.rows.retain(|row| names.contains(&&*row.who));
        [run(vec![case])]
    };
    let runs = of(&["own"]);
    let picture = time_against_m(&Comparison::of(&runs), &EVERYBODY, true);
    assert!(
        picture
            .contains("nobody gathers and multiplies in CUDA graphs: --contenders fused or auto"),
        "{picture}"
    );
    let runs = of(&["own", "fused"]);
    let all = Comparison::of(&runs);
    let plain = time_against_m(&all, &EVERYBODY, false);
    assert!(plain.contains("--plot-launch graph"), "{plain}");
    let only = ["own".to_owned()];
    let picture = time_against_m(&all, &Drawn { only: &only }, true);
    assert!(picture.contains("in CUDA graphs of those that --draw names"), "{picture}");
}

#[test]
fn nothing_measured_is_no_panic() {
    for runs in
        [vec![], vec![run(vec![])], vec![run(vec![case(8, vec![row("x", Kind::Gemm, &[1.0])])])]]
    {
        let all = Comparison::of(&runs);
        let picture = time_against_m(&all, &EVERYBODY, true);
        assert!(picture.contains("nobody gathers and multiplies"), "{picture}");
    }
}
