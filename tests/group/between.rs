//! Groups with somebody between two ranks: who relays, changes, repeats, leaves out, moves or makes up what
//! they send each other.
//!
//! What belongs here: rank 1 comes to rank 0 through a proxy that knows how messages are cut, and not the
//! secret. Invariant: the group works where everything is relayed as it is; otherwise both ranks fail within
//! their limits, and neither is ever given what the other has not brought.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use overlap_gemm::group::GroupOptions;
use overlap_gemm::random::Random;

use crate::processes::free_port;
use crate::{LONG, meet_with};

/// For waits that only the limit may end: somebody holds back what is awaited.
const SHORT: Duration = Duration::from_secs(2);

/// How often the ranks exchange, and how much: several records at a time.
const ROUNDS: u64 = 4;
const PART: usize = 150_000;

/// Messages of the handshake in each direction: they have lengths of four bytes, records have two.
const HANDSHAKE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Relay,
    /// Changes one bit, of the length perhaps.
    Flip,
    /// Sends the beginning, and breaks the connection off.
    Truncate,
    /// Sends the beginning, and goes on with the next one.
    Shorten,
    LeaveOut,
    Repeat,
    /// Sends the next one first.
    Swap,
    /// Sends something else before it.
    MakeUp,
    /// Sends the last one of the other direction before it.
    Reflect,
    /// Sends what was at this place in another connection instead.
    OfAnother,
}

const ACTS: [Act; 9] = [
    Act::Flip,
    Act::Truncate,
    Act::Shorten,
    Act::LeaveOut,
    Act::Repeat,
    Act::Swap,
    Act::MakeUp,
    Act::Reflect,
    Act::OfAnother,
];

/// The messages of one connection, from the rank and from the store.
type Recording = [Mutex<Vec<Vec<u8>>>; 2];

/// What to do to which message.
struct Between {
    act: Act,
    /// 0: from the rank to the store; 1: back.
    direction: usize,
    nth: usize,
    random: Mutex<Random>,
    other: Arc<Recording>,
    seen: Recording,
    acted: AtomicBool,
}

impl Between {
    /// Relays between `from` and `to` until one side ends.
    fn relay(&self, direction: usize, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut held = None;
        for nth in 0.. {
            let message = read(from, nth)?;
            self.seen[direction].lock().unwrap().push(message.clone());
            if let Some(held) = held.take() {
                to.write_all(&message)?;
                to.write_all(held)?;
            } else if (direction, nth) == (self.direction, self.nth) && self.act != Act::Relay {
                match self.act(direction, nth, &message) {
                    Some(instead) => to.write_all(&instead)?,
                    None => held = Some(message.clone().leak()), // a test is short
                }
                if self.act == Act::Truncate {
                    from.shutdown(Shutdown::Both)?;
                    return to.shutdown(Shutdown::Both);
                }
            } else {
                to.write_all(&message)?;
            }
            from.flush()?;
        }
        Ok(())
    }

    /// What to send instead of this message; nothing yet, if it is to be swapped with the next one.
    fn act(&self, direction: usize, nth: usize, message: &[u8]) -> Option<Vec<u8>> {
        let mut random = self.random.lock().unwrap();
        let mut below = |most: usize| random.within(0..=most as u64 - 1) as usize;
        let before = |more: &[u8]| [more, message].concat();
        let instead = match self.act {
            Act::Relay => unreachable!(),
            Act::Flip => {
                let (byte, bit) = (below(message.len()), below(8));
                let mut changed = message.to_vec();
                changed[byte] ^= 1 << bit;
                changed
            }
            Act::Truncate | Act::Shorten => message[..below(message.len())].to_vec(),
            Act::LeaveOut => Vec::new(),
            Act::Repeat => before(message),
            Act::Swap => {
                self.acted.store(true, Ordering::Relaxed);
                return None;
            }
            Act::MakeUp => {
                let length = 17 + below(1000);
                let content = (0..length).map(|_| below(256) as u8);
                before(
                    &(length as u16).to_le_bytes().into_iter().chain(content).collect::<Vec<_>>(),
                )
            }
            Act::Reflect => match self.seen[1 - direction].lock().unwrap().last() {
                Some(last) => before(last),
                None => return Some(message.to_vec()),
            },
            Act::OfAnother => self.other[direction].lock().unwrap()[nth].clone(),
        };
        self.acted.store(true, Ordering::Relaxed); // read after the threads have ended
        Some(instead)
    }
}

/// One message, with its length.
fn read(mut from: &TcpStream, nth: usize) -> io::Result<Vec<u8>> {
    let mut message = vec![0; if nth < HANDSHAKE { 4 } else { 2 }];
    from.read_exact(&mut message)?;
    let length = message.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let body = message.len();
    message.resize(body + length, 0);
    from.read_exact(&mut message[body..])?;
    Ok(message)
}

/// What a rank brings to a round.
fn part(seed: u64, rank: u32, round: u64) -> Vec<u8> {
    let mut random = Random::of_stream(seed ^ round << 32, rank.into());
    (0..PART / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// A rank that comes and exchanges; panics if it is given what nobody has brought.
fn rank(seed: u64, rank: u32, port: u16, limit: Duration) -> overlap_gemm::Result<()> {
    let group = meet_with(rank, 2, port, &GroupOptions::default().limit(limit))?;
    let ranks: Vec<_> =
        group.members().iter().map(|member| (member.rank, member.process)).collect();
    assert_eq!(ranks, [(0, std::process::id()), (1, std::process::id())]);
    for round in 0..ROUNDS {
        let parts = group.all_gather("numbers", &part(seed, rank, round), limit)?;
        assert!(*parts == [part(seed, 0, round), part(seed, 1, round)], "forged: seed {seed}");
    }
    // Rank 0 takes the store with it.
    group.barrier("all done", limit)
}

/// Runs two ranks with somebody between them.
fn with(between: &Between, seed: u64, limit: Duration) -> [overlap_gemm::Result<()>; 2] {
    let store = free_port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for from in listener.incoming() {
                // Relaxed: the connection that follows the store is the news.
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (from, Ok(to)) = (from.unwrap(), TcpStream::connect(("127.0.0.1", store)))
                else {
                    continue; // not yet: the rank comes again
                };
                let (from, to) = (Arc::new(from), Arc::new(to));
                for (direction, from, to) in [(0, from.clone(), to.clone()), (1, to, from)] {
                    scope.spawn(move || {
                        let _ = between.relay(direction, &from, &to);
                        // Whoever ends does so for both.
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        let ranks = [(0, store), (1, place.port())]
            .map(|(number, port)| scope.spawn(move || rank(seed, number, port, limit)));
        let results = ranks.map(|rank| rank.join());
        over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(place));
        results.map(Result::unwrap)
    })
}

fn between(act: Act, direction: usize, nth: usize, seed: u64, other: &Arc<Recording>) -> Between {
    let (random, other) = (Mutex::new(Random::new(seed)), Arc::clone(other));
    let (seen, acted) = (Recording::default(), AtomicBool::new(false));
    Between { act, direction, nth, random, other, seen, acted }
}

#[test]
fn only_what_is_relayed_as_it_is_is_believed() {
    let nothing = Arc::new(Recording::default());
    let relay = between(Act::Relay, 0, 0, 0, &nothing);
    assert_eq!(with(&relay, 0, LONG), [Ok(()), Ok(())]);
    let other = Arc::new(relay.seen);

    // Some rounds must follow the act, for the other rank to notice.
    let cases: Vec<_> = ACTS
        .into_iter()
        .flat_map(|act| [0, 1].map(|direction| (act, direction)))
        .flat_map(|(act, direction)| (0..=8).map(move |nth| (act, direction, nth)))
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // Relaxed: a counter.
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one_case(*case, next.load(Ordering::Relaxed) as u64, &other);
                }
            });
        }
    });
}

fn one_case((act, direction, nth): (Act, usize, usize), seed: u64, other: &Arc<Recording>) {
    let between = between(act, direction, nth, seed, other);
    let noticed = matches!(act, Act::Repeat | Act::MakeUp | Act::Reflect | Act::OfAnother);
    // Before rank 1 has joined, rank 0 waits for it: only the limit ends that.
    let limit = if noticed && nth > HANDSHAKE { LONG } else { SHORT };
    let begin = Instant::now();
    let results = with(&between, seed, limit);
    let took = begin.elapsed();
    let name = format!("{act:?}, direction {direction}, message {nth}, seed {seed}: {results:?}");
    assert!(took < LONG, "{took:?}: {name}");
    if !between.acted.load(Ordering::Relaxed) {
        return; // there was no such message of the other side yet
    }
    let [Err(first), Err(second)] = results else { panic!("a rank noticed nothing: {name}") };
    if limit == LONG {
        let text = [first, second][direction].to_string();
        assert!(text.contains("was changed on its way"), "{name}");
    }
}
