//! Builds the device code, under feature `cuda` only; otherwise it does nothing.
//!
//! What belongs here: the order of the steps, and what becomes of a missing piece. The steps are in
//! `build/`: finding the tools (`probe`, `toolkit`), compiling (`table`, `kernels`, `compiler`, `jobs`, `ptxas`),
//! what the library learns (`report`); under feature `bindings`, comparing the committed declarations with
//! the header (`bindings`). Invariant: with everything there, the kernels are in the library; with anything
//! missing, the library still builds, one warning says what was looked for and what to run, and the run time
//! returns `Error::KernelsNotBuilt` with the same words. `OVERLAP_GEMM_REQUIRE_KERNELS=1` makes a missing
//! piece an error.

#[cfg(feature = "bindings")]
#[path = "build/bindings.rs"]
mod bindings;
#[cfg(feature = "cuda")]
#[path = "build/compiler.rs"]
mod compiler;
#[cfg(feature = "cuda")]
#[path = "build/jobs.rs"]
mod jobs;
#[cfg(feature = "cuda")]
#[path = "build/kernels.rs"]
mod kernels;
#[cfg(feature = "cuda")]
#[path = "build/probe.rs"]
mod probe;
#[cfg(feature = "cuda")]
#[path = "build/ptxas.rs"]
mod ptxas;
#[cfg(feature = "cuda")]
#[path = "build/report.rs"]
mod report;
#[cfg(feature = "cuda")]
#[path = "build/table.rs"]
mod table;
#[cfg(feature = "cuda")]
#[path = "build/toolkit.rs"]
mod toolkit;

fn main() {
    // First, before anything can return: what decides whether this script runs again.
    println!("cargo::rustc-check-cfg=cfg(overlap_gemm_kernels)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    #[cfg(feature = "cuda")]
    cuda();
}

#[cfg(feature = "cuda")]
fn cuda() {
    let context = probe::Context::from_cargo();
    context.print_rerun_rules();
    let required = context.flag("OVERLAP_GEMM_REQUIRE_KERNELS");

    #[cfg(feature = "bindings")]
    if !context.flag("DOCS_RS")
        && let Err(missing) = bindings::compare(&context)
    {
        without("src/cuda/sys/bindings.rs is not compared", &missing, required);
    }

    match toolkit::Tools::find(&context) {
        Ok(tools) => match kernels::build(&context, &tools, required) {
            Ok(built) => {
                println!("cargo::rustc-cfg=overlap_gemm_kernels");
                report::built(&context, &tools, &built);
            }
            // The tools are there and the code does not compile: never a stub.
            Err(reason) => fail(&reason),
        },
        Err(missing) => {
            without("building without the CUDA kernels", &missing, required);
            report::not_built(&context, &missing.to_string());
        }
    }
}

/// What becomes of a missing piece: a warning that names the consequence, or an error if it is required.
#[cfg(feature = "cuda")]
fn without(consequence: &str, missing: &probe::Missing, required: bool) {
    if required {
        fail(&format!("OVERLAP_GEMM_REQUIRE_KERNELS is set, but {missing}"));
    }
    let text = format!("{consequence}: {missing}");
    text.lines().for_each(|line| println!("cargo::warning={line}"));
}

#[cfg(feature = "cuda")]
fn fail(reason: &str) -> ! {
    reason.lines().for_each(|line| println!("cargo::error={line}"));
    std::process::exit(1);
}
