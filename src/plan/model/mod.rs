//! Runs schedules on an abstract machine, looking for trouble: reads too early, overwrites, deadlocks, rows or sums
//! that do not arrive, rows that arrive in another order than they are needed.
//!
//! The machine has one thread for each lane of each rank, with the steps that the [`Schedule`] gives it, repeated for
//! some epochs. A thread is enabled unless its next step is a wait that does not hold yet. Any enabled thread may go next;
//! [`run`] picks by the caller's choice (at random, for example), [`explore`] tries every order there is.
//!
//! What is read and written are regions: what a rank has of a chunk from a rank. A gather moves the owner's rows to all
//! ranks; a reduce-scatter writes a rank's own sums by products, and moves them to the owner; an all-reduce, to all ranks. In
//! two shots it moves them to the owner, which writes a total, and moves that to all ranks.
//! Where the caller has the sums, a move to itself writes them, into the one buffer of them, and D is written over them. Where a
//! kernel adds up, it reads each rank's own sums in that rank's memory, so nothing but totals moves between ranks.
//!
//! The state is nothing but how far each thread has come: how often a word was posted and a region was written follows
//! from the positions of their writers. Every step moves a position forwards, so every run ends; a run that cannot go
//! on before all threads have finished is a deadlock, and if no reachable state is one, the schedules are live.
//!
//! One simplification, on the careful side: lanes that share a stream of a GPU run apart here, except where a word orders
//! them. So the machine has all orders that a GPU has, and more.
//!
//! Schedules are data, so a test can take some, break them, and see that it is caught.

mod machine;

use std::collections::HashMap;
use std::fmt;

pub use machine::{explore, run};

use super::chunks::Chunks;
use super::operation::Operation;
use super::schedule::{Lane, Schedule, Step, Word};
use super::way::Engine;
use super::whole::Plan;

/// What is wrong with schedules.
///
/// ```
/// use overlap_gemm::plan::model::Schedules;
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Step};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let mut schedules = Schedules::new(&Plan::new(&problem, PlanOptions::default())?);
/// // Signalled, but never sent.
/// schedules.of_ranks[0].steps.retain(|(_, step)| !matches!(step, Step::Move { to: 1, .. }));
/// println!("{}", schedules.check_order().unwrap_err());
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A rank reads rows that have not landed, or sums that have not been computed or have not landed.
    #[error(
        "rank {reader} reads chunk {chunk} from rank {from} in epoch {epoch} before it has been written"
    )]
    ReadTooEarly {
        /// The rank that multiplies the rows, adds up the sums, or sends either on.
        reader: u32,
        /// The chunk.
        chunk: u32,
        /// The rank whose rows or sums they are.
        from: u32,
        /// The epoch.
        epoch: u32,
    },
    /// Rows or sums are written over others that are still read.
    #[error(
        "chunk {chunk} from rank {from} in epoch {epoch} overwrites what rank {owner} still reads"
    )]
    Overwritten {
        /// The rank whose buffer it is.
        owner: u32,
        /// The chunk that was written.
        chunk: u32,
        /// The rank whose rows or sums they are.
        from: u32,
        /// The epoch that it was written for.
        epoch: u32,
    },
    /// Nothing can go on, and not all threads have finished.
    #[error("deadlock: {waiting:?} wait for words that no rank will post")]
    Deadlock {
        /// The threads that wait.
        waiting: Vec<Thread>,
    },
    /// What has to happen once an epoch does not, or does more often: a chunk reaches a rank, sums of a chunk are added up, a
    /// word is posted.
    #[error("{what} {times} times an epoch, not once")]
    NotOnce {
        /// What should happen: `rank 2 gets chunk 0 from rank 1`.
        what: String,
        /// How often it does.
        times: u32,
    },
    /// A step names a rank, a chunk or rows that do not exist; or it moves or adds up sums that its rank does not have to.
    #[error("'{step}' is no step of rank {rank} in this operation")]
    NoSuchStep {
        /// The rank.
        rank: u32,
        /// The step.
        step: String,
    },
    /// A lane sends, awaits or multiplies something after what others need later, or what arrives later.
    #[error("'{step}' of rank {rank} comes after what is needed later")]
    OutOfOrder {
        /// The rank.
        rank: u32,
        /// The step that comes too late.
        step: String,
    },
    /// The product does not cover every row; in a reduction, not every row once.
    #[error("rank {rank} multiplies {multiplied} of {rows} rows")]
    NotAllRows {
        /// The rank.
        rank: u32,
        /// Rows that its products have, one after the other from the first. Of a reduction that has all rows, some
        /// of them twice: the number in all.
        multiplied: u32,
        /// Rows of the problem.
        rows: u32,
    },
    /// There are not as many schedules as ranks, in their order.
    #[error("the schedules are those of ranks {found:?}, not of {ranks} ranks in order")]
    WrongRanks {
        /// How many ranks there are.
        ranks: u32,
        /// The ranks of the schedules.
        found: Vec<u32>,
    },
}

/// A thread of the abstract machine: a lane of a rank.
///
/// ```
/// use overlap_gemm::plan::Lane;
/// use overlap_gemm::plan::model::Thread;
///
/// let thread = Thread { rank: 1, lane: Lane::Push(0) };
/// println!("{thread:?}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// The rank.
    pub rank: u32,
    /// Which of its lanes.
    pub lane: Lane,
}

/// What is read and written at once: what `rank` has of `chunk` from rank `from`, in the buffer of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Region {
    rank: u32,
    chunk: u32,
    from: u32,
}

/// In place of a region's `from`: the region holds the total of all ranks, at the rank that has added it up and sends it.
const TOTAL: u32 = u32::MAX;

/// What has to happen once an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Arrival(Region),
    Reduction { rank: u32, chunk: u32 },
    Post { rank: u32, word: Word },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Arrival(Region { rank, chunk, from }) => {
                write!(f, "rank {rank} gets chunk {chunk} from rank {from}")
            }
            Event::Reduction { rank, chunk } => write!(f, "rank {rank} adds up chunk {chunk}"),
            Event::Post { rank, word } => write!(f, "'{word}' of rank {rank} is posted"),
        }
    }
}

/// The schedules of all ranks; public, so that tests can break them.
///
/// ```
/// use overlap_gemm::plan::model::Schedules;
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(64, 64, 64).ranks(2).build()?;
/// let schedules = Schedules::new(&Plan::new(&problem, PlanOptions::default())?);
/// schedules.check_order()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedules {
    plan: Plan,
    /// One of each rank, in order.
    pub of_ranks: Vec<Schedule>,
}

impl Schedules {
    /// Those of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let ranks = 0..plan.problem().ranks();
        Schedules { plan: plan.clone(), of_ranks: ranks.map(|rank| plan.schedule(rank)).collect() }
    }

    /// Checks what needs no run: every chunk reaches every rank exactly once, every word has one writer, rows are sent in
    /// the order in which they are needed and awaited in that order, and all rows are multiplied. In a reduce-scatter,
    /// every chunk reaches its owner exactly once from every other rank, nothing else is sent, the owner adds it up once,
    /// and products come in the order in which their sums are sent, those of the own rows last. In an all-reduce, every
    /// rank is an owner of all chunks; in two shots, the owner also sends the total once to every other rank, which stores it once.
    pub fn check_order(&self) -> Result<(), Violation> {
        self.check_names()?;
        self.check_once()?;
        self.of_ranks.iter().try_for_each(|schedule| self.check_need_order(schedule))
    }

    fn operation(&self) -> Operation {
        self.plan.options().operation
    }

    fn chunks(&self) -> &Chunks {
        self.plan.chunks()
    }

    fn reduces(&self) -> bool {
        self.operation().reduces()
    }

    /// Whether the caller has the sums that travel.
    fn brings_sums(&self) -> bool {
        self.reduces() && self.operation().is_alone()
    }

    /// Whether the caller's memory is the one buffer of the sums: copies send them from where they lie.
    fn has_one_buffer(&self) -> bool {
        let engine = self.plan.options().engine;
        self.brings_sums() && matches!(engine, Engine::CopyEngines { .. })
    }

    /// Whether `rank` adds up `chunk`.
    fn adds_up(&self, rank: u32, chunk: u32) -> bool {
        self.plan.added_up(rank).contains(&chunk)
    }

    /// What `rank` has of `chunk` itself: the owner's rows; where sums travel, its own sums.
    fn own(&self, rank: u32, chunk: u32) -> Region {
        let from = if self.reduces() { rank } else { self.chunks().rank_of(chunk) };
        Region { rank, chunk, from }
    }

    /// The total of `chunk`, if `rank` sends that in place of its own sums.
    fn total(&self, rank: u32, chunk: u32) -> Option<Region> {
        let is_sent = self.plan.has_two_shots() && self.adds_up(rank, chunk);
        is_sent.then_some(Region { rank, chunk, from: TOTAL })
    }

    /// Whether totals arrive in the place of the sums that the receiver has of these rows, as on GPUs.
    fn totals_replace_sums(&self) -> bool {
        self.plan.has_two_shots() && self.plan.options().engine != Engine::Thread
    }

    /// Whether copies send totals from the caller's D.
    fn sends_totals_from_d(&self) -> bool {
        let engine = self.plan.options().engine;
        self.totals_replace_sums() && matches!(engine, Engine::CopyEngines { .. })
    }

    fn check_once(&self) -> Result<(), Violation> {
        let expected = self.expected();
        let mut counts: HashMap<Event, u32> = expected.iter().map(|event| (*event, 0)).collect();
        for (rank, step) in self.steps() {
            let event = match *step {
                Step::Move { chunk, to } => {
                    Event::Arrival(Region { rank: to, ..self.own(rank, chunk) })
                }
                Step::Reduce { chunk } => Event::Reduction { rank, chunk },
                Step::Post { word, to, .. } => Event::Post { rank: to, word },
                Step::Await { .. } | Step::Multiply { .. } => continue,
            };
            match counts.get_mut(&event) {
                Some(times) => *times += 1,
                None if matches!(event, Event::Post { .. }) => drop(counts.insert(event, 1)),
                None => return Err(no_such_step(rank, step)),
            }
        }
        let posted = counts.keys().copied();
        match expected.into_iter().chain(posted).find(|event| counts[event] != 1) {
            Some(event) => {
                Err(Violation::NotOnce { what: event.to_string(), times: counts[&event] })
            }
            None => Ok(()),
        }
    }

    /// What moves and additions have to do: in a gather, bring the owner's rows everywhere; where sums travel, bring those of
    /// each other rank to where they are added up, and first the caller's. Without any move, A is gathered already.
    fn expected(&self) -> Vec<Event> {
        let (ranks, mut expected) = (0..self.of_ranks.len() as u32, Vec::new());
        let moves = self.steps().any(|(_, step)| matches!(step, Step::Move { .. }));
        for rank in ranks.clone() {
            let arrival = |chunk, from| Event::Arrival(Region { rank, chunk, from });
            if !self.reduces() && moves {
                let all = 0..self.chunks().len();
                expected.extend(all.map(|chunk| arrival(chunk, self.chunks().rank_of(chunk))));
            }
            if self.brings_sums() {
                expected.extend((0..self.chunks().len()).map(|chunk| arrival(chunk, rank)));
            }
            for chunk in self.plan.added_up(rank) {
                expected.push(Event::Reduction { rank, chunk });
                let moved = |from: &u32| *from != rank && !self.plan.reads_in_place();
                let others = ranks.clone().filter(moved);
                expected.extend(others.map(|from| arrival(chunk, from)));
            }
            let of_others = |chunk: &u32| self.plan.has_two_shots() && !self.adds_up(rank, *chunk);
            for chunk in (0..self.chunks().len()).filter(of_others) {
                let total = arrival(chunk, self.chunks().rank_of(chunk));
                expected.extend([Event::Reduction { rank, chunk }, total]);
            }
        }
        expected
    }

    /// All ranks' steps, each with its rank.
    fn steps(&self) -> impl Iterator<Item = (u32, &Step)> {
        let of_rank = |of: &Schedule| std::iter::repeat(of.rank);
        self.of_ranks
            .iter()
            .flat_map(move |of| of_rank(of).zip(of.steps.iter().map(|(_, step)| step)))
    }

    fn check_need_order(&self, schedule: &Schedule) -> Result<(), Violation> {
        let (rank, ranks, len) = (schedule.rank, self.of_ranks.len() as u32, self.chunks().len());
        let mut latest: HashMap<Lane, (u32, u32, u32)> = HashMap::new();
        let own_first = self.chunks().of_rank(rank).start;
        let (mut awaited, mut multiplied, mut summed) = (0, Vec::new(), (0, 0));
        // What rank `to` needs d-th comes in round d; sums go round the other way, the own ones last.
        let round_of = |to: u32| match self.reduces() {
            true => (to + ranks - rank - 1) % ranks,
            false => (rank + ranks - to) % ranks,
        };
        let late = |step: &Step| Violation::OutOfOrder { rank, step: step.to_string() };
        for (lane, step) in &schedule.steps {
            match step {
                Step::Move { chunk, to } => {
                    // Sums travel when they have been computed, to one rank after the other. A kernel brings the caller's, and
                    // then sends all totals that one rank gets, then the next rank's.
                    let turn = match self.reduces() {
                        true if self.plan.reads_in_place() => {
                            ((*to != rank).into(), round_of(*to), *chunk)
                        }
                        true => (round_of(self.chunks().rank_of(*chunk)), *chunk, round_of(*to)),
                        false => (round_of(*to), *chunk, 0),
                    };
                    let before = latest.insert(*lane, turn);
                    if before.is_some_and(|before| before >= turn) {
                        return Err(late(step));
                    }
                }
                Step::Multiply { rows, awaits, .. } => {
                    multiplied.push(rows.clone());
                    let first = self.chunks().touching(rows.clone()).find(|_| self.reduces());
                    if let Some(chunk) = first {
                        let turn = (round_of(self.chunks().rank_of(chunk)), chunk);
                        if turn < summed {
                            return Err(late(step));
                        }
                        summed = turn;
                    }
                    for &chunk in awaits {
                        let need = (chunk + len - own_first % len) % len + 1;
                        if need <= awaited {
                            return Err(late(step));
                        }
                        awaited = need;
                    }
                }
                Step::Await { .. } | Step::Post { .. } | Step::Reduce { .. } => {}
            }
        }
        if multiplied.is_empty() && (!self.reduces() || self.brings_sums()) {
            return Ok(()); // Without a product.
        }
        multiplied.sort_unstable_by_key(|rows| rows.start);
        let joined =
            |end, rows: std::ops::Range<u32>| if rows.start == end { rows.end } else { end };
        // D may be stored again; sums that are computed again overwrite those that are being sent.
        let in_all: u64 = multiplied.iter().map(|rows| rows.len() as u64).sum();
        let (rows, joined) = (self.chunks().shards().m(), multiplied.into_iter().fold(0, joined));
        let multiplied = match joined == rows && self.reduces() {
            true => u32::try_from(in_all).unwrap_or(u32::MAX),
            false => joined,
        };
        match multiplied == rows {
            true => Ok(()),
            false => Err(Violation::NotAllRows { rank, multiplied, rows }),
        }
    }

    /// Checks that there is a schedule for each rank, and that no step names what does not exist: without that the
    /// machine's tables could not be drawn up.
    fn check_names(&self) -> Result<(), Violation> {
        let (ranks, chunks) = (self.chunks().shards().ranks(), self.chunks().len());
        let found: Vec<u32> = self.of_ranks.iter().map(|schedule| schedule.rank).collect();
        if !found.iter().copied().eq(0..ranks) {
            return Err(Violation::WrongRanks { ranks, found });
        }
        let is_word = |word: &Word| match *word {
            Word::Landed { chunk } | Word::Summed { chunk } => chunk < chunks,
            Word::Partial { chunk, from } => chunk < chunks && from < ranks,
            Word::Consumed { by } => by < ranks,
            Word::Sent { .. } | Word::Begun => true,
        };
        let exists = |step: &Step| match step {
            Step::Await { word, .. } => is_word(word),
            Step::Post { word, to, .. } => *to < ranks && is_word(word),
            Step::Move { chunk, to } => *to < ranks && *chunk < chunks,
            Step::Reduce { chunk } => *chunk < chunks,
            Step::Multiply { rows, pivot, awaits } => {
                rows.start <= rows.end
                    && rows.end <= self.chunks().shards().m()
                    && *pivot < ranks
                    && awaits.iter().all(|chunk| *chunk < chunks)
            }
        };
        match self.steps().find(|(_, step)| !exists(step)) {
            Some((rank, step)) => Err(no_such_step(rank, step)),
            None => Ok(()),
        }
    }
}

fn no_such_step(rank: u32, step: &Step) -> Violation {
    Violation::NoSuchStep { rank, step: step.to_string() }
}
