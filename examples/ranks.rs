//! Ranks that are processes: how they meet, agree, and part, without a GPU.
//!
//! What a layer of a tensor-parallel model does before its first step: every process finds out which rank
//! it is, comes to the others, and exchanges what they have to know of each other, here how many rows each
//! has. From that all make the same plan.
//!
//! What to look at, in the order in which it happens:
//!
//! 1. `Group::from_env` reads what the launcher has set, and comes to rank 0's store.
//! 2. `on_end` says what to do when a rank dies: here, nothing but a line; with a GPU, the abort word.
//! 3. `all_gather` gives everybody everybody's rows; `Problem` and `Plan` follow from them.
//! 4. `barrier`, so that nobody leaves before all have read.
//!
//! Run it: `cargo build --release --example ranks`, then
//! `overlap-gemm launch -n 4 -- target/release/examples/ranks`

use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::plan::{Plan, PlanOptions, Problem};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let group = Group::from_env(&GroupOptions::default())?;
    let (rank, ranks) = (group.rank(), group.ranks());
    group.on_end(move |error| eprintln!("rank {rank}: the group is over: {error}"));

    // Ranks need not have the same number of rows.
    let own_rows = 256 + 64 * rank;
    let parts = group.all_gather("rows", &own_rows.to_le_bytes(), LIMIT)?;
    let rows: Vec<u32> = parts
        .iter()
        .filter_map(|part| Some(u32::from_le_bytes(part[..].try_into().ok()?)))
        .collect();
    let m = rows.iter().map(|&rows| u64::from(rows)).sum();

    let problem = Problem::builder(m, 512, 1024).shards(&rows).build()?;
    let plan = Plan::new(&problem, PlanOptions::default())?;
    println!(
        "rank {rank} of {ranks}, process {}: my rows are {:?} of {m}, in {} chunks of all {}",
        group.members()[rank as usize].process,
        problem.shards().rows(rank),
        plan.chunks().of_rank(rank).len(),
        plan.chunks().len(),
    );
    group.barrier("all have read", LIMIT)
}
