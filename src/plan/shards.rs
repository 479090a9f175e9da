//! Which rank holds which rows of the gathered A.
//!
//! Invariant: the shards tile `0..m` in rank order. A shard may be empty.

use std::ops::Range;
use std::sync::Arc;

use super::partition::Partition;
use crate::error::{Error, Result};

/// The largest M, N, K or leading dimension: what a device index in 32 signed bits can hold.
pub const MAX_DIMENSION: u32 = i32::MAX as u32;

/// The most ranks a plan can have.
///
/// One NVLink domain has 8 to 72 today; the limit only keeps tables of W+1 numbers small.
pub const MAX_RANKS: u32 = 1024;

/// The rows of each rank.
///
/// ```
/// use overlap_gemm::plan::Shards;
///
/// let shards = Shards::of_rows(&[3, 0, 5])?;
/// assert_eq!((shards.m(), shards.rows(2), shards.rank_of(3)), (8, 3..8, 2));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// `starts[r]..starts[r + 1]` are the rows of rank r.
    starts: Arc<[u32]>,
}

impl Shards {
    /// `m` rows over `ranks` ranks, as evenly as whole rows allow.
    pub fn even(m: u32, ranks: u32) -> Result<Self> {
        check_ranks(u64::from(ranks))?;
        check_rows(u64::from(m))?;
        let rows = Partition::new(m, ranks);
        Ok(Shards { starts: (0..=ranks).map(|rank| rows.start(rank)).collect() })
    }

    /// `rows[r]` rows for rank r.
    pub fn of_rows(rows: &[u32]) -> Result<Self> {
        Shards::of_batches(rows, 1)
    }

    /// `rows[r]` rows of each batch for rank r.
    pub(super) fn of_batches(rows: &[u32], batches: u32) -> Result<Self> {
        check_ranks(rows.len() as u64)?;
        let total: u64 = rows.iter().map(|&rows| u64::from(rows)).sum();
        check_rows(total.saturating_mul(batches.into()))?;
        let ends = rows.iter().scan(0u32, |end, rows| {
            *end += rows * batches; // the total fits: checked above
            Some(*end)
        });
        Ok(Shards { starts: std::iter::once(0).chain(ends).collect() })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// How many rows there are in all.
    pub fn m(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// The rows of `rank`; none for a rank that does not exist.
    pub fn rows(&self, rank: u32) -> Range<u32> {
        let end = |rank: u32| self.starts.get(rank as usize).copied().unwrap_or(self.m());
        end(rank)..end(rank.saturating_add(1))
    }

    /// The rank that holds `row`; the number of ranks where none does.
    pub fn rank_of(&self, row: u32) -> u32 {
        // The last rank that starts at or before the row: empty shards before it start there too.
        self.starts.partition_point(|&start| start <= row) as u32 - 1
    }

    /// The number of rows of each rank.
    pub fn to_rows(&self) -> Vec<u32> {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// The largest number of rows that one rank holds.
    pub fn most_rows(&self) -> u32 {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    /// An error unless `rank` is one of the ranks.
    pub fn check_rank(&self, rank: u32) -> Result<()> {
        let remedy = "ranks count from 0 to the world size less one";
        Error::check_range("rank", rank, 0..=self.ranks() - 1, remedy)
    }
}

/// The number of ranks, if a plan can have that many.
pub(super) fn check_ranks(ranks: u64) -> Result<u32> {
    let remedy = "give at least one rank, and split larger worlds into groups";
    Error::check_range("the number of ranks", ranks, 1..=MAX_RANKS.into(), remedy)?;
    Ok(ranks as u32)
}

fn check_rows(rows: u64) -> Result<()> {
    let remedy = "give at least one row in all, and multiply larger inputs in several calls";
    Error::check_range("m, the sum of all shards' rows", rows, 1..=MAX_DIMENSION.into(), remedy)
}
