//! The scripts that run tests on a GPU machine, held against stand-ins: no GPU, no sanitizer, no cargo.
//!
//! What belongs here: what a script concludes from how programs end. Invariant: nothing that failed,
//! hung, or did not run at all is called right.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Says what libtest says of a test that passed.
const PASSES: &str = "echo 'running 1 test'; echo 'test result: ok. 1 passed; 0 failed'";
const FAILS: &str = "echo 'running 1 test'; echo 'test result: FAILED. 0 passed'; exit 101";
const RUNS_NONE: &str = "echo 'running 0 tests'; echo 'test result: ok. 0 passed; 0 failed'";
const HANGS: &str = "echo 'running 1 test'; sleep 600";

/// A staged folder; removed when the test ends.
struct Staged {
    folder: PathBuf,
    /// One test at a time: a process that another test is just starting would hold a program open that
    /// this one has written, and nobody could run it then.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Staged {
    /// The folder with one of our scripts.
    fn new(test: &str, script: &str) -> Staged {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder =
            std::env::temp_dir().join(format!("overlap-gemm-staged-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
        fs::copy(ours, folder.join(script)).unwrap();
        Staged { folder, _alone }
    }

    /// A program that is this line of shell.
    fn program(&self, name: &str, line: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the script; its exit code and what it printed.
    fn run(&self, script: &str, args: &[&str]) -> (i32, String) {
        let path = format!("{}:/usr/bin:/bin", self.folder.join("bin").display());
        let mut command = Command::new(self.folder.join(script));
        command.args(args).env("PATH", path);
        command.env("OVERLAP_GEMM_SANITIZE_SECONDS", "1").env("OVERLAP_GEMM_MUTANT_SECONDS", "1");
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
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
fn a_sanitizer_has_a_line_for_each_tool() {
    let staged = with_sanitizer("clean", "none");
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize"]);
    assert_eq!((code, text.as_str()), (0, "memcheck: clean\nracecheck: clean\nsynccheck: clean\n"));
    let (code, text) = staged.run("run-gpu-tests", &["--sanitize", "racecheck"]);
    assert_eq!((code, text.as_str()), (0, "racecheck: clean\n"));
}

#[test]
fn what_a_sanitizer_found_is_a_failure() {
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

/// A folder of mutants: the table, and the binaries that are those lines of shell.
fn with_mutants(test: &str, table: &str, binaries: &[(&str, &str)]) -> (i32, String) {
    let staged = Staged::new(test, "run-mutants");
    fs::write(staged.folder.join("mutants.txt"), table).unwrap();
    binaries.iter().for_each(|(name, line)| staged.program(name, line));
    staged.run("run-mutants", &[])
}

const TABLE: &str = "control passes gpu one\nno_wait fails gpu one\nmaybe any gpu one\n";

#[test]
fn a_mutant_is_killed_by_a_test_that_fails_or_hangs() {
    let (code, text) = with_mutants(
        "killed",
        TABLE,
        &[("control/gpu", PASSES), ("no_wait/gpu", FAILS), ("maybe/gpu", PASSES)],
    );
    let said = "no_wait: killed by one (exit code 101)\nmaybe: survived one, as it may\n";
    assert!(code == 0 && text.starts_with(said), "{text}");
    let (code, text) = with_mutants(
        "hangs",
        TABLE,
        &[("control/gpu", PASSES), ("no_wait/gpu", HANGS), ("maybe/gpu", FAILS)],
    );
    let said = "no_wait: killed by one (it hung)\nmaybe: killed by one (exit code 101)\n";
    assert!(code == 0 && text.starts_with(said), "{text}");
}

#[test]
fn a_test_that_has_to_end_on_a_mutant_may_not_hang() {
    let table = "control passes gpu one\nno_limit ends gpu one\n";
    for (line, passes) in [(FAILS, true), (HANGS, false), (PASSES, false)] {
        let binaries = [("control/gpu", PASSES), ("no_limit/gpu", line)];
        let (code, text) = with_mutants("ends", table, &binaries);
        assert_eq!(code == 0, passes, "{line}: {text}");
    }
}

#[test]
fn a_mutant_that_survives_or_does_not_run_is_a_failure() {
    for (line, said) in
        [(PASSES, "no_wait: SURVIVED one\n"), (RUNS_NONE, "no_wait: one DID NOT RUN")]
    {
        let binaries = [("control/gpu", PASSES), ("no_wait/gpu", line), ("maybe/gpu", PASSES)];
        let (code, text) = with_mutants("survives", TABLE, &binaries);
        assert!(code == 1 && text.starts_with(said), "{text}");
    }
}

/// As where there is no GPU: every test fails, and that says nothing about mutants.
#[test]
fn failures_count_only_if_the_code_as_it_is_passes() {
    let all = [("control/gpu", FAILS), ("no_wait/gpu", FAILS), ("maybe/gpu", FAILS)];
    let (code, text) = with_mutants("control", TABLE, &all);
    assert!(code == 1 && !text.contains("killed"), "{text}");
    for table in ["", "no_wait fails gpu one\n", "control passes gpu one\n"] {
        let binaries = [("control/gpu", PASSES), ("no_wait/gpu", FAILS)];
        let (code, text) = with_mutants("parts", table, &binaries);
        assert_eq!(code, 1, "{table}: {text}");
    }
}
