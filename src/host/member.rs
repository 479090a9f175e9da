//! One rank's part in an operation: epochs, waits, the steps of its schedule.
//!
//! Per step it begins (the previous step's buffers are released, the buffers of this step are free), hands its pushing lane
//! to its pusher, and carries out the rest of the caller's lane; the operation computes. Invariant: a step begins when all
//! ranks lay it out alike, and no step follows a failed one.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use super::compute::no_thread;
use super::control::{Aborter, Watch};
use super::group::Rank;
use super::protocol::Endpoint;
use super::pusher::{Push, Pusher};
use super::world::{Memory, StepShape, World};
use crate::error::{Error, Result};
use crate::plan::{Engine, Plan, Step};
use crate::sync::lock;
use crate::trace::{AdditionEvent, TileEvent, Timeline, TransferEvent};

/// One rank's handle on the operation.
#[derive(Debug)]
pub(crate) struct Member<M> {
    world: Arc<World<M>>,
    /// The largest step.
    planned: Arc<StepShape>,
    /// The latest step, while what it gathered may be read.
    latest: Option<Arc<StepShape>>,
    rank: u32,
    /// The epoch of the latest step.
    epoch: u32,
    /// The error that ended the operation, once a call of this rank has returned it.
    over: Option<Error>,
    steps_begun: u64,
    /// Dropped with this handle, which lets the pusher end.
    pusher: mpsc::Sender<Push>,
    tiles: Vec<TileEvent>,
    additions: Vec<AdditionEvent>,
    transfers: Arc<Mutex<Vec<TransferEvent>>>,
}

impl<M: Memory> Member<M> {
    /// Joins the operation; collective, but without a wait. The first rank makes the memory.
    pub(crate) fn join(
        rank: &Rank,
        plan: Plan,
        memory: impl FnOnce(&Plan) -> Result<M>,
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
        let make = || Ok(World::new(&plan, rank, memory(&plan)?));
        let world = rank.join(|world: &World<M>| &world.control, make)?;
        let me = rank.rank();
        if world.plan != plan {
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
        tracing::debug!(rank = me, problem = %plan.problem(), "planned {}", plan.options().operation);
        Ok(Member {
            epoch: world.options.first_epoch,
            planned: StepShape::new(plan, me),
            latest: None,
            rank: me,
            over: None,
            steps_begun: 0,
            tiles: Vec::new(),
            additions: Vec::new(),
            world,
            pusher,
            transfers,
        })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// The largest step.
    pub(crate) fn planned(&self) -> &Arc<StepShape> {
        &self.planned
    }

    /// The latest step, until the next begins; nothing after a failure.
    pub(crate) fn latest(&self) -> Option<&StepShape> {
        self.latest.as_deref()
    }

    pub(crate) fn memory(&self) -> &M {
        &self.world.memory
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

    /// Takes what was recorded so far. Transfers of the latest step may still be on their way.
    pub(crate) fn take_timeline(&mut self) -> Timeline {
        let transfers = std::mem::take(&mut *lock(&self.transfers));
        let (tiles, additions) = (&mut self.tiles, &mut self.additions);
        Timeline { tiles: std::mem::take(tiles), transfers, additions: std::mem::take(additions) }
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
    /// ranks need the same.
    pub(crate) fn prepare(&mut self, shape: &Arc<StepShape>, columns: &[u32]) -> Result<()> {
        let latest = self.latest.take();
        if let Some(cause) = &self.over {
            return Err(Error::over(self.rank, cause));
        }
        let next = self.epoch.wrapping_add(1);
        self.world.control.check(self.rank, next)?;
        let agreed = self.world.agree(self.rank, next, shape, columns);
        agreed.inspect_err(|error| self.fail_in(next, error.clone()))?;
        if let Some(latest) = latest.filter(|_| self.world.options.poison) {
            // SAFETY: this rank's workers are done with the latest step. It announces that after this; in an all-reduce, nobody
            // writes its slots before it has sent sums or totals of the next step.
            unsafe { self.world.memory.poison(&latest.plan, self.rank, self.epoch) };
        }
        let begun = self.world.endpoint(next, shape).begin(&mut self.watch_in(next));
        begun.inspect_err(|error| self.fail_in(next, error.clone()))
    }

    /// Begins the next step, which is the latest now.
    pub(crate) fn begin(&mut self, shape: &Arc<StepShape>, columns: &[u32]) -> Result<()> {
        self.prepare(shape, columns)?;
        self.epoch = self.epoch.wrapping_add(1);
        self.steps_begun += 1;
        Ok(())
    }

    /// Carries out the caller's lane from the first step that computes, or waits for rows or sums, on: `compute` does what
    /// the operation adds to waits and posts.
    pub(crate) fn carry_out(
        &mut self,
        shape: &Arc<StepShape>,
        mut compute: impl FnMut(&Self, &Step) -> Result<Vec<TileEvent>>,
    ) -> Result<()> {
        let world = Arc::clone(&self.world);
        let endpoint = world.endpoint(self.epoch, shape);
        for step in endpoint.after_opening() {
            match step {
                Step::Multiply { .. } => {
                    let events = compute(self, step)?;
                    self.tiles.extend(events);
                }
                Step::Reduce { chunk } => {
                    let (origin, rank, epoch, chunk) =
                        (self.recording(), self.rank, self.epoch, *chunk);
                    let begin = origin.map(|origin| origin.elapsed());
                    compute(self, step)?;
                    let event = origin.zip(begin).map(|(origin, begin)| {
                        let done = origin.elapsed();
                        AdditionEvent { rank, epoch, chunk, begin, done }
                    });
                    self.additions.extend(event);
                }
                Step::Post { word, to, age } => {
                    endpoint.post(*word, *to, endpoint.epoch.wrapping_sub(*age));
                }
                Step::Await { word, age } => {
                    let waited = endpoint.await_word(*word, *age, &mut self.watch());
                    waited.inspect_err(|error| self.fail(error.clone()))?;
                }
                // The opening's, and the pusher's.
                Step::Move { .. } => {}
            }
        }
        self.latest = Some(Arc::clone(shape));
        Ok(())
    }

    /// How a worker waits for the chunks of a tile; its failure ends the operation everywhere.
    pub(crate) fn await_chunks(
        &self,
        shape: &StepShape,
        chunks: impl Iterator<Item = u32>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let waited = self.endpoint(shape).await_chunks(chunks, watch);
        waited.inspect_err(|error| self.fail(error.clone()))
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
