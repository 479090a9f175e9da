//! In which order gathering and multiplying go, and which order is taken.
//!
//! What belongs here: the strategies and the rules that choose between them where no table does (`tuned`). Invariant: the choice follows
//! from what all ranks have in common, so all ranks make the same; what was asked for is never replaced.

use super::gather::Engine;

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

/// What is carried out, and why; measured on two H200 (`benches/results`).
pub(super) fn choose(asked: Strategy, engine: Engine) -> (Strategy, &'static str) {
    match (asked, engine) {
        (Strategy::Auto, Engine::Nccl) => {
            (Strategy::Sequential, "NCCL tells nothing before all rows are there")
        }
        (Strategy::Auto, _) => (
            Strategy::Fused,
            "it waits for no more than the rows of the next tile, and nothing measured so far is quicker by more \
             than measurements differ",
        ),
        (other, _) => (other, "asked for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_carried_out_and_else_the_engine_decides() {
        let (kernel, copies) = (Engine::Kernel { blocks: 16 }, Engine::CopyEngines { streams: 1 });
        for engine in [kernel, copies] {
            assert_eq!(choose(Strategy::Auto, engine).0, Strategy::Fused);
            assert_eq!(choose(Strategy::Pipelined, engine), (Strategy::Pipelined, "asked for"));
        }
        assert_eq!(choose(Strategy::Auto, Engine::Nccl).0, Strategy::Sequential);
    }
}
