//! The failures of all subcommands, and the exit code of each.
//!
//! Invariant: every failure is one message on stderr with its causes; scripts distinguish failures by the code alone.

use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use overlap_gemm::Error;

/// The command succeeded.
pub const SUCCESS: u8 = 0;
/// A check ran and found a wrong result.
const CHECK_FAILED: u8 = 1;
/// Arguments or input are refused; clap uses the same code.
const USAGE: u8 = 2;
/// Something needed is missing here: a GPU, a driver, compiled kernels.
const MISSING: u8 = 3;
/// It failed at run time: a timeout, an aborted step, input or output.
const RUN_TIME: u8 = 4;
/// Ctrl-C. Shells report this code for a process that SIGINT ended.
pub const INTERRUPTED: u8 = 130;

/// The exit codes, as `--help` tells them.
pub const HELP: &str = "\
Exit codes:
    0  success
    1  a check failed: a result is wrong
    2  bad usage or bad input
    3  something needed is missing here: a GPU, its driver, compiled kernels
    4  a failure at run time: a timeout, an aborted step, a failed rank, input or output
       (launch: the exit code of the first failed rank, if it runs overlap-gemm)
  130  ended by Ctrl-C";

/// The failure of a subcommand.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// The library refused or failed on GPUs, where `--host` would do without them.
    #[error(transparent)]
    OnGpus(Error),
    /// The arguments are refused.
    #[error("{0}")]
    Usage(String),
    /// A check found something wrong.
    #[error("{0}")]
    CheckFailed(String),
    /// Something needed is missing.
    #[error("{0}")]
    Missing(String),
    /// A rank that was launched failed.
    #[error("{what}")]
    Rank {
        /// The rank and its end.
        what: String,
        /// Its exit code, if it has the same meaning here.
        code: Option<u8>,
    },
    /// A file cannot be read.
    #[error("cannot read {target}")]
    Read {
        /// The file.
        target: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file or a stream cannot be written.
    #[error("cannot write {target}")]
    Write {
        /// The file or stream.
        target: String,
        /// The system's error.
        source: io::Error,
    },
    /// The handler for Ctrl-C cannot be installed.
    #[error("cannot handle Ctrl-C")]
    Handler(#[from] ctrlc::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// A command that needs GPUs, in a binary without the feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    pub fn without_cuda() -> Failure {
        let reason = "it was built without the feature `cuda`: build with --features cuda";
        Error::KernelsNotBuilt { reason: reason.into() }.into()
    }

    /// The same, with a hint at `--host` if a GPU, kernels or a group are missing.
    pub fn or_host(self) -> Failure {
        match self {
            Failure::Library(
                error @ (Error::NoDevice { .. }
                | Error::KernelsNotBuilt { .. }
                | Error::NoGroup { .. }),
            ) => Failure::OnGpus(error),
            other => other,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Failure::CheckFailed(_) => CHECK_FAILED,
            Failure::Usage(_) => USAGE,
            Failure::Missing(_) => MISSING,
            Failure::Rank { code, .. } => code.unwrap_or(RUN_TIME),
            Failure::Read { .. } | Failure::Write { .. } | Failure::Handler(_) => RUN_TIME,
            Failure::Interrupted => INTERRUPTED,
            Failure::Library(error) | Failure::OnGpus(error) => match error {
                Error::NoGroup { .. }
                | Error::OutOfRange { .. }
                | Error::Mismatch { .. }
                | Error::Misaligned { .. }
                | Error::Unsupported { .. }
                | Error::NotFinite { .. }
                | Error::Tuning { .. } => USAGE,
                Error::KernelsNotBuilt { .. } | Error::NoDevice { .. } => MISSING,
                // Timeouts, lost peers, aborts, CUDA, and what later versions may add.
                _ => RUN_TIME,
            },
        }
    }

    /// Prints the failure and returns the code. A stderr that cannot be written is no further error.
    pub fn report(&self) -> ExitCode {
        let mut stderr = anstream::stderr().lock();
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let _ = writeln!(stderr, "{red}error:{red:#} {self}");
        if let Failure::Library(Error::NoDevice { .. } | Error::KernelsNotBuilt { .. })
        | Failure::OnGpus(Error::NoDevice { .. } | Error::KernelsNotBuilt { .. }) = self
        {
            let _ = writeln!(stderr, "  'overlap-gemm doctor' lists what is missing");
        }
        if let Failure::OnGpus(_) = self {
            let _ = writeln!(
                stderr,
                "  --host does the same on threads of this machine, without a GPU"
            );
        }
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let _ = writeln!(stderr, "  because: {error}");
            cause = error.source();
        }
        ExitCode::from(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_code() {
        for code in [SUCCESS, CHECK_FAILED, USAGE, MISSING, RUN_TIME, INTERRUPTED] {
            let documented = |line: &str| line.trim().starts_with(&format!("{code}  "));
            assert!(HELP.lines().any(documented), "{code}");
        }
    }

    #[test]
    fn library_errors_have_the_code_of_their_kind() {
        let missing = Error::NoDevice { reason: "none".into() };
        assert_eq!(Failure::from(missing.clone()).code(), MISSING);
        assert!(matches!(Failure::from(missing.clone()).or_host(), Failure::OnGpus(_)));
        assert_eq!(Failure::from(missing).or_host().code(), MISSING);
        let aborted = Error::Aborted { rank: 0, reason: "asked to".into() };
        assert_eq!(Failure::from(aborted).code(), RUN_TIME);
    }
}
