//! Numbers in documents, compared with the files in `benches/results`.
//!
//! Between the comments `from: overlap-gemm …` and `end` of a document stands exactly the output of that command in the
//! repository's root, perhaps in a fence. For new results, change the file names in the comments and run this test with
//! `OVERLAP_GEMM_RENEW=1`. Invariant: a comment that is neither of the two is refused.

#[path = "common/binary.rs"]
mod binary;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use binary::{command, outcome};

const RENEW: &str = "OVERLAP_GEMM_RENEW";
const PROGRAM: &str = "overlap-gemm";

/// A part of a document that a command prints.
struct Block {
    /// The line of its first comment, from 1.
    line: usize,
    /// What comes after the program's name.
    args: Vec<String>,
    /// Where in the document its text is.
    text: Range<usize>,
}

/// All blocks of a document, in their order.
fn blocks(document: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let (mut open, mut head): (Option<Block>, Option<(usize, String)>) = (None, None);
    let (mut fenced, mut at) = (false, 0);
    for (nth, line) in document.split_inclusive('\n').enumerate() {
        let (number, start) = (nth + 1, at);
        at += line.len();
        let line = line.trim_end();
        if let Some((first, mut words)) = head.take() {
            words.extend([" ", line]);
            (head, open) = begin(first, words, at)?;
        } else if let Some(block) = &mut open {
            if line == "<!-- end -->" {
                block.text.end = start;
                blocks.extend(open.take());
            } else if line.starts_with("<!--") {
                return Err(format!("line {}: the block has no <!-- end -->", block.line));
            }
        } else if line.starts_with("```") {
            fenced = !fenced;
        } else if let Some(words) = line.strip_prefix("<!-- from: ").filter(|_| !fenced) {
            (head, open) = begin(number, words.into(), at)?;
        } else if line.contains("<!--") && !fenced {
            return Err(format!(
                "line {number}: neither '<!-- from: {PROGRAM} …' nor an end: {line}"
            ));
        }
    }
    match open.map(|block| block.line).or(head.map(|(first, _)| first)) {
        Some(line) => Err(format!("line {line}: the block has no <!-- end -->")),
        None => Ok(blocks),
    }
}

type Begun = (Option<(usize, String)>, Option<Block>);

/// A block whose text begins at `start`, once its comment is closed.
fn begin(line: usize, words: String, start: usize) -> Result<Begun, String> {
    let Some(command) = words.strip_suffix("-->") else { return Ok((Some((line, words)), None)) };
    let mut args = command.split_whitespace().map(String::from);
    if args.next().as_deref() != Some(PROGRAM) {
        return Err(format!("line {line}: a block is printed by {PROGRAM}, not by '{command}'"));
    }
    Ok((None, Some(Block { line, args: args.collect(), text: start..start })))
}

/// The document with every block as `print` has it, and how each that differs does.
fn renewed(
    document: &str,
    print: impl Fn(&[String]) -> Result<String, String>,
) -> Result<(String, Vec<String>), String> {
    let (mut text, mut differences, mut done) = (String::new(), Vec::new(), 0);
    for Block { line, args, text: place } in blocks(document)? {
        let command = || format!("line {line}: {PROGRAM} {}", args.join(" "));
        let printed = print(&args).map_err(|why| format!("{}: {why}", command()))?;
        let old = &document[place.clone()];
        let new = match old.lines().next().filter(|first| first.starts_with("```")) {
            Some(fence) => format!("{fence}\n{printed}```\n"),
            None => printed,
        };
        if old != new {
            let pairs =
                || old.lines().map(Some).chain([None]).zip(new.lines().map(Some).chain([None]));
            let (was, is) = pairs().find(|(was, is)| was != is).unwrap_or_default();
            let [was, is] = [was, is].map(|line| line.unwrap_or("(its end)"));
            differences.push(format!("{}\n    has     {was}\n    but is  {is}", command()));
        }
        text.push_str(&document[done..place.start]);
        text.push_str(&new);
        done = place.end;
    }
    text.push_str(&document[done..]);
    Ok((text, differences))
}

/// The repository: documents and results are the library's.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs the built command line in the repository's root.
fn printed(args: &[String]) -> Result<String, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = command(&args).current_dir(root()).output().expect("the built command line");
    match outcome(&args, output) {
        (0, stdout, _) => Ok(stdout),
        (code, _, stderr) => Err(format!("it ended with {code}: {stderr}")),
    }
}

/// The README and what is in `docs` and `benches/results`.
fn documents() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from("README.md")];
    for folder in ["docs", "benches/results"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder of documents");
        let paths =
            entries.map(|entry| Path::new(folder).join(entry.expect("an entry").file_name()));
        all.extend(paths.filter(|path| path.extension().is_some_and(|of| of == "md")));
    }
    all.sort();
    all
}

#[test]
fn every_block_is_what_its_command_prints() {
    let (mut all, mut differences) = (0, Vec::new());
    for path in documents() {
        let name = path.display();
        let old = fs::read_to_string(root().join(&path)).expect("text");
        let told = |why| panic!("{name}, {why}");
        all += blocks(&old).unwrap_or_else(told).len();
        let (new, differ) = renewed(&old, printed).unwrap_or_else(|why| panic!("{name}, {why}"));
        if std::env::var_os(RENEW).is_some_and(|value| value == "1") {
            if new != old {
                fs::write(root().join(&path), new).expect("a document that can be written");
            }
            continue;
        }
        differences.extend(differ.iter().map(|difference| format!("{name}, {difference}")));
    }
    assert!(
        differences.is_empty(),
        "documents differ from what their commands print; to renew them:\n\
         {RENEW}=1 cargo test --test numbers\n\n{}",
        differences.join("\n")
    );
    assert!(all > 5, "only {all} blocks: is this test reading them?");
}

/// Looks for what is quoted in its source: all lines in their order, whole ones, with something left out only where
/// `[...]` says so.
fn quoted(quote: &str, source: &str) -> Result<(), String> {
    let lines: Vec<&str> = source.lines().collect();
    let quote: Vec<&str> = quote.lines().collect();
    let mut rest = &lines[..];
    for part in quote.split(|line| *line == "[...]").filter(|part| !part.is_empty()) {
        let place = rest.windows(part.len()).position(|lines| lines == part);
        match place {
            Some(place) => rest = &rest[place + part.len()..],
            None => {
                let missing = part.iter().find(|line| !rest.contains(line)).unwrap_or(&part[0]);
                return Err(format!("not there, or not there in this order: {missing}"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_readme_s_demo_is_that_of_the_results() {
    let readme = fs::read_to_string(root().join("README.md")).expect("text");
    // The first output that the README shows; the paragraph before it says where it is from.
    let (before, quote) = readme.split_once("```text\n").expect("an output");
    let (quote, _) = quote.split_once("```").expect("its end");
    let source = before.rsplit_once("](").and_then(|(_, link)| link.split_once(')'));
    let (source, between) = source.expect("a link to where it is from");
    let nothing = between.chars().all(|c| c.is_whitespace() || "):".contains(c));
    assert!(nothing && source.starts_with("benches/results/"), "{source}{between}");
    assert!(quote.lines().count() > 10 && quote.contains("[...]"), "{quote}");
    let results = fs::read_to_string(root().join(source)).expect("text");
    quoted(quote, &results).unwrap_or_else(|why| panic!("README.md quotes {source}: {why}"));
}

/// The sections that have a time or a rate in their prose, by headings, and no link to a file of results.
fn nameless(document: &str) -> Vec<&str> {
    let (mut sections, mut fenced) = (vec![("", String::new())], false);
    for line in document.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if line.starts_with('#') && !fenced {
            sections.push((line, String::new()));
        } else if let Some((_, text)) = sections.last_mut().filter(|_| !fenced) {
            text.extend([line, "\n"]);
        }
    }
    let measured = |text: &str| {
        ["µs", "GB/s", "TFLOP/s"].iter().any(|unit| {
            let mut before = text.match_indices(unit).map(|(at, _)| text[..at].trim_end());
            before.any(|before| before.ends_with(|c: char| c.is_ascii_digit()))
        })
    };
    let named = |text: &str| text.contains("benches/results/");
    let wrong = sections.iter().filter(|(_, text)| measured(text) && !named(text));
    wrong.map(|(heading, _)| *heading).collect()
}

#[test]
fn every_section_with_a_time_names_a_file() {
    let results = Path::new("benches/results");
    for path in documents().iter().filter(|path| !path.starts_with(results)) {
        let text = fs::read_to_string(root().join(path)).expect("text");
        let wrong = nameless(&text);
        assert!(
            wrong.is_empty(),
            "{}: a time or a rate, and no link to a file in benches/results beside it, in {wrong:?}",
            path.display()
        );
    }
}

mod reader {
    use super::*;

    #[test]
    fn a_time_without_a_file_is_seen() {
        let text = "5 µs\n# A\nin µs, 7 ms\n```text\n# 9 µs\n```\n## B\n380 GB/s\n## C\n3 µs, [so](../benches/results/a.json)\n";
        assert_eq!(nameless(text), ["", "## B"]);
    }

    const TABLE: &str = "| a |\n| --- |\n| 1.5 |\n";

    fn document(inner: &str) -> String {
        format!(
            "# Head\n\ntext:\n\n<!-- from: overlap-gemm table\n  --wide -->\n{inner}<!-- end -->\n\nend\n"
        )
    }

    fn print(args: &[String]) -> Result<String, String> {
        match args.join(" ").as_str() {
            "table --wide" => Ok(TABLE.into()),
            other => Err(format!("no command '{other}'")),
        }
    }

    fn refusal(document: &str) -> String {
        renewed(document, print).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_block_that_is_right_stays() {
        let right = document(TABLE);
        assert_eq!(renewed(&right, print).unwrap(), (right.clone(), vec![]));
        let fenced = document(&format!("```text\n{TABLE}```\n"));
        assert_eq!(renewed(&fenced, print).unwrap(), (fenced.clone(), vec![]));
    }

    #[test]
    fn a_changed_number_is_told_and_renewed() {
        let right = document(TABLE);
        for (wrong, was, is) in [
            (right.replace("1.5", "1.4"), "| 1.4 |", "| 1.5 |"),
            (right.replace("| 1.5 |\n", ""), "(its end)", "| 1.5 |"),
            (right.replace("| 1.5 |\n", "| 1.5 |\n\n"), "", "(its end)"),
            (document(""), "(its end)", "| a |"),
        ] {
            let (new, told) = renewed(&wrong, print).unwrap();
            assert_eq!(new, right);
            let expected =
                format!("line 5: overlap-gemm table --wide\n    has     {was}\n    but is  {is}");
            assert_eq!(told, [expected]);
        }
    }

    #[test]
    fn every_block_is_read_and_all_else_left_alone() {
        let both = [document("old\n"), document(TABLE), document("older\n")].concat();
        let (new, told) = renewed(&both, print).unwrap();
        assert_eq!((new, told.len()), (document(TABLE).repeat(3), 2));
        // An example of a block is none.
        let shown = format!("```md\n{}```\n", document("old\n"));
        assert_eq!(renewed(&shown, print).unwrap(), (shown.clone(), vec![]));
    }

    #[test]
    fn what_is_no_whole_block_is_refused() {
        let right = document(TABLE);
        let unended = right.replace("<!-- end -->\n", "");
        assert!(refusal(&unended).contains("line 5: the block has no <!-- end -->"));
        assert!(refusal(&[&unended[..], &right].concat()).contains("line 5: the block has no"));
        assert!(refusal("<!-- from: overlap-gemm table\n").contains("line 1: the block has no"));
        let typo = right.replace("<!-- from:", "<!-- form:");
        assert!(refusal(&typo).contains("line 5: neither"));
        let endless = right.replace("<!-- end -->", "<!-- End -->");
        assert!(refusal(&endless).contains("line 5: the block has no"));
        assert!(refusal("<!-- end -->\n").contains("line 1: neither"));
        let foreign = right.replace("overlap-gemm", "rm");
        assert!(refusal(&foreign).contains("line 5: a block is printed by overlap-gemm"));
    }

    #[test]
    fn an_unknown_command_is_refused() {
        let unknown = document(TABLE).replace("table", "chart");
        let why = refusal(&unknown);
        assert!(why.contains("line 5: overlap-gemm chart --wide: no command"), "{why}");
        let why = renewed(&unknown, printed).map(|_| ()).unwrap_err();
        assert!(why.contains("it ended with 2: ") && why.contains("chart"), "{why}");
    }

    #[test]
    fn a_quote_is_of_whole_lines_in_their_order() {
        let source = "head\n a  1\n b  2\n c  3\n";
        for right in [source, " a  1\n b  2\n", "head\n[...]\n c  3\n", "[...]\n b  2\n[...]\n"] {
            assert_eq!(quoted(right, source), Ok(()), "{right}");
        }
        for wrong in
            [" a  2\n", "a  1\n", " b  2\n a  1\n", "head\n b  2\n", " c  3\n[...]\nhead\n"]
        {
            assert!(quoted(wrong, source).is_err(), "{wrong}");
        }
    }
}
