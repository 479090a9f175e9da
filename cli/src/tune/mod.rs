//! `overlap-gemm tune`: measures plans, and keeps the fastest in the table that `AllGatherGemm` plans by.
//!
//! What belongs here: the arguments. [`report`] shows and merges tables without a GPU. [`search`] lists the candidates, `gpu`
//! measures them, [`ranking`] orders them, [`course`] keeps the first and [`results`] shows all. Every rank is a process with
//! the same arguments, started by a launcher, as in `bench all-gather-gemm`. Invariant: a file that cannot be trusted is
//! never replaced, and each problem is kept as soon as it is measured.

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod course;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod ranking;
mod report;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod results;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod search;

use std::path::PathBuf;

use clap::ValueEnum;
use overlap_gemm::plan::{BLayout, Operation};
use overlap_gemm::tune::{TUNING_VARIABLE, Tuning, default_path};

use crate::bench::cases::{Case, spread};
use crate::bench::sets::HEADLINE;
use crate::bench::shapes::ShapeArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::problem_args;

/// Measure the fastest plans of all-gather + GEMM on these GPUs, and keep them in a table; one process a rank
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm tune. For each problem it plans the promising
/// strategies, engines, numbers of pieces, kernels and sweeps, checks them against an f64 reference and times them
/// interleaved; then it times the best ones again in longer loops. The default is the set headline. Each problem is written into
/// the table as soon as it is measured; problems in the table are not measured again, unless their entry is from another
/// driver. --show and --merge need no GPU and no launcher.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    problems: ShapeArgs,

    /// Layout of B in memory: n rows of k elements, or k rows of n
    #[arg(long, default_value = "nk", value_parser = problem_args::b_layout())]
    b_layout: BLayout,

    /// Launch mode; both: the plan with the smallest worst-case slowdown over the two modes
    #[arg(long, value_enum, default_value_t = Launches::Both)]
    launch: Launches,

    /// The table [default: OVERLAP_GEMM_TUNING, else overlap-gemm/tuning.json in the folder for caches]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also measure problems that are already in the table
    #[arg(long)]
    again: bool,

    /// Time limit: do not start a problem that cannot finish in time
    #[arg(long, value_name = "MINUTES", value_parser = minutes, allow_negative_numbers = true)]
    minutes: Option<f64>,

    /// Print the table entries that plans of these problems use: from --table, else from the tables that plans find
    #[arg(long, conflicts_with_all = ["merge", "output"])]
    show: bool,

    /// The table to show
    #[arg(long, value_name = "FILE", requires = "show")]
    table: Option<PathBuf>,

    /// Number of ranks for --show [default: 2]
    #[arg(long, value_name = "N", requires = "show", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Name of the GPU for --show, as the driver reports it
    #[arg(long, value_name = "NAME", requires = "show", default_value = "NVIDIA H200")]
    gpu: String,

    /// Merge these tables into the one of --output; the last entry for a problem counts
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', requires = "output")]
    merge: Vec<PathBuf>,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,

    /// Seed of the random numbers
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
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
pub struct Wanted {
    pub cases: Vec<Case>,
    pub launch: Launches,
    pub file: PathBuf,
    pub again: bool,
    pub minutes: Option<f64>,
    pub seed: u64,
}

/// An error unless that is a GPU that the kernels run on.
fn check_gpu(name: &str) -> Result<(), Failure> {
    const HOPPER: [&str; 5] = ["H100", "H200", "H800", "H20", "GH200"];
    match HOPPER.iter().any(|known| name.contains(known)) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "--gpu: the kernels run on Hopper GPUs alone, and '{name}' names none: give one of {}, as the driver calls it",
            HOPPER.join(", ")
        ))),
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes.is_finite() && minutes > 0.0 => Ok(minutes),
        _ => Err("give a number above zero".into()),
    }
}

impl Args {
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

    fn wanted(&self, ranks: u32) -> Result<Wanted, Failure> {
        Ok(Wanted {
            cases: self.problems.cases(
                &HEADLINE,
                Operation::AllGatherGemm,
                ranks,
                self.b_layout,
                self.seed,
            )?,
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
    if args.show {
        let ranks = args.ranks.unwrap_or(2);
        check_gpu(&args.gpu)?;
        let named = args.table.as_ref().map(Tuning::from_file).transpose()?;
        let table = named.as_ref().unwrap_or_else(|| Tuning::found());
        let spread = |case: &Case| spread(&case.problem, ranks);
        let cases = args.problems.cases(
            &HEADLINE,
            Operation::AllGatherGemm,
            ranks,
            args.b_layout,
            args.seed,
        )?;
        let problems: Vec<_> = cases.iter().map(spread).collect::<Result<_, _>>()?;
        return report::show(table, &problems, &args.gpu, output);
    }
    if !args.merge.is_empty() {
        // All are read before anything is written.
        let tables: Vec<_> = args.merge.iter().map(Tuning::from_file).collect::<Result<_, _>>()?;
        return report::merge(&args.file()?, tables, output);
    }
    // A wrong problem is reported even without a launcher.
    let launch = overlap_gemm::group::Launch::from_env();
    let wanted = args.wanted(launch.as_ref().map_or(1, |launch| launch.ranks))?;
    // All ranks have the same arguments; one has the table.
    let launch = launch?;
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
    Err(Failure::without_cuda())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed::typed;

    fn names(line: &str, ranks: u32) -> Result<Vec<String>, String> {
        let args = typed::<Args>(line)?;
        let cases = args.problems.cases(
            &HEADLINE,
            Operation::AllGatherGemm,
            ranks,
            args.b_layout,
            args.seed,
        );
        Ok(cases.map_err(|failure| failure.to_string())?.iter().map(Case::to_string).collect())
    }

    #[test]
    fn problems_come_by_shape_or_by_name() {
        let headline = names("", 2).unwrap();
        assert_eq!((headline.len(), names("--set headline", 2).unwrap()), (12, headline.clone()));
        assert_eq!(headline[11], "512×1792×4096 bf16");
        // What is named takes the place of the usual ones.
        assert_eq!(names("--shapes 8x16x24,8x8x8", 2).unwrap(), ["8×16×24 bf16", "8×8×8 bf16"]);
        let llama = names("--set llama3-70b --m 64,2048 --types e4m3 --scaling rows", 4).unwrap();
        assert_eq!((llama.len(), llama[1].as_str()), (4, "2048×2560×8192 e4m3→bf16 rows"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("--set llama3-70b --shapes 8x8x8", "cannot be used with"),
            ("--m 64", "--set"),
            ("--set gpt3", "7 ranks"),
        ] {
            let refused = names(line, 7).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
    }
}
