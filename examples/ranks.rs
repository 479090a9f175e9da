//! Ranks that are processes: how they form a group, agree on a plan, and leave, without a GPU.
//!
//! A layer of a tensor-parallel model does this before its first step: every process learns its rank, joins
//! the group, and exchanges its number of rows. All ranks then make the same plan.
//!
//! Run it: `cargo build --release --example ranks`, then
//! `overlap-gemm launch -n 4 -- target/release/examples/ranks`

use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::group::{Group, GroupOptions};
use overlap_gemm::plan::{Plan, PlanOptions, Problem};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    // Reads the launcher's environment variables, and connects to rank 0's store.
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
