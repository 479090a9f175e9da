//! In which order gathering and multiplying go, and which order is taken.
//!
//! What belongs here: the strategies and the rules that choose between them. Invariant: the choice follows
//! from what all ranks have in common, so all ranks make the same; what was asked for is never replaced.

use super::gather::{Engine, shard_bytes};
use crate::plan::Problem;

/// In which order gathering and multiplying go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// The one that should be fastest: [`AllGatherGemm::explain`](super::AllGatherGemm::explain) says which, and why.
    #[default]
    Auto,
    /// One product that waits, tile by tile, for the rows that it needs.
    Fused,
    /// A product for each rank's rows, one after the other, each behind its rows: what others ship as
    /// decomposition.
    Pipelined,
    /// All rows first, then one product. With [`Engine::Nccl`]: what everybody starts from.
    Sequential,
}

/// Up to so many bytes a shard, a product that waits for rows that a kernel pushes is quicker than a kernel
/// that waits for them and a product behind it, whatever else there is.
const TINY_SHARD: u64 = 1 << 20;

/// So much of B stays in the L2 cache of an H100 or H200, of 50 MiB. A larger B, of which the first rows of A have
/// read a part when the others come, is read twice.
const CACHED_B: u64 = 32 << 20;

/// What is carried out, and why; measured on two H200 (`benches/results`).
pub(super) fn choose(asked: Strategy, engine: Engine, problem: &Problem) -> (Strategy, String) {
    let (chosen, why) = match (asked, engine) {
        (Strategy::Auto, Engine::Nccl) => {
            (Strategy::Sequential, "NCCL tells nothing before all rows are there")
        }
        (Strategy::Auto, Engine::Kernel { .. })
            if shard_bytes(problem) > TINY_SHARD && b_bytes(problem) > CACHED_B =>
        {
            (
                Strategy::Sequential,
                "the rows are there soon after the product begins, and a B this large is read once if it                  waits for all of them",
            )
        }
        (Strategy::Auto, _) => (
            Strategy::Fused,
            "it waits for no more than the rows of the next tile, and nothing measured so far is quicker",
        ),
        (other, _) => (other, "asked for"),
    };
    (chosen, why.into())
}

fn b_bytes(problem: &Problem) -> u64 {
    u64::from(problem.n()) * u64::from(problem.k()) * u64::from(problem.elements().b.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_goes_by_the_shard_and_who_moves_it() {
        let chosen = |m: u64, engine| {
            let problem = Problem::builder(m, 3584, 8192).ranks(2).build().unwrap();
            choose(Strategy::Auto, engine, &problem).0
        };
        let (kernel, copies) = (Engine::Kernel { blocks: 16 }, Engine::CopyEngines { streams: 1 });
        assert_eq!(chosen(64, kernel), Strategy::Fused);
        assert_eq!(chosen(512, kernel), Strategy::Sequential);
        let small = Problem::builder(512, 1792, 4096).ranks(2).build().unwrap();
        assert_eq!(choose(Strategy::Auto, kernel, &small).0, Strategy::Fused);
        assert_eq!(chosen(512, copies), Strategy::Fused);
        assert_eq!(chosen(8192, copies), Strategy::Fused);
        assert_eq!(chosen(8192, Engine::Nccl), Strategy::Sequential);
        let problem = Problem::builder(512, 8, 8192).ranks(2).build().unwrap();
        assert_eq!(
            choose(Strategy::Fused, kernel, &problem),
            (Strategy::Fused, "asked for".into())
        );
    }
}
