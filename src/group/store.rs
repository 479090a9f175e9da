//! The store: rank 0's listener, to which ranks of other processes connect.
//!
//! What belongs here: listening, and the way from a connection to a member. Invariants:
//! no connection becomes a member before it has proved that it knows the secret; until then it
//! costs at most one thread, 512 bytes and a few seconds, and the number of such connections is limited; a connection that
//! breaks is a lost rank; a slow rank is not lost: the limits of the ranks that wait for it count.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::address::{addresses, is_only_here};
use super::channel::{Channel, Fault, Opener, to_rank};
use super::identity::Member;
use super::launch::Launch;
use super::line::{CLOSING, Line, Timed, after, out_of_files};
use super::message::{Ending, Notice, Request};
use super::secret::Secret;
use super::table::Table;
use crate::error::{Error, Result};
use crate::sync::lock;

/// How long a newcomer may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many newcomers are listened to at once; more are turned away, and come again.
const MAX_NEWCOMERS: usize = 64;

/// A running store. Dropping it tells the ranks that it closes, and ends its threads.
pub(super) struct Store {
    host: String,
    port: u16,
    listener: Option<Arc<TcpListener>>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    table: Arc<Table>,
    secret: Secret,
    job: String,
    closing: AtomicBool,
    /// Held by each newcomer.
    newcomers: Arc<()>,
    lines: Mutex<Vec<Line>>,
}

impl Store {
    /// Listens where `launch` says for the ranks that come to `table`: on this machine only, if that is
    /// a name of it that nobody else can use.
    pub(super) fn open(
        launch: &Launch,
        table: &Arc<Table>,
        secret: &Secret,
        until: Instant,
    ) -> Result<Store> {
        let failed = |error: io::Error| Error::NoGroup {
            reason: format!("rank 0 cannot listen at {}: {error}", launch.store()),
            remedy: "choose another port (OVERLAP_GEMM_PORT), the same on all ranks",
        };
        let places = addresses(&launch.host, launch.port, until).map_err(|error| Error::NoGroup {
            reason: format!("rank 0 does not know where to listen: no address of '{}': {error}", launch.host),
            remedy: "set MASTER_ADDR to a name or an address of rank 0's host, the same on all ranks",
        });
        let place = places?[0];
        let place = match place.ip() {
            _ if is_only_here(&launch.host) => place,
            IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, launch.port)),
            IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, launch.port)),
        };
        let listener = Arc::new(bind(place, until).map_err(failed)?);
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(Shared {
            table: Arc::clone(table),
            secret: secret.clone(),
            job: launch.job.clone(),
            closing: AtomicBool::new(false),
            newcomers: Arc::new(()),
            lines: Mutex::new(Vec::new()),
        });
        let acceptor = thread::Builder::new().name("overlap-gemm store".into());
        let acceptor = acceptor.spawn({
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            move || accept(&listener, &shared)
        });
        let acceptor = Some(acceptor.map_err(failed)?);
        Ok(Store { host: launch.host.clone(), port, listener: Some(listener), shared, acceptor })
    }

    /// What the ranks call this host.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The port that it listens on; any free one, if `launch` said 0.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// Takes a port that may still be somebody's for a moment: that of the group before, or of a connection.
fn bind(place: SocketAddr, until: Instant) -> io::Result<TcpListener> {
    let until = after(PATIENCE).min(until);
    loop {
        match TcpListener::bind(place) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let woken = self.listener.take().is_some_and(|listener| wake(&listener).is_ok());
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
        // Lets go of the lines' queues: what is in them is written, if the ranks take it in time.
        self.shared.table.close();
        let lines = {
            let mut lines = lock(&self.shared.lines);
            std::mem::take(&mut *lines)
        };
        let until = after(CLOSING);
        lines.into_iter().for_each(|line| line.end(until));
    }
}

/// Wakes the acceptor, which then sees that the store closes. Takes no open file, where the system lets it.
fn wake(listener: &TcpListener) -> io::Result<()> {
    if rustix::net::shutdown(listener, rustix::net::Shutdown::Both).is_ok() {
        return Ok(());
    }
    let mut own = listener.local_addr()?;
    match own.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    TcpStream::connect_timeout(&own, PATIENCE).map(drop)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for socket in listener.incoming() {
        // Acquire: pairs with the release in `drop`, which then wakes this thread.
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                if let Some(reason) = out_of_files(&error) {
                    shared
                        .table
                        .cannot_be_complete(&format!("rank 0 cannot take in all ranks: {reason}"));
                }
                // Better times may come: no spinning until then.
                thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        if Arc::strong_count(&shared.newcomers) > MAX_NEWCOMERS {
            continue;
        }
        let (shared, place) = (Arc::clone(shared), Arc::clone(&shared.newcomers));
        let newcomer = thread::Builder::new().name("overlap-gemm newcomer".into());
        // One that gets no thread is turned away: its socket and place go with the closure.
        let _ = newcomer.spawn(move || {
            let _place = place;
            if let Err(error) = welcome(socket, &shared) {
                tracing::debug!(%error, "a connection to the store came to nothing");
            }
        });
    }
}

/// From the first byte of a connection to a seat at the table.
fn welcome(socket: TcpStream, shared: &Arc<Shared>) -> std::result::Result<(), Fault> {
    socket.set_nodelay(true)?;
    let mut stream = Timed { socket: &socket, until: after(PATIENCE) };
    let (rank, (mut sealer, mut opener)) = to_rank(&mut stream, &shared.secret)?;
    let join = opener.receive(&mut stream)?;
    let Request::Join { job, ranks, member } = join else {
        return Err(io::Error::other("it did not begin with its name").into());
    };
    if member.rank != rank {
        return Err(io::Error::other("it has two names").into());
    }
    if job != shared.job {
        let refused = Notice::Ended(Ending::Refused { reason: other_job(rank, &job, &shared.job) });
        return Ok(sealer.send(&mut stream, &refused)?);
    }
    Ok(seat(socket, (sealer, opener), shared, ranks, member)?)
}

fn other_job(rank: u32, job: &str, own: &str) -> String {
    let named =
        |job: &str| if job.is_empty() { "without a name".into() } else { format!("'{job}'") };
    format!(
        "rank {rank} is of a job {}, and came to rank 0 of a job {}: give each job a port of its own \
         (OVERLAP_GEMM_PORT)",
        named(job),
        named(own)
    )
}

/// Gives a rank that knows the secret its threads and its seat.
fn seat(
    socket: TcpStream,
    (mut sealer, opener): Channel,
    shared: &Arc<Shared>,
    ranks: u32,
    member: Member,
) -> io::Result<()> {
    let rank = member.rank;
    let (sender, queue) = channel();
    let deliver = Arc::new(move |notice: Notice| drop(sender.send(notice)));
    // Held until the line is in the list, so that closing the store ends it.
    let mut lines = lock(&shared.lines);
    if let Err(reason) = shared.table.join(ranks, member, deliver) {
        drop(lines);
        return sealer.send(&socket, &Notice::Ended(Ending::Refused { reason }));
    }
    let table = Arc::clone(&shared.table);
    let read = move |from: &TcpStream| read(from, opener, &table, rank);
    let line = Line::start(&rank.to_string(), socket, sealer, queue, read);
    lines.push(line.inspect_err(|_| shared.table.lost(rank))?);
    Ok(())
}

/// Reads what the rank says, until it leaves or breaks off.
fn read(socket: &TcpStream, mut opener: Opener, table: &Table, rank: u32) {
    loop {
        match opener.receive(socket) {
            Ok(Request::Leave) => return table.request(rank, Request::Leave),
            Ok(request) => table.request(rank, request),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return table.nonsense(rank, &error);
            }
            Err(_) => return table.lost(rank),
        }
    }
}
