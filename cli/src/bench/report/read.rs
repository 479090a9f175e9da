//! Results from files.
//!
//! Invariant: what was read is as sound as what was just measured, or it is refused with a message that names the
//! file and what is wrong with it. Nothing that a file says is trusted: not its name, its format, nor its numbers.

use std::fs;
use std::path::Path;

use overlap_gemm::plan::Problem;
use overlap_gemm::tune::Times;
use serde::Deserialize;
use serde_json::Value;

use super::super::cases::Case;
use super::super::machine::Machine;
use super::{BENCHES, FORMAT, Row, Run};
use crate::exit::Failure;

/// More is no name of a contender.
const LONGEST_NAME: usize = 40;
/// More is no name of a GPU, or of a program.
const LONGEST_TITLE: usize = 100;
/// No results are as long as this: a dozen problems take some fifty kilobytes.
const MOST_BYTES: u64 = 64 << 20;

/// All runs of a file.
pub fn read(path: &Path) -> Result<Vec<Run>, Failure> {
    let name = path.display().to_string();
    let unread = |source| Failure::Read { target: name.clone(), source };
    let file = fs::metadata(path).map_err(unread)?;
    let refused = |why: String| {
        let remedy = "give files that 'bench --output' wrote";
        Err(Failure::Usage(format!("{name}: it holds no results: {why}: {remedy}")))
    };
    if !file.is_file() {
        return refused("it is a folder, a pipe or a device".into());
    }
    if file.len() > MOST_BYTES {
        return refused(format!("it has {} bytes, more than {MOST_BYTES}", file.len()));
    }
    let bytes = fs::read(path).map_err(unread)?;
    parse(&bytes).map_err(|why| Failure::Usage(format!("{name}: {}", printable(&why))))
}

/// All runs of a file's content, or what is wrong with it.
fn parse(bytes: &[u8]) -> Result<Vec<Run>, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("it is no JSON, or cut off: {error}"))?;
    let foreign = || {
        "it holds no results of a bench: give files that 'bench --output' or a peer's script wrote"
            .to_owned()
    };
    let format = match (value.get("bench"), value.get("format")) {
        (Some(bench), Some(format)) if BENCHES.iter().any(|known| bench == known) => {
            format.as_u64().ok_or_else(|| format!("its format is {format}, not a number"))?
        }
        _ => return Err(foreign()),
    };
    let mut runs = match format {
        FORMAT => typed::<Runs>(bytes)?.runs,
        _ => {
            return Err(format!(
                "it has format {format}, but this overlap-gemm ({}) reads format {FORMAT}: \
                 use the overlap-gemm that wrote it",
                env!("CARGO_PKG_VERSION")
            ));
        }
    };
    runs.iter().try_for_each(check)?;
    runs.iter_mut().flat_map(free_texts).for_each(|text| *text = printable(text));
    Ok(runs)
}

/// Text with control characters escaped: one from a file could make a terminal do anything. Lines may end.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// The texts of a run that [`check`] takes as they are.
fn free_texts(run: &mut Run) -> impl Iterator<Item = &mut String> {
    let Machine { driver, cuda, toolkit, cutlass, cublaslt, kernels, .. } = &mut run.machine;
    let optional = [driver, cuda, toolkit, cutlass, cublaslt, &mut run.nccl, &mut run.ended_early];
    let rows = run.cases.iter_mut().flat_map(|case| &mut case.rows);
    let of_rows = rows.flat_map(|row| {
        std::iter::once(&mut row.what).chain(&mut row.failed).chain(&mut row.absent)
    });
    let named = [&mut run.command, &mut run.version].into_iter();
    named.chain(optional.into_iter().flatten()).chain(kernels).chain(of_rows)
}

/// From the text, not from the value: so a message says the line and the column.
fn typed<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("it is damaged: {error}"))
}

/// What a file has beside its head.
#[derive(Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

/// What the types do not hold.
fn check(run: &Run) -> Result<(), String> {
    for (what, text) in [("program", &run.program), ("GPU", &run.machine.gpu)] {
        if !is_name(text, LONGEST_TITLE) {
            let (start, length) = (text.chars().take(LONGEST_NAME), text.chars().count());
            let start = start.collect::<String>();
            return Err(format!(
                "its {what} is called '{}' ({length} characters): give a name of 1 to {LONGEST_TITLE} printable \
                 characters",
                start.escape_debug()
            ));
        }
    }
    for case in &run.cases {
        let told = |why: String| format!("case '{}': {why}", case.name);
        let ranks = case.problem.ranks();
        if ranks != run.ranks {
            return Err(told(format!("its problem has {ranks} ranks, the run {}", run.ranks)));
        }
        let named: Case = case.name.parse().map_err(told)?;
        let same = |problem: &Problem| {
            let size = (problem.m(), problem.n(), problem.k());
            (size, problem.elements(), problem.b_layout(), problem.scaling())
        };
        if same(&named.problem) != same(&case.problem) {
            return Err(told("its problem is another than its name says".into()));
        }
        for row in &case.rows {
            check_row(row)
                .map_err(|why| told(format!("contender '{}': {why}", row.who.escape_debug())))?;
        }
    }
    Ok(())
}

fn is_name(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

fn check_row(row: &Row) -> Result<(), String> {
    if !is_name(&row.who, LONGEST_NAME) {
        return Err(format!("give a name of 1 to {LONGEST_NAME} printable characters"));
    }
    if let Some(time) =
        row.rounds_us.iter().chain(&row.host_us).find(|time| !Times::RANGE_US.contains(time))
    {
        let (least, most) = (Times::RANGE_US.start(), Times::RANGE_US.end());
        return Err(format!("{time} µs is no time: it must be between {least} and {most}"));
    }
    if let Some(plan) = &row.plan {
        plan.way.check().map_err(|error| error.to_string())?;
        if !is_name(&plan.kernel, LONGEST_TITLE) {
            return Err(format!("its kernel has no name of 1 to {LONGEST_TITLE} characters"));
        }
    }
    match (row.failed.as_ref().or(row.absent.as_ref()), row.rounds_us.is_empty()) {
        (Some(why), false) => Err(format!("it has no times ({why}), and yet there are some")),
        (None, true) => Err("it has no times, and does not say why".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Document, made_up};
    use super::*;

    fn written(runs: &[Run]) -> Value {
        serde_json::to_value(Document::of(runs)).unwrap()
    }

    fn refused(value: &Value) -> String {
        parse(value.to_string().as_bytes()).map(|_| ()).unwrap_err()
    }

    #[test]
    fn what_was_written_is_read_back() {
        let mut runs = [made_up::run(vec![made_up::usual_case(1024)]), made_up::run(vec![])];
        runs[0].ended_early = Some("interrupted".into());
        assert_eq!(parse(written(&runs).to_string().as_bytes()).unwrap(), runs);
        assert_eq!(parse(written(&[]).to_string().as_bytes()).unwrap(), []);
    }

    #[test]
    fn whatever_is_not_sound_is_refused_in_words() {
        let good = written(&[made_up::run(vec![made_up::usual_case(1024)])]);
        let text = good.to_string();
        let cut = parse(&text.as_bytes()[..text.len() - 9]).unwrap_err();
        assert!(cut.contains("cut off"), "{cut}");
        for (json, word) in [
            ("", "no JSON"),
            ("\u{0}\u{1}", "no JSON"),
            ("[]", "no results of a bench"),
            ("3", "no results of a bench"),
            ("{\"bench\":\"host\",\"format\":2}", "no results"),
            ("{\"verdicts\":[],\"method\":{},\"cases\":[]}", "no results"),
            ("{\"bench\":\"gemm\",\"format\":2}", "missing field `runs`"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":2}", "missing field `runs`"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":\"2\"}", "not a number"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":0}", "reads format 2"),
            ("{\"bench\":\"all-gather-gemm\",\"format\":3,\"runs\":7}", "format 3"),
            ("{\"bench\":\"gemm\",\"format\":1,\"runs\":[]}", "has format 1"),
            ("{\"cases\":[],\"ranks\":2,\"machine\":{}}", "no results"),
        ] {
            let why = parse(json.as_bytes()).map(|_| ()).unwrap_err();
            assert!(why.contains(word), "{json}: {why}");
        }
        let changed = |path: &str, to: Value, word: &str| {
            let mut bad = good.clone();
            *bad.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = to;
            let why = refused(&bad);
            assert!(why.contains(word), "{path}: {why}");
        };
        let case = "/runs/0/cases/0";
        changed(&format!("{case}/rows/0/rounds_us/1"), (-3.0).into(), "-3 µs is no time");
        for time in [0.0, 5e-324, 9e-4, 1.1e12, 1.7e308] {
            let words = "no time: it must be between 0.001 and 1000000000000";
            changed(&format!("{case}/rows/0/rounds_us/1"), time.into(), words);
            changed(&format!("{case}/rows/0/host_us"), vec![time].into(), words);
        }
        changed(&format!("{case}/rows/0/rounds_us"), Value::Array(vec![]), "has no times");
        changed(&format!("{case}/rows/0/rounds_us/0"), "fast".into(), "line 1 column");
        changed(&format!("{case}/rows/5/rounds_us"), vec![1.0].into(), "and yet there are some");
        let plan = serde_json::json!({ "kernel": "k", "swizzle": 1, "splits": 1,
            "way": { "strategy": "fused", "engine": { "copy-engines": { "streams": 0 } }, "pieces": 1 }});
        changed(&format!("{case}/rows/6/plan"), plan, "streams");
        changed(&format!("{case}/rows/0/who"), "a\nb".into(), "printable");
        changed(&format!("{case}/rows/0/who"), "x".repeat(41).into(), "1 to 40");
        changed(&format!("{case}/rows/0/kind"), "magic".into(), "magic");
        changed(&format!("{case}/name"), "1024×3584 bf16".into(), "M, N and K");
        changed(&format!("{case}/name"), "512×3584×8192 bf16".into(), "another than its name");
        changed(&format!("{case}/problem/n"), 0.into(), "n is 0");
        changed("/runs/0/ranks", 4.into(), "2 ranks, the run 4");
        changed("/runs/0/machine/gpu", "".into(), "its GPU is called ''");
        changed("/runs/0/machine/gpu", "x".repeat(101).into(), "(101 characters)");
        changed("/runs/0/program", "x".repeat(200_000).into(), "a name of 1 to 100 printable");
    }

    /// A terminal obeys ESC; whatever prints what was read passes none on.
    #[test]
    fn control_characters_are_escaped() {
        let mut value = written(&[made_up::run(vec![made_up::usual_case(1024)])]);
        value["runs"][0]["ended_early"] = "why".into();
        let (evil, shown) =
            ("a\u{1b}]0;x\u{7}\r\n\u{9b}b\u{7f}", "a\\u{1b}]0;x\\u{7}\\r\n\\u{9b}b\\u{7f}");
        let mut run = value["runs"][0].take();
        let texts = [
            "/command",
            "/version",
            "/nccl",
            "/ended_early",
            "/machine/driver",
            "/machine/cuda",
            "/machine/toolkit",
            "/machine/cutlass",
            "/machine/cublaslt",
            "/cases/0/rows/0/what",
            "/cases/0/rows/5/failed",
        ];
        for text in texts {
            *run.pointer_mut(text).unwrap_or_else(|| panic!("no {text}")) = evil.into();
        }
        run["machine"]["kernels"] = vec![evil].into();
        value["runs"][0] = run.clone();
        let read = parse(value.to_string().as_bytes()).unwrap();
        let mut expected = written(&read)["runs"][0].take();
        for text in texts.into_iter().chain(["/machine/kernels/0"]) {
            assert_eq!(expected.pointer(text).unwrap(), shown, "{text}");
        }
        // In all that is read there is no other.
        expected.as_object_mut().unwrap().values_mut().for_each(|value| {
            let text = value.to_string();
            assert!(!text.contains("\\u00") && !text.contains('\u{9b}'), "{text}");
        });
        assert_eq!(printable("case '\u{1b}[2J'"), "case '\\u{1b}[2J'");
    }

    #[test]
    fn what_is_no_file_or_too_long_is_not_read() {
        let path =
            std::env::temp_dir().join(format!("overlap-gemm-long-{}.json", std::process::id()));
        // It has no contents on the disk.
        fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        let why = read(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(why.contains("it has 67108865 bytes, more than 67108864"), "{why}");
        let why = read(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(why.contains("a folder, a pipe or a device"), "{why}");
    }

    #[test]
    fn results_that_are_kept_stay_readable() {
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
