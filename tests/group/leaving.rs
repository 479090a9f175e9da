//! Ranks that leave properly: the others are told, and go on.
//!
//! What belongs here: leaves as the other ranks see them, in one process and over connections. Invariant: every
//! rank that is still here is told of each leave once; a leave ends nothing but what needs the rank.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::Error;
use overlap_gemm::group::Group;

use crate::{LONG, meet, on_threads};

/// A group in one process, and one over connections.
fn both(ranks: u32) -> [Vec<Group>; 2] {
    let connected = on_threads(ranks, |rank, port| meet(rank, ranks, port).unwrap());
    [Group::local(ranks).unwrap(), connected]
}

/// Whom a rank is told of; while the first is held.
fn watch(group: &Group) -> (Arc<String>, Receiver<u32>) {
    let (tell, told) = channel();
    let whom = Arc::new("whoever watches".to_owned());
    group.on_leave_tell(&whom, move |whom, rank| {
        assert_eq!(*whom, "whoever watches");
        tell.send(rank).unwrap();
    });
    (whom, told)
}

#[test]
fn all_are_told_who_leaves_and_go_on() {
    for mut groups in both(5) {
        let early: Vec<_> = groups.iter().map(watch).collect();
        drop(groups.remove(3));
        drop(groups.remove(1));
        // Rank 0, 2, 4; whoever asks later is told of those before, too.
        for (at, group) in [0, 2, 4].into_iter().zip(&groups) {
            for (_whom, told) in [&early[at], &watch(group)] {
                let mut left = [told.recv_timeout(LONG).unwrap(), told.recv_timeout(LONG).unwrap()];
                left.sort();
                assert_eq!(left, [1, 3]);
            }
            group.check().unwrap();
        }
        // Nobody is told twice.
        assert_eq!(early[0].1.try_iter().count(), 0);
        drop(groups);
    }
}

/// The end of rank 0, which has the store, is no second leave.
#[test]
fn rank_0_s_leave_is_told_too() {
    for mut groups in both(3) {
        let told: Vec<_> = groups.iter().skip(1).map(watch).collect();
        drop(groups.remove(0));
        for ((_whom, told), group) in told.iter().zip(&groups) {
            let (_whom, late) = watch(group);
            assert_eq!([told, &late].map(|told| told.recv_timeout(LONG).unwrap()), [0, 0]);
            group.check().unwrap();
        }
        assert!(told.iter().all(|(_whom, told)| told.try_iter().count() == 0));
    }
}

#[test]
fn an_exchange_that_needs_who_left_fails_at_once_and_names_it() {
    for mut groups in both(3) {
        let (_whom, told) = watch(&groups[0]);
        let begin = Instant::now();
        thread::scope(|scope| {
            let leaver = groups.remove(1);
            // One waits already, one comes afterwards.
            let waiting = scope.spawn(|| groups[1].barrier("waits", LONG).unwrap_err());
            drop(leaver);
            let errors = [waiting.join().unwrap(), groups[0].barrier("waits", LONG).unwrap_err()];
            for error in errors {
                assert!(matches!(error, Error::PeerLost { peer: 1, .. }), "{error:?}");
            }
        });
        assert!(begin.elapsed() < LONG / 2);
        assert_eq!(told.recv_timeout(LONG).unwrap(), 1);
        // The group is over: whoever leaves now is no news.
        drop(groups.pop());
        assert_eq!(told.recv_timeout(Duration::from_millis(200)).ok(), None);
    }
}

#[test]
fn who_is_gone_is_told_nothing_and_forgotten() {
    for mut groups in both(4) {
        let held = Arc::new(());
        let (tell, told) = channel();
        let watch = |name: &'static str| {
            let (whom, held, tell) = (Arc::new(name), Arc::clone(&held), tell.clone());
            groups[0].on_leave_tell(&whom, move |name, rank| {
                let _held = &held;
                tell.send((*name, rank)).unwrap();
            });
            whom
        };
        for _ in 0..10 {
            drop(watch("goes"));
        }
        let stays = watch("stays");
        drop(groups.pop());
        assert_eq!(told.recv_timeout(LONG).unwrap(), ("stays", 3));
        assert_eq!(Arc::strong_count(&held), 2, "itself, and the one that stays");
        drop(stays);
        // The next one has nobody to be told.
        drop(groups.pop());
        let until = Instant::now() + LONG;
        while Arc::strong_count(&held) > 1 {
            assert!(Instant::now() < until, "it is kept");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(told.try_iter().count(), 0);
    }
}
