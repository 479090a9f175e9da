//! What does not change between steps with the same rows: the plan, this rank's schedule, and what the device is handed
//! of both.
//!
//! Invariant: two ranks that make it of the same rows agree on every chunk, slot and tag. Everything that has an order
//! has the schedule's.

use std::ops::Range;

use super::chunk_table::{ChunkTable, check_count};
use super::layout::Layout;
use crate::cuda::sys::call::Push;
use crate::error::Result;
use crate::plan::{BUFFERS, Lane, Plan, Schedule, Step, Word};

/// What does not change between steps with the same rows.
#[derive(Debug)]
pub(crate) struct StepShape {
    pub(crate) plan: Plan,
    pub(crate) schedule: Schedule,
    /// What a product that waits for rows looks at.
    pub(crate) table: ChunkTable,
    /// Where each chunk lies, in each buffer.
    pub(crate) pieces: [Vec<Push>; BUFFERS as usize],
    /// What ranks compare: the same only if rows and buffer are.
    pub(crate) tags: [u32; BUFFERS as usize],
    /// Lanes whose sends the beginning waits for.
    pub(crate) senders: u32,
}

impl StepShape {
    pub(crate) fn new(plan: &Plan, layout: &Layout, rank: u32) -> Result<Self> {
        let chunks = plan.chunks();
        check_count(chunks)?;
        let schedule = plan.schedule(rank);
        let slot_of = |chunk| chunks.signal_slot(chunk, layout.slots_per_rank());
        let rows = plan.problem().shards().to_rows();
        let pivot = schedule.steps.iter().find_map(|(_, step)| match step {
            Step::Multiply { pivot, .. } => Some(*pivot),
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } => None,
        });
        let is_sent = |step: &&Step| matches!(step, Step::Await { word: Word::Sent { .. }, .. });
        Ok(StepShape {
            table: ChunkTable::new(chunks, pivot.unwrap_or(rank), slot_of),
            pieces: [layout.pieces(plan, 0), layout.pieces(plan, 1)],
            tags: [tag(&rows, 0), tag(&rows, 1)],
            senders: schedule.lane(Lane::Begin).filter(is_sent).count() as u32,
            plan: plan.clone(),
            schedule,
        })
    }

    /// What this rank sends, to every peer.
    pub(crate) fn own_pieces(&self, buffer: u32) -> &[Push] {
        let own = self.plan.chunks().of_rank(self.schedule.rank);
        &self.pieces[buffer as usize][own.start as usize..own.end as usize]
    }

    /// Whether the first thing after the step's beginning is a product that waits for rows by itself.
    pub(crate) fn waits_by_itself(&self) -> bool {
        let first = self.schedule.lane(Lane::Compute).find_map(|step| match step {
            Step::Await { word: Word::Landed { .. }, .. } => Some(false),
            Step::Multiply { awaits, .. } => Some(!awaits.is_empty()),
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } => None,
        });
        first.unwrap_or(false)
    }

    /// Runs of chunks whose slots lie side by side: what one kernel can wait for.
    pub(crate) fn runs(&self, chunks: &[u32], slots_per_rank: u32) -> Vec<(Range<u32>, u32)> {
        let mut runs: Vec<(Range<u32>, u32)> = Vec::new();
        for &chunk in chunks {
            let slot = self.plan.chunks().signal_slot(chunk, slots_per_rank);
            match runs.last_mut() {
                Some((slots, first))
                    if slots.end == slot && *first + slots.len() as u32 == chunk =>
                {
                    slots.end += 1;
                }
                _ => runs.push((slot..slot + 1, chunk)),
            }
        }
        runs
    }
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
        let layout = Layout::new(&problem, plan.chunks().most_per_rank()).unwrap();
        StepShape::new(&plan, &layout, 1).unwrap()
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
        let even = shape(&[8, 8, 8], Strategy::Sequential, COPIES, 2);
        assert_eq!(even.runs(&[0, 1, 2, 3, 4, 5], 2), [(0..6, 0)]);
        assert_eq!(even.runs(&[4, 5, 0], 2), [(4..6, 4), (0..1, 0)]);
        let uneven = shape(&[1, 8, 8], Strategy::Sequential, COPIES, 2);
        assert_eq!(uneven.runs(&[0, 1, 2, 3, 4], 2), [(0..1, 0), (2..6, 1)]);
    }
}
