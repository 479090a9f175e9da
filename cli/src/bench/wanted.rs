//! What is measured, and how: contenders, launch modes and loops, as arguments name them, and reports.
//!
//! Invariant: a contender has one name, on the command line, in results and in tables.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// How loops are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// CUDA graphs of about twenty steps
    Graph,
    /// Steps launched one by one
    Plain,
}

/// How long a contender runs before another has its turn. A GPU's clock follows the power of the last tens of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Loops {
    /// At least 0.15 s untimed, then 0.3 s timed: each contender at the clock that its own power allows
    Sustained,
    /// At least 40 ms untimed, then 40 ms timed: all contenders at about the same clock
    Burst,
}

/// The least durations of a loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopTimes {
    /// Before the timed part.
    pub warm_ms: f64,
    pub timed_ms: f64,
}

impl Loops {
    /// The durations.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
    pub const fn times(self) -> LoopTimes {
        match self {
            Loops::Sustained => LoopTimes { warm_ms: 150.0, timed_ms: 300.0 },
            Loops::Burst => LoopTimes { warm_ms: 40.0, timed_ms: 40.0 },
        }
    }

    /// Rounds, if nobody says how many.
    pub const fn rounds(self) -> u32 {
        match self {
            Loops::Sustained => 3,
            Loops::Burst => 9,
        }
    }
}

/// One way to compute a product, or a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Contender {
    /// cuBLASLt's fastest plain GEMM, all of its inputs in memory
    Cublaslt,
    /// This crate's plain GEMM, all of its inputs in memory
    Own,
    /// The same, waiting for signals that are all set: the cost of waiting
    OwnSet,
    /// This crate's plain GEMM while its all-gather moves as many bytes: about as fast as a step can be
    Beside,
    /// NCCL's all-gather, then cuBLASLt's GEMM; or cuBLASLt's GEMM, then NCCL's reduction
    NcclCublaslt,
    /// NCCL's all-gather or reduction alone
    Nccl,
    /// This crate's all-gather alone
    Gather,
    /// This crate's reduction alone
    Reduce,
    /// This crate's all-gather, then its GEMM; or its GEMM, then its reduction
    Sequential,
    /// A GEMM for each rank's rows, while the others' rows or sums travel
    Pipelined,
    /// One GEMM, each tile of which waits for its rows; or a GEMM for each chunk, while the sums of the chunk before travel
    Fused,
    /// The library chooses among these strategies
    Auto,
}

impl Contender {
    /// Those of a product on one GPU.
    pub const OF_ONE_GPU: [Contender; 3] = [Contender::Own, Contender::OwnSet, Contender::Cublaslt];

    /// Those of all-gather + GEMM.
    pub const OF_GATHERS: [Contender; 10] = [
        Contender::Cublaslt,
        Contender::Own,
        Contender::Beside,
        Contender::NcclCublaslt,
        Contender::Nccl,
        Contender::Gather,
        Contender::Sequential,
        Contender::Pipelined,
        Contender::Fused,
        Contender::Auto,
    ];

    /// Those of all-gather + GEMM on threads.
    pub const ON_THREADS: [Contender; 3] =
        [Contender::Own, Contender::Sequential, Contender::Fused];

    /// Those of GEMM + reduce-scatter, or all-reduce.
    pub const OF_REDUCTIONS: [Contender; 9] = [
        Contender::Cublaslt,
        Contender::Own,
        Contender::NcclCublaslt,
        Contender::Nccl,
        Contender::Reduce,
        Contender::Sequential,
        Contender::Pipelined,
        Contender::Fused,
        Contender::Auto,
    ];

    /// Those of an MLP, which name both of its operations.
    pub const OF_MLPS: [Contender; 7] = [
        Contender::Cublaslt,
        Contender::Own,
        Contender::NcclCublaslt,
        Contender::Sequential,
        Contender::Pipelined,
        Contender::Fused,
        Contender::Auto,
    ];

    /// As the command line and the results call it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Reads the name of one of these.
    pub fn parser(of: &'static [Contender]) -> impl TypedValueParser<Value = Contender> {
        let values = of.iter().filter_map(Contender::to_possible_value);
        PossibleValuesParser::new(values).try_map(|name| Contender::from_str(&name, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for who in Contender::value_variants() {
            assert_eq!(Contender::from_str(&who.name(), false), Ok(*who));
        }
    }
}
