//! Steps of one group's operations on several streams of a GPU.
//!
//! What belongs here: which of them may run at the same time. A kernel that waits for other ranks keeps its SMs. If two such
//! kernels start in one order here and in another order on another rank, each may keep out what the other waits for.
//! Invariant: steps that may run at the same time fit the GPU's SMs together. Any other step follows those that were enqueued before
//! it; all ranks enqueue the steps in the same order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::{CudaEvent, CudaStream};

use crate::cuda::sys::device::Device;
use crate::cuda::sys::stream_ops::{follow, is_capturing, untimed_event};
use crate::error::Result;
use crate::group::Group;

/// What the operations of one rank share.
#[derive(Debug)]
pub(crate) struct Concurrent {
    sm_count: u32,
    event: CudaEvent,
    /// The streams whose steps may still run, and the most SMs that one of these steps keeps.
    running: Vec<(Arc<CudaStream>, u32)>,
}

type Shared = Arc<Mutex<Concurrent>>;

impl Concurrent {
    /// That of the operations of `group`, as long as one of them exists.
    pub(crate) fn of(group: &Arc<Group>, device: &Device) -> Result<Shared> {
        /// By the address of the group, which the operations keep.
        static ALL: Mutex<Vec<(usize, Weak<Mutex<Concurrent>>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, shared)| shared.strong_count() > 0);
        let address = Arc::as_ptr(group).addr();
        let mut known = all.iter().filter(|(of, _)| *of == address);
        if let Some(shared) = known.find_map(|(_, shared)| shared.upgrade()) {
            return Ok(shared);
        }
        let (sm_count, event) = (device.info().sm_count, untimed_event(device)?);
        let shared = Arc::new(Mutex::new(Concurrent { sm_count, event, running: Vec::new() }));
        all.push((address, Arc::downgrade(&shared)));
        Ok(shared)
    }

    pub(crate) fn lock(shared: &Shared) -> MutexGuard<'_, Concurrent> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next step, which keeps up to `sms` SMs while it waits, is on `stream`, outside of graphs: nobody here knows when a graph
    /// is launched.
    pub(crate) fn enter(&mut self, stream: &Arc<CudaStream>, sms: u32) -> Result<()> {
        let others = self.running.iter().filter(|(running, _)| running != stream);
        let kept: u32 = others.clone().map(|(_, kept)| *kept).sum();
        if kept.saturating_add(sms) > self.sm_count {
            for (other, _) in others {
                if !is_capturing(other)? {
                    follow(stream, &self.event, other)?;
                }
            }
            self.running.retain(|(running, _)| running == stream);
        }
        match self.running.iter_mut().find(|(running, _)| running == stream) {
            Some((_, kept)) => *kept = (*kept).max(sms),
            None => self.running.push((Arc::clone(stream), sms)),
        }
        Ok(())
    }
}
