//! A connection between a rank and the store: within a time until both know each other; then one thread writes, one reads.
//!
//! What belongs here: a time limit for a whole conversation, where a socket's own limits start anew with every byte; a
//! queue of messages on its way into a socket, and the end of both threads. Invariants:
//! a connection takes one open file; queueing a message does not wait, so that a stopped process on
//! the other side delays no other rank, and only the limits of ranks that wait for an answer count; a connection
//! ends within the time that it is given.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::channel::Sealer;
use super::message::Message;

/// How long what is queued may take to be written, once a connection is to end.
pub(super) const CLOSING: Duration = Duration::from_secs(5);

/// A connection's threads. Dropping it leaves them to themselves; [`Line::end`] ends them.
pub(super) struct Line {
    socket: Arc<TcpStream>,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
}

impl Line {
    /// Writes what comes out of `queue`, until nobody can put anything into it; `read` is the other thread.
    /// A connection that is broken is the reader's to notice: it may still find what came before.
    pub(super) fn start<M: Message + Send + 'static>(
        name: &str,
        socket: TcpStream,
        mut sealer: Sealer,
        queue: Receiver<M>,
        read: impl FnOnce(&TcpStream) + Send + 'static,
    ) -> io::Result<Line> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        let socket = Arc::new(socket);
        let writer = thread::Builder::new().name(format!("overlap-gemm to {name}")).spawn({
            let socket = Arc::clone(&socket);
            move || {
                let mut all = queue.iter();
                let failed = all.find_map(|message| sealer.send(&*socket, &message).err());
                // After half a message nothing can follow.
                let how = if failed.is_some() { Shutdown::Both } else { Shutdown::Write };
                let _ = socket.shutdown(how);
            }
        })?;
        let reader = thread::Builder::new().name(format!("overlap-gemm from {name}")).spawn({
            let socket = Arc::clone(&socket);
            move || read(&socket)
        })?;
        Ok(Line { socket, writer, reader })
    }

    /// The address of this end.
    pub(super) fn local_ip(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// Waits until all of the queue is written, at most until then, and breaks the connection off. Nobody
    /// may be able to queue anything more.
    pub(super) fn end(self, until: Instant) {
        while !self.writer.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.socket.shutdown(Shutdown::Both); // wakes both threads
        let _ = self.writer.join();
        let _ = self.reader.join();
    }
}

/// What to say of an error that means that there are too many open files.
pub(super) fn out_of_files(error: &io::Error) -> Option<String> {
    let few = match Errno::from_io_error(error)? {
        Errno::MFILE => match getrlimit(Resource::Nofile).current {
            Some(limit) => format!("this process may have {limit} open files"),
            None => "this process may have no more open files".into(),
        },
        Errno::NFILE => "this machine may have no more open files".into(),
        _ => return None,
    };
    Some(format!("{few}, too few for its connections ({error}): raise that limit (ulimit -n)"))
}

/// `limit` from now; one that no clock can hold is as good as a year.
pub(super) fn after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

/// A socket until a time. Afterwards the socket's own limits are what they were at the last byte.
pub(super) struct Timed<'a> {
    pub(super) socket: &'a TcpStream,
    pub(super) until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
