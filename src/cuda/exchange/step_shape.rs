//! What does not change between steps: a rank's part in the memory; and, between those with the same rows, the plan, this
//! rank's schedule, and what the device is handed of both.
//!
//! Invariant: two ranks that make it of the same rows agree on every chunk, slot and tag. Everything that has an order
//! has the schedule's.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::chunk_table::{ChunkTable, check_count};
use super::layout::Layout;
use super::shared_workspace::Place;
use super::symmetric::SymmetricMemory;
use super::words::STOP_AT;
use crate::cuda::sys::bindings::{og_push, og_slots};
use crate::cuda::sys::ffi::int;
use crate::error::Result;
use crate::plan::{BUFFERS, Lane, Plan, Schedule, Step, Word};

#[derive(Debug)]
pub(crate) struct StepShape {
    pub(crate) plan: Plan,
    pub(crate) schedule: Schedule,
    /// What a product that waits for rows looks at.
    pub(crate) table: ChunkTable,
    /// Where each chunk lies, in each buffer.
    pub(crate) pieces: [Vec<og_push>; BUFFERS as usize],
    /// What ranks compare: the same only if rows and buffer are.
    pub(crate) tags: [u32; BUFFERS as usize],
    /// Lanes whose sends the beginning waits for.
    pub(crate) senders: u32,
    /// The beginning waits until all ranks have begun this step.
    pub(crate) awaits_beginnings: bool,
    /// What comes after a gather's beginning, in order.
    pub(crate) computes: Vec<Compute>,
}

/// Rows that are multiplied, and what is awaited before.
#[derive(Debug)]
pub(crate) struct Compute {
    /// Slots that lie side by side, so that one kernel can wait for them; a failure calls them by their chunks.
    pub(crate) awaits: Vec<og_slots>,
    /// Which rows; none in a gather alone.
    pub(crate) rows: Range<u32>,
    /// The product waits for its rows by itself, tile by tile.
    pub(crate) by_tile: bool,
}

impl StepShape {
    /// Of a rank's schedule: the plan's own, but in a test.
    pub(crate) fn new(schedule: Schedule, plan: &Plan, layout: &Layout) -> Result<Self> {
        let chunks = plan.chunks();
        check_count(chunks)?;
        let rows = plan.problem().shards().to_rows();
        let product = schedule.steps.iter().find_map(|(_, step)| match step {
            Step::Multiply { pivot, awaits, .. } => Some((*pivot, &awaits[..])),
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } | Step::Reduce { .. } => {
                None
            }
        });
        let (pivot, awaited) = product.unwrap_or((schedule.rank, &[]));
        let slot_of = |chunk| {
            // A chunk that is not awaited has the signal of one that is available from the beginning.
            let own = chunks.of_rank(schedule.rank).start;
            let is_awaited = awaited.is_empty() || awaited.contains(&chunk);
            chunks.signal_slot(if is_awaited { chunk } else { own }, layout.slots_per_rank)
        };
        let is_sent = |step: &&Step| matches!(step, Step::Await { word: Word::Sent { .. }, .. });
        let awaits_beginning = |(_, step): &(Lane, Step)| {
            matches!(step, Step::Await { word: Word::Consumed { .. }, age: 1 })
        };
        Ok(StepShape {
            table: ChunkTable::new(chunks, plan.problem(), pivot, slot_of),
            pieces: [layout.pieces(plan, 0), layout.pieces(plan, 1)],
            tags: [tag(&rows, 0), tag(&rows, 1)],
            senders: schedule.lane(Lane::Begin).filter(is_sent).count() as u32,
            awaits_beginnings: schedule.steps.iter().any(awaits_beginning),
            computes: computes(&schedule, plan, layout.slots_per_rank),
            plan: plan.clone(),
            schedule,
        })
    }

    /// What this rank sends, to every peer.
    pub(crate) fn own_pieces(&self, buffer: u32) -> &[og_push] {
        let own = self.plan.chunks().of_rank(self.schedule.rank);
        &self.pieces[buffer as usize][own.start as usize..own.end as usize]
    }

    /// Whether the first thing after the step's beginning is a product that waits for rows by itself.
    pub(crate) fn waits_by_itself(&self) -> bool {
        self.computes.first().is_some_and(|first| first.by_tile && first.awaits.is_empty())
    }

    /// Whether this rank says to `peer` that it has consumed the step before.
    pub(crate) fn announces_to(&self, peer: u32) -> bool {
        self.schedule.lane(Lane::Compute).any(
            |step| matches!(step, Step::Post { word: Word::Consumed { .. }, to, .. } if *to == peer),
        )
    }
}

/// A rank's part in the memory of an operation, and where everything lies in it: the same offsets on all ranks.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<SymmetricMemory>,
    /// In memory that other operations use, too.
    pub(crate) place: Option<Arc<Place>>,
}

impl Part {
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.memory.own_address() + self.first()
    }

    /// Where the part of `peer` is, for this rank's GPU.
    pub(crate) fn start_of(&self, peer: u32) -> Result<CUdeviceptr> {
        Ok(self.memory.address(peer)? + self.first())
    }

    /// The first byte of the memory that is this operation's.
    fn first(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.words_at)
    }

    /// Where this rank's steps are given up: in words from the start, and the address. Operations that share memory share it.
    pub(crate) fn stop_at(&self) -> i32 {
        int(STOP_AT) - (self.first() / size_of::<u32>() as u64) as i32
    }

    pub(crate) fn stop(&self) -> CUdeviceptr {
        self.memory.own_address() + Layout::word(STOP_AT)
    }

    /// A word of this rank's.
    pub(crate) fn word(&self, at: u32) -> CUdeviceptr {
        self.start() + Layout::word(at)
    }

    /// A word of another's.
    pub(crate) fn word_of(&self, peer: u32, at: u32) -> Result<CUdeviceptr> {
        Ok(self.start_of(peer)? + Layout::word(at))
    }
}

fn computes(schedule: &Schedule, plan: &Plan, slots_per_rank: u32) -> Vec<Compute> {
    let mut computes = Vec::new();
    let mut runs: Vec<og_slots> = Vec::new();
    for step in schedule.lane(Lane::Compute) {
        match step {
            Step::Await { word: Word::Landed { chunk }, .. } => {
                let name = int(*chunk);
                let first = int(plan.chunks().signal_slot(*chunk, slots_per_rank));
                match runs.last_mut() {
                    Some(run)
                        if [run.first, run.name].map(|of| of + run.count) == [first, name] =>
                    {
                        run.count += 1;
                    }
                    _ => runs.push(og_slots { first, count: 1, stride: 1, name }),
                }
            }
            Step::Multiply { rows, awaits, .. } => {
                let (awaited, by_tile) = (std::mem::take(&mut runs), !awaits.is_empty());
                computes.push(Compute { awaits: awaited, rows: rows.clone(), by_tile });
            }
            // The step's beginning does these; the last is a reduction's, which goes by its schedule.
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } | Step::Reduce { .. } => {}
        }
    }
    if !runs.is_empty() {
        computes.push(Compute { awaits: runs, rows: 0..0, by_tile: false });
    }
    computes
}

/// Differs for other rows or another buffer, up to one chance in four thousand million: FNV-1a.
fn tag(rows: &[u32], buffer: u32) -> u32 {
    let bytes = rows.iter().chain([&buffer]).flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Engine, PlanOptions, Problem, Strategy};

    fn shape(rows: &[u32], strategy: Strategy, engine: Engine, pieces: u32) -> StepShape {
        let m = rows.iter().map(|&rows| u64::from(rows)).sum();
        let problem = Problem::builder(m, 48, 64).shards(rows).build().unwrap();
        let options = PlanOptions::new().with_strategy(strategy).with_engine(engine);
        let plan = Plan::new(&problem, options.with_pieces(pieces)).unwrap();
        let layout = Layout::new(&plan, false).unwrap();
        StepShape::new(plan.schedule(1), &plan, &layout).unwrap()
    }

    const COPIES: Engine = Engine::CopyEngines { streams: 2 };

    #[test]
    fn only_a_fused_step_begins_with_a_product_that_waits() {
        for strategy in Strategy::ALL {
            let shape = shape(&[8, 8, 8], strategy, COPIES, 2);
            assert_eq!(shape.waits_by_itself(), strategy == Strategy::Fused, "{strategy}");
            assert_eq!(shape.senders, 2);
        }
        assert_eq!(shape(&[8, 8], Strategy::Fused, Engine::PUSHING, 1).senders, 0);
    }

    /// The kernel knows its order by arithmetic; the schedule has it as a list.
    #[test]
    fn a_kernel_that_pushes_goes_by_the_schedule() {
        for (rows, pieces) in [(&[8, 9, 7, 8][..], 3), (&[4, 1, 0], 2), (&[90_000, 90_000], 2)] {
            let shape = shape(rows, Strategy::Fused, Engine::PUSHING, pieces);
            let (ranks, own) = (rows.len() as u32, shape.plan.chunks().of_rank(1));
            // `Push` of csrc/gather.cu: the i-th piece of all.
            let count = own.len() as u32;
            let ith = |i: u32| (own.start + i % count, (1 + ranks - (1 + i / count)) % ranks);
            let device: Vec<_> = (0..(ranks - 1) * count).map(ith).collect();
            let moves = shape.schedule.lane(Lane::Push(0)).filter_map(|step| match step {
                Step::Move { chunk, to } => Some((*chunk, *to)),
                _ => None,
            });
            assert_eq!(moves.collect::<Vec<_>>(), device);
        }
    }

    #[test]
    fn chunks_side_by_side_are_awaited_by_one_kernel() {
        let awaits = |rows: &[u32], strategy| {
            let computes = shape(rows, strategy, COPIES, 2).computes;
            let runs = computes.into_iter().map(|compute| compute.awaits.into_iter());
            runs.map(|runs| runs.map(|run| (run.first..run.first + run.count, run.name)).collect())
                .collect::<Vec<Vec<_>>>()
        };
        assert_eq!(awaits(&[8, 8, 8], Strategy::Sequential), [vec![(0..6, 0)]]);
        assert_eq!(awaits(&[1, 8, 8], Strategy::Sequential), [vec![(0..1, 0), (2..6, 1)]]);
        // Rank 1: its own rows, those of rank 2, those of rank 0.
        let pipelined = awaits(&[8, 8, 8], Strategy::Pipelined);
        assert_eq!(pipelined, [vec![], vec![(4..6, 4)], vec![(0..2, 0)]]);
    }

    #[test]
    fn a_chunk_that_is_not_awaited_is_never_waited_for() {
        let whole = shape(&[8, 8, 8], Strategy::Fused, COPIES, 1);
        let layout = Layout::new(&whole.plan, false).unwrap();
        let mut schedule = whole.schedule.clone();
        for (_, step) in &mut schedule.steps {
            if let Step::Multiply { awaits, .. } = step {
                assert_eq!(*awaits, [1, 2, 0]);
                awaits.pop();
            }
        }
        let part = StepShape::new(schedule, &whole.plan, &layout).unwrap();
        let slots = |shape: &StepShape| -> Vec<i32> {
            shape.table.chunks.iter().map(|chunk| chunk.signal).collect()
        };
        assert_eq!((slots(&whole), slots(&part)), (vec![0, 1, 2], vec![1, 1, 2]));
    }
}
