//! Which of the results are shown.
//!
//! Invariant: what is left is as it was read; nothing else is shown or written. A problem that is asked for and
//! not there is refused, never left out in silence.

use overlap_gemm::plan::Problem;

use super::super::cases::{Shape, Types};
use super::super::wanted::Launch;
use super::{Comparison, Run};
use crate::exit::Failure;

/// What of the results to show.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SelectArgs {
    /// Only these problems, in this order
    #[arg(long, value_name = "MxNxK,...", value_delimiter = ',')]
    shapes: Vec<Shape>,

    /// Only these types, such as bf16,e4m3
    #[arg(long, value_name = "TYPES,...", value_delimiter = ',')]
    types: Vec<Types>,

    /// Only problems with at least this many rows
    #[arg(long, value_name = "ROWS")]
    from_m: Option<u32>,

    /// Only loops that were launched like this
    #[arg(long, value_enum)]
    launch: Option<Launch>,
}

impl SelectArgs {
    /// Takes everything else away.
    pub fn apply(&self, runs: &mut Vec<Run>) -> Result<(), Failure> {
        let problems = |runs: &[Run]| runs.iter().map(|run| run.cases.len()).sum::<usize>();
        let before = problems(runs);
        for run in &mut *runs {
            run.cases.retain(|case| self.has(&case.problem));
            if let Some(launch) = self.launch {
                let rows = run.cases.iter_mut().map(|case| &mut case.rows);
                rows.for_each(|rows| rows.retain(|row| row.graph == (launch == Launch::Graph)));
                run.cases.retain(|case| !case.rows.is_empty());
            }
        }
        let cases = || runs.iter().flat_map(|run| &run.cases);
        if let Some(Shape { m, n, k }) = self
            .shapes
            .iter()
            .find(|shape| !cases().any(|case| Shape::of(&case.problem) == **shape))
        {
            return Err(Failure::Usage(format!(
                "--shapes: these results have no {m}x{n}x{k}, or not as the other options want it"
            )));
        }
        let left = problems(runs);
        if left == 0 && before > 0 {
            let why =
                "none of these results is left: give a smaller --from-m, other --types or --launch";
            return Err(Failure::Usage(why.into()));
        }
        // A run that shows nothing has no number in the table.
        if left < before {
            runs.retain(|run| !run.cases.is_empty());
        }
        Ok(())
    }

    fn has(&self, problem: &Problem) -> bool {
        let types = || self.types.iter().any(|types| types.are_those_of(problem));
        (self.shapes.is_empty() || self.shapes.contains(&Shape::of(problem)))
            && (self.types.is_empty() || types())
            && self.from_m.is_none_or(|rows| problem.m() >= rows)
    }

    /// Puts problems into the order that was asked for.
    pub fn sort(&self, all: &mut Comparison<'_>) {
        let place = |problem| self.shapes.iter().position(|shape| *shape == Shape::of(problem));
        all.cases.sort_by_key(|case| place(case.problem));
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{run, usual_case};
    use super::*;

    fn runs() -> Vec<Run> {
        let mut plain = usual_case(512);
        plain.rows.iter_mut().for_each(|row| row.graph = false);
        vec![run(vec![usual_case(1024), usual_case(64)]), run(vec![plain])]
    }

    fn left(select: &SelectArgs) -> Result<Vec<u32>, String> {
        let mut runs = runs();
        select.apply(&mut runs).map_err(|failure| failure.to_string())?;
        let mut all = Comparison::of(&runs);
        select.sort(&mut all);
        Ok(all.cases.iter().map(|case| case.problem.m()).collect())
    }

    #[test]
    fn only_what_is_asked_for_is_left_and_in_that_order() {
        let shapes = ["512x3584x8192", "1024x3584x8192", "64x3584x8192"];
        let shapes = shapes.map(|shape| shape.parse().unwrap());
        let none = SelectArgs::default();
        assert_eq!(left(&none).unwrap(), [1024, 64, 512]);
        let of = |shapes: &[Shape]| SelectArgs { shapes: shapes.to_vec(), ..none.clone() };
        assert_eq!(left(&of(&shapes)).unwrap(), [512, 1024, 64]);
        assert_eq!(left(&of(&shapes[2..])).unwrap(), [64]);
        let from = |rows| SelectArgs { from_m: Some(rows), ..none.clone() };
        assert_eq!(left(&from(512)).unwrap(), [1024, 512]);
        let launched = |launch| SelectArgs { launch: Some(launch), ..none.clone() };
        assert_eq!(left(&launched(Launch::Graph)).unwrap(), [1024, 64]);
        assert_eq!(left(&launched(Launch::Plain)).unwrap(), [512]);
        let typed =
            |types: &str| SelectArgs { types: vec![types.parse().unwrap()], ..none.clone() };
        assert_eq!(left(&typed("bf16")).unwrap().len(), 3);
        for (select, word) in [
            (typed("e4m3"), "--types"),
            (from(1025), "--from-m"),
            (of(&["65x3584x8192".parse().unwrap()]), "no 65x3584x8192"),
            (SelectArgs { launch: Some(Launch::Plain), ..of(&shapes) }, "no 1024x3584x8192"),
        ] {
            let why = left(&select).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn runs_without_a_problem_that_is_left_are_gone() {
        let mut both = runs();
        SelectArgs { from_m: Some(1024), ..SelectArgs::default() }.apply(&mut both).unwrap();
        assert_eq!(both.len(), 1);
        let mut empty = vec![run(vec![])];
        SelectArgs::default().apply(&mut empty).unwrap();
        assert_eq!(empty.len(), 1, "nothing was taken away");
    }
}
