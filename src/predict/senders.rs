//! What ranks send, and when it arrives: copies and kernels that push by discrete events, NCCL by its rate.
//!
//! A GPU's copies share its engine and its link: they take turns, in the order of the [`Schedule`](crate::plan::Schedule);
//! a stream goes on when its signal has followed its data. Where two sources meet at one destination, each gets half.
//! Invariant: nothing leaves before it is there: rows when the step has begun, sums when they are complete.

use std::ops::Range;

use super::machine::Machine;
use super::transfers::Sent;
use crate::plan::{Engine, Lane, Plan, Scaling, Step, Word};

/// The sums that travel in a reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums<'a> {
    /// Bytes of a row.
    pub(super) row_bytes: f64,
    /// When those of each chunk are complete, on each rank; or on rank 0, which speaks for all.
    pub(super) complete: &'a [Vec<f64>],
}

/// When NCCL has brought all rows everywhere.
pub(super) fn by_nccl(machine: &Machine, plan: &Plan) -> f64 {
    let problem = plan.problem();
    let ranks = problem.ranks();
    if ranks == 1 {
        return 0.0;
    }
    // The ring moves as much each turn as the largest shard has.
    let shard = problem.shard_bytes() as f64;
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
    /// When it may leave at the earliest.
    from: f64,
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
    fn new(machine: &Machine, plan: &Plan, rank: u32, begin: f64, sums: Option<&Sums<'_>>) -> Self {
        let problem = plan.problem();
        let scaled = problem.scaling() == Scaling::Rows && sums.is_none();
        let pad = f64::from(problem.lda() - problem.k()) * f64::from(problem.elements().a.size());
        let bytes = |chunk| {
            let rows = plan.chunks().rows(chunk);
            if let Some(sums) = sums {
                return rows.len() as f64 * sums.row_bytes;
            }
            // The padding between rows travels with them. So do their scales, of four bytes each; copy engines send these by a
            // second copy.
            let between = rows.len().saturating_sub(1) as f64 * pad;
            let scales = if scaled { 4.0 * rows.len() as f64 } else { 0.0 };
            problem.row_bytes(&rows) as f64 + between + scales
        };
        let of_kernel = matches!(plan.options().engine, Engine::Kernel { .. });
        let mut pieces: Vec<Piece> = Vec::new();
        // Pieces of a stream that were moved and not signalled yet.
        let mut streams: Vec<Vec<usize>> = vec![Vec::new()];
        // When what a lane has waited for was complete.
        let mut from = 0.0f64;
        for (lane, step) in plan.schedule(rank).steps {
            let Lane::Push(stream) = lane else { continue };
            let stream = stream as usize;
            if streams.len() <= stream {
                streams.resize(stream + 1, Vec::new());
            }
            match step {
                // A kernel brings its rank's own sums to where the others read them.
                Step::Move { to, .. } if sums.is_some() && to == rank => {}
                Step::Move { chunk, to } => {
                    // A kernel's blocks fence once for all that they signal together; the wait for totals is one of its own.
                    let once =
                        machine.push_us + if sums.is_some() { machine.signal_us } else { 0.0 };
                    let fixed = match streams[stream].is_empty() {
                        _ if !of_kernel && scaled => 2.0 * machine.copy_us,
                        _ if !of_kernel => machine.copy_us,
                        true => once + f64::from(plan.chunks().spans() - 1) * machine.push_us,
                        false => 0.0,
                    };
                    let (bytes, signalled_after) = (bytes(chunk), pieces.len());
                    streams[stream].push(pieces.len());
                    pieces.push(Piece { chunk, to, bytes, from, fixed, stream, signalled_after });
                }
                // A rank's sums are complete in the order in which they leave. Behind a `Reduce` leaves the total of its chunk.
                Step::Await { word: Word::Summed { chunk }, .. } | Step::Reduce { chunk } => {
                    from = sums.map_or(0.0, |sums| sums.complete[rank as usize][chunk as usize]);
                }
                Step::Post { word: Word::Landed { .. } | Word::Partial { .. }, .. } => {
                    if let Some(&last) = streams[stream].last() {
                        for piece in streams[stream].drain(..) {
                            pieces[piece].signalled_after = last;
                        }
                    }
                }
                Step::Await { .. } | Step::Post { .. } | Step::Multiply { .. } => {}
            }
        }
        Sender { rank, pieces, next: 0, streams: vec![begin; streams.len()], active: None }
    }

    /// Begins the next piece, the engine being free at `now`.
    fn begin_next(&mut self, now: f64) {
        let Some(&piece) = self.pieces.get(self.next) else { return };
        let begin = now.max(self.streams[piece.stream]).max(piece.from);
        self.active =
            Some(Active { piece, begin, moves_at: begin + piece.fixed, left: piece.bytes });
    }
}

/// Events that are so few µs apart are one, so that ranks which do the same are moved on together.
const SAME_TIME: f64 = 1e-3;

/// Whether copies to several peers are under way at once: pieces are spread over the streams, so that is where there are
/// more of those than a shard has pieces.
fn sends_to_several(plan: &Plan, engine: Engine) -> bool {
    let pieces = plan.chunks().most_per_rank();
    matches!(engine, Engine::CopyEngines { streams } if streams > pieces && plan.problem().ranks() > 2)
}

/// Lets `senders` push all that they have to.
pub(super) fn push(
    machine: &Machine,
    plan: &Plan,
    senders: Range<u32>,
    sums: Option<&Sums<'_>>,
) -> Vec<Sent> {
    let engine = plan.options().engine;
    let begin = machine.sends_at(engine);
    let signal = if matches!(engine, Engine::Kernel { .. }) { 0.0 } else { machine.signal_us };
    let new = |rank| Sender::new(machine, plan, rank, begin, sums);
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
