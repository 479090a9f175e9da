//! The ends of waits that fail: timeouts, abort, departures.
//!
//! Invariant: every wait looks here between two looks at its word, so no wait outlives its
//! deadline, an abort, or the departure of the rank it waits for. A failure ends the step in which it
//! happened, and every later one, on all ranks. A rank that is still in an earlier step completes it,
//! since all that it needs has arrived or is being sent. Of several failures the one of the earliest step is
//! kept; of those, the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::protocol::{Awaited, Patience, reached};
use crate::error::{Error, Result};
use crate::plan::{Tile, Timeouts};
use crate::sync::lock;

/// The shared end of an operation: failures and departures.
#[derive(Debug)]
pub(crate) struct Control {
    timeouts: Timeouts,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    departed: Box<[AtomicBool]>,
}

/// The failure that ended an operation.
#[derive(Debug)]
struct Failure {
    /// The rank it happened on; `None`: an abort.
    rank: Option<u32>,
    /// The first epoch that it ends; `None`: all, also those in progress.
    from: Option<u32>,
    error: Error,
}

impl Failure {
    fn ends(&self, epoch: u32) -> bool {
        self.from.is_none_or(|from| reached(epoch, from))
    }

    /// Whether this ends steps that `known` does not.
    fn ends_more_than(&self, known: &Failure) -> bool {
        match self.from {
            Some(from) => !known.ends(from),
            None => known.from.is_some(),
        }
    }
}

impl Control {
    pub(crate) fn new(ranks: u32, timeouts: Timeouts) -> Self {
        Control {
            timeouts,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            departed: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Ends the operation on all ranks from an epoch on, or at once, unless it has ended there already.
    pub(crate) fn fail(&self, rank: Option<u32>, from: Option<u32>, error: Error) {
        let new = Failure { rank, from, error };
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|known| new.ends_more_than(known)) {
            *failure = Some(new);
        }
        // Release: the failure is visible before the flag. Partner: `check`.
        self.failed.store(true, Ordering::Release);
    }

    /// An error once the operation has ended for `epoch`: the failure itself on the rank where it
    /// happened, `Aborted` on all others.
    pub(crate) fn check(&self, rank: u32, epoch: u32) -> Result<()> {
        // Acquire: see `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = lock(&self.failure);
        match failure.as_ref().filter(|failure| failure.ends(epoch)) {
            Some(Failure { rank: Some(failed), error, .. }) if *failed == rank => {
                Err(error.clone())
            }
            Some(failure) => Err(Error::Aborted { rank, reason: failure.error.reason() }),
            None => Ok(()),
        }
    }

    /// Whether `rank` has left, and will post nothing more.
    pub(crate) fn set_departed(&self, rank: u32, departed: bool) {
        // Release: its posts are visible before the flag. Partner: `Watch::pause`.
        self.departed[rank as usize].store(departed, Ordering::Release);
    }

    /// How `rank` waits in the step of `epoch`.
    pub(crate) fn patience(&self, rank: u32, epoch: u32, first_step: bool) -> Watch<'_> {
        let limit = if first_step { self.timeouts.first } else { self.timeouts.steady };
        Watch { control: self, rank, epoch, limit, tile: None, wait: None }
    }

    /// Sleeps; once the operation has failed, for 5 ms at most.
    pub(crate) fn sleep(&self, mut time: Duration) {
        const SLICE: Duration = Duration::from_millis(5);
        // Relaxed: it ends a sleep, and orders nothing.
        while !time.is_zero() && !self.failed.load(Ordering::Relaxed) {
            let slice = time.min(SLICE);
            std::thread::sleep(slice);
            time -= slice;
        }
    }
}

/// Ends a running operation from any thread.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{AllGatherGemm, Group, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let mut layer = AllGatherGemm::<f32>::plan(&Group::local(1)?[0], &problem, PlanOptions::new())?;
/// let (a, b, mut d) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0], [0.0; 2]);
/// let aborter = layer.aborter();
/// std::thread::spawn(move || aborter.abort("shutting down")).join().expect("it does not panic");
/// assert!(layer.enqueue(&Stream::new(1)?, &a[..], &b, &mut d).is_err());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Aborter {
    control: Arc<Control>,
}

impl Aborter {
    pub(crate) fn new(control: &Arc<Control>) -> Self {
        Aborter { control: Arc::clone(control) }
    }

    /// Every rank's later steps return [`Error::Aborted`] with this reason, and so does its current one, unless that has all
    /// that it waits for.
    pub fn abort(&self, reason: &str) {
        let reason = reason.to_owned();
        self.control.fail(None, None, Error::Aborted { rank: 0, reason });
    }
}

/// One thread's patience: spins, yields, sleeps, and looks at the [`Control`] each time.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    control: &'a Control,
    rank: u32,
    /// The step's; a word's may be an earlier one.
    epoch: u32,
    limit: Duration,
    /// The tile that this thread waits for, to be named if the wait fails.
    pub(crate) tile: Option<Tile>,
    wait: Option<Wait>,
}

/// The wait in progress.
#[derive(Debug)]
struct Wait {
    awaited: Awaited,
    epoch: u32,
    since: Instant,
    looks: u32,
    /// The peer had left at the previous look, so what it ever sent has been seen by now.
    peer_had_left: bool,
}

/// Looks before a thread yields its core, and before it sleeps. On a machine with fewer cores than
/// threads the one that would write the word needs the core.
const SPINS: u32 = 64;
const SPINS_AND_YIELDS: u32 = 128;
const NAP: Duration = Duration::from_micros(50);

impl Patience for Watch<'_> {
    type Error = Error;

    fn pause(&mut self, awaited: Awaited, epoch: u32, seen: u32) -> Result<()> {
        self.control.check(self.rank, self.epoch)?;
        let peer = match awaited {
            Awaited::Chunk { from, .. } | Awaited::Partial { from, .. } => from,
            Awaited::Consumed { by } => by,
            Awaited::Sent | Awaited::Summed { .. } => self.rank,
        };
        let peer_left = self.control.departed.get(peer as usize);
        // Acquire: see `Control::set_departed`.
        let peer_left = peer_left.is_some_and(|left| left.load(Ordering::Acquire));
        let fresh = Wait { awaited, epoch, since: Instant::now(), looks: 0, peer_had_left: false };
        let wait = match &mut self.wait {
            Some(wait) if (wait.awaited, wait.epoch) == (awaited, epoch) => wait,
            other => other.insert(fresh),
        };
        if wait.peer_had_left {
            return Err(Error::PeerLost {
                rank: self.rank,
                peer,
                before: format!("epoch {epoch}"),
            });
        }
        wait.peer_had_left = peer_left;
        wait.looks += 1;
        match wait.looks {
            0..SPINS => std::hint::spin_loop(),
            SPINS..SPINS_AND_YIELDS => std::thread::yield_now(),
            // The own sums, or totals: this rank computes them, however long that takes, or has failed.
            _ if matches!(awaited, Awaited::Summed { .. }) => std::thread::sleep(NAP),
            _ if wait.since.elapsed() > self.limit => {
                return Err(Error::PeerTimeout {
                    rank: self.rank,
                    peer,
                    awaited: describe(awaited, self.tile),
                    epoch,
                    epoch_seen: seen,
                    limit: self.limit,
                });
            }
            _ => std::thread::sleep(NAP),
        }
        Ok(())
    }
}

fn describe(awaited: Awaited, tile: Option<Tile>) -> String {
    match (awaited, tile) {
        (Awaited::Chunk { chunk, .. }, Some(tile)) => {
            format!("chunk {chunk} (for tile ({}, {}))", tile.m, tile.n)
        }
        (Awaited::Chunk { chunk, .. }, None) => format!("chunk {chunk}"),
        (Awaited::Consumed { .. }, _) => "the consumption of a buffer".into(),
        (Awaited::Sent, _) => "the end of the own sends".into(),
        (Awaited::Summed { chunk }, _) => format!("the own sums or total of chunk {chunk}"),
        (Awaited::Partial { chunk, .. }, _) => format!("the sums or total of chunk {chunk}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::super::protocol::{AtomicWord, Mailbox};
    use super::*;

    /// A word whose writer posts epoch 1 right after the first look at it, and leaves.
    struct PostedAfterTheFirstLook(AtomicU32);

    impl AtomicWord for PostedAfterTheFirstLook {
        fn new(_: u32) -> Self {
            PostedAfterTheFirstLook(AtomicU32::new(0))
        }

        fn load(&self, _: Ordering) -> u32 {
            // Relaxed: one thread.
            self.0.fetch_add(1, Ordering::Relaxed).min(1)
        }

        fn store(&self, _: u32, _: Ordering) {
            unreachable!("the word posts itself");
        }
    }

    #[test]
    fn what_was_posted_before_its_rank_left_is_seen() {
        let control = Control::new(2, Timeouts::default());
        control.set_departed(1, true);
        let mailbox = Mailbox::<PostedAfterTheFirstLook>::new(1, 2, 0);
        let (awaited, mut watch) =
            (Awaited::Chunk { chunk: 0, from: 1 }, control.patience(0, 1, true));
        mailbox.await_signal(0, 1, awaited, &mut watch).unwrap();
        let lost = mailbox.await_signal(0, 2, awaited, &mut watch).unwrap_err();
        assert!(matches!(lost, Error::PeerLost { rank: 0, peer: 1, .. }), "{lost:?}");
    }

    #[test]
    fn a_rank_has_no_limit_for_its_own_sums() {
        let limit = Duration::ZERO;
        let control = Control::new(2, Timeouts::new(limit, limit));
        let looks = |awaited| {
            let mut watch = control.patience(0, 1, false);
            (0..2 * SPINS_AND_YIELDS).try_for_each(|_| watch.pause(awaited, 1, 0))
        };
        assert!(matches!(looks(Awaited::Sent), Err(Error::PeerTimeout { .. })));
        assert_eq!(looks(Awaited::Summed { chunk: 0 }), Ok(()));
        control.fail(Some(1), None, Error::Aborted { rank: 1, reason: "asked for".into() });
        assert!(looks(Awaited::Summed { chunk: 0 }).is_err());
    }

    #[test]
    fn a_failure_ends_its_step_and_later_ones() {
        let control = Control::new(3, Timeouts::default());
        let fail = |rank, from, reason: &str| {
            control.fail(rank, from, Error::Aborted { rank: 0, reason: reason.into() });
        };
        let reason = |rank, epoch| match control.check(rank, epoch) {
            Err(Error::Aborted { reason, .. }) => Some(reason),
            _ => None,
        };
        // Across the wrap: epoch 1 comes after u32::MAX.
        fail(Some(0), Some(1), "late");
        fail(Some(1), Some(1), "second");
        let ended = [u32::MAX, 0, 1, 2].map(|epoch| reason(2, epoch).is_some());
        assert_eq!(ended, [false, false, true, true]);
        assert_eq!(reason(2, 1).unwrap(), "late");
        fail(Some(1), Some(u32::MAX), "early");
        fail(Some(0), Some(0), "too late");
        assert_eq!(reason(2, u32::MAX).unwrap(), "early");
        assert_eq!(reason(2, u32::MAX - 1), None);
        fail(None, None, "asked for");
        fail(Some(0), Some(7), "behind that");
        assert_eq!(reason(2, u32::MAX - 1).unwrap(), "asked for");
    }
}
