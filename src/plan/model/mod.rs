//! Runs schedules on an abstract machine, looking for trouble: reads too early, overwrites, deadlocks, rows or sums
//! that do not arrive, rows that arrive in another order than they are needed.
//!
//! The machine has one thread for each lane of each rank, with the steps that the [`Schedule`] gives it, repeated for
//! some epochs. A thread is enabled unless its next step is a wait that does not hold yet. Any enabled thread may go next;
//! [`run`] picks by the caller's choice (at random, for example), [`explore`] tries every order there is.
//!
//! What is read and written are regions: what a rank has of a chunk from a rank. A gather moves the owner's rows to all
//! ranks; a reduce-scatter writes a rank's own sums by products, and moves them to the owner; an all-reduce, to all ranks.
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

pub use machine::{explore, run};

use super::chunks::Chunks;
use super::schedule::{Lane, Schedule, Step, Word};
use super::way::Operation;
use super::whole::Plan;

/// What is wrong with schedules.
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
    /// A chunk does not reach a rank, or reaches it more than once an epoch.
    #[error(
        "chunk {chunk} from rank {from} reaches rank {consumer} {times} times an epoch, not once"
    )]
    NotOnce {
        /// The rank.
        consumer: u32,
        /// The chunk.
        chunk: u32,
        /// The rank whose rows or sums they are.
        from: u32,
        /// How often it is moved there.
        times: u32,
    },
    /// A rank does not add up the sums of a chunk that it gets, or does so more than once an epoch.
    #[error("rank {owner} adds up chunk {chunk} {times} times an epoch, not once")]
    NotReducedOnce {
        /// The rank that gets the rows.
        owner: u32,
        /// The chunk.
        chunk: u32,
        /// How often it is added up.
        times: u32,
    },
    /// A rank sends sums to one that does not add them up, or to itself; or it adds up sums of rows that it does not get.
    #[error("'{step}' is no step of rank {rank} in this operation")]
    NoSuchPart {
        /// The rank.
        rank: u32,
        /// The step.
        step: String,
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
    /// A lane sends to a rank before one whose round comes sooner, or chunks of a shard out of order.
    #[error(
        "rank {sender} sends chunk {chunk} to rank {to} after it has sent what is needed later"
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
    /// In a reduction, products come in another order than their sums are sent.
    #[error("rank {rank} multiplies chunk {chunk} after one whose sums are needed later")]
    MultipliedLate {
        /// The rank that multiplies.
        rank: u32,
        /// The chunk that is multiplied too late.
        chunk: u32,
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

/// What is read and written at once: what `rank` has of `chunk` from rank `from`, in the buffer of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Region {
    rank: u32,
    chunk: u32,
    from: u32,
}

/// The schedules of all ranks; public, so that tests can break them.
#[derive(Clone, Debug)]
pub struct Schedules {
    operation: Operation,
    chunks: Chunks,
    /// One of each rank, in order.
    pub of_ranks: Vec<Schedule>,
}

impl Schedules {
    /// Those of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let ranks = 0..plan.problem().ranks();
        Schedules {
            operation: plan.options().operation,
            chunks: plan.chunks().clone(),
            of_ranks: ranks.map(|rank| plan.schedule(rank)).collect(),
        }
    }

    /// Checks what needs no run: every chunk reaches every rank exactly once, every word has one writer, rows are sent in
    /// the order in which they are needed and awaited in that order, and all rows are multiplied. In a reduce-scatter,
    /// every chunk reaches its owner exactly once from every other rank, nothing else is sent, the owner adds it up once,
    /// and products come in the order in which their sums are sent, those of the own rows last. In an all-reduce, every
    /// rank is an owner of all chunks.
    pub fn check_order(&self) -> Result<(), Violation> {
        self.check_names()?;
        self.check_once()?;
        self.of_ranks.iter().try_for_each(|schedule| self.check_need_order(schedule))
    }

    fn reduces(&self) -> bool {
        self.operation.reduces()
    }

    /// Whether `rank` adds up `chunk`.
    fn adds_up(&self, rank: u32, chunk: u32) -> bool {
        self.operation.added_up(&self.chunks, rank).contains(&chunk)
    }

    /// What `rank` reads and sends of `chunk`: the owner's rows; where sums travel, its own sums.
    fn own(&self, rank: u32, chunk: u32) -> Region {
        let from = if self.reduces() { rank } else { self.chunks.rank_of(chunk) };
        Region { rank, chunk, from }
    }

    /// Whether moves have to write a region: in a gather the owner's rows everywhere; where sums travel, those of each other
    /// rank where they are added up.
    fn arrives(&self, Region { rank, chunk, from }: Region) -> bool {
        match self.reduces() {
            true => from != rank && self.adds_up(rank, chunk),
            false => from == self.chunks.rank_of(chunk),
        }
    }

    fn check_once(&self) -> Result<(), Violation> {
        let mut moved: HashMap<Region, u32> = HashMap::new();
        let mut posted: HashMap<(u32, Word), u32> = HashMap::new();
        let mut reduced: HashMap<(u32, u32), u32> = HashMap::new();
        for (rank, step) in self.steps() {
            match *step {
                Step::Move { chunk, to } => {
                    let region = Region { rank: to, ..self.own(rank, chunk) };
                    if self.reduces() && !self.arrives(region) {
                        return Err(Violation::NoSuchPart { rank, step: step.to_string() });
                    }
                    *moved.entry(region).or_default() += 1;
                }
                Step::Reduce { chunk } => {
                    if !self.adds_up(rank, chunk) {
                        return Err(Violation::NoSuchPart { rank, step: step.to_string() });
                    }
                    *reduced.entry((rank, chunk)).or_default() += 1;
                }
                Step::Post { word, to, .. } => *posted.entry((to, word)).or_default() += 1,
                Step::Await { .. } | Step::Multiply { .. } => {}
            }
        }
        // Without any move, A is gathered already.
        if self.reduces() || !moved.is_empty() {
            for region in self.arrivals() {
                let times = moved.get(&region).copied().unwrap_or(0);
                if times != 1 {
                    let Region { rank: consumer, chunk, from } = region;
                    return Err(Violation::NotOnce { consumer, chunk, from, times });
                }
            }
        }
        for owner in 0..self.of_ranks.len() as u32 {
            for chunk in self.operation.added_up(&self.chunks, owner) {
                let times = reduced.get(&(owner, chunk)).copied().unwrap_or(0);
                if times != 1 {
                    return Err(Violation::NotReducedOnce { owner, chunk, times });
                }
            }
        }
        match posted.into_iter().find(|(_, times)| *times > 1) {
            Some(((owner, word), times)) => Err(Violation::PostedTwice { owner, word, times }),
            None => Ok(()),
        }
    }

    /// The regions that moves have to write.
    fn arrivals(&self) -> Vec<Region> {
        let (ranks, all) = (self.of_ranks.len() as u32, 0..self.chunks.len());
        let mut arrivals = Vec::new();
        for rank in 0..ranks {
            let added_up = self.operation.added_up(&self.chunks, rank);
            for chunk in if self.reduces() { added_up } else { all.clone() } {
                let owner = self.chunks.rank_of(chunk);
                let senders = if self.reduces() { 0..ranks } else { owner..owner + 1 };
                let regions = senders.map(|from| Region { rank, chunk, from });
                arrivals.extend(regions.filter(|region| self.arrives(*region)));
            }
        }
        arrivals
    }

    /// All ranks' steps, each with its rank.
    fn steps(&self) -> impl Iterator<Item = (u32, &Step)> {
        let of_rank = |of: &Schedule| std::iter::repeat(of.rank);
        self.of_ranks
            .iter()
            .flat_map(move |of| of_rank(of).zip(of.steps.iter().map(|(_, step)| step)))
    }

    fn check_need_order(&self, schedule: &Schedule) -> Result<(), Violation> {
        let (rank, ranks, len) = (schedule.rank, self.of_ranks.len() as u32, self.chunks.len());
        let mut latest: HashMap<Lane, (u32, u32, u32)> = HashMap::new();
        let own_first = self.chunks.of_rank(rank).start;
        let (mut awaited, mut multiplied, mut summed) = (0, Vec::new(), (0, 0));
        // What rank `to` needs d-th comes in round d; sums go round the other way, the own ones last.
        let round_of = |to: u32| match self.reduces() {
            true => (to + ranks - rank - 1) % ranks,
            false => (rank + ranks - to) % ranks,
        };
        for (lane, step) in &schedule.steps {
            match step {
                Step::Move { chunk, to } => {
                    // Sums travel when they have been computed, to one rank after the other.
                    let turn = match self.reduces() {
                        true => (round_of(self.chunks.rank_of(*chunk)), *chunk, round_of(*to)),
                        false => (round_of(*to), *chunk, 0),
                    };
                    let before = latest.insert(*lane, turn);
                    if before.is_some_and(|before| before >= turn) {
                        let (sender, chunk, to) = (rank, *chunk, *to);
                        return Err(Violation::OutOfNeedOrder { sender, chunk, to });
                    }
                }
                Step::Multiply { rows, awaits, .. } => {
                    multiplied.push(rows.clone());
                    let first = self.chunks.touching(rows.clone()).find(|_| self.reduces());
                    if let Some(chunk) = first {
                        let turn = (round_of(self.chunks.rank_of(chunk)), chunk);
                        if turn < summed {
                            return Err(Violation::MultipliedLate { rank, chunk });
                        }
                        summed = turn;
                    }
                    for &chunk in awaits {
                        let need = (chunk + len - own_first % len) % len + 1;
                        if need <= awaited {
                            return Err(Violation::AwaitedLate { consumer: rank, chunk });
                        }
                        awaited = need;
                    }
                }
                Step::Await { .. } | Step::Post { .. } | Step::Reduce { .. } => {}
            }
        }
        if multiplied.is_empty() && !self.reduces() {
            return Ok(()); // Gathering alone.
        }
        multiplied.sort_unstable_by_key(|rows| rows.start);
        let joined =
            |end, rows: std::ops::Range<u32>| if rows.start == end { rows.end } else { end };
        // D may be stored again; sums that are computed again overwrite those that are being sent.
        let in_all: u64 = multiplied.iter().map(|rows| rows.len() as u64).sum();
        let (rows, joined) = (self.chunks.shards().m(), multiplied.into_iter().fold(0, joined));
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
        let (ranks, chunks) = (self.chunks.shards().ranks(), self.chunks.len());
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
                    && rows.end <= self.chunks.shards().m()
                    && *pivot < ranks
                    && awaits.iter().all(|chunk| *chunk < chunks)
            }
        };
        match self.steps().find(|(_, step)| !exists(step)) {
            Some((_, step)) => Err(Violation::NoSuchName { step: step.to_string() }),
            None => Ok(()),
        }
    }
}
