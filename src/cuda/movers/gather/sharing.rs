//! A rank's part in what several operations use, a GPU and perhaps memory: when it may begin a step there, and how long its rows
//! stay.
//!
//! Invariant: in shared memory, a step begins behind the steps of other operations, on all ranks, and no other begins before it has
//! been enqueued.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::Gatherer;
use crate::cuda::exchange::shared_workspace::SharedWorkspace;
use crate::error::{Error, Result};
use crate::plan::{Engine, PlanOptions, Problem, Strategy};
use crate::sync::lock;

impl Gatherer {
    /// Products of a step occupy up to `sms` SMs.
    pub(crate) fn note_products(&mut self, sms: u32) {
        let PlanOptions { strategy, engine, operation, .. } = self.plan.options();
        let by_kernel = matches!(engine, Engine::Kernel { .. });
        let products_wait = strategy == Strategy::Fused || (by_kernel && operation.reduces());
        self.waiting_sms = match engine {
            // How many its kernels keep is not known.
            Engine::Nccl => self.device.info().sm_count,
            _ if products_wait => sms + engine.pushing_blocks(),
            _ => 0,
        };
    }

    /// What comes next on `stream` comes behind steps of other operations that it may not run beside.
    pub(super) fn enter_gpu(&self, stream: &Arc<CudaStream>, capturing: bool) -> Result<()> {
        if self.waiting_sms == 0 || self.group.ranks() == 1 || capturing {
            return Ok(());
        }
        lock(&self.concurrent).enter(stream, self.waiting_sms)
    }

    /// What comes next on `stream`, in that capture, comes behind all ranks' steps of other operations.
    pub(super) fn enter_workspace(
        &self,
        stream: &Arc<CudaStream>,
        capture: Option<u64>,
    ) -> Result<()> {
        match (&self.options.workspace, &self.part.place) {
            (Some(workspace), Some(place)) => workspace.begin(place, stream, capture),
            _ => Ok(()),
        }
    }

    /// Another operation may begin a step in the same memory. Whether this one was in a step.
    pub(super) fn leave_workspace(&self) -> bool {
        let (workspace, place) = (&self.options.workspace, &self.part.place);
        workspace.iter().zip(place).any(|(workspace, place)| workspace.end(place))
    }

    /// The problem of the latest step and its buffer, while its rows are available.
    pub(crate) fn latest(&self) -> Option<(&Problem, u32)> {
        let (workspace, place) = (&self.options.workspace, &self.part.place);
        let is_latest = workspace.iter().zip(place).all(|(all, place)| all.is_latest(place));
        let latest = self.course.latest.as_ref().filter(|_| is_latest)?;
        Some((latest.plan.problem(), 1 - self.course.next_buffer))
    }

    /// Whether the latest step is on `stream`, as far as the host knows.
    pub(crate) fn is_latest_stream(&self, stream: &Arc<CudaStream>) -> bool {
        let has_graphs = self.options.workspace.as_ref().is_some_and(SharedWorkspace::has_graphs);
        let order = &self.course.order;
        order.last_stream.as_ref() == Some(stream) && !order.captured && !has_graphs
    }

    /// An error if rows cannot be in place: in a shared workspace other ranks may still read there, until the step begins.
    pub(super) fn check_in_place(&self) -> Result<()> {
        if self.options.workspace.is_none() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "rows in place in a shared workspace".into(),
            why: "another operation may use their place until the step begins".into(),
            remedy: "give the address of the rows, or plan without the workspace",
        })
    }
}
