//! Finding the tools: a CUDA toolkit and CUTLASS.
//!
//! What belongs here: where to look, in which order, and what makes a place unfit. Invariant: a
//! place named by one of this crate's own variables is the only one considered (asked for means
//! asked for); otherwise an installed tool goes before the fetched one, and every place that was
//! passed over is remembered with the reason. Nothing is compiled and no GPU is asked.
//! Standard library only; tests include this file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::probe::{Context, Missing};

/// A version as far as it is compared.
pub type Version = (u32, u32);

/// The oldest toolkit whose ptxas CUTLASS 4.2 is content with for sm_90a.
pub const OLDEST_TOOLKIT: Version = (12, 3);

/// The oldest CUTLASS the kernels compile against.
pub const OLDEST_CUTLASS: Version = (4, 2);

/// A usable CUDA toolkit.
#[derive(Debug, Clone, PartialEq)]
pub struct Toolkit {
    /// The compiler.
    pub nvcc: PathBuf,
    /// Its full version, as it prints it: `13.0.88`.
    pub version: String,
    /// The folder of `libcudart_static.a`.
    pub lib: PathBuf,
}

/// Usable CUTLASS headers.
#[derive(Debug, Clone, PartialEq)]
pub struct Cutlass {
    /// The include folder.
    pub include: PathBuf,
    /// `4.2.0`.
    pub version: String,
    /// What distinguishes these headers from others of the same version: empty for the fetched ones
    /// (pinned by hash), else the path.
    pub identity: String,
}

/// Everything that building the kernels takes.
pub struct Tools {
    /// The CUDA toolkit.
    pub toolkit: Toolkit,
    /// The CUTLASS headers.
    pub cutlass: Cutlass,
}

impl Tools {
    /// Finds both, or says which one is missing.
    pub fn find(context: &Context) -> Result<Tools, Missing> {
        if context.flag("DOCS_RS") {
            return Err(Missing {
                why: "this is a documentation build (DOCS_RS is set)".into(),
                probed: Vec::new(),
                remedy: "unset DOCS_RS to build the kernels".into(),
            });
        }
        let target = |name| context.var(name).and_then(|v| v.to_str()).unwrap_or("").to_owned();
        let (host, target) = (target("HOST"), target("TARGET"));
        if host != target || !target.contains("-linux-") {
            return Err(Missing {
                why: format!("they cannot be built on {host} for {target}"),
                probed: Vec::new(),
                remedy: "build on Linux for the same machine".into(),
            });
        }
        Ok(Tools {
            toolkit: find_toolkit(context, &["/usr/local/cuda", "/opt/cuda"].map(Path::new))?,
            cutlass: find_cutlass(context)?,
        })
    }
}

/// Looks for a toolkit: environment, PATH, the usual places, what was fetched.
pub fn find_toolkit(context: &Context, usual: &[&Path]) -> Result<Toolkit, Missing> {
    const VARIABLE: &str = "OVERLAP_GEMM_CUDA_HOME";
    const ON_PATH: &str = "nvcc on PATH";
    let named = |name: &str| match context.var(name) {
        Some(dir) => (format!("{name}={}", Path::new(dir).display()), Ok(PathBuf::from(dir))),
        None => (name.to_owned(), Err("not set".to_owned())),
    };
    let mut places = vec![named(VARIABLE)];
    if context.var(VARIABLE).is_none() {
        places.extend([named("CUDA_HOME"), named("CUDA_PATH")]);
        places.push(match nvcc_on_path(context.var("PATH").map(OsStr::new)) {
            Some(root) => (format!("{ON_PATH}, in {}", root.display()), Ok(root)),
            None => (ON_PATH.to_owned(), Err("not there".to_owned())),
        });
        places.extend(usual.iter().map(|dir| (dir.display().to_string(), Ok(dir.to_path_buf()))));
        let fetched = context.fetched().map(|dir| dir.join("cuda"));
        places.push((context.fetched_dir().display().to_string(), fetched));
    }
    let mut probed = Vec::new();
    for (place, root) in places {
        match root.and_then(|root| toolkit_at(&root)) {
            Ok(toolkit) => {
                if place.starts_with(ON_PATH) {
                    println!("cargo::rerun-if-env-changed=PATH");
                }
                return Ok(toolkit);
            }
            Err(reason) => probed.push(format!("{place}: {reason}")),
        }
    }
    println!("cargo::rerun-if-env-changed=PATH");
    let (major, minor) = OLDEST_TOOLKIT;
    let what = format!("CUDA toolkit {major}.{minor} or newer");
    Err(Missing::fetchable(&what, probed, &context.manifest_dir, VARIABLE))
}

/// The toolkit root that the first `nvcc` on PATH belongs to, links resolved.
fn nvcc_on_path(path: Option<&OsStr>) -> Option<PathBuf> {
    let nvcc = std::env::split_paths(path?).map(|dir| dir.join("nvcc")).find(|p| p.is_file())?;
    Some(nvcc.canonicalize().ok()?.parent()?.parent()?.to_path_buf())
}

/// The toolkit with this root, or what it lacks.
pub fn toolkit_at(root: &Path) -> Result<Toolkit, String> {
    if !root.is_dir() {
        return Err("no such folder".into());
    }
    let nvcc = root.join("bin/nvcc");
    if !nvcc.is_file() {
        return Err("has no bin/nvcc".into());
    }
    let headers = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"];
    if !headers.iter().any(|dir| root.join(dir).join("cuda_runtime_api.h").is_file()) {
        return Err("has no cuda_runtime_api.h".into());
    }
    let libraries = [
        "lib64",
        "lib",
        "targets/x86_64-linux/lib",
        "targets/sbsa-linux/lib",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    ];
    let lib = libraries.iter().map(|dir| root.join(dir));
    let Some(lib) = lib.into_iter().find(|dir| dir.join("libcudart_static.a").is_file()) else {
        return Err("has no libcudart_static.a".into());
    };
    let output = Command::new(&nvcc)
        .arg("--version")
        .output()
        .map_err(|error| format!("{} does not run: {error}", nvcc.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((version, full)) = parse_nvcc_version(&text) else {
        return Err(format!("{} --version names no release", nvcc.display()));
    };
    if version < OLDEST_TOOLKIT {
        let (major, minor) = OLDEST_TOOLKIT;
        return Err(format!("is CUDA {full}, older than {major}.{minor}"));
    }
    Ok(Toolkit { nvcc, version: full, lib })
}

/// `Cuda compilation tools, release 13.0, V13.0.88` → `((13, 0), "13.0.88")`.
pub fn parse_nvcc_version(text: &str) -> Option<(Version, String)> {
    let rest = &text[text.find("release ")? + "release ".len()..];
    let release = rest.split([',', '\n']).next()?.trim();
    let full = rest.split('V').nth(1).and_then(|v| v.split_whitespace().next()).unwrap_or(release);
    let (major, minor) = release.split_once('.')?;
    Some(((major.parse().ok()?, minor.parse().ok()?), full.to_owned()))
}

/// Looks for the CUTLASS headers: this crate's variable, else what was fetched.
pub fn find_cutlass(context: &Context) -> Result<Cutlass, Missing> {
    const VARIABLE: &str = "OVERLAP_GEMM_CUTLASS_DIR";
    let (probed, place, found) = match context.var(VARIABLE).map(Path::new) {
        Some(dir) => {
            let name = dir.display().to_string();
            (Vec::new(), format!("{VARIABLE}={name}"), cutlass_at(dir, name))
        }
        None => {
            let fetched = context.fetched().map(|dir| dir.join("cutlass"));
            let found = fetched.and_then(|dir| cutlass_at(&dir, String::new()));
            let place = context.fetched_dir().display().to_string();
            (vec![format!("{VARIABLE}: not set")], place, found)
        }
    };
    found.map_err(|reason| {
        let probed = [probed, vec![format!("{place}: {reason}")]].concat();
        let (major, minor) = OLDEST_CUTLASS;
        let what = format!("CUTLASS {major}.{minor} or newer");
        Missing::fetchable(&what, probed, &context.manifest_dir, VARIABLE)
    })
}

/// The CUTLASS checkout with this root, or what it lacks.
pub fn cutlass_at(root: &Path, identity: String) -> Result<Cutlass, String> {
    let include = root.join("include");
    let header = include.join("cutlass/version.h");
    let text = std::fs::read_to_string(&header)
        .map_err(|_| "has no include/cutlass/version.h".to_owned())?;
    let number = |name: &str| parse_define(&text, name);
    let (Some(major), Some(minor), Some(patch)) =
        (number("CUTLASS_MAJOR"), number("CUTLASS_MINOR"), number("CUTLASS_PATCH"))
    else {
        return Err("include/cutlass/version.h names no version".into());
    };
    let version = format!("{major}.{minor}.{patch}");
    if (major, minor) < OLDEST_CUTLASS {
        let (major, minor) = OLDEST_CUTLASS;
        return Err(format!("is CUTLASS {version}, older than {major}.{minor}"));
    }
    Ok(Cutlass { include, version, identity })
}

/// The number in `#define NAME number`.
pub fn parse_define(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("#define") && words.next() == Some(name))
            .then(|| words.next()?.parse().ok())
            .flatten()
    })
}
