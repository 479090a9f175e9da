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
//!   rank 0's store ([`Group::from_env`], [`Group::meet`]; [`Group::by_broadcast`] where the caller has means of its own).
//! - A group's ranks can form further groups ([`Group::split`]), such as the rows and columns of a grid.
//! - **Only processes of the same user can join**: both sides prove that they know a secret, without sending
//!   it. It is in the environment (`OVERLAP_GEMM_SECRET`), in a file that only the user can read, or in an invitation.
//!   All later messages are encrypted and authenticated with keys of that connection
//!   (Noise `NNpsk0`): a changed, repeated or omitted byte ends the group, and is never
//!   delivered. `SECURITY.md` lists what that covers, and what not.
//! - **Jobs do not mix.** A rank that connects to the store of another job of the same user is refused, if their
//!   launchers name them ([`Launch::job`]); only port and secret distinguish jobs without a name.
//! - **Every call has a limit.** The connection of a process that ends shows it at once; then the group is over for all,
//!   and callbacks run ([`Group::on_end`]). A rank that leaves properly ends nothing; callbacks can report it
//!   ([`Group::on_leave_tell`]).
//! - **A group that has ended stays ended.** The ranks that live form a new one: [`Group::meet`] at another port, as ranks that
//!   they number anew ([`Launch::at`]). Their devices and contexts serve on; operations are planned again.
//! - **A group whose ranks do not match is refused** on all ranks, with both ranks' names and values: other
//!   versions, users, hosts, two ranks with one GPU.
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
mod alarms;
mod channel;
mod client;
#[cfg(target_os = "linux")]
mod handles;
mod identity;
mod inbox;
mod invitation;
pub(crate) mod launch;
mod line;
mod message;
mod options;
mod secret;
mod store;
mod table;

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
pub use handles::MAX_HANDLES;
pub use identity::Member;
pub use launch::{Launch, PORT_VARIABLE};
pub use message::PROTOCOL_VERSION;
pub use options::GroupOptions;
pub use secret::{SECRET_VARIABLE, Secret};

use crate::error::{Error, Result};
use crate::plan::MAX_RANKS;
use crate::sync::lock;
pub(crate) use alarms::News;
use alarms::Watcher;
use client::Connection;
#[cfg(feature = "cuda")]
pub(crate) use identity::on_one_gpu;
use inbox::{Inbox, Vain};
use line::after;
use message::{Ending, Notice, Request};
use store::Store;
use table::{Table, most_bytes};

/// One rank's handle on its group. Dropping it leaves the group: the others learn of it, and continue until they need this
/// rank.
///
/// ```
/// use overlap_gemm::group::Group;
///
/// let mut ranks = Group::local(2)?;
/// let (one, zero) = (ranks.remove(1), ranks.remove(0));
/// assert_eq!((zero.rank(), one.ranks()), (0, 2));
/// zero.abort("rank 0 has run out of input"); // the group ends on all ranks
/// let error = one.check().expect_err("the group is over");
/// assert!(error.to_string().contains("run out of input"));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub struct Group {
    rank: u32,
    members: Vec<Member>,
    inbox: Arc<Inbox>,
    way: Way,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked where GPUs are"))]
    shares_devices: bool,
    /// The next exchange; held while one is open.
    next: Mutex<u64>,
}

/// How a rank speaks to the table.
enum Way {
    /// It is in this process; on rank 0 of a group of processes, with the store that others come to.
    Here { table: Arc<Table>, store: Option<Store> },
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

    /// Where other ranks reach this process.
    fn host(&self) -> &str {
        match self {
            Way::Here { store: Some(store), .. } => store.host(),
            Way::Here { store: None, .. } => "localhost",
            Way::Away(connection) => connection.host(),
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
        let sit = |rank| Group::at(&table, ranks, &shared, rank, None);
        let seated: Vec<_> = (0..ranks).map(sit).collect::<Result<_>>()?;
        seated.into_iter().map(|group| group.complete(Instant::now(), shared.limit)).collect()
    }

    /// Joins the group of this process's launcher: torchrun, mpirun, srun or `overlap-gemm launch`
    /// ([`Launch::read`]). Blocks until all ranks have joined; [`GroupOptions::limit`] is the timeout.
    pub fn from_env(options: &GroupOptions) -> Result<Group> {
        let launch = Launch::from_env()?;
        let secret = Secret::find(|name| std::env::var_os(name))?;
        Group::meet(&launch, &secret, options)
    }

    /// Joins the group that `launch` describes: this process's rank and the address of rank 0. Blocks as
    /// [`Group::from_env`] does.
    ///
    /// ```no_run
    /// use overlap_gemm::group::{Group, GroupOptions, Launch, Secret};
    ///
    /// // After a failure, the three ranks that live form a new group at another port.
    /// # let number = 0;
    /// let launch = Launch::at(number, 3, "node7", 29501);
    /// let secret = Secret::find(|name| std::env::var_os(name))?;
    /// let group = Group::meet(&launch, &secret, &GroupOptions::default())?;
    /// # drop(group);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn meet(launch: &Launch, secret: &Secret, options: &GroupOptions) -> Result<Group> {
        check_seat(launch.rank, launch.ranks, options)?;
        check_length("the job's name", &launch.job)?;
        let until = after(options.limit);
        if launch.rank == 0 {
            let table = Arc::new(Table::new(launch.ranks, options.rules));
            let store = Store::open(launch, &table, secret, until)?;
            let seated = Group::at(&table, launch.ranks, options, 0, Some(store))?;
            return seated.complete(until, options.limit);
        }
        Group::away(launch, options, secret, until)?.complete(until, options.limit)
    }

    /// A rank that has come to another process's store, before all have.
    fn away(
        launch: &Launch,
        options: &GroupOptions,
        secret: &Secret,
        until: Instant,
    ) -> Result<Group> {
        let (inbox, member) = (Arc::new(Inbox::default()), options.member(launch.rank));
        let way = Connection::open(launch, &member, secret, &inbox, until).map(Way::Away)?;
        Ok(Group::seated(launch.rank, inbox, way, options))
    }

    /// A rank that has come to a table of this process, before all have.
    fn at(
        table: &Arc<Table>,
        ranks: u32,
        options: &GroupOptions,
        rank: u32,
        store: Option<Store>,
    ) -> Result<Group> {
        let (inbox, member) = (Arc::new(Inbox::default()), options.member(rank));
        let told = Arc::clone(&inbox);
        let joined = table.join(ranks, member, Arc::new(move |notice: Notice| told.take(notice)));
        joined.map_err(refused)?;
        Ok(Group::seated(rank, inbox, Way::Here { table: Arc::clone(table), store }, options))
    }

    fn seated(rank: u32, inbox: Arc<Inbox>, way: Way, options: &GroupOptions) -> Group {
        let (members, shares_devices) = (Vec::new(), options.rules.shared_devices);
        Group { rank, members, inbox, way, shares_devices, next: Mutex::new(0) }
    }

    /// Waits for all to come.
    fn complete(mut self, until: Instant, limit: Duration) -> Result<Group> {
        let look = |until| self.inbox.members(until);
        self.members = self.wait((until, limit), None, "the group", look)?;
        Ok(self)
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

    /// Whether this rank's options allow several ranks on one GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn shares_devices(&self) -> bool {
        self.shares_devices
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
        self.exchange(what, part, None, limit)
    }

    /// The same until then, which is what is left of a limit; `None`: the limit begins with the exchange.
    fn exchange(
        &self,
        what: &str,
        part: &[u8],
        until: Option<Instant>,
        limit: Duration,
    ) -> Result<Arc<Vec<Vec<u8>>>> {
        let brought = format!("what is brought to '{what}', in bytes,");
        let most = most_bytes(self.ranks()) as u64;
        Error::check_range(brought, part.len() as u64, 0..=most, "exchange less at a time")?;
        check_length("the name of an exchange", what)?;
        let mut next = lock(&self.next);
        let exchange = *next;
        *next += 1;
        let until = until.unwrap_or_else(|| after(limit));
        let part = part.to_vec();
        self.way.request(self.rank, Request::Bring { exchange, what: what.into(), part });
        let look = |until| self.inbox.gathered(exchange, until);
        self.wait((until, limit), Some(exchange), &named(what), look)
    }

    /// Waits with `look` until then, which is after `limit`. Then it asks the store for the missing ranks, tells the other
    /// ranks, and returns an error that names them.
    fn wait<T>(
        &self,
        (until, limit): (Instant, Duration),
        exchange: Option<u64>,
        what: &str,
        look: impl Fn(Instant) -> std::result::Result<T, Vain>,
    ) -> Result<T> {
        /// How long the store may take to name the missing ranks.
        const GRACE: Duration = Duration::from_secs(1);
        let vain = match look(until) {
            Err(Vain::Late) => {
                self.way.request(self.rank, Request::Ask { exchange });
                match self.inbox.missing(after(GRACE)) {
                    // Nobody is: what was awaited came before the answer.
                    Ok(missing) if missing.is_empty() => look(Instant::now()),
                    Ok(missing) => return Err(self.absent(missing, what, limit)),
                    Err(Vain::Late) => return Err(self.absent(vec![0], what, limit)), // the store is stuck
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
            Vain::Late => self.absent(vec![0], what, limit),
        })
    }

    /// Ends the group for want of these ranks.
    fn absent(&self, absent: Vec<u32>, what: &str, limit: Duration) -> Error {
        let error = Error::Absent { rank: self.rank, absent, what: what.into(), limit };
        self.way.request(self.rank, Request::Abort { reason: error.to_string() });
        error
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

    /// Calls `alarm` once, on another thread, when the group ends, or has ended, by a failure or an abort. A
    /// rank that leaves does not end it by itself. Once rank 0 has left, no rank notices that another one
    /// dies: let rank 0 leave last, for example after a [`barrier`](Group::barrier).
    pub fn on_end(&self, alarm: impl FnOnce(&Error) + Send + 'static) {
        let (rank, mut alarm) = (self.rank, Some(alarm));
        let alarm = move |news: &News| {
            if let News::Ended(ending) = news
                && let Some(alarm) = alarm.take()
            {
                alarm(&error_of(ending, rank, WORK));
            }
        };
        self.inbox.watch(Watcher { wanted: Box::new(|| true), alarm: Box::new(alarm) });
    }

    /// Calls `alarm` on another thread with the number of every other rank that leaves, or has left, by dropping its
    /// [`Group`]. The group keeps a weak reference to `whom`: the calls end when its last `Arc` is dropped.
    ///
    /// A leave does not end the group: only what needs that rank fails. Leaves after the group's end are not
    /// reported, nor those after rank 0's, whose store is gone. One alarm is called at a time, so it should be quick.
    pub fn on_leave_tell<T: Send + Sync + 'static>(
        &self,
        whom: &Arc<T>,
        alarm: impl Fn(&T, u32) + Send + 'static,
    ) {
        self.tell(whom, move |whom, news| {
            if let News::Left(rank) = news {
                alarm(whom, *rank);
            }
        });
    }

    /// Tells `whom` of leaves and of the group's end, as long as another holder of it exists; dropped some time after.
    pub(crate) fn tell<T: Send + Sync + 'static>(
        &self,
        whom: &Arc<T>,
        alarm: impl Fn(&T, &News) + Send + 'static,
    ) {
        let whom = Arc::downgrade(whom);
        let held = Weak::clone(&whom);
        let alarm = move |news: &News| {
            if let Some(whom) = whom.upgrade() {
                alarm(&whom, news);
            }
        };
        let wanted = Box::new(move || held.strong_count() > 0);
        self.inbox.watch(Watcher { wanted, alarm: Box::new(alarm) });
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
    let what = format!("the length of {what}");
    Error::check_range(what, text.len() as u64, 0..=1024, "use a shorter one")
}

fn check_seat(rank: u32, ranks: u32, options: &GroupOptions) -> Result<()> {
    check_ranks(ranks)?;
    Error::check_range("the rank", rank, 0..=ranks - 1, "ranks count from 0")?;
    check_length("the device's name", &options.device)
}

fn check_ranks(ranks: u32) -> Result<()> {
    let remedy = "start fewer ranks, and at least one";
    Error::check_range("the number of ranks", ranks, 1..=MAX_RANKS, remedy)
}
