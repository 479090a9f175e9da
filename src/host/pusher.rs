//! The thread that sends to the other ranks, step by step.
//!
//! Invariant: it carries out the pushing lane of the schedule, and nothing else; however it ends, its peers learn of it.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::world::{Memory, StepShape, World};
use crate::error::Result;
use crate::sync::lock;
use crate::trace::TransferEvent;

/// A step that the pusher is to send.
pub(crate) struct Push {
    pub(crate) epoch: u32,
    pub(crate) shape: Arc<StepShape>,
    pub(crate) columns: usize,
    pub(crate) first_step: bool,
}

/// A slowed link does not slow down further because this thread was woken late (all cores compute):
/// the next chunk counts as begun when the link was free, if that was no longer ago than this.
const FORGIVEN_LATENESS: Duration = Duration::from_millis(10);

/// The thread that sends to the other ranks.
pub(crate) struct Pusher<M> {
    pub(crate) world: Arc<World<M>>,
    pub(crate) rank: u32,
    pub(crate) log: Arc<Mutex<Vec<TransferEvent>>>,
}

impl<M: Memory> Pusher<M> {
    pub(crate) fn run(self, steps: mpsc::Receiver<Push>) {
        let mut sent = 0;
        for step in steps {
            if let Err(error) = self.push(&step, &mut sent) {
                self.world.control.fail(Some(self.rank), Some(step.epoch), error);
            }
        }
    }

    fn push(&self, step: &Push, sent: &mut u64) -> Result<()> {
        let world = &*self.world;
        world.control.check(self.rank, step.epoch)?;
        let mut watch = world.control.patience(self.rank, step.epoch, step.first_step);
        let endpoint = world.endpoint(step.epoch, &step.shape);
        let mut link_free = Instant::now();
        endpoint.push(&mut watch, |chunk, to| {
            let begin = Instant::now();
            let (plan, ends) = (&step.shape.plan, [self.rank, to]);
            // SAFETY: the endpoint has awaited what comes before this move in the lane.
            let bytes =
                unsafe { world.memory.move_chunk(plan, chunk, step.columns, ends, step.epoch) };
            if let Some(link) = world.options.link {
                let forgiven = begin.checked_sub(FORGIVEN_LATENESS).unwrap_or(begin);
                link_free = link_free.max(forgiven) + link.transfer_time(bytes, self.rank, *sent);
                world.control.sleep(link_free.saturating_duration_since(Instant::now()));
            }
            *sent += 1;
            if world.options.record {
                lock(&self.log).push(TransferEvent {
                    from: self.rank,
                    to,
                    epoch: step.epoch,
                    chunk,
                    begin: begin.duration_since(world.origin),
                    signalled: world.origin.elapsed(),
                });
            }
        })
    }
}

impl<M> Drop for Pusher<M> {
    /// However the thread ends, by a panic too, its peers learn that nothing more will come.
    fn drop(&mut self) {
        self.world.control.set_departed(self.rank, true);
    }
}
