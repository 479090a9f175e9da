//! The schedules of reductions, step by step.

use super::super::super::operation::Operation;
use super::super::super::problem::Problem;
use super::super::super::schedule::Schedule;
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
    let schedule = schedule(Operation::GemmReduceScatter, (Strategy::Fused, copies), [1, 2, 0], 2);
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
        "compute: await begun of e−1; \
         compute: post consumed by 1 of e−1 → 1; compute: post consumed by 1 of e−1 → 2; \
         compute: post consumed by 1 of e−1 → 0; \
         compute: multiply rows 0..5; compute: post summed 0 → 1; \
         push 0: await summed 0; push 0: await consumed by 0 of e−2; \
         push 0: await consumed by 1 of e−2; push 0: await consumed by 2 of e−2; \
         push 0: post partial 0 from 1 → 0; \
         push 0: await partial 1 from 0; push 0: await partial 1 from 2; push 0: reduce 1; \
         push 0: post begun → 1"
    );
    // One word says to each rank that all that it reads is complete.
    let to_all = schedule(Operation::GemmAllReduce, way, [2, 0, 1], 2);
    assert_eq!(
        lane(&to_all, Lane::Push(0)),
        "await summed 2; await consumed by 0 of e−2; await consumed by 1 of e−2; \
         await consumed by 2 of e−2; post partial 0 from 1 → 2; post partial 0 from 1 → 0; \
         await partial 0 from 0; await partial 0 from 2; reduce 0; reduce 1; reduce 2; post begun → 1"
    );
    // A rank that gets no rows waits for no sums.
    let scattered = schedule(Operation::GemmReduceScatter, way, [1, 0, 1], 1);
    assert_eq!(
        lane(&scattered, Lane::Push(0)),
        "await summed 1; await consumed by 0 of e−1; await consumed by 1 of e−1; \
         await consumed by 2 of e−1; post partial 1 from 1 → 2; post partial 0 from 1 → 0; \
         post begun → 1"
    );
}

#[test]
fn without_a_product_a_kernel_brings_the_callers_sums() {
    let way = (Strategy::Sequential, Engine::PUSHING);
    let schedule = schedule(Operation::ReduceScatter, way, [1, 1, 1], 1);
    let begun =
        "await consumed by 0 of e−2; await consumed by 1 of e−2; await consumed by 2 of e−2";
    assert_eq!(
        lane(&schedule, Lane::Push(0)),
        format!(
            "{begun}; move 0 → 1; move 1 → 1; move 2 → 1; \
             post partial 2 from 1 → 2; post partial 0 from 1 → 0; \
             await partial 1 from 0; await partial 1 from 2; reduce 1; post begun → 1"
        )
    );
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

#[test]
fn nccl_adds_up_behind_all_sums() {
    let way = (Strategy::Sequential, Engine::Nccl);
    let scattered = schedule(Operation::GemmReduceScatter, way, [4, 1, 0], 1);
    assert_eq!(
        all(&scattered),
        "compute: await begun of e−1; \
         compute: post consumed by 1 of e−1 → 1; compute: post consumed by 1 of e−1 → 2; \
         compute: post consumed by 1 of e−1 → 0; compute: multiply rows 0..5; \
         compute: post summed 0 → 1; push 0: await summed 0; \
         push 0: await consumed by 0 of e−1; push 0: await consumed by 1 of e−1; \
         push 0: await consumed by 2 of e−1; \
         push 0: move 0 → 0; push 0: post partial 0 from 1 → 0; \
         push 0: await partial 1 from 0; push 0: await partial 1 from 2; push 0: reduce 1; \
         push 0: post begun → 1"
    );
    // The totals of all rows lie side by side.
    let to_all = schedule(Operation::AllReduce, way, [1, 1, 1], 1);
    let added_up: Vec<_> = (to_all.lane(Lane::Push(0)))
        .filter_map(|step| if let Step::Reduce { chunk } = step { Some(*chunk) } else { None })
        .collect();
    assert_eq!(added_up, [0, 1, 2]);
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

#[test]
fn a_kernel_sends_totals_behind_sums() {
    let plan = |rows: &[u32], n| {
        let m = rows.iter().sum::<u32>().into();
        let problem = Problem::builder(m, n, 16).shards(rows).build().unwrap();
        let options = PlanOptions { operation: Operation::GemmAllReduce, ..PlanOptions::new() };
        let options = options.with_strategy(Strategy::Sequential).with_engine(Engine::PUSHING);
        Plan::new(&problem, options.with_pieces(1)).unwrap()
    };
    // 1.5 MiB of sums. Between two ranks, one shot sends as much.
    assert!(!plan(&[4000, 4000], 4096).has_two_shots());
    assert!(!plan(&[64; 3], 4096).has_two_shots());
    let two_shots = plan(&[64, 65, 64], 4096);
    assert!(two_shots.has_two_shots());
    // The pieces make no difference, which may be fewer in a step. A step of fewer rows has one.
    let in_pieces = Plan::new(two_shots.problem(), two_shots.options().with_pieces(9)).unwrap();
    assert!(in_pieces.has_two_shots());
    assert!(!two_shots.for_rows(&[192, 0, 0]).unwrap().has_two_shots());
    assert!(!two_shots.of_several_products().has_two_shots());
    assert_eq!(
        lane(&plan(&[500, 0, 400], 4096).schedule(0), Lane::Push(0)),
        "await summed 1; await consumed by 0 of e−2; await consumed by 1 of e−2; \
         await consumed by 2 of e−2; post partial 1 from 0 → 2; \
         await partial 0 from 1; await partial 0 from 2; reduce 0; \
         move 0 → 1; move 0 → 2; post partial 0 from 0 → 1; post partial 0 from 0 → 2; \
         await partial 1 from 2; reduce 1; post begun → 0"
    );
}
