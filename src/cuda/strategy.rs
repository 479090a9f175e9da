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
/// that waits for them and a product behind it.
const TINY_SHARD: u64 = 1 << 20;

/// What is carried out, and why; measured on two H200 (`benches/results`).
pub(super) fn choose(asked: Strategy, engine: Engine, problem: &Problem) -> (Strategy, String) {
    let (chosen, why) = match (asked, engine) {
        (Strategy::Auto, Engine::Nccl) => {
            (Strategy::Sequential, "NCCL tells nothing before all rows are there")
        }
        (Strategy::Auto, Engine::Kernel { .. }) if shard_bytes(problem) > TINY_SHARD => (
            Strategy::Sequential,
            "the rows are pushed before the product begins, so it may as well wait for all of them",
        ),
        (Strategy::Auto, _) => (
            Strategy::Fused,
            "it waits for no more than the rows of the next tile, and nothing measured so far is quicker",
        ),
        (other, _) => (other, "asked for"),
    };
    (chosen, why.into())
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
