//! Splitting a row range into parts as evenly as whole rows allow.
//!
//! Invariant: with `parts <= len` no part is empty, sizes differ by at most one, and both
//! directions (part → rows, row → part) are a few integer operations.

use std::ops::Range;

/// `len` rows in `parts` consecutive parts; the first `len % parts` are one row longer.
///
/// ```
/// use overlap_gemm::plan::Partition;
/// let rows = Partition::new(10, 4);
/// assert_eq!(rows.range(0), 0..3);
/// assert_eq!(rows.range(3), 8..10);
/// assert_eq!(rows.part_of(7), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    len: u32,
    parts: u32,
}

impl Partition {
    /// `len` rows in `parts` parts. No parts means no rows: `parts` is ignored where `len` is 0.
    pub const fn new(len: u32, parts: u32) -> Self {
        Partition { len, parts: if parts == 0 { 1 } else { parts } }
    }

    /// The first row of `part`; for `part == parts` the end of the last.
    pub fn start(self, part: u32) -> u32 {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let part = part.min(self.parts);
        part * short + part.min(longer)
    }

    /// The rows of `part`.
    pub fn range(self, part: u32) -> Range<u32> {
        self.start(part)..self.start(part.saturating_add(1))
    }

    /// The part that holds `row`; for rows at or beyond `len` no part that exists.
    pub fn part_of(self, row: u32) -> u32 {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let in_longer = longer * short + longer; // at most `len`; `short + 1` alone may not fit
        if row < in_longer {
            row / (short + 1)
        } else {
            longer.saturating_add((row - in_longer) / short.max(1))
        }
    }
}
