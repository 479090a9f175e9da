//! The documents, and what tests read in them: prose, fenced blocks, code marks.
//!
//! Invariant: a document that is not in the list is held by no test of names, paths and commands.

/// Every document, by its path in the repository.
pub const DOCUMENTS: [&str; 15] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/results.md",
    "docs/command-line.md",
    "docs/architecture.md",
    "docs/protocol.md",
    "docs/building-cuda.md",
    "docs/measuring.md",
    "docs/tuning.md",
    "docs/predicting.md",
    "benches/results/README.md",
    "third_party/README.md",
    "cli/README.md",
];

/// The text of `document` outside its fenced blocks, and the lines inside them with the language.
pub fn split(document: &str) -> (String, Vec<(String, String)>) {
    let (mut prose, mut fenced, mut language) = (String::new(), Vec::new(), None);
    for line in document.lines() {
        match (line.trim_start().strip_prefix("```"), &language) {
            (Some(name), None) => language = Some(name.to_owned()),
            (Some(_), Some(_)) => language = None,
            (None, Some(name)) => fenced.push((name.clone(), line.to_owned())),
            (None, None) => prose.extend([line, "\n"]),
        }
    }
    assert_eq!(language, None, "a fenced block has no end");
    (prose, fenced)
}

/// The names in code marks: `like_this`.
pub fn code_spans(prose: &str) -> Vec<&str> {
    let spans = prose.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    spans.collect()
}
