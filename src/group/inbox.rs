//! The messages that a rank has received, and waits for them.
//!
//! What belongs here: the one place where a rank's threads wait for the group. Invariant: every wait ends:
//! by the awaited message, by the end of the group, or by its deadline; every callback for
//! the group's end runs exactly once, even if it is registered afterwards. (Callbacks for leaves: `leaving.rs`.)

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::identity::Member;
use super::leaving::{Leaving, Wanted, Watcher};
use super::message::{Ending, Notice, nonsense};

/// Called once when the group ends before its time.
pub(super) type Alarm = Box<dyn FnOnce(&Ending) + Send>;

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
    leaving: Leaving,
    /// The store has closed properly.
    closed: bool,
    ended: Option<Ending>,
    alarms: Vec<(Wanted, Alarm)>,
}

/// Calls the alarms on their own thread: the caller has other ranks to notify, and may hold locks.
fn sound(alarms: Vec<(Wanted, Alarm)>, ending: Ending) {
    if alarms.is_empty() {
        return;
    }
    let thread = thread::Builder::new().name("overlap-gemm alarm".into());
    let sounding = thread.spawn(move || alarms.into_iter().for_each(|(_, alarm)| alarm(&ending)));
    if let Err(error) = sounding {
        tracing::error!(%error, "no thread for the alarms of a group that has ended");
    }
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
            Notice::Left { rank } => state.leaving.left(rank),
            Notice::Closed => {
                state.closed = true;
                state.leaving.left(0);
            }
            Notice::Ended(ending) if state.ended.is_none() => {
                state.ended = Some(ending.clone());
                sound(std::mem::take(&mut state.alarms), ending);
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
        state.leaving.stop();
        let alarms = std::mem::take(&mut state.alarms);
        drop(state);
        drop(alarms); // what they hold may come back here
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.lock().ended.clone()
    }

    /// Calls `alarm` when the group ends before its time, or soon if it has. Those that nobody wants any more are
    /// forgotten then.
    pub(super) fn on_end(&self, wanted: Wanted, alarm: Alarm) {
        let mut state = self.lock();
        if let Some(ending) = state.ended.clone() {
            return sound(vec![(wanted, alarm)], ending);
        }
        let alarms = std::mem::take(&mut state.alarms).into_iter();
        let (mut kept, gone): (Vec<_>, Vec<_>) = alarms.partition(|(wanted, _)| wanted());
        kept.push((wanted, alarm));
        state.alarms = kept;
        drop(state);
        drop(gone); // as in `leave`
    }

    /// Tells `watcher` of every rank that has left or leaves.
    pub(super) fn on_leave(&self, watcher: Watcher) {
        self.lock().leaving.watch(watcher);
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::group::Group;

    /// Else a process that plans again and again would keep something of every plan.
    #[test]
    fn who_is_gone_is_told_nothing_and_forgotten() {
        let group = Group::local(1).unwrap().remove(0);
        let (tell, told) = channel();
        let held = Arc::new(());
        let watch = |name: &'static str| {
            let (whom, held, tell) = (Arc::new(name), Arc::clone(&held), tell.clone());
            group.on_end_tell(&whom, move |name, _| {
                let _held = held;
                tell.send(*name).unwrap();
            });
            whom
        };
        let stays = watch("stays");
        for _ in 0..10 {
            drop(watch("goes"));
        }
        // Itself, the one that stays, and the last that went.
        assert_eq!(Arc::strong_count(&held), 3);
        group.abort("enough");
        drop(tell);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), "stays");
        assert_eq!(told.iter().count(), 0);
        drop(stays);
    }
}
