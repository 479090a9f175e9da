//! How a gather ends: failures, their reports to all ranks, and the drop.
//!
//! Invariant: every failure goes through `fail`, which keeps the first and reports it to all ranks. Nothing is freed that a
//! stream may still use.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaStream, result};

use super::Gatherer;
use crate::cuda::exchange::shared_workspace::SharedWorkspace;
use crate::cuda::exchange::waiters::other_layout;
use crate::cuda::exchange::words::EPOCH_AT;
use crate::cuda::sys::bindings::og_failure_kind;
use crate::cuda::sys::stream_ops::{is_capturing, synchronize};
use crate::error::{Error, Result};
use crate::plan::Engine;
use crate::sync::lock;

impl Gatherer {
    /// Waits for `stream`, and says whether all went well.
    pub(crate) fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let waited = match &self.nccl {
            Some(nccl) => nccl.wait(stream, self.options.timeouts.steady),
            None => synchronize(stream),
        };
        if let Some(nccl) = &mut self.nccl {
            nccl.patience = Duration::ZERO;
        }
        if let Err(error) = &waited {
            self.fail(error);
        }
        self.check()
    }

    /// Ends the operation because somebody asked for it.
    pub(crate) fn abort(&mut self, reason: &str) {
        self.fail(&Error::Aborted { rank: self.group.rank(), reason: reason.to_owned() });
    }

    /// An error if anything went wrong so far: in every step that has ended on a stream that the host has waited for, and perhaps
    /// in later ones. Reads words of the host's memory, so it waits for no stream. After an error the operation is over, on all
    /// ranks: this returns the same error again, a new step [`Error::Over`].
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let found = self.look();
        if let Err(error) = &found {
            self.fail(error);
        }
        found
    }

    /// After a step that failed half way: memory that is freed in the order of `stream` is no longer read by copies. (A graph that
    /// is being captured is never launched.)
    pub(crate) fn await_copies(&self, stream: &Arc<CudaStream>) {
        let by_copies = matches!(self.plan.options().engine, Engine::CopyEngines { .. });
        if by_copies && !is_capturing(stream).unwrap_or(true) {
            // As far as events can be recorded.
            let _ = self.copies.await_all(stream);
        }
    }

    /// Ends the operation, here and on all other ranks.
    pub(crate) fn fail(&mut self, error: &Error) {
        if self.failed.is_none() {
            self.failed = Some(error.clone());
            self.signals.host.set_abort(true);
            self.group.abort(&error.to_string());
            self.leave_workspace();
            if let Some(nccl) = &self.nccl {
                nccl.communicator.abort();
            }
        }
    }

    fn look(&self) -> Result<()> {
        let handed_over = self.options.workspace.as_ref().map_or(Ok(()), SharedWorkspace::check);
        let record = match handed_over {
            // A rank that did not come to the step is why this one was aborted.
            Err(error) if !matches!(error, Error::Aborted { .. }) => return Err(error),
            handed_over => self.signals.failures.check().and(handed_over),
        };
        // A rank that is gone explains more than that somebody asked to stop.
        match (record, self.group.check()) {
            (Ok(()) | Err(Error::Aborted { .. }), Err(ended)) => return Err(ended),
            (Err(error), _) => return Err(error),
            (Ok(()), Ok(())) => {}
        }
        let rank = self.group.rank();
        // What this one has computed may come from what another has not.
        let failures = &self.signals.failures;
        if let Err(other) = lock(&self.concurrent).check_others(&self.group, failures) {
            let reason = format!("a step of another operation of the group failed: {other}");
            return Err(Error::Aborted { rank, reason });
        }
        if self.course.latest.is_none() {
            return Ok(());
        }
        match self.given_up.first() {
            None => Ok(()),
            // This rank has compared no rows, for its own stayed.
            Some((peer, Some(why))) if why.kind == og_failure_kind::OG_FAILURE_LAYOUT.0 => {
                Err(other_layout(rank, peer, why.epoch))
            }
            Some((peer, _)) => Err(Error::Aborted {
                rank,
                reason: format!(
                    "rank {peer} gave up: it may have overwritten rows that this rank still read, or sent wrong totals"
                ),
            }),
        }
    }
}

impl Drop for Gatherer {
    /// What was begun is over within its limits, and so are the pushes: the memory that they write to is held
    /// by its mappings here.
    fn drop(&mut self) {
        if self.leave_workspace() {
            // Rows that nobody has waited for would arrive in the next operation's step.
            let (rank, reason) = (self.group.rank(), "an operation was dropped in a step".into());
            self.fail(&Error::Aborted { rank, reason });
        }
        let context = Arc::clone(self.device.context());
        // An error that an earlier drop has left is not this one's, and would keep the next call from being made.
        let kept = context.check_err();
        context.record_err(context.bind_to_thread());
        if let (Some(nccl), Some(stream)) = (&self.nccl, &self.course.order.last_stream)
            && nccl.wait(stream, self.options.timeouts.steady).is_err()
        {
            // Else what comes next would wait without a limit.
            nccl.communicator.abort();
        }
        if self.signals.uses.wait().is_err() {
            // A stream that is being captured, or a context that is lost: nothing is freed under it.
            std::mem::forget((Arc::clone(&self.part.memory), self.part.place.take()));
            context.record_err(kept);
            return;
        }
        // Nobody else would say so, and others may have read what it computed.
        if self.failed.is_none()
            && let Err(error) = self.signals.failures.check()
        {
            self.fail(&error);
        }
        if !self.course.order.captured {
            // A step that failed half way may have left streams waiting for an epoch that nobody begins.
            let epoch = self.part.word(EPOCH_AT);
            // SAFETY: a word of this rank's own, which no kernel uses any more.
            context.record_err(unsafe { result::memcpy_htod_sync(epoch, &[self.course.epoch]) });
        }
        // A stream that is being captured is another operation's by now.
        let _ = self.copies.synchronize();
        context.record_err(kept);
    }
}
