//! Which of some candidates is the one to take: who was measured thoroughly, and is least behind.
//!
//! Invariant: one pass over all of them, and a sort; a file may hold more than anybody tries.

use super::entry::Measured;

impl Measured {
    /// Whether it was measured as thoroughly as any of `all`: what was dropped early is no choice, however quick its
    /// few rounds were.
    pub fn is_finalist(&self, all: &[Measured]) -> bool {
        Field::of(all).has_finalist(self)
    }

    /// How long it takes as a multiple of the fastest finalist of `all`, launched in the way that suits it less.
    /// Infinity if it was not launched in every way that others were.
    pub fn ratio(&self, all: &[Measured]) -> f64 {
        Field::of(all).ratio(self)
    }

    /// The one to take first, then the others in order; those that were dropped early come last.
    pub fn in_order(mut all: Vec<Measured>) -> Vec<Measured> {
        let field = Field::of(&all);
        let key = |one: &Measured| (!field.has_finalist(one), field.ratio(one));
        // Stable: among equals the order in which they were tried.
        all.sort_by(|one, other| {
            let ((one_early, one), (other_early, other)) = (key(one), key(other));
            one_early.cmp(&other_early).then(one.total_cmp(&other))
        });
        all
    }
}

/// What each of some candidates is compared with, worked out once for all of them.
struct Field {
    /// The rounds of who was measured most thoroughly.
    rounds: u32,
    /// The least time of those who were measured so, launched each way; infinity if none was.
    least: [f64; 2],
}

impl Field {
    fn of(all: &[Measured]) -> Field {
        let rounds = all.iter().map(Measured::rounds).max().unwrap_or(0);
        let mut field = Field { rounds, least: [f64::INFINITY; 2] };
        for one in all.iter().filter(|one| one.rounds() == rounds) {
            for (least, time) in field.least.iter_mut().zip(one.times()) {
                *least = time.map_or(*least, |time| least.min(time.us));
            }
        }
        field
    }

    fn has_finalist(&self, one: &Measured) -> bool {
        one.rounds() >= self.rounds
    }

    fn ratio(&self, one: &Measured) -> f64 {
        let mut worst = 0.0f64;
        for (time, least) in one.times().into_iter().zip(self.least) {
            match time {
                Some(time) if least.is_finite() => worst = worst.max(time.us / least),
                None if least.is_finite() => return f64::INFINITY,
                _ => {}
            }
        }
        if worst > 0.0 { worst } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entry, Time};
    use super::super::made_up::{entry, measured};
    use super::*;

    #[test]
    fn the_first_is_the_least_behind_in_whichever_way_suits_it_less() {
        let times = |name: &str, graph: f64, plain: f64, rounds| Measured {
            graph: Some(Time::new(graph, 0.01, rounds)),
            plain: Some(Time::new(plain, 0.01, rounds)),
            ..measured(name, 1, graph)
        };
        let all = vec![
            times("good in graphs", 100.0, 130.0, 7),
            times("good everywhere", 103.0, 102.0, 7),
            times("good one by one", 120.0, 100.0, 7),
            times("dropped early", 90.0, 90.0, 2),
        ];
        let entry = Entry { measured: all, ..entry(64, 64, 64, vec![]) }.sorted();
        let names: Vec<_> = entry.measured.iter().map(|one| &*one.multiplying.kernel).collect();
        assert_eq!(
            names,
            ["good everywhere", "good one by one", "good in graphs", "dropped early"]
        );
        assert!((entry.measured[0].ratio(&entry.measured) - 1.03).abs() < 1e-9);
        assert!(
            (entry.measured[3].ratio(&entry.measured) - 0.9).abs() < 1e-9,
            "told, but not taken"
        );
        let one_way = Measured { plain: None, ..entry.measured[0].clone() };
        assert_eq!(one_way.ratio(&entry.measured), f64::INFINITY);
    }

    /// Were each compared with each, this would take hours.
    #[test]
    fn many_are_put_in_order_as_few_are() {
        let all: Vec<Measured> = (0..100_000u32)
            .map(|nth| measured("a", 1 + nth, f64::from(1 + nth * 7919 % 100_000)))
            .collect();
        let order = Measured::in_order(all);
        let us = |one: &Measured| one.graph.unwrap().us;
        assert!(order.windows(2).all(|pair| us(&pair[0]) < us(&pair[1])));
    }
}
