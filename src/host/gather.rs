//! A rank's part in the all-gather: its gathered rows, and its own slot in them.
//!
//! Per step the caller begins (old buffer released, own slot free), publishes its own chunks, hands the step to its
//! pusher and computes. Invariant: the own slot is written only after `begin` or `local_shard`, and the gathered rows of the
//! latest step stay as they are until the next of these.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::control::{Aborter, Watch};
use super::group::Rank;
use super::memory::{RowBuffer, check_memory};
use super::world::{Member, Memory, StepShape, buffer_of};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{BUFFERS, Plan, Scaling};
use crate::trace::TransferEvent;

/// The gathered A of every rank.
#[derive(Debug)]
struct GatheredMemory<A>(Box<[RankMemory<A>]>);

/// The gathered A of one rank, twice, and its row scales.
#[derive(Debug)]
struct RankMemory<A> {
    gathered: [RowBuffer<A>; BUFFERS as usize],
    scales: Option<[RowBuffer<f32>; BUFFERS as usize]>,
}

impl<A: Element> GatheredMemory<A> {
    fn new(plan: &Plan) -> Result<Self> {
        let problem = plan.problem();
        let (m, k, ranks) = (problem.m() as usize, problem.k() as usize, problem.ranks());
        let a_rank = u128::from(BUFFERS) * problem.row_bytes(&(0..problem.m()))
            + 4 * u128::from(plan.chunks().most_per_rank()) * u128::from(ranks);
        check_memory("the gathered inputs of all ranks, twice,", a_rank * u128::from(ranks))?;
        let memory = || RankMemory {
            gathered: std::array::from_fn(|_| RowBuffer::new(m, k, A::POISON)),
            scales: (problem.scaling() == Scaling::Rows)
                .then(|| std::array::from_fn(|_| RowBuffer::new(m, 1, f32::NAN))),
        };
        Ok(GatheredMemory((0..ranks).map(|_| memory()).collect()))
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
        buffer: usize,
    ) -> u64 {
        fn copy<T: Copy>(from: &RowBuffer<T>, to: &RowBuffer<T>, rows: Range<u32>) {
            // SAFETY: the source is the own slot, the target are rows of this rank's chunk: see `Memory`.
            unsafe { to.rows_mut(rows.clone()).copy_from_slice(from.rows(rows)) }
        }
        let rows = plan.chunks().rows(chunk);
        let (source, target) = (&self.0[from as usize], &self.0[to as usize]);
        copy(&source.gathered[buffer], &target.gathered[buffer], rows.clone());
        if let (Some(source), Some(target)) = (&source.scales, &target.scales) {
            copy(&source[buffer], &target[buffer], rows.clone());
        }
        plan.problem().row_bytes(&rows) as u64
    }
}

/// Where the rows of the own shard come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnRows<'a, A> {
    /// The rows, `lda` apart; `None`: they are in the slot already.
    pub(crate) rows: Option<&'a [A]>,
    /// The row scales of the shard; empty where the plan has none.
    pub(crate) scales: &'a [f32],
}

/// One rank's handle on the operation.
#[derive(Debug)]
pub(crate) struct Gatherer<A> {
    member: Member<GatheredMemory<A>>,
    /// The latest step's shape, while its gathered input may be read.
    readable: Option<Arc<StepShape>>,
    /// The own slot of the next step has been lent out to be written in place.
    lent: bool,
}

impl<A: Element> Gatherer<A> {
    /// Joins the operation; collective, but without a wait.
    pub(crate) fn join(rank: &Rank, plan: &Plan) -> Result<Self> {
        let member = Member::join(rank, plan, || GatheredMemory::new(plan))?;
        Ok(Gatherer { member, readable: None, lent: false })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.member.rank()
    }

    pub(crate) fn aborter(&self) -> Aborter {
        self.member.aborter()
    }

    /// The clock's origin, if steps are recorded.
    pub(crate) fn recording(&self) -> Option<Instant> {
        self.member.recording()
    }

    /// Takes the transfers recorded so far. Those of the latest step may still be on their way.
    pub(crate) fn take_transfers(&self) -> Vec<TransferEvent> {
        self.member.take_transfers()
    }

    /// Waits until everything this rank began to send is sent.
    pub(crate) fn flush(&self) -> Result<()> {
        self.member.flush()
    }

    /// The epoch of the latest step.
    pub(crate) fn epoch(&self) -> u32 {
        self.member.epoch()
    }

    /// Whether the own slot of the next step was lent out to be written in place.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Begins the next step: the previous step's input is released, the own slot is free.
    pub(crate) fn begin(&mut self, shape: &Arc<StepShape>) -> Result<()> {
        self.prepare(shape)?;
        self.member.advance();
        self.lent = false;
        Ok(())
    }

    /// Publishes the own chunks to the own workers and starts the pushes to the others.
    pub(crate) fn send(&mut self, shape: &Arc<StepShape>, own: OwnRows<'_, A>) -> Result<()> {
        let problem = shape.plan.problem();
        let shard = problem.shards().rows(self.rank());
        let (k, lda) = (problem.k() as usize, problem.lda() as usize);
        let (memory, buffer) = (self.own_memory(), buffer_of(self.epoch()));
        let origin = self.recording();
        let mut events = Vec::new();
        let endpoint = self.member.endpoint(shape);
        endpoint.publish(&mut self.watch(), |chunk, to| {
            let begin = origin.map(|origin| origin.elapsed());
            let rows = shape.plan.chunks().rows(chunk);
            let local = (rows.start - shard.start) as usize..(rows.end - shard.start) as usize;
            if let Some(from) = own.rows {
                // SAFETY: the own slot: workers read it after its signal, which comes after this;
                // earlier readers have finished (`begin` awaited `sent`, and the caller is here).
                let slot = unsafe { memory.gathered[buffer].rows_mut(rows.clone()) };
                for (row, slot) in local.clone().zip(slot.chunks_exact_mut(k)) {
                    slot.copy_from_slice(&from[row * lda..row * lda + k]);
                }
            }
            if let Some(scales) = &memory.scales {
                // SAFETY: as for the rows.
                let slot = unsafe { scales[buffer].rows_mut(rows) };
                slot.copy_from_slice(&own.scales[local]);
            }
            if let (Some(begin), Some(origin)) = (begin, origin) {
                let (epoch, signalled) = (self.epoch(), origin.elapsed());
                events.push(TransferEvent { from: to, to, epoch, chunk, begin, signalled });
            }
        })?;
        self.member.record(events);
        self.member.push(shape, 0)
    }

    /// The gathered rows of the step in progress or, until the next begins, the latest one.
    pub(crate) fn rows(&self) -> &RowBuffer<A> {
        &self.own_memory().gathered[buffer_of(self.epoch())]
    }

    /// The gathered row scales, if the plan has them.
    pub(crate) fn row_scales(&self) -> Option<&RowBuffer<f32>> {
        let scales = self.own_memory().scales.as_ref();
        scales.map(|scales| &scales[buffer_of(self.epoch())])
    }

    /// How a worker waits for the chunks of a tile; its failure ends the operation everywhere.
    pub(crate) fn await_chunks(
        &self,
        shape: &StepShape,
        chunks: impl Iterator<Item = u32>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let waited = self.member.endpoint(shape).await_chunks(chunks, watch);
        waited.inspect_err(|error| self.member.fail(error.clone()))
    }

    /// How one of this rank's threads waits in the latest step.
    pub(crate) fn watch(&self) -> Watch<'_> {
        self.member.watch()
    }

    /// The step is complete: its gathered input may be read until the next.
    pub(crate) fn complete(&mut self, shape: &Arc<StepShape>) {
        self.readable = Some(Arc::clone(shape));
    }

    /// Ends the operation for every rank from the next step on, whenever it is called.
    pub(crate) fn ender(&self) -> impl FnOnce(Error) + use<A> {
        self.member.ender()
    }

    /// The gathered A of the latest step, and how many rows of it there are.
    pub(crate) fn gathered(&self) -> Option<(&[A], u32)> {
        let m = self.readable.as_ref()?.plan.problem().m();
        // SAFETY: the step is complete, so all rows were acquired by a worker of this rank that the
        // caller has joined; they are overwritten only after the next `begin`, which takes `&mut`.
        Some((unsafe { self.rows().rows(0..m) }, m))
    }

    /// The own slot of the next step, to be written in place.
    pub(crate) fn local_shard(&mut self, shape: &Arc<StepShape>) -> Result<&mut [A]> {
        if let Err(error) = self.prepare(shape) {
            self.end_with(&error);
            return Err(error);
        }
        self.lent = true;
        let next = buffer_of(self.epoch().wrapping_add(1));
        let rows = shape.plan.problem().shards().rows(self.rank());
        // SAFETY: `prepare` awaited the end of this slot's last use; peers write other rows of the
        // buffer, by the shards that all ranks agreed on; own workers run only in a later call.
        Ok(unsafe { self.own_memory().gathered[next].rows_mut(rows) })
    }

    /// A call of this rank returned `error`: later ones report that the operation is over.
    pub(crate) fn end_with(&mut self, error: &Error) {
        self.member.end_with(error);
    }

    /// The waits and posts before the own slot of the next step is written; may be repeated.
    fn prepare(&mut self, shape: &Arc<StepShape>) -> Result<()> {
        let latest = self.readable.take();
        self.member.prepare(shape, &[], |member| {
            if let Some(latest) = latest.filter(|_| member.poisons()) {
                poison(member, &latest.plan);
            }
        })
    }

    fn own_memory(&self) -> &RankMemory<A> {
        &self.member.memory().0[self.rank() as usize]
    }
}

/// Fills the latest step's buffer with NaN, but for the own slot, which the pusher may still
/// be reading.
fn poison<A: Element>(member: &Member<GatheredMemory<A>>, latest: &Plan) {
    let memory = &member.memory().0[member.rank() as usize];
    let buffer = buffer_of(member.epoch());
    let own = latest.problem().shards().rows(member.rank());
    for rows in [0..own.start, own.end..member.planned().problem().m()] {
        // SAFETY: this rank's workers are done with the buffer, and no rank may fill it again
        // before its consumption is posted.
        unsafe { memory.gathered[buffer].rows_mut(rows.clone()) }.fill(A::POISON);
        if let Some(scales) = &memory.scales {
            // SAFETY: as for the rows.
            unsafe { scales[buffer].rows_mut(rows) }.fill(f32::NAN);
        }
    }
}
