//! A rank's part in the all-gather: its memory, its pusher thread, its steps.
//!
//! A [`Gatherer`] is one rank's handle on the operation that all ranks share. Per step the caller
//! begins (old buffer released, own slot free), publishes its own chunks, hands the step to its
//! pusher and computes. Invariant: all writes into gathered memory happen between two waits of
//! [`protocol`](super::protocol), and all ranks lay a step out by the same shards, which
//! [`World::agree`] checks before anything is written.

mod pusher;

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use super::compute::no_thread;
use super::control::{Aborter, Control, Watch};
use super::group::{GroupOptions, Rank};
use super::memory::{RowBuffer, check_memory};
use super::protocol::{Endpoint, Mailbox, reached};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{BUFFERS, Engine, Plan, Scaling, Schedule};
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
}

/// The state that the ranks of one operation share.
#[derive(Debug)]
pub(crate) struct World<A> {
    plan: Plan,
    options: GroupOptions,
    origin: Instant,
    slots_per_rank: u32,
    mailboxes: Box<[Mailbox<AtomicU32>]>,
    memory: Box<[RankMemory<A>]>,
    control: Arc<Control>,
    agreed: Mutex<Agreement>,
}

/// The gathered A of one rank, twice, and its row scales.
#[derive(Debug)]
struct RankMemory<A> {
    gathered: [RowBuffer<A>; BUFFERS as usize],
    scales: Option<[RowBuffer<f32>; BUFFERS as usize]>,
}

/// The layouts of the steps that some rank may still begin.
///
/// An entry lives until every rank has begun a later step. Ranks with rows in every step
/// are at most a step or two apart; but where shards vary and are empty, a rank whose rows no other needs
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
    first: u32,
}

impl<A: Element> World<A> {
    fn new(plan: &Plan, rank: &Rank) -> Result<Self> {
        let (problem, options) = (plan.problem(), rank.options());
        let (m, k, ranks) = (problem.m() as usize, problem.k() as usize, problem.ranks());
        let slots_per_rank = plan.chunks().most_per_rank();
        let a_rank = u128::from(BUFFERS) * problem.row_bytes(&(0..problem.m()))
            + 4 * u128::from(slots_per_rank) * u128::from(ranks);
        check_memory("the gathered inputs of all ranks, twice,", a_rank * u128::from(ranks))?;
        let memory = || RankMemory {
            gathered: std::array::from_fn(|_| RowBuffer::new(m, k, A::POISON)),
            scales: (problem.scaling() == Scaling::Rows)
                .then(|| std::array::from_fn(|_| RowBuffer::new(m, 1, f32::NAN))),
        };
        let mailbox = || Mailbox::new(slots_per_rank * ranks, ranks, options.first_epoch);
        Ok(World {
            plan: plan.clone(),
            options,
            origin: rank.origin(),
            slots_per_rank,
            mailboxes: (0..ranks).map(|_| mailbox()).collect(),
            memory: (0..ranks).map(|_| memory()).collect(),
            control: Arc::new(Control::new(ranks, options.timeouts)),
            agreed: Mutex::new(Agreement {
                begun: vec![options.first_epoch; ranks as usize],
                steps: Vec::new(),
            }),
        })
    }

    /// An error unless every rank lays `epoch` out by the same shards.
    fn agree(&self, rank: u32, epoch: u32, shape: &Arc<StepShape>) -> Result<()> {
        let mut agreed = lock(&self.agreed);
        let Agreement { begun, steps } = &mut *agreed;
        begun[rank as usize] = epoch;
        let passed = |step: &AgreedStep| {
            begun.iter().all(|&begun| reached(begun, step.epoch.wrapping_add(1)))
        };
        steps.retain(|step| !passed(step));
        match steps.iter().find(|step| step.epoch == epoch) {
            Some(step) if step.shape.plan == shape.plan => Ok(()),
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
                steps.push(AgreedStep { epoch, shape: Arc::clone(shape), first: rank });
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

    /// Which of the buffers `epoch` lives in.
    fn buffer(epoch: u32) -> usize {
        (epoch % BUFFERS) as usize
    }

    /// Copies `rows` from the slot of rank `from` into the buffer of rank `to`.
    fn copy_rows(&self, from: u32, to: u32, epoch: u32, rows: Range<u32>) {
        fn copy<T: Copy>(from: &RowBuffer<T>, to: &RowBuffer<T>, rows: Range<u32>) {
            // SAFETY: source: the own slot, written before this step was handed to the pusher and
            // not again before `sent`. Target: rows of this rank's chunk, which no thread reads before
            // their signal, and whose earlier readers have posted `consumed` (both awaited).
            unsafe { to.rows_mut(rows.clone()).copy_from_slice(from.rows(rows)) }
        }
        let (source, target) = (&self.memory[from as usize], &self.memory[to as usize]);
        let buffer = Self::buffer(epoch);
        copy(&source.gathered[buffer], &target.gathered[buffer], rows.clone());
        if let (Some(source), Some(target)) = (&source.scales, &target.scales) {
            copy(&source[buffer], &target[buffer], rows);
        }
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
    world: Arc<World<A>>,
    rank: u32,
    /// The epoch of the latest step.
    epoch: u32,
    /// The latest step's shape, while its gathered input may be read.
    readable: Option<Arc<StepShape>>,
    /// The own slot of the next step has been lent out to be written in place.
    lent: bool,
    /// The error that ended the operation, once a call of this rank has returned it.
    over: Option<Error>,
    steps_begun: u64,
    /// Dropped with this handle, which lets the pusher end.
    pusher: mpsc::Sender<Push>,
    transfers: Arc<Mutex<Vec<TransferEvent>>>,
}

impl<A: Element> Gatherer<A> {
    /// Joins the operation; collective, but without a wait.
    pub(crate) fn join(rank: &Rank, plan: &Plan) -> Result<Self> {
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
        let world = rank.join(|world: &World<A>| &world.control, || World::new(plan, rank))?;
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
        Ok(Gatherer {
            world,
            rank: me,
            epoch,
            readable: None,
            lent: false,
            over: None,
            steps_begun: 0,
            pusher,
            transfers,
        })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
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

    /// Waits until everything this rank began to send is sent.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut watch = self.watch();
        self.world.mailboxes[self.rank as usize].await_sent(self.epoch, &mut watch)
    }

    /// The epoch of the latest step.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether the own slot of the next step was lent out to be written in place.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Begins the next step: the previous step's input is released, the own slot is free.
    pub(crate) fn begin(&mut self, shape: &Arc<StepShape>) -> Result<()> {
        self.prepare(shape)?;
        self.epoch = self.epoch.wrapping_add(1);
        self.steps_begun += 1;
        self.lent = false;
        Ok(())
    }

    /// Publishes the own chunks to the own workers and starts the pushes to the others.
    pub(crate) fn send(&mut self, shape: &Arc<StepShape>, own: OwnRows<'_, A>) -> Result<()> {
        let problem = shape.plan.problem();
        let shard = problem.shards().rows(self.rank);
        let (k, lda) = (problem.k() as usize, problem.lda() as usize);
        let memory = &self.world.memory[self.rank as usize];
        let buffer = World::<A>::buffer(self.epoch);
        let origin = self.recording();
        let mut events = Vec::new();
        let endpoint = self.world.endpoint(self.epoch, shape);
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
                let (epoch, signalled) = (self.epoch, origin.elapsed());
                events.push(TransferEvent { from: to, to, epoch, chunk, begin, signalled });
            }
        })?;
        lock(&self.transfers).extend(events);
        let push =
            Push { epoch: self.epoch, shape: Arc::clone(shape), first_step: self.steps_begun == 1 };
        // The pusher lives as long as this handle, unless it panicked.
        let (rank, epoch) = (self.rank, self.epoch);
        self.pusher.send(push).map_err(|_| Error::PeerLost {
            rank,
            peer: rank,
            before: format!("epoch {epoch}"),
        })
    }

    /// The gathered rows of the step in progress or, until the next begins, the latest one.
    pub(crate) fn rows(&self) -> &RowBuffer<A> {
        &self.world.memory[self.rank as usize].gathered[World::<A>::buffer(self.epoch)]
    }

    /// The gathered row scales, if the plan has them.
    pub(crate) fn row_scales(&self) -> Option<&RowBuffer<f32>> {
        let scales = self.world.memory[self.rank as usize].scales.as_ref();
        scales.map(|scales| &scales[World::<A>::buffer(self.epoch)])
    }

    /// How a worker waits for the chunks of a tile; its failure ends the operation everywhere.
    pub(crate) fn await_chunks(
        &self,
        shape: &StepShape,
        chunks: impl Iterator<Item = u32>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let endpoint = self.world.endpoint(self.epoch, shape);
        endpoint
            .await_chunks(chunks, watch)
            .inspect_err(|error| self.fail(self.epoch, error.clone()))
    }

    /// How one of this rank's threads waits in the latest step.
    pub(crate) fn watch(&self) -> Watch<'_> {
        self.watch_in(self.epoch)
    }

    fn watch_in(&self, epoch: u32) -> Watch<'_> {
        self.world.control.patience(self.rank, epoch, self.steps_begun <= 1)
    }

    /// The step is complete: its gathered input may be read until the next.
    pub(crate) fn complete(&mut self, shape: &Arc<StepShape>) {
        self.readable = Some(Arc::clone(shape));
    }

    /// Ends the operation for every rank from the next step on, whenever it is called.
    pub(crate) fn ender(&self) -> impl FnOnce(Error) + use<A> {
        let (control, rank) = (Arc::clone(&self.world.control), self.rank);
        let next = self.epoch.wrapping_add(1);
        move |error| control.fail(Some(rank), Some(next), error)
    }

    /// The operation ends in the step of `epoch`, for every rank.
    fn fail(&self, epoch: u32, error: Error) {
        self.world.control.fail(Some(self.rank), Some(epoch), error);
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
        let next = World::<A>::buffer(self.epoch.wrapping_add(1));
        let rows = shape.plan.problem().shards().rows(self.rank);
        let buffer = &self.world.memory[self.rank as usize].gathered[next];
        // SAFETY: `prepare` awaited the end of this slot's last use; peers write other rows of the
        // buffer, by the shards that all ranks agreed on; own workers run only in a later call.
        Ok(unsafe { buffer.rows_mut(rows) })
    }

    /// A call of this rank returned `error`: later ones report that the operation is over.
    pub(crate) fn end_with(&mut self, error: &Error) {
        self.over.get_or_insert_with(|| error.clone());
    }

    /// The waits and posts before the own slot of the next step is written; may be repeated.
    fn prepare(&mut self, shape: &Arc<StepShape>) -> Result<()> {
        if let Some(cause) = &self.over {
            return Err(Error::over(self.rank, cause));
        }
        let latest = self.readable.take();
        let next = self.epoch.wrapping_add(1);
        self.world.control.check(self.rank, next)?;
        self.world.agree(self.rank, next, shape).inspect_err(|e| self.fail(next, e.clone()))?;
        if let Some(latest) = latest
            && self.world.options.poison
        {
            self.poison(&latest.plan);
        }
        let endpoint = self.world.endpoint(next, shape);
        let begun = endpoint.begin(&mut self.watch_in(next));
        begun.inspect_err(|error| self.fail(next, error.clone()))
    }
}

impl<A: Element> Gatherer<A> {
    /// Fills the latest step's buffer with NaN, but for the own slot, which the pusher may still
    /// be reading.
    fn poison(&self, latest: &Plan) {
        let own = latest.problem().shards().rows(self.rank);
        for rows in [0..own.start, own.end..self.world.plan.problem().m()] {
            // SAFETY: this rank's workers are done with the buffer, and no rank may fill it again
            // before its consumption is posted.
            unsafe { self.rows().rows_mut(rows.clone()) }.fill(A::POISON);
            if let Some(scales) = self.row_scales() {
                // SAFETY: as for the rows.
                unsafe { scales.rows_mut(rows) }.fill(f32::NAN);
            }
        }
    }
}

/// Locks; what a panicking thread left is still whole, since no update here can be cut short.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
