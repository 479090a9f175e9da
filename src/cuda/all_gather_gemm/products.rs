//! The products of a step: of which operands, in which order.
//!
//! What belongs here: the gathered A in place of the caller's, and what is enqueued behind which wait.
//! Invariant: no product reads a row before something on its stream, or the product itself, has waited for it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::AllGatherGemm;
use crate::cuda::movers::gather::Step;
use crate::cuda::product::Product;
use crate::cuda::product::operands::RawOperands;
use crate::cuda::sys::call::Input;
use crate::error::{Error, Result};
use crate::plan::{Problem, Scaling};

impl AllGatherGemm {
    /// The operands with the gathered A of a step of `m` rows.
    pub(crate) fn whole(
        &self,
        product: &Product,
        operands: &RawOperands,
        buffer: u32,
        m: u32,
    ) -> Result<RawOperands> {
        let by_rows = product.problem.scaling() == Scaling::Rows;
        let own =
            [("A", operands.a != 0), ("the row scales of A", by_rows && operands.scale_a != 0)];
        for (what, there) in own {
            if there {
                let remedy = "name it by the shard: RawOperands::of_gathered leaves it out";
                return Err(Error::mismatch(what, "there", "absent", remedy));
            }
        }
        let (rows, scales) = self.gatherer.gathered(buffer);
        let scale_a = if by_rows { scales } else { operands.scale_a };
        let whole = RawOperands { a: rows, scale_a, ..*operands };
        whole.rows(m.min(product.problem.m())).check(&product.problem, &product.options)?;
        Ok(whole)
    }

    /// What the schedule multiplies, behind what it awaits.
    ///
    /// # Safety
    /// As for [`AllGatherGemm::enqueue`].
    pub(crate) unsafe fn multiply(
        &self,
        stream: &Arc<CudaStream>,
        step: &Step,
        operands: &[RawOperands],
    ) -> Result<()> {
        for compute in &step.shape.computes {
            self.gatherer.await_rows(stream, step, compute)?;
            let mut input = match compute.by_tile {
                true => Some(self.gatherer.input(stream, step)?),
                false => None,
            };
            for (product, operands) in self.products.iter().zip(operands) {
                // As many at a time as were planned for: in this step a rank may have more.
                let most = product.problem.m();
                for first in compute.rows.clone().step_by(most as usize) {
                    let count = (compute.rows.end - first).min(most);
                    let part = rows_of(&product.problem, operands, first).rows(count);
                    // SAFETY: the caller's promise, for some of the rows.
                    unsafe { product.enqueue_raw(stream, &part, input.as_ref()) }?;
                }
                input = input.map(Input::after_another);
            }
        }
        Ok(())
    }
}

/// The operands of the rows from `first` on.
fn rows_of(problem: &Problem, operands: &RawOperands, first: u32) -> RawOperands {
    let elements = problem.elements();
    let at = |start: CUdeviceptr, pitch: u32, size: u32| {
        start + u64::from(first) * u64::from(pitch) * u64::from(size)
    };
    let d = |start| at(start, problem.ldd(), elements.d.size());
    let by_rows = problem.scaling() == Scaling::Rows;
    RawOperands {
        a: at(operands.a, problem.lda(), elements.a.size()),
        d: d(operands.d),
        c: if operands.c == 0 { 0 } else { d(operands.c) },
        scale_a: if by_rows { at(operands.scale_a, 1, 4) } else { operands.scale_a },
        ..*operands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_rank_start_where_they_lie() {
        let problem = Problem::builder(100, 48, 64).shards(&[40, 60]).lda(80).ldd(56);
        let problem = problem.build().unwrap();
        let whole = RawOperands { a: 1600, ..RawOperands::of_gathered(16, 3200) }.c(6400, 1.0);
        let part = rows_of(&problem, &whole, 40);
        assert_eq!((part.a, part.b), (1600 + 40 * 80 * 2, 16));
        assert_eq!((part.d, part.c), (3200 + 40 * 56 * 2, 6400 + 40 * 56 * 2));
    }
}
