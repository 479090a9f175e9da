//! The numbers of one step on one rank, and what their output should be.
//!
//! Invariant: they follow from the seed, the step and the rank, so a rank knows those of the others.

use super::Exercise;
use crate::element::Element;
use crate::error::Result;
use crate::plan::{Operation, Problem};
use crate::random::Random;
use crate::reference::{Epilogue, Reference, Report, compare_reduced};

/// The matrices and scales of one step on one rank. A has all rows: of a gather, the same on every rank; of a
/// reduction, those over the rank's slice of K.
pub(super) struct Numbers<A, B, D> {
    pub(super) a: Vec<A>,
    pub(super) a_scales: Vec<f32>,
    pub(super) b: Vec<B>,
    pub(super) b_scales: Vec<f32>,
    pub(super) d: Vec<D>,
}

/// A rank's rows of A, without the padding of the last one.
pub(super) fn shard_of<'a, A>(a: &'a [A], shape: &Problem, rank: u32) -> &'a [A] {
    let own = shape.shards().rows(rank);
    let begin = own.start as usize * shape.lda() as usize;
    if own.is_empty() { &[] } else { &a[begin..begin + shape.a_len(own.len() as u32) as usize] }
}

impl<A: Element, B: Element, D: Element> Numbers<A, B, D> {
    pub(super) fn draw(exercise: &Exercise, shape: &Problem, step: u64, rank: u32) -> Self {
        let mut own = Random::of_stream(exercise.seed, step << 16 | u64::from(rank + 1));
        let mut shared = Random::of_stream(exercise.seed, step << 16);
        let of_a = if exercise.reduces() { &mut own } else { &mut shared };
        let rows = exercise.options.operation.output_rows(shape, rank).len() as u32;
        Numbers {
            a: of_a.elements(shape.a_len(shape.rows_of_a())),
            a_scales: of_a.scales(shape.scaling().count(shape.rows_of_a())),
            b: own.elements(shape.b_len()),
            b_scales: own.scales(shape.scaling().count(shape.columns_of_b())),
            d: vec![D::POISON; shape.d_len_of(rows) as usize],
        }
    }

    fn reference<'a>(&'a self, shape: &'a Problem) -> Result<Reference<'a, A, B>> {
        Reference::new(shape, &self.a, &self.b, &self.a_scales, &self.b_scales)
    }

    /// Compares what `rank` got in `step`.
    pub(super) fn compare(
        &self,
        exercise: &Exercise,
        shape: &Problem,
        step: u64,
        rank: u32,
    ) -> Result<Report> {
        let spread = |m: u32| {
            let stride = m.div_ceil(exercise.compared_rows.clamp(1, m.max(1))).max(1);
            (0..m).rev().step_by(stride as usize)
        };
        let operation = exercise.options.operation;
        let rows = spread(operation.output_rows(shape, rank).len() as u32);
        if !operation.reduces() {
            return self.reference(shape)?.compare(&self.d, rows);
        }
        let all: Vec<Numbers<A, B, D>> =
            (0..shape.ranks()).map(|rank| Numbers::draw(exercise, shape, step, rank)).collect();
        let all: Vec<_> = all.iter().map(|one| one.reference(shape)).collect::<Result<_>>()?;
        let owner = (operation == Operation::GemmReduceScatter).then_some(rank);
        compare_reduced(&all, owner, exercise.reduction, &self.d, rows, Epilogue::default())
    }
}
