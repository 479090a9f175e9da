//! Memory of `cudarc` as addresses, while its use is noted.
//!
//! What belongs here: from [`Operands`] to [`RawOperands`], for a product and for a step of several ranks. Invariant: a
//! [`Held`] outlives the launch of what uses its addresses; when it is dropped, `cudarc` learns that the stream uses the
//! buffers, so that they are not freed before.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

use super::operands::Operands;
use super::raw_operands::RawOperands;
use super::shard::Shard;
use crate::cuda::sys::stream_ops::{check_tracked, refuse_capture};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::plan::{Problem, Scaling};

/// The rows of A, of its row scales, and of D in one call, and the most that were planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) a: [u32; 2],
    pub(crate) scales: [u32; 2],
    pub(crate) d: [u32; 2],
}

/// Uses of slices by the work that is enqueued on a stream until this is dropped.
pub(crate) struct Guards<'a> {
    stream: &'a CudaStream,
    uses: Vec<SyncOnDrop<'a>>,
}

impl<'a> Guards<'a> {
    pub(crate) fn new(stream: &'a CudaStream) -> Self {
        Guards { stream, uses: Vec::with_capacity(3) }
    }

    /// The address of what the stream reads, after all earlier writes.
    pub(crate) fn read<T>(&mut self, slice: &'a dyn DevicePtr<T>) -> Result<CUdeviceptr> {
        check_tracked(slice.stream(), self.stream)?;
        let (address, guard) = slice.device_ptr(self.stream);
        self.uses.push(guard);
        Ok(address)
    }

    /// The address of what the stream writes, after all earlier reads and writes.
    pub(crate) fn write<T>(&mut self, slice: &'a mut dyn DevicePtrMut<T>) -> Result<CUdeviceptr> {
        check_tracked(slice.stream(), self.stream)?;
        let (address, guard) = slice.device_ptr_mut(self.stream);
        self.uses.push(guard);
        Ok(address)
    }
}

/// The operands of one call, and the uses of their buffers.
pub(crate) struct Held<'a> {
    pub(crate) raw: RawOperands,
    _uses: Guards<'a>,
}

/// What a step of several ranks multiplies: one A, and for each product the rest.
pub(crate) struct HeldStep<'a> {
    pub(crate) shard: Shard<'a>,
    pub(crate) raw: Vec<RawOperands>,
    _held: Vec<Held<'a>>,
}

impl<'a, A: Element, B: Element, D: Element> Operands<'a, A, B, D> {
    /// The addresses, for work on `stream`, which comes after all earlier writes of the buffers.
    pub(crate) fn hold<'s>(self, stream: &'s CudaStream) -> Result<Held<'s>>
    where
        'a: 's,
    {
        let Operands { a, b, d, c, bias, scales, scale_d, amax, .. } = self;
        let (alpha, beta, rows, records) = (self.alpha, self.beta, self.rows, self.records);
        let mut uses = Guards::new(stream);
        let (a, b, d) = (a.read(&mut uses)?, b.read(&mut uses)?, d.write(&mut uses)?);
        let mut raw = RawOperands { alpha, beta, rows, ..RawOperands::new(a, b, d) };
        raw.c = c.map_or(Ok(0), |c| c.read(&mut uses))?;
        raw.bias = bias.map_or(Ok(0), |bias| uses.read(bias))?;
        if let Some([of_a, of_b]) = scales {
            raw = raw.scales(uses.read(of_a)?, uses.read(of_b)?);
        }
        raw.scale_d = scale_d.map_or(Ok(0), |scale| uses.read(scale))?;
        raw.amax = amax.map_or(Ok(0), |amax| uses.write(amax))?;
        raw.records = records.map_or(Ok(0), |records| uses.write(&mut records.memory))?;
        Ok(Held { raw, _uses: uses })
    }
}

impl<'a> HeldStep<'a> {
    /// Checks that the operands fit the problems, of which each is a product of the same A.
    pub(crate) fn new<'o, 'p, A: Element, B: Element, D: Element>(
        operands: Vec<Operands<'o, A, B, D>>,
        problems: impl Iterator<Item = &'p Problem>,
        context: &Arc<CudaContext>,
        rows: Rows,
        stream: &'a CudaStream,
    ) -> Result<Self>
    where
        'o: 'a,
    {
        refuse_capture(stream)?;
        let (mut held, mut by_rows) = (Vec::with_capacity(operands.len()), false);
        let ranks_rows = operands.first().and_then(|first| first.ranks_rows);
        if let Some(other) = operands.iter().position(|other| other.ranks_rows != ranks_rows) {
            let (what, remedy) = (format!("the rows of product {other}"), "give all the same");
            return Err(Error::mismatch(what, "others", "those of product 0", remedy));
        }
        for (operands, problem) in operands.into_iter().zip(problems) {
            let alone =
                [("records", operands.records.is_some()), ("rows", operands.rows.is_some())];
            if let Some((what, _)) = alone.into_iter().find(|(_, there)| *there) {
                return Err(Error::Unsupported {
                    what: format!("`{what}` of the operands of a step"),
                    why: "it belongs to a product alone".into(),
                    remedy: "use `ranks_rows`, or a StepRecord",
                });
            }
            operands.check(problem, context, rows)?;
            by_rows = problem.scaling() == Scaling::Rows;
            held.push(operands.hold(stream)?);
        }
        let (at, scales) = one_a(&held, by_rows)?;
        let mut shard = Shard::at(at).scales(scales);
        shard.rows = ranks_rows;
        let rest = |held: &Held<'_>| {
            let scale_a = if by_rows { 0 } else { held.raw.scale_a };
            RawOperands { a: 0, scale_a, ..held.raw }
        };
        Ok(HeldStep { shard, raw: held.iter().map(rest).collect(), _held: held })
    }
}

/// The address of the A of all products, and of its row scales if it has such; an error if there are several.
pub(crate) fn one_a(held: &[Held<'_>], by_rows: bool) -> Result<(CUdeviceptr, CUdeviceptr)> {
    let of = |held: &Held<'_>| (held.raw.a, if by_rows { held.raw.scale_a } else { 0 });
    let first = held.first().map_or((0, 0), of);
    if let Some(other) = held.iter().position(|held| of(held) != first) {
        let (what, remedy) = (format!("the A of product {other}"), "give all products one A");
        return Err(Error::mismatch(what, "another", "that of product 0", remedy));
    }
    Ok(first)
}
