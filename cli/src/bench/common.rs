//! The arguments that all benches have: what is measured, how long, and where the results go.
//!
//! Invariant: what makes no sense is refused before a GPU is looked for, and the output file is open before the first
//! measurement.

use overlap_gemm::plan::{BLayout, Operation};

use super::cases::{Case, Shape};
use super::shapes::ShapeArgs;
use super::wanted::{LoopTimes, Loops};
use crate::exit::Failure;
use crate::output::OutputArgs;

/// What is measured, and how long.
#[derive(clap::Args)]
pub struct Common {
    #[command(flatten)]
    problems: ShapeArgs,

    /// Duration of the loops
    #[arg(long, value_enum, default_value_t = Loops::Sustained)]
    loops: Loops,

    /// Minimum duration of a loop, untimed and timed, instead of that of --loops
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    target_ms: Option<u32>,

    /// Rounds; in each, every contender runs one loop [default: 3, in short loops 9]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,

    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
impl Common {
    /// The problems, as one of `ranks` ranks multiplies them; `usual` where nobody names any.
    pub fn cases(
        &self,
        usual: &[Shape],
        operation: Operation,
        ranks: u32,
        b_layout: BLayout,
    ) -> Result<Vec<Case>, Failure> {
        self.problems.cases(usual, operation, ranks, b_layout, self.seed)
    }

    /// The least durations of a loop.
    pub fn loop_times(&self) -> LoopTimes {
        match self.target_ms.map(f64::from) {
            None => self.loops.times(),
            Some(ms) => LoopTimes { warm_ms: ms, timed_ms: ms },
        }
    }

    /// Rounds that are measured.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(self.loops.rounds()) as usize
    }
}
