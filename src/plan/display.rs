//! Plans as text for people.
//!
//! Invariant: the text is derived from the plan, never stored beside it, and its length is bounded: a cut list ends
//! with the number of omitted entries. Serde and the iterators have all of them.

use std::fmt;
use std::ops::Range;

use super::chunks::Chunks;
use super::problem::Problem;
use super::schedule::Schedule;
use super::tiles::{ClusterShape, TileOrder};
use super::types::BLayout;
use super::whole::{Plan, RankPlan};

/// Lists longer than this are cut.
const SHOWN: usize = 32;
/// So are tiles along a line.
const SHOWN_TILES: usize = 8;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n] = [self.rows_of_a(), self.columns_of_b()];
        write!(f, "{m}×{n}×{} ({})", self.k(), self.elements())?;
        write!(f, " on {} rank{}", self.ranks(), plural(self.ranks() as usize))?;
        f.write_str(self.scaling().after_types())?;
        if self.batches() > 1 {
            write!(f, ", {} batches", self.batches())?;
        }
        if self.scatters_columns() {
            write!(f, ", scattered along columns")?;
        }
        if self.is_gated() { write!(f, ", gated") } else { Ok(()) }
    }
}

impl fmt::Display for Chunks {
    /// One line a rank: its rows, its chunks, and how large they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_chunks(f, self, 0..self.shards().ranks())
    }
}

impl fmt::Display for Schedule {
    /// One line a step, the lanes one after the other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for lane in self.lanes() {
            let mut steps = self.lane(lane);
            for (shown, step) in steps.by_ref().take(SHOWN).enumerate() {
                let name = if shown == 0 { lane.to_string() } else { String::new() };
                writeln!(f, "  {name:<9} {step}")?;
            }
            write_hidden(f, steps.count(), "step")?;
        }
        Ok(())
    }
}

impl fmt::Display for TileOrder {
    /// How the output is cut, and which tiles come first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tiling, (rows, columns)) = (self.tiling(), self.grid());
        write!(f, "{rows}×{columns} of {}×{}", tiling.tile.m, tiling.tile.n)?;
        if tiling.cluster != (ClusterShape { m: 1, n: 1 }) {
            write!(f, " in clusters of {}×{}", tiling.cluster.m, tiling.cluster.n)?;
        }
        write!(f, ", {} rows of them sweep over the columns together:", tiling.swizzle)?;
        for tile in self.tiles().take(SHOWN_TILES) {
            write!(f, " ({}, {})", tile.m, tile.n)?;
        }
        match self.tile_count().saturating_sub(SHOWN_TILES as u64) {
            0 => Ok(()),
            hidden => write!(f, " … {hidden} more"),
        }
    }
}

impl fmt::Display for Plan {
    /// All ranks' chunks; the schedule and the tiles of rank 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_plan(f, self, 0..self.problem().ranks(), 0)
    }
}

impl fmt::Display for RankPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_plan(f, self.plan, self.rank..self.rank + 1, self.rank)
    }
}

/// The chunks of `ranks`, and what `rank` does.
fn write_plan(
    f: &mut fmt::Formatter<'_>,
    plan: &Plan,
    ranks: Range<u32>,
    rank: u32,
) -> fmt::Result {
    let (problem, operation) = (plan.problem(), plan.options().operation);
    let (m, n, k) = (problem.rows_of_a(), problem.columns_of_b(), problem.k());
    let stored = match problem.b_layout() {
        BLayout::Nk => "n×k",
        BLayout::Kn => "k×n",
    };
    writeln!(f, "{problem}")?;
    let travels = if operation.reduces() {
        let gets = match operation.is_all_reduce() {
            true => "all rows".into(),
            false if problem.scatters_columns() => format!("{} columns", problem.n()),
            false => "its own rows".to_owned(),
        };
        write!(f, "  {operation}: D ({m}×{n}) is the sum of all ranks' ")?;
        match operation.is_alone() {
            true => write!(f, "sums")?,
            false => write!(f, "A ({m}×{k}) · B ({k}×{n}, stored {stored})")?,
        }
        writeln!(f, "; each rank gets {gets}")?;
        "rows of D whose sums travel together, with one signal from each rank"
    } else {
        write!(f, "  {operation}: every rank computes D ({m}×{n}) = ")?;
        writeln!(f, "A ({m}×{k}) · its own B ({k}×{n}, stored {stored})")?;
        "rows of A that travel together and have one signal"
    };
    writeln!(f, "\nChunks: {travels} (a..b ends before b)")?;
    write_chunks(f, plan.chunks(), ranks)?;
    writeln!(f, "\nSchedule of rank {rank}, lane by lane: {}", plan.way())?;
    write!(f, "{}", plan.schedule(rank))?;
    if operation.is_alone() {
        return Ok(());
    }
    let order = plan.tile_order(rank).map_err(|_| fmt::Error)?;
    writeln!(f, "\nTiles of rank {rank}: {order}")
}

fn write_chunks(f: &mut fmt::Formatter<'_>, chunks: &Chunks, ranks: Range<u32>) -> fmt::Result {
    for rank in ranks.clone().take(SHOWN) {
        let (rows, own) = (chunks.shards().rows(rank), chunks.of_rank(rank));
        if own.is_empty() {
            writeln!(f, "  rank {rank:<4} no rows")?;
            continue;
        }
        // Sizes differ by at most one row, longer chunks first.
        let each = match [own.end - 1, own.start].map(|chunk| chunks.rows(chunk).len()) {
            [least, most] if least == most => most.to_string(),
            [least, most] => format!("{least} or {most}"),
        };
        writeln!(f, "  rank {rank:<4} rows {rows:?}, chunks {own:?} of {each} rows")?;
    }
    write_hidden(f, ranks.len().saturating_sub(SHOWN), "rank")
}

fn write_hidden(f: &mut fmt::Formatter<'_>, hidden: usize, what: &str) -> fmt::Result {
    match hidden {
        0 => Ok(()),
        _ => writeln!(f, "  … {hidden} more {what}{}", plural(hidden)),
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operation, PlanOptions, Tiling};

    #[test]
    fn text_is_bounded_and_says_what_it_leaves_out() {
        let problem = Problem::builder(i32::MAX as u64, 1 << 20, 1 << 20).ranks(1024).build();
        let tiling = Tiling::of_tile(1, 1);
        let options = PlanOptions { pieces: Some(64), tiling, ..PlanOptions::default() };
        let plan = Plan::new(&problem.unwrap(), options).unwrap();
        let text = plan.to_string();
        assert!(text.len() < 20_000, "{} bytes", text.len());
        assert!(text.contains("… 992 more ranks"), "{text}");
        let text = plan.of_rank(1023).unwrap().to_string();
        assert!(text.contains("rank 1023") && text.contains(" more steps"), "{text}");
    }

    #[test]
    fn a_reduce_scatter_does_not_speak_of_gathered_rows() {
        let problem = Problem::builder(12, 40, 1024).shards(&[8, 0, 4]).build().unwrap();
        let operation = Operation::GemmReduceScatter;
        let options = PlanOptions { operation, pieces: Some(2), ..PlanOptions::default() };
        let plan = Plan::new(&problem, options).unwrap();
        for text in [plan.to_string(), plan.of_rank(2).unwrap().to_string()] {
            assert!(text.contains("GEMM + reduce-scatter: D (12×40) is the sum"), "{text}");
            assert!(text.contains("rows of D whose sums travel together"), "{text}");
            for word in ["gathered", "rows of A"] {
                assert!(!text.contains(word), "'{word}': {text}");
            }
        }
        let text = plan.of_rank(2).unwrap().to_string();
        let lines = ["  rank 2    rows 8..12, chunks 2..4 of 2 rows", "partial 2 from 1"];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
        assert!(plan.to_string().contains("  rank 1    no rows"));
    }
}
