//! The protocol core, the code that runs, under loom: every interleaving of a small world within
//! a preemption bound, with the C11 memory model. What shuttle cannot see: weak orderings.
//!
//! The data cells are loom's `UnsafeCell`s, so a read or write that the signals and
//! acknowledgements do not order is a reported race, whatever value it happens to see.

use std::sync::atomic::{AtomicBool, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use overlap_gemm::host::protocol::{
    AtomicWord, Awaited, Endpoint, Mailbox, Patience, signal_slots,
};
use overlap_gemm::plan::{BUFFERS, Operation, Plan, PlanOptions, Problem, Schedule, Step, Word};

/// Which orderings a mutant forgets.
const NOTHING: u8 = 0;
const RELEASE: u8 = 1;
const ACQUIRE: u8 = 2;

struct LoomWord<const FORGETS: u8>(AtomicU32);

impl<const FORGETS: u8> AtomicWord for LoomWord<FORGETS> {
    fn new(value: u32) -> Self {
        LoomWord(AtomicU32::new(value))
    }

    fn load(&self, ordering: Ordering) -> u32 {
        self.0.load(if FORGETS == ACQUIRE { Ordering::Relaxed } else { ordering })
    }

    fn store(&self, value: u32, ordering: Ordering) {
        self.0.store(value, if FORGETS == RELEASE { Ordering::Relaxed } else { ordering });
    }
}

/// Lets others run; loom explores what they do.
struct Yield;

impl Patience for Yield {
    type Error = std::convert::Infallible;

    fn pause(&mut self, _: Awaited, _: u32, _: u32) -> Result<(), Self::Error> {
        loom::thread::yield_now();
        Ok(())
    }
}

/// Two ranks; only rank 0 has a row, in one chunk. Epochs count from just before the wrap.
struct World<const FORGETS: u8> {
    plan: Plan,
    schedules: [Schedule; 2],
    mailboxes: Vec<Mailbox<LoomWord<FORGETS>>>,
    /// `rows[rank][buffer]`: the epoch that the row was written for. In a reduction, the sums that a rank computes, and in
    /// the same place the total that it sends.
    rows: [Buffers; 2],
    /// In a reduction, what the other rank has sent: to rank 0 sums, to rank 1 the total.
    slots: [Buffers; 2],
    /// A row of another epoch was read. Told after all threads have ended: a panic with others
    /// still running would end the process, not the test.
    wrong: AtomicBool,
}

// SAFETY: the cells are loom's: an unordered access is the failure that these tests look for.
unsafe impl<const FORGETS: u8> Sync for World<FORGETS> {}
// SAFETY: as above.
unsafe impl<const FORGETS: u8> Send for World<FORGETS> {}

/// The epoch that each buffer of a row was written for.
type Buffers = [UnsafeCell<u32>; BUFFERS as usize];

fn write(buffers: &Buffers, epoch: u32) {
    // SAFETY: checked by loom.
    buffers[(epoch % BUFFERS) as usize].with_mut(|row| unsafe { *row = epoch });
}

const BEFORE: u32 = u32::MAX - 1;
/// An epoch that no step here gets to: a word that holds it is waited for by nobody.
const LATER: u32 = BEFORE.wrapping_add(100);

impl<const FORGETS: u8> World<FORGETS> {
    fn of(operation: Operation) -> Self {
        let problem = Problem::builder(1, 1, 1).shards(&[1, 0]).build().unwrap();
        let options = PlanOptions { operation, ..PlanOptions::default() };
        let plan = Plan::new(&problem, options).unwrap();
        let slots = signal_slots(operation, 1, 2);
        World {
            schedules: [0, 1].map(|rank| plan.schedule(rank)),
            plan,
            mailboxes: (0..2).map(|_| Mailbox::new(slots, 2, BEFORE)).collect(),
            rows: [0, 1].map(|_| [0, 1].map(|_| UnsafeCell::new(0))),
            slots: [0, 1].map(|_| [0, 1].map(|_| UnsafeCell::new(0))),
            wrong: AtomicBool::new(false),
        }
    }

    fn endpoint(&self, rank: u32, epoch: u32) -> Endpoint<'_, LoomWord<FORGETS>> {
        let (chunks, mailboxes) = (self.plan.chunks(), &self.mailboxes[..]);
        let schedule = &self.schedules[rank as usize];
        Endpoint { epoch, schedule, chunks, slots_per_rank: 1, mailboxes }
    }

    fn write(&self, rank: u32, epoch: u32) {
        write(&self.rows[rank as usize], epoch);
    }

    fn read(&self, rank: u32, epoch: u32) {
        self.read_of(&self.rows[rank as usize], epoch);
    }

    fn read_of(&self, buffers: &Buffers, epoch: u32) {
        // SAFETY: checked by loom.
        let written_for = buffers[(epoch % BUFFERS) as usize].with(|row| unsafe { *row });
        self.wrong.fetch_or(written_for != epoch, Ordering::Relaxed);
    }

    /// Rank 0's caller in one step of a gather, but for its tiles.
    fn publish(&self, epoch: u32) {
        let endpoint = self.endpoint(0, epoch);
        endpoint.begin(&mut Yield).unwrap();
        endpoint.publish(&mut Yield, |_, rank| self.write(rank, epoch)).unwrap();
    }

    /// Rank 0's pusher in one step of a gather.
    fn push(&self, epoch: u32) {
        let copy = |_, to| {
            self.read(0, epoch);
            self.write(to, epoch);
        };
        self.endpoint(0, epoch).push(&mut Yield, copy).unwrap();
    }

    /// A rank's pusher in one step of a reduction.
    fn push_sums(&self, rank: u32, epoch: u32) {
        let copy = |_, to: u32| {
            self.read(rank, epoch);
            write(&self.slots[to as usize], epoch);
        };
        self.endpoint(rank, epoch).push(&mut Yield, copy).unwrap();
    }

    /// A whole step of rank 1 of a gather, which only consumes.
    fn consume(&self, epoch: u32) {
        let endpoint = self.endpoint(1, epoch);
        endpoint.begin(&mut Yield).unwrap();
        endpoint.push(&mut Yield, |_, _| unreachable!("it has nothing to send")).unwrap();
        endpoint.await_chunks(0..1, &mut Yield).unwrap();
        self.read(1, epoch);
    }

    /// The caller of a rank in one step of a reduction. `before_total` comes before rank 1 waits for a total.
    fn reduce(&self, rank: u32, epoch: u32, before_total: impl Fn()) {
        let endpoint = self.endpoint(rank, epoch);
        endpoint.begin(&mut Yield).unwrap();
        for step in endpoint.after_opening() {
            match step {
                Step::Multiply { .. } => self.write(rank, epoch),
                Step::Post { word, to, age } => endpoint.post(*word, *to, epoch.wrapping_sub(*age)),
                Step::Await { word, age } => {
                    if rank == 1 && matches!(word, Word::Partial { .. }) {
                        before_total();
                    }
                    endpoint.await_word(*word, *age, &mut Yield).unwrap();
                }
                Step::Reduce { .. } => {
                    self.read_of(&self.slots[rank as usize], epoch);
                    if rank == 0 {
                        // Adds them to its own, and leaves the total there.
                        self.read(0, epoch);
                        self.write(0, epoch);
                    }
                }
                Step::Move { .. } => {}
            }
        }
    }

    /// As `ChunkWriter::publish_scaled` does with the one chunk of an `AsyncInput`: what `write` writes, then the signal.
    fn deliver(&self, epoch: u32, write: impl FnOnce()) {
        let awaited = Awaited::Consumed { by: 1 };
        self.mailboxes[0].deliver(0, 0, epoch, awaited, &mut Yield, write).unwrap();
    }

    /// The consumer of an `AsyncInput`: begins a step, and reads the rows and scales of its chunk.
    fn read_input(&self, epoch: u32) {
        self.mailboxes[0].post_consumed(0, epoch.wrapping_sub(1));
        let awaited = Awaited::Chunk { chunk: 0, from: 0 };
        self.mailboxes[0].await_signal(0, epoch, awaited, &mut Yield).unwrap();
        self.read(0, epoch);
        self.read(1, epoch);
    }
}

/// Loom's advice: two find most, three nearly all; the search grows exponentially.
const PREEMPTIONS: usize = 3;

/// What a thread does in one step.
type EachStep<const FORGETS: u8> = fn(&World<FORGETS>, u32);

/// Two threads for three steps (so a buffer is used again), in a world that is changed before.
fn two_threads<const FORGETS: u8>(
    operation: Operation,
    change: impl Fn(&World<FORGETS>) + Send + Sync + 'static,
    there: EachStep<FORGETS>,
    here: EachStep<FORGETS>,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(move || {
        let world = Arc::new(World::<FORGETS>::of(operation));
        change(&world);
        let steps = |world: &World<FORGETS>, each: EachStep<FORGETS>| {
            (1..=3).for_each(|step| each(world, BEFORE.wrapping_add(step)));
        };
        let other = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || steps(&world, there))
        };
        steps(&world, here);
        other.join().unwrap();
        assert!(!world.wrong.load(Ordering::Relaxed), "numbers of another epoch were read");
    });
}

/// Rank 0 sends, rank 1 receives.
fn one_sends_one_receives<const FORGETS: u8>(change: fn(&World<FORGETS>)) {
    let send = |world: &World<FORGETS>, epoch| {
        world.publish(epoch);
        world.push(epoch);
    };
    two_threads(Operation::AllGatherGemm, change, send, World::consume);
}

/// Rank 0's caller and its pusher: the own slot is written again only after it was sent.
fn caller_and_pusher<const FORGETS: u8>(change: fn(&World<FORGETS>)) {
    let change = move |world: &World<FORGETS>| {
        // Rank 1 is out of the picture: it has consumed everything in advance.
        world.mailboxes[0].post_consumed(1, LATER);
        change(world);
    };
    let push = |world: &World<FORGETS>, epoch| {
        // What the caller's channel orders in production, by the same signal here.
        world.endpoint(0, epoch).await_chunks(0..1, &mut Yield).unwrap();
        world.push(epoch);
    };
    two_threads(Operation::AllGatherGemm, change, push, World::publish);
}

/// Rank 1 sends its sums, rank 0 adds them up.
fn one_sends_sums_one_adds<const FORGETS: u8>(change: fn(&World<FORGETS>)) {
    let send = |world: &World<FORGETS>, epoch| {
        world.reduce(1, epoch, || ());
        world.push_sums(1, epoch);
    };
    let add = |world: &World<FORGETS>, epoch| {
        world.reduce(0, epoch, || ());
        let endpoint = world.endpoint(0, epoch);
        endpoint.push(&mut Yield, |_, _| unreachable!("it has nothing to send")).unwrap();
    };
    two_threads(Operation::GemmReduceScatter, change, send, add);
}

/// Rank 1's caller and its pusher: sums are sent after they are computed, and overwritten after they were sent.
fn caller_and_pusher_of_sums<const FORGETS: u8>(change: fn(&World<FORGETS>)) {
    let change = move |world: &World<FORGETS>| {
        // Rank 0 is out of the picture: it has consumed everything in advance.
        world.mailboxes[1].post_consumed(0, LATER);
        change(world);
    };
    let push = |world: &World<FORGETS>, epoch| world.push_sums(1, epoch);
    let reduce = |world: &World<FORGETS>, epoch| world.reduce(1, epoch, || ());
    two_threads(Operation::GemmReduceScatter, change, push, reduce);
}

/// Rank 1 sends its sums, rank 0 adds them up and sends the total, which rank 1 stores. No word acknowledges anything: what
/// a rank sends next says that it has read what came before. A rank's pusher takes its turn as soon as it has something to send.
fn sums_go_there_and_the_total_back<const FORGETS: u8>(change: fn(&World<FORGETS>)) {
    let store = |world: &World<FORGETS>, epoch| {
        world.reduce(1, epoch, || world.push_sums(1, epoch));
    };
    let add = |world: &World<FORGETS>, epoch| {
        world.reduce(0, epoch, || ());
        world.push_sums(0, epoch);
    };
    two_threads(Operation::GemmAllReduce, change, store, add);
}

/// What an `AsyncInput` and its writer do, with one chunk whose rows and scales are `rows[0]` and `rows[1]`.
fn one_writes_one_reads<const FORGETS: u8>(
    publish: EachStep<FORGETS>,
    change: fn(&World<FORGETS>),
) {
    two_threads(Operation::AllGatherGemm, change, publish, World::read_input);
}

/// Rows and scales, then the signal.
fn publish_scaled<const FORGETS: u8>(world: &World<FORGETS>, epoch: u32) {
    world.deliver(epoch, || {
        world.write(0, epoch);
        world.write(1, epoch);
    });
}

#[test]
fn rows_of_an_async_input_are_read_after_they_are_written_and_before_they_are_overwritten() {
    one_writes_one_reads::<NOTHING>(publish_scaled, |_| ());
}

#[test]
fn a_chunk_is_read_after_it_is_written_and_before_it_is_overwritten() {
    one_sends_one_receives::<NOTHING>(|_| ());
}

#[test]
fn the_own_slot_is_overwritten_after_it_was_sent() {
    caller_and_pusher::<NOTHING>(|_| ());
}

#[test]
fn sums_are_added_after_they_arrived_and_before_they_are_overwritten() {
    one_sends_sums_one_adds::<NOTHING>(|_| ());
}

#[test]
fn own_sums_are_sent_after_they_are_computed_and_overwritten_after_that() {
    caller_and_pusher_of_sums::<NOTHING>(|_| ());
}

#[test]
fn sums_and_a_total_are_read_after_they_arrived_and_before_they_are_overwritten() {
    sums_go_there_and_the_total_back::<NOTHING>(|_| ());
}

/// Loom finds a race in each mutant. Each has a thread of its own, which its panic ends.
fn are_caught<const MUTANTS: usize>(mutants: [(&str, fn()); MUTANTS]) {
    for (name, mutant) in mutants {
        let panic = std::thread::spawn(mutant).join().expect_err(name);
        let text = panic.downcast_ref::<String>().expect("loom's words");
        assert!(text.contains("ausality violation"), "{name}: {text}");
    }
}

#[test]
fn every_mutant_of_a_gather_is_caught() {
    are_caught([
        ("no release", || one_sends_one_receives::<RELEASE>(|_| ())),
        ("no acquire", || one_sends_one_receives::<ACQUIRE>(|_| ())),
        ("a signal before its data", || {
            one_sends_one_receives::<NOTHING>(|world| world.mailboxes[1].post_signal(0, LATER));
        }),
        ("no acknowledgement", || {
            one_sends_one_receives::<NOTHING>(|world| world.mailboxes[0].post_consumed(1, LATER));
        }),
        ("no wait for the pusher", || {
            caller_and_pusher::<NOTHING>(|world| world.mailboxes[0].post_sent(LATER));
        }),
    ]);
}

#[test]
fn every_mutant_of_a_reduction_is_caught() {
    are_caught([
        ("no release", || one_sends_sums_one_adds::<RELEASE>(|_| ())),
        ("no acquire", || one_sends_sums_one_adds::<ACQUIRE>(|_| ())),
        ("`partial` before the sums", || {
            one_sends_sums_one_adds::<NOTHING>(|world| {
                let partial = Word::Partial { chunk: 0, from: 1 };
                world.endpoint(1, BEFORE).post(partial, 0, LATER);
            });
        }),
        ("no acknowledgement", || {
            one_sends_sums_one_adds::<NOTHING>(|world| world.mailboxes[1].post_consumed(0, LATER));
        }),
        ("`summed` before the product", || {
            caller_and_pusher_of_sums::<NOTHING>(|world| {
                world.endpoint(1, BEFORE).post(Word::Summed { chunk: 0 }, 1, LATER);
            });
        }),
        ("no wait for the pusher", || {
            caller_and_pusher_of_sums::<NOTHING>(|world| world.mailboxes[1].post_sent(LATER));
        }),
    ]);
}

#[test]
fn every_mutant_of_an_all_reduce_is_caught() {
    are_caught([
        ("no release", || sums_go_there_and_the_total_back::<RELEASE>(|_| ())),
        ("no acquire", || sums_go_there_and_the_total_back::<ACQUIRE>(|_| ())),
        ("`partial` before the sums", || {
            sums_go_there_and_the_total_back::<NOTHING>(|world| {
                let sums = Word::Partial { chunk: 0, from: 1 };
                world.endpoint(1, BEFORE).post(sums, 0, LATER);
            });
        }),
        ("`partial` before the total", || {
            sums_go_there_and_the_total_back::<NOTHING>(|world| {
                let total = Word::Partial { chunk: 0, from: 0 };
                world.endpoint(0, BEFORE).post(total, 1, LATER);
            });
        }),
    ]);
}

#[test]
fn every_mutant_of_an_async_input_is_caught() {
    are_caught([
        ("no release", || one_writes_one_reads::<RELEASE>(publish_scaled, |_| ())),
        ("no acquire", || one_writes_one_reads::<ACQUIRE>(publish_scaled, |_| ())),
        ("a signal before the rows", || {
            let publish: EachStep<NOTHING> = |world, epoch| {
                world.deliver(epoch, || ());
                world.write(0, epoch);
                world.write(1, epoch);
            };
            one_writes_one_reads(publish, |_| ());
        }),
        ("a signal before the scales", || {
            let publish: EachStep<NOTHING> = |world, epoch| {
                world.deliver(epoch, || world.write(0, epoch));
                world.write(1, epoch);
            };
            one_writes_one_reads(publish, |_| ());
        }),
        ("no acknowledgement", || {
            one_writes_one_reads::<NOTHING>(publish_scaled, |world| {
                world.mailboxes[0].post_consumed(0, LATER);
            });
        }),
    ]);
}
