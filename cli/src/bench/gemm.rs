//! `overlap-gemm bench gemm`: this crate's products on one GPU beside cuBLASLt's.
//!
//! What belongs here: the arguments. Invariant: what makes no sense is refused
//! before the GPU is looked for, and the output file is open before the first measurement.

use std::path::PathBuf;

use overlap_gemm::plan::{BLayout, Scaling};

use super::cases::{Case, Set, Shape, Types};
use super::drawn::Drawn;
use super::report::Shown;
use super::wanted::{Kernels, Launch, LoopTimes, Loops, Multiplier, Products};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::output::OutputArgs;
use crate::problem_args;

/// Time this crate's products on one GPU: alone, with signals, and beside cuBLASLt
///
/// All contenders run in one process on random normal data, interleaved, in loops of the same length, and
/// every result is compared with an f64 reference first. docs/measuring.md says how and why.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("given").args(["shapes", "random"])))]
pub struct Args {
    /// Problems by name [default: all]
    #[arg(long, value_enum, conflicts_with = "shapes")]
    set: Option<Set>,

    /// Problems as MxNxK, such as 4096x3584x8192,1x3584x8192
    #[arg(long, value_name = "MxNxK,...", value_delimiter = ',')]
    shapes: Vec<Shape>,

    #[command(flatten)]
    drawn: Drawn,

    /// Types for --shapes and --random: of A and B, or AxB, or AxB:D; such as bf16,e4m3xe5m2,f16:f32
    #[arg(
        long,
        value_name = "TYPES,...",
        value_delimiter = ',',
        default_value = "bf16",
        requires = "given"
    )]
    types: Vec<Types>,

    /// Scales for --shapes and --random in fp8 [default: tensor]
    #[arg(long, value_parser = problem_args::scaling(), requires = "given")]
    scaling: Option<Scaling>,

    /// How B lies in memory, for --shapes and --random: n rows of k elements, or k rows of n
    #[arg(long, value_parser = problem_args::b_layout(), requires = "given")]
    b_layout: Option<BLayout>,

    /// Contenders
    #[arg(
        long,
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_values_t = [Multiplier::Own, Multiplier::OwnSet, Multiplier::Cublaslt]
    )]
    contenders: Vec<Multiplier>,

    /// Leave cuBLASLt out
    #[arg(long)]
    no_cublaslt: bool,

    /// cuBLASLt's library file [default: OVERLAP_GEMM_CUBLASLT, else where the loader and pip have it]
    #[arg(long, value_name = "FILE")]
    cublaslt: Option<PathBuf>,

    /// How many of cuBLASLt's suggestions are tried; the fastest is kept
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    suggestions: u32,

    /// Own kernels: the library's choice (auto), every one that fits (all), or some by name
    #[arg(long, value_name = "auto|all|NAME,...", value_delimiter = ',', default_value = "auto")]
    kernels: Vec<String>,

    /// Swizzles to try [default: the library's choice; 1,2,4,8 with --kernels all]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    swizzles: Vec<u32>,

    /// Slices of K to try [default: the library's choice; 1,2,4,8 as far as they help with --kernels all]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    splits: Vec<u32>,

    /// SMs that own kernels may occupy [default: all]
    #[arg(long, value_name = "SMS")]
    sm_limit: Option<u32>,

    /// Add up fp8 products in f32 outside the tensor cores, in own kernels and cuBLASLt's
    #[arg(long)]
    no_fast_accumulation: bool,

    /// Number of own variants that are kept after the short first heat
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,

    /// Duration of the loops
    #[arg(long, value_enum, default_value_t = Loops::Sustained)]
    loops: Loops,

    /// Rounds; in each, every contender runs one loop [default: 3, with --loops burst 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,

    /// Minimum duration of a loop, untimed and timed, instead of that of --loops
    #[arg(long, value_name = "MS", value_parser = |text: &str| within(text, 1.0, 60_000.0))]
    target_ms: Option<f64>,

    /// Launch mode of the loops
    #[arg(long, value_enum, default_value_t = Launch::Graph)]
    launch: Launch,

    /// Number of chunks of A, for own-set
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    chunks: u32,

    /// Compare no results: for profilers only
    #[arg(long)]
    no_check: bool,

    /// Which GPU
    #[arg(long, value_name = "ORDINAL", default_value_t = 0)]
    device: usize,

    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    fn wanted(&self) -> Result<Products, Failure> {
        let drawn = self.drawn.shapes(self.seed);
        let shapes = drawn.as_deref().unwrap_or(&self.shapes);
        let cases = match self.set {
            None if !shapes.is_empty() => {
                let b_layout = self.b_layout.unwrap_or_default();
                Case::of_shapes(shapes, &self.types, b_layout, self.scaling)?
            }
            set => Case::of_set(set.unwrap_or(Set::All))?,
        };
        let mut contenders = self.contenders.clone();
        if self.no_cublaslt {
            contenders.retain(|who| *who != Multiplier::Cublaslt);
        }
        if contenders.is_empty() {
            return Err(Failure::Usage("no contender is left: see --contenders".into()));
        }
        let kernels = match self.kernels.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["auto"] => Kernels::Auto,
            ["all"] => Kernels::All,
            _ => Kernels::Named(self.kernels.clone()),
        };
        if let Kernels::Named(names) = &kernels
            && let Some(name) =
                names.iter().find(|name| ["", "auto", "all"].contains(&name.as_str()))
        {
            let why = format!("--kernels has '{name}' in a list: give auto, all, or names");
            return Err(Failure::Usage(why));
        }
        if let Some(zero) = self.swizzles.iter().chain(&self.splits).find(|&&number| number == 0) {
            let why = format!("{zero} is no swizzle and no number of slices: give at least 1");
            return Err(Failure::Usage(why));
        }
        let named = std::env::var_os("OVERLAP_GEMM_CUBLASLT").map(PathBuf::from);
        Ok(Products {
            cases,
            contenders,
            cublaslt: self.cublaslt.clone().or(named),
            suggestions: self.suggestions,
            kernels,
            swizzles: self.swizzles.clone(),
            splits: self.splits.clone(),
            sm_limit: self.sm_limit,
            fast_accumulation: !self.no_fast_accumulation,
            keep: self.keep as usize,
            rounds: self.rounds.unwrap_or(self.loops.rounds()) as usize,
            loops: match self.target_ms {
                None => self.loops.times(),
                Some(ms) => LoopTimes { warm_ms: ms, timed_ms: ms },
            },
            launch: self.launch,
            chunks: self.chunks,
            check: !self.no_check,
            device: self.device,
            seed: self.seed,
        })
    }
}

/// Reads a number between two others: outside, a bench would last for ever.
fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("give a number from {least} to {most}")),
    }
}

/// Runs the bench and shows it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let wanted = args.wanted()?;
    let shown = Shown::open(&args.output)?;
    let interrupt = Interrupt::install()?;
    measure(&wanted, shown, interrupt)
}

#[cfg(feature = "cuda")]
fn measure(wanted: &Products, shown: Shown, interrupt: Interrupt) -> Result<(), Failure> {
    super::gpu::run(wanted, shown, interrupt)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &Products, _: Shown, _: Interrupt) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn wanted(line: &str) -> Result<Products, String> {
        let words = ["gemm"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.args.wanted().map_err(|failure| failure.to_string())
    }

    #[test]
    fn by_default_all_sets_are_measured() {
        let wanted = wanted("").unwrap();
        assert_eq!(wanted.cases.len(), 36);
        assert_eq!((wanted.contenders.len(), &wanted.kernels), (3, &Kernels::Auto));
        assert!(wanted.check && wanted.fast_accumulation);
    }

    #[test]
    fn sweeps_are_understood() {
        let line = "--shapes 64x64x64,1x8x8 --types f16:f32 --b-layout kn --kernels a,b \
                    --swizzles 1,4 --splits 2 --no-cublaslt";
        let wanted = wanted(line).unwrap();
        assert_eq!(wanted.cases[1].to_string(), "1×8×8 f16→f32 B k×n");
        assert_eq!(wanted.kernels, Kernels::Named(vec!["a".into(), "b".into()]));
        assert_eq!((&wanted.swizzles[..], &wanted.splits[..]), (&[1, 4][..], &[2][..]));
        assert!(!wanted.contenders.contains(&Multiplier::Cublaslt));
    }

    #[test]
    fn loops_are_long_unless_asked_for_short_ones() {
        let loops = |line| wanted(line).map(|it| (it.rounds, it.loops.warm_ms, it.loops.timed_ms));
        assert_eq!(loops(""), Ok((3, 150.0, 300.0)));
        assert_eq!(loops("--loops burst"), Ok((9, 40.0, 40.0)));
        assert_eq!(loops("--loops burst --rounds 5 --target-ms 4"), Ok((5, 4.0, 4.0)));
    }

    #[test]
    fn problems_are_drawn() {
        let wanted = wanted("--random 5 --random-rows 1-511 --types e4m3 --seed 9").unwrap();
        assert_eq!(wanted.cases.len(), 5);
        assert!(wanted.cases.iter().all(|case| case.problem.m() < 512));
        assert!(wanted.cases.iter().all(|case| case.problem.elements().a.is_fp8()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("--set bf16 --shapes 1x1x1", "cannot be used with"),
            ("--types f16", "--shapes"),
            ("--random 3 --set bf16", "cannot be used with"),
            ("--random 0", "1..=10000"),
            ("--random-step 8", "--random"),
            ("--shapes 0x8x8", "m is 0"),
            ("--shapes 8x8", "4096x3584x8192"),
            ("--shapes 8x8x8 --types f16xbf16", "f16 × bf16"),
            ("--shapes 8x8x8 --scaling rows", "scaling of bf16"),
            ("--kernels all,some", "--kernels has 'all'"),
            ("--kernels=", "--kernels has ''"),
            ("--swizzles 0", "0 is no swizzle"),
            ("--contenders cublaslt --no-cublaslt", "no contender is left"),
            ("--target-ms 0", "from 1 to 60000"),
            ("--rounds 0", "--rounds"),
            ("--set none", "small-m"),
        ] {
            let refused = wanted(line).map(|_| ()).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
    }
}
