//! `overlap-gemm tune`: measures plans, and keeps the fastest in the table that operations on GPUs plan by.
//!
//! What belongs here: the arguments, and `--show`, which needs no GPU. [`search`] picks the candidates, `gpu` measures
//! them, [`results`] shows them. Every rank is a process with the same arguments, started by a launcher, as in
//! `bench`. Invariant: a file that cannot be trusted is never replaced, and each problem is kept as soon as it
//! is measured.

#[cfg(feature = "cuda")]
mod gpu;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod results;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are measured"))]
mod search;

use std::fmt;
use std::path::PathBuf;

use overlap_gemm::plan::{BLayout, Operation, Partials, Problem, Way};
use overlap_gemm::predict::Machine;
use overlap_gemm::tune::{Anything, Asked, Multiplying, TUNING_VARIABLE, Tuning, default_path};
use serde::Serialize;

use crate::bench::cases::{Case, spread};
use crate::bench::sets::{HEADLINE, turned};
use crate::bench::shapes::ShapeArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::problem_args::{self, What};

/// Measure the fastest plans of an operation on these GPUs, and keep them in a table; one process a rank
///
/// Start it with a launcher: overlap-gemm launch -n 2 -- overlap-gemm tune gemm-reduce-scatter. For each problem it plans the promising
/// strategies, engines, numbers of pieces and kernels, checks them against an f64 reference and times them
/// interleaved; then it times the best ones again in longer loops. The default is the set headline. Each problem is written
/// into the table as soon as it is measured. --show needs no GPU and no launcher.
#[derive(clap::Args)]
pub struct Args {
    /// Operation
    #[arg(default_value = "all-gather-gemm", value_parser = problem_args::with_product())]
    operation: What,

    #[command(flatten)]
    problems: ShapeArgs,

    /// Layout of B in memory: n rows of k elements, or k rows of n
    #[arg(long, default_value = "nk", value_parser = problem_args::b_layout())]
    b_layout: BLayout,

    /// The table [default: OVERLAP_GEMM_TUNING, else overlap-gemm/tuning.json in the folder for caches]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the plans of these problems by the tables that plans find
    #[arg(long, conflicts_with = "output")]
    show: bool,

    /// Number of ranks for --show [default: 2]
    #[arg(long, value_name = "N", requires = "show", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,

    /// Name of the GPU for --show, as the driver reports it
    #[arg(long, value_name = "NAME", requires = "show", default_value = FIGURES)]
    gpu: String,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The GPU that predictions are for.
const FIGURES: &str = "NVIDIA H200";
/// The seed of the random numbers.
const SEED: u64 = 1;

/// Measures, or tells.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = Output::to_stdout(args.json);
    if args.show {
        let show = args.show()?;
        return output.write(&show, |stdout| write!(stdout, "{show}"));
    }
    // A wrong problem is reported even without a launcher.
    let launch = overlap_gemm::group::Launch::from_env();
    let cases = args.cases(launch.as_ref().map_or(1, |launch| launch.ranks))?;
    let file = args.file()?;
    // All ranks have the same arguments; one has the table.
    let launch = launch?;
    if launch.ranks < 2 {
        let why = "one rank has nothing to gather, nor to add up: start as many as there are GPUs (overlap-gemm launch -n N -- …)";
        return Err(Failure::Usage(why.into()));
    }
    let output = (launch.rank == 0).then_some(output);
    measure(args.operation.into(), &cases, &file, output, Interrupt::install()?)
}

#[cfg(feature = "cuda")]
use gpu::run as measure;

#[cfg(not(feature = "cuda"))]
fn measure(
    _: Operation,
    _: &[Case],
    _: &std::path::Path,
    _: Option<Output>,
    _: Interrupt,
) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}

impl Args {
    fn cases(&self, ranks: u32) -> Result<Vec<Case>, Failure> {
        let operation = self.operation.into();
        let usual = turned(operation, &HEADLINE);
        self.problems.cases(&usual, operation, ranks, self.b_layout, SEED)
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

    /// The plans by the tables that plans find.
    fn show(&self) -> Result<Show, Failure> {
        let (ranks, gpu) = (self.ranks.unwrap_or(2), self.gpu.clone());
        let operation = self.operation.into();
        let table = Tuning::found();
        let mut notes = table.notes().to_vec();
        if gpu != FIGURES {
            notes.push(format!("no figures of {gpu} are known: by those of {FIGURES}"));
        }
        let mut problems = Vec::new();
        for case in self.cases(ranks)? {
            problems.push(Shown::of(operation, &spread(&case.problem, ranks)?, &gpu, table));
        }
        Ok(Show { operation, gpu, notes, problems })
    }
}

/// The answers of the tables.
#[derive(Serialize)]
struct Show {
    operation: Operation,
    gpu: String,
    /// Tables that could not be read, and the figures that replaced unknown ones.
    notes: Vec<String>,
    problems: Vec<Shown>,
}

/// The answer for one problem.
#[derive(Serialize)]
struct Shown {
    problem: String,
    /// Where the plan comes from: tuned, nearest or modelled.
    why: String,
    way: Option<Way>,
    multiplying: Option<Multiplying>,
}

impl Shown {
    fn of(operation: Operation, problem: &Problem, gpu: &str, table: &Tuning) -> Shown {
        let (sms, partials) = (Machine::h200().sms, Partials::Bf16);
        let asked = Asked { gpu, sms, operation, problem, partials };
        let (problem, answer) = (problem.to_string(), table.look_up(&asked, &Anything));
        let why = match &answer {
            Some(answer) => answer.to_string(),
            None => "by the rules: no kernel computes it".into(),
        };
        let way = answer.as_ref().map(|answer| answer.way);
        Shown { problem, why, way, multiplying: answer.and_then(|answer| answer.multiplying) }
    }
}

impl fmt::Display for Show {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.operation, self.gpu)?;
        for Shown { problem, why, way, multiplying } in &self.problems {
            writeln!(f, "{problem}\n  {why}")?;
            way.iter().try_for_each(|way| writeln!(f, "  {way}"))?;
            multiplying.iter().try_for_each(|multiplying| writeln!(f, "  {multiplying}"))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed::typed;

    fn names(line: &str, ranks: u32) -> Result<Vec<String>, String> {
        let cases = typed::<Args>(line)?.cases(ranks);
        Ok(cases.map_err(|failure| failure.to_string())?.iter().map(Case::to_string).collect())
    }

    #[test]
    fn problems_come_by_shape_or_by_name() {
        let headline = names("", 2).unwrap();
        assert_eq!((headline.len(), names("--set headline", 2).unwrap()), (12, headline.clone()));
        // What is named takes the place of the usual ones.
        assert_eq!(names("--shapes 8x16x24,8x8x8", 2).unwrap(), ["8×16×24 bf16", "8×8×8 bf16"]);
        let llama = names("--set llama3-70b --m 64,2048 --types e4m3 --scaling rows", 4).unwrap();
        assert_eq!((llama.len(), llama[1].as_str()), (4, "2048×2560×8192 e4m3→bf16 rows"));
        assert!(names("--m 64", 7).unwrap_err().contains("--set"));
    }

    #[test]
    fn reductions_have_shapes_of_their_own() {
        let gathered = names("all-gather-gemm", 2).unwrap();
        assert_eq!(
            (gathered.as_slice(), gathered[0].as_str()),
            (&names("", 2).unwrap()[..], "4096×3584×8192 bf16")
        );
        for operation in ["gemm-reduce-scatter", "gemm-all-reduce"] {
            let reduced = names(operation, 2).unwrap();
            assert_eq!((reduced.len(), reduced[0].as_str()), (12, "4096×8192×3584 bf16"));
            let llama = names(&format!("{operation} --set llama3-70b --m 64"), 4).unwrap();
            assert_eq!(llama, ["64×8192×2048 bf16", "64×8192×7168 bf16"]);
            let why = names(&format!("{operation} --types f16"), 2).unwrap_err();
            assert!(why.contains("sums travel in bf16"), "{why}");
        }
        // Alone, a rule decides.
        assert!(names("all-reduce", 2).unwrap_err().contains("gemm-all-reduce"));
    }
}
