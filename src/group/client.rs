//! How a rank of another process comes to rank 0's table.
//!
//! What belongs here: connecting, and the thread that listens afterwards. Invariant: whatever
//! the other side does, or does not, connecting ends within the deadline.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::address::addresses;
use super::channel::{Channel, Fault, Sealer, to_store};
use super::identity::Member;
use super::inbox::Inbox;
use super::launch::Launch;
use super::message::{MAX_FRAME, PROTOCOL_VERSION, Request, receive, send};
use super::secret::Secret;
use super::timed::{Timed, after};
use crate::error::{Error, Result};

/// How long one attempt may take, and how long to wait before the next.
const ATTEMPT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// The longest that a message may wait for the store to take it.
const PATIENCE: Duration = Duration::from_secs(5);

/// An authenticated connection to the store.
pub(super) struct Connection {
    to: Mutex<(TcpStream, Sealer)>,
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
    /// Comes to the store that `launch` names as `member`.
    pub(super) fn open(
        launch: &Launch,
        member: &Member,
        secret: &Secret,
        inbox: &Arc<Inbox>,
        until: Instant,
    ) -> Result<Connection> {
        let begin = Instant::now();
        loop {
            let why = match attempt(launch, secret, until) {
                Ok((socket, channel)) => {
                    return Connection::new(socket, channel, launch, member, inbox);
                }
                Err(Attempt::Hopeless(error)) => return Err(error),
                Err(Attempt::Again(why)) => why,
            };
            if Instant::now() + PAUSE >= until {
                let rank = member.rank;
                return Err(Error::NoGroup {
                    reason: format!(
                        "rank {rank} found no store at {} within {:.1?}: {why}",
                        launch.store(),
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
        (mut sealer, mut opener): Channel,
        launch: &Launch,
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
        let (job, ranks) = (launch.job.clone(), launch.ranks);
        let join = Request::Join { job, ranks, member: member.clone() };
        send(&mut sealer.onto(&socket), &join).map_err(broken)?;
        let listener = thread::Builder::new().name(format!("overlap-gemm rank {rank}"));
        let listener = listener.spawn({
            let inbox = Arc::clone(inbox);
            move || {
                let error = loop {
                    match receive(&mut opener.from(&from), MAX_FRAME) {
                        Ok(notice) => inbox.take(notice),
                        Err(error) => break error,
                    }
                };
                inbox.cut(&error);
                // What cannot be understood is no connection: the store notices.
                let _ = from.shutdown(Shutdown::Both);
            }
        });
        Ok(Connection {
            to: Mutex::new((socket, sealer)),
            listener: Some(listener.map_err(broken)?),
        })
    }

    /// Tells the store something. A connection that is broken is noticed by the listener.
    pub(super) fn request(&self, request: &Request) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, sealer) = &mut *to;
        if send(&mut sealer.onto(&*socket), request).is_err() {
            // Half a message may be on its way: nothing can follow it.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Connection {
    /// Breaks the connection off: whoever leaves properly has said so before.
    fn drop(&mut self) {
        let (socket, _) = self.to.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Connects once, and makes sure that both sides know the secret.
fn attempt(
    launch: &Launch,
    secret: &Secret,
    until: Instant,
) -> std::result::Result<(TcpStream, Channel), Attempt> {
    let again = |error: io::Error| Attempt::Again(error.to_string());
    let left = || until.saturating_duration_since(Instant::now()).clamp(PAUSE, ATTEMPT);
    let mut connected = Err(io::Error::other("the name has no address"));
    for place in addresses(&launch.host, launch.port).map_err(again)? {
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
    let (reason, remedy) = match to_store(&mut stream, launch.rank, secret) {
        Ok(channel) => return Ok((socket, channel)),
        Err(Fault::Broken(error)) => return Err(again(error)),
        Err(Fault::Version(version)) => (
            format!(
                "rank {} speaks version {PROTOCOL_VERSION} of the protocol, rank 0 version {version}",
                launch.rank
            ),
            "run the same program on all ranks",
        ),
        Err(Fault::Stranger) => (
            format!(
                "the store at {} does not know this rank's secret, or somebody between changes what it sends",
                launch.store()
            ),
            "run all ranks as one user with one home, or give all the same OVERLAP_GEMM_SECRET; if it is another \
             group's store, choose another port (OVERLAP_GEMM_PORT)",
        ),
    };
    Err(Attempt::Hopeless(Error::NoGroup { reason, remedy }))
}
