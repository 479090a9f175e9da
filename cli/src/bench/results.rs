//! What a bench measured, as data: what goes into the JSON file, and what the table is made of.
//!
//! Invariant: a contender has times only if its result was right (or nobody was asked to look), and
//! whoever has none says why. Times are microseconds a product.

use overlap_gemm::plan::Problem;
use serde::Serialize;

use super::bars::Verdict;
use super::cases::Group;
use super::gemm::Who;
use super::machine::Machine;
use super::statistics::{Ratio, Summary};

/// All of one run.
#[derive(Serialize)]
pub struct Results {
    /// What was typed.
    pub command: String,
    /// The crate's version.
    pub version: &'static str,
    pub machine: Machine,
    pub method: Method,
    pub cases: Vec<CaseResult>,
    pub verdicts: Vec<Verdict>,
    /// How long it took.
    pub seconds: f64,
    /// Why it ended before the last case, if it did.
    pub ended_early: Option<String>,
}

/// How it was measured.
#[derive(Serialize)]
pub struct Method {
    pub rounds: usize,
    pub target_ms: f64,
    pub launch: &'static str,
    pub seed: u64,
    pub checked: bool,
    pub fast_accumulation: bool,
    pub sm_limit: Option<u32>,
    pub chunks: u32,
    pub trickle_bytes_per_second: f64,
}

/// One problem.
#[derive(Serialize)]
pub struct CaseResult {
    /// `4096×3584×8192 bf16`.
    pub name: String,
    pub problem: Problem,
    pub group: Group,
    /// Sets of A, B and D that the launches go round, and their bytes in all.
    pub sets: usize,
    pub bytes: u64,
    /// Products in a loop.
    pub launches: usize,
    /// In the order of `Who`; several of `Who::Own` in a sweep, the fastest first.
    pub contenders: Vec<Contender>,
    /// Variants that did not get beyond the first heat, with its times.
    pub dropped: Vec<Dropped>,
    pub trickle: Option<Trickle>,
    /// The GPU right after the rounds, if NVML tells.
    pub afterwards: Option<Condition>,
}

/// One that takes part in one case.
#[derive(Serialize)]
pub struct Contender {
    pub who: Who,
    /// Which kernel, run how.
    pub what: String,
    pub outcome: Outcome,
}

/// How it ended.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Timed, a time a round.
    Timed { rounds: Vec<f64>, summary: Summary, checked: Option<Checked> },
    /// Its result was wrong.
    Failed(String),
    /// It could not take part.
    Absent(String),
}

/// What was looked at before it was timed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Checked {
    /// Results compared with the f64 reference.
    pub compared: u64,
    /// ‖D − reference‖ / ‖reference‖ over them.
    pub relative_error: f64,
    /// The largest error as a fraction of its bound.
    pub worst_fraction: f64,
}

/// A variant that was slower than others.
#[derive(Serialize)]
pub struct Dropped {
    pub what: String,
    /// The first heat's median; `None` if it did not run, and why.
    pub first_heat_us: Option<f64>,
    pub why: Option<String>,
}

/// The product while its chunks arrive. All lists have an entry a round: its steps' median.
#[derive(Serialize)]
pub struct Trickle {
    pub chunks: u32,
    pub bytes_per_chunk: u64,
    /// From the start of a step until the product was done.
    pub total_us: Vec<f64>,
    /// From the start of a step until the last chunk was signalled.
    pub last_arrival_us: Vec<f64>,
    /// The same product in the same steps, all signals set before.
    pub product_us: Vec<f64>,
    /// The part of the tiles that the last chunk gates.
    pub gated_share: f64,
    /// The same, rounded up to whole waves of tiles.
    pub gated_share_in_waves: f64,
    /// Total over max(product, last arrival + gated share of the product), a round.
    pub over_ideal: Vec<f64>,
    /// The same with whole waves.
    pub over_ideal_in_waves: Vec<f64>,
}

/// How the GPU was doing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Condition {
    pub sm_clock_mhz: Option<u32>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<u32>,
}

impl Outcome {
    /// The times of all rounds.
    pub fn rounds(&self) -> Option<&[f64]> {
        match self {
            Outcome::Timed { rounds, .. } => Some(rounds),
            _ => None,
        }
    }

    /// The middle time.
    pub fn median(&self) -> Option<f64> {
        match self {
            Outcome::Timed { summary, .. } => Some(summary.median),
            _ => None,
        }
    }
}

impl CaseResult {
    /// The first, and so the fastest, of a kind.
    pub fn of(&self, who: Who) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.who == who)
    }

    /// How long one contender takes, as a multiple of another.
    pub fn ratio(&self, over: Who, under: Who) -> Option<Ratio> {
        Ratio::paired(self.of(over)?.outcome.rounds()?, self.of(under)?.outcome.rounds()?)
    }

    /// Floating-point operations a second at `microseconds` a product, in units of 10¹².
    pub fn teraflops(&self, microseconds: f64) -> f64 {
        self.problem.flops() as f64 / microseconds * 1e-6
    }

    /// All wrong results, in words.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.contenders.iter().filter_map(|contender| match &contender.outcome {
            Outcome::Failed(why) => {
                let Contender { who, what, .. } = contender;
                Some(format!("{}: {} ({what}): {why}", self.name, who.name()))
            }
            _ => None,
        })
    }
}

/// Made-up results for the tests of whoever reads results.
#[cfg(test)]
pub mod made_up {
    use super::*;

    pub fn timed(who: Who, rounds: &[f64]) -> Contender {
        let summary = Summary::of(rounds).unwrap();
        let outcome = Outcome::Timed { rounds: rounds.to_vec(), summary, checked: None };
        Contender { who, what: format!("{}_kernel", who.name()), outcome }
    }

    pub fn case(group: Group, contenders: Vec<Contender>) -> CaseResult {
        let problem = Problem::builder(1024, 3584, 8192).build().unwrap();
        CaseResult {
            name: "1024×3584×8192 bf16".into(),
            problem,
            group,
            sets: 3,
            bytes: 1 << 28,
            launches: 21,
            contenders,
            dropped: vec![],
            trickle: None,
            afterwards: None,
        }
    }

    pub fn trickle(over_ideal: &[f64]) -> Trickle {
        let each = |value: f64| vec![value; over_ideal.len()];
        Trickle {
            chunks: 8,
            bytes_per_chunk: 1 << 21,
            total_us: over_ideal.iter().map(|over| 100.0 * over).collect(),
            last_arrival_us: each(80.0),
            product_us: each(100.0),
            gated_share: 0.125,
            gated_share_in_waves: 0.5,
            over_ideal: over_ideal.to_vec(),
            over_ideal_in_waves: over_ideal.to_vec(),
        }
    }

    pub fn results(cases: Vec<CaseResult>) -> Results {
        Results {
            command: "overlap-gemm bench gemm".into(),
            version: "0.0.0",
            machine: super::super::machine::made_up(),
            method: Method {
                rounds: 3,
                target_ms: 25.0,
                launch: "graph",
                seed: 1,
                checked: true,
                fast_accumulation: true,
                sm_limit: None,
                chunks: 8,
                trickle_bytes_per_second: 370e9,
            },
            verdicts: crate::bench::bars::judge(&cases),
            cases,
            seconds: 12.0,
            ended_early: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_results_have_no_ratio() {
        let mut case = made_up::case(
            Group::Bf16,
            vec![
                made_up::timed(Who::Own, &[9.0, 9.0]),
                made_up::timed(Who::Cublaslt, &[10.0, 10.0]),
            ],
        );
        assert_eq!(case.ratio(Who::Own, Who::Cublaslt).unwrap().of_rounds, 0.9);
        assert_eq!(case.ratio(Who::OwnSet, Who::Own), None);
        assert_eq!(case.failures().count(), 0);
        case.contenders[0].outcome = Outcome::Failed("D[0, 0] is NaN".into());
        assert_eq!(case.ratio(Who::Own, Who::Cublaslt), None);
        assert!(case.failures().next().unwrap().contains("own (own_kernel): D[0, 0] is NaN"));
    }

    #[test]
    fn results_are_json() {
        let cases = vec![made_up::case(Group::Bf16, vec![made_up::timed(Who::Own, &[9.0])])];
        let json = serde_json::to_value(made_up::results(cases)).unwrap();
        let case = &json["cases"][0];
        assert_eq!(case["group"], "bf16");
        assert_eq!(case["contenders"][0]["who"], "own");
        assert_eq!(case["contenders"][0]["outcome"]["timed"]["rounds"][0], 9.0);
        assert_eq!(json["machine"]["gpu"], "NVIDIA H200");
    }
}
