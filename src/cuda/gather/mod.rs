//! A rank's part in an all-gather between GPUs: its memory, its pushes, its steps.
//!
//! What belongs here: carrying out [`plan::Transfers`](crate::plan::Transfers) with copy engines and
//! kernels. What is multiplied is none of its business. A step is, on the caller's stream:
//!
//! ```text
//!   copy the shard into its slot (unless it is there) ── begin ──┬── whatever reads the rows ── next begin
//!                                                                └── pushes, other streams ──┘
//! ```
//!
//! `begin` is a kernel (`csrc/gather.cu`): it announces the step, and waits until this rank may push, and until
//! what it sent before is sent. Small shards it pushes itself. So the order of the stream alone says when
//! the own slot of the next but one step may be written.
//!
//! In a graph the epoch is known to the device alone, so streams set toggles in place of epochs, and they are
//! joined at the end of each step. What was captured once may be launched at any time; so from then on
//! toggles are used outside of graphs, too.
//!
//! Invariants: nothing that needs an SM comes behind what waits for it; a step enqueues and never
//! waits or allocates; after a failure every rank is told, and nothing more is called right.

mod layout;
mod options;

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent_flags, CUstreamWaitValue_flags};
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr as _, result};

pub use options::{Engine, GatherOptions, SMALL_SHARD};

use super::call::{Chunk, GatherStep, GatherWords, Input, Push, TOGGLE_SET};
use super::device::Device;
use super::signals::{EPOCH_AT, SIGNALS_AT, Signals, Waiter, other_layout};
use super::symmetric::SymmetricMemory;
use super::workspace::is_capturing;
use super::{MAX_CHUNKS, MAX_PUSHED, driver_error, ffi};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{BUFFERS, Plan, PlanOptions, Problem, Tiling};
use layout::{Layout, MOST_SENDERS, SCRATCH_AT, SENT_AT, TOGGLE_EPOCH_AT};

/// Pieces of a shard are no smaller than this by default: each costs a copy engine some microseconds.
const SMALLEST_PIECE: u64 = 8 << 20;
/// More pieces than this gain nothing.
const MOST_PIECES: u64 = 2;

/// One rank's handle on the operation.
#[derive(Debug)]
pub(super) struct Gatherer {
    /// Dropped first: it waits for the streams that use the memory.
    signals: Signals,
    group: Arc<Group>,
    device: Device,
    plan: Arc<Plan>,
    options: GatherOptions,
    engine: Engine,
    layout: Layout,
    memory: Arc<SymmetricMemory>,
    table: Table,
    pushers: Vec<Pusher>,
    begun: CudaEvent,
    shapes: Vec<Arc<StepShape>>,
    /// The buffer of the next step, and the epoch of the latest one as far as this side has counted.
    next_buffer: u32,
    epoch: u32,
    /// A step was captured: from then on only the device knows the epoch.
    captured: bool,
    first_is_over: bool,
    latest: Option<Arc<StepShape>>,
    failed: Option<Error>,
}

/// Device memory that the gather's kernels need: where the ranks' words are, and counters.
#[derive(Debug)]
struct Table {
    _words: CudaSlice<u64>,
    _counters: CudaSlice<u32>,
    words: CUdeviceptr,
    counters: CUdeviceptr,
}

/// A stream that pushes, and the event at the end of its pushes.
#[derive(Debug)]
struct Pusher {
    stream: Arc<CudaStream>,
    sent: CudaEvent,
}

/// What does not change between steps with the same rows.
#[derive(Debug)]
pub(super) struct StepShape {
    pub(super) plan: Plan,
    chunks: Box<[Chunk]>,
    pivot_row: i32,
    pushes: [Vec<Push>; BUFFERS as usize],
    /// What ranks compare: the same only if rows and buffer are.
    tags: [u32; BUFFERS as usize],
}

/// A step that has begun.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) shape: Arc<StepShape>,
    pub(super) buffer: u32,
    /// Streams push, and have to be joined: in a graph.
    joins: bool,
    /// Toggles say what is here, not signals.
    toggled: bool,
}

/// What one rank brings: its rows, and their scales where the plan has row scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRows {
    /// 0: they are in their slot already.
    pub(super) rows: CUdeviceptr,
    pub(super) scales: CUdeviceptr,
}

impl Gatherer {
    /// Joins the operation: all ranks call it with the same. `kind` says what it is for, `tiling` how the
    /// rows will be read.
    pub(super) fn join(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        tiling: Tiling,
        kind: &str,
        options: &GatherOptions,
    ) -> Result<Self> {
        let limit = options.first_limit;
        let planned = plan(group, problem, tiling, options);
        agree(group, kind, problem, options, planned.as_ref().err(), limit)?;
        let plan = Arc::new(planned?);
        let layout = Layout::new(problem, plan.chunks().most_per_rank())?;
        let memory = Arc::new(SymmetricMemory::new(group, device, layout.bytes(), limit)?);
        let made = Self::make(group, device, &plan, options, layout, memory);
        let gatherer = made.inspect_err(|error| {
            group.abort(&format!("rank {} cannot plan a gather: {error}", group.rank()));
        })?;
        // Nobody may write here before the words are there.
        group.barrier("a gather is planned", limit)?;
        gatherer.try_the_way()?;
        group.barrier("a gather can begin", limit)?;
        Ok(gatherer)
    }

    fn make(
        group: &Arc<Group>,
        device: &Device,
        plan: &Arc<Plan>,
        options: &GatherOptions,
        layout: Layout,
        memory: Arc<SymmetricMemory>,
    ) -> Result<Self> {
        device.bind()?;
        let words = layout.first_words(options.first_epoch);
        let bytes = layout.bytes() as usize;
        // SAFETY: this rank's part is so long, and nobody writes to it before the barrier.
        unsafe {
            result::memset_d8_sync(memory.own_address(), 0xff, bytes)
                .and_then(|()| result::memcpy_htod_sync(memory.own_address(), &words))
        }
        .map_err(|error| driver_error("cuMemcpyHtoD", error))?;
        let signals = Signals::shared(device, &memory, layout.slots(), options.first_epoch)?;
        let host = Arc::downgrade(signals.host());
        group.on_end(move |_| {
            if let Some(host) = host.upgrade() {
                host.set_abort(true);
            }
        });

        let stream = device.new_stream()?;
        let addresses: Vec<u64> =
            (0..group.ranks()).map(|rank| memory.address(rank)).collect::<Result<_>>()?;
        let table = Table::new(&stream, &addresses)?;
        let engine = choose(options.engine, plan.problem())?;
        let event = || {
            let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let event = device.context().new_event(Some(untimed));
            event.map_err(|error| driver_error("cuEventCreate", error))
        };
        let pushers = match engine {
            Engine::CopyEngines { streams } => streams,
            _ => 1,
        };
        let pusher = |_| Ok(Pusher { stream: device.new_stream()?, sent: event()? });
        let pushers = (0..pushers).map(pusher).collect::<Result<_>>()?;
        let begun = event()?;
        let first = StepShape::new(plan, &layout, group.rank())?;
        Ok(Gatherer {
            signals,
            group: Arc::clone(group),
            device: device.clone(),
            plan: Arc::clone(plan),
            options: options.clone(),
            engine,
            layout,
            memory,
            table,
            pushers,
            begun,
            shapes: vec![Arc::new(first)],
            next_buffer: 0,
            epoch: options.first_epoch,
            captured: false,
            first_is_over: false,
            latest: None,
            failed: None,
        })
    }

    /// First uses of a way to a peer take milliseconds, and may wait for what waits for them.
    fn try_the_way(&self) -> Result<()> {
        let scratch = Layout::word(SCRATCH_AT);
        for pusher in &self.pushers {
            for peer in (0..self.group.ranks()).filter(|peer| *peer != self.group.rank()) {
                let to = self.memory.address(peer)? + scratch;
                copy(&pusher.stream, to, self.memory.own_address() + scratch, 16)?;
                write(&pusher.stream, to, 0)?;
            }
            pusher
                .stream
                .synchronize()
                .map_err(|error| driver_error("cuStreamSynchronize", error))?;
        }
        Ok(())
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Who moves the rows: never [`Engine::Auto`].
    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// The shape of a step with these rows (default: as planned).
    pub(super) fn shape(&mut self, rows: Option<&[u32]>) -> Result<Arc<StepShape>> {
        /// Few: a caller alternates between some shapes, at most.
        const KEPT: usize = 16;
        let Some(rows) = rows else { return Ok(Arc::clone(&self.shapes[0])) };
        let same = |shape: &&Arc<StepShape>| {
            let shards = shape.plan.problem().shards();
            shards.to_rows() == rows
        };
        if let Some(known) = self.shapes.iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let plan = self.plan.for_rows(rows)?;
        let shape = Arc::new(StepShape::new(&plan, &self.layout, self.group.rank())?);
        if self.shapes.len() == KEPT {
            self.shapes.remove(1);
        }
        self.shapes.push(Arc::clone(&shape));
        Ok(shape)
    }

    /// Where this rank's rows of the next step belong, if that has these rows: how much room there is, too.
    pub(super) fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<(CUdeviceptr, u64)> {
        let shape = self.shape(rows)?;
        let own = shape.plan.problem().shards().rows(self.group.rank());
        let at = self.memory.own_address() + self.layout.row(self.next_buffer, own.start);
        Ok((at, self.layout.rows_bytes(own.len() as u32)))
    }

    /// Begins the next step on `stream`, and pushes this rank's rows.
    ///
    /// # Safety
    /// What `own` names is this device's memory, as long as the shape says, written before in the order of
    /// `stream` and left alone until the step has ended.
    pub(super) unsafe fn begin(
        &mut self,
        stream: &Arc<CudaStream>,
        shape: &Arc<StepShape>,
        own: OwnRows,
    ) -> Result<Step> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.group.check().inspect_err(|error| self.failed = Some(error.clone()))?;
        self.signals.begin(stream)?;
        let capturing = is_capturing(stream)?;
        if capturing && !self.captured {
            // From now on no step waits for what plain steps have sent.
            for pusher in &self.pushers {
                let waited = pusher.stream.synchronize();
                waited.map_err(|error| driver_error("cuStreamSynchronize", error))?;
            }
            self.captured = true;
        }
        let buffer = self.next_buffer;
        let rank = self.group.rank();
        if self.options.poison {
            self.poison(stream)?;
        }
        self.bring(stream, shape, buffer, own)?;
        let pushes = &shape.pushes[buffer as usize][..];
        let by_kernel = matches!(self.engine, Engine::Kernel { .. });
        let (pushed, blocks) = match self.engine {
            Engine::Kernel { blocks } if self.group.ranks() > 1 => (pushes, blocks),
            _ => (&pushes[..0], 1),
        };
        let begin = GatherStep {
            buffer,
            layout: shape.tags[buffer as usize],
            slots: Self::own_slots(shape, &self.layout, rank),
            toggled: self.captured && !by_kernel,
            senders: if self.captured || by_kernel { 0 } else { self.pushers.len() as u32 },
            pushes: pushed,
            blocks,
            counters: self.table.counters,
        };
        let handle = stream.cu_stream().cast::<c_void>();
        // SAFETY: `signals.begin` has made the context current; words and tables live as long as this value,
        // which waits for its streams; every rank has memory where the layout says.
        unsafe { ffi::gather_begin(&self.words(capturing), &begin, handle) }?;
        let toggled = begin.toggled;
        self.epoch = self.epoch.wrapping_add(1);
        self.next_buffer = 1 - buffer;
        if !by_kernel {
            self.push_by_copies(stream, shape, buffer)?;
        }
        self.latest = Some(Arc::clone(shape));
        let joins = self.captured && !by_kernel;
        Ok(Step { shape: Arc::clone(shape), buffer, joins, toggled })
    }

    /// Ends a step. In a graph, what comes next on `stream` comes after this rank's pushes; else the next
    /// step waits for them by itself.
    pub(super) fn end(&mut self, stream: &Arc<CudaStream>, step: &Step) -> Result<()> {
        if step.joins {
            for pusher in &self.pushers {
                stream
                    .wait(&pusher.sent)
                    .map_err(|error| driver_error("cuStreamWaitEvent", error))?;
            }
        }
        if !is_capturing(stream)? {
            self.first_is_over = true;
        }
        Ok(())
    }

    /// The start of the gathered rows of a step, and of their scales.
    pub(super) fn gathered(&self, buffer: u32) -> (CUdeviceptr, CUdeviceptr) {
        let start = self.memory.own_address();
        (start + self.layout.row(buffer, 0), start + self.layout.scale(buffer, 0))
    }

    /// How a product waits for the rows of a step.
    pub(super) fn input<'a>(&self, stream: &Arc<CudaStream>, step: &'a Step) -> Result<Input<'a>> {
        let waiter = self.waiter(&step.shape, is_capturing(stream)?);
        let (chunks, pivot_row) = (&step.shape.chunks, step.shape.pivot_row);
        let input = self.signals.input(stream, chunks, pivot_row, &waiter)?;
        if !step.toggled {
            return Ok(input);
        }
        let own = self.memory.own_address();
        Ok(Input {
            signals: own + Layout::word(self.layout.toggles_of(step.buffer)),
            epoch: own + Layout::word(TOGGLE_EPOCH_AT),
            ..input
        })
    }

    /// Lets `stream` wait for the chunks of `rank`, with a kernel of one warp.
    pub(super) fn await_rank(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        rank: u32,
    ) -> Result<()> {
        let chunks = step.shape.plan.chunks().of_rank(rank);
        if chunks.is_empty() {
            return Ok(());
        }
        let first = chunks.start;
        let slot = step.shape.plan.chunks().signal_slot(first, self.layout.slots_per_rank());
        self.await_slots(stream, step, slot..slot + chunks.len() as u32, first)
    }

    fn await_slots(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        slots: Range<u32>,
        chunk: u32,
    ) -> Result<()> {
        let capturing = is_capturing(stream)?;
        // So that a failure finds the chunks that it names.
        self.signals.input(stream, &step.shape.chunks, 0, &self.waiter(&step.shape, capturing))?;
        let mut words = self.words(capturing);
        if step.toggled {
            let at = |word: u32| i32::try_from(word).unwrap_or(i32::MAX);
            words.signals_at = at(self.layout.toggles_of(step.buffer));
            words.epoch_at = at(TOGGLE_EPOCH_AT);
        }
        // SAFETY: as in `begin`.
        unsafe { ffi::gather_await(&words, slots, chunk, stream.cu_stream().cast::<c_void>()) }
    }

    /// Lets `stream` wait for all chunks of a step.
    pub(super) fn await_all(&self, stream: &Arc<CudaStream>, step: &Step) -> Result<()> {
        let chunks = step.shape.plan.chunks();
        let ranks = 0..self.group.ranks();
        let full = |rank| chunks.of_rank(rank).len() as u32 == self.layout.slots_per_rank();
        if ranks.clone().all(full) {
            // The slots lie side by side, as the chunks do.
            return self.await_slots(stream, step, 0..chunks.len(), 0);
        }
        let mut others = ranks.filter(|rank| *rank != self.group.rank());
        others.try_for_each(|rank| self.await_rank(stream, step, rank))
    }

    /// Waits for `stream`, and says whether all went well.
    pub(super) fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let waited = stream.synchronize();
        let waited = waited.map_err(|error| driver_error("cuStreamSynchronize", error));
        if let Err(error) = &waited {
            self.fail(error);
        }
        self.check()
    }

    /// The buffer of the next step.
    pub(super) fn next_buffer(&self) -> u32 {
        self.next_buffer
    }

    /// Ends the operation because somebody asked for it.
    pub(super) fn abort(&mut self, reason: &str) {
        self.fail(&Error::Aborted { rank: self.group.rank(), reason: reason.to_owned() });
    }

    /// An error if anything went wrong so far. Ask when the streams are through. After an error the
    /// operation is over, on all ranks.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let found = self.look();
        if let Err(error) = &found {
            self.fail(error);
        }
        found
    }

    /// Ends the operation, here and on all other ranks.
    pub(super) fn fail(&mut self, error: &Error) {
        if self.failed.is_none() {
            self.failed = Some(error.clone());
            self.signals.host().set_abort(true);
            self.group.abort(&error.to_string());
        }
    }

    fn look(&self) -> Result<()> {
        let record = self.signals.check();
        // A rank that is gone explains more than that somebody asked to stop.
        match (record, self.group.check()) {
            (Ok(()) | Err(Error::Aborted { .. }), Err(ended)) => return Err(ended),
            (Err(error), _) => return Err(error),
            (Ok(()), Ok(())) => {}
        }
        if self.latest.is_none() {
            return Ok(());
        }
        let mut words = vec![0u32; self.layout.word_count() as usize];
        self.device.bind()?;
        // SAFETY: so many words are at the start of this rank's part.
        unsafe { result::memcpy_dtoh_sync(&mut words, self.memory.own_address()) }
            .map_err(|error| driver_error("cuMemcpyDtoH", error))?;
        let (rank, mut ranks) = (self.group.rank(), 0..self.group.ranks());
        let epoch = words[EPOCH_AT as usize];
        let layouts = self.layout.layouts_of(epoch);
        let of = |peer: u32| {
            let at = (layouts + 2 * peer) as usize;
            (words[at + 1], words[at])
        };
        let other = |peer: &u32| {
            let (announced, tag) = of(*peer);
            announced == epoch && tag != of(rank).1
        };
        if let Some(peer) = ranks.clone().find(other) {
            return Err(other_layout(rank, peer, epoch));
        }
        let torn = |peer: &u32| words[(self.layout.torn_at() + peer) as usize] != 0;
        match ranks.find(torn) {
            Some(peer) => Err(Error::Aborted {
                rank,
                reason: format!(
                    "rank {peer} gave up, and may have written where this rank still read"
                ),
            }),
            None => Ok(()),
        }
    }

    /// Fills the other ranks' rows of the latest step with NaN. Its own may still be on their way.
    fn poison(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some(latest) = &self.latest else { return Ok(()) };
        let own = latest.plan.problem().shards().rows(self.group.rank());
        let start = self.memory.own_address();
        for rows in [0..own.start, own.end..self.plan.problem().m()] {
            let at = start + self.layout.row(1 - self.next_buffer, rows.start);
            let bytes = self.layout.rows_bytes(rows.len() as u32) as usize;
            // SAFETY: this rank's part is so long; what the last step read there, it has read in the order of
            // the stream, and nobody writes there before this step has said so.
            let filled = unsafe { result::memset_d8_async(at, 0xff, bytes, stream.cu_stream()) };
            filled.map_err(|error| driver_error("cuMemsetD8Async", error))?;
        }
        Ok(())
    }

    /// Puts this rank's rows and scales into their slot, unless they are there.
    fn bring(
        &self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
        own: OwnRows,
    ) -> Result<()> {
        let rows = shape.plan.problem().shards().rows(self.group.rank());
        let (start, count) = (self.memory.own_address(), rows.len() as u32);
        let rows_bytes = self.layout.rows_bytes(count);
        if own.rows != 0 && rows_bytes > 0 {
            copy(stream, start + self.layout.row(buffer, rows.start), own.rows, rows_bytes)?;
        }
        let scales_bytes = self.layout.scales_bytes(count);
        if scales_bytes > 0 {
            copy(stream, start + self.layout.scale(buffer, rows.start), own.scales, scales_bytes)?;
        }
        Ok(())
    }

    /// [`Transfers`](crate::plan::Transfers), round by round: the rank that needs this one's rows soonest
    /// comes first. Pieces go round the streams; a signal follows its data.
    fn push_by_copies(
        &self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
    ) -> Result<()> {
        let own = self.memory.own_address();
        let recorded = |event: &CudaEvent, stream: &CudaStream| {
            event.record(stream).map_err(|error| driver_error("cuEventRecord", error))
        };
        // Not before the step has begun. The stream of the product has nothing between two kernels where it
        // can be helped, so that one starts while the other ends.
        if self.captured {
            recorded(&self.begun, stream)?;
        }
        for pusher in &self.pushers {
            if self.captured {
                let waited = pusher.stream.wait(&self.begun);
                waited.map_err(|error| driver_error("cuStreamWaitEvent", error))?;
            } else {
                wait_for(&pusher.stream, own + Layout::word(EPOCH_AT), self.epoch)?;
            }
        }
        let (signals_at, value) = match self.captured {
            // A graph cannot know the epoch.
            true => (self.layout.toggles_of(buffer), TOGGLE_SET),
            false => (SIGNALS_AT, self.epoch),
        };
        let transfers = shape.plan.transfers();
        let mut pushers = self.pushers.iter().cycle();
        for round in 1..self.group.ranks() {
            let peer = self.memory.address(transfers.peer_in_round(self.group.rank(), round))?;
            for (push, pusher) in shape.pushes[buffer as usize].iter().zip(&mut pushers) {
                for (offset, bytes) in push.offset.into_iter().zip(push.bytes) {
                    if bytes > 0 {
                        copy(&pusher.stream, peer + offset, own + offset, bytes)?;
                    }
                }
                let slot = push.slot.unsigned_abs();
                write(&pusher.stream, peer + Layout::word(signals_at + slot), value)?;
            }
        }
        for (sender, pusher) in (0..).zip(&self.pushers) {
            if self.captured {
                recorded(&pusher.sent, &pusher.stream)?;
            } else {
                write(&pusher.stream, own + Layout::word(SENT_AT + sender), self.epoch)?;
            }
        }
        Ok(())
    }

    fn own_slots(shape: &StepShape, layout: &Layout, rank: u32) -> Range<u32> {
        let chunks = shape.plan.chunks().of_rank(rank);
        let first = rank * layout.slots_per_rank();
        first..first + chunks.len() as u32
    }

    fn words(&self, capturing: bool) -> GatherWords {
        let host = self.signals.host();
        GatherWords {
            words: self.table.words,
            abort: host.abort_address(),
            failure: host.failure_address(),
            timeout_ns: self.waiter(&self.shapes[0], capturing).timeout_ns(),
            ..self.layout.words(self.group.rank())
        }
    }

    fn waiter(&self, shape: &StepShape, capturing: bool) -> Waiter {
        let patient = !self.first_is_over && !capturing;
        let limit = if patient { self.options.first_limit } else { self.options.limit };
        Waiter { rank: self.group.rank(), limit, chunks: shape.plan.chunks().clone() }
    }
}

impl StepShape {
    fn new(plan: &Plan, layout: &Layout, rank: u32) -> Result<Self> {
        let chunks = plan.chunks();
        if chunks.len() > MAX_CHUNKS {
            let (what, most) = ("the number of chunks", u64::from(MAX_CHUNKS));
            let remedy = "ask for fewer pieces a shard: they travel as parameters of the kernel";
            return Err(Error::out_of_range(what, chunks.len().into(), 1, most, remedy));
        }
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let table = (0..chunks.len()).map(|chunk| Chunk {
            first_row: number(chunks.rows(chunk).start),
            signal: number(chunks.signal_slot(chunk, layout.slots_per_rank())),
        });
        let shards = plan.problem().shards();
        let pivot_row = number(shards.rows(rank).start % shards.m());
        let each = |buffer| layout.pushes(plan, rank, buffer);
        Ok(StepShape {
            chunks: table.collect(),
            pivot_row,
            pushes: [each(0), each(1)],
            tags: [tag(&shards.to_rows(), 0), tag(&shards.to_rows(), 1)],
            plan: plan.clone(),
        })
    }
}

impl Table {
    fn new(stream: &Arc<CudaStream>, addresses: &[u64]) -> Result<Self> {
        let words = stream.clone_htod(addresses).map_err(|e| driver_error("cuMemcpyHtoD", e))?;
        let counters = addresses.len() * MAX_PUSHED as usize + 1;
        let counters =
            stream.alloc_zeros::<u32>(counters).map_err(|e| driver_error("cuMemAllocAsync", e))?;
        // Other streams will use them.
        stream.synchronize().map_err(|error| driver_error("cuStreamSynchronize", error))?;
        let (word_start, counter_start) =
            (words.device_ptr(stream).0, counters.device_ptr(stream).0);
        Ok(Table { _words: words, _counters: counters, words: word_start, counters: counter_start })
    }
}

/// What can be planned without asking the others.
fn plan(group: &Group, problem: &Problem, tiling: Tiling, options: &GatherOptions) -> Result<Plan> {
    if problem.ranks() != group.ranks() {
        let remedy = "plan for as many ranks as the group has";
        let (got, expected) = (problem.ranks(), group.ranks());
        return Err(Error::mismatch("the number of ranks in the plan", got, expected, remedy));
    }
    problem.check_tma()?;
    let pieces = match options.pieces {
        Some(pieces) => pieces,
        None => default_pieces(problem),
    };
    let engine = choose(options.engine, problem)?;
    if matches!(engine, Engine::Kernel { .. }) && pieces > MAX_PUSHED {
        let (what, most) = ("the number of pieces a shard", u64::from(MAX_PUSHED));
        let remedy = "push so many pieces by copy engines";
        return Err(Error::out_of_range(what, pieces.into(), 1, most, remedy));
    }
    Plan::new(problem, PlanOptions { chunks_per_shard: Some(pieces), tiling })
}

fn shard_bytes(problem: &Problem) -> u64 {
    let bytes = problem.row_bytes(&(0..problem.shards().most_rows()));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn default_pieces(problem: &Problem) -> u32 {
    let pieces = (shard_bytes(problem) / SMALLEST_PIECE).clamp(1, MOST_PIECES);
    (pieces as u32).min(problem.shards().most_rows())
}

fn choose(engine: Engine, problem: &Problem) -> Result<Engine> {
    let bounded = |what: &str, value: u32, most: u64| {
        let range = 1..=most;
        if range.contains(&value.into()) {
            return Ok(engine);
        }
        Err(Error::out_of_range(what, value.into(), 1, most, "ask for a number in that range"))
    };
    match engine {
        Engine::Auto if shard_bytes(problem) <= SMALL_SHARD => {
            Ok(Engine::Kernel { blocks: (shard_bytes(problem) >> 16).clamp(16, 64) as u32 })
        }
        Engine::Auto => {
            Ok(Engine::CopyEngines { streams: problem.ranks().saturating_sub(1).clamp(1, 2) })
        }
        Engine::CopyEngines { streams } => {
            bounded("the number of streams", streams, MOST_SENDERS.into())
        }
        Engine::Kernel { blocks } => bounded("the number of blocks", blocks, 128),
    }
}

/// An error on all ranks unless all plan the same. The group lives on: what is wrong is wrong with a call.
fn agree(
    group: &Group,
    kind: &str,
    problem: &Problem,
    options: &GatherOptions,
    refused: Option<&Error>,
    limit: Duration,
) -> Result<()> {
    let text = match refused {
        Some(error) => format!("!{error}"),
        None => format!("{kind} of {problem}, {problem:?}, {options:?}"),
    };
    let texts = group.all_gather("the plan of a gather", text.as_bytes(), limit)?;
    let first = &texts[0];
    let mut others = (0..).zip(texts.iter());
    let Some((peer, other)) = others.find(|(_, other)| other.starts_with(b"!") || *other != first)
    else {
        return Ok(());
    };
    let (rank, words) = (group.rank(), |text: &[u8]| String::from_utf8_lossy(text).into_owned());
    match other.strip_prefix(b"!") {
        // Whose own plan was refused says so itself.
        Some(_) if refused.is_some() => Ok(()),
        Some(why) => {
            let reason = format!("rank {peer} cannot plan it: {}", words(why));
            Err(Error::Aborted { rank, reason })
        }
        None => {
            let what = format!("the plan of rank {peer}");
            let expected = format!("rank 0's: {}", words(first));
            let remedy = "plan the same operations in the same order on every rank";
            Err(Error::mismatch(what, words(other), expected, remedy))
        }
    }
}

/// Differs for other rows or another buffer, up to one chance in four thousand million: FNV-1a.
fn tag(rows: &[u32], buffer: u32) -> u32 {
    let bytes = rows.iter().chain([&buffer]).flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Enqueues a copy between any two places that this GPU reaches.
fn copy(stream: &CudaStream, to: CUdeviceptr, from: CUdeviceptr, bytes: u64) -> Result<()> {
    // SAFETY: the callers name memory of the layout, and rows that `begin`'s caller has vouched for.
    unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream.cu_stream()) }
        .map_err(|error| driver_error("cuMemcpyDtoDAsync", error))
}

/// Lets a stream wait until an epoch has reached `value`.
fn wait_for(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    // The comparison wraps, as epochs do.
    let reached = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: a word of the layout, which lives until the stream is through.
    unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), word, value, reached) }
        .result()
        .map_err(|error| driver_error("cuStreamWaitValue32", error))
}

/// Enqueues the writing of a word, after everything that the stream has written is seen everywhere.
fn write(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    // Flags 0: a fence of the whole system comes before the write.
    // SAFETY: a word of the layout, which lives until the stream is through.
    unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), word, value, 0) }
        .result()
        .map_err(|error| driver_error("cuStreamWriteValue32", error))
}

impl Drop for Gatherer {
    /// Pushes end by themselves: the memory that they write to is held by its mappings here.
    fn drop(&mut self) {
        let context = self.device.context();
        context.record_err(context.bind_to_thread());
        for pusher in &self.pushers {
            context.record_err(pusher.stream.synchronize());
        }
    }
}
