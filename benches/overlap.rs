//! Whether the overlap is real: the same step with the link slowed to several rates.
//!
//! `cargo bench --bench overlap`. Compute is the step with an unlimited link, transfer is what the
//! link alone takes by its rate (the pushes sleep it out), and the step with that link should take
//! near the larger of the two, not their sum. Random data, medians of the slowest rank.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use overlap_gemm::element::bf16;
use overlap_gemm::host::{AllGatherGemm, Group, GroupOptions, Link, Stream};
use overlap_gemm::plan::{PlanOptions, Problem, Tiling};
use overlap_gemm::random::Random;

const RANKS: u32 = 4;
const STEPS: usize = 15;

fn random(len: u64, seed: u64) -> Vec<bf16> {
    Random::new(seed).elements(len)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The median over steps of the slowest rank, ranks started together, everything sent.
fn step_time(problem: &Problem, options: PlanOptions, link: Option<Link>) -> Duration {
    let group = GroupOptions { link, ..GroupOptions::default() };
    let barrier = Barrier::new(RANKS as usize);
    let one_rank = |rank: overlap_gemm::host::Rank| {
        let mut layer =
            AllGatherGemm::<bf16>::plan(&rank, problem, options).expect("memory for it");
        let stream = Stream::for_ranks(RANKS);
        let own = problem.shards().rows(rank.rank()).len() as u32;
        let seed = u64::from(rank.rank());
        let (a, b) = (random(problem.a_len(own), seed), random(problem.b_len(), seed + 9));
        let mut d = vec![bf16::ZERO; problem.d_len() as usize];
        let step = |_| {
            barrier.wait();
            let begin = Instant::now();
            layer.enqueue(&stream, &a, &b, &mut d).expect("peers that keep up");
            layer.flush().expect("peers that keep up");
            begin.elapsed()
        };
        (0..STEPS + 2).map(step).skip(2).collect()
    };
    let times: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let ranks = Group::local_with(RANKS, group).expect("a group");
        let one_rank = &one_rank;
        let spawn = |rank| scope.spawn(move || one_rank(rank));
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let slowest = |step: usize| times.iter().map(|rank| rank[step]).max().unwrap_or_default();
    median((0..STEPS).map(slowest).collect())
}

fn main() {
    let problem = Problem::builder(1024, 512, 1024).ranks(RANKS.into()).build().expect("valid");
    // A tile as high as a chunk waits for that chunk alone; a higher one would wait for several.
    let options = PlanOptions::new().with_pieces(4).with_tiling(Tiling::of_tile(64, 256));
    let sent = u128::from(RANKS - 1) * problem.row_bytes(&problem.shards().rows(0));
    println!("{problem}, {} chunks a shard; each rank sends {sent} bytes a step", 4);
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "link MB/s", "compute", "transfer", "sum", "step", "÷ max", "÷ sum"
    );
    for transfer_to_compute in [0.25, 0.5, 1.0, 2.0, 4.0] {
        // Compute is measured anew each time, beside the step it is compared with.
        let compute = step_time(&problem, options, None).as_secs_f64();
        let transfer = transfer_to_compute * compute;
        let rate = sent as f64 / transfer;
        let step = step_time(&problem, options, Some(Link::of_rate(rate))).as_secs_f64();
        let (sum, max) = (compute + transfer, compute.max(transfer));
        let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        println!(
            "{:>10.0} {:>10} {:>10} {:>10} {:>10} {:>8.2} {:>8.2}",
            rate / 1e6,
            ms(compute),
            ms(transfer),
            ms(sum),
            ms(step),
            step / max,
            step / sum
        );
    }
}
