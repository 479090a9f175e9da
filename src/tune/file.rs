//! Tables as files: JSON with a name, a version, and an entry a line.
//!
//! What belongs here: reading with full validation, atomic writing, and the location of the file.
//! Invariant: a file that was read is complete and of a known version; a read during a write returns the old
//! contents or all of the new.
//!
//! ```text
//! {"format": "overlap-gemm tuning", "version": 4, "entries": [
//! {"family": {"operation": …, "gpu": …, "ranks": …, "elements": …, "scaling": …, "b_layout": …},
//!  "shape": {"m": …, "n": …, "k": …}, "sms": …, "driver": …, "crate_version": …, "way": …, "multiplying": …, "us": {"graph": …, "plain": …}},
//! …
//! ]}
//! ```

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::entry::{Entry, Shape};
use crate::error::{Error, Result};

/// The name of the format, in every file.
const FORMAT: &str = "overlap-gemm tuning";
/// The version of the file that is written, and the only one that is read.
const VERSION: u32 = 4;
/// The environment variable with the file for plans; `none`: no table at all.
pub const TUNING_VARIABLE: &str = "OVERLAP_GEMM_TUNING";

/// The entries of a file, or why it is refused.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    const AGAIN: &str = "move it away, and run `overlap-gemm tune` again";
    let damaged = |why: String| format!("it is damaged ({why}): {AGAIN}");
    let mut file: Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if file["format"] != FORMAT {
        return Err(format!("it is no table of this program (no \"format\": \"{FORMAT}\")"));
    }
    if file["version"] != VERSION {
        let version = &file["version"];
        return Err(format!(
            "it is of version {version}, and this program reads {VERSION}: use the program that wrote it, or {AGAIN}"
        ));
    }
    let entries: Vec<Entry> = serde_json::from_value(file["entries"].take())
        .map_err(|error| damaged(error.to_string()))?;
    let mut seen = HashSet::new();
    for entry in &entries {
        let name = named(entry);
        entry.check().map_err(|why| damaged(format!("{name}: {why}")))?;
        if !seen.insert((&entry.family, entry.shape)) {
            return Err(damaged(format!("{name} twice")));
        }
    }
    Ok(entries)
}

/// An entry's problem, for people.
fn named(entry: &Entry) -> String {
    format!("{} of {}", entry.shape, entry.family)
}

/// The file's text.
pub(super) fn text(entries: &[Entry]) -> io::Result<String> {
    let lines: Vec<String> =
        entries.iter().map(serde_json::to_string).collect::<serde_json::Result<_>>()?;
    let (head, lines) =
        (format!("\"format\":\"{FORMAT}\",\"version\":{VERSION}"), lines.join(",\n"));
    Ok(format!("{{{head},\"entries\":[\n{lines}\n]}}\n"))
}

/// Reads a file; the error names it.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = fs::read_to_string(path).map_err(|error| format!("it cannot be read: {error}"));
    let entries = text.and_then(|text| parse(&text));
    entries.map_err(|reason| Error::Tuning { file: path.display().to_string(), reason })
}

/// Replaces a file as a whole, and makes the folder that it is in.
pub(super) fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let beside = folder.join(format!(".{}.{}", name.display(), std::process::id()));
    let written = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(text(entries)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    })();
    if written.is_err() {
        // Nothing is lost if it stays.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Adds entries to a file, replaces those of the same problems, and keeps the rest. An invalid file stays
/// unchanged; so does a file when a new entry is invalid. If two processes do this at
/// once, one may lose the entries of the other.
pub fn record(path: &Path, new: &[Entry]) -> Result<()> {
    for entry in new {
        entry.check().map_err(|why| Error::Tuning {
            file: path.display().to_string(),
            reason: format!(
                "an entry for it makes no sense ({}: {why}): measure it again",
                named(entry)
            ),
        })?;
    }
    let mut entries = if path.exists() { read(path)? } else { Vec::new() };
    put(&mut entries, new.iter().cloned());
    write(path, &entries).map_err(|error| Error::TuningNotWritten {
        file: path.display().to_string(),
        reason: error.to_string(),
    })
}

/// Adds entries in place of those of the same problems, and puts all in order.
pub(super) fn put(entries: &mut Vec<Entry>, new: impl IntoIterator<Item = Entry>) {
    for entry in new {
        entries.retain(|old| old.family != entry.family || old.shape != entry.shape);
        entries.push(entry);
    }
    let place = |entry: &Entry| -> (String, Shape) {
        let family = &entry.family;
        (format!("{} {:4} {:?}", family.gpu, family.ranks, family), entry.shape)
    };
    entries.sort_by_cached_key(place);
}

/// The default location of a user's table: `overlap-gemm/tuning.json` in the folder for caches.
///
/// ```
/// use overlap_gemm::tune::default_path;
///
/// let path = default_path(|name| (name == "HOME").then(|| "/home/ada".into()));
/// assert_eq!(path, Some("/home/ada/.cache/overlap-gemm/tuning.json".into()));
/// ```
pub fn default_path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("overlap-gemm").join("tuning.json"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::{Multiplying, Times};
    use super::super::made_up::{entry, multiplying};
    use super::*;
    use crate::element::ElementType;
    use crate::plan::{ElementTypes, Scaling};
    use crate::plan::{Engine, Operation, Strategy as Order, Way};

    /// A folder of its own, gone with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder =
                std::env::temp_dir().join(format!("overlap-gemm-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn one() -> Vec<Entry> {
        vec![entry([64, 128, 256], "a", 1, 10.0)]
    }

    /// To the nanosecond, as `tune` writes them.
    fn time() -> impl Strategy<Value = f64> {
        (10u64..10_000_000_000).prop_map(|ns| ns as f64 / 1e3)
    }

    fn one_entry() -> impl Strategy<Value = Entry> {
        let engine = prop_oneof![
            (1u32..=8).prop_map(|streams| Engine::CopyEngines { streams }),
            (1u32..=128).prop_map(|blocks| Engine::Kernel { blocks }),
        ];
        let strategy = prop::sample::select(&Order::ALL[..]);
        let kernel = ("[a-z0-9_ \"\\\\é]{1,20}", 1u32..9, 1u32..9, 8u32..300, 8u32..300);
        let shape = (1u32..100_000, 1u32..100_000, 1u32..100_000);
        let how = (strategy, engine, 1u32..64, kernel, time(), prop::option::of(time()));
        let operation =
            prop::sample::select(&[Operation::AllGatherGemm, Operation::GemmAllReduce][..]);
        (shape, how, operation, any::<bool>()).prop_map(|((m, n, k), how, operation, fp8)| {
            let (strategy, engine, pieces, (name, swizzle, splits, rows, columns), graph, plain) =
                how;
            let multiplying = multiplying(&name, rows, columns);
            let mut entry = Entry {
                way: Way { strategy, engine, pieces },
                multiplying: Some(Multiplying { swizzle, splits, ..multiplying }),
                us: Times { graph: Some(graph), plain },
                ..entry([m, n, k], "", 1, 1.0)
            };
            if operation.check(strategy, engine).is_ok() {
                entry.family.operation = operation;
            }
            if fp8 {
                let a = ElementType::E4m3;
                entry.family.elements = ElementTypes { a, b: a, d: ElementType::Bf16 };
                entry.family.scaling = Scaling::Rows;
            }
            entry
        })
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        prop::collection::vec(one_entry(), 0..6).prop_map(|new| {
            let mut entries = Vec::new();
            put(&mut entries, new);
            entries
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in entries()) {
            prop_assert_eq!(parse(&text(&entries).unwrap()), Ok(entries));
        }

        #[test]
        fn a_file_that_was_cut_off_is_refused(entries in entries(), part in 0.0f64..1.0) {
            let whole = text(&entries).unwrap();
            // The last byte is a line feed.
            let mut end = (part * (whole.len() - 2) as f64) as usize;
            while !whole.is_char_boundary(end) {
                end -= 1;
            }
            prop_assert!(parse(&whole[..end]).unwrap_err().contains("damaged"));
        }

        #[test]
        fn no_text_whatever_makes_it_panic(text in ".{0,200}") {
            prop_assert!(parse(&text).is_err());
        }
    }

    #[test]
    fn what_is_foreign_later_or_damaged_is_refused_and_says_why() {
        let good = text(&one()).unwrap();
        assert!(parse(&good).is_ok());
        let refused = |from: &str, to: &str, words: &str| {
            assert!(good.contains(from), "{good}");
            let why = parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        refused("overlap-gemm tuning", "somebody else's", "no table of this program");
        refused("\"format\":\"overlap-gemm tuning\",", "", "no table of this program");
        // Version 3 has no operations.
        refused(":4", ":3", "version 3, and this program reads 4: use the program that wrote it");
        refused(":4", ":5", "version 5, and this program reads 4: use the program that wrote it");
        refused(":4", ":0", "version 0, and this program reads 4");
        refused("\"version\":4,", "", "version null, and this program reads 4");
        refused("\"operation\":\"all-gather-gemm\",", "", "missing field `operation`");
        refused("all-gather-gemm", "all-gather", "the operation is all-gather, which is not tuned");
        refused("all-gather-gemm", "gemm-all-scatter", "gemm-all-scatter");
        let words = "(64×128×256 of all-gather + GEMM on 2 × NVIDIA H200, bf16 × bf16 → bf16: a time is -10 µs";
        refused("\"graph\":10.0", "\"graph\":-10.0", words);
        refused("\"graph\":10.0", "\"graph\":1e999", "damaged");
        refused("\"graph\":10.0", "\"graph\":10.0,\"else\":1", "unknown field");
        refused("\"graph\":10.0", "", "it has no time");
        refused("\"sms\"", "\"measured\":[],\"sms\"", "unknown field");
        refused("fused", "entangled", "entangled");
        refused("copy-engines", "pigeons", "pigeons");
        let twice = text(&[one(), one()].concat()).unwrap();
        assert!(parse(&twice).unwrap_err().contains("twice"));
        assert!(parse("[]").is_err() && parse("").is_err() && parse("{}").is_err());
    }

    #[test]
    fn files_name_themselves_when_they_are_refused() {
        let folder = Folder::new("refused");
        let path = folder.0.join("table.json");
        let why = read(&path).unwrap_err().to_string();
        assert!(why.contains("table.json") && why.contains("cannot be read"), "{why}");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("valid UTF-8"));
        assert!(read(&folder.0).is_err());
        // Nothing is written over what is not understood.
        fs::write(&path, "precious").unwrap();
        assert!(record(&path, &one()).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn recording_keeps_what_is_there_and_replaces_what_is_the_same() {
        let folder = Folder::new("record");
        let path = folder.0.join("deep").join("table.json");
        record(&path, &one()).unwrap();
        let other = entry([64, 64, 64], "b", 1, 5.0);
        record(&path, std::slice::from_ref(&other)).unwrap();
        let again = entry([64, 128, 256], "c", 2, 9.0);
        record(&path, std::slice::from_ref(&again)).unwrap();
        // The same sizes of another operation are another problem.
        let mut reduced = again.clone();
        reduced.family.operation = Operation::GemmReduceScatter;
        record(&path, std::slice::from_ref(&reduced)).unwrap();
        assert_eq!(read(&path).unwrap(), [other, again, reduced]);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let folder = Folder::new("unreadable");
        let path = folder.0.join("table.json");
        record(&path, &one()).unwrap();
        let refused = |us: f64, words: &str| {
            let new = [entry([8, 8, 8], "b", 1, 5.0), entry([64, 64, 64], "b", 1, us)];
            let why = record(&path, &new).unwrap_err().to_string();
            assert!(why.contains(words) && why.contains("table.json"), "{why}");
            assert!(
                why.contains(
                    "64×64×64 of all-gather + GEMM on 2 × NVIDIA H200, bf16 × bf16 → bf16"
                ),
                "{why}"
            );
            assert_eq!(read(&path).unwrap(), one());
        };
        refused(f64::NAN, "a time is NaN µs");
        refused(0.0, "a time is 0 µs");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_table_stays_a_link() {
        let folder = Folder::new("link");
        let (path, link) = (folder.0.join("table.json"), folder.0.join("link.json"));
        record(&path, &one()).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        record(&link, &[entry([1, 2, 3], "b", 1, 5.0)]).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&path).unwrap().len(), 2);
    }

    #[test]
    fn the_cache_is_where_caches_are() {
        let path = |pairs: &'static [(&str, &str)]| {
            default_path(move |name| {
                let pair = pairs.iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| OsString::from(value))
            })
        };
        let of = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            path(&[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")]),
            of("/c/overlap-gemm/tuning.json")
        );
        assert_eq!(path(&[("HOME", "/home/u")]), of("/home/u/.cache/overlap-gemm/tuning.json"));
        // A relative folder is none, says the specification.
        assert_eq!(
            path(&[("HOME", "/home/u"), ("XDG_CACHE_HOME", "c")]),
            of("/home/u/.cache/overlap-gemm/tuning.json")
        );
        assert_eq!(path(&[]), None);
    }
}
