//! What a reduce-scatter gives each rank where that is not a run of rows of A · B: its rows of every batch, or its columns.
//!
//! What belongs here: which row of A and which columns of B make a row of D, and which operations have that. Rows of D lie rank by
//! rank. Those of a rank are its rows of the first batch, then of the next; or, along columns, all rows of A, of that rank's columns.
//! So a rank's rows are one range, and chunks, words and buffers know neither batches nor columns. Only products, which read A
//! and B, ask for the mapping. Invariant: each element of A · B is one of D.

use std::ops::Range;

use super::operation::Operation;
use super::problem::Problem;
use super::shards::{MAX_DIMENSION, Shards};
use crate::error::{Error, Result};

/// Rows of D that one product can compute: they lie side by side in A, and have the same columns of A · B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) rows: Range<u32>,
    /// The row of A where they begin.
    pub(crate) in_a: u32,
    /// The rank whose columns of A · B they have; 0 where rows have all columns.
    pub(crate) columns_of: u32,
}

impl Part {
    /// The column of A · B where they begin, in the product of `problem`: products of one A differ in their columns.
    pub(crate) fn first_column(&self, problem: &Problem) -> u32 {
        self.columns_of * problem.n()
    }
}

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

/// The columns of each rank, if ranks can share `n` of them equally.
pub(super) fn columns_of_rank(n: u32, ranks: u32) -> Result<u32> {
    if n.is_multiple_of(ranks) {
        return Ok(n / ranks);
    }
    let expected = format!("a multiple of {ranks}, the number of ranks");
    let remedy = "pad B to as many columns for each rank, or scatter rows";
    Err(Error::mismatch("n of a scatter along columns", n, expected, remedy))
}

/// The shards of `m` rows of D that ranks share: those given, of one batch, or as even as can be.
pub(super) fn some_rows(
    given: Option<Vec<u32>>,
    m: u32,
    batches: u32,
    ranks: u32,
) -> Result<Shards> {
    let sequence = m / batches;
    let rows = match given {
        Some(rows) => rows,
        None => Shards::even(sequence, ranks)?.to_rows(),
    };
    let shards = Shards::of_batches(&rows, batches)?;
    if shards.m() == m {
        return Ok(shards);
    }
    let (what, sum) = ("the sum of all shards' rows", shards.m() / batches);
    let remedy = "make the shards' rows sum to m, or of several batches to m / batches";
    Err(Error::mismatch(what, sum, sequence, remedy))
}

/// The shards of ranks that each get columns of all `m` rows of A.
pub(super) fn all_rows(
    given: Option<Vec<u32>>,
    m: u32,
    batches: u32,
    ranks: u32,
) -> Result<Shards> {
    if batches > 1 {
        return Err(Error::Unsupported {
            what: format!("a scatter along columns of {batches} batches"),
            why: "each rank gets columns of all rows, of whichever batch".into(),
            remedy: "leave the batches out: all their rows are one matrix",
        });
    }
    let rows = given.unwrap_or_else(|| vec![m; ranks as usize]);
    if rows[0] != m {
        let remedy = "along columns each rank gets all rows: leave the shards out";
        return Err(Error::mismatch("the rows of rank 0", rows[0], m, remedy));
    }
    equal_shards(&rows)
}

/// The shards of ranks that all get as many rows.
pub(super) fn equal_shards(rows: &[u32]) -> Result<Shards> {
    if let Some(rank) = rows.iter().position(|other| *other != rows[0]) {
        let what = format!("the rows of rank {rank}");
        let remedy = "along columns each rank gets all rows: give all ranks as many";
        return Err(Error::mismatch(what, rows[rank], rows[0], remedy));
    }
    let all: u64 = rows.iter().map(|rows| u64::from(*rows)).sum();
    let remedy = "give at least one row, and scatter more rows in several calls";
    Error::check_range("m times the number of ranks", all, 1..=MAX_DIMENSION.into(), remedy)?;
    Shards::of_rows(rows)
}

impl Problem {
    /// The rows of each rank as [`shards`](super::ProblemBuilder::shards) and [`Problem::with_shards`] take them: of one batch.
    pub fn rows_of_ranks(&self) -> Vec<u32> {
        self.shards().to_rows().iter().map(|rows| rows / self.batches()).collect()
    }

    /// Rows of A: M, unless ranks get columns of all of them.
    pub fn rows_of_a(&self) -> u32 {
        if self.scatters_columns() { self.shards().most_rows() } else { self.m() }
    }

    /// Columns of B: N, unless that is the columns of one rank.
    pub fn columns_of_b(&self) -> u32 {
        if self.scatters_columns() { self.n() * self.ranks() } else { self.n() }
    }

    /// These rows of D, in parts that each are a product. A part ends with a rank's rows of a batch, or with a rank's columns. Else
    /// there is one.
    pub(crate) fn parts(&self, rows: Range<u32>) -> impl Iterator<Item = Part> {
        let (batches, by_columns) = (self.batches(), self.scatters_columns());
        let mut next = rows.start;
        std::iter::from_fn(move || {
            let begin = next;
            if begin >= rows.end {
                return None;
            }
            if batches == 1 && !by_columns {
                next = rows.end;
                return Some(Part { rows: rows.clone(), in_a: begin, columns_of: 0 });
            }
            let owner = self.shards().rank_of(begin);
            let shard = self.shards().rows(owner);
            let (length, row) = (shard.len() as u32 / batches, begin - shard.start);
            // Nobody has a row that D does not have.
            let batch = row.checked_div(length)?;
            let within = row % length;
            next = (begin - within + length).min(rows.end);
            let (in_a, columns_of) = match by_columns {
                true => (within, owner),
                false => (batch * (self.m() / batches) + shard.start / batches + within, 0),
            };
            Some(Part { rows: begin..next, in_a, columns_of })
        })
    }

    /// An error unless `operation` can scatter like this.
    pub(crate) fn check_scatter(&self, operation: Operation) -> Result<()> {
        let (of, why, remedy) = match (self.scatters_columns(), self.batches()) {
            _ if operation == Operation::GemmReduceScatter => return Ok(()),
            (false, 1) => return Ok(()),
            (true, _) => (
                "along columns".into(),
                "only GEMM + reduce-scatter gives each rank columns of D",
                "leave scatter_columns out: each rank gets, or brings, rows",
            ),
            (false, batches) => (
                format!("of {batches} batches"),
                "only GEMM + reduce-scatter gives each rank a part of every batch",
                "leave the batches out: all their rows are one matrix",
            ),
        };
        Err(Error::Unsupported { what: format!("{operation} {of}"), why: why.into(), remedy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType;
    use crate::plan::{BLayout, Plan, PlanOptions, ProblemBuilder};

    /// Two sequences of five rows: rank 0 gets two of each, rank 1 none, rank 2 three.
    fn two_batches() -> ProblemBuilder {
        Problem::builder(10, 4, 8).batches(2).shards(&[2, 0, 3])
    }

    #[test]
    fn every_row_of_d_has_its_row_of_a() {
        let problem = two_batches().build().unwrap();
        assert_eq!([0, 1, 2].map(|rank| problem.shards().rows(rank)), [0..4, 4..4, 4..10]);
        let parts = |rows| {
            let parts = problem.parts(rows).inspect(|part| assert_eq!(part.columns_of, 0));
            parts.map(|part| (part.rows, part.in_a)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0..10), [(0..2, 0), (2..4, 5), (4..7, 2), (7..10, 7)]);
        assert_eq!(parts(1..9), [(1..2, 1), (2..4, 5), (4..7, 2), (7..9, 7)]);
        assert_eq!(parts(5..6), [(5..6, 3)]);
        assert_eq!((parts(4..4), parts(9..12)), (vec![], vec![(9..10, 9)]));
        let plain = Problem::builder(10, 4, 8).shards(&[4, 0, 6]).build().unwrap();
        let whole = Part { rows: 1..9, in_a: 1, columns_of: 0 };
        assert_eq!(plain.parts(1..9).collect::<Vec<_>>(), [whole]);
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
    /// Four rows of A, of three columns for each of three ranks.
    fn along_columns() -> ProblemBuilder {
        Problem::builder(4, 9, 8).ranks(3).scatter_columns(true)
    }

    #[test]
    fn every_row_of_d_has_its_columns_of_b() {
        let problem = along_columns().build().unwrap();
        assert_eq!([0, 1, 2].map(|rank| problem.shards().rows(rank)), [0..4, 4..8, 8..12]);
        let part = |rows, in_a, columns_of| Part { rows, in_a, columns_of };
        let parts = |rows| problem.parts(rows).collect::<Vec<_>>();
        assert_eq!(parts(0..12), [part(0..4, 0, 0), part(4..8, 0, 1), part(8..12, 0, 2)]);
        assert_eq!(parts(2..9), [part(2..4, 2, 0), part(4..8, 0, 1), part(8..9, 0, 2)]);
        assert_eq!(parts(5..7), [part(5..7, 1, 1)]);
        let wider = problem.with_n(12).unwrap();
        assert_eq!([&problem, &wider].map(|of| parts(5..7)[0].first_column(of)), [3, 4]);
        assert_eq!((parts(4..4), parts(11..14)), (vec![], vec![part(11..12, 3, 2)]));
    }

    #[test]
    fn each_rank_gets_columns_of_all_rows() {
        let problem = along_columns().lda(10).b_layout(BLayout::Kn).build().unwrap();
        assert_eq!((problem.m(), problem.n(), problem.rows_of_ranks()), (12, 3, vec![4; 3]));
        assert_eq!((problem.rows_of_a(), problem.columns_of_b()), (4, 9));
        assert_eq!((problem.ldb(), problem.ldd(), problem.b_extent()), (9, 3, (8, 9)));
        assert_eq!(problem.flops(), 2 * 4 * 9 * 8);
        let step = problem.with_shards(&[2; 3]).unwrap();
        assert_eq!((step.m(), step.rows_of_a(), step.columns_of_b()), (6, 2, 9));
        let wider = problem.with_n(12).unwrap();
        assert_eq!((wider.n(), wider.columns_of_b(), wider.ldb(), wider.ldd()), (4, 12, 12, 4));
        // What one product multiplies, which knows no ranks' columns.
        let largest = problem.of_largest_shard().unwrap();
        let sizes = (largest.m(), largest.rows_of_a(), largest.n(), largest.columns_of_b());
        assert_eq!((sizes, largest.ldb()), ((4, 4, 3, 3), 9));
        let json = serde_json::to_string(&problem).unwrap();
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
        let options = PlanOptions { operation: Operation::GemmReduceScatter, ..PlanOptions::new() };
        let text = Plan::new(&problem, options).unwrap().to_string();
        assert!(
            text.starts_with("4×9×8 (bf16 × bf16 → bf16) on 3 ranks, scattered along columns"),
            "{text}"
        );
        assert!(
            text.contains("D (4×9) is the sum") && text.contains("each rank gets 3 columns"),
            "{text}"
        );
    }

    #[test]
    fn what_has_no_columns_of_ranks_is_refused() {
        let starts = |refused: Result<Problem>, expected| {
            let text = refused.unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        };
        let of = |n| Problem::builder(4, n, 8).ranks(3).scatter_columns(true);
        starts(of(8).build(), "n of a scatter along columns is 8, but must be a multiple of 3");
        starts(of(9).batches(2).build(), "a scatter along columns of 2 batches");
        starts(of(9).shards(&[4, 3, 4]).build(), "the rows of rank 1 is 3, but must be 4");
        starts(of(9).shards(&[1, 1, 2]).build(), "the rows of rank 0 is 1, but must be 4");
        starts(of(9).shards(&[]).build(), "the number of ranks is 0");
        let problem = of(9).build().unwrap();
        starts(problem.with_n(10), "n of a scatter along columns is 10");
        starts(problem.with_shards(&[4, 4, 2]), "the rows of rank 2 is 2, but must be 4");
        starts(problem.with_shards(&[0; 3]), "m times the number of ranks is 0");
        starts(problem.with_shards(&[1 << 30; 3]), "m times the number of ranks is 3221225472");
        let plan = |operation| Plan::new(&problem, PlanOptions { operation, ..PlanOptions::new() });
        for operation in [Operation::AllGatherGemm, Operation::Gemm, Operation::GemmAllReduce] {
            let text = plan(operation).unwrap_err().to_string();
            assert!(text.contains(&format!("{operation} along columns")), "{text}");
        }
        let text = plan(Operation::GemmReduceScatter).unwrap().for_rows(&[5; 3]).unwrap_err();
        assert!(
            text.to_string().starts_with("m of this step is 5, but must be between 1 and 4"),
            "{text}"
        );
    }

    #[test]
    fn columns_of_b_that_tma_cannot_address_are_refused() {
        let of = |layout, n| {
            let problem = Problem::builder(4, n, 16).ranks(3).scatter_columns(true);
            let f32 = ElementType::F32;
            let bf16 = ElementType::Bf16;
            problem.elements(bf16, bf16, f32).b_layout(layout).ldb(64).build().unwrap()
        };
        assert_eq!(of(BLayout::Nk, 12).check_tma(), Ok(()));
        assert_eq!(of(BLayout::Kn, 24).check_tma(), Ok(()));
        let text = of(BLayout::Kn, 12).check_tma().unwrap_err().to_string();
        assert!(text.starts_with("the width of a rank's columns of B is 8 bytes"), "{text}");
    }
}
