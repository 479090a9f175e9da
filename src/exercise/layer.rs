//! The operation of one rank in an exercise.
//!
//! What belongs here: what differs between the operations when they are planned and run. Invariant: a step of either takes
//! the same numbers.

use super::Exercise;
use super::numbers::{Numbers, shard_of};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::host::{
    Aborter, AllGatherGemm, GemmAllReduce, GemmReduceScatter, Product, Rank, Shard, Stream,
};
use crate::plan::{Operation, Problem, Scaling};
use crate::trace::Timeline;

pub(super) enum Layer<A, B, D> {
    Gather(AllGatherGemm<A, B, D>),
    Scatter(GemmReduceScatter<A, B, D>),
    Reduce(GemmAllReduce<A, B, D>),
}

impl<A: Element, B: Element, D: Element> Layer<A, B, D> {
    pub(super) fn plan(exercise: &Exercise, rank: &Rank) -> Result<Self> {
        let Exercise { problem, options, reduction, .. } = exercise;
        match options.operation {
            Operation::AllGatherGemm => {
                AllGatherGemm::plan(rank, problem, *options).map(Layer::Gather)
            }
            Operation::GemmReduceScatter => {
                GemmReduceScatter::plan(rank, problem, *options, *reduction).map(Layer::Scatter)
            }
            Operation::GemmAllReduce => {
                GemmAllReduce::plan(rank, problem, *options, *reduction).map(Layer::Reduce)
            }
            other => Err(Error::Unsupported {
                what: format!("an exercise of {other:?}"),
                why: "it runs a product and what travels before or after it".into(),
                remedy: "choose AllGatherGemm, GemmReduceScatter or GemmAllReduce",
            }),
        }
    }

    pub(super) fn aborter(&self) -> Aborter {
        match self {
            Layer::Gather(op) => op.aborter(),
            Layer::Scatter(op) => op.aborter(),
            Layer::Reduce(op) => op.aborter(),
        }
    }

    pub(super) fn flush(&self) -> Result<()> {
        match self {
            Layer::Gather(op) => op.flush(),
            Layer::Scatter(op) => op.flush(),
            Layer::Reduce(op) => op.flush(),
        }
    }

    pub(super) fn take_timeline(&mut self) -> Timeline {
        match self {
            Layer::Gather(op) => op.take_timeline(),
            Layer::Scatter(op) => op.take_timeline(),
            Layer::Reduce(op) => op.take_timeline(),
        }
    }

    /// Writes a rank's rows where the next step expects them, as a producer would before the step.
    pub(super) fn fill_slot(
        &mut self,
        rows: &[u32],
        shape: &Problem,
        rank: u32,
        numbers: &Numbers<A, B, D>,
    ) -> Result<()> {
        // A reduction refuses the step.
        let Layer::Gather(op) = self else { return Ok(()) };
        let (k, lda) = (shape.k() as usize, shape.lda() as usize);
        let shard = shard_of(&numbers.a, shape, rank);
        for (row, slot) in op.local_shard(Some(rows))?.chunks_exact_mut(k).enumerate() {
            slot.copy_from_slice(&shard[row * lda..row * lda + k]);
        }
        Ok(())
    }

    /// One step of one rank.
    pub(super) fn step(
        &mut self,
        exercise: &Exercise,
        stream: &Stream,
        rows: &[u32],
        shape: &Problem,
        rank: u32,
        numbers: &mut Numbers<A, B, D>,
    ) -> Result<()> {
        let Numbers { a, a_scales, b, b_scales, d } = numbers;
        let own = shape.shards().rows(rank);
        let (a, a_scales) = match (&*self, shape.scaling()) {
            (Layer::Scatter(_) | Layer::Reduce(_), _) => (&a[..], &a_scales[..]),
            (Layer::Gather(_), Scaling::Rows) => {
                (shard_of(a, shape, rank), &a_scales[own.start as usize..own.end as usize])
            }
            (Layer::Gather(_), _) => (shard_of(a, shape, rank), &a_scales[..]),
        };
        let input = if exercise.in_place { Shard::in_place() } else { Shard::at(a) };
        let input = input.rows(rows).scales(a_scales);
        let products = &mut [Product::new(b, d).scales(b_scales)];
        match self {
            Layer::Gather(op) => op.enqueue_all(stream, input, products),
            Layer::Scatter(op) => op.enqueue_all(stream, input, products),
            Layer::Reduce(op) => op.enqueue_all(stream, input, products),
        }
    }

    /// An error unless the gathered A, if the operation gathers, is, bit for bit, what the ranks brought.
    pub(super) fn compare_gathered(&self, shape: &Problem, a: &[A]) -> Result<()> {
        let Layer::Gather(op) = self else { return Ok(()) };
        let remedy = "report this as a bug, with the seed";
        let Some(gathered) = op.gathered() else {
            return Err(Error::mismatch("the gathered A", "absent", "there after a step", remedy));
        };
        for row in 0..shape.m() {
            let begin = row as usize * shape.lda() as usize;
            let brought = &a[begin..begin + shape.k() as usize];
            let bits = |x: &A| x.widen().to_bits();
            if !gathered.row(row).iter().map(bits).eq(brought.iter().map(bits)) {
                let what = format!("row {row} of the gathered A");
                return Err(Error::mismatch(what, "different", "what its rank brought", remedy));
            }
        }
        Ok(())
    }
}
