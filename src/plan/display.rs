//! Plans as text a person reads and as values a machine reads.
//!
//! Invariant: what is printed is derived from the plan at hand, never stored beside it. Only the
//! decisions (problem, options) are read back; the rest of the JSON follows from them.

use std::fmt;

use super::chunks::Chunks;
use super::problem::{Problem, Scaling};
use super::tiles::TileOrder;
use super::transfers::{ConsumerStep, SenderStep, Transfers};
use super::whole::Plan;

/// Lists longer than this are cut in text; JSON and the iterators have all of it.
const SHOWN: usize = 32;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.elements();
        write!(f, "{}×{}×{} ", self.m(), self.n(), self.k())?;
        write!(f, "({} × {} → {}), {} ranks", types.a, types.b, types.d, self.ranks())?;
        match self.scaling() {
            Scaling::None => Ok(()),
            Scaling::Tensor => write!(f, ", tensor scales"),
            Scaling::Rows => write!(f, ", row scales"),
        }
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in 0..self.shards().ranks() {
            let (rows, chunks) = (self.shards().rows(rank), self.of_rank(rank));
            if rank as usize == SHOWN {
                return writeln!(f, "  … {} more ranks", self.shards().ranks() - rank);
            }
            if chunks.is_empty() {
                writeln!(f, "  rank {rank:<3} no rows")?;
                continue;
            }
            let (longest, shortest) =
                (self.rows(chunks.start).len(), self.rows(chunks.end - 1).len());
            write!(f, "  rank {rank:<3} rows {:>6}..{:<6}", rows.start, rows.end)?;
            write!(f, "  chunks {:>3}..{:<3}", chunks.start, chunks.end)?;
            match longest == shortest {
                true => writeln!(f, "  of {longest} rows")?,
                false => writeln!(f, "  of {longest} and {shortest} rows")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for TileOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tiling, (rows, columns)) = (self.tiling(), self.grid());
        write!(f, "{rows}×{columns} tiles of {}×{}", tiling.tile.m, tiling.tile.n)?;
        write!(f, ", clusters of {}×{}", tiling.cluster.m, tiling.cluster.n)?;
        write!(f, ", swizzle {}, pivot at rank {}: ", tiling.swizzle, self.pivot_rank())?;
        for (shown, tile) in self.tiles().take(SHOWN / 2).enumerate() {
            let gap = if shown == 0 { "" } else { " " };
            write!(f, "{gap}({}, {})", tile.m, tile.n)?;
        }
        let hidden = self.tile_count().saturating_sub(SHOWN as u64 / 2);
        if hidden > 0 { writeln!(f, " … {hidden} more") } else { writeln!(f) }
    }
}

impl fmt::Display for SenderStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SenderStep::AwaitConsumed { peer, .. } => write!(f, "await consumed by {peer}"),
            SenderStep::Send { chunk, to, .. } => write!(f, "send {chunk} → {to}"),
            SenderStep::Signal { chunk, to, .. } => write!(f, "signal {chunk} → {to}"),
        }
    }
}

impl fmt::Display for ConsumerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConsumerStep::AwaitChunk { chunk } => write!(f, "await chunk {chunk}"),
            ConsumerStep::PostConsumed { to } => write!(f, "post consumed → {to}"),
        }
    }
}

impl fmt::Display for Transfers {
    /// One line a rank: whom it sends which chunks to, round by round.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in (0..self.ranks()).take(SHOWN) {
            let own = self.chunks().of_rank(rank);
            write!(f, "  rank {rank:<3}")?;
            if own.is_empty() {
                writeln!(f, " sends nothing")?;
                continue;
            }
            write!(f, " sends {}..{}", own.start, own.end)?;
            for round in (0..self.ranks()).take(SHOWN / 2) {
                write!(f, "  → {:<2}", self.peer_in_round(rank, round))?;
            }
            writeln!(f, "{}", if self.ranks() as usize > SHOWN / 2 { " …" } else { "" })?;
        }
        let hidden = self.ranks().saturating_sub(SHOWN as u32);
        if hidden > 0 { writeln!(f, "  … {hidden} more ranks") } else { Ok(()) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.problem().ranks();
        writeln!(f, "{}", self.problem())?;
        writeln!(
            f,
            "\nchunks: {}, each a run of rows with a signal of its own",
            self.chunks().len()
        )?;
        write!(f, "{}", self.chunks())?;
        writeln!(f, "\ntransfers: {ranks} rounds, in each one rank sends to one")?;
        write!(f, "{}", self.transfers())?;
        writeln!(f, "\ntiles, in visiting order")?;
        for rank in (0..ranks).take(SHOWN) {
            let order = self.tile_order(rank).map_err(|_| fmt::Error)?;
            write!(f, "  rank {rank:<3} {order}")?;
        }
        let hidden = ranks.saturating_sub(SHOWN as u32);
        if hidden > 0 { writeln!(f, "  … {hidden} more ranks") } else { Ok(()) }
    }
}
