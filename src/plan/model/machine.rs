//! The abstract machine: runs schedules in any order of their enabled steps.
//!
//! Invariant: the state is a position for each thread; all else follows from it.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Region, Schedules, TOTAL, Thread, Violation};
use crate::plan::schedule::{BUFFERS, Lane, Step, Word};

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
///
/// ```
/// use overlap_gemm::plan::model::{Schedules, explore};
/// use overlap_gemm::plan::{Plan, PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 1).ranks(2).build()?;
/// let schedules = Schedules::new(&Plan::new(&problem, PlanOptions::default())?);
/// println!("{} states, all of them right", explore(&schedules, 1)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// What a thread does: a step, taken apart where it touches several regions one after the other.
enum Operation {
    /// Goes on when a word has reached the epoch.
    Await {
        posts: Vec<Place>,
        age: u32,
    },
    /// Reads a region, writes one, or moves from one to another. What the step of this age wrote there has been read before.
    Touch {
        reads: Option<Region>,
        writes: Option<Region>,
        age: u32,
    },
    Post,
}

/// The schedules, and where in them each word and each region is written and read.
struct Machine {
    epochs: u32,
    threads: Vec<Thread>,
    lists: Vec<Vec<Operation>>,
    /// Whether what is read was available before the step, since nothing writes it: an A that is gathered already.
    is_given: bool,
    /// Moves into a region.
    moves: HashMap<Region, Vec<Place>>,
    /// Products that write a region, or a part of it.
    products: HashMap<Region, Vec<Place>>,
    /// Reads of a region.
    reads: HashMap<Region, Vec<Place>>,
}

impl Machine {
    fn new(schedules: &Schedules, epochs: u32) -> Self {
        let mut machine = Machine {
            epochs,
            threads: Vec::new(),
            lists: Vec::new(),
            is_given: false,
            moves: HashMap::new(),
            products: HashMap::new(),
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
                            let own = schedules.own(rank, *chunk);
                            let written = Region { rank: *to, ..own };
                            machine.moves.entry(written).or_default().push(place);
                            // To itself: what the caller brings.
                            let sent = schedules.total(rank, *chunk).unwrap_or(own);
                            let reads = (*to != rank).then_some(sent);
                            if let Some(read) = reads {
                                machine.reads.entry(read).or_default().push(place);
                            }
                            let is_one = reads.is_none() && schedules.has_one_buffer();
                            let age = if is_one { 1 } else { BUFFERS };
                            list.push(Operation::Touch { reads, writes: Some(written), age });
                            let is_total = sent.from == TOTAL && *to != rank;
                            if is_total && schedules.totals_replace_sums() {
                                let (reads, writes) = (None, Some(schedules.own(*to, *chunk)));
                                list.push(Operation::Touch { reads, writes, age: 0 });
                            }
                        }
                        Step::Multiply { rows, awaits, .. } => {
                            let touched = schedules.chunks().touching(rows.clone());
                            // What is not awaited may be read as soon as the product starts.
                            let at_once = touched.filter(|chunk| !awaits.contains(chunk));
                            let mut touch = |list: &mut Vec<Operation>, chunk| {
                                let place = Place { position: list.len() as u32, ..place };
                                let own = schedules.own(rank, chunk);
                                // Sums are written; a gather's rows are read, and D is nobody else's.
                                let (places, reads, writes) = match schedules.reduces() {
                                    true => (&mut machine.products, None, Some(own)),
                                    false => (&mut machine.reads, Some(own), None),
                                };
                                places.entry(own).or_default().push(place);
                                list.push(Operation::Touch { reads, writes, age: BUFFERS });
                                // Where an older total lies, which may still be sent.
                                let writes = schedules.total(rank, chunk);
                                if writes.is_some() {
                                    let (reads, age) = (None, BUFFERS);
                                    list.push(Operation::Touch { reads, writes, age });
                                }
                            };
                            at_once.for_each(|chunk| touch(&mut list, chunk));
                            for &chunk in awaits {
                                await_word(&mut list, Word::Landed { chunk }, 0);
                                touch(&mut list, chunk);
                            }
                        }
                        Step::Reduce { chunk } => {
                            let ranks = 0..schedules.of_ranks.len() as u32;
                            let from = match schedules.adds_up(rank, *chunk) {
                                true => ranks,
                                // The total.
                                false => {
                                    let owner = schedules.chunks().rank_of(*chunk);
                                    owner..owner + 1
                                }
                            };
                            for from in from {
                                let is_there = schedules.adds_up(rank, *chunk)
                                    && schedules.plan.reads_in_place();
                                let at = if is_there { from } else { rank };
                                let read = Region { rank: at, chunk: *chunk, from };
                                let place = Place { position: list.len() as u32, ..place };
                                machine.reads.entry(read).or_default().push(place);
                                let (reads, writes) = (Some(read), None);
                                list.push(Operation::Touch { reads, writes, age: BUFFERS });
                            }
                            if let Some(total) = schedules.total(rank, *chunk) {
                                let place = Place { position: list.len() as u32, ..place };
                                machine.moves.entry(total).or_default().push(place);
                                let (reads, writes) = (None, Some(total));
                                list.push(Operation::Touch { reads, writes, age: BUFFERS });
                            }
                            if schedules.has_one_buffer() {
                                // D, in the place of the sums.
                                let (reads, writes) = (None, Some(schedules.own(rank, *chunk)));
                                list.push(Operation::Touch { reads, writes, age: 0 });
                            }
                        }
                    }
                }
                if lane == Lane::Compute && schedules.sends_totals_from_d() {
                    // The step has ended: the caller may write D.
                    for chunk in schedules.chunks().of_rank(rank) {
                        let (reads, writes) = (None, schedules.total(rank, chunk));
                        list.push(Operation::Touch { reads, writes, age: 0 });
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
        machine.is_given = machine.moves.is_empty() && !schedules.reduces();
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

    /// The epoch of what was written to a region last: by any move, which writes all of it, or by all products.
    fn written(&self, state: &State, region: Region) -> u32 {
        let passed = |place: &Place| self.times_passed(state, *place);
        let epoch = match (self.products.get(&region), self.moves.get(&region)) {
            (Some(products), _) => products.iter().map(passed).min(),
            (None, moves) => moves.into_iter().flatten().map(passed).max(),
        };
        epoch.unwrap_or(0)
    }

    /// Whether all reads of a region in the buffer of `epoch` are over.
    fn is_read(&self, state: &State, region: Region, epoch: u32) -> bool {
        let mut reads = self.reads.get(&region).into_iter().flatten();
        reads.all(|place| self.times_passed(state, *place) >= epoch)
    }

    /// Does the next operation of an enabled thread, checking what it touches.
    fn step(&self, state: &mut State, thread: usize) -> Result<(), Violation> {
        let (epoch, position) = self.epoch_and_position(state, thread);
        if let Operation::Touch { reads, writes, age } = self.lists[thread][position as usize] {
            let is_there = |region: &Region| self.is_given || self.written(state, *region) >= epoch;
            let reader = self.threads[thread].rank;
            // Only the rank that adds up reads a total where it wrote it.
            let named = |from: u32| if from == TOTAL { reader } else { from };
            if let Some(Region { chunk, from, .. }) = reads.filter(|region| !is_there(region)) {
                let from = named(from);
                return Err(Violation::ReadTooEarly { reader, chunk, from, epoch });
            }
            let is_free = |region: &Region| self.is_read(state, *region, epoch.saturating_sub(age));
            if let Some(Region { rank, chunk, from }) = writes.filter(|region| !is_free(region)) {
                let from = named(from);
                return Err(Violation::Overwritten { owner: rank, chunk, from, epoch });
            }
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
