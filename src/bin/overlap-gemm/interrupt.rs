//! Ctrl-C, and SIGTERM: a flag that long commands poll, so that they end cleanly.
//!
//! Invariant: the first Ctrl-C only raises the flag, and whoever polls unwinds through
//! `Failure::Interrupted`; a second one ends the process at once, for when nobody polls in time.
//! Commands that finish in a moment install nothing and leave Ctrl-C to the system.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::{Failure, INTERRUPTED};

static RAISED: AtomicBool = AtomicBool::new(false);

/// Proof that the handler is installed. Cheap to copy into every loop and thread that polls.
#[derive(Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the handler; once a process.
    pub fn install() -> Result<Self, Failure> {
        ctrlc::set_handler(|| {
            // Relaxed: the flag carries no data with it.
            if RAISED.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(Interrupt(()))
    }

    /// For tests, which nobody interrupts.
    #[cfg(test)]
    pub fn none() -> Self {
        Interrupt(())
    }

    /// `Err(Failure::Interrupted)` from the first Ctrl-C on.
    pub fn check(self) -> Result<(), Failure> {
        if RAISED.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}
