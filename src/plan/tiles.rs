//! The order in which a rank computes its output tiles, so that it follows the input's arrival.
//!
//! Output tiles are grouped into **units**: what one thread-block cluster computes together. A unit
//! row is the tiles of one cluster height; it needs the A rows it covers. Unit rows form a ring that
//! starts at the rank's own shard (the **pivot**), because own chunks are available first and the
//! others' arrive in that order. Unit rows whose last needed chunk is the same form a **band**;
//! a band's units, all columns of them, come before the next band's: chunk-major. Where chunks are expected early
//! ([`Chunks::early`]), a band needs one of several chunks last: first of the pivot's, then each time of as many as all before
//! together.
//!
//! ```text
//!   row 0 ┌──────────┐      pivot = 3 R + a bit              visiting order
//!         │ unit 0   │                                       ──────────────
//!       R ├──────────┤      unit row 3 holds rows of the     4  5  0  1  2  3
//!         │ unit 1   │      own shard *and* of the rank                     ▲
//!      2R ├──────────┤      needed last, so it comes last,   the straddler ─┘
//!         │ unit 2   │      not first.
//!      3R ├──────────┤
//!   pivot▶│ unit 3   │      R = tile rows × cluster rows
//!      4R ├──────────┤
//!         │ unit 4   │
//!      5R ├──────────┤
//!         │ unit 5   │      the last unit row may be short
//!       M └──────────┘
//! ```
//!
//! Inside a band, `swizzle` unit rows at a time sweep over the columns, rows fastest, so that
//! neighbours in time share columns of B and rows of A in cache.
//!
//! Invariant: `tile_at` and `index_of` are inverse, every unit appears once, and the chunk a unit
//! needs last never moves backwards in the need order; where chunks are expected early, only from
//! band to band. Bands are not stored: a linear index divided by the columns is a ring position inside its band, and the band's
//! ends follow from its chunks' rows. That is why both directions are O(1) and a kernel can do the same.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chunks::Chunks;
use crate::error::{Error, Result};

/// The largest tile, in rows or columns.
const MAX_TILE_EXTENT: u32 = 1 << 14;

/// The most tiles a cluster has along M or N: the most thread blocks that any GPU clusters.
const MAX_CLUSTER_EXTENT: u32 = 16;

/// Rows and columns of one output tile.
///
/// ```
/// use overlap_gemm::plan::TileShape;
///
/// let tile = TileShape { m: 128, n: 256 };
/// assert_eq!(1000_u32.div_ceil(tile.m), 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TileShape {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// Tiles that one cluster computes together, along M and along N.
///
/// ```
/// use overlap_gemm::plan::{ClusterShape, PlanOptions, Tiling};
///
/// let two_rows = ClusterShape { m: 2, n: 1 };
/// let tiling = Tiling { cluster: two_rows, ..PlanOptions::default().tiling };
/// assert!(tiling.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterShape {
    /// Tiles along M.
    pub m: u32,
    /// Tiles along N.
    pub n: u32,
}

/// How the output is cut and swept.
///
/// ```
/// use overlap_gemm::plan::{PlanOptions, TileShape, Tiling};
///
/// let small = Tiling { tile: TileShape { m: 64, n: 64 }, ..PlanOptions::default().tiling };
/// assert_eq!(PlanOptions::new().with_tiling(small).tiling.swizzle, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tiling {
    /// Rows and columns of a tile.
    pub tile: TileShape,
    /// Tiles of a cluster.
    pub cluster: ClusterShape,
    /// Unit rows that sweep over the columns together, where chunk order allows.
    pub swizzle: u32,
}

impl Tiling {
    /// Tiles of `m`×`n`, no clusters, no swizzle.
    pub const fn of_tile(m: u32, n: u32) -> Self {
        Tiling { tile: TileShape { m, n }, cluster: ClusterShape { m: 1, n: 1 }, swizzle: 1 }
    }

    /// An error if an extent is zero, or larger than any GPU needs.
    pub fn check(self) -> Result<()> {
        let extents = [
            ("the tile's rows", self.tile.m, MAX_TILE_EXTENT),
            ("the tile's columns", self.tile.n, MAX_TILE_EXTENT),
            ("the cluster's tiles along m", self.cluster.m, MAX_CLUSTER_EXTENT),
            ("the cluster's tiles along n", self.cluster.n, MAX_CLUSTER_EXTENT),
            ("the swizzle", self.swizzle, MAX_TILE_EXTENT),
        ];
        let remedy = "tiles are commonly 64 to 256, clusters and swizzles 1 to 16";
        extents
            .into_iter()
            .try_for_each(|(what, extent, most)| Error::check_range(what, extent, 1..=most, remedy))
    }

    /// Rows that a cluster computes at a time.
    pub(crate) fn unit_rows(self) -> u64 {
        u64::from(self.tile.m) * u64::from(self.cluster.m)
    }

    /// Columns that a cluster computes at a time.
    pub(crate) fn unit_columns(self) -> u64 {
        u64::from(self.tile.n) * u64::from(self.cluster.n)
    }

    /// Tiles that a cluster computes at a time.
    pub(crate) fn unit_tiles(self) -> u64 {
        u64::from(self.cluster.m) * u64::from(self.cluster.n)
    }
}

/// One output tile, by its place in the grid of tiles.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Tile};
///
/// let problem = Problem::builder(512, 256, 64).ranks(2).build()?;
/// let order = Plan::new(&problem, PlanOptions::default())?.tile_order(0)?;
/// assert_eq!(order.rows(Tile { m: 1, n: 0 }), 256..512);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Tile {
    /// Which tile row.
    pub m: u32,
    /// Which tile column.
    pub n: u32,
}

/// What one cluster computes at once, by its place in the grid of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    m: u64,
    n: u64,
}

/// Consecutive ring positions whose unit rows need the same chunk last, or one of the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Band {
    first: u64,
    rows: u64,
}

/// The visiting order of one rank's output tiles.
///
/// Linear indices count the tiles of all units, padding included: a cluster at the matrix's edge
/// has tiles outside it, and a kernel meets them too. They are `None` here and touch no chunk.
///
/// ```
/// use overlap_gemm::plan::{Chunks, Shards, Tile, TileOrder, Tiling};
///
/// let chunks = Chunks::even(&Shards::even(512, 2)?, 2)?;
/// let order = TileOrder::new(&chunks, 256, Tiling::of_tile(128, 128), 1)?;
/// let visited: Vec<_> = order.tiles().map(|tile| (tile.m, tile.n)).collect();
/// // Rank 1 starts at its own rows (tile rows 2 and 3), each chunk's columns together.
/// assert_eq!(visited, [(2, 0), (2, 1), (3, 0), (3, 1), (0, 0), (0, 1), (1, 0), (1, 1)]);
/// assert_eq!(order.chunks_of(Tile { m: 3, n: 0 }), 3..4);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileOrder {
    chunks: Chunks,
    tiling: Tiling,
    n: u32,
    pivot_rank: u32,
    /// The first row of the pivot's shard, 0 where only empty shards follow.
    pivot_row: u64,
    /// The unit row visited first: the first that starts at or after the pivot.
    first_unit_row: u64,
    unit_grid: Unit,
}

impl TileOrder {
    /// The order for an output of `n` columns whose pivot is `pivot_rank`'s shard.
    pub fn new(chunks: &Chunks, n: u32, tiling: Tiling, pivot_rank: u32) -> Result<Self> {
        tiling.check()?;
        chunks.shards().check_rank(pivot_rank)?;
        if n == 0 {
            let max = super::shards::MAX_DIMENSION.into();
            return Err(Error::out_of_range("n", 0, 1, max, "give at least one column"));
        }
        let m = u64::from(chunks.shards().m());
        let pivot_row = u64::from(chunks.shards().rows(pivot_rank).start) % m;
        let unit_grid = Unit {
            m: m.div_ceil(tiling.unit_rows()),
            n: u64::from(n).div_ceil(tiling.unit_columns()),
        };
        let first_unit_row = pivot_row.div_ceil(tiling.unit_rows()) % unit_grid.m;
        let chunks = chunks.clone();
        Ok(TileOrder { chunks, tiling, n, pivot_rank, pivot_row, first_unit_row, unit_grid })
    }

    /// How the output is cut and swept.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// The rank whose shard comes first.
    pub fn pivot_rank(&self) -> u32 {
        self.pivot_rank
    }

    /// The chunks whose arrival this order follows.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// Tile rows and columns that lie, at least in part, inside the output.
    pub fn grid(&self) -> (u32, u32) {
        let m = self.chunks.shards().m().div_ceil(self.tiling.tile.m);
        (m, self.n.div_ceil(self.tiling.tile.n))
    }

    /// How many tiles are inside the output.
    pub fn tile_count(&self) -> u64 {
        let (m, n) = self.grid();
        u64::from(m) * u64::from(n)
    }

    /// How many linear indices there are: tiles and padding.
    pub fn index_count(&self) -> u64 {
        self.unit_grid.m * self.unit_grid.n * self.tiling.unit_tiles()
    }

    /// The tile at linear `index`; `None` where that is padding, or beyond the end.
    pub fn tile_at(&self, index: u64) -> Option<Tile> {
        if index >= self.index_count() {
            return None;
        }
        let unit = self.unit_at(index / self.tiling.unit_tiles());
        let within = index % self.tiling.unit_tiles();
        let (cluster, (rows, columns)) = (self.tiling.cluster, self.grid());
        let m = unit.m * u64::from(cluster.m) + within % u64::from(cluster.m);
        let n = unit.n * u64::from(cluster.n) + within / u64::from(cluster.m);
        (m < rows.into() && n < columns.into()).then_some(Tile { m: m as u32, n: n as u32 })
    }

    /// The linear index of `tile`; `None` where it is outside the output.
    pub fn index_of(&self, tile: Tile) -> Option<u64> {
        let (rows, columns) = self.grid();
        if tile.m >= rows || tile.n >= columns {
            return None;
        }
        let cluster = self.tiling.cluster;
        let unit = Unit { m: u64::from(tile.m / cluster.m), n: u64::from(tile.n / cluster.n) };
        let within =
            u64::from(tile.n % cluster.n) * u64::from(cluster.m) + u64::from(tile.m % cluster.m);
        Some(self.index_of_unit(unit) * self.tiling.unit_tiles() + within)
    }

    /// All tiles inside the output, in visiting order.
    pub fn tiles(&self) -> impl Iterator<Item = Tile> + '_ {
        (0..self.unit_grid.m * self.unit_grid.n)
            .flat_map(|index| self.tiles_of(self.unit_at(index)))
    }

    /// The rows of the output, and of A, that `tile` covers; none for padding.
    pub fn rows(&self, tile: Tile) -> Range<u32> {
        extent(tile.m, self.tiling.tile.m, self.chunks.shards().m())
    }

    /// The columns of the output that `tile` covers; none for padding.
    pub fn columns(&self, tile: Tile) -> Range<u32> {
        extent(tile.n, self.tiling.tile.n, self.n)
    }

    /// The chunks that must have arrived before `tile` can be computed; none for padding.
    pub fn chunks_of(&self, tile: Tile) -> Range<u32> {
        self.chunks.touching(self.rows(tile))
    }

    /// How often the order goes through all columns: once for each band, or more often where a band has more unit rows
    /// than sweep together.
    pub fn sweeps(&self) -> u64 {
        let (mut sweeps, mut position) = (0, 0);
        while position < self.unit_grid.m {
            let Band { first, rows } = self.band_at(position);
            sweeps += rows.div_ceil(self.tiling.swizzle.into());
            position = first + rows;
        }
        sweeps
    }

    /// The tiles of `unit` inside the output, rows fastest. Padding is clipped, not visited and
    /// skipped: a cluster may be far larger than the output.
    fn tiles_of(&self, unit: Unit) -> impl Iterator<Item = Tile> + use<> {
        let (cluster, (rows, columns)) = (self.tiling.cluster, self.grid());
        let inside = |unit: u64, tiles: u32, all: u32| {
            let first = unit * u64::from(tiles);
            first as u32..(first + u64::from(tiles)).min(all.into()) as u32
        };
        let (m, n) = (inside(unit.m, cluster.m, rows), inside(unit.n, cluster.n, columns));
        n.flat_map(move |n| m.clone().map(move |m| Tile { m, n }))
    }

    fn unit_at(&self, index: u64) -> Unit {
        let columns = self.unit_grid.n;
        let band = self.band_at(index / columns);
        let swizzle = u64::from(self.tiling.swizzle);
        let in_band = index - band.first * columns;
        let swept_before = in_band / (swizzle * columns) * swizzle;
        let rows_together = swizzle.min(band.rows - swept_before);
        let in_sweep = in_band - swept_before * columns;
        let position = band.first + swept_before + in_sweep % rows_together;
        Unit { m: (self.first_unit_row + position) % self.unit_grid.m, n: in_sweep / rows_together }
    }

    fn index_of_unit(&self, unit: Unit) -> u64 {
        let columns = self.unit_grid.n;
        let position = (unit.m + self.unit_grid.m - self.first_unit_row) % self.unit_grid.m;
        let band = self.band_at(position);
        let swizzle = u64::from(self.tiling.swizzle);
        let in_band = position - band.first;
        let swept_before = in_band / swizzle * swizzle;
        let rows_together = swizzle.min(band.rows - swept_before);
        (band.first + swept_before) * columns + unit.n * rows_together + (in_band - swept_before)
    }

    /// The band that ring position `position` lies in.
    fn band_at(&self, position: u64) -> Band {
        let unit_rows = self.tiling.unit_rows();
        let m = u64::from(self.chunks.shards().m());
        let unit_row = (self.first_unit_row + position) % self.unit_grid.m;
        let straddles = |unit_row: u64| {
            !self.pivot_row.is_multiple_of(unit_rows) && unit_row == self.pivot_row / unit_rows
        };
        // The row that arrives last: the one before the pivot if the unit has it, else its last.
        let needed_last = match straddles(unit_row) {
            true => self.pivot_row - 1,
            false => ((unit_row + 1) * unit_rows).min(m) - 1,
        };
        let batch = self.chunks.batch(self.chunks.of_row(needed_last as u32), self.pivot_rank);
        let pivot_chunk = self.chunks.first_needed(self.pivot_rank);
        let rows = |place: u32| self.chunks.rows((pivot_chunk + place) % self.chunks.len());
        let (start, end) = (u64::from(rows(batch.start).start), u64::from(rows(batch.end - 1).end));

        let first = match start >= self.pivot_row {
            true => (start / unit_rows).max(self.pivot_row.div_ceil(unit_rows)),
            false => start / unit_rows,
        };
        let past = match (end == m, end == self.pivot_row) {
            (true, _) => self.unit_grid.m,
            (false, true) => end.div_ceil(unit_rows),
            (false, false) => end / unit_rows,
        };
        let on_ring = |row: u64| (row + self.unit_grid.m - self.first_unit_row) % self.unit_grid.m;
        // The ring's end is 0, too.
        let (first, past) = (on_ring(first), on_ring(past));
        Band { first, rows: if past > first { past } else { self.unit_grid.m } - first }
    }
}

fn extent(tile: u32, size: u32, end: u32) -> Range<u32> {
    let end = u64::from(end);
    let start = (u64::from(tile) * u64::from(size)).min(end);
    start as u32..(start + u64::from(size)).min(end) as u32
}
