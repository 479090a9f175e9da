//! Who moves the rows, and in how many pieces.
//!
//! What belongs here: the rules. Pure. Invariant: the answer follows from what all ranks have in common; what
//! was asked for is carried out or refused, never replaced.

use super::options::{Engine, GatherOptions};
use crate::cuda::{MAX_PUSHED, setup};
use crate::error::{Error, Result};
use crate::plan::Problem;
use crate::predict;

/// The engine, never [`Engine::Auto`], and the pieces of a shard. `piecewise`: somebody waits for rows before all
/// are there. `obstacle`: why ranks have no memory in common.
pub(super) fn choose(
    options: &GatherOptions,
    problem: &Problem,
    piecewise: bool,
    obstacle: Option<&str>,
) -> Result<(Engine, u32)> {
    let engine = match (options.engine, obstacle) {
        (Engine::Auto, Some(why)) if piecewise => {
            return Err(out_of_reach("waiting for rows", why));
        }
        (Engine::Auto, Some(_)) => Engine::Nccl,
        (Engine::Auto, None) => match predict::Engine::usual(problem) {
            predict::Engine::CopyEngines { streams } => Engine::CopyEngines { streams },
            predict::Engine::Kernel { blocks } => Engine::Kernel { blocks },
            predict::Engine::Nccl => Engine::Nccl,
        },
        (Engine::Nccl, _) if piecewise => {
            return Err(Error::Unsupported {
                what: "waiting for some of the rows that NCCL gathers".into(),
                why: "it tells nothing before all of them are there".into(),
                remedy: "use Strategy::Sequential, or another engine",
            });
        }
        (Engine::Nccl, _) => Engine::Nccl,
        (Engine::CopyEngines { .. }, Some(why)) => return Err(out_of_reach("copy engines", why)),
        (Engine::Kernel { .. }, Some(why)) => {
            return Err(out_of_reach("a kernel that pushes", why));
        }
        (asked, None) => asked,
    };
    let pieces = options.pieces.unwrap_or_else(|| default_pieces(problem, engine));
    setup::engine(engine, problem).check()?;
    match engine {
        Engine::Auto | Engine::CopyEngines { .. } => {}
        Engine::Kernel { .. } => {
            let remedy = "push so many pieces by copy engines";
            bounded("the number of pieces a shard", pieces, MAX_PUSHED.into(), remedy)?;
        }
        Engine::Nccl => {
            bounded("the number of pieces a shard", pieces, 1, "NCCL gathers all at once")?;
        }
    }
    Ok((engine, pieces))
}

fn default_pieces(problem: &Problem, engine: Engine) -> u32 {
    let engine = match engine {
        Engine::Nccl => predict::Engine::Nccl,
        _ => predict::Engine::usual(problem),
    };
    engine.usual_pieces(problem)
}

fn bounded(what: &str, value: u32, most: u64, remedy: &'static str) -> Result<()> {
    match (1..=most).contains(&value.into()) {
        true => Ok(()),
        false => Err(Error::out_of_range(what, value.into(), 1, most, remedy)),
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

    fn chosen(options: &GatherOptions, m: u64, piecewise: bool, obstacle: Option<&str>) -> String {
        let problem = Problem::builder(m, 3584, 8192).ranks(4).build().unwrap();
        match choose(options, &problem, piecewise, obstacle) {
            Ok((engine, pieces)) => format!("{engine:?}, {pieces}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_engine_goes_by_size_and_reach() {
        let auto = GatherOptions::default();
        assert_eq!(chosen(&auto, 64, true, None), "Kernel { blocks: 16 }, 1");
        assert_eq!(chosen(&auto, 4096, true, None), "CopyEngines { streams: 1 }, 1");
        let apart = Some("rank 0 is on a, rank 1 on b");
        assert_eq!(chosen(&auto, 64, false, apart), "Nccl, 1");
        let text = chosen(&auto, 64, true, apart);
        assert!(text.contains("rank 0 is on a") && text.contains("Engine::Nccl"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |engine| GatherOptions::default().with_engine(engine);
        let apart = Some("the GPU of rank 1 does not reach that of rank 2");
        for engine in [Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 1 }] {
            let text = chosen(&with(engine), 64, false, apart);
            assert!(text.contains("rank 1 does not reach"), "{text}");
        }
        let text = chosen(&with(Engine::Nccl), 64, true, None);
        assert!(text.contains("Strategy::Sequential"), "{text}");
        let text = chosen(&with(Engine::Nccl).with_pieces(2), 64, false, None);
        assert!(text.starts_with("the number of pieces a shard is 2"), "{text}");
        let text = chosen(&with(Engine::CopyEngines { streams: 9 }), 64, false, None);
        assert!(text.starts_with("the number of streams is 9"), "{text}");
        let text = chosen(&with(Engine::Kernel { blocks: 129 }), 64, false, None);
        assert!(text.starts_with("the number of blocks is 129"), "{text}");
        let many = with(Engine::Kernel { blocks: 3 }).with_pieces(33);
        assert!(chosen(&many, 4096, true, None).contains("by copy engines"));
    }
}
