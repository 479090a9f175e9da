//! What the library, and crates that depend on it, learn about its build.
//!
//! What belongs here: `build_info.rs` (compiled into the library: `cuda::build_info`) and
//! `ptxas.txt` (for people and CI), both in OUT_DIR; and what build scripts of crates that depend on this one get for kernels
//! of their own (`DEP_OVERLAP_GEMM_…`). Invariant: `build_info.rs` exists after every build with feature `cuda`, whether the
//! kernels were built or not.

use std::fs;
use std::path::Path;

use super::kernels::Built;
use super::probe::Context;
use super::toolkit::Tools;

/// The kernels are in the library.
pub fn built(context: &Context, tools: &Tools, built: &Built) {
    let mut text = String::new();
    for (name, log) in &built.logs {
        text.push_str(&format!("{name}\n{log}"));
    }
    write(context, "ptxas.txt", &text);
    let instances: Vec<&str> = built.instances.iter().map(String::as_str).collect();
    write_info(context, &tools.toolkit.version, &tools.cutlass.version, &instances, "");
    tell("include", &context.manifest_dir.join("csrc"));
    tell("cutlass", &tools.cutlass.include);
    tell("nvcc", &tools.toolkit.nvcc);
}

/// Tells dependents' build scripts, which run in other folders.
fn tell(key: &str, path: &Path) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    println!("cargo::metadata={key}={}", path.display());
}

/// They are not, and this is why.
pub fn not_built(context: &Context, reason: &str) {
    write_info(context, "", "", &[], reason);
}

fn write_info(context: &Context, toolkit: &str, cutlass: &str, instances: &[&str], reason: &str) {
    let text = format!(
        "const TOOLKIT: &str = {toolkit:?};\nconst CUTLASS: &str = {cutlass:?};\n\
         const INSTANCES: &[&str] = &{instances:?};\nconst NOT_BUILT: &str = {reason:?};\n"
    );
    write(context, "build_info.rs", &text);
}

fn write(context: &Context, name: &str, text: &str) {
    let path = context.out_dir.join(name);
    if let Err(error) = fs::write(&path, text) {
        super::fail(&format!("{}: {error}", path.display()));
    }
}
