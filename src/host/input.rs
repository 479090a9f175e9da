//! An input that the caller's own threads fill, chunk by chunk, while it is multiplied.
//!
//! An [`AsyncInput`] is the consumer's end, [`ChunkWriter`]s are the producers'. Steps count from 0;
//! every chunk is published once a step, by any thread, in any order, and no sooner than its buffer
//! is free. Invariant: one writer at a time a chunk, steps in order a chunk (a lock a chunk holds
//! the last step published), so a signal has one writer and never runs backwards.

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::control::{Aborter, Control, Watch};
use super::memory::{RowBuffer, ScaledRows, buffer_of, check_memory};
use super::protocol::{AtomicWord, Awaited, Mailbox};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::check_scales;
use crate::plan::{BUFFERS, Plan, Timeouts};
use crate::sync::lock;

/// The epoch before step 0.
const BEFORE_FIRST: u32 = 0;

/// The only consumer's place in the mailbox.
const CONSUMER: u32 = 0;

/// What the consumer and the producers share; `W` is a word that tests look into.
#[derive(Debug)]
struct Shared<A, W = AtomicU32> {
    plan: Plan,
    rows: [ScaledRows<A>; BUFFERS as usize],
    /// How many rows of each chunk the producer gave; travels with the rows.
    given: [RowBuffer<u32>; BUFFERS as usize],
    mailbox: Mailbox<W>,
    /// The epoch that each chunk was last published for.
    published: Box<[Mutex<u32>]>,
    control: Arc<Control>,
    /// How many writers there are; without any, the sources have departed.
    writers: Mutex<u32>,
}

impl<A, W> Shared<A, W> {
    /// The consumer's number in errors: the sources are ranks, and it counts as the one after them.
    fn consumer(&self) -> u32 {
        self.plan.problem().ranks()
    }

    /// Counts a writer more or less, and posts to the consumer whether any writer is left.
    fn count_writers(&self, change: i32) {
        let mut writers = lock(&self.writers);
        *writers = writers.saturating_add_signed(change);
        for source in 0..self.consumer() {
            self.control.set_departed(source, *writers == 0);
        }
    }
}

impl<A: Element, W: AtomicWord> Shared<A, W> {
    fn new(plan: &Plan, timeouts: Timeouts) -> Result<Self> {
        let problem = plan.problem();
        let bytes = u128::from(BUFFERS) * problem.row_bytes(&(0..problem.m()));
        check_memory("the input, twice,", bytes)?;
        let chunks = plan.chunks().len();
        Ok(Shared {
            plan: plan.clone(),
            rows: ScaledRows::buffers(problem),
            given: std::array::from_fn(|_| RowBuffer::new(chunks as usize, 1, 0)),
            mailbox: Mailbox::new(chunks, CONSUMER + 1, BEFORE_FIRST),
            published: (0..chunks).map(|_| Mutex::new(BEFORE_FIRST)).collect(),
            control: Arc::new(Control::new(problem.ranks() + 1, timeouts)),
            writers: Mutex::new(0),
        })
    }

    /// Waits until the buffer is free, writes the rows of `chunk` and all that travels with them, signals.
    fn publish(&self, step: u32, chunk: u32, rows: &[A], scales: &[f32]) -> Result<()> {
        let chunks = self.plan.chunks();
        let Some(published) = self.published.get(chunk as usize) else {
            let (value, max) = (chunk.into(), u64::from(chunks.len()) - 1);
            return Err(Error::out_of_range("chunk", value, 0, max, "see the plan for its chunks"));
        };
        let place = chunks.rows(chunk);
        let given = self.check_rows(place.len(), rows, scales)?;
        let place = place.start..place.start + given;

        let epoch = BEFORE_FIRST.wrapping_add(1).wrapping_add(step);
        let mut published = lock(published);
        let next = published.wrapping_sub(BEFORE_FIRST);
        if step != next {
            let what = format!("the step that chunk {chunk} is published for");
            let remedy = "publish every chunk once in every step, in the order of the steps";
            return Err(Error::mismatch(what, step, next, remedy));
        }
        let consumed = Awaited::Consumed { by: self.consumer() };
        let mut watch = self.control.patience(chunks.rank_of(chunk), epoch, step == 0);
        self.mailbox.deliver(chunk, CONSUMER, epoch, consumed, &mut watch, || {
            // SAFETY: the lock makes this the chunk's only writer; its last reader has consumed it; the
            // next reads it after the signal.
            unsafe {
                let all = &self.rows[buffer_of(epoch)];
                all.rows.rows_mut(place.clone()).copy_from_slice(rows);
                self.given[buffer_of(epoch)].rows_mut(chunk..chunk + 1)[0] = given;
                if let Some(all) = &all.scales {
                    all.rows_mut(place).copy_from_slice(scales);
                }
            }
        })?;
        *published = epoch;
        Ok(())
    }

    /// How many rows there are; an error if they are not whole, too many, or not scaled as planned.
    fn check_rows(&self, most: usize, rows: &[A], scales: &[f32]) -> Result<u32> {
        let k = self.plan.problem().k() as usize;
        let given = rows.len() / k;
        if !rows.len().is_multiple_of(k) || given > most {
            let remedy = "give whole rows, packed, and no more than the chunk has";
            let expected = format!("a multiple of {k}, at most {}", most * k);
            return Err(Error::mismatch("the number of elements", rows.len(), expected, remedy));
        }
        let scaled = if self.rows[0].scales.is_some() { given } else { 0 };
        check_scales("the row scales of a chunk", scales, scaled)?;
        Ok(given as u32)
    }
}

/// An input of two buffers that [`ChunkWriter`]s fill and an `AsyncGemm` reads.
///
/// In errors the sources are the problem's ranks, and the consumer counts as the rank after them.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::{AsyncGemm, Stream};
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let mut gemm = AsyncGemm::<f32>::plan(&problem, PlanOptions::default().with_pieces(1), 0)?;
/// let mut input = gemm.input()?;
/// input.writer().publish(0, 0, &[1.0, 2.0, 3.0, 4.0])?;
/// let mut d = [0.0; 2];
/// gemm.enqueue(&Stream::new(1)?, &mut input, &[1.0, 1.0], &mut d)?;
/// assert_eq!(d, [3.0, 7.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncInput<A> {
    shared: Arc<Shared<A>>,
    /// The epoch of the latest step.
    epoch: u32,
    /// The error that ended the operation, once a step has returned it.
    over: Option<Error>,
}

/// Fills an [`AsyncInput`]; clone it for every thread that does.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::host::AsyncGemm;
/// use overlap_gemm::plan::{PlanOptions, Problem};
///
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).build()?;
/// let gemm = AsyncGemm::<f32>::plan(&problem, PlanOptions::default().with_pieces(1), 0)?;
/// let input = gemm.input()?;
/// let writer = input.writer();
/// let rows = writer.plan().chunks().rows(0);
/// assert_eq!(rows, 0..2);
/// writer.publish(0, 0, &[1.0, 2.0, 3.0, 4.0])?; // step 0, chunk 0: copies, then signals
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Debug)]
pub struct ChunkWriter<A> {
    shared: Arc<Shared<A>>,
}

impl<A> Clone for ChunkWriter<A> {
    fn clone(&self) -> Self {
        self.shared.count_writers(1);
        ChunkWriter { shared: Arc::clone(&self.shared) }
    }
}

impl<A> Drop for ChunkWriter<A> {
    /// A step that waits for a chunk ends once no writer is left.
    fn drop(&mut self) {
        self.shared.count_writers(-1);
    }
}

impl<A> Drop for AsyncInput<A> {
    /// A writer that waits for a buffer ends once no consumer is left.
    fn drop(&mut self) {
        self.shared.control.set_departed(self.shared.consumer(), true);
    }
}

impl<A: Element> AsyncInput<A> {
    pub(crate) fn new(plan: &Plan, timeouts: Timeouts) -> Result<Self> {
        let shared = Arc::new(Shared::new(plan, timeouts)?);
        Ok(AsyncInput { shared, epoch: BEFORE_FIRST, over: None })
    }

    /// A handle for a producer.
    pub fn writer(&self) -> ChunkWriter<A> {
        self.shared.count_writers(1);
        ChunkWriter { shared: Arc::clone(&self.shared) }
    }

    /// Ends the step in progress, and every later one, from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter::new(&self.shared.control)
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Begins the next step: the previous one's buffer may be filled again.
    pub(crate) fn begin(&mut self) -> Result<u32> {
        if let Some(cause) = &self.over {
            return Err(Error::over(self.shared.consumer(), cause));
        }
        self.shared.control.check(self.shared.consumer(), self.epoch.wrapping_add(1))?;
        self.shared.mailbox.post_consumed(CONSUMER, self.epoch);
        self.epoch = self.epoch.wrapping_add(1);
        Ok(self.epoch)
    }

    pub(crate) fn rows(&self) -> &ScaledRows<A> {
        &self.shared.rows[buffer_of(self.epoch)]
    }

    pub(crate) fn watch(&self) -> Watch<'_> {
        let first_step = self.epoch == BEFORE_FIRST.wrapping_add(1);
        self.shared.control.patience(self.shared.consumer(), self.epoch, first_step)
    }

    /// A step returned `error`: later ones report that the operation is over.
    pub(crate) fn end_with(&mut self, error: &Error) {
        self.over.get_or_insert_with(|| error.clone());
    }

    /// Ends the operation, whenever it is called.
    pub(crate) fn ender(&self) -> impl FnOnce(Error) + use<A> {
        let (control, consumer) = (Arc::clone(&self.shared.control), self.shared.consumer());
        move |error| control.fail(Some(consumer), None, error)
    }

    fn fail(&self, error: Error) {
        self.shared.control.fail(Some(self.shared.consumer()), None, error);
    }

    /// Waits for `chunks`, and checks that the producers gave all rows before `m`.
    pub(crate) fn await_chunks(
        &self,
        mut chunks: Range<u32>,
        m: u32,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let all = self.shared.plan.chunks();
        let waited = chunks.try_for_each(|chunk| {
            let awaited = Awaited::Chunk { chunk, from: all.rank_of(chunk) };
            self.shared.mailbox.await_signal(chunk, self.epoch, awaited, watch)?;
            let rows = all.rows(chunk);
            let needed = rows.end.min(m).saturating_sub(rows.start);
            // SAFETY: acquired with the chunk's signal.
            let given =
                unsafe { self.shared.given[buffer_of(self.epoch)].rows(chunk..chunk + 1) }[0];
            // A producer need not know how many rows the step reads, so it may give more. They lie
            // where the plan puts them, and are not read.
            if given >= needed {
                return Ok(());
            }
            let what = format!("the rows published of chunk {chunk}");
            let remedy = "publish all rows of the chunk that the step reads";
            Err(Error::mismatch(what, given, format!("at least {needed}"), remedy))
        });
        waited.inspect_err(|error| self.fail(error.clone()))
    }
}

impl<A: Element> ChunkWriter<A> {
    /// The plan of the input: which rows each chunk has.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Publishes the first rows of `chunk` for `step` (from 0), packed: whole rows, and at most as many
    /// as the chunk has. Waits until the buffer they go to is free, which it is once step − 2 has been
    /// consumed.
    ///
    /// Every chunk is published in every step: where a step is shorter than the plan, with fewer
    /// rows or none. A step that reads more rows of a chunk than were published fails.
    pub fn publish(&self, step: u32, chunk: u32, rows: &[A]) -> Result<()> {
        self.publish_scaled(step, chunk, rows, &[])
    }

    /// The same with a scale a row, for plans that have them: exactly as many scales as rows.
    pub fn publish_scaled(&self, step: u32, chunk: u32, rows: &[A], scales: &[f32]) -> Result<()> {
        self.shared.publish(step, chunk, rows, scales)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::element::ElementType::{Bf16, E4m3};
    use crate::element::F8E4M3;
    use crate::plan::{PlanOptions, Problem, Scaling, Tiling};
    use crate::random::Random;

    type Look = Box<dyn Fn(u32)>;

    thread_local! {
        /// Called with the epoch of every signal, before it is stored.
        static AT_SIGNAL: RefCell<Option<Look>> = const { RefCell::new(None) };
        static SIGNALS: Cell<u32> = const { Cell::new(0) };
    }

    /// A word that lets the test look at the buffers right before it is stored.
    struct Looking(AtomicU32);

    impl AtomicWord for Looking {
        fn new(value: u32) -> Self {
            Looking(AtomicU32::new(value))
        }

        fn load(&self, ordering: Ordering) -> u32 {
            self.0.load(ordering)
        }

        fn store(&self, value: u32, ordering: Ordering) {
            AT_SIGNAL.with_borrow(|look| look.iter().for_each(|look| look(value)));
            self.0.store(value, ordering);
        }
    }

    /// A thread that sees the signal may read rows, scales and their number, so they are written first.
    #[test]
    fn all_of_a_chunk_is_written_when_it_is_signalled() {
        let builder = Problem::builder(7, 4, 5).elements(E4m3, E4m3, Bf16).scaling(Scaling::Rows);
        let options = PlanOptions::new().with_pieces(1).with_tiling(Tiling::of_tile(8, 8));
        let plan = Plan::new(&builder.build().unwrap(), options).unwrap();
        let shared = Arc::new(Shared::<F8E4M3, Looking>::new(&plan, Timeouts::default()).unwrap());
        let mut random = Random::new(3);
        for step in 0..2 {
            let given = 7 - step;
            let rows: Vec<F8E4M3> = random.elements(u64::from(given) * 5);
            let scales = random.scales(given as usize);
            let (written, all, all_scales) = (Arc::clone(&shared), rows.clone(), scales.clone());
            let look = move |epoch| {
                let at = buffer_of(epoch);
                // SAFETY: one thread, which writes nothing while it looks.
                unsafe {
                    let bits = |rows: &[F8E4M3]| -> Vec<u32> {
                        rows.iter().map(|element| element.widen().to_bits()).collect()
                    };
                    assert_eq!(bits(written.rows[at].rows.rows(0..given)), bits(&all));
                    let scales = written.rows[at].scales.as_ref().unwrap();
                    assert_eq!(scales.rows(0..given), all_scales);
                    assert_eq!(written.given[at].rows(0..1), [given]);
                }
                SIGNALS.set(SIGNALS.get() + 1);
            };
            AT_SIGNAL.set(Some(Box::new(look)));
            shared.publish(step, 0, &rows, &scales).unwrap();
            AT_SIGNAL.set(None);
        }
        assert_eq!(SIGNALS.get(), 2);
    }
}
