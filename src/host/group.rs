//! The ranks of one process: threads that hold a [`Rank`] each.
//!
//! Operations are planned collectively: the n-th plan of one rank and the n-th of another are the
//! same operation, and must be equal. The first rank to plan it makes the shared memory, the
//! others find it; no rank waits here. A rank that is dropped has left every operation that
//! it did not join; the operation's other ranks see it as departed. Invariant: ranks that hold one operation hold equal
//! plans.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::control::Control;
use crate::error::{Error, Result};
use crate::plan::{Shards, Timeouts};
use crate::random::Random;
use crate::sync::lock;

/// The options of a group.
///
/// ```
/// use overlap_gemm::host::{Group, GroupOptions, Link};
///
/// let link = Some(Link::of_rate(20e9));
/// let ranks = Group::local_with(2, GroupOptions { link, record: true, ..GroupOptions::default() })?;
/// assert!(ranks[1].options().record);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupOptions {
    /// How long ranks wait for each other.
    pub timeouts: Timeouts,
    /// A model of the link between ranks; `None`: copies at the speed of memory.
    pub link: Option<Link>,
    /// Fills a consumed buffer with NaN before it may be filled again, so that a read of stale
    /// rows shows. For tests; it costs a pass over the buffer each step.
    pub poison: bool,
    /// Records a timeline of every step.
    pub record: bool,
    /// The epoch before an operation's first step: any value will do, epochs wrap.
    pub first_epoch: u32,
}

/// A model of the link: how long a chunk takes from one rank to another.
///
/// ```
/// use std::time::Duration;
/// use overlap_gemm::host::Link;
///
/// let link = Link { jitter: Duration::from_micros(50), ..Link::of_rate(20e9) };
/// assert_eq!(link.bytes_per_second, 20e9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a rank sends in a second.
    pub bytes_per_second: f64,
    /// Up to this much is added to each transfer, pseudo-randomly.
    pub jitter: Duration,
    /// Where the pseudo-random delays begin.
    pub seed: u64,
}

impl Link {
    /// A link of a given rate, without jitter.
    pub fn of_rate(bytes_per_second: f64) -> Self {
        Link { bytes_per_second, jitter: Duration::ZERO, seed: 0 }
    }

    /// How long the `nth` transfer of `rank`, of `bytes` bytes, takes.
    pub(crate) fn transfer_time(&self, bytes: u64, rank: u32, nth: u64) -> Duration {
        let stream = u64::from(rank) << 48 ^ nth;
        let fraction = Random::of_stream(self.seed, stream).fraction();
        let wire = Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second);
        // A day is as good as for ever, and can be added to the clock.
        let day = Duration::from_secs(86_400);
        wire.unwrap_or(day).min(day) + self.jitter.min(day).mul_f64(fraction)
    }
}

/// Makes groups.
///
/// ```
/// use overlap_gemm::host::Group;
///
/// for rank in Group::local(4)? {
///     // Each for a thread.
///     println!("rank {} of {}", rank.rank(), rank.ranks());
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Group;

impl Group {
    /// `ranks` ranks in this process, one for each thread.
    pub fn local(ranks: u32) -> Result<Vec<Rank>> {
        Group::local_with(ranks, GroupOptions::default())
    }

    /// The same, with options.
    pub fn local_with(ranks: u32, options: GroupOptions) -> Result<Vec<Rank>> {
        Shards::even(1, ranks)?; // as many ranks as a plan can have
        if let Some(link) = options.link {
            let rate = link.bytes_per_second;
            if !(rate.is_finite() && rate > 0.0) {
                return Err(Error::Unsupported {
                    what: format!("a link of {rate} bytes a second"),
                    why: "a rate is positive and finite".into(),
                    remedy: "leave the link out to copy as fast as memory goes",
                });
            }
        }
        let meeting = Arc::new(Meeting {
            ranks,
            options,
            origin: Instant::now(),
            operations: Mutex::new(Operations {
                planned: HashMap::new(),
                left: vec![false; ranks as usize],
            }),
        });
        let rank = |rank| Rank { rank, meeting: Arc::clone(&meeting), planned: AtomicU64::new(0) };
        Ok((0..ranks).map(rank).collect())
    }
}

/// One rank of a group; operations are planned on it.
///
/// ```
/// use overlap_gemm::host::{AllGatherGemm, Group};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(4, 4, 4).build()?;
/// let [rank] = &Group::local(1)?[..] else { unreachable!() };
/// let layer = AllGatherGemm::<overlap_gemm::element::bf16>::plan(rank, &problem, PlanOptions::new())?;
/// # let _ = layer;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct Rank {
    rank: u32,
    meeting: Arc<Meeting>,
    planned: AtomicU64,
}

impl Rank {
    /// This rank's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the group has.
    pub fn ranks(&self) -> u32 {
        self.meeting.ranks
    }

    /// The options of the group.
    pub fn options(&self) -> GroupOptions {
        self.meeting.options
    }

    /// Time zero of the group's timelines.
    pub(crate) fn origin(&self) -> Instant {
        self.meeting.origin
    }

    /// Joins this rank's next operation: finds what another rank made for it, or makes it; `control`
    /// is how the operation ends.
    pub(crate) fn join<T: Any + Send + Sync>(
        &self,
        control: impl FnOnce(&T) -> &Arc<Control>,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        // Relaxed: a counter of this rank alone.
        let nth = self.planned.fetch_add(1, Ordering::Relaxed);
        let mut operations = self.meeting.lock();
        let Operations { planned, left } = &mut *operations;
        let mut operation = match planned.remove(&nth) {
            Some(operation) => operation,
            None => {
                let shared = Arc::new(make()?);
                let control = Arc::clone(control(&shared));
                let gone = (0..).zip(left.iter()).filter(|(_, left)| **left);
                gone.for_each(|(rank, _)| control.set_departed(rank, true));
                Operation { shared, control, joined: vec![false; left.len()] }
            }
        };
        operation.joined[self.rank as usize] = true;
        let (shared, control) = (Arc::clone(&operation.shared), Arc::clone(&operation.control));
        if operation.is_expected(left) {
            planned.insert(nth, operation);
        }
        shared.downcast().map_err(|_| {
            let remedy = "plan the same operations in the same order, with the same types";
            let what = format!("operation {nth} of rank {}", self.rank);
            let error = Error::mismatch(what, "of other types", "that of the other ranks", remedy);
            control.fail(Some(self.rank), None, error.clone());
            error
        })
    }
}

impl Drop for Rank {
    /// Ranks that wait for this rank in an operation that it has not joined learn that it never will.
    fn drop(&mut self) {
        let mut operations = self.meeting.lock();
        let Operations { planned, left } = &mut *operations;
        left[self.rank as usize] = true;
        planned.retain(|_, operation| {
            if !operation.joined[self.rank as usize] {
                operation.control.set_departed(self.rank, true);
            }
            operation.is_expected(left)
        });
    }
}

/// Where the ranks of a group meet.
#[derive(Debug)]
struct Meeting {
    ranks: u32,
    options: GroupOptions,
    origin: Instant,
    operations: Mutex<Operations>,
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, Operations> {
        lock(&self.operations)
    }
}

#[derive(Debug)]
struct Operations {
    /// Those that some rank has planned and some other still may.
    planned: HashMap<u64, Operation>,
    /// Which ranks were dropped: they plan nothing more.
    left: Vec<bool>,
}

#[derive(Debug)]
struct Operation {
    shared: Arc<dyn Any + Send + Sync>,
    control: Arc<Control>,
    /// Which ranks have planned it.
    joined: Vec<bool>,
}

impl Operation {
    /// Whether some rank may still plan it.
    fn is_expected(&self, left: &[bool]) -> bool {
        self.joined.iter().zip(left).any(|(joined, left)| !joined && !left)
    }
}
