//! Groups of ranks (feature `group`): threads of one process, or processes.
//!
//! A [`Group`] is one rank's handle on the group. Before a plan on GPUs the ranks have to agree on their members, on the
//! plan, and on the location of each other's memory. For that they **exchange** small messages (`all_gather`); no data of a
//! step goes this way.
//!
//! ```text
//!   rank 0                       rank 1                     rank 2
//!   Group ── table ◄── store ◄── Group (TCP)      ◄──────── Group (TCP)
//!            │         listens   knows the secret,          …
//!            │                   joins, exchanges
//!            └── members, their parts of an exchange, the group's end
//! ```
//!
//! - Ranks of one process use the table directly ([`Group::local`]); those of other processes connect to
//!   rank 0's store ([`Group::from_env`], [`Group::meet`]).
//! - **Only processes of the same user can join**: both sides prove that they know a secret, without sending
//!   it. It is in the environment (`OVERLAP_GEMM_SECRET`), or in a file that only the user can read.
//!   All later messages are encrypted and authenticated with keys of that connection
//!   (Noise `NNpsk0`): a changed, repeated or omitted byte ends the group, and is never
//!   delivered. `SECURITY.md` lists what that covers, and what not.
//! - **Jobs do not mix.** A rank that connects to the store of another job of the same user is refused, if their
//!   launchers name them ([`Launch::job`]); only port and secret distinguish jobs without a name.
//! - **Every call has a limit.** The connection of a process that ends shows it at once; then the group is over for all,
//!   and callbacks run ([`Group::on_end`]). A rank that leaves properly ends nothing; callbacks can report it
//!   ([`Group::on_leave_tell`]).
//! - **A group whose ranks do not match is refused** on all ranks, with both ranks' names and values: other
//!   versions, users, hosts, topologies, two ranks with one GPU.
//!
//! ```
//! use overlap_gemm::group::Group;
//! use std::{thread, time::Duration};
//!
//! let ranks = Group::local(3)?;
//! thread::scope(|scope| {
//!     for group in ranks {
//!         scope.spawn(move || {
//!             let part = [group.rank() as u8; 2];
//!             let parts = group.all_gather("where things are", &part, Duration::from_secs(10))?;
//!             assert_eq!(*parts, [vec![0, 0], vec![1, 1], vec![2, 2]]);
//!             Ok::<(), overlap_gemm::Error>(())
//!         });
//!     }
//! });
//! # Ok::<(), overlap_gemm::Error>(())
//! ```

mod address;
mod channel;
mod client;
#[cfg(target_os = "linux")]
mod handles;
mod identity;
mod inbox;
mod launch;
mod leaving;
mod line;
mod message;
mod secret;
mod store;
mod table;
mod timed;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
pub use handles::MAX_HANDLES;
pub use identity::Member;
pub use launch::{Launch, PORT_VARIABLE};
pub use message::PROTOCOL_VERSION;
pub use secret::{SECRET_VARIABLE, Secret};

use crate::error::{Error, Result};
use crate::plan::MAX_RANKS;
use client::Connection;
use identity::Rules;
use inbox::{Inbox, Vain};
use launch::FIRST_LIMIT;
use leaving::Watcher;
use message::{Ending, Notice, Request};
use store::Store;
use table::{Table, most_bytes};
use timed::after;

/// The options of a rank that joins a group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    limit: Duration,
    device: String,
    rules: Rules,
}

impl Default for GroupOptions {
    /// A minute for all to join; no GPU; one machine, and no GPU shared by ranks.
    fn default() -> Self {
        GroupOptions { limit: FIRST_LIMIT, device: String::new(), rules: Rules::default() }
    }
}

impl GroupOptions {
    /// The time limit for all ranks to join.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The PCI bus id of this rank's GPU.
    pub fn device(mut self, bus_id: &str) -> Self {
        bus_id.clone_into(&mut self.device);
        self
    }

    /// Allows several ranks on one GPU. Rank 0's value counts.
    pub fn shared_devices(mut self, allowed: bool) -> Self {
        self.rules.shared_devices = allowed;
        self
    }

    /// Allows ranks on several machines. Rank 0's value counts.
    pub fn several_hosts(mut self, allowed: bool) -> Self {
        self.rules.several_hosts = allowed;
        self
    }

    fn member(&self, rank: u32) -> Member {
        Member { device: self.device.clone(), ..Member::this_process(rank) }
    }
}

/// One rank's handle on its group. Dropping it leaves the group: the others learn of it, and continue until they need this
/// rank.
pub struct Group {
    rank: u32,
    members: Vec<Member>,
    inbox: Arc<Inbox>,
    way: Way,
    /// The next exchange; held while one is open.
    next: Mutex<u64>,
}

/// How a rank speaks to the table.
enum Way {
    /// It is in this process; on rank 0 of a group of processes, with the store that others come to.
    Here { table: Arc<Table>, _store: Option<Store> },
    /// It is rank 0's.
    Away(Connection),
}

impl Way {
    fn request(&self, rank: u32, request: Request) {
        match self {
            Way::Here { table, .. } => table.request(rank, request),
            Way::Away(connection) => connection.request(request),
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank, self.ranks())
    }
}

impl Group {
    /// `ranks` ranks in this process, one for each thread.
    pub fn local(ranks: u32) -> Result<Vec<Group>> {
        let shared = GroupOptions::default().shared_devices(true);
        check_ranks(ranks)?;
        let table = Arc::new(Table::new(ranks, shared.rules));
        let sit = |rank| Seated::at(&table, ranks, shared.member(rank), shared.limit, None);
        let seated: Vec<_> = (0..ranks).map(sit).collect::<Result<_>>()?;
        seated.into_iter().map(|seated| seated.complete(Instant::now())).collect()
    }

    /// This process as a rank of its launcher's group: torchrun, mpirun, srun or
    /// `overlap-gemm launch` ([`Launch::read`]).
    pub fn from_env(options: &GroupOptions) -> Result<Group> {
        let launch = Launch::from_env()?;
        let secret = Secret::find(|name| std::env::var_os(name))?;
        Group::meet(&launch, &secret, options)
    }

    /// This process as a rank of the group of `launch`, which has its number and the address of rank 0.
    pub fn meet(launch: &Launch, secret: &Secret, options: &GroupOptions) -> Result<Group> {
        check_ranks(launch.ranks)?;
        if launch.rank >= launch.ranks {
            let most = u64::from(launch.ranks) - 1;
            let remedy = "ranks count from 0";
            return Err(Error::out_of_range("the rank", launch.rank.into(), 0, most, remedy));
        }
        check_length("the device's name", &options.device)?;
        check_length("the job's name", &launch.job)?;
        let until = after(options.limit);
        let member = options.member(launch.rank);
        if launch.rank == 0 {
            let table = Arc::new(Table::new(launch.ranks, options.rules));
            let store = Store::open(launch, &table, secret, until)?;
            let seated = Seated::at(&table, launch.ranks, member, options.limit, Some(store))?;
            return seated.complete(until);
        }
        let inbox = Arc::new(Inbox::default());
        let way = Connection::open(launch, &member, secret, &inbox, until).map(Way::Away)?;
        Seated { rank: launch.rank, limit: options.limit, inbox, way }.complete(until)
    }

    /// This rank's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.members.len() as u32
    }

    /// All ranks, in order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Gives every rank the parts of all ranks, in the order of the ranks.
    ///
    /// All ranks call it, in the same order with the same `what`; if several threads of a rank do, one
    /// waits for the other. After a failure the group is over: a rank that gives up waiting ends it for all.
    pub fn all_gather(
        &self,
        what: &str,
        part: &[u8],
        limit: Duration,
    ) -> Result<Arc<Vec<Vec<u8>>>> {
        let most = most_bytes(self.ranks());
        if part.len() > most {
            let (what, length) =
                (format!("what is brought to '{what}', in bytes,"), part.len() as u64);
            return Err(Error::out_of_range(
                what,
                length,
                0,
                most as u64,
                "exchange less at a time",
            ));
        }
        check_length("the name of an exchange", what)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let exchange = *next;
        *next += 1;
        let until = after(limit);
        let part = part.to_vec();
        self.way.request(self.rank, Request::Bring { exchange, what: what.into(), part });
        self.waiting(limit).until(until, Some(exchange), &named(what), |until| {
            self.inbox.gathered(exchange, until)
        })
    }

    fn waiting(&self, limit: Duration) -> Waiting<'_> {
        Waiting { rank: self.rank, inbox: &self.inbox, way: &self.way, limit }
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self, what: &str, limit: Duration) -> Result<()> {
        self.all_gather(what, &[], limit).map(drop)
    }

    /// Ends the group on all ranks: their current waits and later exchanges fail. (If rank 0
    /// has left, and the store with it, only this rank learns of it.)
    pub fn abort(&self, reason: &str) {
        // What one frame holds, at most, and people read.
        let reason: String = reason.chars().take(4096).collect();
        self.way.request(self.rank, Request::Abort { reason: reason.clone() });
        // Here it is over at once: a step that begins after this call fails, before the others know.
        self.inbox.take(Notice::Ended(Ending::Aborted { by: self.rank, reason }));
    }

    /// An error if the group is over.
    pub fn check(&self) -> Result<()> {
        match self.inbox.ending() {
            Some(ending) => Err(error_of(&ending, self.rank, WORK)),
            None => Ok(()),
        }
    }

    /// Calls `alarm` once, on a thread of its own, when the group ends before its time: not when ranks
    /// leave, this one or others. A death that comes after rank 0 has left is noticed by nobody: let rank 0
    /// leave last, after a [`barrier`](Group::barrier) perhaps.
    pub fn on_end(&self, alarm: impl FnOnce(&Error) + Send + 'static) {
        let rank = self.rank;
        let alarm = move |ending: &Ending| alarm(&error_of(ending, rank, WORK));
        self.inbox.on_end(Box::new(|| true), Box::new(alarm));
    }

    /// [`Group::on_end`] for `whom`, as long as another holder of it exists; dropped some time after.
    pub fn on_end_tell<T: Send + Sync + 'static>(
        &self,
        whom: &Arc<T>,
        alarm: impl FnOnce(&T, &Error) + Send + 'static,
    ) {
        let (rank, whom) = (self.rank, Arc::downgrade(whom));
        let held = Weak::clone(&whom);
        let alarm = move |ending: &Ending| {
            if let Some(whom) = whom.upgrade() {
                alarm(&whom, &error_of(ending, rank, WORK));
            }
        };
        self.inbox.on_end(Box::new(move || held.strong_count() > 0), Box::new(alarm));
    }

    /// Calls `alarm` for every other rank that leaves properly, with its number, on a thread of its own; also for
    /// those that have left already. `whom` is dropped some time after its last other holder.
    ///
    /// A leave does not end the group: only what needs that rank fails. Leaves after the group's end are not
    /// reported, nor those after rank 0's, whose store is gone. One alarm is called at a time, so it should be quick.
    pub fn on_leave_tell<T: Send + Sync + 'static>(
        &self,
        whom: &Arc<T>,
        alarm: impl Fn(&T, u32) + Send + 'static,
    ) {
        let whom = Arc::downgrade(whom);
        let held = Weak::clone(&whom);
        let alarm = move |rank| {
            if let Some(whom) = whom.upgrade() {
                alarm(&whom, rank);
            }
        };
        let wanted = Box::new(move || held.strong_count() > 0);
        self.inbox.on_leave(Watcher { wanted, alarm: Box::new(alarm) });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A rank whose thread panics has failed, and the others should not have to find out by waiting.
        if std::thread::panicking() {
            let reason = format!("rank {} panicked", self.rank);
            self.way.request(self.rank, Request::Abort { reason });
        }
        self.inbox.leave();
        self.way.request(self.rank, Request::Leave);
    }
}

/// What a rank that is gone leaves undone, where nothing in particular was awaited.
const WORK: &str = "the work of the group";

/// A rank that has come, before all have.
struct Seated {
    rank: u32,
    limit: Duration,
    inbox: Arc<Inbox>,
    way: Way,
}

impl Seated {
    fn at(
        table: &Arc<Table>,
        ranks: u32,
        member: Member,
        limit: Duration,
        store: Option<Store>,
    ) -> Result<Seated> {
        let (inbox, rank) = (Arc::new(Inbox::default()), member.rank);
        let told = Arc::clone(&inbox);
        let joined = table.join(ranks, member, Arc::new(move |notice: Notice| told.take(notice)));
        joined.map_err(refused)?;
        let way = Way::Here { table: Arc::clone(table), _store: store };
        Ok(Seated { rank, limit, inbox, way })
    }

    fn complete(self, until: Instant) -> Result<Group> {
        let Seated { rank, limit, inbox, way } = self;
        let waiting = Waiting { rank, inbox: &inbox, way: &way, limit };
        let members = waiting.until(until, None, "the group", |until| inbox.members(until))?;
        Ok(Group { rank, members, inbox, way, next: Mutex::new(0) })
    }
}

/// A rank that waits for the others, to come or to bring something.
struct Waiting<'a> {
    rank: u32,
    inbox: &'a Inbox,
    way: &'a Way,
    limit: Duration,
}

impl Waiting<'_> {
    /// How long the store may take to name the missing ranks.
    const GRACE: Duration = Duration::from_secs(1);

    /// Waits with `look`. After the limit it asks the store for the missing ranks, tells the other ranks, and returns an error
    /// that names them.
    fn until<T>(
        &self,
        until: Instant,
        exchange: Option<u64>,
        what: &str,
        look: impl Fn(Instant) -> std::result::Result<T, Vain>,
    ) -> Result<T> {
        let vain = match look(until) {
            Err(Vain::Late) => {
                self.way.request(self.rank, Request::Ask { exchange });
                match self.inbox.missing(after(Self::GRACE)) {
                    // Nobody is: what was awaited came before the answer.
                    Ok(missing) if missing.is_empty() => look(Instant::now()),
                    Ok(missing) => return Err(self.give_up(missing, what)),
                    Err(Vain::Late) => return Err(self.give_up(vec![0], what)), // the store is stuck
                    Err(ended) => Err(ended),
                }
            }
            other => other,
        };
        vain.map_err(|vain| match vain {
            Vain::Ended(ending) => {
                // One that only this rank knows, because the store has closed.
                self.inbox.take(Notice::Ended(ending.clone()));
                error_of(&ending, self.rank, what)
            }
            Vain::Late => self.give_up(vec![0], what),
        })
    }

    fn give_up(&self, absent: Vec<u32>, what: &str) -> Error {
        let error = Error::Absent { rank: self.rank, absent, what: what.into(), limit: self.limit };
        self.way.request(self.rank, Request::Abort { reason: error.to_string() });
        error
    }
}

fn error_of(ending: &Ending, rank: u32, what: &str) -> Error {
    match ending {
        Ending::Refused { reason } => refused(reason.clone()),
        Ending::Lost { rank: peer } => Error::PeerLost { rank, peer: *peer, before: what.into() },
        Ending::Aborted { by, reason } => {
            Error::Aborted { rank, reason: format!("{reason} (rank {by} asked for it)") }
        }
    }
}

/// An exchange, for people.
fn named(what: &str) -> String {
    format!("the exchange '{what}'")
}

fn refused(reason: String) -> Error {
    Error::NoGroup { reason, remedy: "put that right and start all ranks again" }
}

/// Names travel in every frame, and are shown to people.
fn check_length(what: &str, text: &str) -> Result<()> {
    const MOST: usize = 1024;
    if text.len() <= MOST {
        return Ok(());
    }
    let (what, length) = (format!("the length of {what}"), text.len() as u64);
    Err(Error::out_of_range(what, length, 0, MOST as u64, "use a shorter one"))
}

fn check_ranks(ranks: u32) -> Result<()> {
    if (1..=MAX_RANKS).contains(&ranks) {
        return Ok(());
    }
    let remedy = "start fewer ranks, and at least one";
    Err(Error::out_of_range("the number of ranks", ranks.into(), 1, MAX_RANKS.into(), remedy))
}
