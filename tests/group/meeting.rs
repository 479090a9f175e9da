//! Groups of processes: how ranks meet over the store, and what happens when one does not behave.
//!
//! Invariant: who waits in vain fails. Where a rank's death matters, ranks are processes (`a_rank`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::Error;
use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
use overlap_gemm::random::Random;

use crate::processes::{die, ended, free_port, start_rank, variable};
use crate::{LONG, meet, meet_with, on_threads};

#[test]
fn ranks_exchange_what_they_bring() {
    on_threads(5, |rank, port| {
        let group = meet(rank, 5, port).unwrap();
        assert_eq!((group.rank(), group.ranks()), (rank, 5));
        let ranks: Vec<_> = group.members().iter().map(|member| member.rank).collect();
        assert_eq!(ranks, [0, 1, 2, 3, 4]);
        for round in 0..200u64 {
            let mine = Random::of_stream(round, rank.into()).next_u64().to_le_bytes();
            let parts = group.all_gather("numbers", &mine, LONG).unwrap();
            let expected = |rank| Random::of_stream(round, rank).next_u64().to_le_bytes().to_vec();
            assert_eq!(*parts, (0..5).map(expected).collect::<Vec<_>>(), "round {round}");
        }
        let large = vec![rank as u8; 3_000_000];
        let parts = group.all_gather("much", &large, LONG).unwrap();
        assert!(parts.iter().zip(0..).all(|(part, rank)| *part == vec![rank; 3_000_000]));
        let error = group.all_gather("more", &vec![0; 4_000_000], LONG).unwrap_err();
        assert!(error.to_string().contains("'more', in bytes, is 4000000"), "{error}");
        // Whoever is through first leaves first, rank 0 with the store perhaps: nobody minds.
        group.check().unwrap();
    });
}

#[test]
fn local_ranks_are_a_group_too() {
    let groups = Group::local(4).unwrap();
    thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                for _ in 0..100 {
                    group.barrier("here", LONG).unwrap();
                }
            });
        }
    });
    for ranks in [0, 1025, u32::MAX] {
        let error = Group::local(ranks).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the number of ranks is {ranks}")), "{error}");
    }
}

#[test]
fn one_rank_is_a_group() {
    let group = meet(0, 1, free_port()).unwrap();
    assert_eq!(*group.all_gather("alone", b"x", LONG).unwrap(), [b"x"]);
}

/// What each rank's error says, if one rank comes with other options.
fn refusals(odd: impl Fn(&GroupOptions) -> GroupOptions + Sync) -> Vec<String> {
    on_threads(3, |rank, port| {
        let own = GroupOptions::default().device(&format!("0000:{rank:02x}:00.0"));
        let options = if rank == 2 { odd(&own) } else { own };
        let refused = meet_with(rank, 3, port, &options).unwrap_err();
        assert!(matches!(refused, Error::NoGroup { .. }), "{refused:?}");
        refused.to_string()
    })
}

#[test]
fn ranks_that_do_not_fit_are_refused_everywhere() {
    for text in refusals(|own| own.clone().device("0000:01:00.0")) {
        assert!(text.contains("ranks 1 and 2 both use the GPU 0000:01:00.0"), "{text}");
    }
}

#[test]
fn another_number_of_ranks_is_refused() {
    let errors = on_threads(3, |rank, port| {
        meet(rank, if rank == 1 { 4 } else { 3 }, port).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("rank 1 came for a group of 4 ranks, rank 0 has one of 3"), "{text}");
    }
}

#[test]
fn whoever_does_not_know_the_secret_stays_outside() {
    let port = free_port();
    let (told, tell) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let group = meet(0, 2, port).unwrap();
            group.barrier("both", LONG).unwrap();
        });
        scope.spawn(move || {
            let launch = Launch::at(1, 2, "127.0.0.1", port);
            let secret = Secret::of("another secret");
            let foreign = Group::meet(&launch, &secret, &GroupOptions::default());
            told.send(foreign.unwrap_err().to_string()).unwrap();
            // The seat is still free for the one that knows it.
            meet(1, 2, port).unwrap().barrier("both", LONG).unwrap();
        });
    });
    let text = tell.recv().unwrap();
    assert!(text.contains("does not know this rank's secret"), "{text}");
}

#[test]
fn a_rank_that_is_there_already_is_not_replaced() {
    let port = free_port();
    thread::scope(|scope| {
        let (tell, told) = channel();
        let both: Vec<_> = (0..2)
            .map(|_| {
                let tell = tell.clone();
                scope.spawn(move || {
                    let met = meet(1, 3, port).map(|group| group.barrier("all", LONG).unwrap());
                    tell.send(met.as_ref().err().map(Error::to_string)).unwrap();
                    met.is_ok()
                })
            })
            .collect();
        let waiting = scope.spawn(|| meet(0, 3, port).unwrap().barrier("all", LONG).unwrap());
        // One of the two is refused before the last rank comes; the other has the seat.
        let text = told.recv().unwrap().unwrap();
        assert!(text.contains("rank 1 is here already"), "{text}");
        meet(2, 3, port).unwrap().barrier("all", LONG).unwrap();
        let met = both.into_iter().map(|thread| thread.join().unwrap()).filter(|met| *met);
        assert_eq!(met.count(), 1);
        waiting.join().unwrap();
    });
}

#[test]
fn who_does_not_come_is_named() {
    let limit = Duration::from_secs(3);
    let begin = Instant::now();
    let errors = on_threads(4, |rank, port| match rank {
        0 | 2 => Some(meet_with(rank, 4, port, &GroupOptions::default().limit(limit)).unwrap_err()),
        _ => None,
    });
    assert!(begin.elapsed() < Duration::from_secs(20));
    let named = |error: &Error| matches!(error, Error::Absent { absent, .. } if *absent == [1, 3]);
    let told = |error: &Error| error.to_string().contains("rank 1, 3 did not come to the group");
    assert!(errors.iter().flatten().any(named), "{errors:?}");
    assert!(errors.iter().flatten().all(told), "{errors:?}");

    let error = meet_with(1, 2, free_port(), &GroupOptions::default().limit(limit)).unwrap_err();
    assert!(error.to_string().contains("rank 1 found no store at 127.0.0.1:"), "{error}");
}

#[test]
fn a_straggler_is_waited_for_within_the_limit_and_named_beyond() {
    let nap = Duration::from_millis(500);
    on_threads(2, |rank, port| {
        let group = meet(rank, 2, port).unwrap();
        if rank == 1 {
            thread::sleep(nap);
        }
        group.barrier("patient", LONG).unwrap();
        if rank == 0 {
            let error = group.barrier("impatient", nap / 5).unwrap_err();
            assert!(matches!(&error, Error::Absent { absent, .. } if *absent == [1]), "{error:?}");
            assert_eq!(group.barrier("later", LONG).unwrap_err(), aborted(0, &error));
        } else {
            while group.check().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            let error = group.barrier("impatient", LONG).unwrap_err();
            assert!(matches!(&error, Error::Aborted { rank: 1, .. }), "{error:?}");
            assert!(error.to_string().contains("rank 1 did not come to the exchange 'impatient'"));
        }
    });
}

fn aborted(by: u32, why: &Error) -> Error {
    Error::Aborted { rank: by, reason: format!("{why} (rank {by} asked for it)") }
}

#[test]
fn other_operations_at_one_time_are_refused() {
    let errors = on_threads(2, |rank, port| {
        let group = meet(rank, 2, port).unwrap();
        group.barrier(["a plan", "another plan"][rank as usize], LONG).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("'a plan'") && text.contains("'another plan'"), "{text}");
    }
}

#[test]
fn an_abort_reaches_everybody_once() {
    on_threads(3, |rank, port| {
        let group = meet(rank, 3, port).unwrap();
        let (tell, told) = channel();
        let later = tell.clone();
        group.on_end(move |error| tell.send(error.clone()).unwrap());
        if rank == 1 {
            group.abort("enough");
            // Its own rank need not wait for the store to say so.
            assert!(group.check().is_err());
        }
        let error = told.recv_timeout(LONG).unwrap();
        let expected = Error::Aborted { rank, reason: "enough (rank 1 asked for it)".into() };
        assert_eq!(error, expected);
        assert_eq!(group.check(), Err(expected.clone()));
        assert_eq!(group.barrier("x", LONG), Err(expected));
        // Whoever asks afterwards is told too; nobody is told twice.
        group.on_end(move |error| later.send(error.clone()).unwrap());
        assert_eq!(told.iter().count(), 1);
    });
}

#[test]
fn leaving_is_no_alarm() {
    let (tell, told) = channel();
    let watch = |group: Group| {
        let tell = tell.clone();
        group.on_end(move |error| tell.send(error.clone()).unwrap());
        group.barrier("all watch", LONG).unwrap();
        // The ranks leave in some order, rank 0 and its store sooner or later than the others.
        thread::sleep(Duration::from_millis(
            Random::of_stream(3, group.rank().into()).within(0..=20),
        ));
    };
    on_threads(4, |rank, port| watch(meet(rank, 4, port).unwrap()));
    thread::scope(|scope| {
        let watch = &watch;
        Group::local(3)
            .unwrap()
            .into_iter()
            .for_each(|group| drop(scope.spawn(move || watch(group))));
    });
    drop(tell);
    assert_eq!(told.iter().count(), 0);
}

#[test]
fn names_and_limits_of_any_length_are_answered() {
    let group = Group::local(1).unwrap().remove(0);
    group.barrier("for ever", Duration::MAX).unwrap();
    let error = group.barrier(&"x".repeat(5000), LONG).unwrap_err().to_string();
    assert!(error.starts_with("the length of the name of an exchange is 5000"), "{error}");
    let options = GroupOptions::default().limit(Duration::MAX).device(&"x".repeat(5000));
    let error = meet_with(0, 1, free_port(), &options).unwrap_err().to_string();
    assert!(error.starts_with("the length of the device's name is 5000"), "{error}");
}

/// Every rank writes into memory of its own, and reads everybody's.
#[cfg(target_os = "linux")]
#[test]
fn handles_reach_every_rank() {
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsFd;

    static FILES: AtomicU32 = AtomicU32::new(0);
    let file = |text: &str| {
        let nth = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("overlap-gemm-{}-{nth}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = std::fs::OpenOptions::new().create(true).truncate(true).clone();
        let mut file = options.clone().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    };
    let read = |handle: std::os::fd::OwnedFd| {
        let mut text = String::new();
        let mut file = std::fs::File::from(handle);
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    };
    on_threads(4, |rank, port| {
        let group = meet(rank, 4, port).unwrap();
        for round in 0..20 {
            // As many as the rank's number: rank 0 gives none.
            let own: Vec<_> = (0..rank).map(|nth| file(&format!("{round}-{rank}-{nth}"))).collect();
            let handles: Vec<_> = own.iter().map(AsFd::as_fd).collect();
            let all = group.exchange_handles("memory", &handles, LONG).unwrap();
            // One after the other: handles of one file share its position.
            for turn in 0..4 {
                group.barrier("turn", LONG).unwrap();
                if turn == rank {
                    for (from, handles) in all.iter().enumerate() {
                        let texts = handles.iter().map(|handle| read(handle.try_clone().unwrap()));
                        let expected = (0..from).map(|nth| format!("{round}-{from}-{nth}"));
                        assert!(texts.eq(expected), "rank {rank}, from {from}");
                    }
                }
            }
            group.barrier("read", LONG).unwrap();
        }
        let many = file("many");
        let error = group.exchange_handles("too many", &[many.as_fd(); 65], LONG).unwrap_err();
        assert!(error.to_string().contains("the number of handles is 65"), "{error}");
    });
    let mut alone = Group::local(1).unwrap();
    let own = file("alone");
    let all = alone.remove(0).exchange_handles("memory", &[own.as_fd()], LONG).unwrap();
    assert_eq!(all.into_iter().flatten().map(read).collect::<Vec<_>>(), ["alone"]);
}

/// Connections that send rubbish, too much, half of something, or nothing, while ranks meet.
#[test]
fn rubbish_does_no_harm() {
    let port = free_port();
    thread::scope(|scope| {
        let group = scope.spawn(|| {
            let group = meet(0, 2, port).unwrap();
            group.barrier("unharmed", LONG).unwrap();
        });
        let rubbish: Vec<_> = (0..40u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    let until = Instant::now() + LONG;
                    let mut socket = loop {
                        match TcpStream::connect(("127.0.0.1", port)) {
                            Ok(socket) => break socket,
                            Err(error) => assert!(Instant::now() < until, "{error}"),
                        }
                        thread::sleep(Duration::from_millis(5));
                    };
                    let bytes: Vec<u8> = match seed % 4 {
                        0 => {
                            (0..random.within(1..=2000)).map(|_| random.next_u64() as u8).collect()
                        }
                        1 => u32::MAX.to_le_bytes().to_vec(),
                        2 => [&53u32.to_le_bytes()[..], b"{\"version\":"].concat(),
                        _ => Vec::new(),
                    };
                    let _ = socket.write_all(&bytes);
                    // Until the store has had enough of it.
                    let _ = socket.set_read_timeout(Some(LONG));
                    let mut answer = Vec::new();
                    let _ = socket.read_to_end(&mut answer);
                    assert!(answer.len() < 200, "{answer:?}");
                })
            })
            .collect();
        rubbish.into_iter().for_each(|thread| thread.join().unwrap());
        meet(1, 2, port).unwrap().barrier("unharmed", LONG).unwrap();
        group.join().unwrap();
    });
}

/// A rank that dies or sees another die. Run by the test below; by itself there is nothing to do.
#[test]
fn a_rank() {
    let Some(victim) = variable("OVERLAP_GEMM_TEST_VICTIM") else { return };
    let second_port = variable("OVERLAP_GEMM_TEST_SECOND_PORT").unwrap() as u16;
    let group = Group::from_env(&GroupOptions::default()).unwrap();
    let (rank, ranks) = (group.rank(), group.ranks());
    group.barrier("all here", LONG).unwrap();
    if rank == victim {
        // Not before all have been told that all are here: rank 0 is who tells them.
        thread::sleep(Duration::from_millis(500));
        die();
    }
    let (tell, told) = channel();
    group.on_end(move |error| tell.send(error.clone()).unwrap());
    let begin = Instant::now();
    let error = group.barrier("never", LONG).unwrap_err();
    assert!(matches!(error, Error::PeerLost { peer, .. } if peer == victim), "{error:?}");
    assert!(begin.elapsed() < LONG / 2, "{:?}", begin.elapsed());
    let alarm = told.recv_timeout(LONG).unwrap();
    assert!(matches!(alarm, Error::PeerLost { peer, .. } if peer == victim), "{alarm:?}");
    drop(group);

    // Those that are left meet again, and agree.
    let rank = if rank > victim { rank - 1 } else { rank };
    let group = meet(rank, ranks - 1, second_port).unwrap();
    let parts = group.all_gather("again", &[rank as u8], LONG).unwrap();
    assert_eq!(parts.concat(), (0..ranks as u8 - 1).collect::<Vec<_>>());
    println!("survived");
}

/// Rank 0 takes the store with it.
#[test]
fn a_killed_rank_ends_the_group_and_the_others_meet_again() {
    for victim in [2, 0] {
        let [port, second, number] =
            [free_port(), free_port(), victim as u16].map(|number| number.to_string());
        let start = |rank| {
            let others = [
                ("OVERLAP_GEMM_PORT", port.as_ref()),
                ("OVERLAP_GEMM_TEST_VICTIM", number.as_ref()),
                ("OVERLAP_GEMM_TEST_SECOND_PORT", second.as_ref()),
            ];
            start_rank("meeting::a_rank", rank, 4, &others)
        };
        let children: Vec<_> = (0..4).map(start).collect();
        for (rank, child) in (0..).zip(children) {
            let (status, text) = ended(child);
            if rank == victim {
                assert_eq!(status.code(), None, "it was not killed: {text}");
            } else {
                assert!(status.success() && text.contains("survived"), "rank {rank}: {text}");
            }
        }
    }
}
