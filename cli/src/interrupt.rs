//! Ctrl-C, SIGTERM and SIGHUP: a flag that long commands poll, so that they end cleanly.
//!
//! Invariant: the first signal only raises the flag, and the loops that poll it unwind through
//! `Failure::Interrupted`. A later one ends the process at once, for when no loop polls in time. Signals within
//! [`ONE_WISH`] of the first do not count: `timeout` sends SIGTERM twice, a terminal that closes sends
//! SIGHUP twice, and a service manager may send SIGHUP right after SIGTERM.
//! Commands that finish in a moment install nothing and leave Ctrl-C to the system.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::exit::{Failure, INTERRUPTED};

static RAISED: AtomicBool = AtomicBool::new(false);

/// Signals so close together are one wish to end.
const ONE_WISH: Duration = Duration::from_secs(1);

/// Proof that the handler is installed. Cheap to copy into every loop and thread that polls.
#[derive(Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the handler; once a process.
    pub fn install() -> Result<Self, Failure> {
        Interrupt::install_with(|| ())
    }

    /// The same with something to do before a later signal ends the process; it runs on the handler's thread.
    pub fn install_with(at_once: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let mut first: Option<Instant> = None;
        ctrlc::set_handler(move || match first {
            None => {
                first = Some(Instant::now());
                // Relaxed: the flag carries no data with it.
                RAISED.store(true, Ordering::Relaxed);
            }
            Some(first) if first.elapsed() < ONE_WISH => {}
            Some(_) => {
                at_once();
                std::process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(Interrupt(()))
    }

    /// For tests.
    #[cfg(test)]
    pub fn none() -> Self {
        Interrupt(())
    }

    /// `Err(Failure::Interrupted)` from the first Ctrl-C on.
    pub fn check(self) -> Result<(), Failure> {
        if RAISED.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}
