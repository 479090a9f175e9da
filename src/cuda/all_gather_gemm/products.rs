//! The products of a step: of which operands, in which order.
//!
//! What belongs here: the gathered A in place of the caller's, and what is enqueued behind which wait.
//! Invariant: no product reads a row before something on its stream, or the product itself, has waited for it.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::AllGatherGemm;
use crate::cuda::movers::gather::Step;
use crate::cuda::product::Product;
use crate::cuda::product::operands::RawOperands;
use crate::cuda::sys::call::Input;
use crate::error::Result;

impl AllGatherGemm {
    /// The operands with the gathered A of a step of `m` rows.
    pub(crate) fn whole(
        &self,
        product: &Product,
        operands: &RawOperands,
        buffer: u32,
        m: u32,
    ) -> Result<RawOperands> {
        let (rows, scales) = self.gatherer.gathered(buffer);
        let whole = operands.with_a(&product.problem, rows, scales)?;
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
                let rows = compute.rows.clone();
                // SAFETY: the caller's promise.
                unsafe { product.enqueue_rows(stream, operands, rows, input.as_ref()) }?;
                input = input.map(Input::after_another);
            }
        }
        Ok(())
    }
}
