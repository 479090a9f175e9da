//! A lock that a panic does not end.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if a thread panicked while it held the lock: no update under a lock of this crate can be cut short.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
