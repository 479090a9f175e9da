//! Compiling `csrc/*.cu`, and the kernels of `csrc/kernels.txt`.
//!
//! What belongs here: the flags, the object cache, the archive and what it is linked with.
//! Invariants: every .cu becomes one whole-program object (relocatable device code would make ptxas
//! ignore setmaxnreg, C7504) with release flags in every cargo profile (-G would serialise wgmma,
//! C7505), so `cc`'s own CUDA mode is not used; an object is taken from the cache exactly if
//! nothing it is made of has changed; nothing links against the driver, so the binary starts
//! where there is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use super::compiler::Source;
use super::probe::Context;
use super::toolkit::Tools;
use super::{compiler, ptxas, table};

/// The one architecture there is; not asked of a GPU, which the build machine need not have.
const FLAGS: &[&str] = &[
    "-gencode",
    "arch=compute_90a,code=sm_90a",
    "-O3",
    "-std=c++17",
    // CUTLASS's device asserts are function calls, around which ptxas serialises wgmma (C7510).
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xptxas",
    "-v",
    // Else a `switch` becomes a table in constant memory, whose first use takes as long as several steps of K.
    "-Xptxas",
    "--disable-optimizer-constants",
    // A third of the size; the driver unpacks a kernel when it loads it.
    "-Xfatbin",
    "-compress-all",
    "-Xcompiler",
    "-fPIC",
];

/// What was built.
pub struct Built {
    /// The names of the kernel instances.
    pub instances: Vec<String>,
    /// What ptxas said, source by source.
    pub logs: Vec<(String, String)>,
}

/// One source on its way to an object.
struct Unit {
    source: PathBuf,
    /// `abi.cu`, `instances/default_1.cu`
    name: String,
    object: PathBuf,
    log: PathBuf,
}

/// Compiles, archives and links; `strict` makes complaints of ptxas errors.
pub fn build(context: &Context, tools: &Tools, strict: bool) -> Result<Built, String> {
    let csrc = context.manifest_dir.join("csrc");
    let (sources, headers) = list(&csrc)?;
    let cache = cache_dir(context);
    fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;

    let set = context.var("OVERLAP_GEMM_KERNELS");
    let set = set.map_or("default".into(), |set| set.to_string_lossy());
    let table = String::from_utf8_lossy(&read(&csrc.join("kernels.txt"))?).into_owned();
    let rows = table::read(&table, &set)?;

    let common = common_key(context, tools, &csrc, &headers)?;
    // The kernels first: most of their sources take longest, and no core should have one left at the end.
    let units = generate(context, &rows)?
        .into_iter()
        .chain(sources.into_iter().map(|source| {
            let name = source.strip_prefix(&csrc).unwrap_or(&source).display().to_string();
            (name, source)
        }))
        .map(|(name, source)| {
            let key = hex(&digest([&common[..], name.as_bytes(), &read(&source)?]));
            let stem = source.file_stem().unwrap_or_default().to_string_lossy();
            let object = cache.join(format!("{stem}-{}.o", &key[..32]));
            let log = object.with_extension("log");
            Ok(Unit { source, name, object, log })
        })
        .collect::<Result<Vec<_>, String>>()?;
    compile(context, tools, &csrc, &units)?;

    let (mut logs, mut complaints) = (Vec::new(), Vec::new());
    for unit in &units {
        let log = String::from_utf8_lossy(&read(&unit.log)?).into_owned();
        complaints.extend(ptxas::complaints(&log).iter().map(|c| format!("{}: {c}", unit.name)));
        logs.push((unit.name.clone(), log));
    }
    complaints.iter().for_each(|complaint| println!("cargo::warning={complaint}"));
    if strict && !complaints.is_empty() {
        return Err(format!(
            "ptxas has {} complaints (above), and OVERLAP_GEMM_REQUIRE_KERNELS is set",
            complaints.len()
        ));
    }
    link(tools, &units);
    Ok(Built { instances: rows.into_iter().map(|row| row.name).collect(), logs })
}

/// Writes the kernels' sources, and one for the list of them; returns names and paths.
fn generate(context: &Context, rows: &[table::Row]) -> Result<Vec<(String, PathBuf)>, String> {
    let folder = context.out_dir.join("instances");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let kernels = table::sources(rows).into_iter().map(|(name, rows)| (name, table::source(&rows)));
    kernels
        .chain([("all_instances".to_owned(), table::registry(rows))])
        .map(|(name, text)| {
            let path = folder.join(format!("{name}.cu"));
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok((format!("instances/{name}.cu"), path))
        })
        .collect()
}

/// The .cu files and all other files under `csrc`, each sorted.
fn list(csrc: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), String> {
    let mut folders = vec![csrc.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    // The table is not a header: a new row must not make the others' objects stale.
    files.retain(|path| !path.ends_with("kernels.txt"));
    Ok(files.into_iter().partition(|path| path.extension().is_some_and(|e| e == "cu")))
}

/// Under the target folder, beside the profiles, so that debug and release share objects and
/// `cargo clean` removes them; inside OUT_DIR if the target folder looks otherwise than known.
fn cache_dir(context: &Context) -> PathBuf {
    if let Some(dir) = context.var("OVERLAP_GEMM_KERNEL_CACHE") {
        return PathBuf::from(dir);
    }
    // target[/triple]/profile/build/package-hash/out
    let build = context.out_dir.ancestors().find(|dir| dir.ends_with("build"));
    match build.and_then(Path::parent).and_then(Path::parent) {
        Some(target) => target.join("overlap-gemm-kernels"),
        None => context.out_dir.join("kernels"),
    }
}

/// What all objects depend on: flags, compilers, CUTLASS, every header of ours.
fn common_key(
    context: &Context,
    tools: &Tools,
    csrc: &Path,
    headers: &[PathBuf],
) -> Result<Vec<u8>, String> {
    let var = |name| context.var(name).map(|v| v.to_string_lossy().into_owned());
    let host = var("NVCC_CCBIN").unwrap_or_else(|| "g++".into());
    let host_version = Command::new(&host).arg("--version").output();
    let mut parts: Vec<Vec<u8>> = vec![
        FLAGS.join(" ").into(),
        tools.toolkit.version.clone().into(),
        tools.cutlass.version.clone().into(),
        tools.cutlass.identity.clone().into(),
        host_version.map(|output| output.stdout).unwrap_or_default(),
        var("NVCC_PREPEND_FLAGS").unwrap_or_default().into(),
        var("NVCC_APPEND_FLAGS").unwrap_or_default().into(),
    ];
    for header in headers {
        let name = header.strip_prefix(csrc).unwrap_or(header);
        parts.push(name.display().to_string().into());
        parts.push(read(header)?);
    }
    Ok(digest(parts.iter().map(Vec::as_slice)))
}

/// Compiles what is not in the cache, several at a time.
fn compile(context: &Context, tools: &Tools, csrc: &Path, units: &[Unit]) -> Result<(), String> {
    let cached = |unit: &Unit| unit.object.is_file() && unit.log.is_file();
    let stale: Vec<&Unit> = units.iter().filter(|unit| !cached(unit)).collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let num_jobs = context.var("NUM_JOBS").and_then(|v| v.to_str()?.parse().ok());
    let available = compiler::parse_available(&meminfo);
    let jobs = compiler::jobs(cores, available, num_jobs, stale.len());

    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(unit) = stale.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(reason) = compile_one(tools, csrc, unit) {
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(reason);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// One nvcc.
fn compile_one(tools: &Tools, csrc: &Path, unit: &Unit) -> Result<(), String> {
    let mut nvcc = Command::new(&tools.toolkit.nvcc);
    nvcc.args(FLAGS).arg("-I").arg(csrc).arg("-isystem").arg(&tools.cutlass.include);
    nvcc.arg("-c").arg(&unit.source);
    let source = Source { version: &tools.toolkit.version, name: &unit.name };
    compiler::run(&mut nvcc, &source, &unit.object, &unit.log)
}

/// The archive, and what it needs: the runtime statically, and what that needs. Never `-lcuda`.
fn link(tools: &Tools, units: &[Unit]) {
    cc::Build::new().objects(units.iter().map(|unit| &unit.object)).compile("overlap_gemm_kernels");
    println!("cargo::rustc-link-search=native={}", tools.toolkit.lib.display());
    println!("cargo::rustc-link-lib=static=cudart_static");
    for library in ["rt", "pthread", "dl", "stdc++"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The hash of a list; each part goes with its length, so that no two lists look alike.
fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
