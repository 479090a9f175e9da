//! Parts of a group, and groups that meet by the caller's means.
//!
//! What belongs here: who is in which part, that parts live on their own, and what a rank is told if one does not form.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use overlap_gemm::Error;
use overlap_gemm::group::{Group, GroupOptions};

use super::{LONG, meet, on_threads, threads};

fn options() -> GroupOptions {
    GroupOptions::default().limit(LONG)
}

/// The ranks of `whole` that are in this part, told by the part itself.
fn told(part: &Group, whole: &Group) -> Vec<u8> {
    let parts = part.all_gather("who is here", &[whole.rank() as u8], LONG).unwrap();
    assert!(parts.iter().all(|part| part.len() == 1));
    parts.concat()
}

#[test]
fn rows_and_columns_of_a_grid_are_groups_beside_the_whole() {
    let seen = on_threads(6, |rank, port| {
        let whole = meet(rank, 6, port).unwrap();
        let row = whole.split(rank / 3, &options()).unwrap();
        let column = whole.split(rank % 3, &options()).unwrap();
        assert_eq!((row.ranks(), row.rank()), (3, rank % 3));
        assert_eq!((column.ranks(), column.rank()), (2, rank / 3));
        let seen = (told(&row, &whole), told(&column, &whole));
        whole.barrier("all have seen", LONG).unwrap();
        seen
    });
    for (rank, (row, column)) in (0..).zip(seen) {
        assert_eq!(row, [0, 1, 2].map(|nth| rank / 3 * 3 + nth));
        assert_eq!(column, [0, 3].map(|nth| rank % 3 + nth));
    }
}

#[test]
fn threads_of_one_process_split_and_split_again() {
    let ranks = Group::local(7).unwrap();
    threads::on_threads(ranks, |whole| {
        let third = whole.split(whole.rank() % 3, &options()).unwrap();
        assert_eq!(third.ranks(), if whole.rank().is_multiple_of(3) { 3 } else { 2 });
        let alone = third.split(third.rank(), &options()).unwrap();
        assert_eq!((alone.rank(), alone.ranks()), (0, 1));
        assert_eq!(told(&alone, &whole), [whole.rank() as u8]);
        third.barrier("all are through", LONG).unwrap();
    });
}

/// A part neither needs the whole any more, nor another part.
#[test]
fn a_part_has_an_end_of_its_own() {
    on_threads(4, |rank, port| {
        let whole = meet(rank, 4, port).unwrap();
        let half = whole.split(rank / 2, &options()).unwrap();
        if rank == 3 {
            half.abort("on purpose");
        }
        if rank / 2 == 1 {
            let error = half.barrier("never", LONG).unwrap_err();
            assert!(
                matches!(&error, Error::Aborted { reason, .. } if reason.contains("on purpose"))
            );
        }
        whole.barrier("half of it is over", LONG).unwrap();
        drop(whole);
        if rank / 2 == 0 {
            half.barrier("the whole is gone", LONG).unwrap();
        }
    });
}

#[test]
fn who_does_not_split_is_named() {
    let both = Barrier::new(2);
    let errors = on_threads(3, |rank, port| {
        let whole = meet(rank, 3, port).unwrap();
        if rank == 1 {
            // Until another has given up.
            while whole.check().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            return None;
        }
        both.wait();
        Some(whole.split(0, &options().limit(Duration::from_secs(2))).unwrap_err())
    });
    // One gives up first, and ends the group for the other.
    let errors: Vec<Error> = errors.into_iter().flatten().collect();
    let names_it = |error: &Error| matches!(error, Error::Absent { absent, limit, .. } if absent == &[1] && limit.as_secs() == 2);
    assert!(errors.iter().any(names_it), "{errors:?}");
    for error in errors.iter().filter(|error| !names_it(error)) {
        assert!(
            matches!(error, Error::Aborted { reason, .. } if reason.contains("rank 1")),
            "{error}"
        );
    }
}

/// Any store of the caller's, for one value.
#[derive(Default)]
struct Kept(Mutex<Option<Vec<u8>>>, Condvar);

impl Kept {
    /// As a broadcast from rank 0.
    fn broadcast(&self, rank: u32, bytes: Vec<u8>) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap();
        if rank == 0 {
            *kept = Some(bytes);
            self.1.notify_all();
        }
        let (kept, _) = self.1.wait_timeout_while(kept, LONG, |kept| kept.is_none()).unwrap();
        kept.clone().unwrap()
    }
}

#[test]
fn a_callers_broadcast_is_enough_to_meet() {
    let kept = Kept::default();
    threads::on_threads(0..3, |rank| {
        let broadcast = |bytes| Ok(kept.broadcast(rank, bytes));
        let group = Group::by_broadcast(rank, 3, "127.0.0.1", &options(), broadcast).unwrap();
        assert_eq!((group.rank(), group.ranks()), (rank, 3));
        assert_eq!(told(&group, &group), [0, 1, 2]);
    });
}

#[test]
fn what_is_no_invitation_is_refused_on_the_rank_that_got_it() {
    for bytes in [&b""[..], b"{}", br#"{"Ok":{"host":"localhost"}}"#] {
        let broadcast = |_| Ok(bytes.to_vec());
        let error = Group::by_broadcast(1, 2, "localhost", &options(), broadcast).unwrap_err();
        assert!(error.to_string().contains("no invitation"), "{error}");
    }
    // What keeps rank 0 from its store: a host of no machine's, and a device that nobody could show.
    for (host, device) in [("no host", ""), ("localhost", &*"x".repeat(2000))] {
        let kept = Kept::default();
        threads::on_threads(0..2, |rank| {
            let broadcast = |bytes| Ok(kept.broadcast(rank, bytes));
            let options = if rank == 0 { options().device(device) } else { options() };
            let error = Group::by_broadcast(rank, 2, host, &options, broadcast).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(if device.is_empty() { host } else { "the device" }), "{text}");
        });
    }
    // A rank that is none takes part in the broadcast all the same.
    let asked = AtomicU32::new(0);
    let broadcast = |bytes| {
        asked.fetch_add(1, Ordering::Relaxed);
        Ok(bytes)
    };
    let error = Group::by_broadcast(2, 2, "localhost", &options(), broadcast).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }) && asked.into_inner() == 1, "{error}");
}
