//! The memory of the all-gather: the gathered A of every rank, twice, in which each rank has a slot for its own rows.
//!
//! Invariant: as in [`Memory`]; the own slot is written only when the step has begun, or before, by `local_shard`.

use std::ops::Range;

use super::member::Member;
use super::memory::{RowBuffer, ScaledRows, buffer_of, check_memory};
use super::operands::Shard;
use super::world::{Memory, StepShape};
use crate::element::Element;
use crate::error::Result;
use crate::plan::{BUFFERS, Plan};
use crate::trace::TransferEvent;

/// The gathered A of every rank.
#[derive(Debug)]
pub(crate) struct GatheredMemory<A>(Box<[[ScaledRows<A>; BUFFERS as usize]]>);

impl<A: Element> GatheredMemory<A> {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let (problem, ranks) = (plan.problem(), plan.problem().ranks());
        let a_rank = u128::from(BUFFERS) * problem.row_bytes(&(0..problem.m()))
            + 4 * u128::from(plan.chunks().most_per_rank()) * u128::from(ranks);
        check_memory("the gathered inputs of all ranks, twice,", a_rank * u128::from(ranks))?;
        Ok(GatheredMemory((0..ranks).map(|_| ScaledRows::buffers(problem)).collect()))
    }

    /// What `rank` gathers in `epoch`.
    pub(crate) fn of(&self, rank: u32, epoch: u32) -> &ScaledRows<A> {
        &self.0[rank as usize][buffer_of(epoch)]
    }
}

impl<A: Element> Memory for GatheredMemory<A> {
    /// From the own slot into the same rows of the other rank.
    unsafe fn move_chunk(
        &self,
        plan: &Plan,
        chunk: u32,
        _: usize,
        [from, to]: [u32; 2],
        epoch: u32,
    ) -> u64 {
        fn copy<T: Copy>(from: &RowBuffer<T>, to: &RowBuffer<T>, rows: Range<u32>) {
            // SAFETY: the source is the own slot, the target are rows of this rank's chunk: see `Memory`.
            unsafe { to.rows_mut(rows.clone()).copy_from_slice(from.rows(rows)) }
        }
        let rows = plan.chunks().rows(chunk);
        let (source, target) = (self.of(from, epoch), self.of(to, epoch));
        copy(&source.rows, &target.rows, rows.clone());
        if let (Some(source), Some(target)) = (&source.scales, &target.scales) {
            copy(source, target, rows.clone());
        }
        plan.problem().row_bytes(&rows) as u64
    }

    /// All but the own slot, which the pusher may still be reading.
    unsafe fn poison(&self, plan: &Plan, rank: u32, epoch: u32) {
        let ScaledRows { rows: gathered, scales } = self.of(rank, epoch);
        let own = plan.problem().shards().rows(rank);
        for rows in [0..own.start, own.end..gathered.len()] {
            // SAFETY: the caller's promise; no rank fills these rows again before their consumption is posted.
            unsafe { gathered.rows_mut(rows.clone()) }.fill(A::POISON);
            if let Some(scales) = scales {
                // SAFETY: as for the rows.
                unsafe { scales.rows_mut(rows) }.fill(f32::NAN);
            }
        }
    }
}

/// Copies the own rows into their slot, unless they are there already, and signals them to the own workers.
pub(crate) fn publish<A: Element>(
    member: &Member<GatheredMemory<A>>,
    shape: &StepShape,
    shard: &Shard<'_, A>,
) -> Result<()> {
    let problem = shape.plan.problem();
    let first = problem.shards().rows(member.rank()).start;
    let (k, lda) = (problem.k() as usize, problem.lda() as usize);
    let (rank, epoch, origin) = (member.rank(), member.epoch(), member.recording());
    let slot = member.memory().of(rank, epoch);
    let mut events = Vec::new();
    member.endpoint(shape).publish(&mut member.watch(), |chunk, to| {
        let begin = origin.map(|origin| origin.elapsed());
        let rows = shape.plan.chunks().rows(chunk);
        let local = (rows.start - first) as usize..(rows.end - first) as usize;
        if let Some(from) = shard.at {
            // SAFETY: the own slot: workers read it after its signal, which comes after this; earlier readers have
            // finished (the step's beginning awaited `sent`, and the caller is here).
            let slot = unsafe { slot.rows.rows_mut(rows.clone()) };
            for (row, slot) in local.clone().zip(slot.chunks_exact_mut(k)) {
                slot.copy_from_slice(&from[row * lda..row * lda + k]);
            }
        }
        if let Some(scales) = &slot.scales {
            // SAFETY: as for the rows.
            unsafe { scales.rows_mut(rows) }.copy_from_slice(&shard.scales[local]);
        }
        if let (Some(begin), Some(origin)) = (begin, origin) {
            let signalled = origin.elapsed();
            events.push(TransferEvent { from: to, to, epoch, chunk, begin, signalled });
        }
    })?;
    member.record(events);
    Ok(())
}
