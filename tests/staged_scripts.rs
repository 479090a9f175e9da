//! The scripts that run tests on a GPU machine, held against stand-ins: no GPU, no sanitizer, no cargo.
//!
//! What belongs here: what a script concludes from how programs end. Invariant: nothing that failed,
//! hung, or did not run at all is called right.

#![cfg(target_os = "linux")]

#[path = "common/folder.rs"]
mod folder;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use folder::Folder;

/// Says what libtest says of a test that passed.
const PASSES: &str = "echo 'running 1 test'; echo 'test result: ok. 1 passed; 0 failed'";
const FAILS: &str = "echo 'running 1 test'; echo 'test result: FAILED. 0 passed'; exit 101";
const RUNS_NONE: &str = "echo 'running 0 tests'; echo 'test result: ok. 0 passed; 0 failed'";
const HANGS: &str = "echo 'running 1 test'; sleep 600";

/// A staged folder.
struct Staged {
    folder: Folder,
    /// One test at a time: a process that another test is just starting would hold a program open that
    /// this one has written, and nobody could run it then.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Staged {
    /// The folder with one of our scripts.
    fn new(test: &str, script: &str) -> Staged {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::new(&format!("staged-{test}"));
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
        fs::copy(ours, folder.0.join(script)).unwrap();
        Staged { folder, _alone }
    }

    /// A program that is this line of shell.
    fn program(&self, name: &str, line: &str) {
        self.folder.write(name, &format!("#!/bin/sh\n{line}\n"));
    }

    /// Runs the script; its exit code and what it printed.
    fn run(&self, script: &str, args: &[&str]) -> (i32, String) {
        let path = format!("{}:/usr/bin:/bin", self.folder.0.join("bin").display());
        let mut command = Command::new(self.folder.0.join(script));
        command.args(args).env("PATH", path);
        command.env("OVERLAP_GEMM_SANITIZE_SECONDS", "1").env("OVERLAP_GEMM_MUTANT_SECONDS", "1");
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }
}

#[test]
fn gpu_tests_pass_if_every_binary_does() {
    let staged = Staged::new("run", "run-gpu-tests");
    staged.program("tests/gpu_gemm", "echo \"$@\"");
    staged.program("tests/gpu_async", "exit 0");
    let (code, text) = staged.run("run-gpu-tests", &["whole_tiles"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("--ignored --test-threads=1 --nocapture whole_tiles\n"), "{text}");
    assert!(text.ends_with("all GPU tests passed\n"), "{text}");
    staged.program("tests/gpu_async", "exit 101");
    let (code, text) = staged.run("run-gpu-tests", &[]);
    assert!(code == 1 && text.ends_with("GPU TESTS FAILED\n"), "{text}");
}

/// The tests that a sanitizer runs, and a sanitizer that finds something with one tool and runs the test
/// with the others.
fn with_sanitizer(test: &str, bad_tool: &str) -> Staged {
    let staged = Staged::new(test, "run-gpu-tests");
    staged.program("tests/gpu_gemm", PASSES);
    staged.program("tests/gpu_async", PASSES);
    staged.program("tests/gpu_reduce", PASSES);
    let found = format!("[ \"$2\" = '{bad_tool}' ] && exit 1");
    let program = "while [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"";
    staged.program("bin/compute-sanitizer", &format!("{found}\n{program}"));
    staged
}

#[test]
fn a_sanitizer_has_a_line_for_each_tool_and_what_it_found_is_a_failure() {
    let staged = with_sanitizer("clean", "none");
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize"]);
    assert_eq!((code, text.as_str()), (0, "memcheck: clean\nracecheck: clean\nsynccheck: clean\n"));
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize", "racecheck"]);
    assert_eq!((code, text.as_str()), (0, "racecheck: clean\n"));
    drop(staged);
    let staged = with_sanitizer("found", "racecheck");
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("memcheck: clean\nracecheck: FAILED: small_products_for"), "{text}");
    assert!(text.ends_with("synccheck: clean\n"), "{text}");
}

#[test]
fn tests_that_fail_hang_or_do_not_run_are_not_clean() {
    let staged = with_sanitizer("unclean", "none");
    for (line, said) in [
        (
            FAILS,
            "arriving::small_steps_for_the_sanitizer ended with 101 (sanitize/memcheck-gpu_async.log)",
        ),
        (RUNS_NONE, "small_steps_for_the_sanitizer did not run"),
        (HANGS, "small_steps_for_the_sanitizer did not end within 1 s"),
    ] {
        staged.program("tests/gpu_async", line);
        let (code, text) = staged.run("run-gpu-tests", &["--sanitize", "memcheck"]);
        assert_eq!(code, 1, "{text}");
        assert!(text.starts_with("memcheck: FAILED: ") && text.contains(said), "{text}");
    }
}

#[test]
fn without_a_sanitizer_the_script_says_so() {
    let staged = Staged::new("absent", "run-gpu-tests");
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize"]);
    // Where a toolkit is installed, there is one; then the tests are missing.
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("no compute-sanitizer on PATH") || text.contains("FAILED"), "{text}");
}

const TABLE: &str = "control passes gpu one\nno_wait fails gpu one\nmaybe any gpu one\n";
const ENDS: &str = "control passes gpu one\nno_wait ends gpu one\n";

/// The tests of the code as it is, of `no_wait` and of `maybe`; whether that is as it should be; what is said, among others.
const MUTANTS: [(&str, [&str; 3], bool, &str); 13] = [
    (TABLE, [PASSES, FAILS, PASSES], true, "no_wait: killed by one (exit code 101)\n"),
    (TABLE, [PASSES, FAILS, PASSES], true, "maybe: survived one, as it may\n"),
    (TABLE, [PASSES, HANGS, FAILS], true, "no_wait: killed by one (it hung)\n"),
    (TABLE, [PASSES, HANGS, FAILS], true, "maybe: killed by one (exit code 101)\n"),
    (TABLE, [PASSES, PASSES, PASSES], false, "no_wait: SURVIVED one\n"),
    (TABLE, [PASSES, RUNS_NONE, PASSES], false, "no_wait: one DID NOT RUN"),
    (ENDS, [PASSES, FAILS, PASSES], true, "no_wait: killed by one"),
    (ENDS, [PASSES, HANGS, PASSES], false, "no_wait: one HUNG"),
    (ENDS, [PASSES, PASSES, PASSES], false, "no_wait: SURVIVED one\n"),
    // As where there is no GPU: every test fails, and that says nothing about mutants.
    (TABLE, [FAILS; 3], false, "control: one FAILS on the code as it is"),
    ("", [PASSES; 3], false, "MUTANTS: FAILED\n"),
    ("control passes gpu one\n", [PASSES; 3], false, "MUTANTS: FAILED\n"),
    ("no_wait fails gpu one\n", [PASSES, FAILS, PASSES], false, "MUTANTS: FAILED\n"),
];

#[test]
fn mutants_are_right_if_all_tests_ran_and_noticed_them() {
    let staged = Staged::new("mutants", "run-mutants");
    for (table, binaries, is_right, said) in MUTANTS {
        fs::write(staged.folder.0.join("mutants.txt"), table).unwrap();
        for (name, line) in ["control/gpu", "no_wait/gpu", "maybe/gpu"].into_iter().zip(binaries) {
            staged.program(name, line);
        }
        let (code, text) = staged.run("run-mutants", &[]);
        assert!((code == 0) == is_right && text.contains(said), "{table}{binaries:?}: {text}");
        assert!(binaries[0] == PASSES || !text.contains("killed"), "{text}");
    }
}
