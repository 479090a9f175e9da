//! Results from files.
//!
//! Invariant: a row that was read has times that a bench can have measured, or says why it has none. A file that holds
//! anything else is refused with its name and the reason.

use std::fs;
use std::path::Path;

use overlap_gemm::tune::Times;
use serde::Deserialize;
use serde_json::Value;

use super::{BENCHES, FORMAT, Row, Run};
use crate::exit::Failure;

/// All runs of a file.
pub fn read(path: &Path) -> Result<Vec<Run>, Failure> {
    let name = path.display().to_string();
    let bytes = fs::read(path).map_err(|source| Failure::Read { target: name.clone(), source })?;
    parse(&bytes).map_err(|why| Failure::Usage(printable(&format!("{name}: {why}"))))
}

/// All runs of a file's content, or what is wrong with it.
fn parse(bytes: &[u8]) -> Result<Vec<Run>, String> {
    /// What a file holds beside its head.
    #[derive(Deserialize)]
    struct Runs {
        runs: Vec<Run>,
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("it is no JSON, or cut off: {error}"))?;
    let bench = |name: &Value| BENCHES.iter().any(|known| name == known);
    let format = value.get("format").filter(|_| value.get("bench").is_some_and(bench));
    match format {
        Some(format) if *format == FORMAT => {}
        Some(format) => {
            return Err(format!(
                "it has format {format}, but this overlap-gemm ({}) reads format {FORMAT}: use the overlap-gemm that wrote it",
                env!("CARGO_PKG_VERSION")
            ));
        }
        None => {
            return Err(
                "it holds no results of a bench: give files that 'bench --output' wrote".into()
            );
        }
    }
    // From the text, not from the value: so a message has the line and the column.
    let Runs { runs } =
        serde_json::from_slice(bytes).map_err(|error| format!("it is damaged: {error}"))?;
    for case in runs.iter().flat_map(|run| &run.cases) {
        let named =
            |row: &Row, why| format!("case '{}': contender '{}': {why}", case.name, row.who);
        case.rows.iter().try_for_each(|row| check(row).map_err(|why| named(row, why)))?;
    }
    Ok(runs)
}

fn check(row: &Row) -> Result<(), String> {
    let mut times = row.rounds_us.iter().chain(&row.host_us);
    if let Some(time) = times.find(|time| !Times::RANGE_US.contains(time)) {
        let (least, most) = (Times::RANGE_US.start(), Times::RANGE_US.end());
        return Err(format!("{time} µs is no time: it must be between {least} and {most}"));
    }
    match (row.failed.as_ref().or(row.absent.as_ref()), row.rounds_us.is_empty()) {
        (Some(why), false) => Err(format!("it has times and a reason to have none ({why})")),
        (None, true) => Err("it has no times and no reason to have none".into()),
        _ => Ok(()),
    }
}

/// Text with control characters escaped: one from a file could make a terminal do anything. Lines may end.
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::{Document, made_up};
    use overlap_gemm::plan::Operation;

    use super::*;

    fn written(runs: &[Run]) -> Value {
        serde_json::to_value(Document::of(runs)).unwrap()
    }

    #[test]
    fn what_was_written_is_read_back() {
        for (operation, name) in [
            (Operation::AllGatherGemm, "all-gather-gemm"),
            (Operation::GemmReduceScatter, "gemm-reduce-scatter"),
            (Operation::GemmAllReduce, "gemm-all-reduce"),
        ] {
            let mut runs = [made_up::run(vec![made_up::usual_case(1024)]), made_up::run(vec![])];
            runs.iter_mut().for_each(|run| run.operation = operation);
            runs[0].ended_early = Some("interrupted".into());
            let text = written(&runs).to_string();
            assert!(text.starts_with(&format!("{{\"bench\":\"{name}\"")), "{text}");
            assert_eq!(parse(text.as_bytes()).unwrap(), runs);
        }
        let mut case = made_up::reduced_case(1024);
        case.before = Some(case.problem.clone());
        let text = written(&[made_up::run(vec![case])]).to_string();
        assert!(text.starts_with("{\"bench\":\"tensor-parallel-mlp\""), "{text}");
        assert!(parse(text.as_bytes()).unwrap()[0].cases[0].before.is_some());
        assert_eq!(parse(written(&[]).to_string().as_bytes()).unwrap(), []);
    }

    #[test]
    fn other_contents_are_refused_with_the_reason() {
        let good = written(&[made_up::run(vec![made_up::usual_case(1024)])]);
        let text = good.to_string();
        let cut = parse(&text.as_bytes()[..text.len() - 9]).unwrap_err();
        assert!(cut.contains("cut off"), "{cut}");
        for (json, word) in [
            ("", "no JSON"),
            ("\u{0}\u{1}", "no JSON"),
            ("[]", "no results of a bench"),
            ("{\"bench\":\"host\",\"format\":2}", "no results"),
            ("{\"cases\":[],\"ranks\":2,\"machine\":{}}", "no results"),
            ("{\"bench\":\"gemm\",\"format\":2}", "missing field `runs`"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":\"2\"}", "reads format 2"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":3,\"runs\":7}", "format 3"),
        ] {
            let why = parse(json.as_bytes()).map(|_| ()).unwrap_err();
            assert!(why.contains(word), "{json}: {why}");
        }
        let changed = |path: &str, to: Value, word: &str| {
            let mut bad = good.clone();
            *bad.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = to;
            let why = parse(bad.to_string().as_bytes()).map(|_| ()).unwrap_err();
            assert!(why.contains(word), "{path}: {why}");
        };
        let case = "/runs/0/cases/0";
        for time in [-3.0, 0.0, 5e-324, 9e-4, 1.1e12, 1.7e308] {
            let words = "no time: it must be between 0.001 and 1000000000000";
            changed(&format!("{case}/rows/0/rounds_us/1"), time.into(), words);
            changed(&format!("{case}/rows/0/host_us"), vec![time].into(), words);
        }
        changed(
            &format!("{case}/rows/0/rounds_us"),
            Value::Array(vec![]),
            "no times and no reason",
        );
        changed(&format!("{case}/rows/0/rounds_us/0"), "fast".into(), "line 1 column");
        changed(&format!("{case}/rows/5/rounds_us"), vec![1.0].into(), "a reason to have none");
        changed(&format!("{case}/rows/0/kind"), "magic".into(), "magic");
        changed(&format!("{case}/problem/n"), 0.into(), "n is 0");
    }

    #[test]
    fn control_characters_are_escaped() {
        let evil = "a\u{1b}]0;x\u{7}\r\n\u{9b}b\u{7f}";
        assert_eq!(printable(evil), "a\\u{1b}]0;x\\u{7}\\r\n\\u{9b}b\\u{7f}");
    }

    #[test]
    fn kept_results_stay_readable() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/results");
        let mut read_in = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|of| of == "json") {
                let runs = read(&path).unwrap();
                assert!(runs.iter().any(|run| !run.cases.is_empty()), "{}", path.display());
                read_in += 1;
            }
        }
        assert!(read_in >= 4, "only {read_in} files were read");
    }
}
