//! The memory of a reduction: each rank's own sums, and a slot for each other rank's sums of the rows that the rank gets. Totals
//! that travel lie in the place of sums.
//!
//! Sums are kept as `f32`; what travels is rounded to the type of partials on the way, so results are those of slots of that
//! type. A total has been rounded to D's type before. Invariant: as in [`Memory`]; a row of D is added up from one row of each rank,
//! in the plan's order.

use std::ops::Range;

use super::memory::{RowBuffer, buffer_of, check_memory};
use super::world::Memory;
use crate::error::Result;
use crate::plan::{BUFFERS, Partials, Plan, Reduction};

/// The sums of every rank.
#[derive(Debug)]
pub(crate) struct Sums {
    of_ranks: Box<[RankSums]>,
    /// Columns of a row, of all products of the largest step.
    width: usize,
    reduction: Reduction,
}

#[derive(Debug)]
struct RankSums {
    /// The own sums of all rows.
    own: [RowBuffer<f32>; BUFFERS as usize],
    /// By rank: its sums of the rows that this rank gets; none of its own.
    slots: [Box<[RowBuffer<f32>]>; BUFFERS as usize],
}

/// Bytes of the sums of all ranks, and of the words that signal them (`signal_slots`).
fn bytes_of(plan: &Plan) -> u128 {
    let problem = plan.problem();
    let (ranks, m) = (u128::from(problem.ranks()), u128::from(problem.m()));
    let rows = ranks * (m + (ranks - 1) * u128::from(plan.most_output_rows()));
    let words = ranks * (1 + ranks) * ranks * u128::from(plan.chunks().most_per_rank());
    4 * (u128::from(BUFFERS) * rows * u128::from(problem.n()) + words)
}

impl Sums {
    pub(crate) fn new(plan: &Plan, reduction: Reduction) -> Result<Self> {
        let problem = plan.problem();
        let (ranks, n, m) = (problem.ranks(), problem.n() as usize, problem.m() as usize);
        let owned = plan.most_output_rows() as usize;
        check_memory("the sums of all ranks, twice,", bytes_of(plan))?;
        let rows_for = |owner, from| if from == owner { 0 } else { owned };
        let slots = |owner: u32| {
            (0..ranks).map(|from| RowBuffer::new(rows_for(owner, from), n, f32::NAN)).collect()
        };
        let of_rank = |rank| RankSums {
            own: std::array::from_fn(|_| RowBuffer::new(m, n, f32::NAN)),
            slots: std::array::from_fn(|_| slots(rank)),
        };
        let of_ranks = (0..ranks).map(of_rank).collect();
        Ok(Sums { of_ranks, width: n, reduction })
    }

    pub(crate) fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// The own sums of `rank`.
    pub(crate) fn own(&self, rank: u32, epoch: u32) -> &RowBuffer<f32> {
        &self.of_ranks[rank as usize].own[buffer_of(epoch)]
    }

    /// Adds up some columns of a row that `owner` gets, into `total`: row `row` of all, and the owner's `local`-th, by the plan's
    /// `additions`.
    ///
    /// # Safety
    /// The sums of this row of all ranks have arrived, and no thread writes them meanwhile.
    pub(crate) unsafe fn add_up(
        &self,
        owner: u32,
        epoch: u32,
        [row, local]: [u32; 2],
        columns: Range<usize>,
        additions: &[(u32, Partials)],
        total: &mut Vec<f32>,
    ) {
        let (RankSums { own, slots }, buffer) = (&self.of_ranks[owner as usize], buffer_of(epoch));
        for (nth, &(rank, partials)) in additions.iter().enumerate() {
            // SAFETY: the caller's promise.
            let sums = unsafe {
                match rank == owner {
                    true => own[buffer].rows(row..row + 1),
                    false => slots[buffer][rank as usize].rows(local..local + 1),
                }
            };
            // The others' have been rounded on their way.
            let arrived = |sum: &f32| if rank == owner { partials.round(*sum) } else { *sum };
            let sums = sums[columns.clone()].iter().map(arrived);
            match nth {
                0 => {
                    total.clear();
                    total.extend(sums);
                }
                _ => total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum),
            }
        }
        if self.reduction.average {
            let ranks = self.of_ranks.len() as f32;
            total.iter_mut().for_each(|total| *total /= ranks);
        }
    }
}

impl Sums {
    /// Writes some columns of a total of `rank`, which has been added up, in the place of its own sums; `row` of all rows.
    ///
    /// # Safety
    /// Nobody reads these own sums any more, and no other thread touches the row meanwhile.
    pub(crate) unsafe fn put_total(
        &self,
        rank: u32,
        epoch: u32,
        row: u32,
        columns: Range<usize>,
        total: impl Iterator<Item = f32>,
    ) {
        // SAFETY: the caller's promise.
        let own = unsafe { self.own(rank, epoch).rows_mut(row..row + 1) };
        own[columns].iter_mut().zip(total).for_each(|(own, total)| *own = total);
    }

    /// Some columns of a total that rank `from` has sent to `rank`; `local` counts the rows that `rank` gets.
    ///
    /// # Safety
    /// It has arrived, and no thread writes it meanwhile.
    pub(crate) unsafe fn arrived_total(
        &self,
        [rank, from]: [u32; 2],
        epoch: u32,
        local: u32,
        columns: Range<usize>,
    ) -> &[f32] {
        let slot = &self.of_ranks[rank as usize].slots[buffer_of(epoch)][from as usize];
        // SAFETY: the caller's promise.
        unsafe { &slot.rows(local..local + 1)[columns] }
    }
}

impl Memory for Sums {
    /// From the own sums, or totals, into the slot at the other rank.
    unsafe fn move_chunk(
        &self,
        plan: &Plan,
        chunk: u32,
        columns: usize,
        [from, to]: [u32; 2],
        epoch: u32,
    ) -> u64 {
        let (rows, partials) = (plan.chunks().rows(chunk), self.reduction.partials);
        let is_total = plan.sends_totals(from, plan.chunks().rank_of(chunk));
        let size = if is_total { plan.problem().elements().d } else { partials.element() }.size();
        let first = plan.output_rows(to).start;
        let slot = &self.of_ranks[to as usize].slots[buffer_of(epoch)][from as usize];
        // SAFETY: the source are own sums, the target is this rank's slot: see `Memory`.
        let (sums, slot) = unsafe {
            (
                self.own(from, epoch).rows(rows.clone()),
                slot.rows_mut(rows.start - first..rows.end - first),
            )
        };
        let width = self.width;
        for (slot, sums) in slot.chunks_exact_mut(width).zip(sums.chunks_exact(width)) {
            for (slot, sum) in slot[..columns].iter_mut().zip(sums) {
                *slot = if is_total { *sum } else { partials.round(*sum) };
            }
        }
        rows.len() as u64 * columns as u64 * u64::from(size)
    }

    /// The slots that have others' sums.
    unsafe fn poison(&self, plan: &Plan, rank: u32, epoch: u32) {
        let rows = plan.output_rows(rank).len() as u32;
        let slots = &self.of_ranks[rank as usize].slots[buffer_of(epoch)];
        for (_, slot) in (0..).zip(slots).filter(|(from, _)| *from != rank) {
            // SAFETY: the caller's promise.
            unsafe { slot.rows_mut(0..rows) }.fill(f32::NAN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Operation, PlanOptions, Problem};

    #[test]
    fn the_words_of_many_pieces_of_many_ranks_count_as_memory() {
        let mut rows = vec![0; 1024];
        rows[0] = 512;
        let problem = Problem::builder(512, 1, 1).shards(&rows).build().unwrap();
        let operation = Operation::GemmReduceScatter;
        let options = PlanOptions { operation, ..PlanOptions::new() };
        let plan = Plan::new(&problem, options.with_pieces(512)).unwrap();
        let (ranks, sums) = (1024, 1024 * (512 + 1023 * 512));
        assert_eq!(bytes_of(&plan), 4 * (2 * sums + ranks * (1 + ranks) * ranks * 512));
    }
}
