//! Ranks that have left the group, and the callbacks for them.
//!
//! What belongs here: the list of ranks that have left properly, and the thread that runs the callbacks.
//! Invariant: every callback runs once for every rank that leaves, in the order in which they left, also
//! for those that left before it was registered; on a thread that nothing else of the group waits for.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Whether somebody still waits for the call. Runs under a lock, so it only looks.
pub(super) type Wanted = Box<dyn Fn() -> bool + Send>;

/// Called for every rank that leaves.
pub(super) struct Watcher {
    pub(super) wanted: Wanted,
    pub(super) alarm: Box<dyn Fn(u32) + Send>,
}

/// A message to the thread.
enum News {
    Watch(Watcher),
    Left(u32),
}

#[derive(Default)]
pub(super) struct Leaving {
    left: Vec<u32>,
    /// The way to the thread, which runs once somebody watches.
    thread: Option<Sender<News>>,
}

impl Leaving {
    /// A rank has left. Does not wait.
    pub(super) fn left(&mut self, rank: u32) {
        if self.left.contains(&rank) {
            return; // rank 0 leaves, and then its store closes
        }
        self.left.push(rank);
        if let Some(thread) = &self.thread {
            let _ = thread.send(News::Left(rank));
        }
    }

    /// Tells `watcher` of all that have left or leave. Does not wait.
    pub(super) fn watch(&mut self, watcher: Watcher) {
        if self.thread.is_none() {
            let (tell, told) = channel();
            let left = self.left.clone();
            let thread = thread::Builder::new().name("overlap-gemm leaves".into());
            match thread.spawn(move || watch(left, &told)) {
                Ok(_) => self.thread = Some(tell),
                Err(error) => {
                    return tracing::error!(%error, "no thread to tell of ranks that leave");
                }
            }
        }
        if let Some(thread) = &self.thread {
            let _ = thread.send(News::Watch(watcher));
        }
    }

    /// Later leaves run no callback: the thread ends.
    pub(super) fn stop(&mut self) {
        self.thread = None;
    }
}

fn watch(mut left: Vec<u32>, told: &Receiver<News>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    for news in told {
        watchers.retain(|watcher| (watcher.wanted)());
        match news {
            News::Left(rank) => {
                left.push(rank);
                watchers.iter().for_each(|watcher| (watcher.alarm)(rank));
            }
            News::Watch(watcher) => {
                left.iter().for_each(|rank| (watcher.alarm)(*rank));
                watchers.push(watcher);
            }
        }
    }
}
