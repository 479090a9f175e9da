//! What a reduction has beside a gather: its sums, and the waits for those of other ranks.
//!
//! What belongs here: addresses and words, the kernel that adds up all ranks' sums where they lie, and may send totals, and NCCL in
//! its place. What is summed, and what becomes of a total, is none of its business. Invariant: but for these two nothing here holds an
//! SM that another rank needs while it waits: one warp waits.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::{Begun, Gatherer};
use crate::cuda::exchange::words::{EPOCH_AT, TOGGLE_EPOCH_AT};
use crate::cuda::sys::bindings::{og_exchange, og_reduction, og_slots, og_sums_run};
use crate::cuda::sys::ffi::{self, count, int, long};
use crate::cuda::sys::stream_ops::is_capturing;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::plan::Engine;

/// What a kernel does with sums, or with totals: each chunk goes to a rank, or comes from one.
#[derive(Default)]
pub(crate) struct Shot {
    /// Sums never are.
    pub(crate) sent: Vec<(u32, u32)>,
    pub(crate) signalled: Vec<(u32, u32)>,
    pub(crate) awaited: Vec<(u32, u32)>,
    /// Added up, or stored.
    pub(crate) reduced: Vec<u32>,
}

impl Gatherer {
    /// An error if a rank has more rows in this step than slots hold.
    pub(crate) fn check_owned(&self, rows: Option<&[u32]>) -> Result<()> {
        let slots = self.plan.slot_rows();
        let most = rows.and_then(|rows| rows.iter().max()).filter(|_| slots > 0);
        let most = most.map(|rows| rows.saturating_mul(self.plan.problem().batches()));
        let remedy = "plan for the most rows that a rank has in any step";
        let what = "the rows of one rank in this step";
        Error::check_range(what, most.unwrap_or(0), 0..=slots, remedy)
    }

    /// Lets `stream` wait for sums that other ranks send: of a chunk and a rank each.
    pub(crate) fn await_sums(
        &self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        awaited: &[(u32, u32)],
    ) -> Result<()> {
        let runs = self.slots_of(step, awaited);
        runs.iter().try_for_each(|slots| self.await_slots(stream, step, slots))
    }

    /// The slots of the sums of a chunk and a rank each.
    fn slots_of(&self, step: &Begun, awaited: &[(u32, u32)]) -> Vec<og_slots> {
        let (layout, plan) = (&self.part.layout, &step.shape.plan);
        let slot_of = |chunk, from| layout.signal_slot(plan, chunk, from);
        runs(awaited, self.group.rank(), slot_of)
    }

    /// The kernel behind the product of all sums, if there is one: it begins the step, unless it has begun, signals that this rank's
    /// sums are there, waits for others', makes D of `total`, and sends, awaits and stores totals.
    ///
    /// # Safety
    /// What `total` names is this device's memory, as long as the rows of the step say, until the step has ended.
    pub(crate) unsafe fn exchange(
        &mut self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        [sums, totals]: &[Shot; 2],
        total: Option<&og_reduction>,
    ) -> Result<()> {
        let (layout, shape) = (&self.part.layout, &step.shape);
        let Engine::Kernel { blocks } = self.plan.options().engine else { return Ok(()) };
        let begin = self.beginning(shape, step.buffer, blocks);
        let sent = [sums, totals].map(|shot| self.sent_runs(step, shot));
        let stored = self.stored_runs(step, &totals.reduced);
        let awaited = [sums, totals].map(|shot| self.slots_of(step, &shot.awaited));
        let (runs, slots) = ([&sent[0][..], &sent[1], &stored].concat(), awaited.concat());
        let is_brought = self.plan.options().operation.is_alone();
        let brought = if is_brought { step.own_rows } else { 0 };
        let exchange = og_exchange {
            sums_at: layout.row(step.buffer, 0),
            row_bytes: long(layout.pitch),
            brought: brought as *const _,
            brought_rows: shape.plan.problem().m().into(),
            runs: runs.as_ptr(),
            awaited: slots.as_ptr(),
            sums_signalled: count(&sent[0]),
            totals_sent: count(&sent[1]),
            totals_stored: count(&stored),
            sums_awaited: count(&awaited[0]),
            totals_awaited: count(&awaited[1]),
            follows_product: (!shape.computes.is_empty()).into(),
            has_begun: step.has_begun.into(),
            reserved: 0,
            total: total.map_or(std::ptr::null(), std::ptr::from_ref),
        };
        let words = self.words(is_capturing(stream)?);
        // SAFETY: `begin` has made the context current; words and tables live as long as this value, which waits for its
        // streams; every rank has sums where the layout says; the rest is the caller's promise.
        unsafe { ffi::exchange_sums(&words, &begin, &exchange, stream) }?;
        if !step.has_begun {
            self.course.advance();
            self.course.latest = Some(Arc::clone(shape));
        }
        Ok(())
    }

    /// NCCL behind the sums, which are `element`s: their totals come to this rank's memory, where [`Gatherer::sums`] finds them.
    pub(crate) fn add_up_by_nccl(
        &mut self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        element: ElementType,
    ) -> Result<()> {
        let limit = self.limit(is_capturing(stream)?);
        let Some(nccl) = &mut self.nccl else { return Ok(()) };
        let sums = (&*step.shape, step.buffer, step.own_rows);
        // SAFETY: the sums are this operation's, or the caller of `begin` has vouched for them.
        unsafe { nccl.add_up(stream, &self.part, sums, element, limit) }?;
        self.course.advance();
        self.course.latest = Some(Arc::clone(&step.shape));
        Ok(())
    }

    /// What is sent and signalled, or signalled alone, in the schedule's order; chunks that lie side by side, here and at their
    /// receiver, are one run. Only in a test's schedule is a chunk sent and not signalled.
    fn sent_runs(&self, step: &Begun, Shot { sent, signalled, .. }: &Shot) -> Vec<og_sums_run> {
        let (layout, plan, rank) = (&self.part.layout, &step.shape.plan, self.group.rank());
        let unsent = signalled.iter().filter(|of| !sent.contains(of));
        let mut runs: Vec<og_sums_run> = Vec::new();
        for &(chunk, to) in sent.iter().chain(unsent) {
            let rows = plan.chunks().rows(chunk);
            let moved = if sent.contains(&(chunk, to)) { rows.len() as i64 } else { 0 };
            let run = og_sums_run {
                to: layout.lands_at(plan, chunk, [rank, to], step.buffer),
                first_row: rows.start.into(),
                rows: moved,
                peer: int(to),
                slot: int(layout.signal_slot(plan, chunk, rank)),
                slots: signalled.contains(&(chunk, to)).into(),
                reserved: 0,
            };
            add_run(&mut runs, run);
        }
        runs
    }

    /// The totals that other ranks send, of these chunks; those that lie side by side are one run.
    fn stored_runs(&self, step: &Begun, chunks: &[u32]) -> Vec<og_sums_run> {
        let (layout, plan, rank) = (&self.part.layout, &step.shape.plan, self.group.rank());
        let mut runs: Vec<og_sums_run> = Vec::new();
        for &chunk in chunks {
            let (rows, from) = (plan.chunks().rows(chunk), plan.chunks().rank_of(chunk));
            let run = og_sums_run {
                to: layout.lands_at(plan, chunk, [from, rank], step.buffer),
                first_row: rows.start.into(),
                rows: rows.len() as i64,
                peer: int(from),
                slot: int(layout.signal_slot(plan, chunk, from)),
                slots: 1,
                reserved: 0,
            };
            add_run(&mut runs, run);
        }
        runs
    }

    /// All ranks' sums of some of this rank's rows, from the byte `column` of a row on; `size` is an element's. Those that NCCL has
    /// added up are one rank's. What becomes of them is left to the caller.
    pub(crate) fn sums(
        &self,
        step: &Begun,
        rows: &Range<u32>,
        column: u64,
        size: u64,
    ) -> og_reduction {
        let (part, layout, rank) = (&self.part, &self.part.layout, self.group.rank());
        let own = self.own_sums(step, rows.start, column, size);
        if self.nccl.is_some() {
            let total = part.start() + layout.row(step.buffer, rows.start) + column;
            return og_reduction { own: total as *const _, ..own };
        }
        let all = og_reduction { ranks: int(self.group.ranks()), rank: int(rank), ..own };
        if self.plan.reads_in_place() {
            let sums_at = layout.row(step.buffer, rows.start) + column;
            return og_reduction {
                words: part.word(layout.starts_at()) as *const _,
                sums_at,
                ..all
            };
        }
        let first = step.shape.plan.summed_rows(rank).start;
        let local = u64::from(rows.start - first) * layout.pitch;
        let slots = part.start() + layout.slots_start(step.buffer) + local + column;
        og_reduction {
            slots: slots as *const _,
            slot_pitch: long(layout.slot_bytes() / size),
            ..all
        }
    }

    /// This rank's sums alone, from row `first` on; or the totals that have come in their place.
    pub(crate) fn own_sums(
        &self,
        step: &Begun,
        first: u32,
        column: u64,
        size: u64,
    ) -> og_reduction {
        let (part, layout) = (&self.part, &self.part.layout);
        let epoch_at = if step.toggled { TOGGLE_EPOCH_AT } else { EPOCH_AT };
        og_reduction {
            own: (step.own_rows + u64::from(first) * layout.pitch + column) as *const _,
            pitch: long(layout.pitch / size),
            ranks: 1,
            stop: part.stop() as *const _,
            epoch: part.word(epoch_at) as *const _,
            ..og_reduction::default()
        }
    }
}

/// Adds a chunk to the runs: to the last one, if it lies right behind that.
fn add_run(runs: &mut Vec<og_sums_run>, run: og_sums_run) {
    match runs.last_mut().filter(|last| continues(last, &run)) {
        Some(last) => (last.rows, last.slots) = (last.rows + run.rows, last.slots + 1),
        None => runs.push(run),
    }
}

/// Whether a chunk lies right behind a run, rows and signals alike.
fn continues(last: &og_sums_run, run: &og_sums_run) -> bool {
    let ends = (last.peer, last.first_row + last.rows, last.slot + last.slots);
    ends == (run.peer, run.first_row, run.slot) && run.rows > 0 && run.slots == 1
}

/// What one kernel can wait for: slots of one rank after the other, at equal distances. The word of `own`, which the step's
/// beginning has set, may lie between. A failure counts ranks.
fn runs(awaited: &[(u32, u32)], own: u32, slot_of: impl Fn(u32, u32) -> u32) -> Vec<og_slots> {
    let (mut runs, own): (Vec<og_slots>, i32) = (Vec::new(), int(own));
    for &(chunk, from) in awaited {
        let (slot, from) = (int(slot_of(chunk, from)), int(from));
        let continued = runs.last_mut().and_then(|run| {
            let ranks = from - run.name;
            let is_next = run.count == ranks || run.count == ranks - 1 && own == from - 1;
            let stride =
                if run.count == 1 { (slot - run.first) / ranks.max(1) } else { run.stride };
            let fits = is_next && stride > 0 && run.first + stride * ranks == slot;
            fits.then(|| (run.count, run.stride) = (ranks + 1, stride))
        });
        if continued.is_none() {
            runs.push(og_slots { first: slot, count: 1, stride: 1, name: from });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (first slot, count, first rank) of each run; three slots a rank.
    fn found(awaited: &[(u32, u32)], own: u32) -> Vec<(i32, i32, i32)> {
        // The chunks of rank 1 are 4, 5 and 6.
        let runs = runs(awaited, own, |chunk, from| from * 3 + chunk - 4);
        assert!(runs.iter().all(|run| run.stride == if run.count > 1 { 3 } else { 1 }));
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

    #[test]
    fn one_kernel_waits_for_the_totals_of_all_ranks() {
        // Each rank has one chunk of its own, and words for all four.
        let found = |awaited: &[(u32, u32)], own| {
            let runs = runs(awaited, own, |chunk, from| from * 4 + chunk);
            runs.into_iter().map(|run| (run.first, run.count, run.stride)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[(0, 0), (1, 1), (3, 3)], 2), [(0, 4, 5)]);
        assert_eq!(found(&[(1, 1), (2, 2), (3, 3)], 0), [(5, 3, 5)]);
        // Two chunks of rank 1, one of rank 2.
        assert_eq!(found(&[(0, 0), (1, 1), (2, 1), (3, 2)], 3), [(0, 2, 5), (6, 2, 5)]);
        assert_eq!(found(&[(3, 2), (0, 0)], 1), [(11, 1, 1), (0, 1, 1)]);
    }
}
