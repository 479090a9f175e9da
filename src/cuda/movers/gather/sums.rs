//! What a reduction has beside a gather: its sums, and the waits for those of other ranks.
//!
//! What belongs here: addresses and words, and the kernel that sends sums and adds them up. What is summed, and what becomes of
//! a total, is none of its business. Invariant: but for that kernel nothing here holds an SM that another rank needs
//! while it waits: one warp waits.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::{Gatherer, Step};
use crate::cuda::exchange::layout::TOGGLE_EPOCH_AT;
use crate::cuda::exchange::signals::{EPOCH_AT, STOP_AT};
use crate::cuda::sys::call::{Exchange, GatherStep, Slots, Sums, SumsRun, Totals, int};
use crate::cuda::sys::ffi;
use crate::cuda::sys::workspace::is_capturing;
use crate::error::{Error, Result};
use crate::plan::Engine;

impl Gatherer {
    /// An error if a rank owns more rows in this step than its slots hold.
    pub(crate) fn check_owned(&self, rows: Option<&[u32]>) -> Result<()> {
        let most = rows.and_then(|rows| rows.iter().max().copied()).unwrap_or(0);
        let planned = self.plan.most_output_rows();
        if most <= planned {
            return Ok(());
        }
        let remedy = "plan for the most rows that a rank gets in any step";
        let what = "the rows that one rank gets in this step";
        Err(Error::out_of_range(what, most.into(), 0, planned.into(), remedy))
    }

    /// Where this rank's sums of a step in `buffer` start.
    pub(crate) fn own_sums(&self, buffer: u32) -> CUdeviceptr {
        self.part.start() + self.part.layout.row(buffer, 0)
    }

    /// What was summed on `stream` so far may be sent: the schedule's `summed`.
    pub(crate) fn note_summed(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.copies.note_summed(stream)
    }

    /// Lets `stream` wait for sums that other ranks send: of a chunk and a rank each.
    pub(crate) fn await_sums(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        awaited: &[(u32, u32)],
    ) -> Result<()> {
        let runs = self.slots_of(step, awaited);
        runs.iter().try_for_each(|slots| self.await_slots(stream, step, slots))
    }

    /// The slots of the sums of a chunk and a rank each.
    fn slots_of(&self, step: &Step, awaited: &[(u32, u32)]) -> Vec<Slots> {
        let (layout, plan) = (&self.part.layout, &step.shape.plan);
        let slot_of = |chunk, from| layout.signal_slot(plan, chunk, from);
        runs(awaited, self.group.rank(), layout.slots_per_rank(), slot_of)
    }

    /// Begins a step behind the product of all its sums, by the kernel that also sends and signals chunks, each to a rank,
    /// waits for others, each from a rank, and makes D of `total`.
    ///
    /// # Safety
    /// What `total` names is this device's memory, as long as the rows of the step say, until the step has ended.
    pub(crate) unsafe fn exchange(
        &mut self,
        stream: &Arc<CudaStream>,
        step: &Step,
        [sent, signalled, awaited]: [&[(u32, u32)]; 3],
        total: Option<(&Sums, &Totals)>,
    ) -> Result<()> {
        let (layout, shape) = (&self.part.layout, &step.shape);
        let Engine::Kernel { blocks } = self.plan.options().engine else { return Ok(()) };
        let begin = GatherStep {
            buffer: step.buffer,
            layout: shape.tags[step.buffer as usize],
            slots: layout.own_slots(&shape.plan, self.group.rank()),
            toggled: false,
            product_follows: false,
            product_may_start: false,
            senders: 0,
            pushes: &[],
            blocks,
            counter: self.table.counter,
        };
        let exchange = Exchange {
            own: self.own_sums(step.buffer),
            row_bytes: layout.pitch(),
            runs: &self.runs_of(step, sent, signalled),
            awaited: &self.slots_of(step, awaited),
            total,
        };
        let (words, handle) =
            (self.words(is_capturing(stream)?), stream.cu_stream().cast::<c_void>());
        // SAFETY: `begin` has made the context current; words and tables live as long as this value, which waits for its
        // streams; every rank has slots where the layout says; the rest is the caller's promise.
        unsafe { ffi::exchange_sums(&words, &begin, &exchange, handle) }?;
        self.course.advance();
        self.course.latest = Some(Arc::clone(shape));
        Ok(())
    }

    /// What is sent and signalled, in the schedule's order; chunks that lie side by side, here and at their receiver, are one
    /// run. Only in a test's schedule is a chunk sent and not signalled, or signalled and not sent.
    fn runs_of(&self, step: &Step, sent: &[(u32, u32)], signalled: &[(u32, u32)]) -> Vec<SumsRun> {
        let (layout, plan, rank) = (&self.part.layout, &step.shape.plan, self.group.rank());
        let unsent = signalled.iter().filter(|of| !sent.contains(of));
        let mut runs: Vec<SumsRun> = Vec::new();
        for &(chunk, to) in sent.iter().chain(unsent) {
            let rows = plan.chunks().rows(chunk);
            let moved = if sent.contains(&(chunk, to)) { rows.len() as i64 } else { 0 };
            let run = SumsRun {
                to: layout.lands_at(plan, chunk, [rank, to], step.buffer),
                first_row: rows.start.into(),
                rows: moved,
                peer: int(to),
                slot: int(layout.signal_slot(plan, chunk, rank)),
                slots: signalled.contains(&(chunk, to)).into(),
                reserved: 0,
            };
            match runs.last_mut().filter(|last| continues(last, &run)) {
                Some(last) => (last.rows, last.slots) = (last.rows + run.rows, last.slots + 1),
                None => runs.push(run),
            }
        }
        runs
    }

    /// All ranks' sums of some of this rank's rows, from the byte `column` of a row on; `size` is an element's.
    pub(crate) fn sums(&self, step: &Step, rows: &Range<u32>, column: u64, size: u64) -> Sums {
        let (part, layout, rank) = (&self.part, &self.part.layout, self.group.rank());
        let first = step.shape.plan.output_rows(rank).start;
        let local = u64::from(rows.start - first) * layout.pitch();
        let epoch_at = if step.toggled { TOGGLE_EPOCH_AT } else { EPOCH_AT };
        Sums {
            own: part.start() + layout.row(step.buffer, rows.start) + column,
            slots: part.start() + layout.slots_start(step.buffer) + local + column,
            slot_pitch: layout.slot_bytes() / size,
            pitch: layout.pitch() / size,
            ranks: self.group.ranks(),
            rank,
            stop: part.word(STOP_AT),
            epoch: part.word(epoch_at),
        }
    }
}

/// Whether a chunk lies right behind a run, rows and signals alike.
fn continues(last: &SumsRun, run: &SumsRun) -> bool {
    let ends = (last.peer, last.first_row + last.rows, last.slot + last.slots);
    ends == (run.peer, run.first_row, run.slot) && run.rows > 0 && run.slots == 1
}

/// What one kernel can wait for: a chunk's sums of one rank after the other. The word of `own`, which the step's beginning has
/// set, may lie between. A failure counts ranks.
fn runs(
    awaited: &[(u32, u32)],
    own: u32,
    stride: u32,
    slot_of: impl Fn(u32, u32) -> u32,
) -> Vec<Slots> {
    let mut runs: Vec<(u32, Slots)> = Vec::new();
    for &(chunk, from) in awaited {
        match runs.last_mut() {
            Some((of, Slots { count, name, .. })) if *of == chunk && *name + *count == from => {
                *count += 1;
            }
            Some((of, Slots { count, name, .. }))
                if *of == chunk && *name + *count == own && own + 1 == from =>
            {
                *count += 2;
            }
            _ => {
                let first = slot_of(chunk, from);
                runs.push((chunk, Slots { first, count: 1, stride, name: from }));
            }
        }
    }
    runs.into_iter().map(|(_, slots)| slots).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (first slot, count, first rank) of each run; three slots a rank.
    fn found(awaited: &[(u32, u32)], own: u32) -> Vec<(u32, u32, u32)> {
        // The chunks of rank 1 are 4, 5 and 6.
        let runs = runs(awaited, own, 3, |chunk, from| from * 3 + chunk - 4);
        assert!(runs.iter().all(|run| run.stride == 3));
        runs.into_iter().map(|run| (run.first, run.count, run.name)).collect()
    }

    #[test]
    fn one_kernel_waits_for_all_ranks_sums_of_a_chunk() {
        assert_eq!(found(&[(5, 0), (5, 2), (5, 3)], 1), [(1, 4, 0)]);
        assert_eq!(found(&[(4, 1), (4, 2)], 0), [(3, 2, 1)]);
        assert_eq!(found(&[(4, 0), (4, 1)], 2), [(0, 2, 0)]);
        assert_eq!(found(&[], 0), []);
    }

    #[test]
    fn sums_that_are_not_awaited_are_not_waited_for() {
        assert_eq!(found(&[(5, 2), (5, 3)], 1), [(7, 2, 2)]);
        assert_eq!(found(&[(5, 0), (5, 3)], 1), [(1, 1, 0), (10, 1, 3)]);
        assert_eq!(found(&[(5, 0), (5, 2), (6, 3)], 1), [(1, 3, 0), (11, 1, 3)]);
    }
}
