//! A connection between a rank and the store, once both know each other: one thread writes, one reads.
//!
//! What belongs here: a queue of messages on its way into a socket, and the end of both threads. Invariants:
//! a connection takes one open file; queueing a message does not wait, so that a stopped process on
//! the other side delays no other rank, and only the limits of ranks that wait for an answer count; a connection
//! ends within the time that it is given.

use std::convert::Infallible;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::channel::Sealer;

/// How long what is queued may take to be written, once a connection is to end.
pub(super) const CLOSING: Duration = Duration::from_secs(5);

/// A connection's threads. Dropping it leaves them to themselves; [`Line::end`] ends them.
pub(super) struct Line {
    socket: Arc<TcpStream>,
    writer: JoinHandle<()>,
    reader: JoinHandle<()>,
    /// Nothing comes; its other end goes when the writer has written all. (A lock, so that groups are `Sync`.)
    written: Mutex<Receiver<Infallible>>,
}

impl Line {
    /// Writes what comes out of `queue`, until nobody can put anything into it; `read` is the other thread.
    /// A connection that is broken is the reader's to notice: it may still find what came before.
    pub(super) fn start<M: Serialize + Send + 'static>(
        name: &str,
        socket: TcpStream,
        mut sealer: Sealer,
        queue: Receiver<M>,
        read: impl FnOnce(&TcpStream) + Send + 'static,
    ) -> io::Result<Line> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        let socket = Arc::new(socket);
        let (writing, written) = channel();
        let writer = thread::Builder::new().name(format!("overlap-gemm to {name}")).spawn({
            let socket = Arc::clone(&socket);
            move || {
                let _writing = writing;
                let mut all = queue.iter();
                let failed = all.find_map(|message| sealer.send(&*socket, &message).err());
                // After half a message nothing can follow.
                let _ = socket.shutdown(if failed.is_some() {
                    Shutdown::Both
                } else {
                    Shutdown::Write
                });
            }
        })?;
        let reader = thread::Builder::new().name(format!("overlap-gemm from {name}")).spawn({
            let socket = Arc::clone(&socket);
            move || read(&socket)
        })?;
        Ok(Line { socket, writer, reader, written: Mutex::new(written) })
    }

    /// Waits until all of the queue is written, at most until then, and breaks the connection off. Nobody
    /// may be able to queue anything more.
    pub(super) fn end(self, until: Instant) {
        let written = self.written.into_inner().unwrap_or_else(PoisonError::into_inner);
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
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
