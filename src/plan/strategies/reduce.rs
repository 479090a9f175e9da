//! Reductions: every rank multiplies its slice of K, or has sums already, which go to those that add them up. In a reduce-scatter
//! each rank gets the sums of its own rows and adds them up; in an all-reduce it gets the totals of all rows.
//!
//! In round d of a reduce-scatter, rank i computes the rows of rank (i + d) mod W and sends their sums there. So in every round
//! each rank sends to one peer and receives from one. Its own rows come last: they do not travel, so the sums of the last
//! round do while they are computed.
//!
//! ```text
//!   W = 4      round 1     round 2     round 3     then
//!   rank 0     → 1         → 2         → 3         its own rows
//!   rank 1     → 2         → 3         → 0         its own rows
//!   rank 2     → 3         → 0         → 1         its own rows
//!   rank 3     → 0         → 1         → 2         its own rows
//!   rank 0 receives from  3,           2,          1
//! ```
//!
//! The strategies differ in what one product computes before any of it may travel: a chunk (fused), the rows of one
//! owner (pipelined), all rows (sequential). In a fused reduction on GPUs the product of a chunk of the own rows also adds
//! the others' sums to its own, so it waits for them, and no kernel follows that adds up.
//!
//! An all-reduce in two shots is a reduce-scatter, and then each rank sends the totals of its own rows to all others: of its own
//! chunks, what a rank sends is the total, which is complete once the chunk has been added up. The others store it as it is, so
//! all ranks have the same bits. Copy engines send totals from the caller's D, so a step by them ends when they have been sent.
//!
//! In one shot, ranks compute in the same order, and each chunk leaves for all others when it is computed, first for the
//! rank of round 1. Every rank sends W ÷ 2 times as much as in two shots and adds up W times as much, and nobody waits for a second
//! transfer: the way of few rows.
//!
//! In an all-reduce, threads need no word which says that slots, or own sums, may be overwritten. To end epoch e + 1 a rank needs a
//! total, or all ranks' sums, and either comes behind sums of e + 1 of every rank. So before it computes e + 2, all ranks have begun
//! e + 1, and what it sent in e has arrived and has been used. The kernel that begins a step on a GPU waits for all ranks anyway.
//!
//! The engines differ in their waits, as those of a gather do (`push`). A thread waits for each owner before that owner's
//! round, and for its own sends before it multiplies. With copy engines, a GPU waits for all ranks in the kernel that begins the
//! step, before its products. Sums need no word `sent`: an owner that has consumed a step has received them. The host enqueues a
//! chunk's copy right behind its product, so that the chunk travels during the next one.
//!
//! A kernel comes behind the product of all rows. It sends no sums: it says that they are complete, waits for those of the others, and
//! adds all up, which it reads where they lie. In two shots it then sends totals, waits for the others', and stores them. A rank's sums
//! have to stay until all have read them. A rank waits for a word of every other one in each step, and a rank posts that behind its
//! reads of the step before; so the product of the next but one step, which has the same buffer, may start behind the next step. (A
//! rank that gets no rows, and so no sums, waits until all have begun the step.)
//!
//! NCCL comes behind all sums, too, and its ranks wait until all have come to it. It adds sums on their way, in an order of its own;
//! its schedule shows them as sent to each rank that gets their total.
//!
//! A reduction alone has no product: the kernel, or the caller's thread, copies the caller's sums to where a product would have computed
//! all of them. Copy engines send them from where they lie. Then there is one buffer of them, the caller's, and D may lie in it. So
//! such a step adds up, and ends, when its own sums have been sent.
//!
//! Invariants: a signal follows its data in the same lane; a move follows the wait for its sums, and the wait for the end of
//! the epoch that used the slot before; a product starts only after the buffer's previous sums have been sent, or read; sums are added
//! when all ranks' are available, in an all-reduce the same numbers on all ranks, or by one rank for all.

use std::ops::Range;

use super::super::schedule::{BUFFERS, Lane, Step, Word};
use super::super::way::{Engine, Strategy};
use super::super::whole::{Plan, PlanOptions};
use super::announce;

/// All steps of `rank`.
pub(super) fn steps(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    match plan.options().engine {
        Engine::CopyEngines { streams } => by_copy_engines(plan, rank, streams.max(1)),
        Engine::Kernel { .. } => by_kernel(plan, rank),
        Engine::Nccl => by_nccl(plan, rank),
        Engine::Thread => by_thread(plan, rank),
    }
}

fn by_thread(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    let mut compute = Vec::new();
    if acknowledges(plan) {
        compute.extend(announce(plan, rank));
        compute.push(Step::Await { word: Word::Sent { push: 0 }, age: BUFFERS });
    }
    compute.extend(sums_of_all(plan, rank));
    compute.extend(owners(plan, rank).flat_map(|owner| sums_of(plan, rank, owner)));
    compute.extend(reduce(plan, rank, by_arrival(plan, rank)));
    compute.extend(store_totals(plan, rank));
    in_lane(Lane::Compute, compute).chain(in_lane(Lane::Push(0), push(plan, rank))).collect()
}

/// The steps of the thread that sends.
fn push(plan: &Plan, rank: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    for owner in owners(plan, rank) {
        let (chunks, receivers) = (plan.chunks().of_rank(owner), receivers(plan, rank, owner));
        if chunks.is_empty() || receivers.is_empty() {
            continue;
        }
        if acknowledges(plan) {
            steps.push(Step::Await { word: Word::Consumed { by: owner }, age: BUFFERS });
        }
        for chunk in chunks {
            steps.extend(receivers.iter().flat_map(|to| send(rank, chunk, *to)));
        }
    }
    steps.push(Step::Post { word: Word::Sent { push: 0 }, to: rank, age: 0 });
    steps
}

fn by_copy_engines(plan: &Plan, rank: u32, streams: u32) -> Vec<(Lane, Step)> {
    let (ranks, compute) = (plan.problem().ranks(), Lane::Compute);
    let begun = || Step::Await { word: Word::Begun, age: 0 };
    let mut steps: Vec<_> = in_lane(compute, announce(plan, rank)).collect();
    let consumed = |by| Step::Await { word: Word::Consumed { by }, age: BUFFERS };
    steps.extend(in_lane(Lane::Begin, (0..ranks).map(consumed)));
    steps.push((Lane::Begin, Step::Post { word: Word::Begun, to: rank, age: 0 }));
    steps.extend((0..streams).map(|push| (Lane::Push(push), begun())));
    steps.push((compute, begun()));
    steps.extend(in_lane(compute, sums_of_all(plan, rank)));
    let adds_up = plan.products_add_up();
    let rounds = owners(plan, rank).filter(|owner| !(adds_up && *owner == rank));
    let computed = rounds.flat_map(|owner| sums_of(plan, rank, owner));
    steps.extend(with_sends(plan, rank, computed, streams));
    let is_sent = (0..streams).flat_map(|push| {
        let word = Word::Sent { push };
        let post = (Lane::Push(push), Step::Post { word, to: rank, age: 0 });
        [post, (compute, Step::Await { word, age: 0 })]
    });
    let is_alone = plan.options().operation.is_alone();
    steps.extend(is_sent.clone().filter(|_| is_alone));
    let added_up = reduce(plan, rank, by_arrival(plan, rank));
    steps.extend(with_sends(plan, rank, added_up, streams));
    steps.extend(in_lane(compute, store_totals(plan, rank)));
    // The caller may write D again when the step has ended.
    let sends_totals = plan.sends_totals(rank, rank);
    steps.extend(is_sent.filter(|_| sends_totals));
    steps
}

/// These steps, and behind each by which a chunk is complete, what sends it.
fn with_sends(
    plan: &Plan,
    rank: u32,
    computed: impl IntoIterator<Item = Step>,
    streams: u32,
) -> Vec<(Lane, Step)> {
    let mut steps = Vec::new();
    for step in computed {
        let summed = match step {
            Step::Post { word: Word::Summed { chunk }, .. } => Some(chunk),
            _ => None,
        };
        steps.push((Lane::Compute, step));
        let Some(chunk) = summed else { continue };
        for to in receivers(plan, rank, plan.chunks().rank_of(chunk)) {
            let push = Lane::Push(stream_of(plan, chunk, [rank, to], streams));
            steps.extend(in_lane(push, send(rank, chunk, to)));
        }
    }
    steps
}

/// The stream that sends a chunk to a rank. One word has one stream in all steps: so what a step says by a word comes behind what
/// an earlier step has said.
fn stream_of(plan: &Plan, chunk: u32, [rank, to]: [u32; 2], streams: u32) -> u32 {
    let ranks = plan.problem().ranks();
    // At its receiver a sender's words are counted like this.
    let first = plan.signalled(plan.chunks().rank_of(chunk)).start;
    (chunk - first + (to + ranks - rank % ranks) % ranks) % streams
}

fn by_kernel(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    let (ranks, chunks, added_up) = (plan.problem().ranks(), plan.chunks(), plan.added_up(rank));
    let is_alone = plan.options().operation.is_alone();
    let mut compute = vec![Step::Await { word: Word::Begun, age: 1 }];
    // The kernel may do so while the product still runs.
    compute.extend(announce(plan, rank));
    compute.extend(sums_of_all(plan, rank).into_iter().filter(|_| !is_alone));
    // One product: one word says that all its sums are complete, here, and to each rank.
    let first = owners(plan, rank).find_map(|owner| chunks.of_rank(owner).next());
    let summed = first.filter(|_| !is_alone).map(|chunk| Word::Summed { chunk });
    compute.extend(summed.map(|word| Step::Post { word, to: rank, age: 0 }));

    let partial = |chunk, from| Word::Partial { chunk, from };
    let awaits = |word| Step::Await { word, age: 0 };
    let mut kernel: Vec<_> = summed.map(awaits).into_iter().collect();
    let gets_nothing = plan.output_rows(rank).is_empty();
    let age = if gets_nothing { 1 } else { BUFFERS };
    kernel.extend((0..ranks).map(|by| Step::Await { word: Word::Consumed { by }, age }));
    let brought = (0..chunks.len()).filter(|_| is_alone);
    kernel.extend(brought.map(|chunk| Step::Move { chunk, to: rank }));
    let others = owners(plan, rank).filter(|to| *to != rank);
    kernel.extend(others.clone().filter_map(|to| {
        let chunk = plan.added_up(to).next()?;
        Some(Step::Post { word: partial(chunk, rank), to, age: 0 })
    }));
    let of_others = (0..ranks).filter(|from| *from != rank);
    let all_sums = added_up.clone().next();
    kernel.extend(
        all_sums
            .into_iter()
            .flat_map(|chunk| of_others.clone().map(move |from| awaits(partial(chunk, from)))),
    );
    kernel.extend(added_up.clone().map(|chunk| Step::Reduce { chunk }));
    if plan.sends_totals(rank, rank) {
        // All that one rank gets, then the next rank's: chunks that lie side by side are sent as one run.
        let totals = others.flat_map(|to| added_up.clone().map(move |chunk| (chunk, to)));
        kernel.extend(totals.clone().map(|(chunk, to)| Step::Move { chunk, to }));
        let word = |chunk| partial(chunk, rank);
        kernel.extend(totals.map(|(chunk, to)| Step::Post { word: word(chunk), to, age: 0 }));
        let stored =
            of_others.flat_map(|from| chunks.of_rank(from).map(move |chunk| (chunk, from)));
        kernel.extend(stored.clone().map(|(chunk, from)| awaits(partial(chunk, from))));
        kernel.extend(stored.map(|(chunk, _)| Step::Reduce { chunk }));
    }
    kernel.push(Step::Post { word: Word::Begun, to: rank, age: 0 });
    in_lane(Lane::Compute, compute).chain(in_lane(Lane::Push(0), kernel)).collect()
}

fn by_nccl(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    let (ranks, chunks) = (plan.problem().ranks(), plan.chunks());
    let mut compute = vec![Step::Await { word: Word::Begun, age: 1 }];
    compute.extend(announce(plan, rank));
    compute.extend(sums_of_all(plan, rank));
    // One word says that all sums are complete: those of the own rows, too, which do not travel.
    let first = owners(plan, rank).find_map(|owner| chunks.of_rank(owner).next());
    let summed = first.map(|chunk| Word::Summed { chunk });
    compute.extend(summed.map(|word| Step::Post { word, to: rank, age: 0 }));

    let mut nccl: Vec<_> = summed.map(|word| Step::Await { word, age: 0 }).into_iter().collect();
    // It begins when all ranks have come to it, each behind the step before on its stream.
    nccl.extend((0..ranks).map(|by| Step::Await { word: Word::Consumed { by }, age: 1 }));
    for owner in owners(plan, rank) {
        let receivers = receivers(plan, rank, owner);
        for chunk in chunks.of_rank(owner) {
            let sent = receivers.iter().flat_map(|to| move_and_signal(rank, chunk, *to));
            nccl.extend(sent);
        }
    }
    nccl.extend(reduce(plan, rank, plan.added_up(rank)));
    nccl.push(Step::Post { word: Word::Begun, to: rank, age: 0 });
    in_lane(Lane::Compute, compute).chain(in_lane(Lane::Push(0), nccl)).collect()
}

fn in_lane(
    lane: Lane,
    steps: impl IntoIterator<Item = Step>,
) -> impl Iterator<Item = (Lane, Step)> {
    steps.into_iter().map(move |step| (lane, step))
}

/// Every rank, in the order in which `rank` computes their rows: the last round comes back to itself.
fn owners(plan: &Plan, rank: u32) -> impl Iterator<Item = u32> + Clone {
    (1..=plan.problem().ranks()).map(move |round| plan.peer_in_round(rank, round))
}

/// The ranks that `rank` sends its sums of the rows of `owner`, or their total.
fn receivers(plan: &Plan, rank: u32, owner: u32) -> Vec<u32> {
    let options = plan.options();
    let is_for_all = !plan.has_two_shots() || owner == rank;
    match options.operation.is_all_reduce() && is_for_all {
        true => owners(plan, rank).filter(|to| *to != rank).collect(),
        false => [owner].into_iter().filter(|to| *to != rank).collect(),
    }
}

/// Whether words say that slots and own sums may be overwritten.
fn acknowledges(plan: &Plan) -> bool {
    !plan.options().operation.is_all_reduce()
}

fn multiply(rows: Range<u32>, pivot: u32) -> Step {
    Step::Multiply { rows, pivot, awaits: Vec::new() }
}

/// How all sums come about at once: the caller has them, or by one product, if that is the strategy.
fn sums_of_all(plan: &Plan, rank: u32) -> Vec<Step> {
    let options = plan.options();
    if options.operation.is_alone() {
        let all = owners(plan, rank).flat_map(|owner| plan.chunks().of_rank(owner));
        return all.map(|chunk| Step::Move { chunk, to: rank }).collect();
    }
    let product = || multiply(0..plan.problem().m(), plan.peer_in_round(rank, 1));
    (options.strategy == Strategy::Sequential).then(product).into_iter().collect()
}

/// What computes the sums of `owner`'s rows, and says which are complete.
fn sums_of(plan: &Plan, rank: u32, owner: u32) -> Vec<Step> {
    let (chunks, PlanOptions { operation, strategy, .. }) = (plan.chunks(), plan.options());
    let strategy = operation.strategy(strategy);
    let (rows, mut steps) = (plan.problem().shards().rows(owner), Vec::new());
    if strategy == Strategy::Pipelined && !rows.is_empty() {
        steps.push(multiply(rows, owner));
    }
    // A total is complete later.
    let travels = !receivers(plan, rank, owner).is_empty() && !plan.sends_totals(rank, owner);
    for chunk in chunks.of_rank(owner) {
        if strategy == Strategy::Fused {
            steps.push(multiply(chunks.rows(chunk), owner));
        }
        if travels {
            steps.push(Step::Post { word: Word::Summed { chunk }, to: rank, age: 0 });
        }
    }
    steps
}

/// What sends the sums of a chunk, once they are complete.
fn send(rank: u32, chunk: u32, to: u32) -> [Step; 3] {
    let [moves, signals] = move_and_signal(rank, chunk, to);
    [Step::Await { word: Word::Summed { chunk }, age: 0 }, moves, signals]
}

fn move_and_signal(rank: u32, chunk: u32, to: u32) -> [Step; 2] {
    let word = Word::Partial { chunk, from: rank };
    [Step::Move { chunk, to }, Step::Post { word, to, age: 0 }]
}

/// The chunks that the rank adds up, as they arrive: the others send a rank the sums of its own rows first.
fn by_arrival(plan: &Plan, rank: u32) -> impl Iterator<Item = u32> {
    let gets = plan.added_up(rank);
    let others = owners(plan, rank).filter(move |owner| *owner != rank);
    let others = others.flat_map(|owner| plan.chunks().of_rank(owner));
    plan.chunks().of_rank(rank).chain(others.filter(move |chunk| gets.contains(chunk)))
}

/// What adds up these chunks; if products do, it computes the rank's own sums, too.
fn reduce(plan: &Plan, rank: u32, added_up: impl Iterator<Item = u32>) -> Vec<Step> {
    let others = (0..plan.problem().ranks()).filter(|&from| from != rank);
    let posts_totals = plan.sends_totals(rank, rank);
    let mut steps = Vec::new();
    for chunk in added_up {
        let partial = |from| Step::Await { word: Word::Partial { chunk, from }, age: 0 };
        steps.extend(others.clone().map(partial));
        let product = || multiply(plan.chunks().rows(chunk), rank);
        steps.extend(plan.products_add_up().then(product));
        steps.push(Step::Reduce { chunk });
        let complete = || Step::Post { word: Word::Summed { chunk }, to: rank, age: 0 };
        steps.extend(posts_totals.then(complete));
    }
    steps
}

/// What stores the totals of other ranks' rows, where these send them: first those of the rank that sends to this one first.
fn store_totals(plan: &Plan, rank: u32) -> Vec<Step> {
    if !plan.has_two_shots() {
        return Vec::new();
    }
    let rounds = (1..plan.problem().ranks()).rev();
    let others = rounds.map(|round| plan.peer_in_round(rank, round));
    let store = |from| {
        let await_and_store = move |chunk| {
            let arrived = Step::Await { word: Word::Partial { chunk, from }, age: 0 };
            [arrived, Step::Reduce { chunk }]
        };
        plan.chunks().of_rank(from).flat_map(await_and_store)
    };
    others.flat_map(store).collect()
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;
