//! A tensor-parallel MLP on GPUs, one process a rank: all-gather + GEMM with bias and GELU, then GEMM + reduce-scatter with the
//! residual. `overlap-gemm launch -n 2 -- target/…/examples/gpu_tensor_parallel_mlp`, or torchrun, mpirun, srun.
//!
//! Every rank has some tokens, and a slice of the hidden layer: its columns of the first weight, its rows of the second.
//!
//! ```text
//!   tokens of this rank ─► all-gather + GEMM ─► gelu(… + bias): all tokens × this rank's slice of the hidden layer
//!   tokens of this rank ◄─ GEMM + reduce-scatter, plus the tokens ◄─ hidden: this rank's slice of K
//! ```
//!
//! Some rows of each rank's output are compared with `f64`.

use overlap_gemm::cuda::{
    AllGatherGemm, CollectiveOptions, Device, GemmOptions, GemmReduceScatter, Operands,
};
use overlap_gemm::element::bf16;
use overlap_gemm::group::GroupOptions;
use overlap_gemm::plan::{Activation, Problem, Reduction};
use overlap_gemm::random::Random;

/// Tokens of all ranks, the width of a token, and the width of one rank's slice of the hidden layer.
const TOKENS: usize = 4096;
const WIDTH: usize = 4096;
const SLICE: usize = 1792;

/// One rank's weights, each row with the elements that are summed.
struct Weights {
    up: Vec<bf16>,
    bias: Vec<bf16>,
    down: Vec<bf16>,
}

impl Weights {
    fn of(rank: u32) -> Weights {
        let mut random = Random::new(100 + u64::from(rank));
        let mut weight = |count: usize| random.elements(count as u64);
        Weights { up: weight(SLICE * WIDTH), bias: weight(SLICE), down: weight(WIDTH * SLICE) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (group, device) = Device::join(&GroupOptions::default())?;
    let (rank, ranks) = (group.rank(), u64::from(group.ranks()));
    let [m, width, slice] = [TOKENS as u64, WIDTH as u64, SLICE as u64];

    // Planned once, for as many steps as you like; collective.
    let options = CollectiveOptions::default();
    let gemm = GemmOptions::default().with_constant_b(true); // the weights stay as they are
    let first = gemm.clone().with_bias(true).with_activation(Activation::GeluTanh);
    let gathered = Problem::builder(m, slice, width).ranks(ranks).build()?;
    let mut up = AllGatherGemm::plan(&group, &device, &gathered, &options, &first)?;
    let summed = Problem::builder(m, width, slice).ranks(ranks).build()?;
    let (second, sum) = (gemm.with_c(true), Reduction::default());
    let mut down = GemmReduceScatter::plan(&group, &device, &summed, &options, &second, sum)?;

    let (stream, weights) = (device.new_stream()?, Weights::of(rank));
    let own = gathered.shards().rows(rank).len();
    let tokens: Vec<bf16> = Random::new(u64::from(rank)).elements((own * WIDTH) as u64);
    let on_device = |values: &Vec<bf16>| stream.clone_htod(values);
    let own_tokens = on_device(&tokens)?;
    let (w_up, w_down) = (on_device(&weights.up)?, on_device(&weights.down)?);
    let bias = on_device(&weights.bias)?;
    let mut hidden = stream.alloc_zeros::<bf16>(TOKENS * SLICE)?;
    let mut output = stream.alloc_zeros::<bf16>(own * WIDTH)?;

    for _step in 0..10 {
        up.enqueue(&stream, [Operands::new(&own_tokens, &w_up, &mut hidden).bias(&bias)])?;
        // The tokens are added once, by the rank that owns them.
        down.enqueue(&stream, [Operands::new(&hidden, &w_down, &mut output).c(&own_tokens, 1.0)])?;
    }
    // Each returns the errors of all ranks.
    up.synchronize(&stream)?;
    down.synchronize(&stream)?;

    let output = stream.clone_dtoh(&output)?;
    let all: Vec<Weights> = (0..group.ranks()).map(Weights::of).collect();
    for row in [0, own / 3, own.saturating_sub(1)].into_iter().filter(|row| *row < own) {
        let row = row * WIDTH..(row + 1) * WIDTH;
        check(&tokens[row.clone()], &all, &output[row]);
    }
    println!("rank {rank} of {ranks}: right");
    Ok(())
}

/// Compares a token's output with `f64`, within what roundings to bf16 on the way may cost: of hidden, each rank's sums, and
/// the output.
fn check(token: &[bf16], weights: &[Weights], output: &[bf16]) {
    const ROUNDING: f64 = 1.0 / 256.0;
    /// Of sums in `f32`, and of the kernel's formula, for each product that is added.
    const ADDING: f64 = 1e-5;
    let wide = |values: &[bf16]| -> Vec<f64> { values.iter().map(|v| v.to_f32().into()).collect() };
    // The sum of the products, and that of their magnitudes.
    let dot = |a: &[f64], b: &[f64]| {
        a.iter().zip(b).map(|(a, b)| a * b).fold([0.0, 0.0], |[s, t], x: f64| [s + x, t + x.abs()])
    };
    let token = wide(token);
    let (mut sums, mut bounds) = (token.clone(), vec![0.0; WIDTH]);
    for Weights { up, bias, down } in weights {
        let (mut hidden, mut errors) = (Vec::new(), Vec::new());
        for (row, bias) in wide(up).chunks(WIDTH).zip(wide(bias)) {
            let [sum, magnitude] = dot(&token, row);
            let value = Activation::GeluTanh.apply(sum + bias);
            let steepest = Activation::GeluTanh.steepest();
            errors.push(steepest * ADDING * magnitude + ROUNDING * value.abs());
            hidden.push(value);
        }
        for (at, row) in wide(down).chunks(SLICE).enumerate() {
            let [sum, magnitude] = dot(&hidden, row);
            sums[at] += sum;
            bounds[at] += dot(&errors, row)[1] + ADDING * magnitude + ROUNDING * sum.abs();
        }
    }
    for ((output, sum), bound) in output.iter().zip(sums).zip(bounds) {
        let error = (f64::from(output.to_f32()) - sum).abs();
        assert!(error <= bound + ROUNDING * sum.abs(), "{output}, not {sum}"); // NaN fails, too
    }
}
