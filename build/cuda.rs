//! The order of the build's steps, and what becomes of a missing piece.
//!
//! The steps are in the files beside this: finding the tools (`probe`, `toolkit`), compiling (`table`, `kernels`, `compiler`,
//! `ptxas`), what the library learns (`report`); under feature `bindings`, comparing the committed declarations with
//! the header (`bindings`). Invariant: with everything there, the kernels are in the library; with anything
//! missing, the library still builds, one warning says what was looked for and what to run, and the run time
//! returns `Error::KernelsNotBuilt` with the same words. `OVERLAP_GEMM_REQUIRE_KERNELS=1` makes a missing
//! piece an error.

#[cfg(feature = "bindings")]
mod bindings;
mod compiler;
mod kernels;
mod probe;
mod ptxas;
mod report;
mod table;
mod toolkit;

/// Builds the kernels, or says why not.
pub fn build() {
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
fn without(consequence: &str, missing: &probe::Missing, required: bool) {
    if required {
        fail(&format!("OVERLAP_GEMM_REQUIRE_KERNELS is set, but {missing}"));
    }
    let text = format!("{consequence}: {missing}");
    text.lines().for_each(|line| println!("cargo::warning={line}"));
}

fn fail(reason: &str) -> ! {
    reason.lines().for_each(|line| println!("cargo::error={line}"));
    std::process::exit(1);
}
