//! One step, as its schedule says: products, sends behind them, waits, and totals.
//!
//! What belongs here: what is enqueued for each step of the schedule, and of which operands. Invariant: everything is in the
//! order of the schedule's list; no sum is sent or added before something on its stream has waited for it. What one kernel does
//! is enqueued where that kernel's list ends.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::{Reduce, Sum};
use crate::cuda::movers::copy_engines::PartOfRows;
use crate::cuda::movers::gather::Begun;
use crate::cuda::movers::gather::sums::Shot;
use crate::cuda::movers::step_record::StepRecord;
use crate::cuda::product::Product;
use crate::cuda::product::other_sums::OtherSums;
use crate::cuda::product::raw_operands::RawOperands;
use crate::cuda::sys::bindings::og_reduction;
use crate::cuda::sys::ffi;
use crate::cuda::sys::stream_ops::PitchedRows;
use crate::error::{Error, Result};
use crate::plan::{self, Activation, Engine, Lane, Part, Plan, Problem, Word};

/// What belongs to one [`Sum`] in a step.
pub(super) struct Call {
    /// All rows, into this rank's sums; nobody looks at it where the caller has them.
    pub(super) product: RawOperands,
    /// What becomes of the totals of the rows that this rank gets; `None` if it gets none.
    pub(super) totals: Option<RawOperands>,
}

impl<const ALL: bool, const GEMM: bool> Reduce<ALL, GEMM> {
    /// The operands of the next step, which has the rows of `step`; an error if they do not fit what was planned.
    pub(super) fn call(
        &self,
        sum: &Sum,
        operands: &RawOperands,
        (a, scales): (CUdeviceptr, CUdeviceptr),
        step: &Problem,
    ) -> Result<Call> {
        if operands.records != 0 {
            return Err(Error::Unsupported {
                what: format!("`records` of the operands of {}", Self::OPERATION),
                why: "a step has several products".into(),
                remedy: "use enqueue_recorded",
            });
        }
        let own = Self::OPERATION.output_rows(step, self.gatherer.group.rank()).len() as u32;
        let whole = operands.with_a(&sum.problem, a, scales)?;
        if own > 0 {
            whole.rows(own).check(&sum.problem, &sum.options)?;
        }
        let totals = (own > 0).then_some(whole);
        let sums = self.gatherer.gathered(self.gatherer.course.next_buffer).0 + sum.column;
        let product = RawOperands { d: sums, c: 0, bias: 0, alpha: 1.0, beta: 0.0, ..whole };
        if let Some(Product { problem: planned, options, .. }) = &sum.product {
            product.rows(step.m().min(planned.m())).check(planned, options)?;
        }
        Ok(Call { product, totals })
    }

    /// Enqueues what the schedule of a step that has begun says.
    ///
    /// # Safety
    /// That of the operation.
    pub(super) unsafe fn carry_out(
        &mut self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        calls: &[Call],
        mut record: Option<&mut StepRecord>,
    ) -> Result<()> {
        use plan::Step::{Await, Move, Multiply, Post, Reduce};
        let by_copies = matches!(self.way().engine, Engine::CopyEngines { .. });
        let adds_up = self.sums.iter().any(|sum| sum.adding.is_some());
        let (plan, rank) = (&step.shape.plan, self.gatherer.group.rank());
        let (chunks, own) = (plan.chunks(), plan.problem().shards().rows(rank));
        let added_up = plan.added_up(rank);
        // What products that add up multiply: they are enqueued where they add.
        let mut own_rows = Vec::new();
        // By a kernel, or NCCL: sums, then totals. Totals are of this rank's rows, which it sends, and of the others', which it gets.
        let mut shots: [Shot; 2] = Default::default();
        let is_own = |chunk: &u32| chunks.rank_of(*chunk) == rank;
        let has_two_shots = plan.has_two_shots();
        let sent_in = |chunk| usize::from(has_two_shots && is_own(chunk));
        let reduced_in = |chunk| usize::from(has_two_shots && !is_own(chunk));
        let mut awaited = Vec::new();
        for (lane, of) in &step.shape.schedule.steps {
            match (lane, of) {
                // To itself: what the caller brings.
                (Lane::Push(_), Move { chunk, to }) if !by_copies && *to != rank => {
                    shots[sent_in(chunk)].sent.push((*chunk, *to));
                }
                (Lane::Push(_), Move { .. }) if !by_copies => {}
                (Lane::Push(_), Post { word: Word::Partial { chunk, .. }, to, .. })
                    if !by_copies =>
                {
                    shots[sent_in(chunk)].signalled.push((*chunk, *to));
                }
                (Lane::Push(_), Await { word: Word::Partial { chunk, from }, .. }) => {
                    shots[reduced_in(chunk)].awaited.push((*chunk, *from));
                }
                (Lane::Push(_), Reduce { chunk }) => {
                    shots[reduced_in(chunk)].reduced.push(*chunk);
                }
                (Lane::Push(_), Post { word: Word::Begun, .. }) => {
                    let begin = self.gatherer.mark(stream)?;
                    // SAFETY: the caller's promise.
                    unsafe { self.exchange(stream, step, &shots, calls) }?;
                    let reduced = shots.iter().flat_map(|shot| &shot.reduced).copied();
                    self.gatherer.mark_added(stream, reduced, begin)?;
                }
                (Lane::Compute, Multiply { rows, .. }) if adds_up && own.contains(&rows.start) => {
                    own_rows.push(rows.clone());
                }
                (Lane::Compute, Multiply { rows, .. }) => {
                    for (sum, call) in self.sums.iter().zip(calls) {
                        let Some(product) = &sum.product else { continue };
                        for part in plan.problem().parts(rows.clone()) {
                            let operands = of_part(product, &call.product, &part, part.rows.start);
                            let rows = (part.rows.len() as u32, last_chunk(plan, &part.rows));
                            // SAFETY: the caller's promise; sums have a place for all rows.
                            unsafe {
                                Self::multiply(stream, product, operands, rows, &mut record)
                            }?;
                        }
                    }
                }
                (Lane::Compute, Post { word: Word::Summed { .. }, .. }) if by_copies => {
                    self.gatherer.copies.note_summed(stream)?;
                }
                (Lane::Push(push), Post { word: Word::Sent { .. }, .. }) if by_copies => {
                    self.gatherer.copies.note_sent(*push)?;
                }
                (Lane::Compute, Await { word: Word::Sent { push }, .. }) if by_copies => {
                    self.gatherer.copies.await_sent(stream, *push)?;
                }
                (Lane::Compute, Await { word: Word::Partial { chunk, from }, .. }) => {
                    awaited.push((*chunk, *from));
                }
                (Lane::Compute, Reduce { chunk }) => {
                    self.gatherer.await_sums(stream, step, &std::mem::take(&mut awaited))?;
                    let rows = chunks.rows(*chunk);
                    // Where products add up, only a test's schedule adds up rows that it has not multiplied.
                    let by_product = own_rows.contains(&rows);
                    let begin = if by_product { None } else { self.gatherer.mark(stream)? };
                    if has_two_shots && !added_up.contains(chunk) {
                        // SAFETY: the caller's promise.
                        unsafe { self.store_totals(stream, step, *chunk, calls) }?;
                    } else {
                        let calls = self.sums.iter().zip(calls);
                        // SAFETY: the caller's promise.
                        unsafe {
                            self.reduce(stream, step, &rows, calls, by_product, &mut record)
                        }?;
                    }
                    self.gatherer.mark_added(stream, std::iter::once(*chunk), begin)?;
                }
                (Lane::Push(_), of) if by_copies => {
                    let totals = self.moved_totals(step, of, calls);
                    self.gatherer.push(step, *lane, of, &totals)?;
                }
                // The step's beginning does these, and the kernel that sends.
                (Lane::Begin | Lane::Push(_), _)
                | (Lane::Compute, Await { .. } | Post { .. } | Move { .. }) => {}
            }
        }
        Ok(())
    }

    /// What the kernel does that begins the step, adds up sums, and may send totals: those of the first product. The others' sums
    /// are added up behind it. Or NCCL, which adds up all that all ranks have; a kernel behind it makes D of the totals.
    ///
    /// # Safety
    /// That of the operation.
    unsafe fn exchange(
        &mut self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        shots: &[Shot; 2],
        calls: &[Call],
    ) -> Result<()> {
        let chunks = step.shape.plan.chunks();
        // They lie side by side.
        let rows = match (shots[0].reduced.first(), shots[0].reduced.last()) {
            (Some(first), Some(last)) => chunks.rows(*first).start..chunks.rows(*last).end,
            _ => 0..0,
        };
        if self.way().engine == Engine::Nccl {
            self.gatherer.add_up_by_nccl(stream, step, self.sum_type())?;
            let calls = self.sums.iter().zip(calls);
            // SAFETY: the caller's promise.
            return unsafe { self.reduce(stream, step, &rows, calls, false, &mut None) };
        }
        let (sum, call) = (&self.sums[0], &calls[0]);
        let total = self.totals(step, &rows, sum, call).or_else(|| {
            // A rank without rows of its own stores the others' totals.
            let to = call.totals.as_ref().filter(|_| step.shape.plan.has_two_shots())?;
            let size = self.sum_type().size();
            let sums = self.gatherer.sums(step, &(0..0), sum.column, size.into());
            Some(self.outputs(step, &(0..0), sum, to, sums))
        });
        // SAFETY: the caller's promise.
        unsafe { self.gatherer.exchange(stream, step, shots, total.as_ref()) }?;
        let others = self.sums.iter().zip(calls).skip(1);
        // SAFETY: the caller's promise.
        unsafe { self.reduce(stream, step, &rows, others, false, &mut None) }
    }

    /// Adds up all ranks' sums of some of the rows that this rank gets, and makes D of the totals; `by_product`: by the products
    /// that compute this rank's own.
    ///
    /// # Safety
    /// That of the operation.
    unsafe fn reduce<'a>(
        &self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        rows: &Range<u32>,
        calls: impl Iterator<Item = (&'a Sum, &'a Call)>,
        by_product: bool,
        record: &mut Option<&mut StepRecord>,
    ) -> Result<()> {
        for (sum, call) in calls {
            let Some(total) = self.totals(step, rows, sum, call) else { continue };
            let Some(product) = sum.adding.as_ref().filter(|_| by_product) else {
                // SAFETY: the step's beginning has made the context current; sums and slots are as long as planned, D, C
                // and the bias are the caller's promise.
                unsafe { ffi::reduce(&total, stream) }?;
                continue;
            };
            let others = OtherSums {
                slots: total.slots as CUdeviceptr,
                slot_pitch: total.slot_pitch,
                pitch: total.pitch,
                count: total.ranks - 1,
                stop: total.stop as CUdeviceptr,
                epoch: total.epoch as CUdeviceptr,
            };
            let ranks = if self.reduction.average { total.ranks } else { 1 };
            let operands = RawOperands {
                d: total.d as CUdeviceptr,
                c: total.c as CUdeviceptr,
                bias: total.bias as CUdeviceptr,
                alpha: total.alpha / ranks as f32,
                beta: total.beta,
                others: (others.count > 0).then_some(others),
                ..call.product
            };
            let plan = &step.shape.plan;
            for part in plan.problem().parts(rows.clone()) {
                let operands = of_part(product, &operands, &part, part.rows.start - rows.start);
                let rows = (part.rows.len() as u32, last_chunk(plan, &part.rows));
                // SAFETY: the caller's promise; slots are as long as planned.
                unsafe { Self::multiply(stream, product, operands, rows, record) }?;
            }
        }
        Ok(())
    }

    /// Where a chunk's totals are that the schedule moves: in each D. Empty if it moves sums, or nothing.
    fn moved_totals(&self, step: &Begun, of: &plan::Step, calls: &[Call]) -> Vec<PartOfRows> {
        let (plan, rank) = (&step.shape.plan, self.gatherer.group.rank());
        let plan::Step::Move { chunk, .. } = *of else { return Vec::new() };
        if !plan.sends_totals(rank, plan.chunks().rank_of(chunk)) {
            return Vec::new();
        }
        let first = u64::from(plan.chunks().rows(chunk).start);
        let part = |(sum, call): (&Sum, &Call)| {
            let (to, size) = (call.totals.as_ref()?, u64::from(sum.problem.elements().d.size()));
            let pitch = u64::from(sum.problem.ldd()) * size;
            let from = PitchedRows { start: to.d + first * pitch, pitch };
            Some(PartOfRows { from, column: sum.column, bytes: u64::from(sum.problem.n()) * size })
        };
        self.sums.iter().zip(calls).filter_map(part).collect()
    }

    /// Stores the totals of a chunk that its owner has sent.
    ///
    /// # Safety
    /// That of the operation.
    unsafe fn store_totals(
        &self,
        stream: &Arc<CudaStream>,
        step: &Begun,
        chunk: u32,
        calls: &[Call],
    ) -> Result<()> {
        let rows = step.shape.plan.chunks().rows(chunk);
        let size = self.sum_type().size();
        for (sum, call) in self.sums.iter().zip(calls) {
            let Some(to) = &call.totals else { continue };
            let arrived = self.gatherer.own_sums(step, rows.start, sum.column, size.into());
            // The owner has made D of it already.
            let stored = og_reduction {
                c: std::ptr::null(),
                bias: std::ptr::null(),
                alpha: 1.0,
                activation: Activation::None.into(),
                average: 0,
                ..self.outputs(step, &rows, sum, to, arrived)
            };
            // SAFETY: as in `reduce`.
            unsafe { ffi::reduce(&stored, stream) }?;
        }
        Ok(())
    }

    /// All ranks' sums of one product for some of the rows that this rank gets, and what becomes of them; `None` if it gets
    /// none of them.
    fn totals(
        &self,
        step: &Begun,
        rows: &Range<u32>,
        sum: &Sum,
        call: &Call,
    ) -> Option<og_reduction> {
        let to = call.totals.as_ref()?;
        let own = step.shape.plan.summed_rows(self.gatherer.group.rank());
        // A schedule that a test has broken may name another's.
        let rows = rows.start.max(own.start)..rows.end.min(own.end);
        if rows.is_empty() {
            return None;
        }
        let size = self.sum_type().size();
        let sums = self.gatherer.sums(step, &rows, sum.column, size.into());
        Some(self.outputs(step, &rows, sum, to, sums))
    }

    /// What becomes of these sums of some of the rows that this rank gets.
    fn outputs(
        &self,
        step: &Begun,
        rows: &Range<u32>,
        Sum { problem, options, .. }: &Sum,
        to: &RawOperands,
        sums: og_reduction,
    ) -> og_reduction {
        let (sum_type, d_type) = (self.sum_type(), problem.elements().d);
        let pitch = u64::from(problem.ldd()) * u64::from(d_type.size());
        let first = step.shape.plan.output_rows(self.gatherer.group.rank()).start;
        let behind = u64::from(rows.start - first) * pitch;
        let c = if to.c == 0 { 0 } else { to.c + behind };
        // The kernel divides by the number of ranks whose sums it adds up: not what NCCL has added up.
        let divisor = if self.reduction.average && sums.ranks == 1 { problem.ranks() } else { 1 };
        og_reduction {
            rows: rows.len() as i64,
            n: problem.n().into(),
            sum_type: sum_type.into(),
            d_type: d_type.into(),
            d: (to.d + behind) as *mut _,
            c: c as *const _,
            bias: to.bias as *const _,
            ldd: problem.ldd().into(),
            alpha: to.alpha / divisor as f32,
            beta: to.beta,
            activation: options.activation.into(),
            average: self.reduction.average.into(),
            ..sums
        }
    }
}

/// The operands of a part of D's rows, of which `to` is the first to store; those given are of all rows and columns.
fn of_part(product: &Product, operands: &RawOperands, part: &Part, to: u32) -> RawOperands {
    let operands = operands.rows_from(&product.problem, [part.in_a, to]);
    operands.columns_from(&product.problem, part.first_column(&product.problem))
}

/// The last chunk that some rows touch.
fn last_chunk(plan: &Plan, rows: &Range<u32>) -> u32 {
    plan.chunks().touching(rows.clone()).end.saturating_sub(1)
}
