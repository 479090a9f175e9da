//! How the tests of the command line run the built binary.
//!
//! Invariant, checked for every run: no panic reaches stderr, and a refusal says something.

#![allow(dead_code)] // each test file uses its share

use std::process::{Command, Output, Stdio};

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overlap-gemm"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs to the end; the exit code, stdout and stderr.
pub fn run(args: &[&str]) -> (i32, String, String) {
    outcome(args, command(args).output().unwrap())
}

pub fn outcome(args: &[&str], output: Output) -> (i32, String, String) {
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    let code = output.status.code().unwrap_or_else(|| panic!("{args:?} was killed: {stderr}"));
    assert!(code == 0 || !stderr.is_empty(), "{args:?} ended with {code} and said nothing");
    (code, stdout, stderr)
}

/// Expects a refusal with `code` that says all of `words` and prints no result.
#[track_caller]
pub fn refused(args: &[&str], code: i32, words: &[&str]) {
    let (got, stdout, stderr) = run(args);
    assert_eq!(got, code, "{args:?}: {stderr}");
    assert_eq!(stdout, "", "{args:?}");
    for word in words {
        assert!(stderr.contains(word), "{args:?} does not say '{word}': {stderr}");
    }
}
