//! What the documents say, held against the repository: links, quoted code, names.
//!
//! Invariant: a document may say less than the code, but no name or path in it is made up. What a sentence
//! claims is for its reader to judge; the example in the README runs as a doctest, and what is quoted of the
//! command line is held in `cli/tests/documents.rs`.

#[path = "common/documents.rs"]
mod documents;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use documents::{DOCUMENTS, code_spans, split};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands between `open` and the next `close`, each time.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner)
}

/// A heading as the end of a link writes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn has_anchor(document: &str, wanted: &str) -> bool {
    let headings = split(document).0;
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let anchors: Vec<_> = headings.map(|line| anchor(line.trim_start_matches('#'))).collect();
    anchors.iter().any(|anchor| anchor == wanted)
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut links = 0;
    for name in DOCUMENTS {
        let (prose, _) = split(&read(name));
        for target in between(&prose, "](", ')') {
            if target.starts_with("https://") {
                continue;
            }
            links += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = root().join(name).parent().expect("a file has a folder").to_owned();
            let file = if path.is_empty() { root().join(name) } else { folder.join(path) };
            assert!(file.exists(), "{name} links to '{target}', which is not there");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&file).expect("a document with headings");
                assert!(has_anchor(&text, anchor), "{name}: no heading for '{target}'");
            }
        }
    }
    assert!(links > 10, "only {links} links were found: is this test reading them?");
}

/// All files in these folders, and their texts.
fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).expect("text");
                all.push((path, text));
            }
        }
    }
    all
}

const CODE: [&str; 5] = ["src", "csrc", "build", "examples", "cli/src"];

#[test]
fn every_path_and_every_test_that_is_named_exists() {
    let folders = ["src", "tests", "csrc", "build", "benches", "examples", "cli/src", "cli/tests"];
    let code: String = (sources(&folders).into_iter())
        .filter(|(path, _)| !path.ends_with("documents.rs"))
        .map(|(_, text)| text)
        .collect();
    let words: BTreeSet<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.len() > 1)
        .collect();

    let folders =
        ["src/", "tests/", "csrc/", "build/", "benches/", "examples/", "docs/", "scripts/", "cli/"];
    let (mut paths, mut names) = (0, 0);
    for document in DOCUMENTS {
        let (prose, _) = split(&read(document));
        for span in code_spans(&prose) {
            let in_repository = folders.iter().any(|folder| span.starts_with(folder));
            if in_repository && !span.contains(['*', ' ', '{']) {
                paths += 1;
                assert!(root().join(span).exists(), "{document} names `{span}`: not there");
            }
            // Long names in lower case are functions and tests.
            let is_name = span.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_name && span.matches('_').count() >= 2 {
                names += 1;
                assert!(words.contains(span), "{document} names `{span}`: nothing is called so");
            }
        }
    }
    assert!(paths > 10 && names > 5, "{paths} paths, {names} names: is this test reading them?");
}

/// Phrases that hide the subject or the field's term.
const HOUSE_WORDS: [&str; 15] = [
    "by turns",
    "behind the latest",
    "of one's own",
    "what is there",
    "that is there",
    "that are there",
    "hears of",
    "hear of",
    "is told",
    "are told",
    "told to",
    "whoever",
    "whatever",
    "who takes part",
    "so many",
];

/// The house words of a document's prose, paths and code left out.
fn house_words(document: &str) -> Vec<&'static str> {
    let (prose, _) = split(document);
    let text: String = prose.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase();
    let other = |c: char| !c.is_alphanumeric() && c != '\'';
    // Words alone, so that a phrase is found across lines, and not in a part of a word.
    let words = |text: &str| format!(" {} ", text.split(other).collect::<Vec<_>>().join(" "));
    let text = words(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    HOUSE_WORDS.into_iter().filter(|phrase| text.contains(&words(phrase))).collect()
}

/// The comments of a source in Rust, C++ or C, one after the other.
fn comments(source: &str) -> String {
    let comment = |line: &str| {
        let line = line.trim_start();
        let text = ["//", "/*", "* "].into_iter().find_map(|mark| line.strip_prefix(mark))?;
        Some(text.trim_start_matches(['/', '!']).to_owned() + "\n")
    };
    source.lines().filter_map(comment).collect()
}

#[test]
fn documents_and_comments_have_the_terms_of_the_field() {
    let plain = |name: &&&str| **name == "README.md" || name.starts_with("docs/");
    for name in DOCUMENTS.iter().filter(plain) {
        assert_eq!(house_words(&read(name)), [""; 0], "{name}");
    }
    let kinds = ["rs", "cu", "cuh", "h"].map(OsStr::new);
    for (path, text) in sources(&CODE) {
        if path.extension().is_some_and(|kind| kinds.contains(&kind)) {
            assert_eq!(house_words(&comments(&text)), [""; 0], "{}", path.display());
        }
    }
}

#[test]
fn house_words_are_noticed_in_prose_alone() {
    let noticed = |text: &str| house_words(text).len();
    assert_eq!(noticed("Loops run by\nturns.\n"), 1, "across lines");
    assert_eq!(noticed("`by turns`\n```text\nwhatever\n```\n"), 0, "code");
    assert_eq!(noticed("It foretold to them; so manyfold.\n"), 0, "parts of words");
    assert_eq!(noticed(&comments("/// It is\n/// told.\nlet whoever = 1;\n")), 1, "comments alone");
}

#[test]
fn every_result_has_a_row_in_the_index_and_every_row_a_result() {
    let entries = fs::read_dir(root().join("benches/results")).expect("a folder of results");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().unwrap());
    let mut files: Vec<_> = names.filter(|name| name != "README.md").collect();
    files.sort_unstable();
    let index = read("benches/results/README.md");
    let rows = index.lines().filter(|line| line.starts_with('|')).skip(2);
    let mut named = Vec::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').collect();
        let of_row: Vec<_> = between(cells[2], "](", ')').collect();
        // What is said to rest on a result names it; words without a dot are no paths.
        for path in cells[1].split('`').skip(1).step_by(2).filter(|path| path.contains('.')) {
            let is_result = files.iter().any(|name| name == path);
            let text =
                read(&if is_result { format!("benches/results/{path}") } else { path.into() });
            assert!(
                of_row.iter().any(|name| text.contains(name)),
                "{path} names none of {of_row:?}"
            );
        }
        named.extend(of_row);
    }
    named.sort_unstable();
    assert_eq!(named, files, "the index, and the folder");

    // Comments name results, too.
    for (path, text) in sources(&CODE) {
        for name in text.split("benches/results/20").skip(1) {
            let end = name.find(|c: char| !c.is_alphanumeric() && !"-._".contains(c));
            let name = format!("20{}", &name[..end.unwrap_or(name.len())]);
            assert!(files.contains(&name), "{} names '{name}': not there", path.display());
        }
    }
}

/// The rows of the table in `docs/architecture.md` under `heading`: which module uses which.
fn promised_uses(heading: &str) -> Vec<(String, BTreeSet<String>)> {
    let text = read("docs/architecture.md");
    let table = text.lines().skip_while(|line| *line != heading).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| {
        let mut names = line.split('`').skip(1).step_by(2).map(String::from);
        (names.next().expect("a row names its module"), names.collect())
    });
    rows.collect()
}

/// Holds the table under `heading` against the modules that `root_file` declares, which lie in `folder` and name each
/// other as `prefix` and the module's name.
fn check_uses(heading: &str, root_file: &str, folder: &str, prefix: &str) {
    let rows = promised_uses(heading);
    let modules: Vec<&str> = rows.iter().map(|(module, _)| module.as_str()).collect();
    assert!(modules.len() > 7, "{heading}: {modules:?}");

    let mut declared = BTreeSet::new();
    for line in read(root_file).lines() {
        let name = line.trim_end_matches(';').rsplit_once("mod ").map(|(_, name)| name);
        declared.extend(name.filter(|_| !line.starts_with("//")).map(String::from));
    }
    for module in &declared {
        assert!(modules.contains(&module.as_str()), "{heading}: no row for '{module}'");
    }
    for (place, (module, promised)) in rows.iter().enumerate() {
        assert!(declared.contains(module), "{root_file} has no '{module}'");
        for used in promised {
            assert!(
                modules[..place].contains(&used.as_str()),
                "{module} uses {used}: not below it"
            );
        }
        let path = format!("{folder}/{module}");
        let files = match root().join(&path).is_dir() {
            true => sources(&[&path]).into_iter().map(|(_, text)| text).collect(),
            false => vec![read(&(path + ".rs"))],
        };
        let mut found = BTreeSet::new();
        let other = |c: char| !c.is_alphanumeric() && c != '_';
        for text in files {
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let rests = line.split(prefix).skip(1);
                found.extend(rests.map(|rest| rest.split(other).next().unwrap_or("").to_owned()));
            }
        }
        found.remove(module);
        assert_eq!(found, *promised, "what '{module}' uses, and what the table says");
    }
}

#[test]
fn modules_use_what_the_architecture_says_and_only_downwards() {
    check_uses("| Module | uses |", "src/lib.rs", "src", "crate::");
    check_uses("| Module of `cuda` | uses |", "src/cuda/mod.rs", "src/cuda", "crate::cuda::");
}

#[test]
fn the_architecture_names_every_file_of_the_device_code() {
    let text = read("docs/architecture.md");
    let rows = text.lines().skip_while(|line| *line != "| File in `csrc/` | Contents |");
    let cells =
        rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
    let named: BTreeSet<String> = cells.flat_map(code_spans).map(str::to_owned).collect();
    let files = fs::read_dir(root().join("csrc")).expect("the device code");
    let names =
        files.map(|file| file.expect("readable").file_name().into_string().expect("a name"));
    let mut expected: BTreeSet<String> = names.collect();
    // Of the table's head.
    expected.insert("csrc/".into());
    assert_eq!(named, expected);
}

/// [`check_uses`] sees whole paths only, so inside `cuda` none climbs out of its folder.
#[test]
fn no_path_in_cuda_climbs_out_of_its_folder() {
    let cuda = root().join("src/cuda");
    for (file, text) in sources(&["src/cuda"]) {
        let top = file.parent() == Some(&cuda) || file.ends_with("mod.rs");
        let out = if top { "super::" } else { "super::super::" };
        let text = text.replace("super::*", "");
        assert!(!text.contains(out), "{} has a path with '{out}'", file.display());
    }
}

#[test]
fn the_protocol_names_every_mutant_of_the_device_code_and_which_may_survive() {
    let (prose, _) = split(&read("docs/protocol.md"));
    let rows: Vec<&str> = prose.lines().filter(|line| line.starts_with('|')).collect();
    let table = read("tests/mutants.toml");
    let mut mutants = 0;
    for mutant in table.split("[[mutant]]").skip(1) {
        mutants += 1;
        let name = between(mutant, "name = \"", '"').next().expect("a mutant has a name");
        let row = rows.iter().find(|row| row.contains(&format!("`{name}`")));
        let row = row.unwrap_or_else(|| panic!("docs/protocol.md has no row for '{name}'"));
        let may_survive = mutant.lines().any(|line| line.starts_with("may_survive"));
        assert_eq!(row.contains("May survive"), may_survive, "what is said of '{name}'");
    }
    assert!(mutants > 10, "only {mutants} mutants were found: is this test reading them?");
}

/// The lines of code, trimmed, without empty ones and those that documentation hides.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lines = lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines.map(String::from).collect()
}

/// The README's example in this language, and the first one of a source file.
fn examples(language: &str, path: &str, fence: &str) -> [Vec<String>; 2] {
    let (_, fenced) = split(&read("README.md"));
    let readme = fenced.iter().filter(|(of, _)| of == language).map(|(_, line)| line.as_str());
    let source = read(path);
    let lines = source.lines().filter_map(|line| line.strip_prefix("///")).map(str::trim);
    let lines = lines.skip_while(|line| *line != fence).skip(1).take_while(|line| *line != "```");
    [shown(readme), shown(lines)]
}

/// Fails unless all of `part` stands in `whole`, in the same order.
fn assert_part_of(part: &[String], whole: &[String]) {
    let mut rest = whole.iter();
    for line in part {
        assert!(rest.any(|other| other == line), "not on the other side, or later there: {line}");
    }
    assert!(part.len() > 10, "only {} lines were compared", part.len());
}

#[test]
fn the_readme_s_examples_for_gpus_are_parts_of_the_documentation() {
    // The documentation's examples compile where the feature `cuda` is on; the README's cannot. They are in the same order.
    let paths = ["src/cuda/all_gather_gemm/mod.rs", "src/cuda/gemm_reduce/mod.rs"];
    let [[readme, mut documented], [_, pair]] =
        paths.map(|path| examples("rust,ignore", path, "```no_run"));
    documented.extend(pair);
    assert_part_of(&readme, &documented);
}

/// Or of the example that the page names. Comments apart, so that a page may do without them.
#[test]
fn the_programs_side_by_side_are_parts_of_the_readme_s() {
    let code = |path| -> Vec<String> {
        let (_, fenced) = split(&read(path));
        let rust = fenced.into_iter().filter(|(language, _)| language.starts_with("rust"));
        let lines = rust.map(|(_, line)| line.split("//").next().unwrap_or_default().trim().into());
        lines.filter(|line: &String| !line.is_empty()).collect()
    };
    let (page, mut known) = (code("docs/threads-and-gpus.md"), code("README.md"));
    let example = read("examples/gpu_tensor_parallel_mlp.rs");
    known.extend(example.lines().map(|line| line.trim().into()));
    assert!(page.len() > 10, "only {} lines were compared", page.len());
    let missing: Vec<_> = page.iter().filter(|line| !known.contains(line)).collect();
    assert!(missing.is_empty(), "neither the README's programs nor the example have {missing:?}");
}

#[test]
fn the_readme_lists_the_features_there_are() {
    let (manifest, readme) = (read("Cargo.toml"), read("README.md"));
    let lines = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let features: Vec<_> = lines.filter_map(|line| line.split_once(" = [")).collect();
    assert!(features.len() > 2, "{features:?}");
    for (feature, _) in features {
        assert!(readme.contains(&format!("| `{feature}` |")), "the README lacks '{feature}'");
    }
}
