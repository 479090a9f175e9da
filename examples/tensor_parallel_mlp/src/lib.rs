//! A library of one layer: a tensor-parallel MLP in fp8, on threads and on GPUs.
//!
//! Every rank has some tokens, and a slice of the hidden layer: its columns of the gate and up weights, its rows of the down
//! weight.
//!
//! ```text
//!   tokens of this rank ─► all-gather + GEMM ─► silu(gate) · up, in e4m3: all tokens × this rank's slice
//!   tokens of this rank ◄─ GEMM + reduce-scatter, plus the residual, in bf16 ◄─ hidden: this rank's slice of K
//! ```
//!
//! What belongs here: sizes, and the matrices of a step, wherever they lie. `threads` and `gpus` each have an `Mlp` with the same
//! `enqueue`. Invariant: an `Mlp` owns no matrix. Its caller has them all, and may use one `Mlp` for all layers of these sizes.

use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::plan::{Problem, Scaling, interleave_gates};
use overlap_gemm::random::Random;
use overlap_gemm::{ElementType, Result};

#[cfg(feature = "cuda")]
pub mod gpus;
pub mod threads;

/// The tokens of all ranks in the largest step, the width of a token, and of one rank's slice of the hidden layer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub tokens: usize,
    pub width: usize,
    pub slice: usize,
}

impl Sizes {
    /// The gathered product, and the one whose sums are scattered.
    pub fn problems(self, ranks: u32) -> Result<[Problem; 2]> {
        use ElementType::{Bf16, E4m3};
        let [m, width, slice] = [self.tokens, self.width, self.slice].map(|size| size as u64);
        let of = |n, k, d| {
            let problem = Problem::builder(m, n, k).elements(E4m3, E4m3, d).ranks(ranks.into());
            problem.scaling(Scaling::Tensor)
        };
        Ok([of(2 * slice, width, E4m3).gated(true).build()?, of(width, slice, Bf16).build()?])
    }
}

/// The memory of a layer's matrices: `Vec`s on threads, `cudarc` slices on GPUs.
pub trait Place {
    type Of<T>;
}

/// One rank's weights of one layer. A scale is one number.
pub struct Weights<P: Place> {
    /// Gates and the values that they gate, interleaved; and their bias.
    pub gate_up: P::Of<F8E4M3>,
    pub gate_up_scale: P::Of<f32>,
    pub bias: P::Of<bf16>,
    pub down: P::Of<F8E4M3>,
    pub down_scale: P::Of<f32>,
}

/// One rank's other matrices in a step, each as long as the largest step needs. Rows of a smaller step come first.
pub struct Matrices<P: Place> {
    /// This rank's tokens, before and after their quantization.
    pub residual: P::Of<bf16>,
    pub tokens: P::Of<F8E4M3>,
    pub tokens_scale: P::Of<f32>,
    /// All ranks' tokens, if they are kept, for the gradient of a weight.
    pub gathered: Option<P::Of<F8E4M3>>,
    /// All tokens × this rank's slice, times `hidden_scale`; `hidden_inverse` undoes that.
    pub hidden: P::Of<F8E4M3>,
    pub hidden_scale: P::Of<f32>,
    pub hidden_inverse: P::Of<f32>,
    /// The largest absolute value of `hidden` before it was scaled, of all steps so far: delayed scaling.
    pub amax: P::Of<f32>,
    pub output: P::Of<bf16>,
}

impl Weights<threads::Threads> {
    /// Made-up weights of a rank.
    pub fn random(sizes: Sizes, rank: u32) -> Result<Self> {
        let mut random = Random::new(100 + u64::from(rank));
        let len = (sizes.slice * sizes.width) as u64;
        let (gate, up): (Vec<F8E4M3>, Vec<_>) = (random.elements(len), random.elements(len));
        let (of_gate, of_up): (Vec<bf16>, Vec<_>) =
            (random.elements(sizes.slice as u64), random.elements(sizes.slice as u64));
        Ok(Weights {
            gate_up: interleave_gates(&gate, &up, sizes.width)?,
            gate_up_scale: vec![0.125],
            bias: interleave_gates(&of_gate, &of_up, 1)?,
            down: random.elements(len),
            down_scale: vec![0.25],
        })
    }
}

impl Matrices<threads::Threads> {
    /// Made-up tokens of a rank, at most `most_own` of all; the outputs are NaN until they are computed.
    pub fn random(sizes: Sizes, rank: u32, most_own: usize) -> Self {
        let own: Vec<f32> = Random::new(rank.into())
            .elements::<bf16>((most_own * sizes.width) as u64)
            .into_iter()
            .map(bf16::to_f32)
            .collect();
        Matrices {
            residual: own.iter().map(|x| bf16::from_f32(*x)).collect(),
            tokens: own.iter().map(|x| F8E4M3::from_f32(x * 448.0)).collect(),
            tokens_scale: vec![1.0 / 448.0],
            gathered: Some(vec![F8E4M3::NAN; sizes.tokens * sizes.width]),
            hidden: vec![F8E4M3::NAN; sizes.tokens * sizes.slice],
            hidden_scale: vec![64.0],
            hidden_inverse: vec![1.0 / 64.0],
            amax: vec![0.0],
            output: vec![bf16::NAN; most_own * sizes.width],
        }
    }
}
