//! A crate with a kernel of its own, which computes on rows that arrive meanwhile: silu(A · gateᵀ) ∘ (A · upᵀ).
//!
//! On threads, `cargo run -p own-kernel`: overlap-gemm multiplies, and this crate combines the two products. On a GPU,
//! `cargo run --release -p own-kernel --features cuda`: the kernel in `csrc/` does all of it. It waits for rows by
//! overlap-gemm's signals and computes tiles in overlap-gemm's order. Both results are checked against `f64`.

use std::error::Error;

use overlap_gemm::element::bf16;
use overlap_gemm::plan::Problem;
use overlap_gemm::random::Random;

#[cfg(own_kernel)]
mod on_gpu;
mod on_threads;

// Tiles of 64 x 64 reach beyond the outputs, and steps of 32 beyond K.
const M: usize = 250;
const N: usize = 200;
const K: usize = 136;
/// Where the rows come from, each in chunks.
const SOURCES: u32 = 4;
const CHUNKS: u32 = 2;

/// The operands, row after row: A has M rows of K elements, the weights N.
struct Operands {
    a: Vec<bf16>,
    gate: Vec<bf16>,
    up: Vec<bf16>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let problem = Problem::builder(M as u64, N as u64, K as u64).ranks(SOURCES.into()).build()?;
    let mut random = Random::new(3);
    let mut matrix = |rows: usize| random.elements((rows * K) as u64);
    let operands = Operands { a: matrix(M), gate: matrix(N), up: matrix(N) };

    check("threads", &operands, &on_threads::run(&problem, &operands)?);
    #[cfg(own_kernel)]
    check("a GPU", &operands, &on_gpu::run(&problem, &operands)?);
    Ok(())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Compares D with the exact one. Sums are in f32 and D is rounded to bf16; on threads, so are the two products.
fn check(place: &str, operands: &Operands, d: &[bf16]) {
    let dot = |row: &[bf16], column: &[bf16]| -> f64 {
        row.iter().zip(column).map(|(x, y)| f64::from(x.to_f32()) * f64::from(y.to_f32())).sum()
    };
    for (row, outputs) in operands.a.chunks(K).zip(d.chunks(N)) {
        let weights = operands.gate.chunks(K).zip(operands.up.chunks(K));
        for ((gate, up), output) in weights.zip(outputs) {
            let (gate, up) = (dot(row, gate), dot(row, up));
            let (found, exact) = (f64::from(output.to_f32()), silu(gate) * up);
            // silu has a slope of at most 1.1, and is at most |x|: each product's rounding counts about once.
            let bound = 4.0 * f64::from(bf16::EPSILON.to_f32()) * (1e-2 + gate.abs() * up.abs());
            assert!((found - exact).abs() <= bound, "{found} where {exact} is exact");
        }
    }
    println!("on {place}: {M}x{N} outputs are right");
}
