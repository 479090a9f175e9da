//! The arrival of all rows: the all-gather of a plan over one machine's links.
//!
//! A GPU's copies share its engine and its link: they take turns, in the order of the [`Schedule`](crate::plan::Schedule);
//! a stream goes on when its signal has followed its data. Where two
//! sources meet at one destination, each gets half. Invariant: times are µs from the end of the previous
//! step; equal ranks are computed once, which is exact.

use std::ops::Range;

use super::machine::Machine;
use crate::plan::{Engine, Lane, Operation, Plan, Scaling, Step, Word};

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

/// The gather of one step.
#[derive(Debug)]
pub(super) struct Gather<'a> {
    plan: &'a Plan,
    /// When a rank may read its own rows, where they do not come with all others.
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

impl<'a> Gather<'a> {
    pub(super) fn new(machine: &Machine, plan: &'a Plan) -> Self {
        Self::of_senders(machine, plan, are_alike(plan))
    }

    /// Of rank 0 alone where all are `alike`, else of every rank.
    fn of_senders(machine: &Machine, plan: &'a Plan, alike: bool) -> Self {
        let engine = plan.options().engine;
        let senders = if alike { 0..1 } else { 0..plan.problem().ranks() };
        let (all, all_at) = match engine {
            Engine::Nccl => (Vec::new(), Some(by_nccl(machine, plan))),
            _ => (push(machine, plan, senders.clone()), None),
        };
        let mut sending = vec![Window::default(); senders.len()];
        let mut sent = vec![Vec::new(); senders.len()];
        for piece in all {
            sending[piece.from as usize].add(&piece);
            sent[if alike { 0 } else { piece.to as usize }].push(piece);
        }
        let gathers = plan.options().operation != Operation::Gemm;
        let own_at = if gathers { machine.own_us } else { 0.0 };
        Gather { plan, own_at, sent, sending, alike, all_at }
    }

    /// Whether what holds for rank 0 holds for every rank.
    pub(super) fn alike(&self) -> bool {
        self.alike
    }

    /// SMs that push on `rank` before they multiply, and until when.
    pub(super) fn pushing(&self, rank: u32) -> (u32, f64) {
        match self.plan.options().engine {
            Engine::Kernel { blocks } => (blocks, self.sending(rank).signalled),
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
            let nth = sent.chunk - chunks.of_rank(0).start;
            Sent { from, to: rank, chunk: chunks.of_rank(from).start + nth, ..*sent }
        };
        self.sent[0].iter().map(here).collect()
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

/// When NCCL has brought all rows everywhere.
fn by_nccl(machine: &Machine, plan: &Plan) -> f64 {
    let problem = plan.problem();
    let ranks = problem.ranks();
    if ranks == 1 {
        return 0.0;
    }
    // The ring moves as much each turn as the largest shard has.
    let shard = problem.row_bytes(&(0..problem.shards().most_rows())) as f64;
    let others = f64::from(ranks - 1);
    let bytes = others * shard;
    let bytes = bytes.min(problem.row_bytes(&(0..problem.m())) as f64);
    let much = machine.nccl_us
        + machine.nccl_rank_us * others
        + bytes / (machine.nccl_share * machine.rate(Engine::Nccl));
    let little = machine.nccl_small_us
        + bytes / (1e3 * machine.nccl_small_gbps).min(machine.rate(Engine::Nccl));
    much.min(little)
}

/// One sender's pieces, in order, and where it is with them.
struct Sender {
    rank: u32,
    pieces: Vec<Piece>,
    next: usize,
    /// When each stream may go on.
    streams: Vec<f64>,
    /// The piece under way: when it began, when its first byte leaves, and what is left of it.
    active: Option<Active>,
}

#[derive(Clone, Copy)]
struct Piece {
    chunk: u32,
    to: u32,
    bytes: f64,
    /// What it costs besides its bytes.
    fixed: f64,
    /// Which stream sends it.
    stream: usize,
    /// The piece after which it is signalled: itself, or a later one of the same stream.
    signalled_after: usize,
}

#[derive(Clone, Copy)]
struct Active {
    piece: Piece,
    begin: f64,
    moves_at: f64,
    left: f64,
}

impl Sender {
    fn new(machine: &Machine, plan: &Plan, rank: u32, begin: f64) -> Self {
        let problem = plan.problem();
        let scaled = problem.scaling() == Scaling::Rows;
        let pad = f64::from(problem.lda() - problem.k()) * f64::from(problem.elements().a.size());
        let bytes = |chunk| {
            let rows = plan.chunks().rows(chunk);
            // What lies between rows travels with them. Their scales do beside them, four bytes each; a copy of their own
            // where copy engines push.
            let between = rows.len().saturating_sub(1) as f64 * pad;
            let scales = if scaled { 4.0 * rows.len() as f64 } else { 0.0 };
            problem.row_bytes(&rows) as f64 + between + scales
        };
        let of_kernel = matches!(plan.options().engine, Engine::Kernel { .. });
        let mut pieces: Vec<Piece> = Vec::new();
        // Pieces of a stream that were moved and not signalled yet.
        let mut streams: Vec<Vec<usize>> = vec![Vec::new()];
        for (lane, step) in plan.schedule(rank).steps {
            let Lane::Push(stream) = lane else { continue };
            let stream = stream as usize;
            if streams.len() <= stream {
                streams.resize(stream + 1, Vec::new());
            }
            match step {
                Step::Move { chunk, to } => {
                    // A kernel's blocks fence once for all that they signal together.
                    let fixed = match streams[stream].is_empty() {
                        _ if !of_kernel && scaled => 2.0 * machine.copy_us,
                        _ if !of_kernel => machine.copy_us,
                        true => machine.push_us,
                        false => 0.0,
                    };
                    let (bytes, signalled_after) = (bytes(chunk), pieces.len());
                    streams[stream].push(pieces.len());
                    pieces.push(Piece { chunk, to, bytes, fixed, stream, signalled_after });
                }
                Step::Post { word: Word::Landed { .. }, .. } => {
                    if let Some(&last) = streams[stream].last() {
                        for piece in streams[stream].drain(..) {
                            pieces[piece].signalled_after = last;
                        }
                    }
                }
                Step::Await { .. } | Step::Post { .. } | Step::Multiply { .. } => {}
                // Of a reduce-scatter, which `check` refuses.
                Step::Reduce { .. } => {}
            }
        }
        Sender { rank, pieces, next: 0, streams: vec![begin; streams.len()], active: None }
    }

    /// Begins the next piece, the engine being free at `now`.
    fn begin_next(&mut self, now: f64) {
        let Some(&piece) = self.pieces.get(self.next) else { return };
        let begin = now.max(self.streams[piece.stream]);
        self.active =
            Some(Active { piece, begin, moves_at: begin + piece.fixed, left: piece.bytes });
    }
}

/// Events that are so few µs apart are one, so that ranks which do the same are moved on together.
const SAME_TIME: f64 = 1e-3;

/// Whether copies to several peers are under way at once: pieces go round the streams, so that is where there are more of
/// those than a shard has pieces.
fn sends_to_several(plan: &Plan, engine: Engine) -> bool {
    let pieces = plan.chunks().most_per_rank();
    matches!(engine, Engine::CopyEngines { streams } if streams > pieces && plan.problem().ranks() > 2)
}

/// Lets `senders` push all that they have to.
fn push(machine: &Machine, plan: &Plan, senders: Range<u32>) -> Vec<Sent> {
    let engine = plan.options().engine;
    let begin = machine.sends_at(engine);
    let signal = if matches!(engine, Engine::Kernel { .. }) { 0.0 } else { machine.signal_us };
    let new = |rank| Sender::new(machine, plan, rank, begin);
    let mut senders: Vec<Sender> = senders.map(new).collect();
    senders.iter_mut().for_each(|sender| sender.begin_next(begin));
    let mut sent = Vec::with_capacity(senders.iter().map(|sender| sender.pieces.len()).sum());
    let mut arriving = vec![0u32; plan.problem().ranks() as usize];
    let part = if sends_to_several(plan, engine) { machine.several_share } else { 1.0 };
    let (link, peer) = (part * 1e3 * machine.link_gbps, machine.rate(engine));
    let mut now = begin;
    loop {
        arriving.fill(0);
        let moves = |active: &Active| active.moves_at <= now + SAME_TIME;
        for active in senders.iter().filter_map(|sender| sender.active.as_ref()) {
            arriving[active.piece.to as usize] += u32::from(moves(active));
        }
        let rate = |to: u32| (link / f64::from(arriving[to as usize].max(1))).min(peer);
        let event = |active: &Active| match moves(active) {
            true => now + active.left / rate(active.piece.to),
            false => active.moves_at,
        };
        let events = senders.iter().filter_map(|sender| sender.active.as_ref().map(event));
        let Some(next) = events.min_by(f64::total_cmp) else { break };
        for sender in &mut senders {
            let Some(active) = &mut sender.active else { continue };
            if !moves(active) {
                continue;
            }
            let rate = rate(active.piece.to);
            if now + active.left / rate > next + SAME_TIME {
                active.left -= (next - now) * rate;
                continue;
            }
            let Active { piece: Piece { chunk, to, stream, .. }, begin, .. } = *active;
            let signalled = next + signal;
            sent.push(Sent { from: sender.rank, to, chunk, begin, end: next, signalled });
            sender.streams[stream] = signalled;
            sender.next += 1;
            sender.active = None;
            sender.begin_next(next);
        }
        now = next;
    }
    // Each sender's pieces are in order among all.
    let mut signalled = vec![Vec::new(); senders.len()];
    sent.iter().for_each(|piece| signalled[piece.from as usize].push(piece.signalled));
    let mut next = vec![0; senders.len()];
    for piece in &mut sent {
        let from = piece.from as usize;
        piece.signalled = signalled[from][senders[from].pieces[next[from]].signalled_after];
        next[from] += 1;
    }
    sent
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
        let gather = Gather::new(&machine(), &plan);
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
        let gather = Gather::new(&machine(), &plan);
        assert_eq!(gather.ready(0), [5.0, 5.0, 19.0, 26.0]);
    }

    #[test]
    fn copies_to_several_peers_at_once_take_longer() {
        let ready = |pieces, streams| {
            let plan = plan(&[8, 8, 8], pieces, Engine::CopyEngines { streams });
            let gather = Gather::new(&machine(), &plan);
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
        let gather = Gather::new(&machine(), &many);
        assert_eq!(gather.ready(0), [5.0, 2011.0, 4012.0]);
        assert_eq!((gather.pushing(0), gather.busy(0).to), ((16, 4012.0), 0.0));
        // A few blocks do not fill the link.
        let machine = Machine { push_block_gbps: 0.05, ..machine() };
        let gather = Gather::new(&machine, &few);
        assert_eq!(gather.ready(0), [5.0, 10_011.0, 20_012.0]);
    }

    #[test]
    fn a_kernel_that_sends_little_tells_all_at_once() {
        let engine = Engine::Kernel { blocks: 16 };
        let (few, more) = (plan(&[8; 3], 2, engine), plan(&[1049; 3], 2, engine));
        // One count for all, and 2 · 8 µs of bytes.
        assert_eq!(Gather::new(&machine(), &few).ready(0)[2..], [27.0; 4]);
        let ready = Gather::new(&machine(), &more).ready(0);
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
            let each = Gather::of_senders(&machine(), &plan, false);
            let once = Gather::new(&machine(), &plan);
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
        let gather = Gather::new(&machine(), &plan);
        assert!(!gather.alike());
        // Round 1: 0 → 2 and 1 → 0, round 2: 0 → 1 and 1 → 2: nobody meets.
        assert_eq!(gather.ready(2)[..2], [25.0, 40.0]);
        // Rank 0 has twice as much, so that in round 2 rank 1 finds rank 2 taken.
        let plan = super::tests::plan(&[20, 10, 0], 1, ONE);
        let gather = Gather::new(&machine(), &plan);
        let ready = gather.ready(2);
        // 13 → 33 alone; rank 1 from 28 on: 5 µs of both at half the rate take 10, and so on.
        assert!(ready[0] > 35.0 && ready[1] > 40.0, "{ready:?}");
        let alone = 28.0 + 10.0 + 2.0;
        assert!(ready[1] - alone > 4.9, "{ready:?}");
    }

    #[test]
    fn nccl_tells_all_at_once() {
        let plan = plan(&[8, 4, 4], 1, Engine::Nccl);
        let gather = Gather::new(&machine(), &plan);
        let ready = gather.ready(1);
        assert!(ready.iter().all(|at| *at == ready[0]) && ready[0] > 16.0, "{ready:?}");
    }
}
