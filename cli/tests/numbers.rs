//! Numbers in documents, compared with the files in `benches/results`.
//!
//! Invariant: a measured number in a document is in a file, and equal to it.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The repository: documents and results are the library's.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn every_table_is_what_its_files_say() {
    let check = Command::new("python3")
        .args(["scripts/result-tables", "--check"])
        .current_dir(root())
        .output();
    let output = check.expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_table_that_differs_from_its_file_is_noticed() {
    let folder = std::env::temp_dir().join(format!("overlap-gemm-tables-{}", std::process::id()));
    for part in ["scripts", "docs", "benches"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    std::os::unix::fs::symlink(
        root().join("benches/results").canonicalize().unwrap(),
        folder.join("benches/results"),
    )
    .unwrap();
    fs::copy(root().join("scripts/result-tables"), folder.join("scripts/result-tables")).unwrap();
    let right = fs::read_to_string(root().join("docs/results.md")).unwrap();
    // The first cell with a number of the first table that is generated, and the first median.
    let is_number = |text: &&str| text.parse::<f64>().is_ok();
    let (_, table) = right.split_once("<!-- scripts/result-tables table").unwrap();
    let cell = table.split(" | ").find(is_number).unwrap();
    let mut medians = right.split("median ").filter_map(|behind| behind.split(',').next());
    let median = medians.find(is_number).unwrap();
    let [cell, median] = [format!(" | {cell} | "), format!("median {median},")];
    for (from, to, word) in [
        ("", "", ""),
        (&*cell, " | 0.1 | ", "differ from their files"),
        (&*median, "median 0.1,", "differ from their files"),
        ("columns own/cublaslt", "columns own/cublastl", "no contender is called 'cublastl'"),
        ("<!-- scripts/result-tables", "<!-- scripts/result-table", "neither"),
        ("<!-- end -->", "<!-- End -->", "neither"),
    ] {
        fs::write(folder.join("docs/results.md"), right.replacen(from, to, 1)).unwrap();
        fs::write(folder.join("README.md"), "").unwrap();
        let mut check = Command::new("python3");
        let output = check
            .arg(folder.join("scripts/result-tables"))
            .arg("--check")
            .output()
            .expect("python3");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() == word.is_empty() && stderr.contains(word),
            "{to}: {stderr}"
        );
    }
    fs::remove_dir_all(folder).unwrap();
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
    let entries = fs::read_dir(root().join("docs")).expect("a folder of documents");
    let pages = entries.map(|entry| entry.expect("an entry").path());
    let pages = pages.filter(|path| path.extension().is_some_and(|of| of == "md"));
    for path in pages.chain([root().join("README.md")]) {
        let text = fs::read_to_string(&path).expect("text");
        let wrong = nameless(&text);
        assert!(
            wrong.is_empty(),
            "{}: a time or a rate, and no link to a file in benches/results beside it, in {wrong:?}",
            path.display()
        );
    }
}

#[test]
fn a_time_without_a_file_is_seen() {
    let text = "5 µs\n# A\nin µs, 7 ms\n```text\n# 9 µs\n```\n## B\n380 GB/s\n## C\n3 µs, [so](../benches/results/a.json)\n";
    assert_eq!(nameless(text), ["", "## B"]);
}

#[test]
fn a_quote_is_of_whole_lines_in_their_order() {
    let source = "head\n a  1\n b  2\n c  3\n";
    for right in [source, " a  1\n b  2\n", "head\n[...]\n c  3\n", "[...]\n b  2\n[...]\n"] {
        assert_eq!(quoted(right, source), Ok(()), "{right}");
    }
    for wrong in [" a  2\n", "a  1\n", " b  2\n a  1\n", "head\n b  2\n", " c  3\n[...]\nhead\n"] {
        assert!(quoted(wrong, source).is_err(), "{wrong}");
    }
}
