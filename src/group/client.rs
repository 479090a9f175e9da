//! The connection of another process's rank to rank 0's store.
//!
//! What belongs here: connecting, and reading the store's answer. Invariant: connecting ends within the
//! deadline, independent of the other side.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::address::addresses;
use super::channel::{Channel, Fault, to_store};
use super::identity::Member;
use super::inbox::Inbox;
use super::launch::Launch;
use super::line::{CLOSING, Line, Timed, after, out_of_files};
use super::message::{PROTOCOL_VERSION, Request};
use super::secret::Secret;
use crate::error::{Error, Result};

/// How long one attempt may take, and how long to wait before the next.
const ATTEMPT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// An authenticated connection to the store. Both fields are set until it is dropped.
pub(super) struct Connection {
    host: String,
    queue: Option<Sender<Request>>,
    line: Option<Line>,
}

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
        (sealer, mut opener): Channel,
        launch: &Launch,
        member: &Member,
        inbox: &Arc<Inbox>,
    ) -> Result<Connection> {
        let rank = member.rank;
        let broken = |error: io::Error| Error::NoGroup {
            reason: format!("rank {rank} lost the connection to rank 0's store: {error}"),
            remedy: "see what ended rank 0",
        };
        let (queue, queued) = channel();
        let (job, ranks) = (launch.job.clone(), launch.ranks);
        let _ = queue.send(Request::Join { job, ranks, member: member.clone() });
        let inbox = Arc::clone(inbox);
        let read = move |from: &TcpStream| {
            let error = loop {
                match opener.receive(from) {
                    Ok(notice) => inbox.take(notice),
                    Err(error) => break error,
                }
            };
            inbox.cut(&error);
            // What cannot be understood is no connection: the store notices.
            let _ = from.shutdown(Shutdown::Both);
        };
        let line = Line::start("the store", socket, sealer, queued, read).map_err(broken)?;
        let local = line.local_ip().map_err(broken)?;
        let host = reached_at(local, &launch.host);
        Ok(Connection { host, queue: Some(queue), line: Some(line) })
    }

    /// Where other ranks reach this process.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Tells the store something, without waiting for it. A connection that is broken is noticed by the reader.
    pub(super) fn request(&self, request: Request) {
        if let Some(queue) = &self.queue {
            let _ = queue.send(request);
        }
    }
}

impl Drop for Connection {
    /// Ends the connection after the last message; a rank that leaves properly has sent its leave.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(line) = self.line.take() {
            line.end(after(CLOSING));
        }
    }
}

/// Connects once, and makes sure that both sides know the secret.
fn attempt(
    launch: &Launch,
    secret: &Secret,
    until: Instant,
) -> std::result::Result<(TcpStream, Channel), Attempt> {
    let again = |error: io::Error| match out_of_files(&error) {
        None => Attempt::Again(error.to_string()),
        Some(why) => Attempt::Hopeless(Error::NoGroup {
            reason: format!("rank {} cannot connect to rank 0: {why}", launch.rank),
            remedy: "put that right and start all ranks again",
        }),
    };
    let left = || until.saturating_duration_since(Instant::now()).clamp(PAUSE, ATTEMPT);
    let mut connected = Err(io::Error::other("the name has no address"));
    for place in addresses(&launch.host, launch.port, until).map_err(again)? {
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

/// Where ranks of other machines reach a process that has come from `local` to a store at `store`. One that has come by the
/// loopback device is on the store's machine.
fn reached_at(local: IpAddr, store: &str) -> String {
    if local.is_loopback() { store.into() } else { local.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_reached_where_it_came_from_or_at_its_stores_machine() {
        let reached = |local: &str| reached_at(local.parse().unwrap(), "node7");
        assert_eq!(reached("10.1.2.3"), "10.1.2.3");
        assert_eq!(reached("fd00::7"), "fd00::7");
        assert_eq!(["127.0.0.1", "127.0.1.1", "::1"].map(reached), ["node7"; 3]);
    }
}
