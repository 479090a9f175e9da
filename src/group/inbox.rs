//! The messages that a rank has received, and waits for them.
//!
//! What belongs here: the one place where a rank's threads wait for the group. Invariant: every wait ends:
//! by the awaited message, by the end of the group, or by its deadline. (Callbacks: `alarms.rs`.)

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::alarms::{Alarms, News, Watcher};
use super::identity::Member;
use super::message::{Ending, Notice, nonsense};
use crate::sync::lock;

#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    members: Option<Vec<Member>>,
    gathered: Option<(u64, Arc<Vec<Vec<u8>>>)>,
    missing: Option<Vec<u32>>,
    alarms: Alarms,
    /// The store has closed properly.
    closed: bool,
    ended: Option<Ending>,
}

/// How a wait ended, if not by what was awaited.
#[derive(Debug, PartialEq)]
pub(super) enum Vain {
    Ended(Ending),
    Late,
}

impl Inbox {
    /// The sender of a message to this rank calls this; it does not wait.
    pub(super) fn take(&self, notice: Notice) {
        let mut state = self.lock();
        match notice {
            Notice::Complete { members } => state.members = Some(members),
            Notice::Gathered { exchange, parts } => state.gathered = Some((exchange, parts)),
            Notice::Missing { ranks } => state.missing = Some(ranks),
            Notice::Left { rank } => state.alarms.sound(News::Left(rank)),
            Notice::Closed => {
                state.closed = true;
                state.alarms.sound(News::Left(0));
            }
            Notice::Ended(ending) if state.ended.is_none() => {
                state.ended = Some(ending.clone());
                state.alarms.sound(News::Ended(ending));
            }
            Notice::Ended(_) => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The connection to the store is gone. If it had closed properly, that is no end: only what needs
    /// the store fails.
    pub(super) fn cut(&self, error: &io::Error) {
        if self.is_closed() {
            return;
        }
        self.take(Notice::Ended(match error.kind() {
            io::ErrorKind::InvalidData => Ending::Refused { reason: nonsense(0, error) },
            _ => Ending::Lost { rank: 0 },
        }));
    }

    /// Whether the store has closed.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// This rank leaves: later ends raise no alarm.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.alarms.stop();
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.lock().ended.clone()
    }

    /// Tells `watcher` of every rank that has left or leaves, and of the group's end.
    pub(super) fn watch(&self, watcher: Watcher) {
        self.lock().alarms.watch(watcher);
    }

    pub(super) fn members(&self, until: Instant) -> Result<Vec<Member>, Vain> {
        self.wait(until, |state| state.members.take())
    }

    pub(super) fn gathered(
        &self,
        exchange: u64,
        until: Instant,
    ) -> Result<Arc<Vec<Vec<u8>>>, Vain> {
        self.wait(until, |state| {
            let parts = state.gathered.take_if(|(number, _)| *number == exchange);
            parts.map(|(_, parts)| parts)
        })
    }

    pub(super) fn missing(&self, until: Instant) -> Result<Vec<u32>, Vain> {
        self.wait(until, |state| state.missing.take())
    }

    /// Waits until `look` finds something; what has arrived already is found even if the group has ended.
    fn wait<T>(&self, until: Instant, look: impl Fn(&mut State) -> Option<T>) -> Result<T, Vain> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if let Some(ending) = &state.ended {
                return Err(Vain::Ended(ending.clone()));
            }
            if state.closed {
                return Err(Vain::Ended(Ending::Lost { rank: 0 }));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Vain::Late);
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
