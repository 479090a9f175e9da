//! What a bench is asked for, as values: arguments ([`gemm`](super::gemm), [`gather`](super::gather),
//! [`reduce`](super::reduce)) make them, measuring (`gpu`, [`host`](super::host)) takes them, and reports know contenders by
//! their names.
//!
//! Invariant: nothing here knows how it was typed, or how it is measured.

use std::path::PathBuf;

use clap::ValueEnum;
use overlap_gemm::host::Link;
use overlap_gemm::plan::Operation;

use super::cases::Case;

/// How loops are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// Twenty or so in a CUDA graph
    Graph,
    /// One by one
    Plain,
}

/// How long a contender runs before another has its turn. A GPU's clock follows the power of the last tens of milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Loops {
    /// At least 0.15 s untimed, then 0.3 s timed: each contender at the clock that its own power allows
    #[default]
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

/// A contender of all-gather + GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Gatherer {
    /// cuBLASLt's best plain GEMM, A already gathered
    Cublaslt,
    /// This crate's plain GEMM, A already gathered
    Own,
    /// This crate's plain GEMM while copies of the same size run; the GEMM does not wait for them
    Beside,
    /// NCCL's all-gather, then cuBLASLt's product
    NcclCublaslt,
    /// NCCL's all-gather, then this crate's product
    NcclOwn,
    /// NCCL's all-gather alone
    Nccl,
    /// This crate's all-gather alone
    Gather,
    /// This crate's all-gather, then its product
    Sequential,
    /// A product for each rank's rows
    Pipelined,
    /// One product that waits for its rows
    Fused,
    /// What the library chooses
    Auto,
}

impl Gatherer {
    /// Those on threads.
    pub const ON_THREADS: [Gatherer; 3] = [Gatherer::Own, Gatherer::Sequential, Gatherer::Fused];

    /// All of them, in the order of tables.
    pub const ALL: [Gatherer; 11] = [
        Gatherer::Cublaslt,
        Gatherer::Own,
        Gatherer::Beside,
        Gatherer::NcclCublaslt,
        Gatherer::NcclOwn,
        Gatherer::Nccl,
        Gatherer::Gather,
        Gatherer::Sequential,
        Gatherer::Pipelined,
        Gatherer::Fused,
        Gatherer::Auto,
    ];

    /// As the command line and the results call it.
    pub const fn name(self) -> &'static str {
        match self {
            Gatherer::Cublaslt => "cublaslt",
            Gatherer::Own => "own",
            Gatherer::Beside => "beside",
            Gatherer::NcclCublaslt => "nccl-cublaslt",
            Gatherer::NcclOwn => "nccl-own",
            Gatherer::Nccl => "nccl",
            Gatherer::Gather => "gather",
            Gatherer::Sequential => "sequential",
            Gatherer::Pipelined => "pipelined",
            Gatherer::Fused => "fused",
            Gatherer::Auto => "auto",
        }
    }
}

/// A contender of GEMM + reduce-scatter, or all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reducer {
    /// cuBLASLt's best plain GEMM of the rank's slice of K
    Cublaslt,
    /// This crate's plain GEMM of the rank's slice of K
    Own,
    /// cuBLASLt's product, then NCCL's reduction
    NcclCublaslt,
    /// NCCL's reduction alone, of products that are available
    Nccl,
    /// This crate's product, then its reduction
    Sequential,
    /// A product for each rank's rows, whose sums leave while the next is computed
    Pipelined,
    /// What the library chooses
    Auto,
}

impl Reducer {
    /// All of them, in the order of tables.
    pub const ALL: [Reducer; 7] = [
        Reducer::Cublaslt,
        Reducer::Own,
        Reducer::NcclCublaslt,
        Reducer::Nccl,
        Reducer::Sequential,
        Reducer::Pipelined,
        Reducer::Auto,
    ];

    /// As the command line and the results call it: like the contender of all-gather + GEMM that takes its place.
    pub const fn name(self) -> &'static str {
        match self {
            Reducer::Cublaslt => Gatherer::Cublaslt.name(),
            Reducer::Own => Gatherer::Own.name(),
            Reducer::NcclCublaslt => Gatherer::NcclCublaslt.name(),
            Reducer::Nccl => Gatherer::Nccl.name(),
            Reducer::Sequential => Gatherer::Sequential.name(),
            Reducer::Pipelined => Gatherer::Pipelined.name(),
            Reducer::Auto => Gatherer::Auto.name(),
        }
    }
}

/// A contender between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Gather(Gatherer),
    Reduce(Reducer),
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
impl Contender {
    /// As the command line and the results call it.
    pub const fn name(self) -> &'static str {
        match self {
            Contender::Gather(who) => who.name(),
            Contender::Reduce(who) => who.name(),
        }
    }
}

/// Contenders, each once, in the order in which they were first named.
pub fn each_once<C: Copy + PartialEq>(named: &[C]) -> Vec<C> {
    let mut all: Vec<C> = Vec::new();
    for &who in named {
        if !all.contains(&who) {
            all.push(who);
        }
    }
    all
}

/// A contender of the product on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Multiplier {
    /// The plain GEMM, all of A available
    Own,
    /// The product that waits for signals, all of them set
    OwnSet,
    /// cuBLASLt's best
    Cublaslt,
}

impl Multiplier {
    /// As the command line and the results call it.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
    pub const fn name(self) -> &'static str {
        match self {
            Multiplier::Own => "own",
            Multiplier::OwnSet => "own-set",
            Multiplier::Cublaslt => "cublaslt",
        }
    }
}

/// Which own kernels run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The library chooses.
    Auto,
    /// Every one that fits.
    All,
    /// These.
    Named(Vec<String>),
}

/// Products on one GPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
pub struct Products {
    pub cases: Vec<Case>,
    pub contenders: Vec<Multiplier>,
    pub cublaslt: Option<PathBuf>,
    pub suggestions: u32,
    pub kernels: Kernels,
    pub swizzles: Vec<u32>,
    pub splits: Vec<u32>,
    pub sm_limit: Option<u32>,
    pub fast_accumulation: bool,
    pub keep: usize,
    pub rounds: usize,
    pub loops: LoopTimes,
    pub launch: Launch,
    pub chunks: u32,
    pub check: bool,
    pub device: usize,
    pub seed: u64,
}

/// One operation between GPUs.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
pub struct OnGpus {
    pub operation: Operation,
    pub cases: Vec<Case>,
    /// All of them of this operation.
    pub contenders: Vec<Contender>,
    pub steps: usize,
    pub loops: LoopTimes,
    pub rounds: usize,
    pub launch: Vec<Launch>,
    pub pieces: Option<u32>,
    pub streams: Option<u32>,
    pub blocks: Option<u32>,
    pub kernel: Option<String>,
    pub splits: Option<u32>,
    pub swizzle: Option<u32>,
    pub copied: bool,
    pub cublaslt: Option<PathBuf>,
    pub nccl: Option<PathBuf>,
    pub peer: Option<String>,
    pub timelines: Option<PathBuf>,
    pub seed: u64,
}

/// All-gather + GEMM on threads.
pub struct OnThreads {
    pub cases: Vec<Case>,
    pub ranks: u32,
    pub contenders: Vec<Gatherer>,
    /// Steps in one loop; one more runs before them.
    pub steps: usize,
    pub rounds: usize,
    /// Chunks a shard.
    pub chunks: Option<u32>,
    pub link: Option<Link>,
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        fn typed<C: ValueEnum>(who: C) -> String {
            who.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
        }
        for who in Gatherer::ALL {
            assert_eq!(typed(who), who.name());
        }
        for who in Reducer::ALL {
            assert_eq!(typed(who), Contender::Reduce(who).name());
        }
        assert_eq!(Reducer::value_variants(), Reducer::ALL);
        assert_eq!(Gatherer::value_variants(), Gatherer::ALL);
    }
}
