//! Plans as text for people.
//!
//! Invariant: the text is derived from the plan, never stored beside it, and its length is bounded: a cut list ends
//! with the number of omitted entries. Serde and the iterators have all of them. `table` aligns columns.

use std::fmt;
use std::ops::Range;

use super::chunks::Chunks;
use super::problem::{BLayout, Problem, Scaling};
use super::schedule::Schedule;
use super::table::Align::{Left, Right};
use super::table::Table;
use super::tiles::{ClusterShape, Tile, TileOrder};
use super::way::Operation;
use super::whole::{Plan, RankPlan};

/// Lists longer than this are cut.
const SHOWN: u32 = 32;
/// So are lists along a line.
const SHOWN_ACROSS: u32 = 16;
/// So are tiles along a line.
const SHOWN_TILES: usize = 8;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.elements();
        write!(f, "{}×{}×{} ", self.m(), self.n(), self.k())?;
        write!(f, "({} × {} → {})", types.a, types.b, types.d)?;
        write!(f, " on {} rank{}", self.ranks(), plural(self.ranks()))?;
        match self.scaling() {
            Scaling::None => Ok(()),
            Scaling::Tensor => write!(f, ", tensor scales"),
            Scaling::Rows => write!(f, ", row scales"),
        }
    }
}

impl fmt::Display for Chunks {
    /// One line a rank: its rows, its chunks, and how large they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shard_table(self, 0..self.shards().ranks(), None).fmt(f)
    }
}

impl fmt::Display for TileOrder {
    /// How the output is cut, and which tiles the pivot's rank visits first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; rank {} visits {}", Cut(self), self.pivot_rank(), FirstTiles(self))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.problem().ranks();
        let order = self.tile_order(0).map_err(|_| fmt::Error)?;
        write_product(f, self)?;

        writeln!(f, "\nChunks: {}", WhatTravels(self))?;
        write!(f, "{}", shard_table(self.chunks(), 0..ranks, weighed(self)))?;

        writeln!(f, "\nTransfers: the destination of each rank, per round")?;
        write!(f, "{}", round_table(self))?;
        if reduces(self) {
            let own = match self.options().operation {
                Operation::GemmAllReduce => {
                    "Each chunk goes to all others. A rank computes its own rows last."
                }
                _ => "The sums of its own rows need no link. It computes them last.",
            };
            writeln!(f, "  · is the rank itself. {own}")?;
            writeln!(f, "  In each round every rank receives from at most one rank.\n")?;
        } else {
            writeln!(
                f,
                "  · is the rank's own slot, which needs no link. In each round every rank receives"
            )?;
            writeln!(
                f,
                "  from at most one rank. Rank 0 receives from itself, then from 1, 2, …: the order"
            )?;
            writeln!(f, "  in which its tiles need the chunks.\n")?;
        }
        writeln!(f, "Tiles: {}", Cut(&order))?;
        let mut table = Table::new(&[Right, Left]);
        table.line(["rank", "visits (row, column) first"]);
        for rank in 0..ranks.min(SHOWN) {
            let order = self.tile_order(rank).map_err(|_| fmt::Error)?;
            table.line([rank.to_string(), FirstTiles(&order).to_string()]);
        }
        write!(f, "{table}")?;
        write_hidden(f, ranks, "rank")?;
        if reduces(self) {
            return Ok(());
        }

        writeln!(f, "\nRank 0, chunk by chunk: what it waits for, and what it can compute then")?;
        write!(f, "{}", arrival_table(self, &order))?;
        write_hidden(f, self.chunks().len(), "chunk")
    }
}

impl fmt::Display for RankPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, rank) = (self.plan(), self.rank());
        let (ranks, order) =
            (plan.problem().ranks(), plan.tile_order(rank).map_err(|_| fmt::Error)?);
        write_product(f, plan)?;

        writeln!(f, "\nChunks of rank {rank}: {}", WhatTravels(plan))?;
        write!(f, "{}", shard_table(plan.chunks(), rank..rank + 1, weighed(plan)))?;

        writeln!(f, "\nTransfers of rank {rank}, round by round")?;
        let mut table = Table::new(&[Left, Right]);
        let mut line = |name: &str, cell: &dyn Fn(u32) -> String| {
            let cells = (0..ranks.min(SHOWN_ACROSS)).map(cell);
            table.line(std::iter::once(name.to_string()).chain(cells).chain(ellipsis(ranks)));
        };
        line("round", &|round| round.to_string());
        if reduces(plan) {
            line("sends to", &|round| receiver(plan, rank, round));
            let has_rows = !plan.options().operation.added_up(plan.chunks(), rank).is_empty();
            line("receives from", &|round| match has_rows {
                true => or_dot((rank + ranks - round) % ranks, rank),
                false => "–".into(),
            });
        } else {
            if plan.chunks().of_rank(rank).is_empty() {
                line("sends", &|_| "–".into());
            } else {
                line("sends to", &|round| receiver(plan, rank, round));
            }
            line("receives from", &|round| or_dot((rank + round) % ranks, rank));
        }
        write!(f, "{table}")?;

        writeln!(f, "\nSchedule of rank {rank}, lane by lane: {}", plan.way())?;
        write_schedule(f, &plan.schedule(rank))?;

        writeln!(f, "\nTiles: {}", Cut(&order))?;
        writeln!(f, "  rank {rank} visits (row, column) {}", FirstTiles(&order))?;
        if reduces(plan) {
            return Ok(());
        }

        writeln!(
            f,
            "\nRank {rank}, chunk by chunk: what it waits for, and what it can compute then"
        )?;
        write!(f, "{}", arrival_table(plan, &order))?;
        write_hidden(f, plan.chunks().len(), "chunk")
    }
}

/// Whether ranks gather sums of D, not rows of A.
fn reduces(plan: &Plan) -> bool {
    plan.options().operation.reduces()
}

/// The problem, where it is its rows of A that travel.
fn weighed(plan: &Plan) -> Option<&Problem> {
    (!reduces(plan)).then_some(plan.problem())
}

/// What a chunk is made of.
struct WhatTravels<'a>(&'a Plan);

impl fmt::Display for WhatTravels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match reduces(self.0) {
            true => "rows of D whose sums travel together, with one signal from each rank",
            false => "rows of A that travel together and have one signal",
        })?;
        f.write_str(" (a..b ends before b)")
    }
}

fn write_product(f: &mut fmt::Formatter<'_>, plan: &Plan) -> fmt::Result {
    let problem = plan.problem();
    let (m, n, k) = (problem.m(), problem.n(), problem.k());
    let stored = match problem.b_layout() {
        BLayout::Nk => "n×k",
        BLayout::Kn => "k×n",
    };
    writeln!(f, "{problem}")?;
    if reduces(plan) {
        let operation = plan.options().operation;
        let gets = if operation == Operation::GemmAllReduce { "all" } else { "its own" };
        writeln!(
            f,
            "  {operation}: D ({m}×{n}) is the sum of all ranks' A ({m}×{k}) · B ({k}×{n}, stored {stored})"
        )?;
        return writeln!(f, "  each rank gets {gets} rows; {} a rank", Flops(problem.flops()));
    }
    writeln!(
        f,
        "  every rank computes D ({m}×{n}) = A ({m}×{k}) · its own B ({k}×{n}, stored {stored})"
    )?;
    let bytes = Bytes(problem.row_bytes(&(0..m)));
    writeln!(f, "  {} a rank; the gathered A is {bytes}", Flops(problem.flops()))
}

/// One line a step, the lanes one after the other.
fn write_schedule(f: &mut fmt::Formatter<'_>, schedule: &Schedule) -> fmt::Result {
    for lane in schedule.lanes() {
        let mut steps = schedule.lane(lane);
        for (shown, step) in steps.by_ref().take(SHOWN as usize).enumerate() {
            let name = if shown == 0 { lane.to_string() } else { String::new() };
            writeln!(f, "  {name:<9} {step}")?;
        }
        match steps.count() as u32 {
            0 => {}
            hidden => writeln!(f, "  {:<9} … {hidden} more step{}", "", plural(hidden))?,
        }
    }
    Ok(())
}

/// One line a rank: its rows and its chunks; with a problem, what they weigh as well.
fn shard_table(chunks: &Chunks, ranks: Range<u32>, problem: Option<&Problem>) -> impl fmt::Display {
    let mut table = Table::new(&[Right]);
    let weights = ["bytes a chunk", "sends in all"].into_iter().filter(|_| problem.is_some());
    table.line(["rank", "rows", "chunks", "rows a chunk"].into_iter().chain(weights));
    let others = u128::from(chunks.shards().ranks() - 1);
    for rank in ranks.clone().take(SHOWN as usize) {
        let (rows, own) = (chunks.shards().rows(rank), chunks.of_rank(rank));
        if own.is_empty() {
            table.line([rank.to_string(), "none".into()]);
            continue;
        }
        // Sizes differ by at most one row, longer chunks first.
        let (longest, shortest) = (chunks.rows(own.start), chunks.rows(own.end - 1));
        let mut line = vec![
            rank.to_string(),
            format!("{}..{}", rows.start, rows.end),
            format!("{}..{}", own.start, own.end),
            range(shortest.len(), longest.len()),
        ];
        if let Some(problem) = problem {
            line.push(Bytes(problem.row_bytes(&longest)).to_string());
            line.push(Bytes(problem.row_bytes(&rows) * others).to_string());
        }
        table.line(line);
    }
    WithHidden { table, all: ranks.len() as u32, what: "rank" }
}

/// One line a rank, one column a round: the receiver.
fn round_table(plan: &Plan) -> impl fmt::Display {
    let ranks = plan.problem().ranks();
    let rounds = 0..ranks.min(SHOWN_ACROSS);
    let mut table = Table::new(&[Right, Left, Right]);
    let head = ["round".to_string(), String::new()].into_iter();
    table.line(head.chain(rounds.clone().map(|round| round.to_string())).chain(ellipsis(ranks)));
    for rank in 0..ranks.min(SHOWN) {
        let name = [format!("rank {rank}"), "→".into()].into_iter();
        let peers = rounds.clone().map(|round| receiver(plan, rank, round));
        table.line(name.chain(peers).chain(ellipsis(ranks)));
    }
    WithHidden { table, all: ranks, what: "rank" }
}

/// The rank that `rank` sends to in `round`, if there is anything to send.
fn receiver(plan: &Plan, rank: u32, round: u32) -> String {
    let peer = plan.peer_in_round(rank, round);
    let sent = match plan.options().operation {
        operation if operation.reduces() => operation.added_up(plan.chunks(), peer),
        _ => plan.chunks().of_rank(rank),
    };
    match sent.is_empty() {
        true => "–".into(),
        false => or_dot(peer, rank),
    }
}

/// One line a chunk, in the order of need: where it comes from, and which tiles were waiting for it.
fn arrival_table(plan: &Plan, order: &TileOrder) -> Table {
    let (chunks, rank, ranks) = (plan.chunks(), order.pivot_rank(), plan.problem().ranks());
    let (_, columns) = order.grid();
    let mut table = Table::new(&[Right]);
    table.line(["chunk", "from rank", "in round", "rows", "bytes", "completes tile rows", "tiles"]);
    for chunk in chunks.need_order(rank).take(SHOWN as usize) {
        let from = chunks.rank_of(chunk);
        let rows = chunks.rows(chunk);
        let ready = completed_by(order, chunk);
        table.line([
            chunk.to_string(),
            if from == rank { "itself".into() } else { from.to_string() },
            ((from + ranks - rank) % ranks).to_string(),
            format!("{}..{}", rows.start, rows.end),
            Bytes(plan.problem().row_bytes(&rows)).to_string(),
            match ready.is_empty() {
                true => "none yet".into(),
                false => format!("{}..{}", ready.start, ready.end),
            },
            (u64::from(columns) * ready.len() as u64).to_string(),
        ]);
    }
    table
}

/// The tile rows whose last missing chunk is `chunk`, for the rank whose order this is.
fn completed_by(order: &TileOrder, chunk: u32) -> Range<u32> {
    let chunks = order.chunks();
    let own_first = chunks.of_rank(order.pivot_rank()).start;
    let need = |chunk: &u32| (chunk + chunks.len() - own_first) % chunks.len();
    let needed_last = |m: u32| order.chunks_of(Tile { m, n: 0 }).max_by_key(need);

    let (rows, tile_rows) = (chunks.rows(chunk), order.tiling().tile.m);
    let touched = rows.start / tile_rows..(rows.end - 1) / tile_rows + 1;
    // Only the first and the last can reach into other chunks.
    let late_start = needed_last(touched.start) != Some(chunk);
    let early_end = needed_last(touched.end - 1) != Some(chunk);
    touched.start + u32::from(late_start)..touched.end - u32::from(early_end)
}

/// How an order cuts the output.
struct Cut<'a>(&'a TileOrder);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tiling, (rows, columns)) = (self.0.tiling(), self.0.grid());
        write!(f, "{rows}×{columns} of {}×{}", tiling.tile.m, tiling.tile.n)?;
        let unit = match tiling.cluster {
            ClusterShape { m: 1, n: 1 } => "tiles",
            ClusterShape { m, n } => {
                write!(f, ", in clusters of {m}×{n}")?;
                "clusters"
            }
        };
        match tiling.swizzle {
            1 => write!(f, "; rows of {unit} sweep over the columns one by one"),
            rows => write!(f, "; up to {rows} rows of {unit} sweep over the columns together"),
        }
    }
}

/// The first tiles that an order visits, and how many follow.
struct FirstTiles<'a>(&'a TileOrder);

impl fmt::Display for FirstTiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shown, tile) in self.0.tiles().take(SHOWN_TILES).enumerate() {
            let gap = if shown == 0 { "" } else { " " };
            write!(f, "{gap}({}, {})", tile.m, tile.n)?;
        }
        match self.0.tile_count().saturating_sub(SHOWN_TILES as u64) {
            0 => Ok(()),
            hidden => write!(f, " … {hidden} more"),
        }
    }
}

/// A table of the first lines of a list, and how many were left out.
struct WithHidden {
    table: Table,
    all: u32,
    what: &'static str,
}

impl fmt::Display for WithHidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        write_hidden(f, self.all, self.what)
    }
}

fn write_hidden(f: &mut fmt::Formatter<'_>, all: u32, what: &str) -> fmt::Result {
    match all.saturating_sub(SHOWN) {
        0 => Ok(()),
        hidden => writeln!(f, "  … {hidden} more {what}{}", plural(hidden)),
    }
}

/// A number of bytes with three digits or so: `2.0 MiB`.
struct Bytes(u128);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"])
    }
}

/// A number of operations: `240.5 GFLOP`.
struct Flops(u128);

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "YFLOP"];
        write_scaled(f, self.0, 1000.0, &units)
    }
}

fn write_scaled(f: &mut fmt::Formatter<'_>, value: u128, step: f64, units: &[&str]) -> fmt::Result {
    let mut scaled = value as f64;
    let mut units = units.iter();
    let mut unit = units.next();
    while scaled >= step
        && let Some(larger) = units.next()
    {
        (scaled, unit) = (scaled / step, Some(larger));
    }
    let digits = usize::from(value as f64 >= step);
    write!(f, "{scaled:.digits$} {}", unit.unwrap_or(&""))
}

fn range(least: usize, most: usize) -> String {
    if least == most { most.to_string() } else { format!("{least}–{most}") }
}

fn or_dot(peer: u32, rank: u32) -> String {
    if peer == rank { "·".into() } else { peer.to_string() }
}

fn ellipsis(rounds: u32) -> Option<String> {
    (rounds > SHOWN_ACROSS).then(|| "…".into())
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanOptions, TileShape, Tiling};

    fn plan(rows: &[u32], chunks: u32, tile_rows: u32) -> Plan {
        let m = rows.iter().sum::<u32>().into();
        let problem = Problem::builder(m, 40, 1024).shards(rows).build().unwrap();
        let options = PlanOptions::default();
        let tiling = Tiling { tile: TileShape { m: tile_rows, n: 16 }, ..options.tiling };
        Plan::new(&problem, PlanOptions { pieces: Some(chunks), tiling, ..options }).unwrap()
    }

    #[test]
    fn every_tile_row_is_completed_by_one_chunk() {
        for (rows, chunks, tile_rows) in
            [(&[7, 0, 9, 3][..], 3, 4), (&[5, 5], 5, 1), (&[5, 6], 2, 100), (&[3, 8, 0], 2, 5)]
        {
            let plan = plan(rows, chunks, tile_rows);
            for rank in 0..plan.problem().ranks() {
                let order = plan.tile_order(rank).unwrap();
                let mut all: Vec<u32> =
                    (0..plan.chunks().len()).flat_map(|c| completed_by(&order, c)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..order.grid().0).collect::<Vec<_>>(), "{plan} rank {rank}");
            }
        }
    }

    #[test]
    fn text_is_bounded_and_says_what_it_leaves_out() {
        let problem = Problem::builder(i32::MAX as u64, 1 << 20, 1 << 20).ranks(1024).build();
        let tiling = Tiling::of_tile(1, 1);
        let options = PlanOptions { pieces: Some(64), tiling, ..PlanOptions::default() };
        let plan = Plan::new(&problem.unwrap(), options).unwrap();
        let text = plan.to_string();
        assert!(text.len() < 20_000, "{} bytes", text.len());
        assert!(text.contains("… 992 more ranks"), "{text}");
        assert!(plan.of_rank(1023).unwrap().to_string().contains("… 65504 more chunks"));
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
            for word in ["gathered", "rows of A", "chunk by chunk", "own slot"] {
                assert!(!text.contains(word), "'{word}': {text}");
            }
        }
        let text = plan.of_rank(2).unwrap().to_string();
        let lines = ["sends to       ·  0  –", "receives from  ·  1  0", "partial 2 from 1"];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(2 << 20).to_string(), "2.0 MiB");
        assert_eq!(Bytes(1 << 66).to_string(), "64.0 EiB");
        assert_eq!(Flops(240_518_168_576).to_string(), "240.5 GFLOP");
    }
}
