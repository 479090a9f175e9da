//! Reductions: every rank multiplies its slice of K, or has sums already, and sends sums. In a reduce-scatter each rank gets
//! the sums of its own rows and adds them up; in an all-reduce it gets the totals of all rows.
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
//! all ranks have the same bits. A GPU sends totals from the caller's D, so its step ends when they have been sent.
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
//! round, and for its own sends before it multiplies. A GPU waits for all ranks in the kernel that begins the step, before its
//! products. Sums need no word `sent`: an owner that has consumed a step has received them. The host enqueues a
//! chunk's copy right behind its product, so that the chunk travels during the next one. A kernel comes behind the product of
//! all rows: it begins the step, sends, waits for the others' sums, and adds them up.
//!
//! A reduction alone has no product: the caller's sums are brought where a product would have computed all of them. There is
//! one buffer of them, the caller's, and D may lie in it. So a step adds up, and ends, when its own sums have been sent.
//!
//! Invariants: a signal follows its data in the same lane; a move follows the wait for its sums, and the wait for the end of
//! the epoch that used the slot before; a product starts only after the buffer's previous sums have been sent; sums are added
//! when all ranks' are available, in an all-reduce the same numbers on all ranks, or by one rank for all.

use super::super::schedule::{BUFFERS, Lane, Step, Word};
use super::super::way::{Engine, Strategy};
use super::super::whole::{Plan, PlanOptions};

/// All steps of `rank`.
pub(super) fn steps(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    match plan.options().engine {
        Engine::CopyEngines { streams } => by_copy_engines(plan, rank, streams.max(1)),
        Engine::Kernel { .. } => by_kernel(plan, rank),
        // NCCL is refused (`Operation::check`).
        Engine::Thread | Engine::Nccl => by_thread(plan, rank),
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
    if plan.options().operation.is_alone() {
        compute.push(Step::Await { word: Word::Sent { push: 0 }, age: 0 });
    }
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
    let adds_up = products_add_up(plan);
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
    (chunk - first + (to + ranks - rank) % ranks) % streams
}

/// Whether the product of a chunk of a rank's own rows adds up.
fn products_add_up(plan: &Plan) -> bool {
    let PlanOptions { operation, strategy, engine, .. } = plan.options();
    operation.products_add_up(strategy, engine)
}

fn by_kernel(plan: &Plan, rank: u32) -> Vec<(Lane, Step)> {
    let (ranks, chunks) = (plan.problem().ranks(), plan.chunks());
    let mut compute = vec![Step::Await { word: Word::Begun, age: 1 }];
    compute.extend(sums_of_all(plan, rank));
    // One product: one word says that all its sums are complete.
    let first = owners(plan, rank).find_map(|owner| chunks.of_rank(owner).next());
    let summed = first.map(|chunk| Word::Summed { chunk });
    compute.extend(summed.map(|word| Step::Post { word, to: rank, age: 0 }));
    compute.extend(announce(plan, rank));

    let mut kernel: Vec<_> = summed.map(|word| Step::Await { word, age: 0 }).into_iter().collect();
    kernel.extend((0..ranks).map(|by| Step::Await { word: Word::Consumed { by }, age: BUFFERS }));
    // All that one rank gets, then the next rank's: chunks that lie side by side are sent as one run.
    let others = owners(plan, rank).filter(|to| *to != rank);
    let gets = |to| plan.options().added_up(chunks, to);
    let sent: Vec<_> = others.flat_map(|to| gets(to).map(move |chunk| (chunk, to))).collect();
    kernel.extend(sent.iter().map(|&(chunk, to)| Step::Move { chunk, to }));
    let signal =
        |&(chunk, to)| Step::Post { word: Word::Partial { chunk, from: rank }, to, age: 0 };
    kernel.extend(sent.iter().map(signal));
    let added_up = plan.options().added_up(chunks, rank);
    kernel.extend(reduce(plan, rank, added_up));
    kernel.push(Step::Post { word: Word::Begun, to: rank, age: 0 });
    in_lane(Lane::Compute, compute).chain(in_lane(Lane::Push(0), kernel)).collect()
}

fn in_lane(
    lane: Lane,
    steps: impl IntoIterator<Item = Step>,
) -> impl Iterator<Item = (Lane, Step)> {
    steps.into_iter().map(move |step| (lane, step))
}

/// Every rank, in the order in which `rank` computes their rows: the last round comes back to itself.
fn owners(plan: &Plan, rank: u32) -> impl Iterator<Item = u32> {
    (1..=plan.problem().ranks()).map(move |round| plan.peer_in_round(rank, round))
}

/// The ranks that `rank` sends its sums of the rows of `owner`, or their total.
fn receivers(plan: &Plan, rank: u32, owner: u32) -> Vec<u32> {
    let options = plan.options();
    let is_for_all = !options.has_two_shots() || owner == rank;
    match options.operation.is_all_reduce() && is_for_all {
        true => owners(plan, rank).filter(|to| *to != rank).collect(),
        false => [owner].into_iter().filter(|to| *to != rank).collect(),
    }
}

/// Whether words say that slots and own sums may be overwritten.
fn acknowledges(plan: &Plan) -> bool {
    !plan.options().operation.is_all_reduce()
}

/// Posts that this rank has consumed the previous step, first to the rank that it sends to first.
fn announce(plan: &Plan, rank: u32) -> Vec<Step> {
    let to = (0..plan.problem().ranks()).map(|round| plan.peer_in_round(rank, round));
    to.map(|to| Step::Post { word: Word::Consumed { by: rank }, to, age: 1 }).collect()
}

fn multiply(rows: std::ops::Range<u32>, pivot: u32) -> Step {
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
    [
        Step::Await { word: Word::Summed { chunk }, age: 0 },
        Step::Move { chunk, to },
        Step::Post { word: Word::Partial { chunk, from: rank }, to, age: 0 },
    ]
}

/// The chunks that the rank adds up, as they arrive: the others send a rank the sums of its own rows first.
fn by_arrival(plan: &Plan, rank: u32) -> impl Iterator<Item = u32> {
    let gets = plan.options().added_up(plan.chunks(), rank);
    let others = owners(plan, rank).filter(move |owner| *owner != rank);
    let others = others.flat_map(|owner| plan.chunks().of_rank(owner));
    plan.chunks().of_rank(rank).chain(others.filter(move |chunk| gets.contains(chunk)))
}

/// What adds up these chunks; if products do, it computes the rank's own sums, too.
fn reduce(plan: &Plan, rank: u32, added_up: impl Iterator<Item = u32>) -> Vec<Step> {
    let others = (0..plan.problem().ranks()).filter(|&from| from != rank);
    let sends_totals = plan.sends_totals(rank, rank);
    let mut steps = Vec::new();
    for chunk in added_up {
        let partial = |from| Step::Await { word: Word::Partial { chunk, from }, age: 0 };
        steps.extend(others.clone().map(partial));
        let product = || multiply(plan.chunks().rows(chunk), rank);
        steps.extend(products_add_up(plan).then(product));
        steps.push(Step::Reduce { chunk });
        let complete = || Step::Post { word: Word::Summed { chunk }, to: rank, age: 0 };
        steps.extend(sends_totals.then(complete));
    }
    steps
}

/// What stores the totals of other ranks' rows, where these send them: first those of the rank that sends to this one first.
fn store_totals(plan: &Plan, rank: u32) -> Vec<Step> {
    if !plan.options().has_two_shots() {
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
mod tests {
    use super::super::super::problem::Problem;
    use super::super::super::schedule::Schedule;
    use super::super::super::way::Operation;
    use super::*;

    /// Of rank 1 of three.
    fn schedule(
        operation: Operation,
        (strategy, engine): (Strategy, Engine),
        rows: [u32; 3],
        pieces: u32,
    ) -> Schedule {
        let m = rows.iter().sum::<u32>().into();
        let problem = Problem::builder(m, 16, 16).shards(&rows).build().unwrap();
        let options = PlanOptions { operation, strategy, engine, ..PlanOptions::new() };
        Plan::new(&problem, options.with_pieces(pieces)).unwrap().schedule(1)
    }

    /// Of a reduce-scatter: two chunks of rank 0, one of rank 1, none of rank 2.
    fn scattered(way: (Strategy, Engine)) -> Schedule {
        schedule(Operation::GemmReduceScatter, way, [4, 1, 0], 2)
    }

    fn lane(schedule: &Schedule, lane: Lane) -> String {
        schedule.lane(lane).map(Step::to_string).collect::<Vec<_>>().join("; ")
    }

    /// In the order in which a host enqueues them.
    fn all(schedule: &Schedule) -> String {
        let step = |(lane, step): &(Lane, Step)| format!("{lane}: {step}");
        schedule.steps.iter().map(step).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn strategies_differ_in_what_is_multiplied_at_once() {
        for (strategy, multiplied) in [
            (
                Strategy::Fused,
                "multiply rows 0..2; post summed 0 → 1; multiply rows 2..4; post summed 1 → 1; multiply rows 4..5",
            ),
            (
                Strategy::Pipelined,
                "multiply rows 0..4; post summed 0 → 1; post summed 1 → 1; multiply rows 4..5",
            ),
            (Strategy::Sequential, "multiply rows 0..5; post summed 0 → 1; post summed 1 → 1"),
        ] {
            let expected = format!(
                "post consumed by 1 of e−1 → 1; post consumed by 1 of e−1 → 2; post consumed by 1 of e−1 → 0; \
                 await sent 0 of e−2; {multiplied}; \
                 await partial 2 from 0; await partial 2 from 2; reduce 2"
            );
            let schedule = scattered((strategy, Engine::Thread));
            assert_eq!(lane(&schedule, Lane::Compute), expected, "{strategy}");
            // Sums are sent to their owner when its slots are free.
            assert_eq!(
                lane(&schedule, Lane::Push(0)),
                "await consumed by 0 of e−2; \
                 await summed 0; move 0 → 0; post partial 0 from 1 → 0; \
                 await summed 1; move 1 → 0; post partial 1 from 1 → 0; post sent 0 → 1",
                "{strategy}"
            );
        }
    }

    #[test]
    fn a_gpu_sends_behind_each_product_what_it_has_computed() {
        let copies = Engine::CopyEngines { streams: 2 };
        assert_eq!(
            all(&scattered((Strategy::Pipelined, copies))),
            "compute: post consumed by 1 of e−1 → 1; compute: post consumed by 1 of e−1 → 2; \
             compute: post consumed by 1 of e−1 → 0; \
             begin: await consumed by 0 of e−2; begin: await consumed by 1 of e−2; \
             begin: await consumed by 2 of e−2; begin: post begun → 1; \
             push 0: await begun; push 1: await begun; compute: await begun; \
             compute: multiply rows 0..4; compute: post summed 0 → 1; \
             push 0: await summed 0; push 0: move 0 → 0; push 0: post partial 0 from 1 → 0; \
             compute: post summed 1 → 1; \
             push 1: await summed 1; push 1: move 1 → 0; push 1: post partial 1 from 1 → 0; \
             compute: multiply rows 4..5; \
             compute: await partial 2 from 0; compute: await partial 2 from 2; compute: reduce 2"
        );
    }

    #[test]
    fn products_of_own_rows_come_behind_the_sums_that_they_add() {
        let copies = Engine::CopyEngines { streams: 1 };
        let schedule =
            schedule(Operation::GemmReduceScatter, (Strategy::Fused, copies), [1, 2, 0], 2);
        assert_eq!(
            lane(&schedule, Lane::Compute),
            "post consumed by 1 of e−1 → 1; post consumed by 1 of e−1 → 2; post consumed by 1 of e−1 → 0; \
             await begun; multiply rows 0..1; post summed 0 → 1; \
             await partial 1 from 0; await partial 1 from 2; multiply rows 1..2; reduce 1; \
             await partial 2 from 0; await partial 2 from 2; multiply rows 2..3; reduce 2"
        );
    }

    #[test]
    fn a_kernel_behind_the_product_does_the_rest() {
        let way = (Strategy::Sequential, Engine::PUSHING);
        assert_eq!(
            all(&schedule(Operation::GemmReduceScatter, way, [4, 1, 0], 1)),
            "compute: await begun of e−1; compute: multiply rows 0..5; compute: post summed 0 → 1; \
             compute: post consumed by 1 of e−1 → 1; compute: post consumed by 1 of e−1 → 2; \
             compute: post consumed by 1 of e−1 → 0; \
             push 0: await summed 0; push 0: await consumed by 0 of e−2; \
             push 0: await consumed by 1 of e−2; push 0: await consumed by 2 of e−2; \
             push 0: move 0 → 0; push 0: post partial 0 from 1 → 0; \
             push 0: await partial 1 from 0; push 0: await partial 1 from 2; push 0: reduce 1; \
             push 0: post begun → 1"
        );
        // Of several chunks, one rank gets all of its own, then the next.
        let to_all = schedule(Operation::GemmAllReduce, way, [2, 0, 1], 2);
        let text = lane(&to_all, Lane::Push(0));
        let sent: Vec<&str> = text.split("; ").filter(|step| step.starts_with("move")).collect();
        let expected =
            ["move 0 → 2", "move 1 → 2", "move 2 → 2", "move 0 → 0", "move 1 → 0", "move 2 → 0"];
        assert_eq!(sent, expected);
    }

    #[test]
    fn without_a_product_own_sums_have_been_sent_before_any_are_added_up() {
        let way = (Strategy::Sequential, Engine::CopyEngines { streams: 2 });
        let schedule = schedule(Operation::AllReduce, way, [1, 0, 1], 1);
        assert_eq!(
            lane(&schedule, Lane::Compute),
            "post consumed by 1 of e−1 → 1; post consumed by 1 of e−1 → 2; post consumed by 1 of e−1 → 0; \
             await begun; move 1 → 1; move 0 → 1; post summed 1 → 1; post summed 0 → 1; \
             await sent 0; await sent 1; \
             await partial 1 from 0; await partial 1 from 2; reduce 1; \
             await partial 0 from 0; await partial 0 from 2; reduce 0"
        );
        assert_eq!(
            lane(&schedule, Lane::Push(1)),
            "await begun; await summed 1; move 1 → 0; post partial 1 from 1 → 0; \
             await summed 0; move 0 → 2; post partial 0 from 1 → 2; post sent 1 → 1"
        );
    }

    /// Else a later step's word could come before an earlier one's.
    #[test]
    fn a_word_has_one_stream_in_all_steps() {
        let copies = Engine::CopyEngines { streams: 2 };
        let stream = |operation, rows, nth: u32| {
            let schedule = schedule(operation, (Strategy::Pipelined, copies), rows, 1);
            let sends = |step: &Step| matches!(*step, Step::Move { chunk, to: 2 } if chunk == nth);
            schedule.steps.iter().find(|(_, step)| sends(step)).map(|(lane, _)| *lane)
        };
        // The only chunk of rank 2's rows is the second, or the first.
        let scattered = |rows, chunk| stream(Operation::GemmReduceScatter, rows, chunk).unwrap();
        assert_eq!(scattered([5, 0, 5], 1), scattered([0, 0, 10], 0));
        // In an all-reduce a word belongs to a chunk of all.
        let to_all = |rows, chunk| stream(Operation::GemmAllReduce, rows, chunk).unwrap();
        assert_eq!(to_all([5, 0, 5], 0), to_all([0, 0, 10], 0));
    }

    #[test]
    fn a_gpu_sends_totals_behind_the_products_that_add_up() {
        let way = (Strategy::Fused, Engine::CopyEngines { streams: 2 });
        let schedule = schedule(Operation::GemmAllReduce, way, [1, 2, 0], 2);
        assert_eq!(
            lane(&schedule, Lane::Compute),
            "post consumed by 1 of e−1 → 1; post consumed by 1 of e−1 → 2; post consumed by 1 of e−1 → 0; \
             await begun; multiply rows 0..1; post summed 0 → 1; \
             await partial 1 from 0; await partial 1 from 2; multiply rows 1..2; reduce 1; post summed 1 → 1; \
             await partial 2 from 0; await partial 2 from 2; multiply rows 2..3; reduce 2; post summed 2 → 1; \
             await partial 0 from 0; reduce 0; await sent 0; await sent 1"
        );
        assert_eq!(
            lane(&schedule, Lane::Push(0)),
            "await begun; await summed 0; move 0 → 0; post partial 0 from 1 → 0; \
             await summed 1; move 1 → 2; post partial 1 from 1 → 2; \
             await summed 2; move 2 → 0; post partial 2 from 1 → 0; post sent 0 → 1"
        );
    }

    #[test]
    fn totals_go_to_all_others_when_own_rows_have_been_added_up() {
        let way = (Strategy::Fused, Engine::Thread);
        let schedule = schedule(Operation::GemmAllReduce, way, [2, 1, 0], 2);
        assert_eq!(
            lane(&schedule, Lane::Compute),
            "multiply rows 0..1; post summed 0 → 1; multiply rows 1..2; post summed 1 → 1; multiply rows 2..3; \
             await partial 2 from 0; await partial 2 from 2; reduce 2; post summed 2 → 1; \
             await partial 0 from 0; reduce 0; await partial 1 from 0; reduce 1"
        );
        assert_eq!(
            lane(&schedule, Lane::Push(0)),
            "await summed 0; move 0 → 0; post partial 0 from 1 → 0; \
             await summed 1; move 1 → 0; post partial 1 from 1 → 0; \
             await summed 2; move 2 → 2; post partial 2 from 1 → 2; \
             await summed 2; move 2 → 0; post partial 2 from 1 → 0; post sent 0 → 1"
        );
    }

    #[test]
    fn in_one_shot_every_chunk_goes_to_all_others() {
        let way = (Strategy::Sequential, Engine::Thread);
        let schedule = schedule(Operation::GemmAllReduce, way, [2, 0, 1], 2);
        assert_eq!(
            lane(&schedule, Lane::Compute),
            "multiply rows 0..3; post summed 2 → 1; post summed 0 → 1; post summed 1 → 1; \
             await partial 2 from 0; await partial 2 from 2; reduce 2; \
             await partial 0 from 0; await partial 0 from 2; reduce 0; \
             await partial 1 from 0; await partial 1 from 2; reduce 1"
        );
        let sent = lane(&schedule, Lane::Push(0));
        assert!(
            sent.starts_with(
                "await summed 2; move 2 → 2; post partial 2 from 1 → 2; \
                 await summed 2; move 2 → 0; post partial 2 from 1 → 0"
            ),
            "{sent}"
        );
    }
}
