//! The schedule: the steps of one rank in one step of an operation. The model, threads, GPUs and the cost model carry it out.
//!
//! What belongs here: the few kinds of steps, and the words between them. A [`Lane`] is the ordered list of one actor's
//! steps: the caller's stream, a stream of copies, a kernel that pushes. Lanes run concurrently and synchronise through
//! [`Word`]s only. A host enqueues the steps in the order of the whole list.
//!
//! ```text
//!   rank 0, two ranks, one chunk each, pushed by one stream of copies        rank 1
//!   compute  await begun of e−1 · move 0→0 · post landed 0 · post consumed of e−1 → 0, 1 · multiply 0, then 1
//!   begin    await landed 0 · await consumed by 0, 1 of e−2 · await sent of e−1 · post begun       ▲
//!   push 0   await begun · move 0→1 · post landed 0 → 1 · post sent                                │
//!                                       └──────────────────────────────────────────────────────────┘
//!
//!   the same of a reduce-scatter on threads: chunk 1 holds rows of rank 1
//!   compute  post consumed of e−1 → 0, 1 · await sent of e−2 · multiply 1 · post summed 1 · multiply 0 ·
//!            await partial 0 from 1 · reduce 0
//!   push 0   await consumed by 1 of e−2 · await summed 1 · move 1→1 · post partial 1 from 0 → 1 · post sent
//! ```
//!
//! Invariants: every rank's schedule follows from the plan, so two ranks that hold equal plans agree on every word and
//! byte; a word has one writer; a schedule's length grows with chunks and ranks, never with tiles.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// The number of gathered buffers, of buffers of sums and of slots for each rank's sums: epoch e uses number e mod 2.
///
/// With two, rows of the next step arrive while a rank computes this one; with one, the senders
/// would wait during every product. A third would only let ranks drift further apart.
pub const BUFFERS: u32 = 2;

/// A 32-bit word in a rank's memory. It holds the epoch of the latest step for which it was posted.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Step, Word};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let schedule = Plan::new(&problem, PlanOptions::default())?.schedule(0);
/// // Rank 0 signals rank 1 each chunk of its rows.
/// let signals = |step: &Step| matches!(step, Step::Post { word: Word::Landed { .. }, to: 1, .. });
/// assert!(schedule.steps.iter().any(|(_, step)| signals(step)));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The rows of a chunk are in the rank's gathered buffer: the chunk's signal.
    Landed {
        /// The chunk.
        chunk: u32,
    },
    /// Rank `by` no longer reads its gathered buffer, its slots, or others' sums: they may be overwritten.
    Consumed {
        /// The rank that has read.
        by: u32,
    },
    /// One of the rank's own pushing lanes has sent everything, and no longer reads the own slot, the own sums, or D.
    Sent {
        /// The lane.
        push: u32,
    },
    /// The step has begun on this rank's GPU: its copies may send. A kernel that pushes, and NCCL, post it when they have sent.
    Begun,
    /// The rank's own sums of a chunk are in its buffer of sums; in an all-reduce in two shots, of its own chunks, the totals. The
    /// rank itself posts and awaits it.
    Summed {
        /// The chunk.
        chunk: u32,
    },
    /// The sums of rank `from` for a chunk that this rank adds up are in this rank's slot for `from`; where a kernel reads them,
    /// all that this rank adds up are complete in the memory of `from`. Or the total of a chunk that rank `from` has added up is here.
    Partial {
        /// The chunk.
        chunk: u32,
        /// The rank that computed the sums, or the total.
        from: u32,
    },
}

/// One step of a lane. Epochs are those of the schedule's step, minus `age`.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Step};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let plan = Plan::new(&problem, PlanOptions::default())?;
/// let steps = plan.schedule(0).steps;
/// let sent = steps.iter().filter(|(_, step)| matches!(step, Step::Move { to: 1, .. })).count();
/// assert_eq!(sent, plan.chunks().of_rank(0).len());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Waits until a word of this rank has reached the epoch.
    Await {
        /// The word.
        word: Word,
        /// The epoch is this many steps older.
        age: u32,
    },
    /// Sets a word of rank `to` to the epoch.
    Post {
        /// The word.
        word: Word,
        /// The rank that owns the word.
        to: u32,
        /// The epoch is this many steps older.
        age: u32,
    },
    /// Copies the rows of a chunk from this rank's gathered buffer to that of rank `to`. To itself: copies the
    /// caller's rows into their slot, unless the caller wrote them there. In a reduction: copies this rank's sums
    /// of the chunk into its slot at rank `to`, which adds them up; in an all-reduce in two shots, of its own chunks, the
    /// total, which rank `to` stores. To itself, in a reduction alone: copies the caller's sums into this rank's own;
    /// copy engines use them where they lie, from here on.
    Move {
        /// The chunk.
        chunk: u32,
        /// The receiving rank.
        to: u32,
    },
    /// Computes the tiles of `rows`, as a [`TileOrder`](super::TileOrder) with that pivot visits them. A tile waits for
    /// those of its chunks that are in `awaits`; it reads all others without a wait. In a reduction: writes the
    /// sums of `rows` over this rank's slice of K into its buffer of sums; nothing is awaited.
    Multiply {
        /// Rows of D, and of the gathered A; in a reduction, of A and of the sums.
        rows: Range<u32>,
        /// The rank whose rows come first.
        pivot: u32,
        /// Chunks, in the order in which tiles need them.
        awaits: Vec<u32>,
    },
    /// Adds the sums of all ranks for a chunk of the rows that this rank gets, in the order of
    /// [`Plan::additions`](super::Plan::additions), and stores D; a kernel reads them in the memory of each rank. In an all-reduce in
    /// two shots, of another rank's chunk: stores the total that has arrived.
    Reduce {
        /// The chunk.
        chunk: u32,
    },
}

/// The actor that carries out a step.
///
/// ```
/// use overlap_gemm::plan::{Lane, Plan, PlanOptions, Problem, Step};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let schedule = Plan::new(&problem, PlanOptions::default())?.schedule(0);
/// let multiplies = |step: &Step| matches!(step, Step::Multiply { .. });
/// assert!(schedule.lane(Lane::Compute).any(multiplies));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// The caller's stream, or thread, with the workers that multiply.
    Compute,
    /// The kernel that begins a step: waits until this rank may send.
    Begin,
    /// The n-th stream, thread or kernel that sends rows.
    Push(u32),
}

/// The steps of one rank in one step of the operation: public, so that tests can break it.
///
/// ```
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let plan = Plan::new(&problem, PlanOptions::default())?;
/// for (lane, step) in plan.schedule(0).steps {
///     println!("{lane:?}: {step}");
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Schedule {
    /// The rank.
    pub rank: u32,
    /// All steps in the order in which a host enqueues them, each with its lane.
    pub steps: Vec<(Lane, Step)>,
}

impl Schedule {
    /// The steps of one lane, in order.
    pub fn lane(&self, lane: Lane) -> impl Iterator<Item = &Step> + Clone {
        self.steps.iter().filter(move |(of, _)| *of == lane).map(|(_, step)| step)
    }

    /// The lanes that have steps, in order.
    pub fn lanes(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = self.steps.iter().map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Landed { chunk } => write!(f, "landed {chunk}"),
            Word::Consumed { by } => write!(f, "consumed by {by}"),
            Word::Sent { push } => write!(f, "sent {push}"),
            Word::Begun => f.write_str("begun"),
            Word::Summed { chunk } => write!(f, "summed {chunk}"),
            Word::Partial { chunk, from } => write!(f, "partial {chunk} from {from}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>, age: &u32| match age {
            0 => Ok(()),
            age => write!(f, " of e−{age}"),
        };
        match self {
            Step::Await { word, age } => write!(f, "await {word}").and_then(|()| of(f, age)),
            Step::Post { word, to, age } => {
                write!(f, "post {word}")?;
                of(f, age)?;
                write!(f, " → {to}")
            }
            Step::Move { chunk, to } => write!(f, "move {chunk} → {to}"),
            Step::Multiply { rows, awaits, .. } => {
                write!(f, "multiply rows {}..{}", rows.start, rows.end)?;
                match awaits[..] {
                    [] => Ok(()),
                    [only] => write!(f, " as chunk {only} lands"),
                    [first, .., last] => {
                        write!(f, " as {} chunks land, {first} first, {last} last", awaits.len())
                    }
                }
            }
            Step::Reduce { chunk } => write!(f, "reduce {chunk}"),
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::Compute => f.write_str("compute"),
            Lane::Begin => f.write_str("begin"),
            Lane::Push(nth) => write!(f, "push {nth}"),
        }
    }
}
