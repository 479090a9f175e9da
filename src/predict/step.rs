//! One step of one rank: the tiles of each worker and their times.
//!
//! Clusters of SMs take units of work as the device's scheduler does (`csrc/async_input_scheduler.cuh`): cluster c
//! the units c, c + clusters, …; slices of one unit's K lie side by side. A unit waits for the last chunk that its rows
//! touch. Invariant: times are µs from the end of the previous step; a worker computes one unit at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::machine::{Machine, ProductTimes};
use super::setup::Setup;
use super::transfers::{Busy, Transfers};
use crate::error::Result;
use crate::kernels::{Work, clusters_beside, sms_beside_push};
use crate::plan::{
    self, Chunks, Engine, Lane, Plan, Problem, Shards, Step as Does, Tile, TileOrder, Word,
};
use crate::trace::{AdditionEvent, TileEvent, Timeline};

/// Where each tile and addition is recorded, if anywhere.
pub(super) type Record<'a> = Option<&'a mut Timeline>;

/// The outcome of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The end of its last tile, and of what comes after.
    pub(super) end: f64,
    /// When its first tile could be computed.
    pub(super) first_tile: f64,
    /// The time that all workers waited for rows.
    pub(super) waited: f64,
    /// The number of workers.
    pub(super) workers: u64,
    /// From the end of the first worker to that of the last.
    pub(super) tail: f64,
    /// The time that the link's traffic cost all workers.
    pub(super) slowed: f64,
    /// In a reduction: when this rank's sums of each chunk were complete;
    pub(super) complete: Vec<f64>,
    /// and the time from the last of them to the end.
    pub(super) idle: f64,
}

/// One rank's step under a setup.
pub(super) struct Step<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    pub(super) setup: &'a Setup,
    pub(super) transfers: &'a Transfers<'a>,
    /// The time at the end of the step before in which nothing was multiplied.
    pub(super) idle: f64,
}

/// A product of some of the rows.
struct Part {
    problem: Problem,
    order: TileOrder,
}

/// How far a rank is in its schedule.
#[derive(Default)]
struct Progress {
    now: f64,
    /// When all that was awaited so far had arrived;
    there: f64,
    /// and whether something was, since the last kernel began.
    awaited: bool,
    /// The end of the last product, and how many there were.
    multiplied: f64,
    products: u32,
    last: Option<Part>,
    all: Outcome,
}

/// How a product runs: its work, the time of a unit, and what the link takes from it.
struct Product {
    work: Work,
    times: ProductTimes,
    splits: u64,
    busy: Busy,
    slowdown: f64,
}

impl Step<'_> {
    /// What `rank` does by its schedule.
    pub(super) fn run(&self, rank: u32, mut record: Record<'_>) -> Result<Outcome> {
        let ready = self.transfers.ready(rank);
        let options = self.plan.options();
        let is_kernel = matches!(options.engine, Engine::Kernel { .. });
        let adds_up = options.operation.products_add_up(options.strategy, options.engine);
        let reduces = options.operation.reduces();
        let arrived = if reduces { self.transfers.sums_at(rank) } else { BTreeMap::new() };
        let (busy, whole) = (self.transfers.busy(rank), self.plan.tile_order(rank)?);
        let mut at = Progress::default();
        at.all.complete = vec![0.0; self.plan.chunks().len() as usize];
        let added_up = self.plan.added_up(rank);
        let mut beginning_by_kernel = self.machine.exchange_us;
        let note = |record: &mut Record<'_>, chunk, begin, done| {
            let [begin, done] = [begin, done].map(duration);
            let event = AdditionEvent { rank, epoch: 0, chunk, begin, done };
            record.iter_mut().for_each(|timeline| timeline.additions.push(event));
        };
        for (lane, step) in &self.plan.schedule(rank).steps {
            let (rows, awaits) = match step {
                Does::Await { word: Word::Partial { chunk, from }, .. } => {
                    at.there = at.there.max(arrived.get(&(*chunk, *from)).copied().unwrap_or(0.0));
                    at.awaited = true;
                    continue;
                }
                // Copies read the caller's memory: its sums, or the D whose totals they send.
                Does::Await { word: Word::Sent { .. }, age: 0 } => {
                    at.there = at.there.max(self.transfers.sent_at(rank));
                    continue;
                }
                // Without a product the kernel copies the rank's sums to where the others read them.
                Does::Move { chunk, to } if is_kernel && reduces && *to == rank => {
                    at.now += self.machine.adding(options.engine, self.copied_bytes(*chunk));
                    continue;
                }
                // The product of these rows has added them up.
                Does::Reduce { chunk } if adds_up && added_up.contains(chunk) => continue,
                // A kernel behind the product reads all ranks' sums where they lie: all products take as long as this one.
                Does::Reduce { chunk } if is_kernel && added_up.contains(chunk) => {
                    let begin = at.now + std::mem::take(&mut beginning_by_kernel);
                    at.now = begin + self.read_us(*chunk);
                    note(&mut record, *chunk, begin, at.now);
                    at.awaited = false;
                    at.all.complete[*chunk as usize] = at.now;
                    continue;
                }
                Does::Reduce { chunk } => {
                    let looking =
                        if std::mem::take(&mut at.awaited) { self.machine.await_us } else { 0.0 };
                    let beginning = looking + self.machine.adding_us;
                    // Of a total that has arrived, one rank's is read.
                    let read =
                        if added_up.contains(chunk) { self.plan.problem().ranks() } else { 1 };
                    let begin = at.now.max(at.there) + if is_kernel { 0.0 } else { beginning };
                    let bytes = self.added_bytes(*chunk, read);
                    at.now = begin + self.machine.adding(options.engine, bytes);
                    note(&mut record, *chunk, begin, at.now);
                    continue;
                }
                _ if *lane != Lane::Compute => continue,
                Does::Post { word: Word::Summed { chunk }, .. } => {
                    at.all.complete[*chunk as usize] = at.now;
                    continue;
                }
                Does::Await { word: Word::Landed { chunk }, .. } => {
                    at.there = at.there.max(ready[*chunk as usize]);
                    at.awaited = true;
                    continue;
                }
                Does::Await { .. } | Does::Post { .. } | Does::Move { .. } => continue,
                Does::Multiply { rows, awaits, .. } => (rows, awaits),
            };
            if !awaits.is_empty() {
                return Ok(self.run_fused(rank, &whole, busy, ready, record));
            }
            for plan::Part { rows, .. } in self.plan.problem().parts(rows.clone()) {
                self.multiply(rank, rows, busy, &whole, &mut at, &mut record)?;
            }
        }
        // A kernel sends totals itself.
        let sent = if is_kernel && reduces { self.transfers.sent_at(rank) } else { 0.0 };
        at.all.end = at.now.max(at.there).max(sent);
        at.all.idle = at.all.end - at.multiplied;
        Ok(at.all)
    }

    /// The product of these rows, behind what is awaited.
    fn multiply(
        &self,
        rank: u32,
        rows: Range<u32>,
        busy: Busy,
        whole: &TileOrder,
        at: &mut Progress,
        record: &mut Record<'_>,
    ) -> Result<()> {
        let looks = std::mem::take(&mut at.awaited) && self.plan.options().engine != Engine::Nccl;
        let looking = if looks { self.machine.await_us } else { 0.0 };
        let start = at.now.max(at.there).max(self.transfers.begun_at(rank)) + looking;
        // Most shards are as large as the one before.
        let part = match at.last.take() {
            Some(part) if part.problem.m() == rows.len() as u32 => part,
            _ => self.part(rows.len() as u32)?,
        };
        let rested = if at.products == 0 { start + self.idle } else { 0.0 };
        let sms = self.setup.sms.map_or(self.machine.sms, |sms| sms.min(self.machine.sms));
        let product = self.product(&part.problem, sms, part.order.sweeps(), busy, rested);
        // Of a part, all tiles need the last chunk; of the whole, each its own.
        let is_whole = rows.len() as u32 == self.plan.problem().m();
        let touched = self.plan.chunks().touching(rows);
        let chunk = if is_whole { 0 } else { touched.end.saturating_sub(1) };
        let event = TileEvent { rank, product: at.products, chunk, ..TileEvent::default() };
        let launched = start + self.machine.launch_us;
        let order = if is_whole { whole } else { &part.order };
        let there = Arrival::whole(vec![0.0; order.chunks().len() as usize]);
        let outcome =
            product.run(order, launched, Late::NONE, &there, event, record.as_deref_mut());
        at.last = Some(part);
        if at.products == 0 {
            at.all.first_tile = outcome.first_tile;
        }
        if !is_whole {
            at.all.waited += (start - at.now) * outcome.workers as f64;
        }
        at.all.slowed += outcome.slowed;
        (at.all.workers, at.all.tail) = (at.all.workers.max(outcome.workers), outcome.tail);
        (at.now, at.multiplied) = (outcome.end, outcome.end);
        at.products += 1;
        Ok(())
    }

    /// The product of `problem` on `sms` SMs, which goes through all columns `sweeps` times, after nothing was computed for
    /// `rested`.
    fn product(
        &self,
        problem: &Problem,
        sms: u32,
        sweeps: u64,
        busy: Busy,
        rested: f64,
    ) -> Product {
        let Setup { kernel, splits, .. } = self.setup;
        let work = Work::new(kernel, problem, *splits, sweeps, sms);
        let mut times = self.machine.product(&work, problem.elements().a.is_fp8());
        let gained = self.machine.rest_gain * rested / (times.unit * work.waves as f64);
        let rested = 1.0 - gained.min(self.machine.rest_gain_most);
        (times.unit, times.ahead) = (times.unit * rested, times.ahead * rested);
        let slowdown = self.machine.busy_slowdown * busy.share;
        Product { work, times, splits: u64::from(*splits), busy, slowdown }
    }

    fn run_fused(
        &self,
        rank: u32,
        order: &TileOrder,
        busy: Busy,
        ready: Vec<f64>,
        record: Record<'_>,
    ) -> Outcome {
        let (problem, own_at) = (self.plan.problem(), self.transfers.own_at());
        let (pushing, until) = self.transfers.pushing(rank);
        let Setup { kernel, splits, sms, .. } = self.setup;
        let all = self.machine.sms;
        let usual = || sms_beside_push(kernel, problem, *splits, all, pushing);
        let most = self.plan.way().sms_of_product(problem, all);
        let sms = sms.unwrap_or_else(usual).min(most);
        let arrival = Arrival {
            first: self.transfers.first_spans(rank),
            last: ready,
            spans: self.plan.chunks().spans(),
        };
        let product = self.product(problem, sms, order.sweeps(), busy, own_at);
        let launched = own_at + self.machine.launch_us;
        let event = TileEvent { rank, ..TileEvent::default() };
        let late = Late { fit: clusters_beside(kernel, all, pushing).into(), until };
        product.run(order, launched, late, &arrival, event, record)
    }

    /// The product of some rows alone, and the order of its tiles.
    fn part(&self, rows: u32) -> Result<Part> {
        let problem = self.setup.product_of(self.plan.problem())?;
        let problem = match rows == problem.m() {
            true => problem,
            false => problem.of_largest_shard()?.truncated(rows)?,
        };
        // It waits for none of its rows.
        let one = Chunks::even(&Shards::even(rows, 1)?, 1)?;
        let order = TileOrder::new(&one, problem.n(), self.plan.options().tiling, 0)?;
        Ok(Part { problem, order })
    }

    /// How long it takes to read the other ranks' sums of a chunk in their memory.
    fn read_us(&self, chunk: u32) -> f64 {
        let (problem, size) = (self.plan.problem(), self.setup.kernel.elements.d.size());
        let elements = self.plan.chunks().rows(chunk).len() as f64 * f64::from(problem.n());
        let bytes = f64::from((problem.ranks() - 1) * size) * elements;
        bytes / self.machine.rate(self.plan.options().engine)
    }

    /// What copying a rank's own sums of a chunk reads and writes.
    fn copied_bytes(&self, chunk: u32) -> f64 {
        let size = f64::from(2 * self.setup.kernel.elements.d.size());
        self.plan.chunks().rows(chunk).len() as f64 * f64::from(self.plan.problem().n()) * size
    }

    /// What adding up a chunk reads and writes: the sums of that many ranks, and D.
    fn added_bytes(&self, chunk: u32, ranks: u32) -> f64 {
        let problem = self.plan.problem();
        let read = ranks * self.setup.kernel.elements.d.size();
        let each = f64::from(read + problem.elements().d.size());
        self.plan.chunks().rows(chunk).len() as f64 * f64::from(problem.n()) * each
    }
}

impl Product {
    /// Computes all units of `order` from `start` on.
    fn run(
        &self,
        order: &TileOrder,
        start: f64,
        late: Late,
        arrival: &Arrival,
        event: TileEvent,
        mut record: Record<'_>,
    ) -> Outcome {
        let tiles = order.tiling().unit_tiles();
        let units = order.index_count() / tiles;
        let items = units * self.splits;
        let clusters = self.work.clusters.min(items);
        let mut free = vec![start; clusters as usize];
        // Clusters begin on free SMs as long as there are some, the first ones first.
        let waiting = clusters.saturating_sub(late.fit) as usize;
        free.iter_mut().rev().take(waiting).for_each(|free| *free = free.max(late.until));
        let all_there = latest(&arrival.last, 0..order.chunks().len());
        let mut outcome = Outcome { first_tile: f64::INFINITY, ..Outcome::default() };
        outcome.workers = clusters * tiles;
        for item in 0..items {
            let unit = item / self.splits;
            let worker = (item % clusters) as usize;
            let wait_begin = free[worker];
            // Once all rows are there, it makes no difference which a unit needs.
            let (begin, last) = match wait_begin >= all_there {
                true => (wait_begin, wait_begin),
                false => {
                    let chunks = chunks_of_unit(order, unit * tiles);
                    let first = latest(&arrival.first, chunks.clone());
                    (wait_begin.max(first), wait_begin.max(latest(&arrival.last, chunks)))
                }
            };
            let whole = self.end(begin);
            let fed = whole - self.times.ahead.min(begin - wait_begin);
            let end = match arrival.spans {
                1 => fed,
                // The last span's part of K is multiplied when that has come.
                spans => fed.max(last + self.times.unit / f64::from(spans)),
            };
            free[worker] = end;
            outcome.first_tile = outcome.first_tile.min(begin);
            outcome.waited += (begin - wait_begin + end - fed) * tiles as f64;
            outcome.slowed += (whole - begin - self.times.unit) * tiles as f64;
            // As on the device, the last slice adds up and stores.
            let stores = item % self.splits + 1 == self.splits;
            let Some(record) = record.as_mut().filter(|_| stores) else { continue };
            for within in 0..tiles {
                let Some(tile) = order.tile_at(unit * tiles + within) else { continue };
                let at = |chunk: &u32| arrival.last[*chunk as usize];
                let later = |a: &u32, b: &u32| at(a).total_cmp(&at(b));
                let need = order.chunks_of(tile).max_by(later);
                record.tiles.push(TileEvent {
                    worker: (worker as u64 * tiles + within) as u32,
                    tile,
                    // A part of the rows has one chunk of its own: the event says which that is of all.
                    chunk: event.chunk.max(need.unwrap_or(0)),
                    wait_begin: duration(wait_begin),
                    ready: duration(last),
                    done: duration(end + self.times.joining),
                    ..event
                });
            }
        }
        let last = free.iter().copied().fold(0.0, f64::max);
        let through = free.iter().copied().fold(f64::INFINITY, f64::min);
        outcome.tail = last - through;
        outcome.end = last + self.times.joining;
        outcome
    }

    /// When a unit that begins then has been computed: longer while the link is busy.
    fn end(&self, begin: f64) -> f64 {
        let (Busy { from, to, .. }, slow) = (self.busy, 1.0 + self.slowdown);
        let before = (from - begin).max(0.0);
        if begin >= to || self.times.unit <= before {
            return begin + self.times.unit;
        }
        let from = begin.max(from);
        let within = (to - from) / slow;
        let left = self.times.unit - before;
        if left <= within { from + left * slow } else { to + left - within }
    }
}

/// When each chunk's first span of columns may be read, and its last.
struct Arrival {
    first: Vec<f64>,
    last: Vec<f64>,
    spans: u32,
}

impl Arrival {
    fn whole(ready: Vec<f64>) -> Arrival {
        Arrival { first: ready.clone(), last: ready, spans: 1 }
    }
}

/// The clusters that fit on the GPU when a product starts; the others begin when something else has ended.
#[derive(Clone, Copy, Debug)]
struct Late {
    fit: u64,
    until: f64,
}

impl Late {
    const NONE: Late = Late { fit: u64::MAX, until: 0.0 };
}

/// When the last of some chunks may be read.
fn latest(ready: &[f64], chunks: Range<u32>) -> f64 {
    chunks.map(|chunk| ready[chunk as usize]).fold(0.0, f64::max)
}

/// The chunks that the rows of a unit touch, by the index of its first tile, which is inside the output always.
fn chunks_of_unit(order: &TileOrder, index: u64) -> Range<u32> {
    let Some(first) = order.tile_at(index) else { return 0..0 };
    let (rows, _) = order.grid();
    let last = Tile { m: (first.m + order.tiling().cluster.m - 1).min(rows - 1), ..first };
    order.chunks().touching(order.rows(first).start..order.rows(last).end)
}

pub(super) fn duration(us: f64) -> Duration {
    Duration::from_nanos((us.max(0.0) * 1e3).round() as u64)
}
