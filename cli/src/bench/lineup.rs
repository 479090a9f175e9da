//! Who takes part in a case, and who only has the times of another.
//!
//! Invariant: nothing is timed twice that is carried out in the same way, for what two of the same differ by says nothing
//! of either; rows stand in the order in which contenders were named.

use super::report::Row;

/// Those who run, and those who would run just as one of them does.
pub struct Lineup<E> {
    /// Who runs.
    pub entrants: Vec<E>,
    twins: Vec<Twin>,
}

/// One that has the times of another.
struct Twin {
    name: String,
    what: String,
    /// Whose, counted among those that run.
    of: usize,
    /// Its place among all.
    place: usize,
}

impl<E> Lineup<E> {
    /// Nobody yet.
    pub fn new() -> Lineup<E> {
        Lineup { entrants: Vec::new(), twins: Vec::new() }
    }

    /// Takes a contender as the twin of the first entrant that is the same; `false` if none is, and it has to run.
    pub fn add_twin(&mut self, name: &str, what: &str, is_same: impl Fn(&E) -> bool) -> bool {
        let Some(of) = self.entrants.iter().position(is_same) else { return false };
        let place = self.entrants.len() + self.twins.len();
        self.twins.push(Twin { name: name.into(), what: what.into(), of, place });
        true
    }

    /// Everybody's row.
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
