//! Groups whose store nobody can know beforehand: parts of a group, and groups that meet by the caller's means.
//!
//! What belongs here: the invitation to a store, and its two ways to the other ranks. Invariants: an invitation has the
//! secret of its group, so it goes only through encrypted connections or the caller's hands; a rank that cannot open its
//! store says so in the invitation, so that the others fail with its reason at once.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::launch::Launch;
use super::line::after;
use super::secret::Secret;
use super::store::Store;
use super::table::Table;
use super::{Group, GroupOptions, check_seat};
use crate::error::{Error, Result};

/// What rank 0 tells the others: where its store listens, and the secret; or why it has none.
#[derive(Serialize, Deserialize)]
struct Invitation(std::result::Result<Place, String>);

#[derive(Clone, Serialize, Deserialize)]
struct Place {
    host: String,
    port: u16,
    secret: String,
}

/// Rank 0's table, to which others can come.
struct Opened {
    table: Arc<Table>,
    store: Store,
}

impl Opened {
    /// At any free port of `host`.
    fn new(
        host: &str,
        ranks: u32,
        options: &GroupOptions,
        until: Instant,
    ) -> Result<(Self, Place)> {
        let table = Arc::new(Table::new(ranks, options.rules));
        let secret = Secret::random_text()?;
        let launch = Launch::at(0, ranks, host, 0);
        let remedy = "give a host of this machine at which this process may listen";
        let store = Store::open(&launch, &table, &Secret::of(&secret), until)
            .map_err(|error| with_remedy(error, remedy))?;
        let place = Place { host: host.into(), port: store.port(), secret };
        Ok((Opened { table, store }, place))
    }
}

impl Group {
    /// One of `ranks` ranks that meet by the caller's own means, such as MPI, torch.distributed or a key-value store.
    ///
    /// `broadcast` is called once on every rank. It is given bytes, of which only rank 0's matter, and returns rank 0's bytes
    /// on every rank. They hold the group's secret: hand them to its ranks only. `host` is a name or an address at which the
    /// other ranks reach rank 0; only rank 0's counts. `localhost` is enough on one machine. The limit includes the broadcast.
    ///
    /// ```
    /// use overlap_gemm::group::{Group, GroupOptions};
    /// use std::sync::{Condvar, Mutex};
    ///
    /// // Any store of the caller's.
    /// let (stored, written) = (Mutex::new(None), Condvar::new());
    /// let join = |rank: u32| {
    ///     Group::by_broadcast(rank, 2, "localhost", &GroupOptions::default(), |bytes| {
    ///         let mut stored = stored.lock().unwrap();
    ///         if rank == 0 {
    ///             *stored = Some(bytes);
    ///             written.notify_all();
    ///         }
    ///         let stored = written.wait_while(stored, |stored| stored.is_none()).unwrap();
    ///         Ok(stored.clone().unwrap())
    ///     })
    /// };
    /// std::thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         scope.spawn(move || assert_eq!(join(rank).unwrap().ranks(), 2));
    ///     }
    /// });
    /// ```
    pub fn by_broadcast(
        rank: u32,
        ranks: u32,
        host: &str,
        options: &GroupOptions,
        broadcast: impl FnOnce(Vec<u8>) -> Result<Vec<u8>>,
    ) -> Result<Group> {
        meet((rank, ranks), host, options, after(options.limit), broadcast)
    }

    /// A part of this group: the ranks that call it with the same `part` become a group, in the order of their ranks here.
    ///
    /// All ranks call it; a rank that wants no part gives a number that no part uses, and drops the group. No other thread of a
    /// rank may exchange anything in this group meanwhile. The options are the part's own; the GPU is this group's where they
    /// name none.
    ///
    /// The part has its own end: it goes on when this group is dropped, and neither ends the other, but for a process that
    /// dies, which ends both. A part that does not form leaves this group as it was; a rank that does not come to split ends
    /// it.
    ///
    /// ```
    /// use overlap_gemm::group::{Group, GroupOptions};
    ///
    /// // Two replicas of a layer, each divided among two ranks.
    /// std::thread::scope(|scope| {
    ///     for group in Group::local(4)? {
    ///         scope.spawn(move || {
    ///             let shards = group.split(group.rank() / 2, &GroupOptions::default()).unwrap();
    ///             let replicas = group.split(group.rank() % 2, &GroupOptions::default()).unwrap();
    ///             assert_eq!((shards.ranks(), shards.rank()), (2, group.rank() % 2));
    ///             assert_eq!((replicas.ranks(), replicas.rank()), (2, group.rank() / 2));
    ///         });
    ///     }
    ///     Ok::<(), overlap_gemm::Error>(())
    /// })?;
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn split(&self, part: u32, options: &GroupOptions) -> Result<Group> {
        let mut options = options.clone();
        if options.device.is_empty() {
            options.device.clone_from(&self.members()[self.rank() as usize].device);
        }
        let until = after(options.limit);
        let exchange = |what, own: &[u8]| self.exchange(what, own, Some(until), options.limit);
        let parts = exchange("the parts of a split", &part.to_le_bytes())?;
        let is_mine = |rank: &u32| *parts[*rank as usize] == part.to_le_bytes();
        let ranks: Vec<u32> = (0..self.ranks()).filter(is_mine).collect();
        let first = ranks[0];
        let place = ranks.iter().take_while(|rank| **rank < self.rank()).count() as u32;
        let machine = |rank: &u32| &self.members()[*rank as usize].host;
        let is_one = ranks.iter().all(|rank| machine(rank) == machine(&first));
        let host = if is_one { "localhost" } else { self.way.host() };
        meet((place, ranks.len() as u32), host, &options, until, |own| {
            let stores = exchange("the stores of a split", &own)?;
            Ok(stores[first as usize].clone())
        })
    }
}

/// Meets at a store that rank 0 opens at any free port of `host`. Every rank calls `broadcast` once, also one whose arguments
/// are refused, so that none waits for another there.
fn meet(
    (rank, ranks): (u32, u32),
    host: &str,
    options: &GroupOptions,
    until: Instant,
    broadcast: impl FnOnce(Vec<u8>) -> Result<Vec<u8>>,
) -> Result<Group> {
    let checked = check_seat(rank, ranks, options);
    if rank == 0 {
        let opened = checked.and_then(|()| Opened::new(host, ranks, options, until));
        let invitation = match &opened {
            Ok((_, place)) => Invitation(Ok(place.clone())),
            Err(error) => Invitation(Err(error.to_string())),
        };
        let bytes = serde_json::to_vec(&invitation).map_err(|error| nonsense(&error));
        broadcast(bytes?)?;
        let (Opened { table, store }, _) = opened?;
        return Group::at(&table, ranks, options, 0, Some(store))?.complete(until, options.limit);
    }
    let bytes = broadcast(Vec::new())?;
    checked?;
    let Invitation(invited) = serde_json::from_slice(&bytes).map_err(|error| nonsense(&error))?;
    let Place { host, port, secret } = invited.map_err(|reason| Error::NoGroup {
        reason: format!("rank 0 of the new group has no store: {reason}"),
        remedy: "see what rank 0 reports",
    })?;
    let (launch, secret) = (Launch::at(rank, ranks, &host, port), Secret::of(secret));
    let remedy = "see whether rank 0 runs, and whether all ranks reach the host that it gave";
    let come = Group::away(&launch, options, &secret, until);
    come.map_err(|error| with_remedy(error, remedy))?.complete(until, options.limit)
}

/// What is wrong with a store is worded for ranks that read its place from their environment.
fn with_remedy(error: Error, remedy: &'static str) -> Error {
    match error {
        Error::NoGroup { reason, .. } => Error::NoGroup { reason, remedy },
        other => other,
    }
}

fn nonsense(error: &serde_json::Error) -> Error {
    Error::NoGroup {
        reason: format!("what rank 0 broadcast is no invitation to a group: {error}"),
        remedy: "broadcast rank 0's bytes to all ranks, unchanged",
    }
}
