//! Exchange of file handles between the ranks of one machine, mainly for memory that others map.
//!
//! What belongs here: unix sockets that carry file descriptors. Each rank opens its own socket, sends its
//! name and a key to the group by an exchange, and sends its handles to every other socket. Invariant: handles
//! are accepted only from a process of the same user with the key, which only ranks of the group received;
//! the holder of a handle owns and closes it; every wait ends with the limit, and none before it
//! because one rank, or a stranger, is slow; all ranks receive all handles, or all ranks fail.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::identity::this_user;
use super::line::after;
use super::secret::random_bytes;
use super::{Group, named};
use crate::error::{Error, Result};

/// The most handles that a rank may give at a time; the system takes 253 in one message.
pub const MAX_HANDLES: usize = 64;

/// How often to look for connections and messages.
const LOOK: Duration = Duration::from_millis(1);

/// How long a door may refuse connections: its rank has failed, and the group's end says why, or it is elsewhere.
const REFUSED: Duration = Duration::from_secs(1);

/// Connections of this user's other processes that a rank keeps while they say nothing.
const STRANGERS: usize = 16;

/// What a rank tells the others: where it listens, and what to say there.
#[derive(Debug, Serialize, Deserialize)]
struct Door {
    name: [u8; 32],
    key: [u8; 32],
    handles: u8,
}

/// What stands before the handles: the receiver's key, and who sends.
const GREETING: usize = 36;

impl Door {
    /// A name without a file: it is gone with the socket.
    fn name(&self) -> Vec<u8> {
        [b"overlap-gemm-", &self.name[..]].concat()
    }

    fn listen(&self) -> io::Result<UnixListener> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(self.name())?)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Brings `handles` of `rank` there. Does not wait: [`io::ErrorKind::WouldBlock`] if there is no room.
    fn send(&self, rank: u32, handles: &[BorrowedFd<'_>]) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(&self.name())?)?;
        if sockopt::socket_peercred(&socket)?.uid.as_raw() != this_user() {
            return Err(io::Error::other("another user listens there"));
        }
        let greeting = [&self.key[..], &rank.to_le_bytes()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !handles.is_empty() && !control.push(SendAncillaryMessage::ScmRights(handles)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // Small enough for the socket's buffer: all of it goes, or nothing.
        match sendmsg(&socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::NOSIGNAL)? {
            GREETING => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
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
        let (value, range) = (handles.len() as u64, 0..=MAX_HANDLES as u64);
        Error::check_range("the number of handles", value, range, "exchange fewer at a time")?;
        let until = after(limit);
        let failed = |act: &'static str| move |error: io::Error| self.give_up(what, act, &error);
        let random = || random_bytes().map_err(io::Error::other).map_err(failed("make a key"));
        let own = Door { name: random()?, key: random()?, handles: handles.len() as u8 };
        let listener = own.listen().map_err(failed("listen"))?;
        let duplicates: io::Result<_> =
            handles.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let duplicates = duplicates.map_err(failed("duplicate handles"))?;
        let brought =
            serde_json::to_vec(&own).map_err(io::Error::from).map_err(failed("say where"))?;
        let parts = self.all_gather(what, &brought, limit)?;
        let doors: io::Result<Vec<Door>> =
            parts.iter().map(|part| Ok(serde_json::from_slice(part)?)).collect();
        let doors = doors.map_err(failed("understand the others"))?;

        let (rank, ranks) = (self.rank(), doors.len());
        let mut taken: Vec<_> = doors.iter().map(|_| None).collect();
        taken[rank as usize] = Some(duplicates);
        // The next one first, so that not all are at one door.
        let unsent = (1..ranks).map(|step| (rank as usize + step) % ranks).collect();
        let (newcomers, refused_since) = (VecDeque::new(), None);
        let mut visits =
            Visits { rank, own, listener, doors, handles, unsent, taken, newcomers, refused_since };
        loop {
            let came = visits.take().map_err(failed("take handles"))?;
            let (gone, full) = visits.send().map_err(failed("send handles"))?;
            let absent = visits.absent();
            if absent.is_empty() {
                break;
            }
            self.check()?;
            if Instant::now() >= until {
                return Err(match full {
                    Some(error) => failed("send handles")(error),
                    None => self.absent(absent, &named(what), limit),
                });
            }
            if !came && !gone {
                thread::sleep(LOOK);
            }
        }
        // So that nobody goes on where a rank has failed.
        self.exchange(what, &[], Some(until), limit)?;
        Ok(visits.taken.into_iter().flatten().collect())
    }

    /// Ends the group, for the others wait for what this rank cannot do.
    fn give_up(&self, what: &str, act: &str, error: &io::Error) -> Error {
        let mut reason = format!("rank {} cannot {act} for '{what}': {error}", self.rank());
        let mut remedy = "see whether all ranks are on one machine, in one network namespace";
        if is_out_of_files(error) {
            remedy = "raise the limit of open files (ulimit -n) on every rank, or exchange fewer at a time";
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
            // Other ranks are given the reason alone.
            reason += &format!("; its limit of open files (ulimit -n) is {limit}");
        }
        self.abort(&reason);
        Error::NoGroup { reason, remedy }
    }
}

/// Whether the process, the machine, or what a user has sent and nobody has taken, is at the limit of open files.
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::TOOMANYREFS))
}

/// A rank's way to all doors, and what happens at its own, in the meantime. Nothing in it waits.
struct Visits<'a> {
    rank: u32,
    own: Door,
    listener: UnixListener,
    doors: Vec<Door>,
    handles: &'a [BorrowedFd<'a>],
    /// Ranks that this one has not sent its handles to.
    unsent: Vec<usize>,
    taken: Vec<Option<Vec<OwnedFd>>>,
    /// Connections that have said nothing yet.
    newcomers: VecDeque<UnixStream>,
    /// Since when a door has refused connections.
    refused_since: Option<Instant>,
}

impl Visits<'_> {
    /// Ranks that have not sent, or cannot be sent to.
    fn absent(&self) -> Vec<u32> {
        let is_absent = |rank: &usize| self.taken[*rank].is_none() || self.unsent.contains(rank);
        (0..self.doors.len()).filter(is_absent).map(|rank| rank as u32).collect()
    }

    /// Sends to all doors with room. Whether any had, and why one had none, if this user's limit is the reason.
    fn send(&mut self) -> io::Result<(bool, Option<io::Error>)> {
        let (mut gone, mut full) = (false, None);
        for rank in mem::take(&mut self.unsent) {
            let Err(error) = self.doors[rank].send(self.rank, self.handles) else {
                gone = true;
                continue;
            };
            self.unsent.push(rank);
            match Errno::from_io_error(&error) {
                // No room in front of the door, or it was closed for want of descriptors.
                Some(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => {}
                // Others take what is on its way.
                Some(Errno::TOOMANYREFS) => full = Some(error),
                Some(Errno::CONNREFUSED)
                    if self.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED => {}
                _ => return Err(error),
            }
        }
        Ok((gone, full))
    }

    /// Takes what has been brought to this rank's door; what strangers bring is closed again. Whether anybody came.
    fn take(&mut self) -> io::Result<bool> {
        let room = self.doors.len() + STRANGERS;
        let mut came = false;
        // Not for ever: others may come as quickly as they are let go.
        for _ in 0..room {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    came = true;
                    if sockopt::socket_peercred(&socket)?.uid.as_raw() != this_user() {
                        continue;
                    }
                    socket.set_nonblocking(true)?;
                    self.newcomers.push_back(socket);
                    if self.newcomers.len() > room {
                        self.dismiss()?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_out_of_files(&error) && !self.newcomers.is_empty() => {
                    self.dismiss()?;
                }
                Err(error) => return Err(error),
            }
        }
        for socket in mem::take(&mut self.newcomers) {
            match self.hear(&socket)? {
                true => came = true,
                false => self.newcomers.push_back(socket),
            }
        }
        Ok(came)
    }

    /// Lets the newcomer go that has been here longest. A rank finds that it cannot send, and comes again.
    fn dismiss(&mut self) -> io::Result<()> {
        let Some(socket) = self.newcomers.pop_front() else { return Ok(()) };
        let _ = socket.shutdown(Shutdown::Read);
        // What was sent before.
        self.hear(&socket).map(drop)
    }

    /// Whether somebody has said who it is; a rank's handles are kept.
    fn hear(&mut self, socket: &UnixStream) -> io::Result<bool> {
        match greet(socket, &self.own) {
            Ok((rank, handles)) => {
                let expected = self.doors.get(rank as usize).map(|door| usize::from(door.handles));
                if expected == Some(handles.len()) {
                    self.taken[rank as usize].get_or_insert(handles);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if is_out_of_files(&error) => return Err(error),
            Err(error) => tracing::debug!(%error, "a connection from outside the group"),
        }
        Ok(true)
    }
}

/// Who is at the door, and what it brings.
fn greet(socket: &UnixStream, own: &Door) -> io::Result<(u32, Vec<OwnedFd>)> {
    let mut greeting = [0; GREETING];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut buffers = [IoSliceMut::new(&mut greeting)];
        // Not inherited by processes that this one starts.
        recvmsg(socket.as_fd(), &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?
    };
    // Taken first, so that they are closed also after a failure below.
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
    // There is room for all that a rank may send, so it was this process that had none.
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    let rank = rank.try_into().map(u32::from_le_bytes).map_err(io::Error::other)?;
    Ok((rank, handles))
}

#[cfg(test)]
#[path = "handles_tests.rs"]
mod tests;
