//! The state of a group: its members, their parts of the current exchange, and its end.
//!
//! What belongs here: the rules of exchanges, as one value under one lock. A rank may be a thread of
//! this process or a connection: each receives messages through `Deliver`.
//! Invariant: an exchange is complete when every rank has sent its part, and then all receive the
//! same parts; a group ends once, all remaining ranks receive the reason, and nothing completes afterwards.
//! Messages are delivered in the order of their events: under the lock, so `Deliver` may
//! neither wait nor call the table.

use std::sync::{Arc, Mutex, MutexGuard};

use super::identity::{Member, Rules, misfit};
use super::message::{Ending, MAX_BROUGHT, Notice, Request, nonsense};
use crate::sync::lock;

pub(super) type Deliver = Arc<dyn Fn(Notice) + Send + Sync>;

/// The most that one of `ranks` ranks may bring to an exchange, so that all parts fit into one frame.
pub(super) fn most_bytes(ranks: u32) -> usize {
    MAX_BROUGHT / ranks.max(1) as usize
}

/// One meeting of `ranks` ranks.
pub(super) struct Table {
    rules: Rules,
    state: Mutex<State>,
}

struct State {
    seats: Vec<Seat>,
    complete: bool,
    closed: bool,
    exchange: Exchange,
    ended: Option<Ending>,
}

#[derive(Clone, Default)]
struct Seat {
    member: Option<Member>,
    /// How many ranks it believes there are.
    ranks: u32,
    /// Somebody is here.
    deliver: Option<Deliver>,
}

impl Seat {
    /// Somebody was here, and is not any more.
    fn is_left(&self) -> bool {
        self.member.is_some() && self.deliver.is_none()
    }
}

/// The exchange that is open; the next one opens when all parts of this one are here.
struct Exchange {
    number: u64,
    /// What the first rank to come called it, and that rank.
    called: Option<(String, u32)>,
    parts: Vec<Option<Vec<u8>>>,
}

impl Exchange {
    fn new(number: u64, ranks: usize) -> Exchange {
        Exchange { number, called: None, parts: vec![None; ranks] }
    }
}

impl Table {
    pub(super) fn new(ranks: u32, rules: Rules) -> Table {
        let seats = vec![Seat::default(); ranks as usize];
        let exchange = Exchange::new(0, seats.len());
        let state = State { seats, complete: false, closed: false, exchange, ended: None };
        Table { rules, state: Mutex::new(state) }
    }

    /// A rank joins, one of `ranks` by its own count. An error is for the new rank alone; all ranks receive what
    /// concerns all.
    pub(super) fn join(&self, ranks: u32, member: Member, deliver: Deliver) -> Result<(), String> {
        let mut state = self.lock();
        let (rank, count) = (member.rank, state.seats.len());
        if let Some(ending) = &state.ended {
            return Err(format!("the group is over: {}", words(ending)));
        }
        if state.closed {
            return Err("rank 0 has left".into());
        }
        let Some(seat) = state.seats.get_mut(rank as usize) else {
            return Err(other_count(rank, ranks, count));
        };
        if let Some(first) = &seat.member {
            return Err(format!(
                "rank {rank} is here already: process {} came before process {}",
                first.process, member.process
            ));
        }
        *seat = Seat { member: Some(member), ranks, deliver: Some(deliver) };
        let members: Vec<_> = state.seats.iter().filter_map(|seat| seat.member.clone()).collect();
        if members.len() == count {
            // Only now, so that nobody comes too late to be told.
            let odd = (0..).zip(&state.seats).find(|(_, seat)| seat.ranks as usize != count);
            let odd = odd.map(|(rank, seat)| other_count(rank, seat.ranks, count));
            match odd.or_else(|| misfit(&members, self.rules)) {
                Some(reason) => state.end(Ending::Refused { reason }),
                None => {
                    state.complete = true;
                    state.tell_all(&Notice::Complete { members });
                }
            }
        }
        Ok(())
    }

    /// A rank that has joined says something.
    pub(super) fn request(&self, rank: u32, request: Request) {
        let mut state = self.lock();
        match request {
            Request::Join { .. } => {
                let reason = format!("rank {rank} joined twice: run the same version on all ranks");
                state.end(Ending::Refused { reason });
            }
            Request::Bring { exchange, what, part } => state.bring(rank, exchange, what, part),
            Request::Ask { exchange } => {
                let ranks = state.missing(exchange);
                state.tell(rank, Notice::Missing { ranks });
            }
            Request::Abort { reason } => state.end(Ending::Aborted { by: rank, reason }),
            Request::Leave => state.go(rank),
        }
    }

    /// A rank's process or connection is gone, and it had not said that it leaves.
    pub(super) fn lost(&self, rank: u32) {
        let mut state = self.lock();
        if state.seats[rank as usize].deliver.take().is_some() {
            state.end(Ending::Lost { rank });
        }
    }

    /// A rank said what makes no sense.
    pub(super) fn nonsense(&self, rank: u32, error: &std::io::Error) {
        self.lock().end(Ending::Refused { reason: nonsense(rank, error) });
        self.lost(rank);
    }

    /// Not all ranks can come: a group that is not complete ends.
    pub(super) fn cannot_be_complete(&self, reason: &str) {
        let mut state = self.lock();
        if !state.complete {
            state.end(Ending::Refused { reason: reason.into() });
        }
    }

    /// Closes the table: the remaining ranks receive the end, and are released.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.tell_all(&Notice::Closed);
        for seat in &mut state.seats {
            seat.deliver = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn bring(&mut self, rank: u32, number: u64, what: String, part: Vec<u8>) {
        if self.ended.is_some() {
            return; // the rank has been told, or is being told
        }
        let ranks = self.seats.len();
        let exchange = &mut self.exchange;
        let refusal = if !self.complete {
            Some(format!("rank {rank} came to an exchange before the group was complete"))
        } else if number != exchange.number || exchange.parts[rank as usize].is_some() {
            Some(format!("rank {rank} came to exchange {number}, open is {}", exchange.number))
        } else if part.len() > most_bytes(ranks as u32) {
            Some(format!("rank {rank} brought {} bytes to '{what}'", part.len()))
        } else {
            let (called, first) = exchange.called.get_or_insert_with(|| (what.clone(), rank));
            (*called != what).then(|| {
                format!("rank {first} came to '{called}', rank {rank} to '{what}': call the same operations \
                         in the same order on all ranks")
            })
        };
        if let Some(reason) = refusal {
            return self.end(Ending::Refused { reason });
        }
        exchange.parts[rank as usize] = Some(part);
        if exchange.parts.iter().all(Option::is_some) {
            let complete = std::mem::replace(&mut self.exchange, Exchange::new(number + 1, ranks));
            let parts = Arc::new(complete.parts.into_iter().flatten().collect());
            self.tell_all(&Notice::Gathered { exchange: number, parts });
        } else {
            self.end_if_in_vain();
        }
    }

    /// A rank leaves properly. All others receive it; only waits for this rank fail. Once the group has ended, a
    /// leave is no news.
    fn go(&mut self, rank: u32) {
        self.seats[rank as usize].deliver = None;
        if !self.complete {
            return self.end(Ending::Lost { rank });
        }
        if self.ended.is_none() {
            self.tell_all(&Notice::Left { rank });
        }
        self.end_if_in_vain();
    }

    /// Ends the group if somebody waits for the part of a rank that has gone.
    fn end_if_in_vain(&mut self) {
        let parts = &self.exchange.parts;
        if parts.iter().any(Option::is_some) {
            let owes = |rank: &usize| self.seats[*rank].is_left() && parts[*rank].is_none();
            if let Some(rank) = (0..parts.len()).find(owes) {
                self.end(Ending::Lost { rank: rank as u32 });
            }
        }
    }

    fn end(&mut self, ending: Ending) {
        if self.ended.is_none() {
            self.ended = Some(ending.clone());
            self.tell_all(&Notice::Ended(ending));
        }
    }

    /// The ranks that have not come to an exchange; without one, to the group.
    fn missing(&self, exchange: Option<u64>) -> Vec<u32> {
        let is_missing = |rank: &u32| match exchange {
            None => self.seats[*rank as usize].member.is_none(),
            Some(number) if number == self.exchange.number => {
                self.exchange.parts[*rank as usize].is_none()
            }
            Some(_) => false, // it is complete
        };
        (0..self.seats.len() as u32).filter(is_missing).collect()
    }

    fn tell(&self, rank: u32, notice: Notice) {
        if let Some(deliver) = &self.seats[rank as usize].deliver {
            deliver(notice);
        }
    }

    fn tell_all(&self, notice: &Notice) {
        for rank in 0..self.seats.len() as u32 {
            self.tell(rank, notice.clone());
        }
    }
}

fn other_count(rank: u32, ranks: u32, count: usize) -> String {
    format!(
        "rank {rank} came for a group of {ranks} ranks, rank 0 has one of {count}: start all with the same \
         number of ranks, and give each job a port of its own (OVERLAP_GEMM_PORT)"
    )
}

/// An ending, for people.
pub(super) fn words(ending: &Ending) -> String {
    match ending {
        Ending::Refused { reason } => reason.clone(),
        Ending::Lost { rank } => format!("rank {rank} is gone"),
        Ending::Aborted { by, reason } => format!("rank {by} aborted it: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A table of `count` ranks, and the messages to each.
    fn meet(count: u32) -> (Table, Vec<Receiver<Notice>>) {
        let table = Table::new(count, Rules::default());
        let told = (0..count).map(|rank| sit(&table, rank)).collect();
        (table, told)
    }

    fn sit(table: &Table, rank: u32) -> Receiver<Notice> {
        let (sender, receiver) = channel();
        let deliver: Deliver = Arc::new(move |notice| drop(sender.send(notice)));
        let count = table.lock().seats.len() as u32;
        table.join(count, Member::this_process(rank), deliver).unwrap();
        receiver
    }

    fn bring(table: &Table, rank: u32, exchange: u64, what: &str) {
        let part = vec![rank as u8; rank as usize];
        table.request(rank, Request::Bring { exchange, what: what.into(), part });
    }

    fn ending(told: &Receiver<Notice>) -> Ending {
        match told.try_iter().find(|notice| matches!(notice, Notice::Ended(_))) {
            Some(Notice::Ended(ending)) => ending,
            _ => panic!("the group has not ended"),
        }
    }

    #[test]
    fn who_has_not_come_is_named() {
        let table = Table::new(4, Rules::default());
        let told = sit(&table, 2);
        table.request(2, Request::Ask { exchange: None });
        assert_eq!(told.try_recv(), Ok(Notice::Missing { ranks: vec![0, 1, 3] }));
        let others = [0, 1, 3].map(|rank| sit(&table, rank));
        bring(&table, 1, 0, "x");
        let ask = |exchange| {
            table.request(2, Request::Ask { exchange: Some(exchange) });
            told.try_iter().last().unwrap()
        };
        assert_eq!(ask(0), Notice::Missing { ranks: vec![0, 2, 3] });
        [0, 2, 3].into_iter().for_each(|rank| bring(&table, rank, 0, "x"));
        assert_eq!(ask(0), Notice::Missing { ranks: vec![] });
        drop(others);
    }

    #[test]
    fn misfits_are_told_to_all_and_doubles_only_to_themselves() {
        let (table, told) = meet(2);
        let quiet: Deliver = Arc::new(|_| ());
        let text = table.join(2, Member::this_process(1), quiet.clone()).unwrap_err();
        assert!(text.starts_with("rank 1 is here already"), "{text}");
        assert!(told.iter().all(|told| told.try_iter().count() == 1));

        let table = Table::new(2, Rules::default());
        let told = sit(&table, 0);
        let foreign = Member { version: "0.0.0".into(), ..Member::this_process(1) };
        table.join(2, foreign, quiet.clone()).unwrap();
        assert!(words(&ending(&told)).contains("rank 1 is '0.0.0'"));
        let late = table.join(2, Member::this_process(1), quiet.clone()).unwrap_err();
        assert!(late.starts_with("the group is over"), "{late}");

        // A wrong number is reported once all are here, so that nobody misses it.
        let table = Table::new(3, Rules::default());
        let told = sit(&table, 0);
        table.join(4, Member::this_process(1), quiet.clone()).unwrap();
        assert_eq!(told.try_iter().count(), 0);
        let last = sit(&table, 2);
        for told in [told, last] {
            let text = words(&ending(&told));
            assert!(
                text.starts_with("rank 1 came for a group of 4 ranks, rank 0 has one of 3"),
                "{text}"
            );
        }
        let table = Table::new(2, Rules::default());
        for rank in [2, u32::MAX] {
            let text = table.join(9, Member::this_process(rank), quiet.clone()).unwrap_err();
            assert!(text.starts_with(&format!("rank {rank} came for a group of 9")), "{text}");
        }
    }

    #[test]
    fn other_operations_are_refused_by_name() {
        let (table, told) = meet(2);
        bring(&table, 1, 0, "barrier");
        bring(&table, 0, 0, "plan");
        let text = words(&ending(&told[1]));
        assert!(text.starts_with("rank 1 came to 'barrier', rank 0 to 'plan'"), "{text}");

        let early = |exchange| {
            let (table, told) = meet(2);
            bring(&table, 1, exchange, "x");
            bring(&table, 1, exchange, "x");
            words(&ending(&told[0]))
        };
        assert!(early(0).contains("came to exchange 0, open is 0"), "twice");
        assert!(early(7).contains("came to exchange 7, open is 0"), "too early");
        let (table, told) = meet(2);
        let part = vec![0; most_bytes(2) + 1];
        table.request(0, Request::Bring { exchange: 0, what: "x".into(), part });
        assert!(words(&ending(&told[1])).contains("brought"));
        let (table, told) = meet(2);
        table.request(
            1,
            Request::Join { job: String::new(), ranks: 2, member: Member::this_process(1) },
        );
        assert!(words(&ending(&told[0])).contains("joined twice"));
    }

    #[test]
    fn a_lost_rank_ends_the_group_and_one_that_leaves_only_if_it_is_needed() {
        let (table, told) = meet(3);
        table.lost(1);
        assert_eq!(ending(&told[2]), Ending::Lost { rank: 1 });
        table.lost(2);
        assert!(
            !told[0].try_iter().any(|notice| notice == Notice::Ended(Ending::Lost { rank: 2 }))
        );

        let (table, told) = meet(3);
        table.request(1, Request::Leave);
        table.lost(1);
        // Nobody needed it; the others learn that it has left, after all were here.
        for (rank, told) in told.iter().enumerate() {
            let left = if rank == 1 { vec![] } else { vec![Notice::Left { rank: 1 }] };
            assert_eq!(told.try_iter().skip(1).collect::<Vec<_>>(), left);
        }
        bring(&table, 0, 0, "x");
        assert_eq!(ending(&told[2]), Ending::Lost { rank: 1 });

        // It had brought its part before.
        let (table, told) = meet(2);
        bring(&table, 1, 0, "x");
        table.request(1, Request::Leave);
        bring(&table, 0, 0, "x");
        assert!(matches!(told[0].try_iter().nth(2), Some(Notice::Gathered { exchange: 0, .. })));

        let table = Table::new(2, Rules::default());
        let told = sit(&table, 0);
        drop(sit(&table, 1));
        let table = Table::new(3, Rules::default());
        let (first, _second) = (sit(&table, 0), sit(&table, 1));
        table.request(1, Request::Leave);
        assert_eq!(ending(&first), Ending::Lost { rank: 1 }, "it can never be complete");
        drop(told);
    }

    #[test]
    fn a_closed_table_tells_nothing_more() {
        let (table, told) = meet(2);
        table.close();
        table.lost(1);
        bring(&table, 0, 0, "x");
        assert_eq!(told[0].try_iter().skip(1).collect::<Vec<_>>(), [Notice::Closed]);
    }
}
