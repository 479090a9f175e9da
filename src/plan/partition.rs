//! Splitting a row range into parts as evenly as whole rows allow.
//!
//! Invariant: with `parts <= len` no part is empty, sizes differ by at most one, and both
//! directions (part → rows, row → part) are a few integer operations.

use std::ops::Range;

/// `len` rows in `parts` consecutive parts; the first `len % parts` are one row longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    len: u32,
    parts: u32,
}

impl Partition {
    /// `len` rows in `parts` parts. No parts means no rows: `parts` is ignored where `len` is 0.
    pub(super) fn new(len: u32, parts: u32) -> Self {
        Partition { len, parts: if parts == 0 { 1 } else { parts } }
    }

    /// The first row of `part`; for `part == parts` the end of the last.
    pub(super) fn start(self, part: u32) -> u32 {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let part = part.min(self.parts);
        part * short + part.min(longer)
    }

    /// The rows of `part`.
    pub(super) fn range(self, part: u32) -> Range<u32> {
        self.start(part)..self.start(part.saturating_add(1))
    }

    /// The part that holds `row`; for rows at or beyond `len` no part that exists.
    pub(super) fn part_of(self, row: u32) -> u32 {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let in_longer = longer * short + longer; // at most `len`; `short + 1` alone may not fit
        if row < in_longer {
            row / (short + 1)
        } else {
            longer.saturating_add((row - in_longer) / short.max(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_parts_are_longer() {
        let rows = Partition::new(10, 4);
        assert_eq!([0, 1, 2, 3].map(|part| rows.range(part)), [0..3, 3..6, 6..8, 8..10]);
        assert_eq!(rows.part_of(7), 2);
    }

    /// As plans have them, and all others.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..100, 0u32..70_000, any::<u32>()]
    }

    proptest! {
        #[test]
        fn parts_differ_by_at_most_one_row(
            (len, parts) in (number(), number()), (part, row) in (number(), number()),
        ) {
            let rows = Partition::new(len, parts);
            let range = rows.range(part);
            prop_assert!(rows.start(part) <= len && range.end <= len && rows.start(0) == 0);
            if part < parts {
                prop_assert!(range.len() as u32 - len / parts <= 1);
                prop_assert_eq!(rows.start(parts), len);
            }
            for row in [range.start, range.end.saturating_sub(1)] {
                prop_assert!(range.is_empty() || rows.part_of(row) == part);
            }
            let holder = rows.part_of(row);
            prop_assert_eq!(rows.range(holder).contains(&row), row < len);
        }
    }
}
