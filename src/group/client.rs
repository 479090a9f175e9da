//! How a rank of another process comes to rank 0's table.
//!
//! What belongs here: connecting, proving, and the thread that listens afterwards. Invariant: whatever
//! the other side does, or does not, connecting ends within the deadline.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::identity::Member;
use super::inbox::Inbox;
use super::message::{Hello, MAX_FRAME, MAX_UNPROVED, PROTOCOL_VERSION, Request, receive, send};
use super::secret::{Secret, Side, random_bytes};
use super::timed::{Timed, after};
use crate::error::{Error, Result};

/// How long one attempt may take, and how long to wait before the next.
const ATTEMPT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// The longest that a message may wait for the store to take it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A proved connection to the store.
pub(super) struct Connection {
    to: Mutex<TcpStream>,
    listener: Option<JoinHandle<()>>,
}

/// Why one attempt failed.
enum Attempt {
    /// Nobody there, or not yet: try again.
    Again(String),
    /// It will not get better.
    Hopeless(Error),
}

impl Connection {
    /// Comes to the store at `address` (a host and a port) as `member`, one of `ranks`.
    pub(super) fn open(
        address: &str,
        ranks: u32,
        member: &Member,
        secret: &Secret,
        inbox: &Arc<Inbox>,
        until: Instant,
    ) -> Result<Connection> {
        let begin = Instant::now();
        loop {
            let why = match attempt(address, member, secret, until) {
                Ok(socket) => return Connection::new(socket, ranks, member, inbox),
                Err(Attempt::Hopeless(error)) => return Err(error),
                Err(Attempt::Again(why)) => why,
            };
            if Instant::now() + PAUSE >= until {
                let rank = member.rank;
                return Err(Error::NoGroup {
                    reason: format!(
                        "rank {rank} found no store at {address} within {:.1?}: {why}",
                        begin.elapsed()
                    ),
                    remedy: "see whether rank 0 runs, and whether address and port are the same on all ranks",
                });
            }
            thread::sleep(PAUSE);
        }
    }

    fn new(
        socket: TcpStream,
        ranks: u32,
        member: &Member,
        inbox: &Arc<Inbox>,
    ) -> Result<Connection> {
        let rank = member.rank;
        let broken = |error: io::Error| Error::NoGroup {
            reason: format!("rank {rank} lost the connection to rank 0's store: {error}"),
            remedy: "see what ended rank 0",
        };
        socket.set_read_timeout(None).map_err(broken)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        let from = socket.try_clone().map_err(broken)?;
        let join = Request::Join { ranks, member: member.clone() };
        send(&mut &socket, &join).map_err(broken)?;
        let listener = thread::Builder::new().name(format!("overlap-gemm rank {rank}"));
        let listener = listener.spawn({
            let inbox = Arc::clone(inbox);
            move || {
                while let Ok(notice) = receive(&mut &from, MAX_FRAME) {
                    inbox.take(notice);
                }
                inbox.cut();
            }
        });
        Ok(Connection { to: Mutex::new(socket), listener: Some(listener.map_err(broken)?) })
    }

    /// Tells the store something. A connection that is broken is noticed by the listener.
    pub(super) fn request(&self, request: &Request) {
        let socket = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if send(&mut &*socket, request).is_err() {
            // Half a message may be on its way: nothing can follow it.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Connection {
    /// Breaks the connection off: whoever leaves properly has said so before.
    fn drop(&mut self) {
        let socket = self.to.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Connects once and proves both sides to each other.
fn attempt(
    address: &str,
    member: &Member,
    secret: &Secret,
    until: Instant,
) -> std::result::Result<TcpStream, Attempt> {
    let again = |error: io::Error| Attempt::Again(error.to_string());
    let left = || until.saturating_duration_since(Instant::now()).clamp(PAUSE, ATTEMPT);
    let places: Vec<SocketAddr> = address.to_socket_addrs().map_err(again)?.collect();
    let mut connected = Err(io::Error::other("the name has no address"));
    for place in places {
        connected = TcpStream::connect_timeout(&place, left());
        if connected.is_ok() {
            break;
        }
    }
    let socket = connected.map_err(again)?;
    // A port in the range that connections are made from may be given to this very connection, which then
    // speaks to itself.
    if socket.local_addr().ok() == socket.peer_addr().ok() {
        return Err(Attempt::Again("nobody listens".into()));
    }
    socket.set_nodelay(true).map_err(again)?;
    let mut stream = Timed { socket: &socket, until: after(left()) };
    let nonce = random_bytes().map_err(Attempt::Hopeless)?;
    let rank = Hello { version: PROTOCOL_VERSION, rank: member.rank, nonce };
    send(&mut stream, &rank).map_err(again)?;
    let store: Hello = receive(&mut stream, MAX_UNPROVED).map_err(again)?;
    if store.version != rank.version {
        return Err(Attempt::Hopeless(Error::NoGroup {
            reason: format!(
                "rank {} speaks version {} of the protocol, rank 0 version {}",
                rank.rank, rank.version, store.version
            ),
            remedy: "run the same program on all ranks",
        }));
    }
    let proof: [u8; 32] = receive(&mut stream, MAX_UNPROVED).map_err(again)?;
    if !secret.proves(&proof, Side::Store, &rank, &store) {
        return Err(Attempt::Hopeless(Error::NoGroup {
            reason: format!("the store at {address} does not know this rank's secret"),
            remedy: "run all ranks as one user with one home, or give all the same OVERLAP_GEMM_SECRET; if \
                     it is another group's store, choose another port (OVERLAP_GEMM_PORT)",
        }));
    }
    send(&mut stream, &secret.prove(Side::Rank, &rank, &store)).map_err(again)?;
    Ok(socket)
}
