//! What the operations of one process on a GPU know of each other.
//!
//! What belongs here: whether one of the same group has failed, and which steps on several streams may run at the same time. A
//! kernel that waits for other ranks keeps its SMs. If two such kernels start in one order here and in another order on another rank,
//! each may keep out what the other waits for, also if they belong to two groups. Ranks of one group that share a GPU wait for each
//! other, so their steps are not ordered: each rank's operations of such a group know those of the same group only.
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

/// What these operations share.
#[derive(Debug)]
pub(crate) struct Concurrent {
    sm_count: u32,
    /// The end of another stream's work, for the step that follows it.
    end: CudaEvent,
    /// Behind all steps that came before those that may run now.
    since: CudaEvent,
    /// The streams whose steps may still run, and the most SMs that one of these steps keeps.
    running: Vec<(Arc<CudaStream>, u32)>,
    operations: Vec<(Weak<Group>, Weak<Failures>)>,
}

type Shared = Arc<Mutex<Concurrent>>;

/// Whose steps on a GPU are ordered: those of all groups with one rank on it, or of a group whose ranks may share it.
#[derive(Debug)]
struct Known {
    /// Kernels of several contexts take turns on a GPU.
    context: usize,
    alone: Option<Weak<Group>>,
    shared: Weak<Mutex<Concurrent>>,
}

impl Concurrent {
    /// That of the operations of `group` on `device`, as long as one of them exists.
    pub(crate) fn of(group: &Arc<Group>, device: &Device) -> Result<Shared> {
        static ALL: Mutex<Vec<Known>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        all.retain(|known| known.shared.strong_count() > 0);
        let alone = group.shares_devices().then(|| Arc::downgrade(group));
        let context = device.context().cu_ctx() as usize;
        let at = |group: &Option<Weak<Group>>| group.as_ref().map(Weak::as_ptr);
        let mut known =
            all.iter().filter(|known| known.context == context && at(&known.alone) == at(&alone));
        if let Some(shared) = known.find_map(|known| known.shared.upgrade()) {
            return Ok(shared);
        }
        let (end, since) = (untimed_event(device)?, untimed_event(device)?);
        let sm_count = device.info().sm_count;
        let shared =
            Concurrent { sm_count, end, since, running: Vec::new(), operations: Vec::new() };
        let shared = Arc::new(Mutex::new(shared));
        all.push(Known { context, alone, shared: Arc::downgrade(&shared) });
        Ok(shared)
    }

    /// One more operation of `group`.
    pub(crate) fn join(&mut self, group: &Arc<Group>, operation: &Arc<Failures>) {
        self.operations.retain(|(_, known)| known.strong_count() > 0);
        self.operations.push((Arc::downgrade(group), Arc::downgrade(operation)));
    }

    /// An error if a step of an operation of `group` other than `own` has failed.
    pub(crate) fn check_others(&self, group: &Arc<Group>, own: &Arc<Failures>) -> Result<()> {
        let of_group = self.operations.iter().filter(|(of, _)| of.as_ptr() == Arc::as_ptr(group));
        let live = of_group.filter_map(|(_, failures)| failures.upgrade());
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
