//! What the build script knows about its surroundings, and how it says that something is missing.
//!
//! What belongs here: the environment as a value (so that tests can make one up), the list of what
//! cargo watches, and `Missing`, the one message about places that were probed. Invariant: every
//! environment variable that any part of the build script reads is in `WATCHED` (PATH apart, see
//! `print_rerun_rules`) or comes from cargo itself. Standard library only; tests include this file.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The environment variables that change what is built.
pub const WATCHED: &[&str] = &[
    "OVERLAP_GEMM_CUDA_HOME",
    "OVERLAP_GEMM_CUTLASS_DIR",
    "OVERLAP_GEMM_THIRD_PARTY",
    "OVERLAP_GEMM_KERNEL_CACHE",
    "OVERLAP_GEMM_KERNELS",
    "OVERLAP_GEMM_REQUIRE_KERNELS",
    "CUDA_HOME",
    "CUDA_PATH",
    "LIBCLANG_PATH",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "DOCS_RS",
];

/// The environment, as far as the build script looks at it.
pub struct Context {
    /// The crate's root: where `csrc` and `third_party` are.
    pub manifest_dir: PathBuf,
    /// Where this build may write.
    pub out_dir: PathBuf,
    /// All environment variables.
    pub vars: HashMap<OsString, OsString>,
}

impl Context {
    /// The environment that cargo has set up.
    pub fn from_cargo() -> Self {
        let vars: HashMap<_, _> = std::env::vars_os().collect();
        let dir = |name: &str| PathBuf::from(&vars[&OsString::from(name)]);
        Context { manifest_dir: dir("CARGO_MANIFEST_DIR"), out_dir: dir("OUT_DIR"), vars }
    }

    /// A variable that is set to something.
    pub fn var(&self, name: &str) -> Option<&OsString> {
        self.vars.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    /// A variable that is set to something other than `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.var(name).is_some_and(|value| value != "0")
    }

    /// Where `third_party/fetch` puts what it fetches.
    pub fn fetched_dir(&self) -> PathBuf {
        match self.var("OVERLAP_GEMM_THIRD_PARTY") {
            Some(dir) => PathBuf::from(dir),
            None => self.manifest_dir.join("third_party/.fetched"),
        }
    }

    /// The fetched folder if it holds what `requirements.txt` asks for, else why it does not count.
    pub fn fetched(&self) -> Result<PathBuf, String> {
        let dir = self.fetched_dir();
        if !dir.is_dir() {
            return Err("nothing fetched yet".into());
        }
        let pinned = std::fs::read(self.manifest_dir.join("third_party/requirements.txt"));
        let there = std::fs::read(dir.join("requirements.txt"));
        match (pinned, there) {
            (Ok(pinned), Ok(there)) if pinned == there => Ok(dir),
            (Ok(_), Ok(_)) => Err("outdated: requirements.txt has changed since".into()),
            _ => Err("not a complete fetch".into()),
        }
    }

    /// Tells cargo when to run the build script again.
    ///
    /// A path that does not exist makes cargo run it every time, so the fetched folder is watched
    /// through its stamp if it is there, and through `third_party` if it is not. Not so where a variable
    /// names the folder: cargo would read all that is beside it, the whole disk for `/nowhere`. PATH is not
    /// here: it differs between a shell and an editor, and would rebuild at every change of window;
    /// `toolkit` adds it where it decided something.
    pub fn print_rerun_rules(&self) {
        for name in WATCHED {
            println!("cargo::rerun-if-env-changed={name}");
        }
        for path in ["csrc", "third_party/requirements.txt"] {
            println!("cargo::rerun-if-changed={path}");
        }
        let stamp = self.fetched_dir().join("requirements.txt");
        if stamp.is_file() || self.var("OVERLAP_GEMM_THIRD_PARTY").is_some() {
            println!("cargo::rerun-if-changed={}", stamp.display());
        } else {
            println!("cargo::rerun-if-changed=third_party");
        }
    }
}

/// A piece without which the kernels cannot be built, and everything that was tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Missing {
    /// Why there will be no kernels: `found no CUDA toolkit 12.3 or newer`.
    pub why: String,
    /// Each place that was looked at, with the reason for looking there, and why it was not taken:
    /// `CUDA_HOME=/opt/cuda: has no bin/nvcc`.
    pub probed: Vec<String>,
    /// What to run.
    pub remedy: String,
}

impl Missing {
    /// Something that `third_party/fetch` brings, and that the variable `var` can name.
    pub fn fetchable(what: &str, probed: Vec<String>, root: &Path, var: &str) -> Self {
        let fetch = root.join("third_party/fetch");
        // Fetching does not help where a variable says to look elsewhere.
        let remedy = if probed.first().is_some_and(|place| place.starts_with(&format!("{var}="))) {
            format!("correct or unset {var} ({} brings one), then build again", fetch.display())
        } else {
            format!(
                "run {} (needs python3-pip, nothing else) or set {var}, then build again",
                fetch.display()
            )
        };
        Missing { why: format!("found no {what}"), probed, remedy }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.why)?;
        for place in &self.probed {
            writeln!(f, "  {place}")?;
        }
        write!(f, "  {}", self.remedy)
    }
}
