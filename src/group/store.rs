//! The store: rank 0's listener, where ranks of other processes come to the table.
//!
//! What belongs here: sockets and threads, one to read and one to write for each connection. Invariants:
//! nobody sits down at the table before it has shown that it knows the secret; a connection that has not
//! costs at most one thread, 512 bytes and a few seconds, and there are few of them; a connection that
//! breaks is a lost rank; and nothing here waits for a peer longer than `PATIENCE`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::address::{addresses, is_only_here};
use super::channel::{Channel, Fault, Opener, Sealer, to_rank};
use super::identity::Member;
use super::launch::Launch;
use super::message::{Ending, MAX_FRAME, Notice, Request, receive, send};
use super::secret::Secret;
use super::table::Table;
use super::timed::{Timed, after};
use crate::error::{Error, Result};

/// How long a newcomer may take to say who it is, and how long a message may wait to be taken.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many newcomers are listened to at once; more are turned away, and come again.
const MAX_NEWCOMERS: usize = 64;

/// A running store. Dropping it tells the ranks that it closes, and ends its threads.
pub(super) struct Store {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    table: Arc<Table>,
    secret: Secret,
    job: String,
    closing: AtomicBool,
    newcomers: AtomicUsize,
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    socket: TcpStream,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

impl Store {
    /// Listens where `launch` says for the ranks that come to `table`: on this machine only, if that is
    /// a name of it that nobody else can use.
    pub(super) fn open(launch: &Launch, table: &Arc<Table>, secret: &Secret) -> Result<Store> {
        let failed = |error: io::Error| Error::NoGroup {
            reason: format!("rank 0 cannot listen at {}: {error}", launch.store()),
            remedy: "choose another port (OVERLAP_GEMM_PORT), the same on all ranks",
        };
        let place = addresses(&launch.host, launch.port).map_err(failed)?[0];
        let place = match place.ip() {
            _ if is_only_here(&launch.host) => place,
            IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, launch.port)),
            IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, launch.port)),
        };
        let listener = bind(place).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            table: Arc::clone(table),
            secret: secret.clone(),
            job: launch.job.clone(),
            closing: AtomicBool::new(false),
            newcomers: AtomicUsize::new(0),
            connections: Mutex::new(Vec::new()),
        });
        let acceptor = thread::Builder::new().name("overlap-gemm store".into());
        let acceptor = acceptor.spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Ok(Store { address, shared, acceptor: Some(acceptor.map_err(failed)?) })
    }
}

/// Takes a port that may still be somebody's for a moment: that of the group before, or of a connection.
fn bind(place: SocketAddr) -> io::Result<TcpListener> {
    let until = after(PATIENCE);
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
        // Wakes the acceptor, which then sees the flag.
        let mut own = self.address;
        match own.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let woken = TcpStream::connect_timeout(&own, PATIENCE);
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken.is_ok()) {
            let _ = acceptor.join();
        }
        // Lets go of the writers' queues: each writes what is in its own, and ends.
        self.shared.table.close();
        let mut all = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = std::mem::take(&mut *all);
        drop(all);
        for Connection { socket, writer, reader } in connections {
            let _ = writer.join();
            let _ = socket.shutdown(Shutdown::Both);
            let _ = reader.join();
        }
    }
}

/// A newcomer's place among those that are listened to; free again however that ends.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Place> {
        let place = Place(Arc::clone(shared));
        // Relaxed, here and below: a counter. A place too many is given back at once.
        let before = shared.newcomers.fetch_add(1, Ordering::Relaxed);
        (before < MAX_NEWCOMERS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.newcomers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for socket in listener.incoming() {
        // Acquire: pairs with the release in `drop`, which then connects.
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let Ok(socket) = socket else {
            // Too many open files, say: wait for better times instead of spinning.
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        let Some(place) = Place::take(shared) else { continue };
        let newcomer = thread::Builder::new().name("overlap-gemm newcomer".into());
        // One that gets no thread is turned away: its socket and place go with the closure.
        let _ = newcomer.spawn(move || {
            if let Err(error) = welcome(socket, &place.0) {
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
    let join = receive(&mut opener.from(&mut stream), MAX_FRAME)?;
    let Request::Join { job, ranks, member } = join else {
        return Err(io::Error::other("it did not begin with its name").into());
    };
    if member.rank != rank {
        return Err(io::Error::other("it has two names").into());
    }
    if job != shared.job {
        let refused = Notice::Ended(Ending::Refused { reason: other_job(rank, &job, &shared.job) });
        return Ok(send(&mut sealer.onto(&mut stream), &refused)?);
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
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let (to, from) = (socket.try_clone()?, socket.try_clone()?);
    let (sender, queue) = channel();
    let deliver = Arc::new(move |notice| drop(sender.send(notice)));
    // Held until the connection is in the list, so that whoever closes the store waits for its writer.
    let mut all = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(reason) = shared.table.join(ranks, member, deliver) {
        drop(all);
        let refused = Notice::Ended(Ending::Refused { reason });
        return send(&mut sealer.onto(&socket), &refused);
    }
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(format!("overlap-gemm {name} {rank}")).spawn(work);
        thread.inspect_err(|_| shared.table.lost(rank))
    };
    let writer = spawn("to", Box::new(move || write(&to, sealer, &queue)))?;
    let table = Arc::clone(&shared.table);
    let reader = spawn("from", Box::new(move || read(&from, opener, &table, rank)))?;
    all.push(Connection { socket, writer, reader });
    Ok(())
}

/// Writes what the rank is told, until its seat is free. If that fails, the reader ends too: it may still read
/// that the rank has left, and else the rank is lost.
fn write(socket: &TcpStream, mut sealer: Sealer, queue: &Receiver<Notice>) {
    for notice in queue {
        if send(&mut sealer.onto(socket), &notice).is_err() {
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = socket.shutdown(Shutdown::Write);
}

/// Reads what the rank says, until it leaves or breaks off.
fn read(socket: &TcpStream, mut opener: Opener, table: &Table, rank: u32) {
    loop {
        match receive(&mut opener.from(socket), MAX_FRAME) {
            Ok(Request::Leave) => return table.request(rank, Request::Leave),
            Ok(request) => table.request(rank, request),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return table.nonsense(rank, &error);
            }
            Err(_) => return table.lost(rank),
        }
    }
}
