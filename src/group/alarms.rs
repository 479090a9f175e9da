//! The callbacks for what becomes of a group: ranks that leave, and its end.
//!
//! What belongs here: what has happened, and the thread that runs the callbacks. Invariant: every callback runs once for
//! every event, in their order, also for those before it was registered; on a thread that nothing else of the group
//! waits for. One whose holder is gone is dropped with the next event or registration.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::message::Ending;

/// What a callback reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    /// A rank has left properly.
    Left(u32),
    /// The group is over before its time.
    Ended(Ending),
}

/// A callback, and whether somebody still waits for it.
pub(super) struct Watcher {
    pub(super) wanted: Box<dyn Fn() -> bool + Send>,
    pub(super) alarm: Box<dyn FnMut(&News) + Send>,
}

/// A message to the thread.
enum Message {
    Watch(Watcher),
    News(News),
}

#[derive(Default)]
pub(super) struct Alarms {
    past: Vec<News>,
    /// The way to the thread, which runs once somebody watches.
    thread: Option<Sender<Message>>,
}

impl Alarms {
    /// Something has happened. Does not wait.
    pub(super) fn sound(&mut self, news: News) {
        if self.past.contains(&news) {
            return; // rank 0 leaves, and then its store closes
        }
        self.past.push(news.clone());
        if let Some(thread) = &self.thread {
            let _ = thread.send(Message::News(news));
        }
    }

    /// Tells `watcher` of all that has happened or happens. Does not wait.
    pub(super) fn watch(&mut self, watcher: Watcher) {
        if self.thread.is_none() {
            let (tell, told) = channel();
            let past = self.past.clone();
            let thread = thread::Builder::new().name("overlap-gemm alarms".into());
            match thread.spawn(move || watch(past, &told)) {
                Ok(_) => self.thread = Some(tell),
                Err(error) => return tracing::error!(%error, "no thread for a group's alarms"),
            }
        }
        if let Some(thread) = &self.thread {
            let _ = thread.send(Message::Watch(watcher));
        }
    }

    /// What happens later runs no callback: the thread ends.
    pub(super) fn stop(&mut self) {
        self.thread = None;
    }
}

fn watch(mut past: Vec<News>, told: &Receiver<Message>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    for message in told {
        watchers.retain(|watcher| (watcher.wanted)());
        match message {
            Message::News(news) => {
                watchers.iter_mut().for_each(|watcher| (watcher.alarm)(&news));
                past.push(news);
            }
            Message::Watch(mut watcher) => {
                past.iter().for_each(|news| (watcher.alarm)(news));
                watchers.push(watcher);
            }
        }
    }
}
