//! A rank's part in an all-gather between GPUs, or in a reduction: its memory, its pushes, its steps.
//!
//! What belongs here: carrying out the [`Schedule`](crate::plan::Schedule)'s moves and words with copy engines and
//! kernels. What is multiplied is none of its business. Here are the steps; below are `joining` (what comes before),
//! `sums` (what a reduction has beside), `sharing` (with other operations), `marking` (when parts of a step were), `poison` (NaN, to find
//! faults) and `ending` (failures, and the end). A step is, on the caller's stream:
//!
//! ```text
//!   copy the shard into its slot (unless it is there) ── begin ──┬── work that reads the rows ─ next begin
//!                                                                └── pushes, other streams ──┘
//! ```
//!
//! `begin` is a kernel (`csrc/gather.cu`): it announces the step, and waits until this rank may push, and until
//! what it sent before is sent. Small shards it pushes itself. So the order of the stream alone says when
//! the own slot of the next but one step may be written.
//!
//! In a graph only the device knows the epoch, so streams that push set toggles in place of epochs. The host does not know
//! how often a graph is launched. So after a capture they set toggles outside of graphs, too, and all steps stay on that stream.
//!
//! Invariants: nothing that needs an SM comes behind what waits for it on its stream; a step enqueues and
//! never allocates, nor waits (but the first one that is captured, for what was sent before); after a
//! failure every rank learns of it, and no later result counts as right.

mod ending;
pub(crate) mod joining;
mod marking;
mod poison;
mod sharing;
pub(crate) mod sums;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, result};

use crate::cuda::exchange::concurrent::Concurrent;
use crate::cuda::exchange::given_up::GivenUp;
use crate::cuda::exchange::signals::{Signals, timeout_ns};
use crate::cuda::exchange::step_shape::{Compute, Part, StepShape};
use crate::cuda::exchange::waiters::Waiter;
use crate::cuda::exchange::words::{BEGUN_AT, SENT_TOGGLES_AT, TOGGLE_EPOCH_AT};
use crate::cuda::movers::by_nccl::{ByNccl, agree_on_rows};
use crate::cuda::movers::copy_engines::{CopyEngines, PartOfRows};
use crate::cuda::movers::course::Course;
use crate::cuda::movers::marks::Marks;
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::sys::Driver;
use crate::cuda::sys::bindings::{og_gather, og_gather_step, og_slots};
use crate::cuda::sys::device::Device;
use crate::cuda::sys::ffi::{self, Input, count, int, long};
use crate::cuda::sys::stream_ops::{capture_of, copy, is_capturing};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{self, Engine, Lane, Plan, PlanOptions, Schedule};

#[derive(Debug)]
pub(crate) struct Gatherer {
    signals: Signals,
    given_up: GivenUp,
    pub(crate) group: Arc<Group>,
    pub(crate) device: Device,
    pub(crate) plan: Arc<Plan>,
    options: CollectiveOptions,
    /// Gathers, or adds up, if that is the engine.
    nccl: Option<ByNccl>,
    part: Part,
    pub(crate) copies: CopyEngines,
    shapes: Vec<Arc<StepShape>>,
    pub(crate) course: Course,
    failed: Option<Error>,
    /// The pushes of the next step, if somebody wants to know when they were.
    marks: Option<Marks>,
    concurrent: Arc<Mutex<Concurrent>>,
    /// SMs that a step may keep while it waits for other ranks; 0: so few that products leave them.
    waiting_sms: u32,
}

#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) shape: Arc<StepShape>,
    pub(crate) buffer: u32,
    /// Row 0 of what this rank sends, or others read: in its buffer, or of the caller's sums.
    own_rows: CUdeviceptr,
    /// Toggles say what is here, not signals.
    toggled: bool,
    /// The beginning tells the product that follows it when it may go on.
    tells_product: bool,
    /// A kernel behind the product need not begin it.
    has_begun: bool,
}

/// What follows a step's beginning on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follower {
    /// Something that starts when the beginning has ended.
    Other,
    /// A product that waits for the rows by itself: [`Gatherer::input`].
    Product {
        /// It may read B at once.
        constant_b: bool,
    },
}

/// What one rank brings: its rows, and their scales where the plan has row scales; in a reduction, sums of all rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnRows {
    /// `None`: they are in their slot already, or a product will write them there. Sums stay where they are.
    pub(crate) rows: Option<CUdeviceptr>,
    pub(crate) scales: CUdeviceptr,
}

impl Gatherer {
    /// The shape of a step with these rows (default: as planned).
    pub(crate) fn shape(&mut self, rows: Option<&[u32]>) -> Result<Arc<StepShape>> {
        /// Few: a caller alternates between some shapes, at most.
        const KEPT: usize = 16;
        let Some(rows) = rows else { return Ok(Arc::clone(&self.shapes[0])) };
        let same = |shape: &&Arc<StepShape>| shape.plan.problem().rows_of_ranks() == rows;
        if let Some(known) = self.shapes.iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let plan = self.plan.for_rows(rows)?;
        let shape =
            Arc::new(StepShape::new(plan.schedule(self.group.rank()), &plan, &self.part.layout)?);
        if self.shapes.len() == KEPT {
            self.shapes.remove(1);
        }
        self.shapes.push(Arc::clone(&shape));
        Ok(shape)
    }

    /// This rank's rows and all rows: in a step, and the most that a buffer for every step holds.
    pub(crate) fn row_counts(&self, shape: &StepShape) -> [[u32; 2]; 2] {
        let (planned, step) = (self.plan.problem(), shape.plan.problem());
        let own = step.shards().rows(self.group.rank()).len() as u32;
        [[own, planned.shards().most_rows().max(own)], [step.m(), planned.m()]]
    }

    /// Each rank has the scales of all rows: none are gathered.
    pub(crate) fn has_replicated_scales(&self) -> bool {
        self.options.replicated_row_scales
    }

    /// The slot of this rank's rows in a next step with these rows: its address and its bytes.
    pub(crate) fn local_shard(&mut self, rows: Option<&[u32]>) -> Result<(CUdeviceptr, u64)> {
        self.check_in_place()?;
        let shape = self.shape(rows)?;
        let own = shape.plan.problem().shards().rows(self.group.rank());
        let at = self.part.start() + self.part.layout.row(self.course.next_buffer, own.start);
        Ok((at, self.part.layout.rows_bytes(own.len() as u32)))
    }

    /// Begins the next step on `stream`, and pushes this rank's rows. A kernel that adds up sums begins the step behind the product
    /// ([`Gatherer::exchange`]), unless the step before may have had the same buffer: then that product would overwrite sums that
    /// others may still read. NCCL begins a reduction's step behind the product, too ([`Gatherer::add_up_by_nccl`]).
    ///
    /// # Safety
    /// What `own` names is this device's memory, as long as the shape says, written before in the order of
    /// `stream` and left alone until the step has ended.
    pub(crate) unsafe fn begin(
        &mut self,
        stream: &Arc<CudaStream>,
        shape: &Arc<StepShape>,
        own: OwnRows,
        follower: Follower,
    ) -> Result<Begun> {
        if let Some(cause) = &self.failed {
            return Err(Error::over(self.group.rank(), cause));
        }
        if let Err(error) = self.group.check() {
            self.fail(&error);
            return Err(error);
        }
        if self.nccl.is_some() {
            let before = self.course.latest.as_ref().unwrap_or(&self.shapes[0]);
            agree_on_rows(&self.group, before, shape, self.course.epoch, self.limit(false))?;
        }
        self.signals.begin(stream)?;
        let capture = capture_of(stream)?;
        let capturing = capture.is_some();
        self.enter_gpu(stream, capturing)?;
        self.enter_workspace(stream, capture)?;
        if capturing && !self.course.order.captured {
            // From now on no step waits for what plain steps have sent.
            self.copies.synchronize()?;
        }
        let may_repeat_buffer = self.course.order.next(&self.device, stream, capture)?;
        let waiter = self.waiter(shape, capturing);
        self.signals.note_waiter(self.course.epoch.wrapping_add(1), capturing, waiter);
        let buffer = self.course.next_buffer;
        let PlanOptions { engine, operation, .. } = self.plan.options();
        let by_kernel = matches!(engine, Engine::Kernel { .. });
        let reduces = operation.reduces();
        let reads_sums = self.plan.reads_in_place();
        let begins_later = reads_sums || reduces && self.nccl.is_some();
        if self.options.poison && !begins_later {
            self.poison(stream)?;
        }
        if !reduces {
            self.bring(stream, shape, buffer, own)?;
        }
        let own_rows = own.rows.filter(|_| reduces).unwrap_or_else(|| self.gathered(buffer).0);
        let (toggled, tells_product) = (false, false);
        let has_begun = reads_sums && !operation.is_alone() && may_repeat_buffer;
        let plain =
            Begun { shape: Arc::clone(shape), buffer, own_rows, toggled, tells_product, has_begun };
        if begins_later && !has_begun {
            self.poison_sums(stream, buffer)?;
            return Ok(plain);
        }
        let limit = self.limit(capturing);
        if let Some(nccl) = &mut self.nccl {
            nccl.gather(stream, &self.part, shape, buffer, limit)?;
            self.course.advance();
            self.course.latest = Some(Arc::clone(shape));
            return Ok(plain);
        }
        let (pushed, blocks): (&[_], _) = match engine {
            Engine::Kernel { blocks } if self.group.ranks() > 1 && !reduces => {
                (shape.own_pieces(buffer), blocks)
            }
            _ => (&[], 1),
        };
        // Kernels push rows only when older kernels have ended, and B can be fetched meanwhile. A product that starts before
        // gains nothing, and what it fetches slows the last product, which is adding up slices of K: steps of 16 rows
        // took up to 23 % longer (benches/results/2026-11-22-h200x2-later-start.md).
        let may_start = follower == Follower::Product { constant_b: true }
            && !(by_kernel && self.group.ranks() > 1);
        let toggled = self.course.order.captured && !by_kernel;
        let tells_product = follower != Follower::Other;
        let begin = og_gather_step {
            toggled: toggled.into(),
            product_follows: tells_product.into(),
            product_may_start: may_start.into(),
            senders: int(shape.senders),
            pushes: pushed.as_ptr(),
            push_count: count(pushed),
            row_bytes: long(self.part.layout.row),
            row_pitch: long(self.part.layout.pitch),
            span_bits: shape.table.span_bits,
            span_bytes: shape.table.span_bytes,
            ..self.beginning(shape, buffer, blocks)
        };
        let mut words = self.words(capturing);
        if toggled {
            words.sent_at = int(SENT_TOGGLES_AT);
        }
        let marks_kernel = !pushed.is_empty() && !self.course.order.captured;
        let marked = if marks_kernel { self.mark(stream)? } else { None };
        // SAFETY: `signals.begin` has made the context current; words and tables live as long as this value,
        // which waits for its streams; every rank has memory where the layout says.
        unsafe { ffi::gather_begin(&words, &begin, stream) }?;
        self.course.advance();
        let step = Begun { toggled, tells_product, ..plain };
        if !by_kernel {
            self.course.note_begun(stream)?;
            // Sums have to be computed first.
            if !reduces {
                for (lane, of) in &shape.schedule.steps {
                    self.push(&step, *lane, of, &[])?;
                }
            }
        } else if let (Some(begun), Some(marks)) = (marked, &mut self.marks) {
            let (device, part) = (&self.device, &self.part);
            self.copies.mark_kernel(device, part, self.course.epoch, begun, shape, marks)?;
        }
        self.course.latest = Some(Arc::clone(shape));
        if reads_sums {
            self.poison_sums(stream, buffer)?;
        }
        Ok(step)
    }

    /// Puts this rank's rows and scales into their slot, unless they are there.
    fn bring(
        &self,
        stream: &Arc<CudaStream>,
        shape: &StepShape,
        buffer: u32,
        own: OwnRows,
    ) -> Result<()> {
        let (layout, rows) =
            (&self.part.layout, shape.plan.problem().shards().rows(self.group.rank()));
        let count = rows.len() as u32;
        for (from, slot, bytes) in [
            (own.rows, layout.row(buffer, rows.start), layout.rows_bytes(count)),
            (Some(own.scales), layout.scale(buffer, rows.start), layout.scales_bytes(count)),
        ] {
            if let Some(from) = from.filter(|_| bytes > 0) {
                // SAFETY: a slot of the layout; the caller of `begin` has vouched for the rows.
                unsafe { copy(stream, self.part.start() + slot, from, bytes) }?;
            }
        }
        Ok(())
    }

    /// Enqueues a step of the schedule, if its lane is one of those that push; `totals`: as for [`CopyEngines::push`].
    pub(crate) fn push(
        &mut self,
        step: &Begun,
        lane: Lane,
        of: &plan::Step,
        totals: &[PartOfRows],
    ) -> Result<()> {
        let Lane::Push(push) = lane else { return Ok(()) };
        let now = (&*step.shape, step.buffer, step.own_rows);
        let (device, part) = (&self.device, &self.part);
        self.copies.push(device, part, &self.course, now, (push, of, totals), &mut self.marks)
    }

    /// An error if the next step cannot be on `stream`.
    pub(crate) fn check_stream(&self, stream: &Arc<CudaStream>) -> Result<()> {
        if let Some(workspace) = &self.options.workspace {
            workspace.check_stream(stream)?;
        }
        self.course.order.check_stream(&self.device, stream)
    }

    /// Ends a step. Its end on `stream` does not wait for this rank's pushes, in a graph neither: the next steps do by
    /// themselves. Once a step was captured, a gather's step outside of graphs does wait: a graph may follow that begins with the
    /// same buffer, and this rank's rows come there before the graph's first step begins. A reduction's sums come later, and a
    /// reduction of the caller's sums, or an all-reduce in two shots by copies, has waited, as its schedule says.
    pub(crate) fn end(&mut self, stream: &Arc<CudaStream>, step: &Begun) -> Result<()> {
        let capturing = is_capturing(stream)?;
        if step.toggled && capturing {
            self.copies.leave(stream)?;
        } else if step.toggled && !self.plan.options().operation.reduces() {
            self.copies.await_all(stream)?;
        }
        if !capturing {
            self.course.first_is_over = true;
        }
        self.leave_workspace();
        Ok(())
    }

    /// An error if the step's rows cannot be there: in place in a shared workspace, or at 0 where this rank has rows.
    pub(crate) fn check_rows(&self, shape: &StepShape, rows: Option<CUdeviceptr>) -> Result<()> {
        if rows.is_none() {
            return self.check_in_place();
        }
        let own = shape.plan.problem().shards().rows(self.group.rank());
        if rows != Some(0) || own.is_empty() {
            return Ok(());
        }
        let remedy = "give their address, or say that they are in place";
        Err(Error::mismatch("the address of the shard", 0, "not 0", remedy))
    }

    /// The start of the gathered rows of a step, and of their scales, 0 if none are gathered; in a reduction, of this rank's sums of
    /// products.
    pub(crate) fn gathered(&self, buffer: u32) -> (CUdeviceptr, CUdeviceptr) {
        let (start, layout) = (self.part.start(), &self.part.layout);
        let scales = if layout.scales_bytes(1) > 0 { start + layout.scale(buffer, 0) } else { 0 };
        (start + layout.row(buffer, 0), scales)
    }

    /// How the product that follows the step's beginning on the stream waits for the rows. Those that follow this
    /// product wait for its end: [`Input::after_another`].
    pub(crate) fn input<'a>(&self, stream: &Arc<CudaStream>, step: &'a Begun) -> Result<Input<'a>> {
        let limit = self.limit(is_capturing(stream)?);
        // `begin` is before it on the stream, and lets it start when all that is older has ended, or at once where the
        // caller has promised that nothing of that writes B, and no kernel pushes.
        // A word that nobody sets would be awaited for ever.
        let begun = if step.tells_product { self.part.word(BEGUN_AT) } else { 0 };
        let mut input = self.signals.input(stream, &step.shape.table, limit)?;
        let layout = &self.part.layout;
        input.b_is_there = true;
        input.words.begun = begun as *const _;
        input.words.slots_per_rank = int(layout.slots_per_rank);
        input.words.share_bits = int(layout.share_bits);
        if step.toggled {
            input.words.signals = self.part.word(layout.toggles_of(step.buffer)) as *const _;
            input.words.epoch = self.part.word(TOGGLE_EPOCH_AT) as *const _;
        }
        Ok(input)
    }

    /// Lets `stream` wait for what one of a step's products awaits, or a gather alone: a kernel of one warp for each run
    /// of slots.
    pub(crate) fn await_rows(
        &self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        compute: &Compute,
    ) -> Result<()> {
        if self.nccl.is_some() {
            // Its kernel is before on the stream.
            return Ok(());
        }
        let mut runs = compute.awaits.iter();
        runs.try_for_each(|slots| self.await_slots(stream, step, slots))
    }

    fn await_slots(&self, stream: &Arc<CudaStream>, step: &Begun, slots: &og_slots) -> Result<()> {
        // Perhaps from another thread than the step began on: makes the context current.
        self.signals.begin(stream)?;
        let mut words = self.words(is_capturing(stream)?);
        if step.toggled {
            words.signals_at = int(self.part.layout.toggles_of(step.buffer));
            words.epoch_at = int(TOGGLE_EPOCH_AT);
        }
        // SAFETY: as in `begin`.
        unsafe { ffi::gather_await(&words, slots, stream) }
    }

    /// Changes this rank's schedule of steps that have the planned rows, so that a test sees what becomes of it. No step is
    /// under way. Returns what `change` returns.
    pub(crate) fn change_schedule(
        &mut self,
        change: impl FnOnce(&mut Schedule) -> bool,
    ) -> Result<bool> {
        let planned = &self.shapes[0];
        let mut schedule = planned.schedule.clone();
        let is_changed = change(&mut schedule);
        let changed = StepShape::new(schedule, &planned.plan, &self.part.layout)?;
        // A rank that is to learn nothing of this one: the word goes to this rank's own memory.
        let rank = self.group.rank();
        let heard = |peer| if changed.announces_to(peer) { peer } else { rank };
        let starts = (0..self.group.ranks()).map(|peer| self.part.start_of(heard(peer)));
        let starts = starts.collect::<Result<Vec<u64>>>()?;
        self.device.bind()?;
        let at = self.part.word(self.part.layout.starts_at());
        // SAFETY: the layout has a place for them, and no step is under way.
        unsafe { result::memcpy_htod_sync(at, &starts) }.in_call("cuMemcpyHtoD")?;
        self.device.context().synchronize().in_call("cuCtxSynchronize")?;
        self.shapes[0] = Arc::new(changed);
        Ok(is_changed)
    }

    /// What is the same of every step that a kernel of `blocks` blocks begins.
    fn beginning(&self, shape: &StepShape, buffer: u32, blocks: u32) -> og_gather_step {
        let slots = self.part.layout.own_slots(&shape.plan, self.group.rank());
        og_gather_step {
            buffer: int(buffer),
            layout: shape.tags[buffer as usize],
            own_slot: int(slots.start),
            own_slots: int(slots.len() as u32),
            awaits_beginnings: shape.awaits_beginnings.into(),
            blocks: int(blocks),
            counter: self.part.word(self.part.layout.counter_at()) as *mut _,
            ..og_gather_step::default()
        }
    }

    fn words(&self, capturing: bool) -> og_gather {
        let host = &self.signals.host;
        og_gather {
            words: self.part.word(self.part.layout.starts_at()) as *const _,
            own: self.part.start() as *mut _,
            abort: host.abort_address() as *const _,
            failure: host.failure_address() as *mut _,
            timeout_ns: timeout_ns(self.limit(capturing)),
            stop_at: self.part.stop_at(),
            ..self.part.layout.words(self.group.rank())
        }
    }

    fn waiter(&self, shape: &StepShape, capturing: bool) -> Waiter {
        let (rank, limit) = (self.group.rank(), self.limit(capturing));
        let of_sums = self.plan.options().operation.reduces();
        Waiter { rank, limit, chunks: shape.plan.chunks().clone(), of_sums }
    }

    /// How long to wait for others in a step.
    fn limit(&self, capturing: bool) -> Duration {
        let patient = !self.course.first_is_over && !capturing;
        if patient { self.options.timeouts.first } else { self.options.timeouts.steady }
    }
}
