//! Properties of predicted reductions, with their product and alone.

use std::collections::BTreeSet;

use super::tests::{problem, took};
use super::*;
use crate::kernels::all_kernels;
use crate::plan::{Partials, Problem};

const REDUCTIONS: [Operation; 2] = [Operation::GemmReduceScatter, Operation::GemmAllReduce];

fn of_sums(machine: &Machine, problem: &Problem, operation: Operation, nth: usize) -> Setup {
    let way = ways_of_sums(problem, operation, None)[nth];
    Setup::of_sums(all_kernels(), machine, problem, operation, way, Partials::Bf16).unwrap()
}

/// µs of a reduction in the n-th way.
fn reduced(machine: &Machine, problem: &Problem, operation: Operation, nth: usize) -> f64 {
    let setup = of_sums(machine, problem, operation, nth);
    let estimate = estimate(machine, &setup.plan(problem).unwrap(), &setup).unwrap();
    estimate.total.as_secs_f64() * 1e6
}

#[test]
fn a_reduction_by_a_kernel_is_a_product_and_what_is_read() {
    // No rest that a product gains from.
    let machine = Machine { rest_gain: 0.0, ..Machine::h200() };
    for ranks in [2, 4] {
        let problem = problem(1024, ranks);
        let plain = took(&machine, &problem, None).total.as_secs_f64() * 1e6;
        let sums = 1024.0 * 3584.0 * 2.0;
        let [scattered, of_all] =
            REDUCTIONS.map(|operation| reduced(&machine, &problem, operation, 2) - plain);
        let (ranks, adding) = (ranks as f64, 64.0 * machine.adding_block_gbps);
        // Each reads the other ranks' sums while it adds.
        let read = (ranks - 1.0) * sums / (1e3 * machine.link_gbps);
        assert!((scattered - machine.exchange_us - read / ranks).abs() < 0.01, "{scattered}");
        // In two shots totals travel as far, and those of other ranks' rows are read and written.
        let stored = 2.0 * (ranks - 1.0) / ranks * sums / (1e3 * adding);
        let second = machine.push_us + machine.signal_us + read / ranks + stored;
        let to_all = if ranks > 2.0 { read / ranks + second } else { read };
        assert!((of_all - machine.exchange_us - to_all).abs() < 0.01, "{of_all}");
    }
}

#[test]
fn a_reduction_without_a_product_is_what_is_sent_and_what_is_added() {
    let machine = Machine::h200();
    let (problem, link) = (problem(1024, 2), 1e3 * machine.link_gbps);
    let sums = 1024.0 * 3584.0 * 2.0;
    for (operation, of_all) in [(Operation::ReduceScatter, 0.5), (Operation::AllReduce, 1.0)] {
        let [by_copies, by_kernel] = [0, 1].map(|nth| reduced(&machine, &problem, operation, nth));
        // One rank's sums come, and both ranks' and D pass through memory: in two chunks, of an all-reduce.
        let memory = 3.0 * of_all * sums / (1e3 * machine.memory_gbps);
        let each = machine.await_us + machine.adding_us;
        let sent = machine.begin_us + of_all * sums / link;
        let fixed = 2.0 * of_all * (machine.copy_us + machine.signal_us + each);
        let least = sent + memory + machine.copy_us + machine.signal_us + each;
        assert!(
            by_copies >= least - 0.01 && by_copies <= sent + memory + fixed + 0.01,
            "{by_copies}"
        );
        // It copies the own sums to where the other reads them.
        let copied = 2.0 * sums / (64.0 * 1e3 * machine.adding_block_gbps);
        let expected = machine.exchange_us + of_all * sums / link + copied;
        assert!((by_kernel - expected).abs() < 0.01, "{by_kernel} {expected}");
    }
}

#[test]
fn additions_follow_what_they_need_and_end_the_step() {
    let machine = Machine::h200();
    let problem = problem(8192, 4);
    let alone = [Operation::ReduceScatter, Operation::AllReduce];
    for operation in REDUCTIONS.into_iter().chain(alone) {
        for nth in 0..ways_of_sums(&problem, operation, None).len() {
            let setup = of_sums(&machine, &problem, operation, nth);
            let plan = setup.plan(&problem).unwrap();
            let drawn = timeline(&machine, &plan, &setup, 0..4).unwrap();
            let adds_up = operation.products_add_up(setup.way.strategy, setup.way.engine);
            for rank in 0..4 {
                let of_rank = drawn.additions.iter().filter(|added| added.rank == rank);
                let chunks: BTreeSet<u32> = of_rank.clone().map(|added| added.chunk).collect();
                // Every chunk that the rank gets, but those that a product adds up.
                let rows = |chunk: &u32| plan.chunks().rows(*chunk).start;
                let gets = plan.output_rows(rank);
                let is_added = |chunk: &u32| adds_up && plan.added_up(rank).contains(chunk);
                let expected = (0..plan.chunks().len()).filter(|chunk| gets.contains(&rows(chunk)));
                assert!(chunks.into_iter().eq(expected.filter(|chunk| !is_added(chunk))));
                for added in of_rank {
                    assert!(added.begin < added.done, "{added:?}");
                    let needs =
                        |sent: &&TransferEvent| (sent.to, sent.chunk) == (rank, added.chunk);
                    let mut needed = drawn.transfers.iter().filter(needs);
                    // Totals that a kernel sends overtake nothing that it adds.
                    let by_copies = matches!(setup.way.engine, Engine::CopyEngines { .. });
                    assert!(!by_copies || needed.all(|sent| sent.signalled <= added.begin));
                }
            }
            let ends = drawn.additions.iter().map(|added| added.done).max();
            assert!(adds_up || ends == Some(drawn.end()), "{operation}, {:?}", setup.way);
        }
    }
}

#[test]
fn sums_travel_behind_their_product_and_beside_the_next() {
    let machine = Machine::h200();
    for operation in REDUCTIONS {
        let problem = problem(8192, 4);
        let setup = of_sums(&machine, &problem, operation, 0);
        let plan = setup.plan(&problem).unwrap();
        let drawn = timeline(&machine, &plan, &setup, 0..4).unwrap();
        let receivers = if operation == Operation::GemmAllReduce { 12 } else { 3 };
        assert_eq!(drawn.transfers.len(), 4 * receivers);
        for sent in &drawn.transfers {
            // The products of a rank are those of ranks 1, 2, 3 and 0 beyond it.
            let nth = (plan.chunks().rank_of(sent.chunk) + 4 - sent.from - 1) % 4;
            let ends = |nth| {
                let of =
                    drawn.tiles.iter().filter(|tile| (tile.rank, tile.product) == (sent.from, nth));
                of.map(|tile| tile.done).max().unwrap()
            };
            // To within what one more round of products and transfers would change.
            let near = Duration::from_micros(1);
            assert!(sent.begin + near >= ends(nth), "{sent:?}");
            let is_first = nth == 0 && sent.to == (sent.from + 1) % 4;
            assert!(!is_first || sent.signalled < ends(1), "{sent:?}");
        }
    }
}

#[test]
fn a_reduction_is_never_free_and_a_worse_link_never_better() {
    for (m, ranks) in [(64, 2), (512, 4), (4096, 8), (1000, 3)] {
        let problem = problem(m, ranks);
        for (operation, nth) in
            REDUCTIONS.into_iter().flat_map(|of| [0, 1, 2, 3, 4].map(|nth| (of, nth)))
        {
            let mut before = 0.0;
            for link in [2000.0, 380.0, 100.0, 10.0] {
                let us = reduced(&Machine::h200().with_link(link), &problem, operation, nth);
                assert!(us > before, "{problem}, {operation}, {nth}, {link}: {us} {before}");
                before = us;
            }
            let all_rows = reduced(&Machine::h200(), &problem, Operation::GemmAllReduce, nth);
            assert!(all_rows >= reduced(&Machine::h200(), &problem, operation, nth));
        }
    }
}

#[test]
fn ranks_of_a_reduction_may_differ() {
    let machine = Machine::h200();
    let took = |rows: &[u32], nth| {
        let m = rows.iter().sum::<u32>().into();
        let problem = Problem::builder(m, 3584, 8192).shards(rows).build().unwrap();
        REDUCTIONS.map(|operation| reduced(&machine, &problem, operation, nth))
    };
    for nth in 0..5 {
        // Who gets more rows receives and adds up more.
        assert!(took(&[2048, 0], nth)[0] > took(&[1024, 1024], nth)[0], "{nth}");
        // One row less makes no difference.
        let (even, odd) = (took(&[512; 3], nth), took(&[512, 510, 511], nth));
        for (even, odd) in even.into_iter().zip(odd) {
            assert!((odd / even - 1.0).abs() < 0.02, "{nth}: {even} {odd}");
        }
    }
}
