//! Columns of text that line up.
//!
//! Invariant: a column is as wide as its widest cell, and no line ends in blanks. What the cells
//! say is decided next door, in `display`.

use std::fmt;

/// Where the text stands in its column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Lines of cells; a line may have fewer cells than there are columns.
pub(super) struct Table {
    align: &'static [Align],
    lines: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. Columns beyond the alignments given are aligned like the last of them.
    pub(super) fn new(align: &'static [Align]) -> Self {
        Table { align, lines: Vec::new() }
    }

    /// Adds a line.
    pub(super) fn line(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        self.lines.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let cell_width = |line: &Vec<String>, column| {
            line.get(column).map_or(0, |cell: &String| cell.chars().count())
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.lines.iter().map(|line| cell_width(line, column)).max().unwrap_or(0))
            .collect();
        for line in &self.lines {
            let mut text = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let last = self.align.len().saturating_sub(1);
                match self.align.get(column.min(last)) {
                    Some(Align::Right) => text.push_str(&format!("  {cell:>width$}")),
                    _ => text.push_str(&format!("  {cell:<width$}")),
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}
