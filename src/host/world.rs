//! What the ranks of one operation share: plan, words, memory, and the layouts of the steps in progress.
//!
//! Invariant: all writes into another rank's memory happen between two waits of [`protocol`](super::protocol), and all
//! ranks lay a step out by the same shards, which [`World::agree`] checks before anything is written.

use std::fmt::Debug;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::control::Control;
use super::group::{GroupOptions, Rank};
use super::protocol::{Endpoint, Mailbox, reached, signal_slots};
use crate::error::{Error, Result};
use crate::plan::{Plan, Schedule};
use crate::sync::lock;

/// One rank's part in a step: M and the shards may vary.
#[derive(Debug)]
pub(crate) struct StepShape {
    pub(crate) plan: Plan,
    pub(crate) schedule: Schedule,
}

impl StepShape {
    pub(crate) fn new(plan: Plan, rank: u32) -> Arc<Self> {
        let schedule = plan.schedule(rank);
        Arc::new(StepShape { plan, schedule })
    }

    /// Of a step with these rows of each rank; `None`: as planned.
    pub(crate) fn with_rows(self: &Arc<Self>, rows: Option<&[u32]>) -> Result<Arc<Self>> {
        match rows {
            Some(rows) if rows != self.plan.problem().rows_of_ranks() => {
                Ok(StepShape::new(self.plan.for_rows(rows)?, self.schedule.rank))
            }
            _ => Ok(Arc::clone(self)),
        }
    }
}

/// The memory of all ranks that rows travel between.
pub(crate) trait Memory: Debug + Send + Sync + 'static {
    /// Copies a chunk between two `ends`, from one rank to another, in the buffers of `epoch`; returns its bytes. A row of
    /// sums has `columns` in this step; a gather ignores them.
    ///
    /// # Safety
    /// The pushing lane of the sender's schedule has come to this move: the source has been written and is not written
    /// again before it has been read; no thread reads the target before it is signalled, and its earlier readers are
    /// through. (`Sent` and `Consumed` say so; in an all-reduce, sums or totals of the next step do.)
    unsafe fn move_chunk(
        &self,
        plan: &Plan,
        chunk: u32,
        columns: usize,
        ends: [u32; 2],
        epoch: u32,
    ) -> u64;

    /// Fills with NaN what other ranks have sent to `rank` in a step of `plan`.
    ///
    /// # Safety
    /// The threads of this rank have read it, and others do not write it again before this rank's next step has begun.
    unsafe fn poison(&self, plan: &Plan, rank: u32, epoch: u32);
}

/// The state that the ranks of one operation share.
#[derive(Debug)]
pub(crate) struct World<M> {
    pub(crate) plan: Plan,
    pub(crate) options: GroupOptions,
    pub(crate) origin: Instant,
    slots_per_rank: u32,
    pub(crate) mailboxes: Box<[Mailbox<AtomicU32>]>,
    pub(crate) control: Arc<Control>,
    agreed: Mutex<Agreement>,
    pub(crate) memory: M,
}

/// The layouts of the steps that some rank may still begin.
///
/// An entry lives until every rank has begun a later step. Ranks with rows in every step
/// are at most a few steps apart; but where shards vary and are empty, a rank whose rows no other needs
/// can be behind by more steps than the number of ranks, so no fixed number of entries suffices.
#[derive(Debug)]
struct Agreement {
    /// The latest epoch that each rank has begun.
    begun: Vec<u32>,
    steps: Vec<AgreedStep>,
}

#[derive(Debug)]
struct AgreedStep {
    epoch: u32,
    shape: Arc<StepShape>,
    /// Of each product, where ranks add up each other's sums.
    columns: Vec<u32>,
    first: u32,
}

impl<M: Memory> World<M> {
    pub(crate) fn new(plan: &Plan, rank: &Rank, memory: M) -> Self {
        let (options, ranks) = (rank.options(), plan.problem().ranks());
        let slots_per_rank = plan.chunks().most_per_rank();
        let slots = signal_slots(plan.options().operation, slots_per_rank, ranks);
        let mailbox = || Mailbox::new(slots, ranks, options.first_epoch);
        World {
            plan: plan.clone(),
            options,
            origin: rank.origin(),
            slots_per_rank,
            mailboxes: (0..ranks).map(|_| mailbox()).collect(),
            control: Arc::new(Control::new(ranks, options.timeouts)),
            agreed: Mutex::new(Agreement {
                begun: vec![options.first_epoch; ranks as usize],
                steps: Vec::new(),
            }),
            memory,
        }
    }

    /// An error unless every rank lays `epoch` out by the same shards, and by the same products where that matters.
    pub(crate) fn agree(
        &self,
        rank: u32,
        epoch: u32,
        shape: &Arc<StepShape>,
        columns: &[u32],
    ) -> Result<()> {
        let mut agreed = lock(&self.agreed);
        let Agreement { begun, steps } = &mut *agreed;
        begun[rank as usize] = epoch;
        let passed = |step: &AgreedStep| {
            begun.iter().all(|&begun| reached(begun, step.epoch.wrapping_add(1)))
        };
        steps.retain(|step| !passed(step));
        match steps.iter().find(|step| step.epoch == epoch) {
            Some(step) if step.shape.plan == shape.plan && step.columns == columns => Ok(()),
            Some(step) if step.shape.plan == shape.plan => Err(Error::mismatch(
                format!("the columns of the products that rank {rank} gives"),
                format!("{columns:?}"),
                format!("{:?}, as rank {} gave", step.columns, step.first),
                "give every rank products of the same columns, in the same order",
            )),
            Some(step) => Err(Error::mismatch(
                format!("the shards that rank {rank} gives"),
                format!("{:?}", shape.plan.problem().rows_of_ranks()),
                format!(
                    "{:?}, as rank {} gave",
                    step.shape.plan.problem().rows_of_ranks(),
                    step.first
                ),
                "give every rank the rows of all ranks, the same on each",
            )),
            None => {
                let (shape, columns) = (Arc::clone(shape), columns.to_vec());
                steps.push(AgreedStep { epoch, shape, columns, first: rank });
                Ok(())
            }
        }
    }

    /// A rank's part in a step.
    pub(crate) fn endpoint<'a>(
        &'a self,
        epoch: u32,
        shape: &'a StepShape,
    ) -> Endpoint<'a, AtomicU32> {
        Endpoint {
            epoch,
            schedule: &shape.schedule,
            chunks: shape.plan.chunks(),
            slots_per_rank: self.slots_per_rank,
            mailboxes: &self.mailboxes,
        }
    }
}
