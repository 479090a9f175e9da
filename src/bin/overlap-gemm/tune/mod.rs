//! `overlap-gemm tune`: measures what `AllGatherGemm` plans by, and tells what such a table says.
//!
//! What belongs here: the arguments, and what they ask for. [`report`] works on files alone; with the
//! feature `cuda`, `search` says what is tried, `gpu` measures, and `results` is what came out. Every rank is a process with the same arguments,
//! started by a launcher, as in `bench all-gather-gemm`. Invariant: a file that cannot be trusted is never
//! written over, and each problem is kept as soon as it is measured.

#[cfg(feature = "cuda")]
mod gpu;
mod report;
#[cfg(feature = "cuda")]
mod results;
#[cfg(feature = "cuda")]
mod search;

use std::path::PathBuf;

use clap::ValueEnum;
use overlap_gemm::plan::{BLayout, Scaling};
use overlap_gemm::tune::{TUNING_VARIABLE, Tuning, default_path, record};

use crate::bench::cases::{Case, Shape, Types, spread};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::problem_args;

/// Find the fastest way to carry out all-gather + GEMM here, and keep it for plans; one process a rank
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm tune. For each problem, the promising
/// strategies, engines, numbers of pieces, kernels and sweeps are planned, checked against an f64 reference and
/// timed by turns as in `bench all-gather-gemm`, the good ones again and for longer. Each problem is written into
/// the table as soon as it is done; what is in it already is not measured again. With --check, --show or --merge
/// no GPU is needed, and no launcher.
#[derive(clap::Args)]
pub struct Args {
    /// Problems: M of all ranks together, N of one rank, K
    #[arg(
        long,
        value_name = "MxNxK,...",
        value_delimiter = ',',
        default_values = [
            "4096x3584x8192", "8192x3584x8192", "16384x3584x8192", "8192x6656x16384", "2048x3584x8192",
            "4096x1792x4096", "16384x1792x4096", "64x3584x8192", "256x3584x8192", "512x3584x8192",
            "1024x3584x8192", "512x1792x4096"
        ]
    )]
    shapes: Vec<Shape>,

    /// Types: of A and B, or AxB, or AxB:D; such as bf16,e4m3
    #[arg(long, value_name = "TYPES,...", value_delimiter = ',', default_value = "bf16")]
    types: Vec<Types>,

    /// Scales for fp8 [default: tensor]
    #[arg(long, value_parser = problem_args::scaling())]
    scaling: Option<Scaling>,

    /// How B lies in memory: n rows of k elements, or k rows of n
    #[arg(long, default_value = "nk", value_parser = problem_args::b_layout())]
    b_layout: BLayout,

    /// How steps will be launched; both: what is least behind in either
    #[arg(long, value_enum, default_value_t = Launches::Both)]
    launch: Launches,

    /// The table [default: OVERLAP_GEMM_TUNING, else overlap-gemm/tuning.json in the folder for caches]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Measure what is in the table already, too
    #[arg(long)]
    again: bool,

    /// Begin no problem that would not be done by then
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    minutes: Option<f64>,

    /// Hold out each problem of a table, and tell what the rest of it would have chosen
    #[arg(long, value_name = "FILE", conflicts_with_all = ["show", "merge", "output"])]
    check: Option<PathBuf>,

    /// Tell what a plan of these problems would be made by: the table named by --table, else what plans find
    #[arg(long, requires = "ranks", conflicts_with_all = ["merge", "output"])]
    show: bool,

    /// The table to show
    #[arg(long, value_name = "FILE", requires = "show")]
    table: Option<PathBuf>,

    /// How many ranks, for --show
    #[arg(long, value_name = "N", requires = "show", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// The GPU, for --show, as the driver calls it
    #[arg(long, value_name = "NAME", requires = "show", default_value = "NVIDIA H200")]
    gpu: String,

    /// Add these tables to the one that --output names; of the same problem the last one counts
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', requires = "output")]
    merge: Vec<PathBuf>,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,

    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How steps will be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launches {
    /// In CUDA graphs
    Graph,
    /// One by one
    Plain,
    /// Either
    Both,
}

/// What was asked to be measured.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
pub struct Wanted {
    pub cases: Vec<Case>,
    pub launch: Launches,
    pub file: PathBuf,
    pub again: bool,
    pub minutes: Option<f64>,
    pub seed: u64,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes.is_finite() && minutes > 0.0 => Ok(minutes),
        _ => Err("give a number above zero".into()),
    }
}

impl Args {
    fn cases(&self) -> Result<Vec<Case>, Failure> {
        Ok(Case::of_shapes(&self.shapes, &self.types, self.b_layout, self.scaling)?)
    }

    /// Where the table is that is written.
    fn file(&self) -> Result<PathBuf, Failure> {
        let variable = |name: &str| std::env::var_os(name);
        let named = variable(TUNING_VARIABLE).filter(|name| !name.is_empty());
        if self.output.is_none() && named.as_ref().is_some_and(|name| name == "none") {
            let why = format!("{TUNING_VARIABLE} is 'none': name the table with --output");
            return Err(Failure::Usage(why));
        }
        let file =
            self.output.clone().or(named.map(PathBuf::from)).or_else(|| default_path(variable));
        file.ok_or_else(|| {
            let why = "there is no folder for caches (neither XDG_CACHE_HOME nor HOME): name the table with --output";
            Failure::Usage(why.into())
        })
    }

    fn wanted(&self) -> Result<Wanted, Failure> {
        Ok(Wanted {
            cases: self.cases()?,
            launch: self.launch,
            file: self.file()?,
            again: self.again,
            minutes: self.minutes,
            seed: self.seed,
        })
    }
}

/// Measures, or tells.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = Output::to_stdout(args.json);
    if let Some(file) = &args.check {
        let table = Tuning::from_file(file)?;
        return report::check(&table, output);
    }
    if let Some(ranks) = args.ranks.filter(|_| args.show) {
        let named = args.table.as_ref().map(Tuning::from_file).transpose()?;
        let table = named.as_ref().unwrap_or_else(|| Tuning::found());
        let spread = |case: &Case| spread(&case.problem, ranks);
        let problems: Vec<_> = args.cases()?.iter().map(spread).collect::<Result<_, _>>()?;
        return report::show(table, &problems, &args.gpu, output);
    }
    if !args.merge.is_empty() {
        // All are read before anything is written.
        let tables: Vec<_> = args.merge.iter().map(Tuning::from_file).collect::<Result<_, _>>()?;
        let file = args.file()?;
        for table in &tables {
            record(&file, table.entries())?;
        }
        return report::merged(&file, &tables, output);
    }
    let wanted = args.wanted()?;
    // All ranks have the same arguments; one has the table.
    let launch = overlap_gemm::group::Launch::from_env()?;
    if launch.ranks < 2 {
        let why = "one rank has nothing to gather: start as many as there are GPUs (overlap-gemm launch -n N -- …)";
        return Err(Failure::Usage(why.into()));
    }
    let output = (launch.rank == 0).then_some(output);
    let interrupt = Interrupt::install()?;
    measure(&wanted, output, interrupt)
}

#[cfg(feature = "cuda")]
fn measure(wanted: &Wanted, output: Option<Output>, interrupt: Interrupt) -> Result<(), Failure> {
    gpu::run(wanted, output, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &Wanted, _: Option<Output>, _: Interrupt) -> Result<(), Failure> {
    let reason = "it was built without the feature `cuda`: build with --features cuda";
    Err(overlap_gemm::Error::KernelsNotBuilt { reason: reason.into() }.into())
}
