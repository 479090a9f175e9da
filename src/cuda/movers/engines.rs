//! What moves rows or sums between GPUs, in how many pieces, and in which order they and products go.
//!
//! What belongs here: the choice of what was left open. Pure. Invariant: the answer follows from what all ranks have in
//! common; what was asked for is carried out or refused, never replaced.

use super::options::GatherOptions;
use crate::cuda::sys::ffi::MAX_PUSHED;
use crate::error::{Error, Result};
use crate::plan::{Engine, Operation, Partials, Problem, SMALL_SHARD, Strategy, Way};

/// The way of a gather, and why that strategy. `strategy`: what was asked for. `obstacle`: why ranks have no memory in
/// common.
pub(crate) fn choose(
    options: &GatherOptions,
    problem: &Problem,
    strategy: Option<Strategy>,
    obstacle: Option<&str>,
) -> Result<(Way, &'static str)> {
    let engine = match (options.engine, obstacle) {
        (None, None) => Engine::usual(problem),
        (None, Some(why)) => match strategy {
            Some(Strategy::Fused | Strategy::Pipelined) => {
                return Err(out_of_reach("waiting for rows", why));
            }
            None | Some(Strategy::Sequential) => Engine::Nccl,
        },
        (Some(Engine::Thread), _) => return Err(by_threads()),
        (Some(engine @ (Engine::CopyEngines { .. } | Engine::Kernel { .. })), Some(why)) => {
            return Err(out_of_reach(&engine.to_string(), why));
        }
        (Some(asked), _) => asked,
    };
    let (strategy, why) = match (strategy, engine) {
        (Some(asked), _) => (asked, "asked for"),
        (None, Engine::Nccl) => {
            (Strategy::Sequential, "NCCL signals nothing before all rows have arrived")
        }
        (None, _) => (
            Strategy::Fused,
            "each tile waits only for its own rows; no other strategy was measurably faster",
        ),
    };
    let pieces = options.pieces.unwrap_or_else(|| engine.usual_pieces(problem));
    let way = Way { strategy, engine, pieces };
    way.check()?;
    if matches!(engine, Engine::Kernel { .. }) {
        let remedy = "push as many pieces by copy engines";
        Error::check_range("the number of pieces a shard", pieces, 1..=MAX_PUSHED, remedy)?;
    }
    Ok((way, why))
}

/// What a reduction sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) operation: Operation,
    /// Of all products together.
    pub(crate) columns: u32,
    pub(crate) partials: Partials,
}

impl Sums {
    /// Whether a kernel sends them sooner than copy engines do while the next sums are computed. In an all-reduce that holds
    /// for more of them, as copies then travel behind the last product, too: on two H200 with 8 MiB for the other rank a
    /// kernel took 79 µs, copies 97; with 16 MiB 150 and 148 (benches/results/2026-11-26-h200x2-few-sums.txt, and
    /// benches/results/2026-11-26-h200x2-all-reduce.json).
    fn are_few(self, problem: &Problem) -> bool {
        let rows = self.operation.most_output_rows(problem);
        let bytes =
            u64::from(rows) * u64::from(self.columns) * u64::from(self.partials.element().size());
        bytes <= if self.operation.is_all_reduce() { 12 << 20 } else { SMALL_SHARD }
    }
}

/// The way of a reduction, and why that strategy.
pub(crate) fn choose_for_sums(
    options: &GatherOptions,
    problem: &Problem,
    strategy: Option<Strategy>,
    obstacle: Option<&str>,
    sums: Sums,
) -> Result<(Way, &'static str)> {
    if let Some(why) = obstacle {
        return Err(Error::Unsupported {
            what: "sending sums between GPUs that do not reach each other's memory".into(),
            why: why.to_owned(),
            remedy: "use GPUs that NVLink connects",
        });
    }
    // A piece costs a copy engine some microseconds.
    let pieces = options.pieces.unwrap_or(1);
    // One run and one wait for each chunk at most.
    let runs = problem.ranks().saturating_mul(pieces);
    let are_few = sums.are_few(problem) && runs <= MAX_PUSHED;
    let open = matches!(strategy, None | Some(Strategy::Sequential));
    let engine = match options.engine {
        Some(asked) => asked,
        // It adds up, too: that takes more blocks than filling the link.
        None if are_few && open => Engine::Kernel { blocks: 64 },
        None => Engine::CopyEngines { streams: 1 },
    };
    if engine == Engine::Thread {
        return Err(by_threads());
    }
    if matches!(engine, Engine::Kernel { .. }) {
        let remedy = "send as many pieces by copy engines";
        Error::check_range("ranks × pieces a shard", runs, 1..=MAX_PUSHED, remedy)?;
    }
    let (strategy, why) = match (strategy, engine) {
        (Some(asked), _) => (asked, "asked for"),
        (None, Engine::Kernel { .. }) => {
            (Strategy::Sequential, "a kernel sends few sums sooner than copy engines can begin")
        }
        (None, _) if sums.operation.is_alone() => {
            (Strategy::Sequential, "copy engines take no SM while many sums travel")
        }
        (None, _) => usual_for_sums(problem),
    };
    let way = Way { strategy, engine, pieces };
    way.check().map(|()| (way, why))
}

/// The strategy of a reduction by copy engines where none is asked for, and why.
fn usual_for_sums(problem: &Problem) -> (Strategy, &'static str) {
    /// Each product reads all of B. One of fewer rows takes longer than its share of the whole: with 128 rows a rank, pipelined
    /// took 67 µs, sequential 58; with 256 both took 78 (benches/results/2026-11-25-h100x2-reduce-scatter.json).
    const FEWEST: u32 = 256;
    if problem.shards().most_rows() < FEWEST {
        return (
            Strategy::Sequential,
            "a product for each rank's few rows would read B every time",
        );
    }
    (Strategy::Pipelined, "one rank's sums travel while the next rank's are computed")
}

fn by_threads() -> Error {
    Error::Unsupported {
        what: "moving rows between GPUs by threads".into(),
        why: "threads move rows of the host executor".into(),
        remedy: "ask for copy engines, a kernel or NCCL, or for nothing",
    }
}

fn out_of_reach(what: &str, why: &str) -> Error {
    Error::Unsupported {
        what: format!("{what} between GPUs that do not reach each other's memory"),
        why: why.to_owned(),
        remedy: "use Engine::Nccl with Strategy::Sequential, or GPUs that NVLink connects",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUSED: Option<Strategy> = Some(Strategy::Fused);

    fn chosen(
        options: &GatherOptions,
        m: u64,
        strategy: Option<Strategy>,
        obstacle: Option<&str>,
    ) -> String {
        let problem = Problem::builder(m, 3584, 8192).ranks(4).build().unwrap();
        match choose(options, &problem, strategy, obstacle) {
            Ok((way, _)) => way.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_engine_goes_by_size_and_reach_and_the_strategy_by_the_engine() {
        let open = GatherOptions::default();
        assert_eq!(chosen(&open, 64, None, None), "fused, a kernel of 16 blocks, 1 piece");
        let copies = chosen(&open, 4096, Some(Strategy::Pipelined), None);
        assert_eq!(copies, "pipelined, copy engines on one stream, 1 piece");
        let apart = Some("rank 0 is on a, rank 1 on b");
        assert_eq!(chosen(&open, 64, None, apart), "sequential, NCCL, 1 piece");
        let text = chosen(&open, 64, FUSED, apart);
        assert!(text.contains("rank 0 is on a") && text.contains("Engine::Nccl"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |engine| GatherOptions::default().with_engine(engine);
        let apart = Some("the GPU of rank 1 does not reach that of rank 2");
        for engine in [Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 1 }] {
            let text = chosen(&with(engine), 64, None, apart);
            assert!(text.contains("rank 1 does not reach"), "{text}");
        }
        let text = chosen(&with(Engine::Nccl), 64, FUSED, None);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let text = chosen(&with(Engine::Nccl).with_pieces(2), 64, None, None);
        assert!(text.starts_with("the number of pieces a shard is 2"), "{text}");
        let text = chosen(&with(Engine::Thread), 64, None, None);
        assert!(text.starts_with("moving rows between GPUs by threads"), "{text}");
        let many = with(Engine::Kernel { blocks: 3 }).with_pieces(33);
        assert!(chosen(&many, 4096, None, None).contains("by copy engines"));
    }

    #[test]
    fn few_sums_are_sent_by_a_kernel_and_many_while_others_are_computed() {
        let sums = |operation| Sums { operation, columns: 8192, partials: Partials::Bf16 };
        let chosen = |options: &GatherOptions, m, strategy, operation| {
            let problem = Problem::builder(m, 8192, 3584).ranks(4).build().unwrap();
            match choose_for_sums(options, &problem, strategy, None, sums(operation)) {
                Ok((way, _)) => way.to_string(),
                Err(error) => error.to_string(),
            }
        };
        let (open, scatter) = (GatherOptions::default(), Operation::GemmReduceScatter);
        let by_kernel = "sequential, a kernel of 64 blocks, 1 piece";
        assert_eq!(chosen(&open, 1024, None, scatter), by_kernel);
        let pipelined = "pipelined, copy engines on one stream, 1 piece";
        assert_eq!(chosen(&open, 2048, None, scatter), pipelined);
        // All rows go to every rank.
        assert_eq!(chosen(&open, 768, None, Operation::GemmAllReduce), by_kernel);
        assert_eq!(chosen(&open, 1024, None, Operation::GemmAllReduce), pipelined);
        // Without a product there is nothing to pipeline.
        let sequential = "sequential, copy engines on one stream, 1 piece";
        assert_eq!(chosen(&open, 1024, None, Operation::ReduceScatter), by_kernel);
        assert_eq!(chosen(&open, 1024, None, Operation::AllReduce), sequential);
        let asked = Some(Strategy::Pipelined);
        assert_eq!(chosen(&open, 64, asked, scatter), pipelined);
        let copies = open.clone().with_engine(Engine::CopyEngines { streams: 1 });
        assert_eq!(chosen(&copies, 64, None, scatter), sequential);
        let many = open.clone().with_pieces(9);
        assert!(chosen(&many, 64, None, scatter).contains("copy engines"));
        let text = chosen(&many.with_engine(Engine::PUSHING), 64, None, scatter);
        assert!(text.starts_with("ranks × pieces a shard is 36"), "{text}");
        let text = chosen(&open.with_engine(Engine::Thread), 64, None, scatter);
        assert!(text.starts_with("moving rows between GPUs by threads"), "{text}");
    }

    #[test]
    fn sums_need_memory_that_all_ranks_reach() {
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let (operation, partials) = (Operation::GemmAllReduce, Partials::Bf16);
        let sums = Sums { operation, columns: 64, partials };
        let apart = Some("rank 0 is on a, rank 1 on b");
        let refused = choose_for_sums(&GatherOptions::default(), &problem, None, apart, sums);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("rank 0 is on a") && text.contains("NVLink"), "{text}");
    }
}
