//! `overlap-gemm doctor`: what this machine has and lacks, with remedies.
//!
//! It changes nothing. The modules: `host` (processor, memory), `gpu` (driver and devices), `links` (between devices),
//! `libraries` (loaded or run by name). Invariant: an absent thing is an answer, never an error; the answer of a library or a
//! file is reported, not trusted to make sense.

mod finding;
mod gpu;
mod host;
mod libraries;
mod links;

use std::io::{self, Write};

use clap::ValueEnum;
use overlap_gemm::topology::{Link, Topology};
use serde::Serialize;

use crate::exit::Failure;
use crate::output::OutputArgs;
use finding::{Finding, State};
use gpu::Gpu;

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

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    platform: String,
    findings: Vec<Finding>,
    gpus: Vec<Gpu>,
    /// `links[i][j]`: the link between GPU i and GPU j.
    links: Vec<Vec<Link>>,
    /// The links summed up.
    topology: Topology,
    usable_gpus: usize,
}

/// Examines everything and shows the findings.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = args.output.open()?;
    let report = Report::gather();
    output.write(&report, |stdout| report.write_text(stdout))?;
    match args.require {
        Some(Requirement::Gpu) if report.usable_gpus == 0 => {
            let reasons: Vec<&str> = report
                .findings
                .iter()
                .filter(|f| f.keeps_gpus_out)
                .map(|f| f.what.as_str())
                .collect();
            Err(Failure::Missing(format!("no usable GPU: {}", reasons.join("; "))))
        }
        _ => Ok(()),
    }
}

impl Report {
    fn gather() -> Self {
        let kernels = libraries::kernels();
        let seen = gpu::look();
        let mut findings = host::look();
        let usable_gpus = match seen.driver_works && kernels.state == State::Ok {
            true => seen.gpus.iter().filter(|gpu| gpu.suits()).count(),
            false => 0,
        };
        findings.extend(seen.findings);
        findings.push(kernels);
        findings.extend(libraries::look());
        Report {
            version: env!("CARGO_PKG_VERSION"),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            findings,
            gpus: seen.gpus,
            topology: Topology::of(&seen.links),
            links: seen.links,
            usable_gpus,
        }
    }

    fn write_text(&self, stdout: &mut dyn Write) -> io::Result<()> {
        writeln!(stdout, "overlap-gemm {} on {}\n", self.version, self.platform)?;
        let width = self.findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
        for finding in &self.findings {
            finding.write_text(stdout, width)?;
        }
        links::write_matrix(stdout, &self.links)?;
        let gpus = match self.usable_gpus {
            0 => "no GPU that this binary can use".into(),
            1 => "1 GPU".into(),
            count => format!("{count} GPUs"),
        };
        writeln!(stdout, "\nRuns here: host threads, always; {gpus}.")
    }
}
