//! Which worker computes which tile, and when.
//!
//! Workers take tiles in visiting order from one counter, so that the tile whose input comes first
//! is begun first, and wait for the chunks it touches. Products that share a gather are laid side
//! by side along N, so that everything that one chunk (or one band's chunks) enables is computed before the next is
//! awaited. Invariant: each tile is computed by one worker, after all its chunks.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::memory::ScaledRows;
use super::tile::{ProductView, RowsOfA, Scratch};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{Part, Plan, Tile, TileOrder};
use crate::trace::TileEvent;

/// The threads that compute a rank's steps.
///
/// A host stream is synchronous: what is enqueued is complete when `enqueue` returns, as on a GPU
/// stream that is synchronised after every call. The transfers to other ranks go on behind it.
///
/// ```
/// use overlap_gemm::host::Stream;
///
/// assert_eq!(Stream::new(3)?.workers(), 3);
/// assert!(Stream::for_ranks(4).workers() >= 1);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    workers: u32,
}

/// More workers than this on one machine is a mistake, not a machine.
const MAX_WORKERS: u32 = 4096;

impl Stream {
    /// A stream of `workers` threads, the caller's among them.
    pub fn new(workers: u32) -> Result<Self> {
        let remedy = "use one worker a core, shared among the ranks of the machine";
        Error::check_range("workers", workers, 1..=MAX_WORKERS, remedy)?;
        Ok(Stream { workers })
    }

    /// The cores of this machine divided by the ranks on it, at least one.
    pub fn for_ranks(ranks: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get) as u32;
        Stream { workers: (cores / ranks.max(1)).clamp(1, MAX_WORKERS) }
    }

    /// How many threads compute.
    pub fn workers(self) -> u32 {
        self.workers
    }
}

/// A as tiles read it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, A> {
    /// Packed rows that arrive, with their scales; or one scale for all.
    Arriving { rows: &'a ScaledRows<A>, tensor_scale: Option<&'a f32> },
    /// The caller's rows, `lda` apart, with their scales: none, one for all, or one a row.
    Given { rows: &'a [A], lda: u32, scales: &'a [f32] },
}

impl<'a, A: Element> Operand<'a, A> {
    /// # Safety
    /// The chunks of these rows have arrived, and no thread overwrites them while the slice lives.
    unsafe fn part(&self, rows: Range<u32>, k: u32) -> RowsOfA<'a, A> {
        match *self {
            Operand::Arriving { rows: all, tensor_scale } => {
                let scales = match (&all.scales, tensor_scale) {
                    // SAFETY: as for the rows, with which the scales travel.
                    (Some(scales), _) => unsafe { scales.rows(rows.clone()) },
                    (None, Some(one)) => std::slice::from_ref(one),
                    (None, None) => &[],
                };
                // SAFETY: the caller's promise.
                RowsOfA { elements: unsafe { all.rows.rows(rows) }, pitch: k, scales }
            }
            Operand::Given { rows: all, lda, scales } => {
                let scales = match scales {
                    [] | [_] => scales,
                    each => &each[rows.start as usize..rows.end as usize],
                };
                let elements = &all[rows.start as usize * lda as usize..];
                RowsOfA { elements, pitch: lda, scales }
            }
        }
    }
}

/// One step's products of one gathered A.
#[derive(Debug)]
pub(crate) struct TileJob<'a, A, B, D: Element> {
    pub(crate) a: Operand<'a, A>,
    pub(crate) products: &'a [ProductView<'a, B, D>],
    pub(crate) rank: u32,
    pub(crate) epoch: u32,
    /// Which rows to compute.
    pub(crate) rows: Range<u32>,
    pub(crate) grid: Grid,
    /// The clock's origin, if tiles are to be recorded.
    pub(crate) record: Option<Instant>,
}

/// The tiles of all products, side by side along N.
#[derive(Debug)]
pub(crate) struct Grid {
    order: TileOrder,
    /// `first_columns[p]` is the first tile column of product p.
    first_columns: Vec<u32>,
}

impl Grid {
    /// Of products of these widths, each rounded up to tiles; the rows of rank `pivot` come first.
    pub(crate) fn new(plan: &Plan, pivot: u32, widths: impl Iterator<Item = u32>) -> Result<Self> {
        let tiling = plan.options().tiling;
        let (mut first_columns, mut tiles) = (Vec::new(), 0u64);
        for width in widths {
            first_columns.push(tiles.min(u32::MAX.into()) as u32);
            tiles += u64::from(width.div_ceil(tiling.tile.n));
        }
        let columns = tiles * u64::from(tiling.tile.n);
        let all = u32::try_from(columns).map_err(|_| {
            let remedy = "give fewer products to one gather";
            let what = "the columns of all products together";
            Error::out_of_range(what, columns, 1, u32::MAX.into(), remedy)
        })?;
        Ok(Grid { order: TileOrder::new(plan.chunks(), all, tiling, pivot)?, first_columns })
    }

    /// The product that a tile of the grid belongs to, and the tile in its own grid.
    fn locate(&self, tile: Tile) -> (usize, Tile) {
        let product = self.first_columns.partition_point(|&first| first <= tile.n) - 1;
        (product, Tile { m: tile.m, n: tile.n - self.first_columns[product] })
    }
}

/// Computes all tiles of `job` on the workers of `stream`. Each worker makes itself a `waiter`,
/// which returns once the chunks of a tile have arrived.
pub(crate) fn run_tiles<A, B, D, W>(
    stream: Stream,
    job: &TileJob<'_, A, B, D>,
    waiter: impl Fn() -> W + Sync,
) -> Result<Vec<TileEvent>>
where
    A: Element,
    B: Element,
    D: Element,
    W: FnMut(Tile, Range<u32>) -> Result<()>,
{
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let stop = &stop;
    let work = |worker: u32| {
        let done = run_worker(job, worker, &next, stop, waiter());
        if done.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        done
    };
    let work = &work;
    let results: Vec<Result<Vec<TileEvent>>> = std::thread::scope(|scope| {
        let (mut results, mut others) = (Vec::new(), Vec::new());
        for worker in 1..stream.workers() {
            match std::thread::Builder::new().spawn_scoped(scope, move || work(worker)) {
                Ok(other) => others.push(other),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    results.push(Err(no_thread(&error)));
                    break;
                }
            }
        }
        results.push(work(0));
        for other in others {
            results.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    Ok(results.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Runs `work` for each row, on as many of the stream's threads as have enough of them; each has a buffer of its own.
pub(crate) fn run_rows(
    stream: Stream,
    rows: Range<u32>,
    work: impl Fn(u32, &mut Vec<f32>) + Sync,
) -> Result<()> {
    /// Fewer rows are added up before another thread has started.
    const ROWS_A_THREAD: u32 = 16;
    let workers = (rows.len() as u32 / ROWS_A_THREAD).clamp(1, stream.workers());
    let part = |worker: u32| {
        let mut buffer = Vec::new();
        for row in rows.clone().skip(worker as usize).step_by(workers as usize) {
            work(row, &mut buffer);
        }
    };
    let part = &part;
    std::thread::scope(|scope| {
        for worker in 1..workers {
            std::thread::Builder::new()
                .spawn_scoped(scope, move || part(worker))
                .map_err(|error| no_thread(&error))?;
        }
        part(0);
        Ok(())
    })
}

/// The system has no more threads to give.
pub(crate) fn no_thread(error: &std::io::Error) -> Error {
    Error::Unsupported {
        what: "another thread".into(),
        why: error.to_string(),
        remedy: "raise the limit on threads, or use fewer ranks or workers",
    }
}

fn run_worker<A: Element, B: Element, D: Element>(
    job: &TileJob<'_, A, B, D>,
    worker: u32,
    next: &AtomicU64,
    stop: &AtomicBool,
    mut wait: impl FnMut(Tile, Range<u32>) -> Result<()>,
) -> Result<Vec<TileEvent>> {
    let order = &job.grid.order;
    let mut scratch = Scratch::default();
    let mut events = Vec::new();
    // Relaxed: the counter only hands out numbers, the flag only saves work; neither orders data.
    while !stop.load(Ordering::Relaxed) {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= order.index_count() {
            break;
        }
        let Some(place) = order.tile_at(index) else { continue };
        let rows = order.rows(place);
        let rows = rows.start.max(job.rows.start)..rows.end.min(job.rows.end);
        let (product, tile) = job.grid.locate(place);
        let width = order.tiling().tile.n;
        let view = &job.products[product];
        let columns = tile.n * width..(tile.n * width).saturating_add(width).min(view.problem.n());
        if rows.is_empty() {
            continue;
        }
        let chunks = order.chunks().touching(rows.clone());
        let wait_begin = job.record.map(|origin| origin.elapsed());
        wait(tile, chunks.clone())?;
        let ready = job.record.map(|origin| origin.elapsed());
        for part in view.problem.parts(rows) {
            let first_column = part.first_column(view.problem);
            let Part { rows, in_a, .. } = part;
            let in_a = in_a..in_a + rows.len() as u32;
            // SAFETY: `wait` returned, so the chunks of these rows have arrived, and no thread overwrites them
            // before this step's consumption is posted (the protocol).
            let a = unsafe { job.a.part(in_a, view.problem.k()) };
            // SAFETY: the counter gives each tile to one worker.
            unsafe {
                view.compute_tile(a, [rows.clone(), columns.clone()], first_column, &mut scratch)
            };
        }
        if let (Some(origin), Some(wait_begin), Some(ready)) = (job.record, wait_begin, ready) {
            let place = |chunk: &u32| order.chunks().need_place(*chunk, order.pivot_rank());
            events.push(TileEvent {
                rank: job.rank,
                worker,
                epoch: job.epoch,
                product: product as u32,
                tile,
                chunk: chunks.max_by_key(place).unwrap_or(u32::MAX),
                wait_begin,
                ready,
                done: origin.elapsed(),
            });
        }
    }
    Ok(events)
}
