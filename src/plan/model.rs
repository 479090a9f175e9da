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

use std::collections::{HashMap, HashSet, VecDeque};

use super::chunks::Chunks;
use super::schedule::{BUFFERS, Lane, Schedule, Step, Word};
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

    /// How many threads run them.
    pub fn thread_count(&self) -> usize {
        self.of_ranks.iter().map(|schedule| schedule.lanes().len()).sum()
    }

    /// How many steps an epoch has.
    pub fn step_count(&self) -> usize {
        self.of_ranks.iter().map(|schedule| schedule.steps.len()).sum()
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

/// Runs `schedules` for `epochs` epochs; `choose(n)` picks one of n enabled threads.
///
/// ```
/// use overlap_gemm::plan::model::{Schedules, run};
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem, Step};
///
/// let problem = Problem::builder(4096, 512, 256).ranks(4).build()?;
/// let schedules = Schedules::new(&Plan::new(&problem, PlanOptions::default())?);
/// schedules.check_order()?;
/// run(&schedules, 5, |enabled| enabled - 1)?;
///
/// let mut broken = schedules.clone();
/// let steps = &mut broken.of_ranks[0].steps;
/// steps.retain(|(_, step)| !matches!(step, Step::Move { to: 3, .. })); // signalled, but never sent
/// assert!(broken.check_order().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run(
    schedules: &Schedules,
    epochs: u32,
    mut choose: impl FnMut(usize) -> usize,
) -> Result<(), Violation> {
    schedules.check_names()?;
    let machine = Machine::new(schedules, epochs);
    let mut state = machine.start();
    loop {
        let enabled = machine.enabled(&state);
        if enabled.is_empty() {
            return machine.check_finished(&state);
        }
        let thread = enabled[choose(enabled.len()) % enabled.len()];
        machine.step(&mut state, thread)?;
    }
}

/// Runs `schedules` for `epochs` epochs in every possible order; returns the number of states.
pub fn explore(schedules: &Schedules, epochs: u32) -> Result<usize, Violation> {
    schedules.check_names()?;
    let machine = Machine::new(schedules, epochs);
    let mut seen = HashSet::from([machine.start()]);
    let mut frontier = VecDeque::from([machine.start()]);
    while let Some(state) = frontier.pop_front() {
        let enabled = machine.enabled(&state);
        if enabled.is_empty() {
            machine.check_finished(&state)?;
        }
        for thread in enabled {
            let mut next = state.clone();
            machine.step(&mut next, thread)?;
            if seen.insert(next.clone()) {
                frontier.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

/// How many operations each thread has done.
type State = Box<[u64]>;

/// An operation in the list of a thread.
#[derive(Clone, Copy)]
struct Place {
    thread: usize,
    position: u32,
    /// The epoch that it posts is this many steps older.
    age: u32,
}

/// What a thread does: a step, taken apart where it reads several chunks one after the other.
enum Operation {
    /// Goes on when a word has reached the epoch.
    Await {
        posts: Vec<Place>,
        age: u32,
    },
    /// Reads a chunk of its rank's buffer.
    Read {
        chunk: u32,
    },
    /// Reads a chunk, unless the caller brings it, and writes it to rank `to`.
    Move {
        chunk: u32,
        to: u32,
    },
    Post,
}

/// The schedules, and where in them each word and each chunk is written and read.
struct Machine {
    epochs: u32,
    threads: Vec<Thread>,
    lists: Vec<Vec<Operation>>,
    /// Moves of a chunk to a rank.
    moves: HashMap<(u32, u32), Vec<Place>>,
    /// Reads of a chunk by a rank.
    reads: HashMap<(u32, u32), Vec<Place>>,
}

impl Machine {
    fn new(schedules: &Schedules, epochs: u32) -> Self {
        let mut machine = Machine {
            epochs,
            threads: Vec::new(),
            lists: Vec::new(),
            moves: HashMap::new(),
            reads: HashMap::new(),
        };
        let mut posts: HashMap<(u32, Word), Vec<Place>> = HashMap::new();
        let mut awaits = Vec::new();
        for schedule in &schedules.of_ranks {
            let rank = schedule.rank;
            for lane in schedule.lanes() {
                let thread = machine.lists.len();
                let mut list = Vec::new();
                let mut await_word = |list: &mut Vec<Operation>, word, age| {
                    awaits.push((thread, list.len(), (rank, word)));
                    list.push(Operation::Await { posts: Vec::new(), age });
                };
                for step in schedule.lane(lane) {
                    let place = Place { thread, position: list.len() as u32, age: 0 };
                    match step {
                        Step::Await { word, age } => await_word(&mut list, *word, *age),
                        Step::Post { word, to, age } => {
                            posts
                                .entry((*to, *word))
                                .or_default()
                                .push(Place { age: *age, ..place });
                            list.push(Operation::Post);
                        }
                        Step::Move { chunk, to } => {
                            machine.moves.entry((*to, *chunk)).or_default().push(place);
                            if *to != rank {
                                machine.reads.entry((rank, *chunk)).or_default().push(place);
                            }
                            list.push(Operation::Move { chunk: *chunk, to: *to });
                        }
                        Step::Multiply { rows, awaits, .. } => {
                            let touched = schedules.chunks.touching(rows.clone());
                            // What is not awaited may be read as soon as the product starts.
                            let at_once = touched.filter(|chunk| !awaits.contains(chunk));
                            let mut read = |list: &mut Vec<Operation>, chunk| {
                                let place = Place { position: list.len() as u32, ..place };
                                machine.reads.entry((rank, chunk)).or_default().push(place);
                                list.push(Operation::Read { chunk });
                            };
                            at_once.for_each(|chunk| read(&mut list, chunk));
                            for &chunk in awaits {
                                await_word(&mut list, Word::Landed { chunk }, 0);
                                read(&mut list, chunk);
                            }
                        }
                    }
                }
                if list.is_empty() {
                    list.push(Operation::Post); // a product of no rows
                }
                machine.threads.push(Thread { rank, lane });
                machine.lists.push(list);
            }
        }
        for (thread, position, word) in awaits {
            if let Operation::Await { posts: found, .. } = &mut machine.lists[thread][position] {
                *found = posts.get(&word).cloned().unwrap_or_default();
            }
        }
        machine
    }

    fn start(&self) -> State {
        vec![0; self.lists.len()].into()
    }

    /// Epochs count from 1; the position is within the thread's list.
    fn epoch_and_position(&self, state: &State, thread: usize) -> (u32, u32) {
        let (taken, len) = (state[thread], self.lists[thread].len() as u64);
        ((taken / len) as u32 + 1, (taken % len) as u32)
    }

    /// How often a place was passed: the epoch last written or read there.
    fn times_passed(&self, state: &State, place: Place) -> u32 {
        let (epoch, at) = self.epoch_and_position(state, place.thread);
        epoch - 1 + u32::from(at > place.position)
    }

    fn is_finished(&self, state: &State, thread: usize) -> bool {
        state[thread] == self.lists[thread].len() as u64 * u64::from(self.epochs)
    }

    fn enabled(&self, state: &State) -> Vec<usize> {
        (0..self.lists.len()).filter(|&thread| self.is_enabled(state, thread)).collect()
    }

    fn is_enabled(&self, state: &State, thread: usize) -> bool {
        if self.is_finished(state, thread) {
            return false;
        }
        let (epoch, position) = self.epoch_and_position(state, thread);
        let Operation::Await { posts, age } = &self.lists[thread][position as usize] else {
            return true;
        };
        let posted = |post: &Place| self.times_passed(state, *post).saturating_sub(post.age);
        posts.iter().map(posted).max().unwrap_or(0) >= epoch.saturating_sub(*age)
    }

    /// The epoch of the rows of a chunk in a rank's buffers.
    fn landed(&self, state: &State, rank: u32, chunk: u32) -> u32 {
        let moves = self.moves.get(&(rank, chunk)).into_iter().flatten();
        moves.map(|place| self.times_passed(state, *place)).max().unwrap_or(0)
    }

    /// Whether all reads of a chunk in a rank's buffer of `epoch` are over.
    fn is_read(&self, state: &State, rank: u32, chunk: u32, epoch: u32) -> bool {
        let mut reads = self.reads.get(&(rank, chunk)).into_iter().flatten();
        reads.all(|place| self.times_passed(state, *place) >= epoch)
    }

    /// Does the next operation of an enabled thread, checking what it touches.
    fn step(&self, state: &mut State, thread: usize) -> Result<(), Violation> {
        let (epoch, position) = self.epoch_and_position(state, thread);
        let rank = self.threads[thread].rank;
        // Without a gather, A is available before the step.
        let is_there = |chunk| self.moves.is_empty() || self.landed(state, rank, chunk) >= epoch;
        let too_early = |chunk| Err(Violation::ReadTooEarly { reader: rank, chunk, epoch });
        match self.lists[thread][position as usize] {
            Operation::Read { chunk } if !is_there(chunk) => return too_early(chunk),
            Operation::Move { chunk, to } if to != rank && !is_there(chunk) => {
                return too_early(chunk);
            }
            Operation::Move { chunk, to } => {
                if !self.is_read(state, to, chunk, epoch.saturating_sub(BUFFERS)) {
                    return Err(Violation::Overwritten { owner: to, chunk, epoch });
                }
            }
            Operation::Await { .. } | Operation::Read { .. } | Operation::Post => {}
        }
        state[thread] += 1;
        Ok(())
    }

    fn check_finished(&self, state: &State) -> Result<(), Violation> {
        let unfinished = (0..self.lists.len()).filter(|&thread| !self.is_finished(state, thread));
        let waiting: Vec<_> = unfinished.map(|thread| self.threads[thread]).collect();
        if waiting.is_empty() { Ok(()) } else { Err(Violation::Deadlock { waiting }) }
    }
}
