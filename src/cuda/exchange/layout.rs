//! Where everything of a gather lies in the symmetric memory of a rank: words first, then the gathered
//! rows, twice, then their scales. In a reduction: words, then twice this rank's sums, and, for copy engines, slots for the others'.
//! Where these send sums that the caller has, there are slots alone. NCCL's totals have the places of sums.
//!
//! What belongs here: offsets, and nothing that does something. Invariant: the same numbers on every rank;
//! rows start at multiples of 16 bytes (as do all of them, if pitches do), words of 64 bits at multiples
//! of 8, and nothing overlaps.

use std::ops::Range;

use cudarc::driver::sys::CUdeviceptr;

use super::words::{
    BEGUN_AT, EPOCH_AT, LAST_BUFFER_AT, LAST_USE_AT, MOST_SENDERS, OVER_AT, SENT_AT,
    SENT_TOGGLES_AT, SIGNALS_AT, TOGGLE_EPOCH_AT, WORD,
};
use crate::cuda::sys::bindings::{OG_TOGGLE_SET, og_gather, og_push};
use crate::cuda::sys::ffi::int;
use crate::error::{Error, Result};
use crate::plan::{BUFFERS, Engine, Partials, Plan, Scaling};

/// Words that different ranks write are in lines of their own.
const LINE: u32 = 32;
const PAGE: u64 = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    ranks: u32,
    pub(crate) slots_per_rank: u32,
    /// A signal is `1 << share_bits` words: a word for each block of a kernel that pushes, and each span of columns.
    pub(crate) share_bits: u32,
    /// Bytes from one row to the next, and in one row.
    pub(crate) pitch: u64,
    pub(crate) row: u64,
    scaled: bool,
    /// Rows of a slot for another rank's sums; none in a gather, nor where a kernel reads sums.
    slot_rows: u32,
    /// The gathered rows; in a reduction, this rank's sums, and the totals that others send.
    rows_at: [u64; BUFFERS as usize],
    scales_at: [u64; BUFFERS as usize],
    slots_at: [u64; BUFFERS as usize],
    /// How much memory a rank needs.
    pub(crate) bytes: u64,
}

/// The rows for which a rank has slots: those that it adds up.
impl Plan {
    /// The rows of which `rank` adds up all ranks' sums, in a reduction: those that it gets, but in two shots its own.
    pub(crate) fn summed_rows(&self, rank: u32) -> Range<u32> {
        match self.has_two_shots() {
            true => self.problem().shards().rows(rank),
            false => self.output_rows(rank),
        }
    }

    /// The rows of a slot for another rank's sums: the most that a rank adds up in a step of these rows or of fewer. A kernel needs
    /// none: it reads sums where they lie. NCCL needs none: it adds sums on their way.
    pub(crate) fn slot_rows(&self) -> u32 {
        if self.reads_in_place() || self.options().engine == Engine::Nccl {
            return 0;
        }
        match self.has_two_shots() {
            true => self.problem().shards().most_rows(),
            false => self.most_output_rows(),
        }
    }
}

impl Layout {
    /// The layout of a gather; no row scales are gathered that are `replicated`.
    pub(crate) fn new(plan: &Plan, replicated: bool) -> Result<Self> {
        let problem = plan.problem();
        let size = u64::from(problem.elements().a.size());
        let layout = Layout {
            pitch: u64::from(problem.lda()) * size,
            row: u64::from(problem.k()) * size,
            scaled: problem.scaling() == Scaling::Rows && !replicated,
            ..Layout::of_words(plan, plan.chunks().most_per_rank())
        };
        let what = "the gathered input of a rank, twice, in bytes";
        layout.placed(problem.m(), what, "gather fewer rows at a time")
    }

    /// The layout of a reduction: `columns` of all its products together, in the type of `partials`.
    pub(crate) fn of_sums(plan: &Plan, (columns, partials): (u32, Partials)) -> Result<Self> {
        let row = u64::from(columns) * u64::from(partials.element().size());
        let (ranks, slot_rows) = (plan.problem().ranks(), plan.slot_rows());
        let operation = plan.options().operation;
        let owners = if operation.is_all_reduce() { ranks } else { 1 };
        let words = Layout::of_words(plan, owners * plan.chunks().most_per_rank());
        let what = "the sums of a rank and its slots, twice, in bytes";
        let layout = Layout { pitch: row, row, slot_rows, ..words };
        // Copy engines send the caller's sums from where they lie; a kernel reads all ranks' in this memory, and NCCL's totals come here.
        let has_own = !operation.is_alone() || slot_rows == 0;
        let own_rows = if has_own { plan.problem().m() } else { 0 };
        layout.placed(own_rows, what, "reduce fewer rows at a time")
    }

    /// Signal words only, without a buffer behind them.
    fn of_words(plan: &Plan, slots_per_rank: u32) -> Self {
        let share_bits = share_bits(plan.options().engine) + plan.chunks().spans().ilog2();
        let ranks = plan.problem().ranks();
        Layout { ranks, slots_per_rank, share_bits, ..Layout::default() }
    }

    /// With a place for everything.
    fn placed(mut self, m: u32, what: &str, remedy: &'static str) -> Result<Self> {
        let (pitch, m) = (u128::from(self.pitch), u128::from(m));
        let slots = u128::from(self.ranks - 1) * u128::from(self.slot_rows) * pitch;
        let mut end = u128::from(self.word_count()) * u128::from(WORD);
        let mut place = |bytes: u128| {
            let start = end.next_multiple_of(PAGE.into());
            end = start + bytes;
            u64::try_from(start).unwrap_or(u64::MAX)
        };
        for buffer in 0..BUFFERS as usize {
            self.rows_at[buffer] = place(pitch * m);
            self.scales_at[buffer] = place(if self.scaled { m * 4 } else { 0 });
            self.slots_at[buffer] = place(slots);
        }
        self.bytes = match i64::try_from(end) {
            Ok(bytes) => bytes.unsigned_abs(),
            Err(_) => {
                let value = u64::try_from(end).unwrap_or(u64::MAX);
                return Err(Error::out_of_range(what, value, 1, i64::MAX as u64, remedy));
            }
        };
        Ok(self)
    }

    /// The same with the first row at `start`, which is behind the words: other operations' words lie between.
    pub(crate) fn with_rows_from(mut self, start: u64) -> Self {
        let by = start - self.rows_at[0];
        for places in [&mut self.rows_at, &mut self.scales_at, &mut self.slots_at] {
            places.iter_mut().for_each(|place| *place += by);
        }
        self.bytes += by;
        self
    }

    /// How long the words are.
    pub(crate) fn words_bytes(&self) -> u64 {
        Layout::word(self.word_count())
    }

    pub(crate) fn slots(&self) -> u32 {
        self.ranks * self.slots_per_rank
    }

    fn signal_words(&self) -> u32 {
        self.slots() << self.share_bits
    }

    fn toggles_at(&self) -> u32 {
        (SIGNALS_AT + self.signal_words()).next_multiple_of(LINE)
    }

    pub(crate) fn toggles_of(&self, buffer: u32) -> u32 {
        self.toggles_at() + buffer * self.slots()
    }

    fn consumed_at(&self) -> u32 {
        self.toggles_of(BUFFERS).next_multiple_of(LINE)
    }

    fn layouts_at(&self) -> u32 {
        (self.consumed_at() + self.ranks).next_multiple_of(LINE)
    }

    /// Where it says where each rank's words start, as this rank reaches them: 64 bits for each.
    pub(crate) fn starts_at(&self) -> u32 {
        (self.layouts_at() + 2 * 4 * self.ranks).next_multiple_of(LINE)
    }

    /// How many blocks of the kernel that begins a step have come to its end.
    pub(crate) fn counter_at(&self) -> u32 {
        (self.starts_at() + 2 * self.ranks).next_multiple_of(LINE)
    }

    pub(crate) fn word_count(&self) -> u32 {
        self.counter_at() + 1
    }

    /// The words before the first step, as if `epoch` had been the last one; `starts`: of each rank's words, if this one reaches them.
    pub(crate) fn first_words(&self, epoch: u32, starts: &[CUdeviceptr]) -> Vec<u32> {
        let mut words = vec![0; self.word_count() as usize];
        let mut set = |range: Range<u32>| {
            words[range.start as usize..range.end as usize].fill(epoch);
        };
        set(EPOCH_AT..EPOCH_AT + 1);
        set(SENT_AT..SENT_AT + MOST_SENDERS);
        set(LAST_USE_AT..LAST_USE_AT + BUFFERS);
        set(SIGNALS_AT..SIGNALS_AT + self.signal_words());
        set(self.consumed_at()..self.consumed_at() + self.ranks);
        // The epochs of layouts, the upper halves of 64 bits: that no later one is announced.
        let epochs = self.layouts_at() + 1..self.layouts_at() + 2 * 4 * self.ranks;
        epochs.step_by(2).for_each(|word| set(word..word + 1));
        let starts = starts.iter().flat_map(|start| [*start as u32, (*start >> 32) as u32]);
        words[self.starts_at() as usize..]
            .iter_mut()
            .zip(starts)
            .for_each(|(word, half)| *word = half);
        words[TOGGLE_EPOCH_AT as usize] = OG_TOGGLE_SET;
        words[SENT_TOGGLES_AT as usize..][..MOST_SENDERS as usize].fill(OG_TOGGLE_SET);
        words
    }

    /// What the device code has to know; addresses, the limit and the stop words are the caller's.
    pub(crate) fn words(&self, rank: u32) -> og_gather {
        og_gather {
            ranks: int(self.ranks),
            rank: int(rank),
            slots: int(self.slots()),
            share_bits: int(self.share_bits),
            begun_at: int(BEGUN_AT),
            epoch_at: int(EPOCH_AT),
            over_at: int(OVER_AT),
            last_buffer_at: int(LAST_BUFFER_AT),
            last_use_at: int(LAST_USE_AT),
            sent_at: int(SENT_AT),
            signals_at: int(SIGNALS_AT),
            toggles_at: int(self.toggles_at()),
            consumed_at: int(self.consumed_at()),
            layouts_at: int(self.layouts_at()),
            ..og_gather::default()
        }
    }

    /// Where a word is, in bytes from the start.
    pub(crate) fn word(word: u32) -> u64 {
        u64::from(word) * WORD
    }

    pub(crate) fn row(&self, buffer: u32, row: u32) -> u64 {
        self.rows_at[buffer as usize] + u64::from(row) * self.pitch
    }

    pub(crate) fn scale(&self, buffer: u32, row: u32) -> u64 {
        self.scales_at[buffer as usize] + u64::from(row) * WORD
    }

    /// Bytes of that many rows: from the start of the first to the end of the last.
    pub(crate) fn rows_bytes(&self, rows: u32) -> u64 {
        match rows {
            0 => 0,
            _ => u64::from(rows - 1) * self.pitch + self.row,
        }
    }

    /// Bytes of the scales of that many rows; none where there are no row scales.
    pub(crate) fn scales_bytes(&self, rows: u32) -> u64 {
        if self.scaled { u64::from(rows) * WORD } else { 0 }
    }

    /// Bytes from one slot for sums to the next.
    pub(crate) fn slot_bytes(&self) -> u64 {
        u64::from(self.slot_rows) * self.pitch
    }

    /// Where the slots for sums start: those of the other ranks, in order.
    pub(crate) fn slots_start(&self, buffer: u32) -> u64 {
        self.slots_at[buffer as usize]
    }

    /// Where `to` gets a chunk that `from` sends: rows lie alike on all ranks; sums go into the slot for that rank; totals take the
    /// place of the sums that `to` had of these rows, which `from` has added up.
    pub(crate) fn lands_at(
        &self,
        plan: &Plan,
        chunk: u32,
        [from, to]: [u32; 2],
        buffer: u32,
    ) -> u64 {
        let (first, owner) = (plan.chunks().rows(chunk).start, plan.chunks().rank_of(chunk));
        if self.slot_rows == 0 || plan.sends_totals(from, owner) {
            return self.row(buffer, first);
        }
        // A rank has no slot for its own.
        let slot = if from < to { from } else { from.saturating_sub(1) };
        let local = first - plan.summed_rows(owner).start;
        self.slots_start(buffer)
            + u64::from(slot) * self.slot_bytes()
            + u64::from(local) * self.pitch
    }

    /// The slot of the signal by which `from` says that it has sent a chunk: of the rank that writes it.
    pub(crate) fn signal_slot(&self, plan: &Plan, chunk: u32, from: u32) -> u32 {
        from * self.slots_per_rank + chunk - plan.signalled(plan.chunks().rank_of(chunk)).start
    }

    /// The slots of the signals that `rank` sets for itself.
    pub(crate) fn own_slots(&self, plan: &Plan, rank: u32) -> Range<u32> {
        let first = rank * self.slots_per_rank;
        first..first + plan.signalled(rank).len() as u32
    }

    /// What other ranks write in a step in which this one owns the rows `own` of `m`, but for totals: offsets and bytes.
    pub(crate) fn received(&self, buffer: u32, own: &Range<u32>, m: u32) -> [(u64, u64); 2] {
        if self.slot_rows > 0 {
            let slots = u64::from(self.ranks - 1) * self.slot_bytes();
            return [(self.slots_start(buffer), slots), (self.slots_start(buffer), 0)];
        }
        [0..own.start, own.end..m]
            .map(|rows| (self.row(buffer, rows.start), self.rows_bytes(rows.len() as u32)))
    }

    /// Where each chunk of a step in `buffer` lies, at every rank; in a reduction, at the rank that sends it.
    pub(crate) fn pieces(&self, plan: &Plan, buffer: u32) -> Vec<og_push> {
        let push = |chunk| {
            let rows = plan.chunks().rows(chunk);
            let count = rows.len() as u32;
            let slot = plan.chunks().signal_slot(chunk, self.slots_per_rank);
            og_push {
                offset: [self.row(buffer, rows.start), self.scale(buffer, rows.start)],
                bytes: [self.rows_bytes(count), self.scales_bytes(count)],
                slot: int(slot),
                rows: int(count),
            }
        };
        (0..plan.chunks().len()).map(push).collect()
    }
}

/// How many words there are in each span of a signal, as a power of two.
fn share_bits(engine: Engine) -> u32 {
    match engine {
        Engine::Kernel { blocks } => blocks.next_power_of_two().ilog2(),
        Engine::CopyEngines { .. } | Engine::Nccl | Engine::Thread => 0,
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
