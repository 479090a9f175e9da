//! Runs a schedule on an abstract machine, looking for trouble: reads too early, overwrites,
//! deadlocks, arrivals out of order.
//!
//! The machine has two threads a rank, a sender and a consumer, each with the list of steps that
//! [`Transfers`] gives it, repeated for some epochs. A thread is enabled unless its next step is a
//! wait that does not hold yet. Any enabled thread may go next; [`run`] picks by the caller's
//! choice (say, at random), [`explore`] tries every order there is.
//!
//! The state is nothing but how far each thread has come: every flag and every chunk has a single
//! writer, so how often it was written follows from that writer's position. Every step moves a
//! position forwards, so every run ends; a run that cannot go on before all threads have finished
//! is a deadlock, and if no reachable state is one, the schedule is live.
//!
//! Two simplifications, both on the careful side. The consumer announces an epoch when it has read
//! it, where the host executor does so a little later, at its next step: whoever waits waits longer,
//! for a step that waits for nothing. And a rank's two threads run apart, where the executor lets the
//! sender run ahead of its own consumer by two epochs at most: fewer orders, all of them among these.
//!
//! Schedules are data, so a test can take one, break it, and see that it is caught.

use std::collections::{HashSet, VecDeque};

use super::chunks::Chunks;
use super::transfers::{BUFFERS, ConsumerStep, SenderStep, Transfers};

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A consumer saw the signal of a chunk whose rows were not there yet.
    #[error("rank {consumer} reads chunk {chunk} of epoch {epoch} before its rows are there")]
    ReadTooEarly {
        /// The rank that reads.
        consumer: u32,
        /// The chunk.
        chunk: u32,
        /// The epoch.
        epoch: u32,
    },
    /// A sender wrote into a buffer that its consumer was still reading.
    #[error("chunk {chunk} of epoch {epoch} overwrites what rank {consumer} still reads")]
    Overwritten {
        /// The rank whose buffer it is.
        consumer: u32,
        /// The chunk that was written.
        chunk: u32,
        /// The epoch that it was written for.
        epoch: u32,
    },
    /// Nothing can go on, and not all threads have finished.
    #[error("deadlock: {waiting:?} wait for steps that nobody will take")]
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
        /// How often it is sent there.
        times: u32,
    },
    /// Two ranks send to one, or one rank to two, in the same round.
    #[error("in round {round} rank {rank} is not sent to by exactly one rank")]
    CrowdedRound {
        /// The round.
        round: u32,
        /// The receiver.
        rank: u32,
    },
    /// Chunks are sent to a consumer in another order than its tiles need them.
    #[error("rank {consumer} needs chunk {needed} next, but chunk {arriving} is sent first")]
    OutOfNeedOrder {
        /// The rank.
        consumer: u32,
        /// The chunk it needs next.
        needed: u32,
        /// The chunk that comes instead.
        arriving: u32,
    },
    /// A rank has no list of steps, or there are lists for ranks that do not exist.
    #[error("there are {senders} senders and {consumers} consumers for {ranks} ranks")]
    MissingList {
        /// The ranks there are.
        ranks: u32,
        /// The senders' lists.
        senders: usize,
        /// The consumers' lists.
        consumers: usize,
    },
    /// A step names a rank or a chunk that does not exist.
    #[error("'{step}' names a rank or a chunk that does not exist")]
    NoSuchName {
        /// The step.
        step: String,
    },
}

/// A thread of the abstract machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thread {
    /// The sender of a rank.
    Sender(u32),
    /// The consumer of a rank.
    Consumer(u32),
}

/// The lists of steps that the machine runs; public so that tests can break them.
#[derive(Clone, Debug)]
pub struct Schedule {
    chunks: Chunks,
    /// One list a rank.
    pub senders: Vec<Vec<SenderStep>>,
    /// One list a rank.
    pub consumers: Vec<Vec<ConsumerStep>>,
}

impl Schedule {
    /// The lists of `transfers`.
    pub fn new(transfers: &Transfers) -> Self {
        let ranks = 0..transfers.ranks();
        Schedule {
            chunks: transfers.chunks().clone(),
            senders: ranks.clone().map(|rank| transfers.sender(rank).collect()).collect(),
            consumers: ranks.map(|rank| transfers.consumer(rank).collect()).collect(),
        }
    }

    /// Checks what needs no run: every chunk reaches every rank exactly once; in every round each
    /// rank is sent to by one rank; and chunks arrive in the order in which they are needed.
    pub fn check_order(&self) -> Result<(), Violation> {
        self.check_names()?;
        let ranks = self.senders.len();
        // For each consumer: (round, sender, chunk), each sender's in sending order.
        let mut arrivals: Vec<Vec<(u32, u32, u32)>> = vec![Vec::new(); ranks];
        for (sender, steps) in self.senders.iter().enumerate() {
            for step in steps {
                if let SenderStep::Send { round, chunk, to } = *step {
                    arrivals[to as usize].push((round, sender as u32, chunk));
                }
            }
        }
        for (consumer, mut arrivals) in (0..).zip(arrivals) {
            arrivals.sort_by_key(|&(round, _, _)| round); // stable: sending order within a round
            let crowded =
                |pair: &&[(u32, u32, u32)]| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1;
            if let Some(pair) = arrivals.windows(2).find(crowded) {
                return Err(Violation::CrowdedRound { round: pair[0].0, rank: consumer });
            }
            let mut times = vec![0; self.chunks.len() as usize];
            arrivals.iter().for_each(|&(_, _, chunk)| times[chunk as usize] += 1);
            if let Some((chunk, &times)) = (0..).zip(&times).find(|&(_, &times)| times != 1) {
                return Err(Violation::NotOnce { consumer, chunk, times });
            }
            for (needed, (_, _, arriving)) in self.chunks.need_order(consumer).zip(arrivals) {
                if needed != arriving {
                    return Err(Violation::OutOfNeedOrder { consumer, needed, arriving });
                }
            }
        }
        Ok(())
    }

    /// Checks that every rank has two lists and that no step names a rank or a chunk that does not
    /// exist: without that the machine's tables could not be drawn up.
    fn check_names(&self) -> Result<(), Violation> {
        let ranks = self.chunks.shards().ranks();
        let (senders, consumers) = (self.senders.len(), self.consumers.len());
        if senders != ranks as usize || consumers != ranks as usize {
            return Err(Violation::MissingList { ranks, senders, consumers });
        }
        let check = |rank: u32, chunk: u32, step: &dyn std::fmt::Display| match rank < ranks
            && chunk < self.chunks.len()
        {
            true => Ok(()),
            false => Err(Violation::NoSuchName { step: step.to_string() }),
        };
        for step in self.senders.iter().flatten() {
            match *step {
                SenderStep::AwaitConsumed { peer, .. } => check(peer, 0, step)?,
                SenderStep::Send { chunk, to, .. } | SenderStep::Signal { chunk, to, .. } => {
                    check(to, chunk, step)?;
                }
            }
        }
        for step in self.consumers.iter().flatten() {
            match *step {
                ConsumerStep::AwaitChunk { chunk } => check(0, chunk, step)?,
                ConsumerStep::PostConsumed { to } => check(to, 0, step)?,
            }
        }
        Ok(())
    }
}

/// Runs `schedule` for `epochs` epochs; `choose(n)` picks one of n enabled threads.
///
/// ```
/// use overlap_gemm::plan::model::{Schedule, run};
/// use overlap_gemm::plan::{Chunks, Shards, Transfers};
///
/// let transfers = Transfers::new(&Chunks::even(&Shards::even(12, 3)?, 2)?);
/// run(&Schedule::new(&transfers), 5, |enabled| enabled - 1)?;
///
/// let mut broken = Schedule::new(&transfers);
/// broken.senders[0].swap(1, 2); // the signal before its data
/// assert!(run(&broken, 5, |enabled| enabled - 1).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run(
    schedule: &Schedule,
    epochs: u32,
    mut choose: impl FnMut(usize) -> usize,
) -> Result<(), Violation> {
    schedule.check_names()?;
    let machine = Machine::new(schedule, epochs);
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

/// Runs `schedule` for `epochs` epochs in every possible order; returns the number of states.
pub fn explore(schedule: &Schedule, epochs: u32) -> Result<usize, Violation> {
    schedule.check_names()?;
    let machine = Machine::new(schedule, epochs);
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

/// How many steps each thread has taken: senders first, then consumers.
type State = Box<[u64]>;

/// The machine: the schedule and where in it each flag is written.
struct Machine<'a> {
    schedule: &'a Schedule,
    epochs: u32,
    /// `signals[consumer][chunk]`: the position of the signal in its sender's list.
    signals: Vec<Vec<Option<u32>>>,
    /// `sends[consumer][chunk]`: the position of the data in its sender's list.
    sends: Vec<Vec<Option<u32>>>,
    /// `consumed[consumer][sender]`: the position of the announcement in the consumer's list.
    consumed: Vec<Vec<Option<u32>>>,
    /// `reads_done[consumer]`: the position after the last read in the consumer's list.
    reads_done: Vec<u32>,
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Schedule, epochs: u32) -> Self {
        let ranks = schedule.senders.len();
        let nowhere = vec![vec![None; schedule.chunks.len() as usize]; ranks];
        let (mut signals, mut sends) = (nowhere.clone(), nowhere);
        for steps in &schedule.senders {
            for (position, step) in steps.iter().enumerate() {
                let (table, chunk, to) = match *step {
                    SenderStep::Signal { chunk, to, .. } => (&mut signals, chunk, to),
                    SenderStep::Send { chunk, to, .. } => (&mut sends, chunk, to),
                    SenderStep::AwaitConsumed { .. } => continue,
                };
                table[to as usize][chunk as usize] = Some(position as u32);
            }
        }
        let mut consumed = vec![vec![None; ranks]; ranks];
        let mut reads_done = vec![0; ranks];
        for (consumer, steps) in schedule.consumers.iter().enumerate() {
            for (position, step) in steps.iter().enumerate() {
                match *step {
                    ConsumerStep::AwaitChunk { .. } => reads_done[consumer] = position as u32 + 1,
                    ConsumerStep::PostConsumed { to } => {
                        consumed[consumer][to as usize] = Some(position as u32);
                    }
                }
            }
        }
        Machine { schedule, epochs, signals, sends, consumed, reads_done }
    }

    fn start(&self) -> State {
        vec![0; 2 * self.schedule.senders.len()].into()
    }

    fn threads(&self) -> impl Iterator<Item = Thread> {
        let ranks = self.schedule.senders.len() as u32;
        (0..ranks).map(Thread::Sender).chain((0..ranks).map(Thread::Consumer))
    }

    fn slot(&self, thread: Thread) -> usize {
        match thread {
            Thread::Sender(rank) => rank as usize,
            Thread::Consumer(rank) => self.schedule.senders.len() + rank as usize,
        }
    }

    fn len(&self, thread: Thread) -> u32 {
        match thread {
            Thread::Sender(rank) => self.schedule.senders[rank as usize].len() as u32,
            Thread::Consumer(rank) => self.schedule.consumers[rank as usize].len() as u32,
        }
    }

    /// Epochs count from 1; the position is within the thread's list.
    fn epoch_and_position(&self, state: &State, thread: Thread) -> (u32, u32) {
        let (taken, len) = (state[self.slot(thread)], u64::from(self.len(thread).max(1)));
        ((taken / len) as u32 + 1, (taken % len) as u32)
    }

    /// How often `thread` has passed `position` of its list: the epoch last written there.
    fn times_passed(&self, state: &State, thread: Thread, position: Option<u32>) -> u32 {
        let (epoch, at) = self.epoch_and_position(state, thread);
        position.map_or(0, |position| epoch - 1 + u32::from(at > position))
    }

    fn finished(&self, state: &State, thread: Thread) -> bool {
        state[self.slot(thread)] == u64::from(self.len(thread)) * u64::from(self.epochs)
    }

    fn signalled(&self, state: &State, consumer: u32, chunk: u32) -> u32 {
        let position = self.signals[consumer as usize][chunk as usize];
        self.times_passed(state, self.sender_of(chunk), position)
    }

    fn landed(&self, state: &State, consumer: u32, chunk: u32) -> u32 {
        let position = self.sends[consumer as usize][chunk as usize];
        self.times_passed(state, self.sender_of(chunk), position)
    }

    fn sender_of(&self, chunk: u32) -> Thread {
        Thread::Sender(self.schedule.chunks.rank_of(chunk))
    }

    fn enabled(&self, state: &State) -> Vec<Thread> {
        self.threads().filter(|&thread| self.is_enabled(state, thread)).collect()
    }

    fn is_enabled(&self, state: &State, thread: Thread) -> bool {
        if self.finished(state, thread) {
            return false;
        }
        let (epoch, position) = self.epoch_and_position(state, thread);
        match thread {
            Thread::Sender(rank) => match self.schedule.senders[rank as usize][position as usize] {
                SenderStep::AwaitConsumed { peer, .. } => {
                    let announced = self.consumed[peer as usize][rank as usize];
                    let consumed = self.times_passed(state, Thread::Consumer(peer), announced);
                    consumed >= epoch.saturating_sub(BUFFERS)
                }
                SenderStep::Send { .. } | SenderStep::Signal { .. } => true,
            },
            Thread::Consumer(rank) => {
                match self.schedule.consumers[rank as usize][position as usize] {
                    ConsumerStep::AwaitChunk { chunk } => {
                        self.signalled(state, rank, chunk) >= epoch
                    }
                    ConsumerStep::PostConsumed { .. } => true,
                }
            }
        }
    }

    /// Takes the next step of an enabled thread, checking what it touches.
    fn step(&self, state: &mut State, thread: Thread) -> Result<(), Violation> {
        let (epoch, position) = self.epoch_and_position(state, thread);
        match thread {
            Thread::Sender(rank) => {
                if let SenderStep::Send { chunk, to, .. } =
                    self.schedule.senders[rank as usize][position as usize]
                {
                    let last_read = self.reads_done[to as usize].checked_sub(1);
                    let read = self.times_passed(state, Thread::Consumer(to), last_read);
                    if read < epoch.saturating_sub(BUFFERS) {
                        return Err(Violation::Overwritten { consumer: to, chunk, epoch });
                    }
                }
            }
            Thread::Consumer(consumer) => {
                if let ConsumerStep::AwaitChunk { chunk } =
                    self.schedule.consumers[consumer as usize][position as usize]
                {
                    let landed = self.landed(state, consumer, chunk);
                    if landed < epoch {
                        return Err(Violation::ReadTooEarly { consumer, chunk, epoch });
                    }
                }
            }
        }
        state[self.slot(thread)] += 1;
        Ok(())
    }

    fn check_finished(&self, state: &State) -> Result<(), Violation> {
        let waiting: Vec<_> = self.threads().filter(|&t| !self.finished(state, t)).collect();
        if waiting.is_empty() { Ok(()) } else { Err(Violation::Deadlock { waiting }) }
    }
}
