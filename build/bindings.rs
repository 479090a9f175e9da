//! Rust declarations for `csrc/overlap_gemm.h`.
//!
//! What belongs here: one run of bindgen over that one header. Invariant: names are the same in C
//! and in Rust, and a status is a number with names (a new one from a newer library stays
//! representable), never a Rust enum.

use std::process::Command;

use super::probe::{Context, Missing, Rejected};
use super::toolkit::Tools;

/// Writes `bindings.rs` into OUT_DIR.
pub fn generate(context: &Context, tools: &Tools) -> Result<(), Missing> {
    // SAFETY: the build script has no other thread yet.
    unsafe { std::env::set_var("LIBCLANG_PATH", &tools.libclang) };

    let header = context.manifest_dir.join("csrc/overlap_gemm.h");
    let mut builder = bindgen::Builder::default()
        .header(header.display().to_string())
        .allowlist_item("(og|OG)_.*")
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .prepend_enum_name(false)
        .derive_default(true)
        .use_core()
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::None);
    // A libclang without clang beside it (the pip package) has no <stddef.h> of its own.
    if let Some(include) = compiler_headers() {
        builder = builder.clang_args(["-isystem", &include]);
    }
    // bindgen panics where libclang cannot be loaded (another libc, a broken link).
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let reason = match result {
        Ok(Ok(bindings)) => match bindings.write_to_file(context.out_dir.join("bindings.rs")) {
            Ok(()) => return Ok(()),
            Err(error) => format!("bindings.rs could not be written: {error}"),
        },
        Ok(Err(error)) => error.to_string(),
        Err(_) => "bindgen could not load it".to_owned(),
    };
    let fetched = context.fetched_dir().join("libclang");
    Err(Missing {
        why: "found no libclang that reads csrc/overlap_gemm.h".into(),
        probed: vec![Rejected::new(tools.libclang.display().to_string(), reason)],
        remedy: format!(
            "set LIBCLANG_PATH to another one ({} after third_party/fetch), then build again",
            fetched.display()
        ),
    })
}

/// The folder in which the host compiler keeps the headers that belong to the compiler.
fn compiler_headers() -> Option<String> {
    let output = Command::new("gcc").arg("-print-file-name=include").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    // gcc answers with the bare name when it has no such folder.
    folder.starts_with('/').then_some(folder)
}
