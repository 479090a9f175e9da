//! Products and kernels that wait for signals, and the errors that their failures become.
//!
//! What belongs here: from a failure record of the device to an error that names rank, peer, chunk, epoch and limit.
//! Invariant: no record, however odd, makes this panic or name a rank that does not exist.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cuda::sys::bindings::{og_failure, og_failure_kind};
use crate::cuda::sys::host_words::HostWords;
use crate::error::{Error, Result};
use crate::plan::Chunks;
use crate::sync::lock;

/// Where an operation's kernels say that they have given up, and who waited.
#[derive(Debug)]
pub(crate) struct Failures {
    host: Arc<HostWords>,
    waiters: Mutex<Waiters>,
}

impl Failures {
    pub(crate) fn at(host: &Arc<HostWords>) -> Arc<Self> {
        Arc::new(Failures { host: Arc::clone(host), waiters: Mutex::default() })
    }

    pub(crate) fn note_waiter(&self, epoch: u32, captured: bool, waiter: Waiter) {
        lock(&self.waiters).note(epoch, captured, waiter);
    }

    /// An error if a kernel has given up.
    pub(crate) fn check(&self) -> Result<()> {
        in_words_of(&lock(&self.waiters), self.host.failure())
    }

    /// An error if a kernel has given up since the last call of this.
    pub(crate) fn take(&self) -> Result<()> {
        let waiters = lock(&self.waiters);
        in_words_of(&waiters, self.host.take_failure())
    }
}

fn in_words_of(waiters: &Waiters, failure: Option<og_failure>) -> Result<()> {
    let Some(failure) = failure else { return Ok(()) };
    let Some(waiter) = waiters.of(failure.epoch) else { return Ok(()) };
    Err(in_words(failure, waiter))
}

/// Who waits, from which epoch on, the latest last: steps are enqueued ahead, and a failure is of one of them.
#[derive(Debug, Default)]
pub(crate) struct Waiters(VecDeque<(u32, Waiter)>);

/// What a failure needs to be told in words.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Waiter {
    pub(crate) rank: u32,
    pub(crate) limit: Duration,
    pub(crate) chunks: Chunks,
    /// What is awaited are sums: a failure counts the ranks that send them, not chunks.
    pub(crate) of_sums: bool,
}

impl Waiters {
    /// The most that are kept: only a different one is added, and few are.
    const KEPT: usize = 64;

    pub(crate) fn note(&mut self, epoch: u32, captured: bool, waiter: Waiter) {
        if captured {
            self.0.clear();
        }
        if self.0.back().is_some_and(|(_, last)| *last == waiter) {
            return;
        }
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back((epoch, waiter));
    }

    /// Who waited in `epoch`. Epochs wrap; one that is older than all that is kept, or of a graph, is the latest's.
    pub(crate) fn of(&self, epoch: u32) -> Option<&Waiter> {
        let began = |first: u32| epoch.wrapping_sub(first) as i32 >= 0;
        let own = self.0.iter().rev().find(|(first, _)| began(*first));
        own.or(self.0.back()).map(|(_, waiter)| waiter)
    }
}

/// The error that a failure is.
pub(crate) fn in_words(failure: og_failure, waiter: &Waiter) -> Error {
    let og_failure { chunk, signal, epoch, tile_m, tile_n, kind, .. } = failure;
    let Waiter { rank, limit, ref chunks, of_sums } = *waiter;
    let awaited = match tile_m {
        _ if of_sums => "sums of its rows".to_owned(),
        u32::MAX => format!("chunk {chunk}"),
        _ => format!("chunk {chunk} (for tile ({tile_m}, {tile_n}))"),
    };
    match og_failure_kind(kind) {
        og_failure_kind::OG_FAILURE_ABORTED => {
            let reason = format!("asked to while it waited for {awaited} of epoch {epoch}");
            Error::Aborted { rank, reason }
        }
        og_failure_kind::OG_FAILURE_ABSENT => {
            let awaited = "the word that lets this step begin".into();
            Error::PeerTimeout { rank, peer: chunk, awaited, epoch, epoch_seen: signal, limit }
        }
        og_failure_kind::OG_FAILURE_LAYOUT => other_layout(rank, chunk, epoch),
        og_failure_kind::OG_FAILURE_LEFT => {
            Error::PeerLost { rank, peer: chunk, before: format!("epoch {epoch}") }
        }
        og_failure_kind::OG_FAILURE_SLICE => Error::Cuda {
            call: "og_gemm_enqueue",
            code: None,
            detail: format!(
                "a slice of K of epoch {epoch} was not handed over on rank {rank}: blocks did not start in order; \
                 plan the product again with 1 split"
            ),
        },
        // A chunk did not come in time.
        _ => {
            let peer = match chunk < chunks.len() {
                _ if of_sums => chunk,
                true => chunks.rank_of(chunk),
                false => chunks.shards().ranks(),
            };
            Error::PeerTimeout { rank, peer, awaited, epoch, epoch_seen: signal, limit }
        }
    }
}

/// Two ranks began one step with different rows.
pub(crate) fn other_layout(rank: u32, peer: u32, epoch: u32) -> Error {
    let what = format!("the rows of epoch {epoch} on rank {peer}");
    let expected = format!("those that rank {rank} gave, in the same buffer");
    let remedy = "give every rank the rows of all ranks, and make the same calls on each";
    Error::mismatch(what, "laid out otherwise", expected, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Shards;

    #[test]
    fn other_rows_on_another_rank_are_named() {
        let text = other_layout(0, 1, 7).to_string();
        assert!(text.starts_with("the rows of epoch 7 on rank 1 is laid out otherwise"), "{text}");
        assert!(text.contains("rank 0") && text.contains("the same calls"), "{text}");
    }

    #[test]
    fn a_failure_names_rank_peer_chunk_epoch_and_tile() {
        let chunks = Chunks::even(&Shards::even(64, 4).unwrap(), 2).unwrap();
        let limit = Duration::from_millis(250);
        let waiter = Waiter { rank: 1, limit, chunks, of_sums: false };
        let kind = og_failure_kind::OG_FAILURE_TIMEOUT.0;
        let failure = og_failure {
            chunk: 5,
            signal: 6,
            epoch: 7,
            tile_m: 3,
            tile_n: 2,
            kind,
            ..og_failure::default()
        };
        let text = in_words(failure, &waiter).to_string();
        let expected = "rank 1: chunk 5 (for tile (3, 2)) from rank 2 did not come within 250ms \
                        (epoch 7 expected, 6 seen)";
        assert!(text.starts_with(expected), "{text}");
        let kind = og_failure_kind::OG_FAILURE_ABORTED.0;
        let error = in_words(og_failure { kind, ..failure }, &waiter);
        assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error:?}");
        assert!(error.to_string().contains("chunk 5 (for tile (3, 2)) of epoch 7"), "{error}");
        // A record from nowhere names no rank that exists, and nothing panics.
        let error = in_words(og_failure { chunk: u32::MAX, ..failure }, &waiter);
        assert!(matches!(error, Error::PeerTimeout { peer: 4, .. }), "{error:?}");
        // Of sums, the number is the rank's that sends them.
        let waiter = Waiter { of_sums: true, ..waiter };
        let text = in_words(og_failure { chunk: 3, ..failure }, &waiter).to_string();
        assert!(text.starts_with("rank 1: sums of its rows from rank 3 did not come"), "{text}");
    }

    #[test]
    fn a_failure_is_of_who_waited_in_its_epoch() {
        let waiter = |seconds| {
            let chunks = Chunks::even(&Shards::even(64, 4).unwrap(), 2).unwrap();
            Waiter { rank: 1, limit: Duration::from_secs(seconds), chunks, of_sums: false }
        };
        let mut waiters = Waiters::default();
        let start = u32::MAX - 1;
        for (step, seconds) in [60, 10, 10, 10, 20].into_iter().enumerate() {
            waiters.note(start.wrapping_add(step as u32), false, waiter(seconds));
        }
        assert_eq!(waiters.0.len(), 3, "the same is noted once");
        let limit = |waiters: &Waiters, step: u32| {
            waiters.of(start.wrapping_add(step)).map(|waiter| waiter.limit.as_secs())
        };
        let limits: Vec<_> = (0..6).filter_map(|step| limit(&waiters, step)).collect();
        assert_eq!(limits, [60, 10, 10, 10, 20, 20]);
        // Nobody knows the epochs of a graph.
        waiters.note(7, true, waiter(30));
        assert_eq!(limit(&waiters, 0), Some(30));
        assert_eq!(Waiters::default().of(0), None);
    }
}
