//! The contenders of a case: those that run, and those with the plan of another.
//!
//! Invariant: equal plans are timed once, because a difference between their times would be noise. Rows stand in the order
//! in which contenders were named.

use super::report::Row;

/// The contenders that run, and those with the plan of one of them.
pub struct Lineup<E> {
    /// The contenders that run.
    pub entrants: Vec<E>,
    twins: Vec<Twin>,
}

/// A contender with the times of another.
struct Twin {
    name: String,
    what: String,
    /// The other, as its place in `entrants`.
    of: usize,
    /// Its place among all.
    place: usize,
}

impl<E> Lineup<E> {
    /// Without contenders.
    pub fn new() -> Lineup<E> {
        Lineup { entrants: Vec::new(), twins: Vec::new() }
    }

    /// Adds a contender as the twin of the first entrant with the same plan; `false` if there is none, and it has to run.
    pub fn add_twin(&mut self, name: &str, what: &str, is_same: impl Fn(&E) -> bool) -> bool {
        let Some(of) = self.entrants.iter().position(is_same) else { return false };
        let place = self.entrants.len() + self.twins.len();
        self.twins.push(Twin { name: name.into(), what: what.into(), of, place });
        true
    }

    /// The rows of all contenders.
    pub fn into_rows(self, row: impl FnMut(E) -> Row) -> Vec<Row> {
        let mut rows: Vec<Row> = self.entrants.into_iter().map(row).collect();
        let row_of = |Twin { name, what, of, place }| {
            let what = format!("{what}; timed as {}", rows[of].who);
            (place, Row { who: name, what, ..rows[of].clone() })
        };
        let twins: Vec<(usize, Row)> = self.twins.into_iter().map(row_of).collect();
        twins.into_iter().for_each(|(place, row)| rows.insert(place, row));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Kind, made_up};
    use super::*;

    #[test]
    fn twins_stand_in_their_places_with_the_times_of_others() {
        let mut lineup = Lineup::new();
        let mut enter = |who: &'static str, as_is: &'static str| {
            if !lineup.add_twin(who, "Fused", |(_, other)| *other == as_is) {
                lineup.entrants.push((who, as_is));
            }
        };
        for (who, as_is) in [("fused", "a"), ("auto", "a"), ("nccl", "b"), ("held out", "a")] {
            enter(who, as_is);
        }
        let row = |(who, _): (&str, _)| made_up::row(who, Kind::AllGatherGemm, &[who.len() as f64]);
        let rows = lineup.into_rows(row);
        let told: Vec<_> =
            rows.iter().map(|row| (&*row.who, row.rounds_us[0], &*row.what)).collect();
        let so = "Fused; timed as fused";
        let expected = [
            ("fused", 5.0, "fused_kernel"),
            ("auto", 5.0, so),
            ("nccl", 4.0, "nccl_kernel"),
            ("held out", 5.0, so),
        ];
        assert_eq!(told, expected);
    }
}
