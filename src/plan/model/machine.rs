//! The abstract machine: runs schedules in any order of their enabled steps.
//!
//! Invariant: the state is a position for each thread; all else follows from it.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Schedules, Thread, Violation};
use crate::plan::schedule::{BUFFERS, Step, Word};

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
