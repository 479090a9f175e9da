//! All-gather + GEMM on GPUs, one process a rank: `overlap-gemm launch -n 2 -- target/…/examples/gpu_all_gather_gemm`,
//! or torchrun, mpirun, srun.
//!
//! Every rank passes its rows of A, multiplies all rows by its own B, and checks rows of its output.

use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions, Device, GemmOptions, Operands};
use overlap_gemm::element::bf16;
use overlap_gemm::group::GroupOptions;
use overlap_gemm::plan::Problem;

const M: usize = 4096;
const N: usize = 3584;
const K: usize = 8192;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (group, device) = Device::join(&GroupOptions::default())?;
    let stream = device.new_stream()?;
    let (rank, ranks) = (group.rank() as usize, group.ranks() as usize);
    let problem = Problem::builder(M as u64, N as u64, K as u64).ranks(ranks as u64).build()?;

    // Collective: every rank plans the same. From here on the ranks reach each other's memory.
    let options = CollectiveOptions::default();
    // A promise: all writes to B, a weight, have ended before the first step.
    let gemm = GemmOptions::default().with_constant_b(true);
    let mut layer = AllGatherGemm::plan(&group, &device, &problem, &options, &gemm)?;
    if rank == 0 {
        print!("{}", layer.explain());
    }

    // Row r of A is r mod 7, B is 1/K: so D[r, c] is r mod 7.
    let rows = problem.shards().rows(rank as u32);
    let own: Vec<bf16> = rows
        .clone()
        .flat_map(|row| std::iter::repeat_n(bf16::from_f32((row % 7) as f32), K))
        .collect();
    let shard = stream.clone_htod(&own)?;
    let b = stream.clone_htod(&vec![bf16::from_f32(1.0 / K as f32); N * K])?;
    let mut d = stream.alloc_zeros::<bf16>(M * N)?;
    for _step in 0..10 {
        layer.enqueue(&stream, [Operands::new(&shard, &b, &mut d)])?;
    }
    // Returns the errors of all ranks.
    layer.synchronize(&stream)?;

    let d = stream.clone_dtoh(&d)?;
    for row in [0, M / 3, M - 1] {
        assert_eq!(d[row * N].to_f32(), (row % 7) as f32, "rank {rank}, row {row}");
    }
    println!("rank {rank} of {ranks}: right");
    Ok(())
}
