//! `overlap-gemm doctor`: what this machine has and lacks, with remedies.
//!
//! It changes nothing. What belongs here: the report; [`gpu`] asks the driver and NVML, [`libraries`] looks for what is
//! loaded or run by name. Invariant: an absent thing is an answer, never an error; every missing thing has a remedy; the
//! answer of a library or a file is reported, not trusted to make sense.

mod gpu;
mod libraries;

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde::Serialize;

use crate::exit::Failure;
use crate::on_threads;
use crate::output::OutputArgs;

/// List what this machine has (GPUs, driver, NVLink, NCCL, ...), what is missing, and the remedies
#[derive(clap::Args)]
pub struct Args {
    /// Fail with exit code 3 if this is missing
    #[arg(long, value_name = "WHAT")]
    require: Option<Requirement>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Requirement {
    /// A GPU that this binary can use
    Gpu,
}

/// The state of a thing.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Here and usable.
    Ok,
    /// Not here, or not usable; no GPU can be used before it is repaired (a GPU: this one).
    Missing,
    /// Worth knowing; GPUs can be used all the same.
    Note,
}

/// One thing that was examined.
#[derive(Serialize)]
struct Finding {
    state: State,
    topic: &'static str,
    what: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Finding { state: State::Ok, topic, what: what.into(), remedy: None }
    }

    fn missing(topic: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { state: State::Missing, remedy: Some(remedy.into()), ..Finding::ok(topic, what) }
    }

    fn note(topic: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { state: State::Note, ..Finding::missing(topic, what, remedy) }
    }
}

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    platform: String,
    findings: Vec<Finding>,
    usable_gpus: usize,
}

/// Examines everything and shows the findings.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = args.output.open()?;
    let mut findings = vec![processor(), gpu::driver()];
    findings.extend(gpu::devices());
    findings.push(libraries::kernels());
    findings.extend([libraries::nccl(), libraries::cublaslt(), libraries::toolkit()]);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        usable_gpus: usable(&findings),
        findings,
    };
    output.write(&report, |stdout| report.write_text(stdout))?;
    match args.require {
        Some(Requirement::Gpu) if report.usable_gpus == 0 => {
            let missing = report.findings.iter().filter(|found| found.state == State::Missing);
            let reasons: Vec<&str> = missing.map(|found| found.what.as_str()).collect();
            Err(Failure::Missing(format!("no usable GPU: {}", reasons.join("; "))))
        }
        _ => Ok(()),
    }
}

/// GPUs that the kernels run on, unless something that all of them need is missing.
fn usable(findings: &[Finding]) -> usize {
    let of = |state| findings.iter().filter(move |found| found.state == state);
    match of(State::Missing).all(|found| found.topic == gpu::TOPIC) {
        true => of(State::Ok).filter(|found| found.topic == gpu::TOPIC).count(),
        false => 0,
    }
}

/// The processor, for steps on threads.
fn processor() -> Finding {
    let cores = format!("{} hardware threads to use", on_threads::cores());
    let what: Vec<String> = on_threads::processor().into_iter().chain([cores]).collect();
    let what = what.join(", ");
    #[cfg(target_arch = "x86_64")]
    if !(std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"))
    {
        let slow = "products on threads will be slow without vector units; the results are right";
        return Finding::note("processor", what + ", no AVX2 with FMA", slow);
    }
    Finding::ok("processor", what)
}

impl Report {
    fn write_text(&self, stdout: &mut dyn Write) -> io::Result<()> {
        writeln!(stdout, "overlap-gemm {} on {}\n", self.version, self.platform)?;
        for Finding { state, topic, what, remedy } in &self.findings {
            let (name, colour) = match state {
                State::Ok => ("ok", AnsiColor::Green),
                State::Missing => ("missing", AnsiColor::Red),
                State::Note => ("note", AnsiColor::Yellow),
            };
            let style = Style::new().fg_color(Some(colour.into()));
            writeln!(stdout, "  {style}{name:<7}{style:#}  {topic:<12}  {what}")?;
            for (number, line) in remedy.iter().flat_map(|remedy| remedy.lines().enumerate()) {
                let mark = if number == 0 { "→" } else { " " };
                writeln!(stdout, "{:25}{mark} {line}", "")?;
            }
        }
        let gpus = match self.usable_gpus {
            0 => "no GPU".into(),
            1 => "1 GPU".into(),
            count => format!("{count} GPUs"),
        };
        writeln!(stdout, "\nThis binary can use: CPU threads; {gpus}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_usable_unless_something_that_all_need_is_missing() {
        let and = |other| {
            usable(&[Finding::ok(gpu::TOPIC, ""), Finding::missing(gpu::TOPIC, "", ""), other])
        };
        assert_eq!(and(Finding::note("NCCL", "not found", "")), 1);
        assert_eq!(and(Finding::ok("driver", "")), 1);
        assert_eq!(and(Finding::missing("driver", "", "")), 0);
    }
}
