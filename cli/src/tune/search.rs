//! The candidates for one problem, and the two heats in which they are tried.
//!
//! The first heat times all of them in short loops; the best few, other sweeps of the best and the plan without a table run
//! again in longer ones. What belongs here: arithmetic over candidates and times; the caller measures. Invariants: all ranks
//! try the same candidates, because all see the same times; what is chosen ran in the last heat, beside the plan without a
//! table, in loops of the same length; a candidate that gets no time in a heat is never chosen.

use std::fmt;

use overlap_gemm::plan::Way;
use overlap_gemm::tune::{Candidate as Predicted, Multiplying};
use serde::Serialize;

/// A plan and a kernel to try.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub way: Way,
    /// `None`: the cost model chooses one for each product.
    pub multiplying: Option<Multiplying>,
    /// This is the plan without a table.
    pub untuned: bool,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.multiplying {
            Some(multiplying) => write!(f, "{}; {multiplying}", self.way),
            None => write!(f, "{}; kernels by the cost model", self.way),
        }
    }
}

/// One candidate and the medians of its times, in microseconds a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// In CUDA graphs.
    pub graph: f64,
    /// Launched one by one.
    pub plain: f64,
}

/// How thoroughly candidates are measured.
#[derive(Clone, Copy)]
pub struct Heat {
    pub rounds: usize,
    /// How long a loop lasts, at least.
    pub loop_ms: f64,
    /// A candidate that takes this many times as long as the fastest in the first loop is dropped.
    pub give_up: f64,
}

/// Three rounds, for the median of two is no more than their mean, and one loop in some dozens is an outlier.
const SHORT: Heat = Heat { rounds: 3, loop_ms: 15.0, give_up: 1.3 };
const FINAL: Heat = Heat { rounds: 7, loop_ms: 40.0, give_up: f64::INFINITY };
/// The best kernels of each way, by prediction.
const KERNELS: usize = 2;
/// The best of the first heat, which run in the last.
const FINALISTS: usize = 5;

/// The plan without a table, and each way with its best kernels.
pub fn candidates(untuned: Candidate, mut predicted: Vec<Predicted>) -> Vec<Candidate> {
    predicted.sort_by(|one, other| one.us.total_cmp(&other.us));
    let mut all = vec![untuned];
    let mut ways: Vec<Way> = Vec::new();
    for Predicted { way, multiplying, .. } in predicted {
        if ways.iter().filter(|other| **other == way).count() < KERNELS {
            ways.push(way);
            add(&mut all, Candidate { way, multiplying, untuned: false });
        }
    }
    all
}

/// All that was tried, the best first: those of the last heat, then the others. `run` times candidates interleaved and
/// leaves out those that are refused or wrong; its `None` ends the search.
pub fn search<E>(
    candidates: Vec<Candidate>,
    mut run: impl FnMut(Vec<Candidate>, Heat) -> Result<Option<Vec<Tried>>, E>,
) -> Result<Option<Vec<Tried>>, E> {
    let Some(mut tried) = run(candidates, SHORT)? else { return Ok(None) };
    rank(&mut tried);
    let untuned = tried.iter().skip(FINALISTS).find(|one| one.candidate.untuned);
    let finalists = tried.iter().take(FINALISTS).chain(untuned);
    let mut finalists: Vec<Candidate> = finalists.map(|one| one.candidate.clone()).collect();
    if let Some(Candidate { way, multiplying: Some(best), .. }) = finalists.first().cloned() {
        for swizzle in [1, 2, 4, 8] {
            let multiplying = Some(Multiplying { swizzle, ..best.clone() });
            add(&mut finalists, Candidate { way, multiplying, untuned: false });
        }
    }
    let Some(mut last) = run(finalists.clone(), FINAL)? else { return Ok(None) };
    rank(&mut last);
    // Where all finalists were wrong, there is no best.
    if !last.is_empty() {
        last.extend(tried.into_iter().filter(|one| !finalists.contains(&one.candidate)));
    }
    Ok(Some(last))
}

/// Adds a candidate, unless one like it is there.
fn add(all: &mut Vec<Candidate>, new: Candidate) {
    if !all.iter().any(|old| (old.way, &old.multiplying) == (new.way, &new.multiplying)) {
        all.push(new);
    }
}

/// The one to take first: a plan does not know how it will be launched, so what counts is the smallest worst-case slowdown
/// over both launch modes.
fn rank(all: &mut [Tried]) {
    let least = |time: fn(&Tried) -> f64| all.iter().map(time).fold(f64::INFINITY, f64::min);
    let (graph, plain) = (least(|one| one.graph), least(|one| one.plain));
    let slowdown = |one: &Tried| (one.graph / graph).max(one.plain / plain);
    // Stable: among equals the order in which they were tried.
    all.sort_by(|one, other| slowdown(one).total_cmp(&slowdown(other)));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use overlap_gemm::plan::{Operation, Partials, Problem};
    use overlap_gemm::tune::{Anything, Asked, candidates as predicted};
    use proptest::prelude::*;

    use super::*;

    fn all(operation: Operation, m: u64, ranks: u64) -> Vec<Candidate> {
        let problem = Problem::builder(m, 3584, 8192).ranks(ranks).build().unwrap();
        let (gpu, sms, partials) = ("NVIDIA H200", 132, Partials::Bf16);
        let asked = Asked { gpu, sms, operation, problem: &problem, partials };
        let predicted = predicted(&asked, &Anything);
        let Predicted { way, multiplying, .. } = predicted.last().unwrap().clone();
        candidates(Candidate { way, multiplying, untuned: true }, predicted)
    }

    #[test]
    fn the_first_is_the_least_behind_in_whichever_way_suits_it_less() {
        let candidate = all(Operation::AllGatherGemm, 4096, 2).remove(0);
        let tried = |graph, plain| Tried { candidate: candidate.clone(), graph, plain };
        let mut all = vec![tried(100.0, 130.0), tried(103.0, 102.0), tried(120.0, 100.0)];
        rank(&mut all);
        assert_eq!(all.iter().map(|one| one.graph).collect::<Vec<_>>(), [103.0, 120.0, 100.0]);
    }

    /// The best candidate has other sweeps in the last heat, unless its kernels are left to the cost model.
    #[test]
    fn a_reduction_s_candidates_may_have_no_kernel() {
        let candidates = all(Operation::GemmAllReduce, 8192, 2);
        let unnamed: Vec<_> = candidates.iter().filter(|one| one.multiplying.is_none()).collect();
        assert!(unnamed.len() > 1 && unnamed.len() < candidates.len(), "{candidates:?}");
        let text = unnamed[0].to_string();
        assert!(
            text.starts_with("fused, ") && text.ends_with("; kernels by the cost model"),
            "{text}"
        );
        for best in [unnamed[0], candidates.iter().find(|one| one.multiplying.is_some()).unwrap()] {
            let mut heats = Vec::new();
            let tried = |candidate: Candidate| {
                let us = if candidate == *best { 1.0 } else { 2.0 };
                Tried { candidate, graph: us, plain: us }
            };
            let found = search(candidates.clone(), |candidates, _| {
                heats.push(candidates.clone());
                Ok::<_, ()>(Some(candidates.into_iter().map(tried).collect()))
            });
            assert_eq!(found.unwrap().unwrap()[0].candidate, *best);
            let more = heats[1].iter().filter(|one| !heats[0].contains(one)).count();
            assert_eq!(more > 0, best.multiplying.is_some(), "{best}");
        }
    }

    #[test]
    fn a_search_stops_when_it_is_told_to() {
        for stop_after in 0..2 {
            let mut heats = 0;
            let found = search(all(Operation::AllGatherGemm, 4096, 2), |candidates, _| {
                heats += 1;
                let tried = |candidate| Tried { candidate, graph: 1.0, plain: 1.0 };
                Ok::<_, ()>(
                    (heats <= stop_after).then(|| candidates.into_iter().map(tried).collect()),
                )
            });
            assert_eq!(found, Ok(None));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn who_is_wrong_is_never_chosen_and_the_best_of_the_last_heat_is(
            seed in any::<u64>(), m in 1u64..40_000, ranks in 2u64..9, wrong in 0u64..10, nth in 0usize..3,
        ) {
            let operations =
                [Operation::AllGatherGemm, Operation::GemmReduceScatter, Operation::GemmAllReduce];
            // Times in tenths of a microsecond; of ten candidates `wrong` are wrong, some in one heat only.
            let hash = |candidate: &Candidate, heat: usize| {
                let mut hasher = DefaultHasher::new();
                (seed, heat, format!("{:?}", (&candidate.way, &candidate.multiplying)))
                    .hash(&mut hasher);
                hasher.finish()
            };
            let time = |candidate: &Candidate| 50.0 + (hash(candidate, 0) % 1000) as f64 / 10.0;
            let mut heats: Vec<Vec<Candidate>> = Vec::new();
            let found = search(all(operations[nth], m, ranks), |mut candidates, _| {
                heats.push(candidates.clone());
                candidates.retain(|one| hash(one, heats.len()) % 10 >= wrong);
                let tried = |candidate: Candidate| {
                    let us = time(&candidate);
                    Tried { candidate, graph: us, plain: us + 1.0 }
                };
                Ok::<_, ()>(Some(candidates.into_iter().map(tried).collect()))
            });
            let found = found.unwrap().unwrap();
            let [first, last] = &heats[..] else { panic!("{} heats", heats.len()) };
            for heat in [first, last] {
                let different: HashSet<_> =
                    heat.iter().map(|one| format!("{:?}", (&one.way, &one.multiplying))).collect();
                prop_assert_eq!(different.len(), heat.len(), "nobody runs twice");
            }
            let right = |one: &&Candidate, heat| hash(one, heat) % 10 >= wrong;
            let best = last.iter().filter(|one| right(one, 2)).map(time).fold(f64::MAX, f64::min);
            match found.first() {
                Some(found) => prop_assert_eq!(found.graph, best),
                None => prop_assert!(!last.iter().any(|one| right(&one, 2))),
            }
            let is_beside = last.iter().any(|one| one.untuned);
            prop_assert_eq!(is_beside, first.iter().any(|one| one.untuned && right(&one, 1)));
        }
    }
}
