//! The arrival of all rows, or sums: the transfers of a plan, as each rank sees them. `senders` lets them travel.
//!
//! Invariant: times are µs from the end of the previous step; equal ranks are computed once, which is exact but for all-reduces on
//! several streams.

use std::collections::BTreeMap;

use super::machine::Machine;
use super::senders::{Sums, by_nccl, push};
use crate::plan::{Engine, Operation, Plan};

/// One piece on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) chunk: u32,
    pub(super) begin: f64,
    /// When its last byte arrives.
    pub(super) end: f64,
    pub(super) signalled: f64,
}

/// A time in which a rank's link is busy, and which part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) share: f64,
}

/// The transfers of one step.
#[derive(Debug)]
pub(super) struct Transfers<'a> {
    plan: &'a Plan,
    /// When a rank may read its own rows, where they do not come with all others; in a reduction, when its product may begin.
    own_at: f64,
    /// What comes to each rank; where all are alike, what rank 0 sends to any; nothing where NCCL moves the rows.
    sent: Vec<Vec<Sent>>,
    /// What each rank's sending amounts to, or rank 0's alone.
    sending: Vec<Window>,
    /// Rank 0 speaks for all.
    alike: bool,
    /// When all rows have arrived everywhere, if no chunk is signalled before.
    all_at: Option<f64>,
}

impl<'a> Transfers<'a> {
    pub(super) fn new(machine: &Machine, plan: &'a Plan) -> Self {
        Self::of_senders(machine, plan, are_alike(plan), None)
    }

    /// Of a reduction: each piece leaves when its sums are complete.
    pub(super) fn of_sums(machine: &Machine, plan: &'a Plan, sums: &Sums<'_>) -> Self {
        Self::of_senders(machine, plan, are_alike(plan), Some(sums))
    }

    /// Of rank 0 alone where all are `alike`, else of every rank.
    fn of_senders(machine: &Machine, plan: &'a Plan, alike: bool, sums: Option<&Sums<'_>>) -> Self {
        let (operation, engine) = (plan.options().operation, plan.options().engine);
        let senders = if alike { 0..1 } else { 0..plan.problem().ranks() };
        let (all, all_at) = match engine {
            Engine::Nccl => (Vec::new(), Some(by_nccl(machine, plan))),
            // Nobody knows yet when sums are complete.
            _ if operation.reduces() && sums.is_none() => (Vec::new(), None),
            _ => (push(machine, plan, senders.clone(), sums), None),
        };
        let mut sending = vec![Window::default(); senders.len()];
        let mut sent = vec![Vec::new(); senders.len()];
        for piece in all {
            sending[piece.from as usize].add(&piece);
            sent[if alike { 0 } else { piece.to as usize }].push(piece);
        }
        let own_at = match (operation, engine) {
            (Operation::Gemm, _) => 0.0,
            // The kernel behind the product begins the next step.
            (_, Engine::Kernel { .. }) if operation.reduces() => 0.0,
            _ => machine.own_us,
        };
        Transfers { plan, own_at, sent, sending, alike, all_at }
    }

    /// Whether what holds for rank 0 holds for every rank.
    pub(super) fn alike(&self) -> bool {
        self.alike
    }

    /// SMs that push on `rank` before they multiply, and until when.
    pub(super) fn pushing(&self, rank: u32) -> (u32, f64) {
        let options = self.plan.options();
        match options.engine {
            Engine::Kernel { blocks } if !options.operation.reduces() => {
                (blocks, self.sending(rank).signalled)
            }
            _ => (0, 0.0),
        }
    }

    /// When the kernel that begins the step on `rank` has ended: what does not look at rows itself starts then.
    pub(super) fn begun_at(&self, rank: u32) -> f64 {
        self.own_at().max(self.pushing(rank).1)
    }

    /// When a rank may read its own rows.
    pub(super) fn own_at(&self) -> f64 {
        self.all_at.unwrap_or(self.own_at)
    }

    /// When each chunk may be read on `rank`.
    pub(super) fn ready(&self, rank: u32) -> Vec<f64> {
        let mut ready = vec![self.own_at(); self.plan.chunks().len() as usize];
        for sent in self.received(rank) {
            ready[sent.chunk as usize] = sent.signalled;
        }
        ready
    }

    /// When the first span of each chunk may be read on `rank`: of all that comes, before the second one of any.
    pub(super) fn first_spans(&self, rank: u32) -> Vec<f64> {
        let mut first = self.ready(rank);
        let (received, spans) = (self.received(rank), f64::from(self.plan.chunks().spans()));
        let begin = received.iter().map(|sent| sent.begin).fold(f64::INFINITY, f64::min);
        for sent in received {
            first[sent.chunk as usize] = begin + (sent.signalled - begin) / spans;
        }
        first
    }

    /// When the sums of `from` for each chunk may be added up on `rank`.
    pub(super) fn sums_at(&self, rank: u32) -> BTreeMap<(u32, u32), f64> {
        let received = self.received(rank).into_iter();
        received.map(|sent| ((sent.chunk, sent.from), sent.signalled)).collect()
    }

    /// What comes to `rank`.
    pub(super) fn received(&self, rank: u32) -> Vec<Sent> {
        let (ranks, chunks) = (self.plan.problem().ranks(), self.plan.chunks());
        if let Some(end) = self.all_at {
            let of = |chunk| Sent {
                from: chunks.rank_of(chunk),
                to: rank,
                chunk,
                begin: 0.0,
                end,
                signalled: end,
            };
            return (0..chunks.len()).map(of).filter(|sent| sent.from != rank).collect();
        }
        if !self.alike {
            return self.sent[rank as usize].clone();
        }
        let here = |sent: &Sent| {
            // What rank 0 sends round-th, the rank `round` beyond this one sends here at that time.
            let from = (rank + ranks - sent.to) % ranks;
            let owner = chunks.rank_of(sent.chunk);
            let nth = sent.chunk - chunks.of_rank(owner).start;
            let chunk = chunks.of_rank((owner + from) % ranks).start + nth;
            Sent { from, to: rank, chunk, ..*sent }
        };
        self.sent[0].iter().map(here).collect()
    }

    /// When all that `rank` sends has been sent.
    pub(super) fn sent_at(&self, rank: u32) -> f64 {
        self.sending(rank).signalled
    }

    /// What the sending of `rank` amounts to.
    fn sending(&self, rank: u32) -> Window {
        self.sending[if self.alike { 0 } else { rank as usize }]
    }

    /// When the link of `rank` is busy beside a product: never where a kernel pushes before it.
    pub(super) fn busy(&self, rank: u32) -> Busy {
        if !matches!(self.plan.options().engine, Engine::CopyEngines { .. }) {
            return Busy::default();
        }
        let sends = self.sending(rank);
        let mut receives = Window::default();
        self.received(rank).iter().for_each(|sent| receives.add(sent));
        let (from, to) = (sends.from.min(receives.from), sends.to.max(receives.to));
        if to <= from {
            return Busy::default();
        }
        Busy { from, to, share: (sends.busy.max(receives.busy) / (to - from)).min(1.0) }
    }
}

/// Some pieces together.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: f64,
    to: f64,
    busy: f64,
    signalled: f64,
}

impl Default for Window {
    fn default() -> Self {
        Window { from: f64::INFINITY, to: 0.0, busy: 0.0, signalled: 0.0 }
    }
}

impl Window {
    fn add(&mut self, sent: &Sent) {
        self.from = self.from.min(sent.begin);
        self.to = self.to.max(sent.end);
        self.busy += sent.end - sent.begin;
        self.signalled = self.signalled.max(sent.signalled);
    }
}

/// Whether every rank has as many chunks as any other, and as many rows but for one.
pub(super) fn are_alike(plan: &Plan) -> bool {
    let (shards, chunks) = (plan.problem().shards(), plan.chunks());
    let first = chunks.of_rank(0).len();
    (0..shards.ranks()).all(|rank| {
        let rows = shards.rows(rank).len() as u32;
        chunks.of_rank(rank).len() == first && rows > 0 && shards.most_rows() - rows <= 1
    })
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanOptions, Problem, Strategy};

    const ONE: Engine = Engine::CopyEngines { streams: 1 };

    fn machine() -> Machine {
        // A byte a nanosecond, so that times can be read.
        let machine = Machine::h200().with_link(1.0);
        Machine {
            own_us: 5.0,
            begin_us: 10.0,
            begin_push_us: 10.0,
            copy_us: 3.0,
            signal_us: 2.0,
            push_us: 1.0,
            several_share: 0.5,
            ..machine
        }
    }

    fn plan(rows: &[u32], pieces: u32, engine: Engine) -> Plan {
        let m = rows.iter().sum::<u32>().into();
        // 1000 bytes a row: a µs each.
        let problem = Problem::builder(m, 64, 500).shards(rows).build().unwrap();
        let (pieces, strategy) = (Some(pieces), Strategy::Sequential);
        let options = PlanOptions { strategy, engine, pieces, ..PlanOptions::default() };
        Plan::new(&problem, options).unwrap()
    }

    #[test]
    fn a_piece_after_the_other_and_a_signal_behind_each() {
        let plan = plan(&[8, 8], 2, ONE);
        let gather = Transfers::new(&machine(), &plan);
        // 3 to begin, 4 for the bytes, 2 for the signal.
        assert_eq!(gather.ready(0), [5.0, 5.0, 19.0, 28.0]);
        assert_eq!(gather.ready(1), [19.0, 28.0, 5.0, 5.0]);
        let busy = gather.busy(0);
        assert_eq!((busy.from, busy.to), (10.0, 26.0));
        assert!((busy.share - 14.0 / 16.0).abs() < 1e-9);
    }

    #[test]
    fn with_two_streams_a_signal_holds_nobody_up() {
        let plan = plan(&[8, 8], 2, Engine::CopyEngines { streams: 2 });
        let gather = Transfers::new(&machine(), &plan);
        assert_eq!(gather.ready(0), [5.0, 5.0, 19.0, 26.0]);
    }

    #[test]
    fn copies_to_several_peers_at_once_take_longer() {
        let ready = |pieces, streams| {
            let plan = plan(&[8, 8, 8], pieces, Engine::CopyEngines { streams });
            let gather = Transfers::new(&machine(), &plan);
            gather.ready(0).into_iter().fold(0.0, f64::max)
        };
        // Begun at 10; each copy costs 3 and its rows, at half the rate by two streams; the last signal 2.
        assert_eq!((ready(1, 1), ready(1, 2)), (36.0, 50.0));
        // Two pieces go to the same peer.
        assert_eq!(ready(2, 2), 40.0);
    }

    #[test]
    fn blocks_that_push_multiply_later() {
        let of = |blocks| plan(&[2000; 3], 1, Engine::Kernel { blocks });
        let (many, few) = (of(16), of(4));
        let gather = Transfers::new(&machine(), &many);
        assert_eq!(gather.ready(0), [5.0, 2011.0, 4012.0]);
        assert_eq!((gather.pushing(0), gather.busy(0).to), ((16, 4012.0), 0.0));
        // A few blocks do not fill the link.
        let machine = Machine { push_block_gbps: 0.05, ..machine() };
        let gather = Transfers::new(&machine, &few);
        assert_eq!(gather.ready(0), [5.0, 10_011.0, 20_012.0]);
    }

    #[test]
    fn a_kernel_that_sends_little_tells_all_at_once() {
        let engine = Engine::Kernel { blocks: 16 };
        let (few, more) = (plan(&[8; 3], 2, engine), plan(&[1049; 3], 2, engine));
        // One count for all, and 2 · 8 µs of bytes.
        assert_eq!(Transfers::new(&machine(), &few).ready(0)[2..], [27.0; 4]);
        let ready = Transfers::new(&machine(), &more).ready(0);
        assert!(ready[2] < ready[3] && ready[3] < ready[5], "{ready:?}");
    }

    #[test]
    fn whether_ranks_are_computed_one_by_one_makes_no_difference_where_they_are_alike() {
        for (ranks, pieces, engine) in [
            (4, 1, ONE),
            (8, 2, Engine::CopyEngines { streams: 2 }),
            (5, 2, Engine::Kernel { blocks: 16 }),
        ] {
            let plan = plan(&vec![6; ranks], pieces, engine);
            assert!(are_alike(&plan));
            let each = Transfers::of_senders(&machine(), &plan, false, None);
            let once = Transfers::new(&machine(), &plan);
            for rank in 0..ranks as u32 {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
                let (each, once) = (each.ready(rank), once.ready(rank));
                assert!(each.iter().zip(&once).all(near), "{rank}: {each:?} {once:?}");
            }
        }
    }

    #[test]
    fn two_sources_share_one_destination() {
        // Rank 2 has nothing to send; in round 1 rank 1 sends to 0, in round 2 rank 0 to 1.
        let plan = plan(&[10, 10, 0], 1, ONE);
        let gather = Transfers::new(&machine(), &plan);
        assert!(!gather.alike());
        // Round 1: 0 → 2 and 1 → 0, round 2: 0 → 1 and 1 → 2: nobody meets.
        assert_eq!(gather.ready(2)[..2], [25.0, 40.0]);
        // Rank 0 has twice as much, so that in round 2 rank 1 finds rank 2 taken.
        let plan = super::tests::plan(&[20, 10, 0], 1, ONE);
        let gather = Transfers::new(&machine(), &plan);
        let ready = gather.ready(2);
        // 13 → 33 alone; rank 1 from 28 on: 5 µs of both at half the rate take 10, and so on.
        assert!(ready[0] > 35.0 && ready[1] > 40.0, "{ready:?}");
        let alone = 28.0 + 10.0 + 2.0;
        assert!(ready[1] - alone > 4.9, "{ready:?}");
    }

    #[test]
    fn nccl_tells_all_at_once() {
        let plan = plan(&[8, 4, 4], 1, Engine::Nccl);
        let gather = Transfers::new(&machine(), &plan);
        let ready = gather.ready(1);
        assert!(ready.iter().all(|at| *at == ready[0]) && ready[0] > 16.0, "{ready:?}");
    }
}
