//! All-gather + GEMM on four ranks: several steps of varying M, each checked, the last one drawn.
//!
//! A small tensor-parallel layer. Every rank has some rows of the activations A and its own columns of
//! the weight B, and needs D = A · B of *all* rows. The ranks are threads. The link between them is slowed
//! until sending a step takes longer than computing it, so the last step's timeline shows tiles that run
//! as soon as their chunk has arrived.
//!
//! Run it: `cargo run --release --example all_gather_gemm`

use std::thread;

use overlap_gemm::element::bf16;
use overlap_gemm::host::{AllGatherGemm, Group, GroupOptions, Link, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{PlanOptions, Problem, Tiling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, Report};
use overlap_gemm::trace::Timeline;
use overlap_gemm::{Error, Result};

const RANKS: u32 = 4;
const N: u64 = 96;
const K: u64 = 128;
const SEED: u64 = 7;

/// The rows of every rank, step by step. A rank may have no rows in a step, and M may be any number up to
/// the planned one.
const STEPS: [[u32; RANKS as usize]; 3] = [[64, 64, 64, 64], [64, 0, 29, 45], [64; 4]];

fn main() -> Result<()> {
    let problem = Problem::builder(256, N, K).ranks(RANKS.into()).build()?;
    // Two chunks a shard, and tiles as high as a chunk: each tile waits for one chunk alone.
    let options = PlanOptions::new().with_pieces(2).with_tiling(Tiling::of_tile(32, 48));
    let link = Some(Link::of_rate(4e6));
    let group = GroupOptions { link, record: true, ..GroupOptions::default() };

    let ranks = Group::local_with(RANKS, group)?;
    let mut timeline = Timeline::default();
    thread::scope(|scope| {
        let problem = &problem;
        let spawn = |rank| scope.spawn(move || one_rank(&rank, problem, options));
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads.into_iter().try_for_each(|thread| {
            timeline.merge(thread.join().expect("no rank panics")?);
            Ok::<(), Error>(())
        })
    })?;

    // Epochs count from 1 in a group whose first epoch is 0.
    println!("\nthe last step:\n{}", timeline.of_epoch(STEPS.len() as u32).to_text(72));
    Ok(())
}

/// All steps of one rank; what it recorded.
fn one_rank(rank: &Rank, problem: &Problem, options: PlanOptions) -> Result<Timeline> {
    let mut layer = AllGatherGemm::<bf16>::plan(rank, problem, options)?;
    let stream = Stream::for_ranks(RANKS);
    let weight: Vec<bf16> =
        Random::of_stream(SEED, 100 + u64::from(rank.rank())).elements(problem.b_len());
    let mut outputs = vec![bf16::NAN; problem.d_len() as usize];

    for (step, rows) in (0..).zip(&STEPS) {
        // Every rank draws all of A for the check, and passes its own rows only.
        let shape = problem.with_shards(rows)?;
        let a: Vec<bf16> = Random::of_stream(SEED, step).elements(shape.a_len(shape.m()));
        let own = shape.shards().rows(rank.rank());
        let shard = &a[(own.start * shape.k()) as usize..(own.end * shape.k()) as usize];

        // The output is as long as this step's rows, which may be fewer than planned.
        let output = &mut outputs[..shape.d_len() as usize];
        let input = Shard::at(shard).rows(rows);
        layer.enqueue_all(&stream, input, &mut [Product::new(&weight, output)])?;

        let report = Reference::new(&shape, &a, &weight, &[], &[])?;
        let report = report.compare(output, 0..shape.m())?;
        let Report { compared, wrong, worst_fraction, .. } = report;
        let (rank, percent) = (rank.rank(), 100.0 * worst_fraction);
        println!(
            "step {step}, rank {rank}: {compared} results, {wrong} wrong, \
             worst error {percent:.0} % of its bound"
        );
        assert_eq!(wrong, 0, "{report:?}");
    }
    // The last transfers go on after the last `enqueue_all` has returned.
    layer.flush()?;
    Ok(layer.take_timeline())
}
