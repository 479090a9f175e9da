//! What one group's operations on a GPU know of each other.
//!
//! What belongs here: whether one of them has failed, and which steps on several streams may run at the same time. A kernel that
//! waits for other ranks keeps its SMs. If two such kernels start in one order here and in another order on another rank, each may
//! keep out what the other waits for.
//! Invariant: steps that may run at the same time fit the GPU's SMs together. Any other step follows those that were enqueued before
//! it; all ranks enqueue the steps in the same order.

use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::{CudaEvent, CudaStream};

use super::waiters::Failures;
use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{follow, is_capturing, record, untimed_event, wait};
use crate::error::Result;
use crate::group::Group;
use crate::sync::lock;

/// What the operations of one rank share.
#[derive(Debug)]
pub(crate) struct Concurrent {
    sm_count: u32,
    /// The end of another stream's work, for the step that follows it.
    end: CudaEvent,
    /// Behind all steps that came before those that may run now.
    since: CudaEvent,
    /// The streams whose steps may still run, and the most SMs that one of these steps keeps.
    running: Vec<(Arc<CudaStream>, u32)>,
    operations: Vec<Weak<Failures>>,
}

type Shared = Arc<Mutex<Concurrent>>;
type OfGroup = (Weak<Group>, Weak<Mutex<Concurrent>>);

impl Concurrent {
    /// That of the operations of `group`, as long as one of them exists.
    pub(crate) fn of(group: &Arc<Group>, device: &Device) -> Result<Shared> {
        static ALL: Mutex<Vec<OfGroup>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        all.retain(|(_, shared)| shared.strong_count() > 0);
        let mut known = all.iter().filter(|(of, _)| of.as_ptr() == Arc::as_ptr(group));
        if let Some(shared) = known.find_map(|(_, shared)| shared.upgrade()) {
            return Ok(shared);
        }
        let (end, since) = (untimed_event(device)?, untimed_event(device)?);
        let sm_count = device.info().sm_count;
        let shared =
            Concurrent { sm_count, end, since, running: Vec::new(), operations: Vec::new() };
        let shared = Arc::new(Mutex::new(shared));
        all.push((Arc::downgrade(group), Arc::downgrade(&shared)));
        Ok(shared)
    }

    /// One more operation.
    pub(crate) fn join(&mut self, operation: &Arc<Failures>) {
        self.operations.retain(|known| known.strong_count() > 0);
        self.operations.push(Arc::downgrade(operation));
    }

    /// An error if a step of an operation other than `own` has failed.
    pub(crate) fn check_others(&self, own: &Arc<Failures>) -> Result<()> {
        let live = self.operations.iter().filter_map(Weak::upgrade);
        live.filter(|other| !Arc::ptr_eq(other, own)).try_for_each(|other| other.check())
    }

    /// The next step, which keeps up to `sms` SMs while it waits, is on `stream`, outside of graphs: nobody here knows when a graph
    /// is launched.
    pub(crate) fn enter(&mut self, stream: &Arc<CudaStream>, sms: u32) -> Result<()> {
        let others = self.running.iter().filter(|(running, _)| running != stream);
        let kept: u32 = others.clone().map(|(_, kept)| *kept).sum();
        let known = self.running.iter().position(|(running, _)| running == stream);
        if kept.saturating_add(sms) > self.sm_count {
            for (other, _) in others {
                if !is_capturing(other)? {
                    follow(stream, &self.end, other)?;
                }
            }
            record(&self.since, stream)?;
            let most = known.map_or(sms, |at| self.running[at].1.max(sms));
            self.running.clear();
            self.running.push((Arc::clone(stream), most));
        } else if let Some(at) = known {
            self.running[at].1 = self.running[at].1.max(sms);
        } else {
            // What has never been recorded is not waited for.
            wait(stream, &self.since)?;
            self.running.push((Arc::clone(stream), sms));
        }
        Ok(())
    }
}
