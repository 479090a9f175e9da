//! What the documents say of the command line: quoted commands and exit codes, held against the built binary.
//!
//! Invariant: no command in a document is made up. Links, names and quoted code are held in the library's
//! `tests/documents.rs`.

#[path = "../../tests/common/documents.rs"]
mod documents;

use std::fs;
use std::path::Path;
use std::process::Command;

use documents::{DOCUMENTS, code_spans, split};

fn read(path: &str) -> String {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    fs::read_to_string(repository.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What the documents quote after `overlap-gemm` or `cargo run --release --`.
fn quoted_commands() -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for document in DOCUMENTS {
        let (prose, fenced) = split(&read(document));
        let spans = code_spans(&prose);
        let shell = fenced.iter().filter(|(language, _)| language == "sh");
        let lines = shell.map(|(_, line)| line.as_str()).chain(spans);
        for line in lines {
            let line = line.split('#').next().unwrap_or(line).trim();
            let quoted = ["overlap-gemm ", "cargo run --release -- "]
                .into_iter()
                .find_map(|prefix| line.strip_prefix(prefix));
            commands.extend(quoted.map(|args| args.split_whitespace().map(Into::into).collect()));
        }
    }
    commands
}

fn run(args: &[String]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_overlap-gemm")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn every_quoted_command_is_understood() {
    let commands = quoted_commands();
    for args in &commands {
        // Some take long or want a GPU: with --help at the end, all before it is still read. What
        // another program is given comes after it.
        let cheap = ["plan", "doctor"].contains(&args[0].as_str());
        let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        let mut args = args.clone();
        args.splice(end..end, (!cheap).then(|| "--help".to_owned()));
        let (understood, text) = run(&args);
        assert!(understood, "overlap-gemm {}: {text}", args.join(" "));
    }
    for subcommand in
        ["bench", "demo", "doctor", "launch", "verify", "plan", "tune", "predict", "trace"]
    {
        let quoted = commands.iter().any(|args| args[0] == subcommand);
        assert!(quoted, "no document shows how to run '{subcommand}'");
    }
}

#[test]
fn an_unknown_flag_before_help_is_noticed() {
    let args = ["demo", "--no-such-flag", "--help"].map(String::from);
    assert!(!run(&args).0, "or the test above would prove nothing");
}

#[test]
fn the_documented_exit_codes_are_those_of_help() {
    let (_, help) = run(&["--help".into()]);
    let document = read("docs/command-line.md");
    let codes = help.lines().skip_while(|line| *line != "Exit codes:").skip(1);
    let codes: Vec<_> = codes.filter(|line| !line.trim().is_empty()).collect();
    assert!(codes.len() > 5, "{help}");
    for code in codes {
        assert!(document.contains(code), "docs/command-line.md lacks '{code}'");
    }
}
