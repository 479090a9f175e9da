//! What the ranks of one operation share, and one rank's part in it: epochs, waits, the thread that sends.
//!
//! A [`Member`] is one rank's handle. Per step it prepares (the previous step's buffers are released, the buffers of this
//! step are free), computes, and hands its pushing lane to its pusher. Invariant: all writes into another rank's memory
//! happen between two waits of [`protocol`](super::protocol), and all ranks lay a step out by the same shards, which
//! [`World::agree`] checks before anything is written.

mod pusher;

use std::fmt::Debug;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use super::compute::no_thread;
use super::control::{Aborter, Control, Watch};
use super::group::{GroupOptions, Rank};
use super::protocol::{Endpoint, Mailbox, reached, signal_slots};
use crate::error::{Error, Result};
use crate::plan::{BUFFERS, Engine, Plan, Schedule};
use crate::trace::TransferEvent;
use pusher::{Push, Pusher};

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
            Some(rows) if rows != self.plan.problem().shards().to_rows() => {
                Ok(StepShape::new(self.plan.for_rows(rows)?, self.schedule.rank))
            }
            _ => Ok(Arc::clone(self)),
        }
    }
}

/// The memory of all ranks that rows travel between.
pub(crate) trait Memory: Debug + Send + Sync + 'static {
    /// Carries out the move of a chunk between two `ends`, from one rank to another, in the buffers of number `buffer`; returns its bytes.
    /// Of sums, this step has that many columns.
    ///
    /// # Safety
    /// The pushing lane of the sender's schedule has come to this move: the source has been written and is not written
    /// again before it has been read; no thread reads the target before it is signalled, and its earlier readers are
    /// through. (`Sent` and `Consumed` say so; in an all-reduce, sums of the next step do.)
    unsafe fn move_chunk(
        &self,
        plan: &Plan,
        chunk: u32,
        columns: usize,
        ends: [u32; 2],
        buffer: usize,
    ) -> u64;
}

/// The state that the ranks of one operation share.
#[derive(Debug)]
pub(crate) struct World<M> {
    plan: Plan,
    options: GroupOptions,
    origin: Instant,
    slots_per_rank: u32,
    mailboxes: Box<[Mailbox<AtomicU32>]>,
    control: Arc<Control>,
    agreed: Mutex<Agreement>,
    memory: M,
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
    fn new(plan: &Plan, rank: &Rank, memory: M) -> Self {
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
    fn agree(&self, rank: u32, epoch: u32, shape: &Arc<StepShape>, columns: &[u32]) -> Result<()> {
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
                format!("{:?}", shape.plan.problem().shards().to_rows()),
                format!(
                    "{:?}, as rank {} gave",
                    step.shape.plan.problem().shards().to_rows(),
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

    fn endpoint<'a>(&'a self, epoch: u32, shape: &'a StepShape) -> Endpoint<'a, AtomicU32> {
        Endpoint {
            epoch,
            schedule: &shape.schedule,
            chunks: shape.plan.chunks(),
            slots_per_rank: self.slots_per_rank,
            mailboxes: &self.mailboxes,
        }
    }
}

/// Which of the buffers `epoch` lives in.
pub(crate) fn buffer_of(epoch: u32) -> usize {
    (epoch % BUFFERS) as usize
}

/// One rank's handle on the operation.
#[derive(Debug)]
pub(crate) struct Member<M> {
    world: Arc<World<M>>,
    rank: u32,
    /// The epoch of the latest step.
    epoch: u32,
    /// The error that ended the operation, once a call of this rank has returned it.
    over: Option<Error>,
    steps_begun: u64,
    /// Dropped with this handle, which lets the pusher end.
    pusher: mpsc::Sender<Push>,
    transfers: Arc<Mutex<Vec<TransferEvent>>>,
}

impl<M: Memory> Member<M> {
    /// Joins the operation; collective, but without a wait. The first rank makes the memory.
    pub(crate) fn join(
        rank: &Rank,
        plan: &Plan,
        memory: impl FnOnce() -> Result<M>,
    ) -> Result<Self> {
        if plan.problem().ranks() != rank.ranks() {
            let remedy = "plan for as many ranks as the group has";
            let (got, expected) = (plan.problem().ranks(), rank.ranks());
            return Err(Error::mismatch("the number of ranks in the plan", got, expected, remedy));
        }
        if plan.options().engine != Engine::Thread {
            return Err(Error::Unsupported {
                what: format!("moving rows between threads by {}", plan.options().engine),
                why: "GPUs have it".into(),
                remedy: "plan with Engine::Thread",
            });
        }
        let make = || Ok(World::new(plan, rank, memory()?));
        let world = rank.join(|world: &World<M>| &world.control, make)?;
        let me = rank.rank();
        if world.plan != *plan {
            let remedy = "plan the same operations in the same order on every rank";
            let what = format!("the plan of rank {me}");
            let error = Error::mismatch(what, plan.problem(), world.plan.problem(), remedy);
            world.control.fail(Some(me), None, error.clone());
            return Err(error);
        }
        let transfers = Arc::default();
        let (pusher, steps) = mpsc::channel();
        let pushing = Pusher { world: Arc::clone(&world), rank: me, log: Arc::clone(&transfers) };
        // Detached: it ends when the handle is dropped and what was begun is sent or given up, and
        // dropping must not wait for a peer.
        std::thread::Builder::new()
            .name(format!("overlap-gemm push {me}"))
            .spawn(move || pushing.run(steps))
            .map_err(|error| no_thread(&error))?;
        let epoch = world.options.first_epoch;
        Ok(Member { world, rank: me, epoch, over: None, steps_begun: 0, pusher, transfers })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// The plan of the largest step.
    pub(crate) fn planned(&self) -> &Plan {
        &self.world.plan
    }

    pub(crate) fn memory(&self) -> &M {
        &self.world.memory
    }

    /// Whether consumed buffers are filled with NaN.
    pub(crate) fn poisons(&self) -> bool {
        self.world.options.poison
    }

    /// The epoch of the latest step.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn aborter(&self) -> Aborter {
        Aborter::new(&self.world.control)
    }

    /// The clock's origin, if steps are recorded.
    pub(crate) fn recording(&self) -> Option<Instant> {
        self.world.options.record.then_some(self.world.origin)
    }

    /// Takes the transfers recorded so far. Those of the latest step may still be on their way.
    pub(crate) fn take_transfers(&self) -> Vec<TransferEvent> {
        std::mem::take(&mut *lock(&self.transfers))
    }

    /// Notes transfers that the caller made itself.
    pub(crate) fn record(&self, events: Vec<TransferEvent>) {
        lock(&self.transfers).extend(events);
    }

    /// Waits until everything this rank began to send is sent.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut watch = self.watch();
        self.world.mailboxes[self.rank as usize].await_sent(self.epoch, &mut watch)
    }

    /// The rank's part in the latest step.
    pub(crate) fn endpoint<'a>(&'a self, shape: &'a StepShape) -> Endpoint<'a, AtomicU32> {
        self.world.endpoint(self.epoch, shape)
    }

    /// How one of this rank's threads waits in the latest step.
    pub(crate) fn watch(&self) -> Watch<'_> {
        self.watch_in(self.epoch)
    }

    fn watch_in(&self, epoch: u32) -> Watch<'_> {
        self.world.control.patience(self.rank, epoch, self.steps_begun <= 1)
    }

    /// The waits and posts before the next step writes anything; may be repeated. `columns` are those of the products, if all
    /// ranks need the same. `release` comes first: what was read in the previous step is read no more.
    pub(crate) fn prepare(
        &mut self,
        shape: &Arc<StepShape>,
        columns: &[u32],
        release: impl FnOnce(&Self),
    ) -> Result<()> {
        if let Some(cause) = &self.over {
            return Err(Error::over(self.rank, cause));
        }
        let next = self.epoch.wrapping_add(1);
        self.world.control.check(self.rank, next)?;
        let agreed = self.world.agree(self.rank, next, shape, columns);
        agreed.inspect_err(|error| self.fail_in(next, error.clone()))?;
        release(self);
        let endpoint = self.world.endpoint(next, shape);
        let begun = endpoint.begin(&mut self.watch_in(next));
        begun.inspect_err(|error| self.fail_in(next, error.clone()))
    }

    /// The next step is the latest now.
    pub(crate) fn advance(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.steps_begun += 1;
    }

    /// An error once the operation has ended for the latest step.
    pub(crate) fn check(&self) -> Result<()> {
        self.world.control.check(self.rank, self.epoch)
    }

    /// Lets the pusher carry out the latest step's pushing lane; sums have that many columns.
    pub(crate) fn push(&self, shape: &Arc<StepShape>, columns: usize) -> Result<()> {
        let (shape, first_step) = (Arc::clone(shape), self.steps_begun == 1);
        let push = Push { epoch: self.epoch, shape, columns, first_step };
        // The pusher lives as long as this handle, unless it panicked.
        let (rank, epoch) = (self.rank, self.epoch);
        self.pusher.send(push).map_err(|_| Error::PeerLost {
            rank,
            peer: rank,
            before: format!("epoch {epoch}"),
        })
    }

    /// The operation ends in the latest step, for every rank.
    pub(crate) fn fail(&self, error: Error) {
        self.fail_in(self.epoch, error);
    }

    /// The operation ends for every rank at once.
    pub(crate) fn fail_all(&self, error: Error) {
        self.world.control.fail(Some(self.rank), None, error);
    }

    fn fail_in(&self, epoch: u32, error: Error) {
        self.world.control.fail(Some(self.rank), Some(epoch), error);
    }

    /// Ends the operation for every rank from the next step on, whenever it is called.
    pub(crate) fn ender(&self) -> impl FnOnce(Error) + use<M> {
        let (control, rank) = (Arc::clone(&self.world.control), self.rank);
        let next = self.epoch.wrapping_add(1);
        move |error| control.fail(Some(rank), Some(next), error)
    }

    /// A call of this rank returned `error`: later ones report that the operation is over.
    pub(crate) fn end_with(&mut self, error: &Error) {
        self.over.get_or_insert_with(|| error.clone());
    }
}

/// Locks; what a panicking thread left is still whole, since no update here can be cut short.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
