//! Giving every rank of one machine handles of files: memory that others are to map, above all.
//!
//! What belongs here: unix sockets that carry file descriptors. Each rank opens one of its own, tells its
//! name and a key by an exchange of the group, and sends its handles to every other's. Invariant: handles
//! are only taken from a process of the same user that knows the key, which only ranks of the group were
//! told; a handle is owned, and so closed, by whoever holds it; every wait ends with the limit.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

use super::identity::this_user;
use super::secret::random_bytes;
use super::timed::after;
use super::{Group, named};
use crate::error::{Error, Result};

/// The most handles that a rank may give at a time; the system takes 253 in one message.
pub const MAX_HANDLES: usize = 64;

/// How long a connection may take to say who it is, and how often to look for the next one.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// What a rank tells the others: where it listens, and what to say there.
#[derive(Clone, Debug, PartialEq)]
struct Door {
    name: [u8; 32],
    key: [u8; 32],
    handles: u8,
}

/// What stands before the handles: the receiver's key, and who sends.
const GREETING: usize = 36;

impl Door {
    fn encode(&self) -> Vec<u8> {
        [&self.name[..], &self.key, &[self.handles]].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Door> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let &[handles] = rest else { return None };
        Some(Door { name: *name, key: *key, handles })
    }

    /// A name without a file: it is gone with the socket.
    fn address(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name([b"overlap-gemm-", &self.name[..]].concat())
    }
}

impl Group {
    /// Gives every rank all ranks' handles, in the order of the ranks; this rank's are duplicates.
    ///
    /// All ranks call it, as [`Group::all_gather`]; each may give another number of handles, at most
    /// [`MAX_HANDLES`]. All have to be on one machine. After a failure the group is over.
    pub fn exchange_handles(
        &self,
        what: &str,
        handles: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<Vec<Vec<OwnedFd>>> {
        if handles.len() > MAX_HANDLES {
            let (value, most) = (handles.len() as u64, MAX_HANDLES as u64);
            let remedy = "exchange fewer at a time";
            return Err(Error::out_of_range("the number of handles", value, 0, most, remedy));
        }
        let until = after(limit);
        let own =
            Door { name: random_bytes()?, key: random_bytes()?, handles: handles.len() as u8 };
        let listener = own.address().and_then(|address| {
            let listener = UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| self.give_up(what, "listen", &error))?;
        let parts = self.all_gather(what, &own.encode(), limit)?;
        let doors: Option<Vec<_>> = parts.iter().map(|part| Door::decode(part)).collect();
        let doors = doors.ok_or_else(|| {
            self.give_up(what, "understand the others", &io::ErrorKind::InvalidData.into())
        })?;

        // Both at once: more ranks may be at a door than it has room for in front of it.
        let both = thread::scope(|scope| {
            let take = || self.take(&listener, &own, &doors, until);
            let taking = thread::Builder::new().spawn_scoped(scope, take)?;
            let sent = self.send(&doors, handles, until);
            let taken = taking.join().expect("taking handles does not panic");
            sent.map(|()| taken)
        });
        let taken = both.map_err(|error| self.give_up(what, "send handles", &error))?;
        let absent = |(rank, taken): (u32, &Option<_>)| taken.is_none().then_some(rank);
        let absent: Vec<u32> = (0..).zip(&taken).filter_map(absent).collect();
        if !absent.is_empty() {
            self.check()?;
            return Err(self.waiting(limit).give_up(absent, &named(what)));
        }
        let mut all: Vec<_> = taken.into_iter().flatten().collect();
        let own: io::Result<Vec<_>> = handles.iter().map(BorrowedFd::try_clone_to_owned).collect();
        all[self.rank() as usize] =
            own.map_err(|error| self.give_up(what, "duplicate handles", &error))?;
        Ok(all)
    }

    /// Ends the group, for the others wait for what this rank cannot do.
    fn give_up(&self, what: &str, act: &str, error: &io::Error) -> Error {
        let reason = format!("rank {} cannot {act} for '{what}': {error}", self.rank());
        self.abort(&reason);
        let remedy = "see whether all ranks are on one machine, in one network namespace, below their limit \
                      of open files";
        Error::NoGroup { reason, remedy }
    }

    /// Sends the handles to every other rank, the next one first, so that not all are at one door.
    fn send(&self, doors: &[Door], handles: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
        let ranks = doors.len() as u32;
        for step in 1..ranks {
            let door = &doors[((self.rank() + step) % ranks) as usize];
            let socket = UnixStream::connect_addr(&door.address()?)?;
            let left = until.saturating_duration_since(Instant::now());
            socket.set_write_timeout(Some(left.max(LOOK)))?;
            if sockopt::socket_peercred(&socket)?.uid.as_raw() != this_user() {
                return Err(io::Error::other("another user listens there"));
            }
            let greeting = [&door.key[..], &self.rank().to_le_bytes()].concat();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !handles.is_empty() && !control.push(SendAncillaryMessage::ScmRights(handles)) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Small enough for the socket's buffer: all of it goes, or nothing.
            let sent =
                sendmsg(&socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::NOSIGNAL)?;
            if sent != GREETING {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Takes handles at this rank's door until all have come, the group is over, or the time is; what
    /// strangers bring is closed again. This rank's own place is filled with nothing.
    fn take(
        &self,
        listener: &UnixListener,
        own: &Door,
        doors: &[Door],
        until: Instant,
    ) -> Vec<Option<Vec<OwnedFd>>> {
        let mut taken: Vec<_> = doors.iter().map(|_| None).collect();
        taken[self.rank() as usize] = Some(Vec::new());
        while taken.iter().any(Option::is_none) && Instant::now() < until && self.check().is_ok() {
            let Ok((socket, _)) = listener.accept() else {
                thread::sleep(LOOK);
                continue;
            };
            match greet(&socket, own) {
                Ok((rank, handles)) => {
                    let expected = doors.get(rank as usize).map(|door| usize::from(door.handles));
                    if expected == Some(handles.len()) {
                        taken[rank as usize].get_or_insert(handles);
                    }
                }
                Err(error) => tracing::debug!(%error, "somebody at the door who is no rank"),
            }
        }
        taken
    }
}

/// Who is at the door, and what it brings.
fn greet(socket: &UnixStream, own: &Door) -> io::Result<(u32, Vec<OwnedFd>)> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    if sockopt::socket_peercred(socket)?.uid.as_raw() != this_user() {
        return Err(io::Error::other("another user"));
    }
    let mut greeting = [0; GREETING];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut buffers = [IoSliceMut::new(&mut greeting)];
        // Not inherited by processes that this one starts.
        recvmsg(socket.as_fd(), &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?
    };
    // Taken first, so that they are closed whatever comes next.
    let mut handles = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            handles.extend(rights);
        }
    }
    let (key, rank) = greeting.split_at(32);
    if got.bytes != GREETING || key != own.key {
        return Err(io::Error::other("it does not know the key"));
    }
    let rank = rank.try_into().map(u32::from_le_bytes).map_err(io::Error::other)?;
    Ok((rank, handles))
}
