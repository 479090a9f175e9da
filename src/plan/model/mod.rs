//! Runs schedules on an abstract machine, looking for trouble: reads too early, overwrites, deadlocks, rows that do not
//! arrive or arrive in another order than they are needed.
//!
//! The machine has one thread for each lane of each rank, with the steps that the [`Schedule`] gives it, repeated for
//! some epochs. A thread is enabled unless its next step is a wait that does not hold yet. Any enabled thread may go next;
//! [`run`] picks by the caller's choice (at random, for example), [`explore`] tries every order there is.
//!
//! The state is nothing but how far each thread has come: how often a word was posted and rows were moved follows from
//! the positions of their writers. Every step moves a position forwards, so every run ends; a run that cannot go on before
//! all threads have finished is a deadlock, and if no reachable state is one, the schedules are live.
//!
//! One simplification, on the careful side: lanes that share a stream of a GPU run apart here, except where a word orders
//! them. So the machine has all orders that a GPU has, and more.
//!
//! Schedules are data, so a test can take some, break them, and see that it is caught.

mod machine;

use std::collections::HashMap;

pub use machine::{explore, run};

use super::chunks::Chunks;
use super::schedule::{Lane, Schedule, Step, Word};
use super::whole::Plan;

/// What is wrong with schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A rank reads a chunk whose rows have not landed.
    #[error("rank {reader} reads chunk {chunk} of epoch {epoch} before its rows have landed")]
    ReadTooEarly {
        /// The rank that multiplies the rows, or sends them on.
        reader: u32,
        /// The chunk.
        chunk: u32,
        /// The epoch.
        epoch: u32,
    },
    /// Rows are written over others that are still read.
    #[error("chunk {chunk} of epoch {epoch} overwrites what rank {owner} still reads")]
    Overwritten {
        /// The rank whose buffer it is.
        owner: u32,
        /// The chunk that was written.
        chunk: u32,
        /// The epoch that it was written for.
        epoch: u32,
    },
    /// Nothing can go on, and not all threads have finished.
    #[error("deadlock: {waiting:?} wait for words that no rank will post")]
    Deadlock {
        /// The threads that wait.
        waiting: Vec<Thread>,
    },
    /// A chunk does not reach a rank, or reaches it more than once an epoch.
    #[error("chunk {chunk} reaches rank {consumer} {times} times an epoch, not once")]
    NotOnce {
        /// The rank.
        consumer: u32,
        /// The chunk.
        chunk: u32,
        /// How often it is moved there.
        times: u32,
    },
    /// A word is posted more than once an epoch.
    #[error("'{word}' of rank {owner} is posted {times} times an epoch, not once")]
    PostedTwice {
        /// The rank whose word it is.
        owner: u32,
        /// The word.
        word: Word,
        /// How often it is posted.
        times: u32,
    },
    /// A lane sends to a rank before one that needs its rows sooner, or chunks of a shard out of order.
    #[error(
        "rank {sender} sends chunk {chunk} to rank {to} after it has sent rows that are needed later"
    )]
    OutOfNeedOrder {
        /// The rank that sends.
        sender: u32,
        /// The chunk that comes too late.
        chunk: u32,
        /// Its consumer.
        to: u32,
    },
    /// Tiles await chunks in another order than they arrive.
    #[error("rank {consumer} awaits chunk {chunk} after one that arrives later")]
    AwaitedLate {
        /// The rank that multiplies.
        consumer: u32,
        /// The chunk that is awaited too late.
        chunk: u32,
    },
    /// The product does not cover every row once.
    #[error("rank {rank} multiplies {multiplied} of {rows} rows")]
    NotAllRows {
        /// The rank.
        rank: u32,
        /// Rows that its products have, one after the other from the first.
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
    /// A step names a rank or a chunk that does not exist.
    #[error("'{step}' names a rank, a chunk or rows that do not exist")]
    NoSuchName {
        /// The step.
        step: String,
    },
}

/// A thread of the abstract machine: a lane of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// The rank.
    pub rank: u32,
    /// Which of its lanes.
    pub lane: Lane,
}

/// The schedules of all ranks; public, so that tests can break them.
#[derive(Clone, Debug)]
pub struct Schedules {
    chunks: Chunks,
    /// One of each rank, in order.
    pub of_ranks: Vec<Schedule>,
}

impl Schedules {
    /// Those of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let ranks = 0..plan.problem().ranks();
        Schedules {
            chunks: plan.chunks().clone(),
            of_ranks: ranks.map(|rank| plan.schedule(rank)).collect(),
        }
    }

    /// Checks what needs no run: every chunk reaches every rank exactly once, every word has one writer, rows are sent in
    /// the order in which they are needed and awaited in that order, and all rows are multiplied.
    pub fn check_order(&self) -> Result<(), Violation> {
        self.check_names()?;
        self.check_once()?;
        self.of_ranks.iter().try_for_each(|schedule| self.check_need_order(schedule))
    }

    fn check_once(&self) -> Result<(), Violation> {
        let mut moved: HashMap<(u32, u32), u32> = HashMap::new();
        let mut posted: HashMap<(u32, Word), u32> = HashMap::new();
        let mut gathers = false;
        for (_, step) in self.of_ranks.iter().flat_map(|schedule| &schedule.steps) {
            match *step {
                Step::Move { chunk, to } => {
                    gathers = true;
                    *moved.entry((to, chunk)).or_default() += 1;
                }
                Step::Post { word, to, .. } => *posted.entry((to, word)).or_default() += 1,
                Step::Await { .. } | Step::Multiply { .. } => {}
            }
        }
        let mut consumers = 0..self.of_ranks.len() as u32;
        let not_once = |consumer: u32| {
            let mut chunks = 0..self.chunks.len();
            chunks.find_map(|chunk| {
                let times = moved.get(&(consumer, chunk)).copied().unwrap_or(0);
                (times != 1).then_some(Violation::NotOnce { consumer, chunk, times })
            })
        };
        if let Some(violation) = consumers.find_map(not_once).filter(|_| gathers) {
            return Err(violation);
        }
        match posted.into_iter().find(|(_, times)| *times > 1) {
            Some(((owner, word), times)) => Err(Violation::PostedTwice { owner, word, times }),
            None => Ok(()),
        }
    }

    fn check_need_order(&self, schedule: &Schedule) -> Result<(), Violation> {
        let (rank, ranks, len) = (schedule.rank, self.of_ranks.len() as u32, self.chunks.len());
        let mut latest: HashMap<Lane, (u32, u32)> = HashMap::new();
        let own_first = self.chunks.of_rank(rank).start;
        let (mut awaited, mut multiplied) = (0, Vec::new());
        for (lane, step) in &schedule.steps {
            match step {
                Step::Move { chunk, to } => {
                    // What rank `to` needs d-th comes in round d.
                    let turn = ((rank + ranks - to) % ranks, *chunk);
                    let before = latest.insert(*lane, turn);
                    if before.is_some_and(|before| before >= turn) {
                        let (sender, chunk, to) = (rank, *chunk, *to);
                        return Err(Violation::OutOfNeedOrder { sender, chunk, to });
                    }
                }
                Step::Multiply { rows, awaits, .. } => {
                    multiplied.push(rows.clone());
                    for &chunk in awaits {
                        let need = (chunk + len - own_first % len) % len + 1;
                        if need <= awaited {
                            return Err(Violation::AwaitedLate { consumer: rank, chunk });
                        }
                        awaited = need;
                    }
                }
                Step::Await { .. } | Step::Post { .. } => {}
            }
        }
        if multiplied.is_empty() {
            return Ok(()); // Gathering alone.
        }
        multiplied.sort_unstable_by_key(|rows| rows.start);
        let joined =
            |end, rows: std::ops::Range<u32>| if rows.start == end { rows.end } else { end };
        let (rows, multiplied) = (self.chunks.shards().m(), multiplied.into_iter().fold(0, joined));
        match multiplied == rows {
            true => Ok(()),
            false => Err(Violation::NotAllRows { rank, multiplied, rows }),
        }
    }

    /// Checks that there is a schedule for each rank, and that no step names what does not exist: without that the
    /// machine's tables could not be drawn up.
    fn check_names(&self) -> Result<(), Violation> {
        let (ranks, chunks) = (self.chunks.shards().ranks(), self.chunks.len());
        let found: Vec<u32> = self.of_ranks.iter().map(|schedule| schedule.rank).collect();
        if !found.iter().copied().eq(0..ranks) {
            return Err(Violation::WrongRanks { ranks, found });
        }
        let is_word = |word: &Word| match *word {
            Word::Landed { chunk } => chunk < chunks,
            Word::Consumed { by } => by < ranks,
            Word::Sent { .. } | Word::Begun => true,
        };
        let exists = |step: &Step| match step {
            Step::Await { word, .. } => is_word(word),
            Step::Post { word, to, .. } => *to < ranks && is_word(word),
            Step::Move { chunk, to } => *to < ranks && *chunk < chunks,
            Step::Multiply { rows, pivot, awaits } => {
                rows.start <= rows.end
                    && rows.end <= self.chunks.shards().m()
                    && *pivot < ranks
                    && awaits.iter().all(|chunk| *chunk < chunks)
            }
        };
        let mut steps = self.of_ranks.iter().flat_map(|schedule| &schedule.steps);
        match steps.find(|(_, step)| !exists(step)) {
            Some((_, step)) => Err(Violation::NoSuchName { step: step.to_string() }),
            None => Ok(()),
        }
    }
}
