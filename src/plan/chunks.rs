//! Chunks: the pieces of A that travel and are signalled one by one.
//!
//! A chunk is a run of whole rows of one shard. Chunks are numbered in row order across all
//! ranks, so the chunks that a row range touches are consecutive. Invariant: no chunk is empty,
//! none crosses a shard boundary, and together they tile `0..m`. Tiles play no part in this.

use std::ops::Range;
use std::sync::Arc;

use super::partition::Partition;
use super::problem::Problem;
use super::shards::Shards;
use crate::error::{Error, Result};

/// The most chunks a plan can have: one 32-bit signal each, a quarter of a megabyte a consumer.
pub const MAX_CHUNKS: u32 = 1 << 16;

/// The most spans of columns that a chunk can arrive in: `OG_MAX_SPAN_BITS` of `csrc/overlap_gemm.h`.
pub const MAX_SPANS: u32 = 8;
/// Bytes of a row that a span is a multiple of, twice those of the widest step of K: `OG_SPAN_UNIT_BYTES` there.
const SPAN_UNIT: u64 = 512;

/// The chunks of all shards.
///
/// ```
/// use overlap_gemm::plan::{Chunks, Shards};
///
/// let chunks = Chunks::even(&Shards::of_rows(&[10, 0, 3])?, 4)?;
/// assert_eq!(chunks.len(), 4 + 0 + 3); // a shard has no more chunks than rows
/// assert_eq!(chunks.rows(0), 0..3);
/// assert_eq!(chunks.touching(2..11), 0..5); // rows 2..11 need chunks 0, 1, 2, 3 and 4
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    shards: Shards,
    /// `firsts[r]..firsts[r + 1]` are the chunks of rank r.
    firsts: Arc<[u32]>,
    are_early: bool,
    spans: u32,
}

impl Chunks {
    /// `per_shard` chunks a shard; a shard with fewer rows gets a chunk a row.
    ///
    /// More chunks than the largest shard has rows is an error: the request cannot be met.
    pub fn even(shards: &Shards, per_shard: u32) -> Result<Self> {
        let most = shards.most_rows();
        let remedy = "ask for at least one chunk and no more than the largest shard has rows";
        Error::check_range("the number of chunks a shard", per_shard, 1..=most, remedy)?;
        let counts: Vec<u32> = shards.to_rows().iter().map(|&rows| rows.min(per_shard)).collect();
        Chunks::with_counts(shards, &counts)
    }

    /// `counts[r]` chunks for rank r: at least one and at most a chunk a row; none if it is empty.
    pub fn with_counts(shards: &Shards, counts: &[u32]) -> Result<Self> {
        if counts.len() != shards.ranks() as usize {
            let remedy = "give a number of chunks for every rank";
            let what = "the number of chunk counts";
            return Err(Error::mismatch(what, counts.len(), shards.ranks(), remedy));
        }
        let mut firsts = Vec::with_capacity(counts.len() + 1);
        let mut total = 0u64;
        firsts.push(0);
        for (rank, (&count, rows)) in counts.iter().zip(shards.to_rows()).enumerate() {
            if !(rows.min(1)..=rows).contains(&count) {
                let what = format!("the number of chunks of rank {rank}");
                let remedy = "cut a shard into at least one chunk and at most a chunk a row";
                let (min, max) = (rows.min(1).into(), rows.into());
                return Err(Error::out_of_range(what, count.into(), min, max, remedy));
            }
            total += u64::from(count);
            firsts.push(total.min(u32::MAX.into()) as u32);
        }
        let remedy = "use fewer, larger chunks: each costs a signal and a transfer";
        Error::check_range("the number of chunks", total, 1..=MAX_CHUNKS.into(), remedy)?;
        Ok(Chunks { shards: shards.clone(), firsts: firsts.into(), are_early: false, spans: 1 })
    }

    /// The same chunks, expected early: those that are needed first are there when a product starts, and the others arrive
    /// at least twice as fast as they are multiplied.
    ///
    /// Tiles then go in groups of chunks: first the rank's own, then each time as many as all groups before together. B is
    /// read less often. A product waits all the same for a chunk that comes later.
    pub fn early(self) -> Self {
        Chunks { are_early: true, ..self }
    }

    /// The same chunks, each arriving in 1, 2, 4 or 8 spans of columns, one after the other. A product on a GPU whose
    /// tiles all fit it at the same time then multiplies the first span while the next one travels.
    ///
    /// ```
    /// use overlap_gemm::plan::{Chunks, Shards};
    ///
    /// let chunks = Chunks::even(&Shards::even(64, 2)?, 1)?.in_spans(4)?;
    /// assert_eq!((chunks.len(), chunks.signals()), (2, 8)); // chunk 1: signals 4..8
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn in_spans(self, spans: u32) -> Result<Self> {
        if !spans.is_power_of_two() || spans > MAX_SPANS {
            let remedy = "choose a power of two in that range";
            let what = "the number of spans";
            return Err(Error::out_of_range(what, spans.into(), 1, MAX_SPANS.into(), remedy));
        }
        Ok(Chunks { spans, ..self })
    }

    /// How many spans of columns each chunk arrives in.
    pub fn spans(&self) -> u32 {
        self.spans
    }

    /// How many signals they have in all: one for each span of each chunk.
    pub fn signals(&self) -> u32 {
        self.len() * self.spans
    }

    /// The columns of A in one span. The last ones are empty where K is short: nobody waits for them.
    pub fn columns(&self, problem: &Problem, span: u32) -> Range<u32> {
        let (k, size) = (u64::from(problem.k()), u64::from(problem.elements().a.size()));
        let width = self.span_bytes(problem) / size;
        let column = |span: u64| (span * width).min(k) as u32;
        column(span.into())..column(u64::from(span) + 1)
    }

    /// Bytes of a row of A in each span, but the last, which ends with the row.
    pub(crate) fn span_bytes(&self, problem: &Problem) -> u64 {
        let row = problem.row_bytes(&(0..1)) as u64;
        row.div_ceil(self.spans.into()).next_multiple_of(SPAN_UNIT)
    }

    /// The batch of `chunk`, as places in the need order of `rank`: tiles that need a chunk of one batch last form one band.
    /// A batch is one chunk, or several where chunks are expected early.
    pub(super) fn batch(&self, chunk: u32, rank: u32) -> Range<u32> {
        let place = self.need_place(chunk, rank);
        match self.early_ones(rank) {
            0 => place..place + 1,
            first if place < first => 0..first,
            first => {
                let begin = first << (place / first).ilog2();
                begin..begin.saturating_mul(2).min(self.len())
            }
        }
    }

    /// How many chunks `rank` expects to be there when its product starts; 0 where chunks are not expected early.
    pub(crate) fn early_ones(&self, rank: u32) -> u32 {
        if self.are_early { (self.of_rank(rank).len() as u32).max(1) } else { 0 }
    }

    /// The chunk that `rank` needs first.
    pub(super) fn first_needed(&self, rank: u32) -> u32 {
        self.of_rank(rank).start % self.len()
    }

    /// How many chunks there are in all.
    #[expect(clippy::len_without_is_empty, reason = "m >= 1, so there is always a chunk")]
    pub fn len(&self) -> u32 {
        self.firsts[self.firsts.len() - 1]
    }

    /// The shards that these are chunks of.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The chunks of `rank`; none for a rank that does not exist.
    pub fn of_rank(&self, rank: u32) -> Range<u32> {
        let first = |rank: u32| self.firsts.get(rank as usize).copied().unwrap_or(self.len());
        first(rank)..first(rank.saturating_add(1))
    }

    /// The rank that holds `chunk`; the number of ranks where none does.
    pub fn rank_of(&self, chunk: u32) -> u32 {
        self.firsts.partition_point(|&first| first <= chunk) as u32 - 1
    }

    /// The rows of `chunk`; none for a chunk that does not exist.
    pub fn rows(&self, chunk: u32) -> Range<u32> {
        let rank = self.rank_of(chunk);
        let rows = self.within(rank).range(chunk - self.of_rank(rank).start);
        let start = self.shards.rows(rank).start;
        start + rows.start..start + rows.end
    }

    /// The chunk that holds `row`; for rows at or beyond M no chunk that exists.
    pub fn of_row(&self, row: u32) -> u32 {
        let rank = self.shards.rank_of(row);
        let part = self.within(rank).part_of(row - self.shards.rows(rank).start);
        self.of_rank(rank).start.saturating_add(part)
    }

    /// The chunks that `rows` touch; rows at or beyond M touch none.
    pub fn touching(&self, rows: Range<u32>) -> Range<u32> {
        let end = rows.end.min(self.shards.m());
        if rows.start >= end {
            return 0..0;
        }
        self.of_row(rows.start)..self.of_row(end - 1) + 1
    }

    /// All chunks in the order in which `rank` needs them: its own, then its successors'.
    pub fn need_order(&self, rank: u32) -> impl Iterator<Item = u32> + Clone + use<> {
        let (first, len) = (self.first_needed(rank), self.len());
        (first..len).chain(0..first)
    }

    /// How many chunks `rank` needs before `chunk`: its place in [`Chunks::need_order`].
    pub(crate) fn need_place(&self, chunk: u32, rank: u32) -> u32 {
        (chunk + self.len() - self.first_needed(rank)) % self.len()
    }

    /// Where the signal of `chunk` lives, with room for `per_rank` signals a rank.
    ///
    /// Not the chunk's number: M may vary from step to step, and with it the rank that a number
    /// belongs to. A signal with two writers could run backwards, or vouch for data that another
    /// rank still owes. A slot belongs to the same rank in every step. Saturates where no memory
    /// could hold that many.
    pub fn signal_slot(&self, chunk: u32, per_rank: u32) -> u32 {
        let rank = self.rank_of(chunk);
        rank.saturating_mul(per_rank).saturating_add(chunk - self.of_rank(rank).start)
    }

    /// The most chunks that one rank has.
    pub fn most_per_rank(&self) -> u32 {
        self.firsts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    fn within(&self, rank: u32) -> Partition {
        Partition::new(self.shards.rows(rank).len() as u32, self.of_rank(rank).len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_header_has_the_same_spans() {
        let header = include_str!("../../csrc/overlap_gemm.h");
        let bits = MAX_SPANS.ilog2();
        assert!(header.contains(&format!("#define OG_MAX_SPAN_BITS {bits}\n")));
        assert!(header.contains(&format!("#define OG_SPAN_UNIT_BYTES {SPAN_UNIT}\n")));
    }
}
