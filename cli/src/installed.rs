//! The places of libraries and toolkits, for the subcommands that load or report them.
//!
//! A library is searched for by the loader first, then in the folders of toolkits and of pip. Invariant: an absent library is
//! an answer ([`Found::Nowhere`]), never an error.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;

/// The outcome of a search.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only benches call what is loaded"))]
pub enum Found {
    /// By its bare name.
    ByLoader(&'static str, Library),
    /// Only by its full path.
    OffPath(PathBuf, Library),
    /// A file that cannot be loaded, and the reason.
    Broken(PathBuf, String),
    /// No such file anywhere.
    Nowhere,
}

/// cuBLASLt, of CUDA 13 or 12.
pub fn cublaslt() -> Found {
    find(&["libcublasLt.so.13", "libcublasLt.so.12"], "nvidia/cublas/lib")
}

/// NCCL.
pub fn nccl() -> Found {
    find(&["libnccl.so.2", "libnccl.so"], "nvidia/nccl/lib")
}

/// `12.3.4` out of what `cublasLtGetVersion` returns: 120304.
#[cfg(any(feature = "cuda", test))]
pub fn cublaslt_version(code: usize) -> String {
    format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)
}

/// Loads the first of `names` that exists; `package` is its folder in site-packages.
fn find(names: &[&'static str], package: &str) -> Found {
    // SAFETY: these are well-known libraries, or what the machine's owner put in their place;
    // loading runs their initialisers, as it does in every program that uses them.
    let load = |name: &Path| unsafe { Library::new(name) };
    let mut broken = Found::Nowhere;
    for &name in names {
        match load(Path::new(name)) {
            Ok(library) => return Found::ByLoader(name, library),
            Err(error) if is_absent(name, &error) => {}
            Err(error) => broken = Found::Broken(name.into(), error.to_string()),
        }
    }
    for folder in folders(package) {
        for path in names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()) {
            match load(&path) {
                Ok(library) => return Found::OffPath(path, library),
                Err(error) => broken = Found::Broken(path, error.to_string()),
            }
        }
    }
    broken
}

/// Whether the loader found no such file, rather than one that it cannot load.
pub fn is_absent(name: &str, error: &libloading::Error) -> bool {
    // A missing dependency reads the same, but for the name.
    error.to_string().starts_with(&format!("{name}: cannot open shared object file"))
}

/// Folders that hold libraries which the loader may not know.
fn folders(package: &str) -> Vec<PathBuf> {
    let toolkits = toolkit_roots().into_iter().flat_map(|(_, root)| {
        ["lib64", "lib", "targets/x86_64-linux/lib"].map(|folder| root.join(folder))
    });
    // Packages for CUDA 13 share one folder; those before have one each.
    let pip = site_packages()
        .into_iter()
        .flat_map(|site| [site.join(package), site.join("nvidia/cu13/lib")]);
    toolkits.chain(pip).collect()
}

/// The site-packages of the usual Python environments.
fn site_packages() -> Vec<PathBuf> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os);
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let prefixes = named.map(PathBuf::from).chain(home);
    prefixes
        .chain(["/usr/local".into(), "/usr".into(), "/opt/conda".into()])
        .filter_map(|prefix| fs::read_dir(prefix.join("lib")).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name)))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// The possible folders of a toolkit, each with the reason; the build searches in the same order, and in `/opt/cuda` as well.
pub fn toolkit_roots() -> Vec<(&'static str, PathBuf)> {
    let named = ["OVERLAP_GEMM_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"];
    let named =
        named.into_iter().filter_map(|name| Some((name, PathBuf::from(env::var_os(name)?))));
    let on_path = env::var_os("PATH").and_then(|path| {
        let nvcc =
            env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|p| p.is_file())?;
        Some(("PATH", nvcc.canonicalize().ok()?.parent()?.parent()?.to_path_buf()))
    });
    let fetched = env::var_os("OVERLAP_GEMM_THIRD_PARTY")
        .map_or("third_party/.fetched".into(), PathBuf::from)
        .join("cuda");
    let usual = [("the usual place", "/usr/local/cuda".into()), ("third_party/fetch", fetched)];
    named.chain(on_path).chain(usual).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(cublaslt_version(130_101), "13.1.1");
        assert_eq!(cublaslt_version(120_904), "12.9.4");
    }
}
