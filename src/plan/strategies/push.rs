//! Push: every rank sends its chunks to all others, in the order in which they need them.
//!
//! In round d, rank i sends to rank (i − d) mod W, the one that needs i's chunks d-th. So in every
//! round each rank sends to one peer and receives from one, and what is sent to a consumer is sent
//! in the order in which its tiles need it: while ranks keep pace, it arrives so. Round 0 is the rank
//! itself: its shard enters its own slot of the gathered buffer. (`docs/protocol.md` draws the rounds.)
//!
//! The engines differ in their waits. A thread waits for each peer before that peer's round. A GPU waits for all peers at
//! once, in the kernel that begins the step, so no stream of copies waits between two copies. NCCL's ranks wait until all
//! have come to the gather, so one buffer would suffice.
//!
//! Invariants: a signal follows its data in the same lane; a move into a buffer follows the wait for its consumer to
//! have finished the epoch that used the buffer before; a move out of the own slot precedes the word that lets the
//! slot be written again.

use super::super::schedule::{BUFFERS, Lane, Step, Word};
use super::super::types::Scaling;
use super::super::way::{Engine, FEW_BYTES};
use super::super::whole::Plan;
use super::announce;

/// The steps by which rows get from rank to rank.
pub(super) fn push(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    let mut sender = Sender { plan, rank, ranks: plan.problem().ranks(), steps: Vec::new() };
    match plan.options().engine {
        Engine::Thread => sender.by_thread(),
        Engine::CopyEngines { streams } => sender.by_copy_engines(streams.max(1)),
        Engine::Kernel { .. } => sender.by_kernel(),
        Engine::Nccl => sender.by_nccl(),
    }
    sender.steps
}

struct Sender<'a> {
    plan: &'a Plan,
    rank: u32,
    ranks: u32,
    steps: Vec<(Lane, Step)>,
}

impl<'a> Sender<'a> {
    fn by_thread(&mut self) {
        self.announce();
        self.add(Lane::Compute, Step::Await { word: Word::Sent { push: 0 }, age: BUFFERS });
        for chunk in self.own() {
            self.move_and_signal(Lane::Compute, chunk, self.rank);
        }
        self.await_own_rows(Lane::Push(0));
        for to in self.peers() {
            if !self.own().is_empty() {
                self.await_consumed(Lane::Push(0), to, BUFFERS);
            }
            for chunk in self.own() {
                self.move_and_signal(Lane::Push(0), chunk, to);
            }
        }
        self.post_here(Lane::Push(0), Word::Sent { push: 0 });
    }

    fn by_copy_engines(&mut self, streams: u32) {
        self.bring_own_rows();
        self.await_own_rows(Lane::Begin);
        (0..self.ranks).for_each(|by| self.await_consumed(Lane::Begin, by, BUFFERS));
        // Of the step before, not of the one before that: then the order of the caller's stream alone says when the
        // own slot of the next step may be written.
        let sent = |push| Step::Await { word: Word::Sent { push }, age: 1 };
        (0..streams).for_each(|push| self.add(Lane::Begin, sent(push)));
        self.post_here(Lane::Begin, Word::Begun);
        for push in 0..streams {
            self.add(Lane::Push(push), Step::Await { word: Word::Begun, age: 0 });
        }
        for ((chunk, to), push) in self.pieces().into_iter().zip((0..streams).cycle()) {
            self.move_and_signal(Lane::Push(push), chunk, to);
        }
        for push in 0..streams {
            self.post_here(Lane::Push(push), Word::Sent { push });
        }
    }

    fn by_kernel(&mut self) {
        self.bring_own_rows();
        let push = Lane::Push(0);
        self.await_own_rows(push);
        (0..self.ranks).for_each(|by| self.await_consumed(push, by, BUFFERS));
        let pieces = self.pieces();
        let together = self.sends_little() || self.plan.chunks().spans() > 1;
        let at_once = if together { pieces.len().max(1) } else { 1 };
        for together in pieces.chunks(at_once) {
            let moves = together.iter().map(|&(chunk, to)| Step::Move { chunk, to });
            self.steps.extend(moves.map(|step| (push, step)));
            for &(chunk, to) in together {
                self.signal(push, chunk, to);
            }
        }
        self.post_here(push, Word::Begun);
    }

    fn by_nccl(&mut self) {
        self.bring_own_rows();
        let push = Lane::Push(0);
        self.await_own_rows(push);
        // It begins when all ranks have come to it, each behind the step before on its stream.
        (0..self.ranks).for_each(|by| self.await_consumed(push, by, 1));
        for (chunk, to) in self.pieces() {
            self.move_and_signal(push, chunk, to);
        }
        self.post_here(push, Word::Begun);
    }

    /// The first steps of a GPU: wait for the end of the previous step's beginning; put the own rows into their slot.
    fn bring_own_rows(&mut self) {
        self.add(Lane::Compute, Step::Await { word: Word::Begun, age: 1 });
        for chunk in self.own() {
            self.add(Lane::Compute, Step::Move { chunk, to: self.rank });
        }
        for chunk in self.own() {
            self.signal(Lane::Compute, chunk, self.rank);
        }
        self.announce();
    }

    fn announce(&mut self) {
        self.steps.extend(announce(self.plan, self.rank).map(|step| (Lane::Compute, step)));
    }

    fn await_own_rows(&mut self, lane: Lane) {
        for chunk in self.own() {
            self.add(lane, Step::Await { word: Word::Landed { chunk }, age: 0 });
        }
    }

    fn await_consumed(&mut self, lane: Lane, by: u32, age: u32) {
        self.add(lane, Step::Await { word: Word::Consumed { by }, age });
    }

    fn move_and_signal(&mut self, lane: Lane, chunk: u32, to: u32) {
        self.add(lane, Step::Move { chunk, to });
        self.signal(lane, chunk, to);
    }

    fn signal(&mut self, lane: Lane, chunk: u32, to: u32) {
        self.add(lane, Step::Post { word: Word::Landed { chunk }, to, age: 0 });
    }

    fn post_here(&mut self, lane: Lane, word: Word) {
        self.add(lane, Step::Post { word, to: self.rank, age: 0 });
    }

    fn add(&mut self, lane: Lane, step: Step) {
        self.steps.push((lane, step));
    }

    fn own(&self) -> std::ops::Range<u32> {
        self.plan.chunks().of_rank(self.rank)
    }

    /// The other ranks, the one that needs this rank's rows soonest first.
    fn peers(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (plan, rank) = (self.plan, self.rank);
        (1..self.ranks).map(move |round| plan.peer_in_round(rank, round))
    }

    /// Every piece and its receiver, in the order in which they are sent.
    fn pieces(&self) -> Vec<(u32, u32)> {
        self.peers().flat_map(|to| self.own().map(move |chunk| (chunk, to))).collect()
    }

    /// As `are_few` in `csrc/gather.cu`: from the start of each chunk's first row to the end of its last, and its scales.
    fn sends_little(&self) -> bool {
        let (problem, chunks) = (self.plan.problem(), self.plan.chunks());
        let size = u64::from(problem.elements().a.size());
        let scale = if problem.scaling() == Scaling::Rows { 4 } else { 0 };
        let bytes = |chunk| {
            let rows = chunks.rows(chunk).len() as u64;
            let (k, lda) = (u64::from(problem.k()), u64::from(problem.lda()));
            ((rows - 1) * lda + k) * size + rows * scale
        };
        self.own().map(bytes).fold(0, u64::saturating_add) <= FEW_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_code_has_the_same_limit() {
        let sources = include_str!("../../../csrc/gather.cu");
        assert!(sources.contains("constexpr uint64_t kFewBytes = 1 << 20;"));
        assert_eq!(FEW_BYTES, 1 << 20);
    }
}
