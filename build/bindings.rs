//! Rust declarations for `csrc/overlap_gemm.h`: `src/cuda/sys/bindings.rs` compared with bindgen's output.
//!
//! What belongs here: runs of bindgen over that one header, under feature `bindings` only. Invariants:
//! names are the same in C and in Rust; a status is a number with names (a new one from a newer library
//! stays representable), never a Rust enum; the committed file is right on every one of `TARGETS`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use super::fail;
use super::probe::{Context, Missing};

const HEADER: &str = "csrc/overlap_gemm.h";
const COMMITTED: &str = "src/cuda/sys/bindings.rs";
const FIRST_LINES: [&str; 2] = [
    "//! Made from `csrc/overlap_gemm.h` by bindgen; do not edit. After a change there,",
    "//! `cargo check --features bindings` prints the command that renews this file.",
];

/// Where kernels can be built (`toolkit::Tools::find`).
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Fails the build, with the remedy, unless the committed file is what bindgen makes of the header.
pub fn compare(context: &Context) -> Result<(), Missing> {
    println!("cargo::rerun-if-changed={COMMITTED}");
    let [layout, other] = TARGETS.map(|target| generate(context, target, true));
    if layout? != other? {
        let [one, another] = TARGETS;
        fail(&format!(
            "{HEADER} has other layouts on {one} than on {another}: use types of one size, as in stdint.h"
        ));
    }
    let text = generate(context, TARGETS[0], false)?;
    let committed = context.manifest_dir.join(COMMITTED);
    if std::fs::read_to_string(&committed).is_ok_and(|committed| committed == text) {
        return Ok(());
    }
    let fresh = context.out_dir.join("bindings.rs");
    if let Err(error) = std::fs::write(&fresh, text) {
        fail(&format!("{}: {error}", fresh.display()));
    }
    fail(&format!(
        "{COMMITTED} is not what bindgen makes of {HEADER}; to renew it:\n  cp {} {}",
        fresh.display(),
        committed.display()
    ))
}

/// The declarations for one platform, as rustfmt writes them; with the place of each field, if asked for.
fn generate(context: &Context, target: &str, layouts: bool) -> Result<String, Missing> {
    let mut builder = bindgen::Builder::default()
        .header(context.manifest_dir.join(HEADER).display().to_string())
        // Types of the compiler alone: no header of this machine's C library.
        .clang_args([&format!("--target={target}"), "-ffreestanding"])
        .allowlist_item("(og|OG)_.*")
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(layouts)
        .use_core()
        .rust_edition(bindgen::RustEdition::Edition2024)
        .rustfmt_configuration_file(Some(context.manifest_dir.join("rustfmt.toml")))
        .disable_header_comment()
        .raw_line(FIRST_LINES.join("\n"));
    // A libclang without clang beside it (the pip package) has no <stdint.h> of its own.
    if let Some(include) = compiler_headers() {
        builder = builder.clang_args(["-isystem", &include]);
    }
    let fetched = context.fetched().map(|dir| dir.join("libclang")).ok();
    if let (None, Some(dir)) = (context.var("LIBCLANG_PATH"), fetched.filter(|dir| dir.is_dir())) {
        // SAFETY: the build script has no other thread.
        unsafe { std::env::set_var("LIBCLANG_PATH", dir) };
    }
    // bindgen panics where it can load no libclang.
    let reason = match catch_unwind(AssertUnwindSafe(|| builder.generate())) {
        Ok(Ok(bindings)) => return Ok(bindings.to_string()),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(_) => "bindgen panicked".to_owned(),
        },
    };
    let place = match context.var("LIBCLANG_PATH") {
        Some(path) => format!("LIBCLANG_PATH={}", path.display()),
        None => "what was fetched, else the system's library folders".to_owned(),
    };
    Err(Missing {
        why: format!("found no libclang that reads {HEADER}"),
        probed: vec![format!("{place}: {reason}")],
        remedy: "run third_party/fetch --libclang or set LIBCLANG_PATH, or build without feature \
                 `bindings`"
            .into(),
    })
}

/// The folder in which the host compiler keeps the headers that belong to the compiler.
fn compiler_headers() -> Option<String> {
    let output = Command::new("gcc").arg("-print-file-name=include").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    // gcc answers with the bare name when it has no such folder.
    folder.starts_with('/').then_some(folder)
}
