//! Inputs of three dimensions, batches × sequence × K, of which each rank gets a part of every sequence.
//!
//! What belongs here: which row of A is which row of D, and which operations have batches. Rows of D lie rank by rank, those of a
//! rank batch by batch: so a rank's rows are one range, and chunks, words and buffers know no batches. Only products, which read A,
//! ask for the mapping. Invariant: each row of A is one row of D.

use std::ops::Range;

use super::problem::Problem;
use super::way::Operation;
use crate::error::{Error, Result};

/// The batches, if `m` rows divide into as many.
pub(super) fn check_batches(batches: u64, m: u32) -> Result<u32> {
    let remedy = "give at least 1, and a sequence of at least one row";
    Error::check_range("the number of batches", batches, 1..=m.into(), remedy)?;
    if !u64::from(m).is_multiple_of(batches) {
        let expected = format!("a multiple of {batches}, the number of batches");
        let remedy = "give all batches sequences of the same length: m = batches · sequence";
        return Err(Error::mismatch("m", m, expected, remedy));
    }
    Ok(batches as u32)
}

impl Problem {
    /// The rows of each rank as [`shards`](super::ProblemBuilder::shards) and [`Problem::with_shards`] take them: of one batch.
    pub fn rows_of_ranks(&self) -> Vec<u32> {
        self.shards().to_rows().iter().map(|rows| rows / self.batches()).collect()
    }

    /// These rows of D, in parts that lie side by side in A: each with the row of A where it begins. A part ends with a rank's rows
    /// of a batch. One batch is one part.
    pub(crate) fn rows_in_a(&self, rows: Range<u32>) -> impl Iterator<Item = (Range<u32>, u32)> {
        let (batches, sequence) = (self.batches(), self.m() / self.batches());
        let mut next = rows.start;
        std::iter::from_fn(move || {
            let begin = next;
            if begin >= rows.end {
                return None;
            }
            if batches == 1 {
                next = rows.end;
                return Some((rows.clone(), begin));
            }
            let shard = self.shards().rows(self.shards().rank_of(begin));
            let (length, row) = (shard.len() as u32 / batches, begin - shard.start);
            // Nobody has a row that D does not have.
            let batch = row.checked_div(length)?;
            let within = row % length;
            next = (begin - within + length).min(rows.end);
            Some((begin..next, batch * sequence + shard.start / batches + within))
        })
    }

    /// An error unless `operation` can have this many batches.
    pub(crate) fn check_batches(&self, operation: Operation) -> Result<()> {
        if self.batches() == 1 || operation == Operation::GemmReduceScatter {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{operation} of {} batches", self.batches()),
            why: "only GEMM + reduce-scatter gives each rank a part of every batch".into(),
            remedy: "leave the batches out: all their rows are one matrix",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, PlanOptions, ProblemBuilder};

    /// Two sequences of five rows: rank 0 gets two of each, rank 1 none, rank 2 three.
    fn two_batches() -> ProblemBuilder {
        Problem::builder(10, 4, 8).batches(2).shards(&[2, 0, 3])
    }

    #[test]
    fn every_row_of_d_has_its_row_of_a() {
        let problem = two_batches().build().unwrap();
        assert_eq!([0, 1, 2].map(|rank| problem.shards().rows(rank)), [0..4, 4..4, 4..10]);
        let parts = |rows| problem.rows_in_a(rows).collect::<Vec<_>>();
        assert_eq!(parts(0..10), [(0..2, 0), (2..4, 5), (4..7, 2), (7..10, 7)]);
        assert_eq!(parts(1..9), [(1..2, 1), (2..4, 5), (4..7, 2), (7..9, 7)]);
        assert_eq!(parts(5..6), [(5..6, 3)]);
        assert_eq!((parts(4..4), parts(9..12)), (vec![], vec![(9..10, 9)]));
        let plain = Problem::builder(10, 4, 8).shards(&[4, 0, 6]).build().unwrap();
        assert_eq!(plain.rows_in_a(1..9).collect::<Vec<_>>(), [(1..9, 1)]);
    }

    #[test]
    fn shards_are_given_in_rows_of_one_batch() {
        let problem = two_batches().build().unwrap();
        assert_eq!(problem.rows_of_ranks(), [2, 0, 3]);
        let step = problem.with_shards(&[1, 1, 1]).unwrap();
        assert_eq!((step.m(), step.batches(), step.shards().to_rows()), (6, 2, vec![2; 3]));
        let even = Problem::builder(21, 4, 8).batches(3).ranks(2).build().unwrap();
        assert_eq!(even.shards().to_rows(), [12, 9]);
        // Products are of rows that lie side by side.
        let largest = problem.of_largest_shard().unwrap();
        assert_eq!((largest.m(), largest.batches()), (6, 1));
        let json = serde_json::to_string(&problem).unwrap();
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
    }

    #[test]
    fn what_has_no_batches_is_refused() {
        let refused = |problem: ProblemBuilder| problem.build().unwrap_err().to_string();
        let starts = |text: String, expected| assert!(text.starts_with(expected), "{text}");
        let of = |batches| Problem::builder(10, 4, 8).batches(batches);
        starts(refused(of(0)), "the number of batches is 0, but must be between 1 and 10");
        starts(refused(of(11)), "the number of batches is 11, but must be between 1 and 10");
        starts(refused(of(3)), "m is 10, but must be a multiple of 3");
        let long = two_batches().shards(&[4, 0, 6]);
        starts(refused(long), "the sum of all shards' rows is 10, but must be 5");
        let problem = two_batches().build().unwrap();
        starts(problem.with_shards(&[u32::MAX; 3]).unwrap_err().to_string(), "m, the sum of all");
        for operation in [Operation::AllGatherGemm, Operation::Gemm, Operation::GemmAllReduce] {
            let options = PlanOptions { operation, ..PlanOptions::default() };
            let text = Plan::new(&problem, options).unwrap_err().to_string();
            assert!(text.contains(&format!("{operation} of 2 batches")), "{text}");
        }
    }
}
