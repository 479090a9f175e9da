//! How good answers for problems would be that were not measured: each entry in turn is held out, and asked for.
//!
//! Invariant: nothing of an entry takes part in answering for it; what an answer costs was measured, or is said to
//! be unknown.

use super::entry::{Entry, Gathering, Measured, Multiplying, Shape};
use super::lookup::{self, Answer, Anything, Asked};
use super::table::Tuning;
use crate::predict::{Machine, Setup, Strategy};

/// One entry, and what the rest of the table says of its problem.
#[derive(Clone, Debug)]
pub struct HeldOut<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// What the others say; `None`: there is no kernel for it.
    pub answer: Option<Answer>,
    /// How long that takes as a multiple of the fastest that was measured; `None`: it was not measured.
    pub ratio: Option<f64>,
    /// The same beside the best strategy as it is planned without a table, in graphs and launched one by one: what is chosen
    /// then, and other orders with the cost model's kernel.
    pub over_strategies: [Option<f64>; 2],
}

/// Holds out every entry of a table.
pub fn hold_out(table: &Tuning) -> Vec<HeldOut<'_>> {
    table.entries().iter().map(|entry| held_out(table, entry)).collect()
}

fn held_out<'a>(table: &Tuning, entry: &'a Entry) -> HeldOut<'a> {
    let others: Vec<Entry> =
        table.entries().iter().filter(|other| *other != entry).cloned().collect();
    let answer = entry.problem().and_then(|problem| {
        let asked = Asked { gpu: &entry.family.gpu, sms: entry.sms, problem: &problem };
        lookup::look_up(&others, &asked, &Anything)
    });
    let chosen = answer.as_ref().and_then(|Answer { gathering, multiplying, .. }| {
        let is_same = |one: &&Measured| {
            one.gathering == *gathering && Some(&one.multiplying) == multiplying.as_ref()
        };
        entry.measured.iter().find(is_same)
    });
    let ratio = chosen.map(|one| entry.ratio(one));
    let planned = planned(entry);
    let over_strategies = [0, 1].map(|way| {
        let least = planned.iter().filter_map(|one| one.times()[way]).map(|time| time.us);
        Some(chosen?.times()[way]?.us / least.min_by(f64::total_cmp)?)
    });
    HeldOut { entry, answer, ratio, over_strategies }
}

/// What was measured of what somebody gets who asks for a strategy, and knows no table. How rows travel counts for fused
/// products alone, for in other orders few ways are tried.
fn planned(entry: &Entry) -> Vec<&Measured> {
    let Some(problem) = entry.problem() else { return Vec::new() };
    let machine = Machine::h200().with_sms(entry.sms);
    let orders = [Strategy::Fused, Strategy::Pipelined, Strategy::Sequential];
    let usual = orders.map(|order| Setup::usual(&machine, &problem, order).ok());
    let is = |one: &Measured, usual: &Setup| {
        one.gathering.order.strategy() == usual.strategy
            && one.multiplying == Multiplying::of_setup(usual)
            && (usual.strategy != Strategy::Fused
                || Gathering::of_setup(usual) == Some(one.gathering))
    };
    let is_any = |one: &&Measured| usual.iter().flatten().any(|usual| is(one, usual));
    entry.measured.iter().filter(is_any).collect()
}

impl HeldOut<'_> {
    /// Which problem.
    pub fn shape(&self) -> Shape {
        self.entry.shape
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{entry, measured, synthetic};
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_made_up() {
        let kernel = "bf16_bf16_bf16_nk_16x128x128_1x1_cooperative_transposed";
        let table = Tuning::of_entries(vec![
            entry(4096, 3584, 8192, vec![measured(kernel, 1, 100.0)]),
            entry(64, 3584, 8192, vec![measured("unheard of", 1, 10.0)]),
        ]);
        // Nobody would take that kernel for so many rows, and so it was not tried there.
        for held in hold_out(&table) {
            assert!(held.answer.is_some() && held.ratio.is_none(), "{held:?}");
            assert_eq!(held.over_strategies, [None; 2]);
        }
    }

    #[test]
    fn answers_stand_beside_strategies_and_beside_all() {
        let table = Tuning::shipped();
        for held in hold_out(table) {
            let (Some(ratio), [Some(graph), Some(plain)]) = (held.ratio, held.over_strategies)
            else {
                continue;
            };
            // What is best of all is best of the strategies or better, if it was measured as thoroughly.
            let all = &held.entry.measured;
            if planned(held.entry).iter().all(|one| one.is_finalist(all)) {
                assert!(graph <= ratio + 1e-9 && plain <= ratio + 1e-9, "{held:?}");
            }
        }
        // Without anything that is planned, there is nothing to compare with.
        let mut entries = table.entries().to_vec();
        for entry in &mut entries {
            let planned: Vec<Measured> = planned(entry).into_iter().cloned().collect();
            entry.measured.retain(|one| !planned.contains(one));
        }
        let none = hold_out(&Tuning::of_entries(entries.clone()))
            .iter()
            .all(|held| held.over_strategies == [None; 2]);
        assert!(none);
    }

    #[test]
    fn problems_between_measured_ones_are_answered_better_than_by_the_model_alone() {
        let mut entries = Vec::new();
        for m in [512, 1024, 2048, 4096, 8192] {
            for (n, k) in [(3584, 8192), (1792, 4096), (7168, 4096), (5120, 8192)] {
                entries.push(synthetic(Shape { m, n, k }));
            }
        }
        let mean = |ratios: &[f64]| ratios.iter().sum::<f64>() / ratios.len() as f64;
        let ratios = |table: &Tuning| -> Vec<f64> {
            hold_out(table).iter().filter_map(|held| held.ratio).collect()
        };
        let known = ratios(&Tuning::of_entries(entries.clone()));
        assert!(known.len() * 10 >= entries.len() * 8, "{} of {}", known.len(), entries.len());
        let alone = entries.iter().flat_map(|one| ratios(&Tuning::of_entries(vec![one.clone()])));
        let (known, alone) = (mean(&known), mean(&alone.collect::<Vec<_>>()));
        // What is usual keeps its place unless another leads, which costs some per cent here and there.
        assert!(known < 1.02 && alone > 1.04, "{known} {alone}");
    }
}
