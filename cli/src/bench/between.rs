//! `overlap-gemm bench gemm-reduce-scatter`, `gemm-all-reduce` and `tensor-parallel-mlp`, and what `all-gather-gemm` has in common
//! with them: the arguments, and the start of one rank.
//!
//! On GPUs every rank is a process with the same arguments, started by a launcher. Invariant: in reductions sums travel in bf16
//! for all contenders alike, and D is bf16 ([`shapes`](super::shapes)), so that all move the same bytes.

use overlap_gemm::ElementType;
use overlap_gemm::plan::{BLayout, Operation};

use super::cases::{Case, Shape};
use super::common::Common;
use super::sets::{MLPS, USUAL, turned};
use super::wanted::{Contender, Launch};
use crate::exit::Failure;
use crate::output::Output;

/// What is measured, how long, and beside what.
#[derive(clap::Args)]
pub struct Between {
    #[command(flatten)]
    pub common: Common,

    /// Contenders [default: all; in a reduction with scales all but fused]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          value_parser = Contender::parser(&Contender::OF_REDUCTIONS))]
    pub contenders: Vec<Contender>,

    /// Launch modes of the loops
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Launch::Graph, Launch::Plain])]
    pub launch: Vec<Launch>,

    /// Chunks of each rank's rows [default: by their size, and N]
    #[arg(long)]
    pub pieces: Option<u32>,

    /// Let copy engines send, on this number of streams [default: by the size of a rank's rows]
    #[arg(long, value_name = "STREAMS")]
    pub streams: Option<u32>,

    /// Let a kernel send, with this number of thread blocks [default: by the size of a rank's rows]
    #[arg(long, conflicts_with = "streams")]
    pub blocks: Option<u32>,

    /// Command of another program to measure, interleaved with all contenders: python3 benches/peers/torch_peer.py
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
}

/// One operation between GPUs, as its ranks measure it.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
pub struct OnGpus<'a> {
    pub args: &'a Between,
    pub operation: Operation,
    /// Whether an all-gather + GEMM comes before: [`gate_and_up`](super::cases::gate_and_up).
    pub is_mlp: bool,
    pub cases: Vec<Case>,
    pub contenders: &'a [Contender],
}

impl Between {
    /// Runs the bench of an operation as one rank, and shows it on rank 0.
    pub fn run(&self, operation: Operation) -> Result<(), Failure> {
        let all = match operation {
            Operation::AllGatherGemm => &Contender::OF_GATHERS[..],
            _ => &Contender::OF_REDUCTIONS,
        };
        self.run_of(operation, false, all, &turned(operation, &USUAL))
    }

    /// The same of an MLP.
    pub fn run_mlp(&self) -> Result<(), Failure> {
        if self.peer.is_some() {
            let why = "--peer: no other program measures an MLP: leave it out".to_owned();
            return Err(Failure::Usage(why));
        }
        if let Some(who) = self.contenders.iter().find(|who| !Contender::OF_MLPS.contains(who)) {
            let (who, all) = (who.name(), Contender::OF_MLPS.map(Contender::name).join(", "));
            return Err(Failure::Usage(format!(
                "--contenders: '{who}' does not measure an MLP: give some of {all}"
            )));
        }
        self.run_of(Operation::GemmReduceScatter, true, &Contender::OF_MLPS, &MLPS)
    }

    fn run_of(
        &self,
        operation: Operation,
        is_mlp: bool,
        all: &[Contender],
        usual: &[Shape],
    ) -> Result<(), Failure> {
        let launch = overlap_gemm::group::Launch::from_env();
        // A wrong problem is reported even without a launcher.
        let ranks = launch.as_ref().map_or(1, |launch| launch.ranks);
        let mut all = all.to_vec();
        let cases = self.common.cases(usual, operation, ranks, BLayout::Nk)?;
        let fits = |case: &Case| case.problem.check_fused_sums(ElementType::Bf16).is_ok();
        if operation.reduces() && !cases.iter().all(fits) {
            all.retain(|who| *who != Contender::Fused);
        }
        let contenders = if self.contenders.is_empty() { &all } else { &self.contenders };
        // All ranks have the same arguments; one has the results.
        let output = match launch?.rank {
            0 => Some(self.common.output.open()?),
            _ => None,
        };
        measure(&OnGpus { args: self, operation, is_mlp, cases, contenders }, output)
    }
}

#[cfg(feature = "cuda")]
fn measure(wanted: &OnGpus<'_>, output: Option<Output>) -> Result<(), Failure> {
    super::gpu::run_ranks(wanted, output, crate::interrupt::Interrupt::install()?)
}

#[cfg(not(feature = "cuda"))]
fn measure(_: &OnGpus<'_>, _: Option<Output>) -> Result<(), Failure> {
    Err(Failure::without_cuda())
}
