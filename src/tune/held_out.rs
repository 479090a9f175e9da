//! How good answers for problems would be that were not measured: each entry in turn is held out, and asked for.
//!
//! Invariant: nothing of an entry takes part in answering for it; what an answer costs was measured, or is said to
//! be unknown.

use super::entry::{Entry, Shape};
use super::lookup::{Answer, Anything, Asked};
use super::table::Tuning;

/// One entry, and what the rest of the table says of its problem.
#[derive(Clone, Debug)]
pub struct HeldOut<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// What the others say; `None`: nothing, so what is chosen without a table is taken.
    pub answer: Option<Answer>,
    /// How long that takes as a multiple of the fastest that was measured; `None`: it was not measured.
    pub ratio: Option<f64>,
}

/// Holds out every entry of a table.
pub fn hold_out(table: &Tuning) -> Vec<HeldOut<'_>> {
    table.entries().iter().map(|entry| held_out(table, entry)).collect()
}

fn held_out<'a>(table: &Tuning, entry: &'a Entry) -> HeldOut<'a> {
    let Entry { family, shape, .. } = entry;
    let most_rows = shape.m.div_ceil(family.ranks.max(1));
    let asked = Asked { family: family.clone(), shape: *shape, most_rows };
    let others: Vec<Entry> =
        table.entries().iter().filter(|other| *other != entry).cloned().collect();
    let answer = super::lookup::look_up(&others, &asked, &Anything);
    let chosen = match &answer {
        None => entry.untuned(),
        Some(Answer { gathering, multiplying, .. }) => entry.measured.iter().find(|one| {
            one.gathering == *gathering
                && match multiplying {
                    Some(multiplying) => one.multiplying == *multiplying,
                    None => one.by_model,
                }
        }),
    };
    HeldOut { entry, ratio: chosen.map(|one| entry.ratio(one)), answer }
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
        let table = Tuning::of_entries(vec![
            entry(4096, 3584, 8192, vec![measured("a", 1, 100.0), measured("a", 2, 110.0)]),
            entry(4000, 3584, 8192, vec![measured("a", 2, 100.0), measured("b", 1, 105.0)]),
            entry(64, 3584, 8192, vec![measured("a", 1, 10.0)]),
        ]);
        let held = hold_out(&table);
        let ratio = |m| held.iter().find(|held| held.shape().m == m).unwrap().ratio;
        assert_eq!(ratio(4096), Some(1.1), "two pieces, as next door, with the same kernel");
        assert_eq!(ratio(4000), None, "one piece with kernel a was not tried there");
        assert_eq!(ratio(64), None, "nothing is near, and what an untuned plan takes is not there");
    }

    #[test]
    fn problems_between_measured_ones_are_answered_well() {
        let mut shapes = Vec::new();
        for m in [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384] {
            for (n, k) in [(3584, 8192), (1792, 4096), (6656, 16384), (5120, 5120)] {
                shapes.push(Shape { m, n, k });
            }
        }
        let table = Tuning::of_entries(shapes.into_iter().map(synthetic).collect());
        let held = hold_out(&table);
        assert!(held.iter().all(|held| held.answer.is_some()), "all have neighbours");
        let mut ratios: Vec<_> = held.iter().map(|held| held.ratio.unwrap()).collect();
        ratios.sort_by(f64::total_cmp);
        let (median, worst) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
        let good = ratios.iter().filter(|ratio| **ratio <= 1.03).count();
        // The worst lies at the edge of the table, where there are neighbours on one side only.
        assert!(median < 1.01 && worst < 1.2, "{median} {worst} {ratios:?}");
        assert!(10 * good >= 9 * ratios.len(), "{good} of {}: {ratios:?}", ratios.len());
    }
}
