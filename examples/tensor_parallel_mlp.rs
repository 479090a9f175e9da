//! A tensor-parallel MLP on four ranks: a gated product (SwiGLU) of gathered tokens, then down with reduce-scatter.
//!
//! Every rank has some tokens, and a slice of the hidden layer: its columns of the gate and up weights, its rows of the down
//! weight. The ranks are threads.
//!
//! ```text
//!   tokens of this rank ─► all-gather + GEMM ─► silu(gate) · up: all tokens × this rank's slice of the hidden layer
//!   tokens of this rank ◄─ GEMM + reduce-scatter ◄─ hidden: this rank's slice of K
//! ```
//!
//! The result is checked against `f64`. Run it: `cargo run --release --example tensor_parallel_mlp`

use std::thread;

use overlap_gemm::Result;
use overlap_gemm::element::bf16;
use overlap_gemm::host::{AllGatherGemm, GemmReduceScatter, Group, Product, Rank, Stream};
use overlap_gemm::plan::{Activation, Epilogue, PlanOptions, Problem, Reduction, interleave_gates};
use overlap_gemm::random::Random;

const RANKS: u32 = 4;
/// Tokens of all ranks, the width of a token, and the width of one rank's slice of the hidden layer.
const TOKENS: usize = 128;
const WIDTH: usize = 96;
const SLICE: usize = 64;

/// One rank's weights, each row with the elements that are summed.
struct Weights {
    gate: Vec<bf16>,
    up: Vec<bf16>,
    down: Vec<bf16>,
}

fn main() -> Result<()> {
    let mut random = Random::new(7);
    let tokens: Vec<bf16> = random.elements((TOKENS * WIDTH) as u64);
    let mut weight = || random.elements((SLICE * WIDTH) as u64);
    let weights: Vec<Weights> =
        (0..RANKS).map(|_| Weights { gate: weight(), up: weight(), down: weight() }).collect();

    let ranks = Group::local(RANKS)?;
    let outputs = thread::scope(|scope| {
        let (tokens, weights) = (&tokens, &weights);
        let spawn = |rank| scope.spawn(move || one_rank(&rank, tokens, weights));
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no rank panics"))
            .collect::<Result<Vec<_>>>()
    })?;
    check(&tokens, &weights, &outputs.concat());
    Ok(())
}

/// The output of this rank's tokens.
fn one_rank(rank: &Rank, tokens: &[bf16], weights: &[Weights]) -> Result<Vec<bf16>> {
    let (options, stream) = (PlanOptions::default(), Stream::for_ranks(RANKS));
    let Weights { gate, up, down } = &weights[rank.rank() as usize];
    let gate_up = interleave_gates(gate, up, WIDTH)?;
    let [m, width, slice] = [TOKENS as u64, WIDTH as u64, SLICE as u64];

    // Planned once, for as many steps as you like.
    let gathered = Problem::builder(m, 2 * slice, width).ranks(RANKS.into()).gated(true).build()?;
    let mut first = AllGatherGemm::<bf16>::plan(rank, &gathered, options)?;
    let summed = Problem::builder(m, width, slice).ranks(RANKS.into()).build()?;
    let reduction = Reduction::default();
    let mut second = GemmReduceScatter::<bf16>::plan(rank, &summed, options, reduction)?;

    let own = gathered.shards().rows(rank.rank());
    let own_tokens = &tokens[own.start as usize * WIDTH..own.end as usize * WIDTH];
    let mut hidden = vec![bf16::NAN; TOKENS * SLICE];
    let swiglu = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
    let product = Product::new(&gate_up, &mut hidden).epilogue(swiglu);
    first.enqueue_all(&stream, own_tokens, &mut [product])?;

    let mut output = vec![bf16::NAN; own.len() * WIDTH];
    second.enqueue(&stream, &hidden, down, &mut output)?;
    Ok(output)
}

/// Compares every element with `f64`, within what the roundings to bf16 on the way may cost: of hidden, each rank's sums, and
/// the output.
fn check(tokens: &[bf16], weights: &[Weights], outputs: &[bf16]) {
    const ROUNDING: f64 = 1.0 / 256.0;
    let wide = |values: &[bf16]| -> Vec<f64> { values.iter().map(|v| v.to_f32().into()).collect() };
    let dot = |a: &[f64], b: &[bf16]| -> f64 { a.iter().zip(wide(b)).map(|(a, b)| a * b).sum() };
    for (token, output) in tokens.chunks(WIDTH).zip(outputs.chunks(WIDTH)) {
        let token = wide(token);
        let (mut sums, mut bounds) = ([0.0; WIDTH], [0.0; WIDTH]);
        for Weights { gate, up, down } in weights {
            let hidden: Vec<f64> = gate
                .chunks(WIDTH)
                .zip(up.chunks(WIDTH))
                .map(|(gate, up)| Activation::Silu.apply(dot(&token, gate)) * dot(&token, up))
                .collect();
            for (at, row) in down.chunks(SLICE).enumerate() {
                let mut sum = 0.0;
                for (hidden, weight) in hidden.iter().zip(wide(row)) {
                    sum += hidden * weight;
                    bounds[at] += ROUNDING * (hidden * weight).abs();
                }
                sums[at] += sum;
                bounds[at] += ROUNDING * sum.abs();
            }
        }
        for ((output, sum), bound) in output.iter().zip(sums).zip(bounds) {
            let error = (f64::from(output.to_f32()) - sum).abs();
            assert!(error <= bound + ROUNDING * sum.abs(), "{output}, not {sum}"); // NaN fails, too
        }
    }
    println!("{TOKENS} tokens of {WIDTH} on {RANKS} ranks: right");
}
