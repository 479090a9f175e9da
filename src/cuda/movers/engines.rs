//! What moves rows or sums between GPUs, in how many pieces, and in which order they and products go.
//!
//! What belongs here: the choice of what was left open. Pure. Invariant: the answer follows from what all ranks have in
//! common; what was asked for is carried out or refused, never replaced.

use super::options::CollectiveOptions;
use crate::error::{Error, Result};
use crate::plan::{Engine, MAX_PUSHED, Operation, Problem, Strategy, Way};
use crate::predict::ways_of_sums;

/// The way of a gather, and why that strategy. `obstacle`: why ranks have no memory in common.
pub(crate) fn choose(
    options: &CollectiveOptions,
    problem: &Problem,
    obstacle: Option<&str>,
) -> Result<(Way, &'static str)> {
    let strategy = options.strategy;
    let asked = asked_or_left(options, obstacle, "waiting for rows")?;
    let engine = asked.unwrap_or_else(|| Engine::usual(problem, strategy.unwrap_or_default()));
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

/// The engine that is asked for, or the only one between GPUs that do not reach each other's memory; `None`: it is open.
/// `with_products`: what fused and pipelined steps do.
fn asked_or_left(
    options: &CollectiveOptions,
    obstacle: Option<&str>,
    with_products: &str,
) -> Result<Option<Engine>> {
    match (options.engine, obstacle) {
        (Some(Engine::Thread), _) => Err(by_threads()),
        (Some(engine @ (Engine::CopyEngines { .. } | Engine::Kernel { .. })), Some(why)) => {
            Err(out_of_reach(&engine.to_string(), why))
        }
        (None, Some(why)) => match options.strategy {
            Some(Strategy::Fused | Strategy::Pipelined) => Err(out_of_reach(with_products, why)),
            None | Some(Strategy::Sequential) => Ok(Some(Engine::Nccl)),
        },
        (asked, _) => Ok(asked),
    }
}

/// These options for an operation without a product, which has one strategy.
pub(crate) fn without_product(options: &CollectiveOptions) -> Result<CollectiveOptions> {
    match options.strategy {
        None | Some(Strategy::Sequential) => {
            Ok(options.clone().with_strategy(Strategy::Sequential))
        }
        Some(other) => Err(Error::Unsupported {
            what: format!("an operation without a product that is {other}"),
            why: "nothing is multiplied".into(),
            remedy: "leave the strategy open",
        }),
    }
}

/// The ways of a reduction that are left open, at least one.
pub(crate) fn ways_for_sums(
    options: &CollectiveOptions,
    problem: &Problem,
    operation: Operation,
    obstacle: Option<&str>,
) -> Result<Vec<Way>> {
    let asked = asked_or_left(options, obstacle, "sending sums beside products")?;
    let pieces = options.pieces.unwrap_or(1);
    if asked == Some(Engine::Nccl) {
        let strategy = options.strategy.unwrap_or(Strategy::Sequential);
        let way = Way { strategy, engine: Engine::Nccl, pieces };
        way.check()?;
        return Ok(vec![way]);
    }
    let is_kernel = |engine| matches!(engine, Engine::Kernel { .. });
    if asked.is_some_and(is_kernel) {
        // One run and one wait for each chunk at most.
        let runs = problem.ranks().saturating_mul(pieces);
        let remedy = "send as many pieces by copy engines";
        Error::check_range("ranks × pieces a shard", runs, 1..=MAX_PUSHED, remedy)?;
    }
    let mut ways = ways_of_sums(problem, operation, options.pieces);
    if let Some(engine) = asked {
        ways.retain(|way| is_kernel(way.engine) == is_kernel(engine));
        ways.iter_mut().for_each(|way| way.engine = engine);
    }
    if let Some(strategy) = options.strategy {
        ways.retain(|way| way.strategy == strategy);
        if ways.is_empty() {
            // Refused by the plan, which says why.
            let engine = asked.unwrap_or(Engine::CopyEngines { streams: 1 });
            ways.push(Way { strategy, engine, pieces });
        }
    }
    ways.iter().try_for_each(|way| way.check())?;
    Ok(ways)
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
        options: &CollectiveOptions,
        m: u64,
        strategy: Option<Strategy>,
        obstacle: Option<&str>,
    ) -> String {
        let options = CollectiveOptions { strategy, ..options.clone() };
        let problem = Problem::builder(m, 3584, 8192).ranks(4).build().unwrap();
        match choose(&options, &problem, obstacle) {
            Ok((way, _)) => way.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_engine_goes_by_size_and_reach_and_the_strategy_by_the_engine() {
        let open = CollectiveOptions::default();
        assert_eq!(chosen(&open, 64, None, None), "fused, a kernel of 8 blocks, 1 piece");
        let copies = chosen(&open, 4096, Some(Strategy::Pipelined), None);
        assert_eq!(copies, "pipelined, copy engines on one stream, 1 piece");
        let apart = Some("rank 0 is on a, rank 1 on b");
        assert_eq!(chosen(&open, 64, None, apart), "sequential, NCCL, 1 piece");
        let text = chosen(&open, 64, FUSED, apart);
        assert!(text.contains("rank 0 is on a") && text.contains("Engine::Nccl"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |engine| CollectiveOptions::default().with_engine(engine);
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
    fn what_was_asked_for_of_a_reduction_is_not_replaced() {
        let open_ways = |options: &CollectiveOptions, strategy| {
            let operation = Operation::GemmAllReduce;
            let problem = Problem::builder(1024, 8192, 3584).ranks(4).build().unwrap();
            let options = CollectiveOptions { strategy, ..options.clone() };
            match ways_for_sums(&options, &problem, operation, None) {
                Ok(ways) => ways.iter().map(Way::to_string).collect::<Vec<_>>().join("; "),
                Err(error) => error.to_string(),
            }
        };
        let pipelined = "pipelined, copy engines on one stream, 1 piece";
        let sequential = "sequential, copy engines on one stream, 1 piece";
        let by_kernel = "sequential, a kernel of 64 blocks, 1 piece";
        let fused = "fused, copy engines on one stream, 1 piece; fused, copy engines on one stream, 2 pieces; \
                     fused, copy engines on one stream, 4 pieces";
        let open = CollectiveOptions::default();
        let all = format!("{pipelined}; {sequential}; {by_kernel}; {fused}");
        assert_eq!(open_ways(&open, None), all);
        assert_eq!(open_ways(&open, Some(Strategy::Pipelined)), pipelined);
        assert_eq!(open_ways(&open, FUSED), fused);
        let two = open.clone().with_engine(Engine::CopyEngines { streams: 2 });
        let of_two =
            format!("{pipelined}; {sequential}; {fused}").replace("one stream", "2 streams");
        assert_eq!(open_ways(&two, None), of_two);
        let few = open.clone().with_engine(Engine::PUSHING);
        assert_eq!(open_ways(&few, None), "sequential, a kernel of 16 blocks, 1 piece");
        let many = open.clone().with_pieces(9);
        assert!(!open_ways(&many, None).contains("kernel"));
        let text = open_ways(&many.with_engine(Engine::PUSHING), None);
        assert!(text.starts_with("ranks × pieces a shard is 36"), "{text}");
        let text = open_ways(&open.with_engine(Engine::Thread), None);
        assert!(text.starts_with("moving rows between GPUs by threads"), "{text}");
    }

    #[test]
    fn without_a_product_there_is_no_strategy_to_ask_for() {
        let open = CollectiveOptions::default();
        let planned = without_product(&open).unwrap();
        assert_eq!(without_product(&planned).unwrap(), planned);
        let text = without_product(&open.with_strategy(Strategy::Fused)).unwrap_err().to_string();
        assert!(text.contains("fused") && text.contains("leave the strategy open"), "{text}");
    }

    #[test]
    fn nccl_adds_up_where_it_is_asked_for_or_nothing_else_can() {
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let apart = Some("rank 0 is on a, rank 1 on b");
        let chosen = |options: &CollectiveOptions, obstacle| {
            let ways = ways_for_sums(options, &problem, Operation::GemmReduceScatter, obstacle);
            ways.map(|ways| ways.iter().map(Way::to_string).collect::<Vec<_>>().join("; "))
                .unwrap_or_else(|error| error.to_string())
        };
        let (open, by_nccl) = (CollectiveOptions::default(), "sequential, NCCL, 1 piece");
        assert_eq!(chosen(&open, apart), by_nccl);
        assert!(!chosen(&open, None).contains("NCCL"));
        let asked = open.clone().with_engine(Engine::Nccl);
        assert_eq!([None, apart].map(|obstacle| chosen(&asked, obstacle)), [by_nccl; 2]);
        let sequential = open.clone().with_strategy(Strategy::Sequential);
        assert_eq!(chosen(&sequential, apart), by_nccl);
        for refused in [
            open.clone().with_strategy(Strategy::Pipelined),
            open.with_engine(Engine::CopyEngines { streams: 1 }),
        ] {
            let text = chosen(&refused, apart);
            assert!(text.contains("rank 0 is on a") && text.contains("Engine::Nccl"), "{text}");
        }
        let text = chosen(&asked.clone().with_strategy(Strategy::Fused), None);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let text = chosen(&asked.with_pieces(2), apart);
        assert!(text.starts_with("the number of pieces a shard is 2"), "{text}");
    }
}
