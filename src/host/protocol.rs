//! The signal and acknowledgement core: the only code that orders one rank's data before another's.
//!
//! Each rank owns a [`Mailbox`] that others write. Every word of it has one writer and carries an
//! **epoch**: it has reached an epoch when `word − epoch ≥ 0` in wrapping arithmetic, and nothing is ever reset.
//!
//! | word | written by | when | read by, before |
//! |---|---|---|---|
//! | `signals[slot]` | the pusher of the slot's rank; the owner's slots: its caller; in an `AsyncInput` a writer, under the chunk's lock | the chunk's rows are in the buffer | the owner's workers, reading the rows |
//! | `consumed[p]` | rank p's caller | p no longer reads its buffer of that epoch | the owner's pusher, overwriting p's buffer |
//! | `sent` | the owner's pusher | all sends of the epoch are done | the owner's caller, overwriting its own slot, or its sums |
//! | `summed[slot]`, of a reduction | the owner's caller | the owner's own sums of the chunk, or the total that it sends, are complete | the owner's pusher, reading them |
//! | `partial[p][piece]`, likewise | the pusher of rank p | p's sums of the chunk, or its total, are in the owner's slot for p | the owner's caller, adding or storing them |
//!
//! Why it is correct. *No early read*: a row is written, then its signal is stored (release); a
//! worker loads the signal (acquire) and then reads the row. *No overwrite*: a consumer's last read
//! precedes `consumed = e` (release); a pusher loads it (acquire) before it writes epoch e+2 into
//! that buffer. *No torn source*: a pusher's last read of the own slot precedes `sent = e`
//! (release); the caller loads it (acquire) before writing the slot for e+2. *No wait in a
//! circle*: in a gather, a wait for epoch e depends on a step of epoch e that no computation precedes, or on
//! one of epoch e−2; in a reduction, a rank computes all sums that others need before it waits for theirs.
//! (`plan::model` tries every order of the schedule that this code carries out; the orderings are argued in
//! `docs/protocol.md` and tried under loom and shuttle.)
//!
//! Callers await every chunk of e before `begin` of e+1, or end the operation. So the announcement of e implies that no
//! rank has anything left to write for it.
//!
//! `consumed = e` is posted when the caller *begins* epoch e+1, not when it ends epoch e. A peer
//! can use it at the earliest when pushing e+2, for which it mostly needs this rank's chunks of e+1
//! anyway; and the gathered input of e stays readable until the next step.
//!
//! The code is generic over [`AtomicWord`] and [`Patience`], so that what runs in production also runs
//! under loom and shuttle (`tests/protocol_loom.rs`, `tests/protocol_shuttle.rs`).
//!
//! Limit: a slot that is left unused for 2³¹ consecutive steps would count as signalled.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::plan::{BUFFERS, Chunks, Lane, Operation, Schedule, Step, Word};

/// A 32-bit atomic word: the seam between this protocol and the threads that run it.
pub trait AtomicWord: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u32) -> Self;
    /// Reads the word.
    fn load(&self, ordering: Ordering) -> u32;
    /// Writes the word.
    fn store(&self, value: u32, ordering: Ordering);
}

impl AtomicWord for AtomicU32 {
    fn new(value: u32) -> Self {
        AtomicU32::new(value)
    }

    fn load(&self, ordering: Ordering) -> u32 {
        AtomicU32::load(self, ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        AtomicU32::store(self, value, ordering);
    }
}

/// The awaited word, for the error of a wait that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The signal of a chunk, posted by rank `from`.
    Chunk {
        /// The chunk.
        chunk: u32,
        /// The rank that sends it.
        from: u32,
    },
    /// The announcement of rank `by` that it has consumed a buffer.
    Consumed {
        /// The consumer.
        by: u32,
    },
    /// The own pusher's completion of an earlier epoch.
    Sent,
    /// The own sums of a chunk, or the total that this rank sends.
    Summed {
        /// The chunk.
        chunk: u32,
    },
    /// The sums of rank `from` for a chunk that this rank adds up, or the total that it sends.
    Partial {
        /// The chunk.
        chunk: u32,
        /// The rank that sends them.
        from: u32,
    },
}

/// The action between two looks at a word that has not reached its epoch.
pub trait Patience {
    /// The reason why the wait ended.
    type Error;

    /// Returns to look again, or gives up.
    fn pause(&mut self, awaited: Awaited, epoch: u32, seen: u32) -> Result<(), Self::Error>;
}

/// Whether a word that holds `seen` has reached `epoch`, across the wrap at 2³².
///
/// ```
/// use overlap_gemm::host::protocol::reached;
/// assert!(reached(7, 7) && !reached(6, 7));
/// assert!(reached(0, u32::MAX)); // the epoch after it
/// ```
pub fn reached(seen: u32, epoch: u32) -> bool {
    seen.wrapping_sub(epoch) as i32 >= 0
}

/// The signal slots of a rank's mailbox: one a chunk of all ranks; where sums travel, also one for each rank's sums of each
/// chunk.
pub fn signal_slots(operation: Operation, slots_per_rank: u32, ranks: u32) -> u32 {
    let kinds = if operation.reduces() { 1 + ranks } else { 1 };
    kinds * slots_per_rank * ranks
}

/// The words of one rank that other threads write.
///
/// ```
/// use overlap_gemm::host::protocol::{Awaited, Mailbox, Patience};
/// use std::sync::atomic::AtomicU32;
///
/// struct OneLook;
/// impl Patience for OneLook {
///     type Error = Awaited;
///     fn pause(&mut self, awaited: Awaited, _: u32, _: u32) -> Result<(), Awaited> {
///         Err(awaited)
///     }
/// }
///
/// let own = Mailbox::<AtomicU32>::new(4, 2, 0); // four chunks, two ranks; epoch 1 comes next
/// let chunk = Awaited::Chunk { chunk: 3, from: 1 };
/// assert_eq!(own.await_signal(3, 1, chunk, &mut OneLook), Err(chunk));
/// own.post_signal(3, 1); // by rank 1, behind the chunk's rows
/// assert_eq!(own.await_signal(3, 1, chunk, &mut OneLook), Ok(()));
/// ```
#[derive(Debug)]
pub struct Mailbox<W> {
    /// One a signal slot.
    signals: Box<[W]>,
    /// One a consumer.
    consumed: Box<[W]>,
    sent: W,
}

impl<W: AtomicWord> Mailbox<W> {
    /// A mailbox in which everything up to and including `epoch` counts as done.
    pub fn new(slots: u32, ranks: u32, epoch: u32) -> Self {
        let words = |count: u32| (0..count).map(|_| W::new(epoch)).collect();
        Mailbox { signals: words(slots), consumed: words(ranks), sent: W::new(epoch) }
    }

    /// The rows of `slot`'s chunk are in the owner's buffer.
    pub fn post_signal(&self, slot: u32, epoch: u32) {
        // Release: the rows come first. Partner: `await_signal`.
        self.signals[slot as usize].store(epoch, Ordering::Release);
    }

    /// Waits for the rows of `slot`'s chunk.
    pub fn await_signal<P: Patience>(
        &self,
        slot: u32,
        epoch: u32,
        awaited: Awaited,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        // Acquires the rows. Partner: `post_signal`.
        wait_for(&self.signals[slot as usize], epoch, awaited, patience)
    }

    /// Posts to the owner of this mailbox that rank `consumer` no longer reads its buffer of `epoch`.
    pub fn post_consumed(&self, consumer: u32, epoch: u32) {
        // Release: the reads come first. Partner: `await_consumed`.
        self.consumed[consumer as usize].store(epoch, Ordering::Release);
    }

    /// Waits until rank `consumer` reads its buffer of `epoch` no more.
    pub fn await_consumed<P: Patience>(
        &self,
        consumer: u32,
        epoch: u32,
        awaited: Awaited,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        // Acquires the consumer's last reads. Partner: `post_consumed`.
        wait_for(&self.consumed[consumer as usize], epoch, awaited, patience)
    }

    /// A producer that writes into the owner's buffer itself: waits until `consumer` reads the buffer
    /// that `epoch` takes over no more, lets `write` fill in the chunk's rows and all that travels with
    /// them, and signals the chunk.
    pub fn deliver<P: Patience>(
        &self,
        slot: u32,
        consumer: u32,
        epoch: u32,
        awaited: Awaited,
        patience: &mut P,
        write: impl FnOnce(),
    ) -> Result<(), P::Error> {
        self.await_consumed(consumer, epoch.wrapping_sub(BUFFERS), awaited, patience)?;
        write();
        self.post_signal(slot, epoch);
        Ok(())
    }

    /// The owner's pusher reads the own slot of `epoch` no more.
    pub fn post_sent(&self, epoch: u32) {
        // Release: the reads come first. Partner: `await_sent`.
        self.sent.store(epoch, Ordering::Release);
    }

    /// Waits until the owner's pusher reads the own slot of `epoch` no more.
    pub fn await_sent<P: Patience>(&self, epoch: u32, patience: &mut P) -> Result<(), P::Error> {
        // Acquires the pusher's last reads. Partner: `post_sent`.
        wait_for(&self.sent, epoch, Awaited::Sent, patience)
    }
}

/// One rank's part in one step: its schedule, and all mailboxes.
#[derive(Debug)]
pub struct Endpoint<'a, W> {
    /// The epoch of the step.
    pub epoch: u32,
    /// What this rank does.
    pub schedule: &'a Schedule,
    /// Whose chunks are whose.
    pub chunks: &'a Chunks,
    /// Signal slots a rank.
    pub slots_per_rank: u32,
    /// The mailboxes of all ranks.
    pub mailboxes: &'a [Mailbox<W>],
}

impl<W: AtomicWord> Endpoint<'_, W> {
    /// Caller: what comes before the own rows: announces that the previous epoch's buffer is no longer read, then waits
    /// until the own slot of this epoch's buffer may be written. May be repeated.
    pub fn begin<P: Patience>(&self, patience: &mut P) -> Result<(), P::Error> {
        let before = self.opening().take_while(|step| !matches!(step, Step::Move { .. }));
        self.carry_out(before, patience, |_, _| ())
    }

    /// Caller: writes the own chunks into the own buffer (`copy(chunk, rank)`) and signals them to the own workers; in a
    /// reduction without a product, the sums of all chunks, and to the pusher.
    pub fn publish<P: Patience>(
        &self,
        patience: &mut P,
        copy: impl FnMut(u32, u32),
    ) -> Result<(), P::Error> {
        let own = self.opening().skip_while(|step| !matches!(step, Step::Move { .. }));
        self.carry_out(own, patience, copy)
    }

    /// Pusher: sends to the other ranks; `copy(chunk, to)` moves the rows.
    pub fn push<P: Patience>(
        &self,
        patience: &mut P,
        copy: impl FnMut(u32, u32),
    ) -> Result<(), P::Error> {
        self.carry_out(self.schedule.lane(Lane::Push(0)), patience, copy)
    }

    /// Worker: waits until all of `chunks` are in the own buffer.
    pub fn await_chunks<P: Patience>(
        &self,
        mut chunks: impl Iterator<Item = u32>,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        chunks.try_for_each(|chunk| self.await_word(Word::Landed { chunk }, 0, patience))
    }

    /// The steps of the caller's lane from the first that computes, or waits for rows or sums, on.
    pub fn after_opening(&self) -> impl Iterator<Item = &Step> + use<'_, W> {
        self.schedule.lane(Lane::Compute).skip(self.opening().count())
    }

    /// The steps of the caller's lane that come before it computes anything, or waits for rows or sums.
    fn opening(&self) -> impl Iterator<Item = &Step> {
        let computes = |step: &&Step| match step {
            Step::Multiply { .. } | Step::Reduce { .. } => true,
            Step::Await { word: Word::Landed { .. } | Word::Partial { .. }, .. } => true,
            Step::Await { .. } | Step::Post { .. } | Step::Move { .. } => false,
        };
        self.schedule.lane(Lane::Compute).take_while(move |step| !computes(step))
    }

    fn carry_out<'s, P: Patience>(
        &self,
        steps: impl Iterator<Item = &'s Step>,
        patience: &mut P,
        mut copy: impl FnMut(u32, u32),
    ) -> Result<(), P::Error> {
        for step in steps {
            match *step {
                Step::Await { word, age } => self.await_word(word, age, patience)?,
                Step::Move { chunk, to } => copy(chunk, to),
                Step::Post { word, to, age } => self.post(word, to, self.epoch.wrapping_sub(age)),
                // The workers': `opening` ends before them, and nothing else has any.
                Step::Multiply { .. } | Step::Reduce { .. } => {}
            }
        }
        Ok(())
    }

    /// Waits until a word of this rank has reached the epoch, minus `age`.
    pub fn await_word<P: Patience>(
        &self,
        word: Word,
        age: u32,
        patience: &mut P,
    ) -> Result<(), P::Error> {
        let (own, epoch) =
            (&self.mailboxes[self.schedule.rank as usize], self.epoch.wrapping_sub(age));
        match word {
            Word::Landed { chunk } => {
                let awaited = Awaited::Chunk { chunk, from: self.chunks.rank_of(chunk) };
                own.await_signal(self.slot(chunk), epoch, awaited, patience)
            }
            Word::Summed { chunk } => {
                own.await_signal(self.slot(chunk), epoch, Awaited::Summed { chunk }, patience)
            }
            Word::Partial { chunk, from } => {
                let awaited = Awaited::Partial { chunk, from };
                own.await_signal(self.partial_slot(chunk, from), epoch, awaited, patience)
            }
            Word::Consumed { by } => {
                own.await_consumed(by, epoch, Awaited::Consumed { by }, patience)
            }
            Word::Sent { .. } => own.await_sent(epoch, patience),
            // A GPU's; no thread has such a step.
            Word::Begun => Ok(()),
        }
    }

    /// Sets a word of rank `to` to `epoch`.
    pub fn post(&self, word: Word, to: u32, epoch: u32) {
        let mailbox = &self.mailboxes[to as usize];
        match word {
            Word::Landed { chunk } | Word::Summed { chunk } => {
                mailbox.post_signal(self.slot(chunk), epoch);
            }
            Word::Partial { chunk, from } => {
                mailbox.post_signal(self.partial_slot(chunk, from), epoch);
            }
            Word::Consumed { by } => mailbox.post_consumed(by, epoch),
            Word::Sent { .. } => mailbox.post_sent(epoch),
            Word::Begun => {}
        }
    }

    /// Behind the slots of all chunks: as many again of each rank.
    fn partial_slot(&self, chunk: u32, from: u32) -> u32 {
        (1 + from) * self.mailboxes.len() as u32 * self.slots_per_rank + self.slot(chunk)
    }

    fn slot(&self, chunk: u32) -> u32 {
        self.chunks.signal_slot(chunk, self.slots_per_rank)
    }
}

/// Looks at `word` until it has reached `epoch`. The load that saw it is an acquire.
fn wait_for<W: AtomicWord, P: Patience>(
    word: &W,
    epoch: u32,
    awaited: Awaited,
    patience: &mut P,
) -> Result<(), P::Error> {
    loop {
        let seen = word.load(Ordering::Acquire);
        if reached(seen, epoch) {
            return Ok(());
        }
        patience.pause(awaited, epoch, seen)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reached_is_right_across_the_wrap(epoch: u32, ahead in 0u32..1 << 31, behind in 1u32..1 << 31) {
            prop_assert!(reached(epoch.wrapping_add(ahead), epoch));
            prop_assert!(!reached(epoch.wrapping_sub(behind), epoch));
        }
    }
}
