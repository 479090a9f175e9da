//! The protocol core, the code that runs, under shuttle: realistic worlds, thousands of random
//! interleavings: deadlock, reuse, epoch wrap, several workers a rank. What loom cannot reach in
//! size. (Shuttle is sequentially consistent: weak orderings are loom's business.)

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::mutants::{
    Caught, MUTANTS, Mutant, ONE_SHOT_MUTANTS, REDUCE_MUTANTS, TWO_SHOT_MUTANTS,
};
use common::{plan_of, reducing};
use overlap_gemm::host::protocol::{
    AtomicWord, Awaited, Endpoint, Mailbox, Patience, signal_slots,
};
use overlap_gemm::plan::{
    BUFFERS, Lane, Operation, Plan, PlanOptions, Schedule, Step, Strategy, Tiling, Word,
};

/// A word that once held [`FOREVER`] keeps it: a wait that a mutant does not have.
struct ShuttleWord(shuttle::sync::atomic::AtomicU32);

/// An epoch that none of these worlds gets to.
const FOREVER: u32 = BEFORE.wrapping_add(1000);

/// What a total, in the place of own sums, is ahead of these: even, so that it stays in its epoch's buffer.
const TOTAL: u32 = 500;

impl AtomicWord for ShuttleWord {
    fn new(value: u32) -> Self {
        ShuttleWord(shuttle::sync::atomic::AtomicU32::new(value))
    }

    fn load(&self, ordering: Ordering) -> u32 {
        self.0.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        if self.0.load(Ordering::Relaxed) != FOREVER {
            self.0.store(value, ordering);
        }
    }
}

/// Yields, and gives up after so many looks that only a wait in vain explains them.
#[derive(Default)]
struct Looks(u32);

#[derive(Debug)]
struct InVain;

impl Patience for Looks {
    type Error = InVain;

    fn pause(&mut self, _: Awaited, _: u32, _: u32) -> Result<(), InVain> {
        self.0 += 1;
        shuttle::thread::yield_now();
        if self.0 > 20_000 { Err(InVain) } else { Ok(()) }
    }
}

const BEFORE: u32 = u32::MAX - 2;
const EPOCHS: u32 = 6;
const WORKERS: u32 = 2;

/// The same schedules every time: a mutant that is caught stays caught.
const SEED: u64 = 0x6f76_6572_6c61_7021;

/// All ranks' signals and, for every chunk of rows or sums, the epoch it was written for. These are ordinary
/// atomics that shuttle does not see, so they add no interleavings and hide none.
struct World {
    plan: Plan,
    schedules: Vec<Schedule>,
    slots_per_rank: u32,
    mailboxes: Vec<Mailbox<ShuttleWord>>,
    /// Of each rank: the gathered rows, or the own sums; then, of a reduction, each rank's sums of the rows that it gets.
    rows: Vec<[Vec<AtomicU32>; BUFFERS as usize]>,
}

/// The options of an all-gather + GEMM.
fn gathering(pieces: u32) -> PlanOptions {
    let (pieces, tiling) = (Some(pieces), Tiling::of_tile(2, 8));
    PlanOptions { pieces, tiling, ..PlanOptions::default() }
}

impl World {
    fn new(rows: &[u32], options: PlanOptions, change: &dyn Fn(&mut [Schedule])) -> Self {
        let plan = plan_of(rows, options);
        let (ranks, slots_per_rank) = (rows.len() as u32, plan.chunks().most_per_rank());
        let places = plan.chunks().len() * (1 + ranks);
        let buffer = || (0..places).map(|_| AtomicU32::new(0)).collect();
        let slots = signal_slots(options.operation, slots_per_rank, ranks);
        let mut schedules: Vec<_> = (0..ranks).map(|rank| plan.schedule(rank)).collect();
        change(&mut schedules);
        World {
            schedules,
            slots_per_rank,
            mailboxes: (0..ranks).map(|_| Mailbox::new(slots, ranks, BEFORE)).collect(),
            rows: (0..ranks).map(|_| [buffer(), buffer()]).collect(),
            plan,
        }
    }

    fn endpoint(&self, rank: u32, epoch: u32) -> Endpoint<'_, ShuttleWord> {
        Endpoint {
            epoch,
            schedule: &self.schedules[rank as usize],
            chunks: self.plan.chunks(),
            slots_per_rank: self.slots_per_rank,
            mailboxes: &self.mailboxes,
        }
    }

    /// The chunks that tiles of `rank` wait for.
    fn awaited(&self, rank: u32) -> Vec<u32> {
        let mut steps = self.schedules[rank as usize].lane(Lane::Compute);
        let awaits = |step: &Step| match step {
            Step::Multiply { awaits, .. } => Some(awaits.clone()),
            _ => None,
        };
        steps.find_map(awaits).unwrap_or_default()
    }

    /// Whether `rank` sends the total of a chunk, which is in the place of own sums.
    fn sends_total(&self, rank: u32, chunk: u32) -> bool {
        self.plan.has_two_shots() && self.plan.chunks().rank_of(chunk) == rank
    }

    /// Where what `rank` adds up of a chunk is: all ranks' sums; or one total.
    fn added(&self, rank: u32, chunk: u32) -> impl Iterator<Item = u32> + Clone {
        let owner = self.plan.chunks().rank_of(chunk);
        let is_one = self.sends_total(owner, chunk) && owner != rank;
        let ranks = if is_one { owner..owner + 1 } else { 0..self.plan.problem().ranks() };
        ranks.map(move |from| match from == rank {
            true => chunk,
            false => self.slot(chunk, from),
        })
    }

    /// Where rank `from` puts its sums of a chunk, or its total.
    fn slot(&self, chunk: u32, from: u32) -> u32 {
        self.plan.chunks().len() * (1 + from) + chunk
    }

    fn row(&self, rank: u32, epoch: u32, chunk: u32) -> &AtomicU32 {
        &self.rows[rank as usize][(epoch % BUFFERS) as usize][chunk as usize]
    }

    fn write(&self, rank: u32, epoch: u32, chunk: u32) {
        self.row(rank, epoch, chunk).store(epoch, Ordering::Relaxed);
    }

    fn check(&self, rank: u32, epoch: u32, chunk: u32) {
        let seen = self.row(rank, epoch, chunk).load(Ordering::Relaxed);
        assert_eq!(seen, epoch, "rank {rank} reads chunk {chunk} of another epoch");
    }

    /// Reading takes time: twice, with others running in between.
    fn check_slowly(&self, rank: u32, epoch: u32, chunks: impl Iterator<Item = u32> + Clone) {
        chunks.clone().for_each(|chunk| self.check(rank, epoch, chunk));
        shuttle::thread::yield_now();
        chunks.for_each(|chunk| self.check(rank, epoch, chunk));
    }
}

fn epochs() -> impl Iterator<Item = u32> {
    (1..=EPOCHS).map(|step| BEFORE.wrapping_add(step))
}

/// Starts so many threads.
fn start(
    world: &Arc<World>,
    threads: u32,
    run: impl Fn(&Arc<World>, u32) + Clone + Send + 'static,
) -> Vec<shuttle::thread::JoinHandle<()>> {
    let spawn = |number| {
        let (world, run) = (Arc::clone(world), run.clone());
        shuttle::thread::spawn(move || run(&world, number))
    };
    (0..threads).map(spawn).collect()
}

fn join(threads: Vec<shuttle::thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The rank's pusher, and where it hears of steps. `place` says where a chunk from this rank goes.
fn start_pusher(
    world: &Arc<World>,
    rank: u32,
    place: fn(&World, u32, u32) -> u32,
) -> (shuttle::sync::mpsc::Sender<u32>, shuttle::thread::JoinHandle<()>) {
    let (steps, to_send) = shuttle::sync::mpsc::channel::<u32>();
    let world = Arc::clone(world);
    let pusher = shuttle::thread::spawn(move || {
        for epoch in to_send {
            let copy = |chunk: u32, to| {
                let is_total = world.sends_total(rank, chunk);
                let sent = epoch.wrapping_add(if is_total { TOTAL } else { 0 });
                world.check_slowly(rank, sent, chunk..chunk + 1);
                world.write(to, epoch, place(&world, chunk, rank));
            };
            world.endpoint(rank, epoch).push(&mut Looks::default(), copy).unwrap();
        }
    });
    (steps, pusher)
}

fn run_rank(world: &Arc<World>, rank: u32) {
    let (steps, pusher) = start_pusher(world, rank, |_, chunk, _| chunk);
    let order = world.plan.tile_order(rank).unwrap();
    let awaited = Arc::new(world.awaited(rank));
    for epoch in epochs() {
        let endpoint = world.endpoint(rank, epoch);
        endpoint.begin(&mut Looks::default()).unwrap();
        let copy = |chunk, _| world.write(rank, epoch, chunk);
        endpoint.publish(&mut Looks::default(), copy).unwrap();
        steps.send(epoch).unwrap();
        let (order, awaited) = (order.clone(), Arc::clone(&awaited));
        join(start(world, WORKERS, move |world, worker| {
            let endpoint = world.endpoint(rank, epoch);
            let mine = |index: &u64| index % u64::from(WORKERS) == u64::from(worker);
            for tile in (0..order.index_count()).filter(mine) {
                let touched = order.chunks_of(order.tile_at(tile).unwrap());
                let waits = touched.clone().filter(|chunk| awaited.contains(chunk));
                endpoint.await_chunks(waits, &mut Looks::default()).unwrap();
                world.check_slowly(rank, epoch, touched);
            }
        }));
    }
    drop(steps);
    pusher.join().unwrap();
}

/// The same of a reduction: a rank multiplies, or brings its sums, and adds up by itself.
fn reduce_on_rank(world: &Arc<World>, rank: u32) {
    let (steps, pusher) = start_pusher(world, rank, World::slot);
    for epoch in epochs() {
        let endpoint = world.endpoint(rank, epoch);
        endpoint.begin(&mut Looks::default()).unwrap();
        let bring = |chunk, _| world.write(rank, epoch, chunk);
        endpoint.publish(&mut Looks::default(), bring).unwrap();
        steps.send(epoch).unwrap();
        for step in endpoint.after_opening() {
            match step {
                Step::Multiply { rows, .. } => {
                    for chunk in world.plan.chunks().touching(rows.clone()) {
                        // Multiplying takes time, in which the sums are none.
                        world.row(rank, epoch, chunk).store(FOREVER, Ordering::Relaxed);
                        shuttle::thread::yield_now();
                        world.write(rank, epoch, chunk);
                    }
                }
                Step::Post { word, to, age } => endpoint.post(*word, *to, epoch.wrapping_sub(*age)),
                Step::Await { word, age } => {
                    endpoint.await_word(*word, *age, &mut Looks::default()).unwrap();
                }
                Step::Reduce { chunk } => {
                    world.check_slowly(rank, epoch, world.added(rank, *chunk));
                    if world.sends_total(rank, *chunk) {
                        world.write(rank, epoch.wrapping_add(TOTAL), *chunk);
                    }
                }
                Step::Move { .. } => {}
            }
        }
    }
    drop(steps);
    pusher.join().unwrap();
}

fn run_world(rows: &'static [u32], pieces: u32, iterations: usize, change: fn(&mut [Schedule])) {
    run_ranks(rows, gathering(pieces), iterations, run_rank, change);
}

fn run_ranks(
    rows: &'static [u32],
    options: PlanOptions,
    iterations: usize,
    rank: fn(&Arc<World>, u32),
    change: impl Fn(&mut [Schedule]) + Copy + Send + Sync + 'static,
) {
    let run = move || {
        let world = Arc::new(World::new(rows, options, &change));
        join(start(&world, rows.len() as u32, rank));
    };
    explore(run, iterations);
}

/// Runs in uniformly random orders, and in orders that let some threads fall far behind.
fn explore(run: impl Fn() + Copy + Send + Sync + 'static, iterations: usize) {
    let mut config = shuttle::Config::default();
    config.max_steps = shuttle::MaxSteps::FailAfter(2_000_000);
    config.stack_size = 0x10000;
    let random = shuttle::scheduler::RandomScheduler::new_from_seed(SEED, iterations);
    shuttle::Runner::new(random, config.clone()).run(run);
    let starving = shuttle::scheduler::PctScheduler::new_from_seed(SEED, 5, iterations);
    shuttle::Runner::new(starving, config).run(run);
}

/// An `AsyncInput`: mailbox 0 and the buffers of rank 0 are filled by a writer a chunk and read by two
/// workers, which begin every step together.
fn run_input(chunks: u32, iterations: usize, tamper: fn(&World)) {
    let run = move || {
        let world = Arc::new(World::new(&[chunks], gathering(chunks), &|_| ()));
        tamper(&world);
        let writers = start(&world, chunks, |world, chunk| {
            for epoch in epochs() {
                let (awaited, mut looks) = (Awaited::Consumed { by: 1 }, Looks::default());
                let write = || world.write(0, epoch, chunk);
                world.mailboxes[0].deliver(chunk, 0, epoch, awaited, &mut looks, write).unwrap();
            }
        });
        for epoch in epochs() {
            world.mailboxes[0].post_consumed(0, epoch.wrapping_sub(1));
            join(start(&world, WORKERS, move |world, worker| {
                for chunk in (worker..chunks).step_by(WORKERS as usize) {
                    let endpoint = world.endpoint(0, epoch);
                    endpoint.await_chunks(chunk..chunk + 1, &mut Looks::default()).unwrap();
                    world.check_slowly(0, epoch, chunk..chunk + 1);
                }
            }));
        }
        join(writers);
    };
    explore(run, iterations);
}

/// `PROPTEST_CASES` over proptest's default of 256 scales these too: one switch, one long mode.
fn iterations(quick: usize) -> usize {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<usize>().ok());
    (quick * cases.unwrap_or(256) / 256).max(1)
}

#[test]
fn four_ranks_with_four_chunks_each() {
    run_world(&[8, 8, 8, 8], 4, iterations(40), |_| ());
}

#[test]
fn eight_ranks() {
    run_world(&[2; 8], 2, iterations(10), |_| ());
}

#[test]
fn unequal_and_empty_shards() {
    run_world(&[5, 0, 3], 3, iterations(100), |_| ());
}

#[test]
fn an_async_input_with_three_writers() {
    run_input(3, iterations(100), |_| ());
}

#[test]
#[should_panic(expected = "of another epoch")]
fn mutant_signal_before_rows_of_async_input_is_caught() {
    run_input(3, 1000, |world| world.mailboxes[0].post_signal(1, FOREVER));
}

#[test]
#[should_panic(expected = "of another epoch")]
fn mutant_missing_ack_of_async_input_is_caught() {
    run_input(3, 1000, |world| world.mailboxes[0].post_consumed(0, FOREVER));
}

#[test]
fn reductions() {
    for (strategy, to_all) in Strategy::ALL.into_iter().flat_map(|one| [(one, false), (one, true)])
    {
        let run = |rows, pieces, rounds| {
            let options = if to_all { to_all_ranks } else { reducing }(strategy, pieces);
            run_ranks(rows, options, iterations(rounds), reduce_on_rank, |_| ());
        };
        run(&[2, 2, 2, 2], 2, 20);
        run(&[5, 0, 3], 3, 50);
        run(&[4], 2, 10);
    }
}

#[test]
fn reductions_without_a_product() {
    for operation in [Operation::ReduceScatter, Operation::AllReduce] {
        let run = |rows, pieces, rounds| {
            let options = PlanOptions { operation, ..reducing(Strategy::Sequential, pieces) };
            run_ranks(rows, options, iterations(rounds), reduce_on_rank, |_| ());
        };
        run(&[2, 2, 2, 2], 2, 20);
        run(&[5, 0, 3], 3, 50);
        run(&[4], 2, 10);
    }
}

/// The options of a GEMM + all-reduce.
fn to_all_ranks(strategy: Strategy, pieces: u32) -> PlanOptions {
    PlanOptions { operation: Operation::GemmAllReduce, ..reducing(strategy, pieces) }
}

/// In an all-reduce no word says that slots are free, but what a rank sends in the next step: so it waits for all, in one shot and
/// in two.
#[test]
#[should_panic(expected = "of another epoch")]
fn mutant_missing_wait_of_an_all_reduce_in_one_shot_is_caught() {
    without_a_wait(Strategy::Sequential);
}

#[test]
#[should_panic(expected = "of another epoch")]
fn mutant_missing_wait_of_an_all_reduce_in_two_shots_is_caught() {
    without_a_wait(Strategy::Fused);
}

fn without_a_wait(strategy: Strategy) {
    let change = |schedules: &mut [Schedule]| {
        let of_rank_2 =
            |step: &Step| matches!(step, Step::Await { word: Word::Partial { from: 2, .. }, .. });
        schedules[0].steps.retain(|(_, step)| !of_rank_2(step));
    };
    run_ranks(&[2, 1, 1], to_all_ranks(strategy, 1), 1000, reduce_on_rank, change);
}

#[test]
fn every_mutant_of_an_all_reduce_is_caught_as_predicted() {
    for mutant in ONE_SHOT_MUTANTS {
        check_mutant(mutant, to_all_ranks(Strategy::Sequential, 1), reduce_on_rank);
    }
    for mutant in TWO_SHOT_MUTANTS {
        check_mutant(mutant, to_all_ranks(Strategy::Fused, 1), reduce_on_rank);
    }
}

/// The decisive test, on threads: whoever breaks one step of the schedule breaks what runs by it, as predicted.
#[test]
fn every_mutant_of_a_schedule_is_caught_as_predicted() {
    for mutant in MUTANTS {
        check_mutant(mutant, gathering(1), run_rank);
    }
}

#[test]
fn every_mutant_of_a_reduction_is_caught_as_predicted() {
    for mutant in REDUCE_MUTANTS {
        check_mutant(mutant, reducing(Strategy::Fused, 1), reduce_on_rank);
    }
}

fn check_mutant(mutant: &'static Mutant, options: PlanOptions, rank: fn(&Arc<World>, u32)) {
    let iterations = if mutant.run() == Caught::Nothing { 50 } else { 1000 };
    let change = |schedules: &mut [Schedule]| assert!(mutant.change(&mut schedules[mutant.rank]));
    let run = || run_ranks(mutant.rows, options, iterations, rank, change);
    let ran = catch_unwind(AssertUnwindSafe(run));
    let why = ran.err().map(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| String::new(), |text| (*text).into())
        }
    });
    let as_predicted = match (mutant.run(), &why) {
        (Caught::WrongRows, Some(why)) => why.contains("of another epoch"),
        (Caught::Hang, Some(why)) => why.contains("InVain"),
        (Caught::Nothing, why) => why.is_none(),
        _ => false,
    };
    assert!(as_predicted, "{}: {why:?}", mutant.name);
}
