//! What is loaded or run by name: NCCL, cuBLASLt, the CUDA compiler, and this binary's own kernels.
//!
//! Libraries are looked for as the loader would, then in the places that packages put them without
//! telling the loader. Invariant: one that is found off the loader's path is reported with what
//! would put it there, for it would not be found otherwise.

use std::env;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;
#[cfg(feature = "cuda")]
use overlap_gemm::Error;

use super::finding::Finding;

/// Looks for the libraries and the compiler.
pub fn look() -> Vec<Finding> {
    vec![nccl(), cublaslt(), toolkit()]
}

/// Whether this binary carries the kernels.
pub fn kernels() -> Finding {
    #[cfg(feature = "cuda")]
    match overlap_gemm::cuda::build_info() {
        Ok(info) => {
            let (toolkit, cutlass) = (info.toolkit, info.cutlass);
            let what =
                format!("{}, with CUDA {toolkit} and CUTLASS {cutlass}", info.instances.len());
            Finding::ok("kernels", what)
        }
        Err(Error::KernelsNotBuilt { reason }) => {
            Finding::blocking("kernels", "this binary was built without them", reason)
        }
        Err(error) => Finding::blocking("kernels", error.to_string(), "build the binary again"),
    }
    #[cfg(not(feature = "cuda"))]
    Finding::blocking(
        "kernels",
        "this binary was built without the feature `cuda`",
        "build it with --features cuda",
    )
}

/// The CUDA major version that the driver must support for the kernels to run.
pub fn cuda_major() -> i32 {
    /// That of the toolkit which third_party/fetch brings: what a build would use.
    const PINNED: i32 = 13;
    #[cfg(feature = "cuda")]
    if let Ok(info) = overlap_gemm::cuda::build_info() {
        let major = info.toolkit.split('.').next().and_then(|major| major.parse().ok());
        return major.unwrap_or(PINNED);
    }
    PINNED
}

fn nccl() -> Finding {
    let found = find(&["libnccl.so.2", "libnccl.so"], "nvidia/nccl/lib");
    let version = |library: &Library| {
        let mut version: c_int = 0;
        // SAFETY: the signature is that of nccl.h: `ncclResult_t ncclGetVersion(int *)`; `version`
        // outlives the call.
        let code = unsafe {
            let ask = library
                .get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0")
                .ok()?;
            ask(&mut version)
        };
        (code == 0).then(|| nccl_version(version))
    };
    let lacks = "needed to compare with NCCL, and to fall back to it: pip install nvidia-nccl-cu13";
    report("NCCL", found, version, lacks)
}

/// 2.9 and later write 22100 for 2.21.0; before, 2804 meant 2.8.4.
fn nccl_version(code: c_int) -> String {
    let step = if code < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", code / step, code % step / 100, code % 100)
}

fn cublaslt() -> Finding {
    let found = find(&["libcublasLt.so.13", "libcublasLt.so.12"], "nvidia/cublas/lib");
    let version = |library: &Library| {
        // SAFETY: the signature is that of cublasLt.h: `size_t cublasLtGetVersion(void)`.
        let code = unsafe {
            library.get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion\0").ok()?()
        };
        // 120304 means 12.3.4.
        Some(format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100))
    };
    let lacks = "needed to compare with cuBLAS only: pip install nvidia-cublas";
    report("cuBLASLt", found, version, lacks)
}

/// Where a library was found.
enum Found {
    /// By its bare name.
    ByLoader(&'static str, Library),
    /// Only by its full path.
    OffPath(PathBuf, Library),
    /// In these places there is a file, which cannot be loaded for this reason.
    Broken(PathBuf, String),
    Nowhere,
}

fn report(
    topic: &'static str,
    found: Found,
    version: impl Fn(&Library) -> Option<String>,
    lacks: &str,
) -> Finding {
    let describe = |library: &Library| version(library).unwrap_or("of unknown version".into());
    match found {
        Found::ByLoader(name, library) => {
            Finding::ok(topic, format!("{}, as {name}", describe(&library)))
        }
        Found::OffPath(path, library) => {
            let folder = path.parent().unwrap_or(Path::new("")).display();
            let what =
                format!("{}, in {folder}, where the loader does not look", describe(&library));
            Finding::note(topic, what).or(format!("add {folder} to LD_LIBRARY_PATH"))
        }
        Found::Broken(path, reason) => {
            let what = format!("{} is here but cannot be loaded", path.display());
            Finding::note(topic, what).or(reason)
        }
        Found::Nowhere => Finding::note(topic, "not here").or(lacks),
    }
}

/// Loads the first of `names` that there is; `package` is where pip puts it, in site-packages.
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

/// The site-packages of the environments that a person is likely to have used pip in.
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

fn toolkit() -> Finding {
    let lacks =
        "needed to build the kernels only: third_party/fetch, in the repository, brings one";
    for (place, root) in toolkit_roots() {
        let nvcc = root.join("bin/nvcc");
        let Ok(output) = Command::new(&nvcc).arg("--version").output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some(release) = release(&text) {
            return Finding::ok(
                "CUDA toolkit",
                format!("{release}, in {} ({place})", root.display()),
            );
        }
        let what = format!("{} --version names no release", nvcc.display());
        return Finding::note("CUDA toolkit", what).or(lacks);
    }
    Finding::note("CUDA toolkit", "not here").or(lacks)
}

/// `13.0` out of what nvcc prints: `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(text: &str) -> Option<&str> {
    text.split_once("release ")?.1.split([',', '\n']).next()
}

/// Where a toolkit may be, with the reason for looking there; the build looks in the same order.
fn toolkit_roots() -> Vec<(&'static str, PathBuf)> {
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
        assert_eq!(nccl_version(22_703), "2.27.3");
        assert_eq!(nccl_version(2804), "2.8.4");
        assert_eq!(release("Cuda compilation tools, release 13.0, V13.0.88\n"), Some("13.0"));
        assert_eq!(release("no such thing"), None);
    }
}
