//! The layer on threads: a rank is a thread, a matrix a `Vec`.

use overlap_gemm::Result;
use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::host::{AllGatherGemm, GemmReduceScatter, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{Activation, Epilogue, PlanOptions, Reduction};

use crate::{Matrices, Place, Sizes, Weights};

/// `Vec`s.
pub struct Threads;

impl Place for Threads {
    type Of<T> = Vec<T>;
}

/// One rank's layer, planned once for all layers of its sizes.
pub struct Mlp {
    up: AllGatherGemm<F8E4M3>,
    down: GemmReduceScatter<F8E4M3, F8E4M3, bf16>,
    sizes: Sizes,
    rank: usize,
}

impl Mlp {
    pub fn plan(rank: &Rank, sizes: Sizes) -> Result<Self> {
        let [gathered, summed] = sizes.problems(rank.ranks())?;
        let options = PlanOptions::default();
        let up = AllGatherGemm::plan(rank, &gathered, options)?;
        let down = GemmReduceScatter::plan(rank, &summed, options, Reduction::default())?;
        Ok(Mlp { up, down, sizes, rank: rank.rank() as usize })
    }

    /// A step of one layer; `rows[r]`: the tokens of rank r. Returns when the output is complete.
    pub fn enqueue(
        &mut self,
        stream: &Stream,
        weights: &Weights<Threads>,
        step: &mut Matrices<Threads>,
        rows: &[u32],
    ) -> Result<()> {
        let Sizes { width, slice, .. } = self.sizes;
        let (own, all) = (rows[self.rank] as usize, rows.iter().sum::<u32>() as usize);

        let tokens = Shard::at(&step.tokens[..own * width]).rows(rows).scales(&step.tokens_scale);
        let hidden = &mut step.hidden[..all * slice];
        let swiglu = Epilogue {
            bias: Some(&weights.bias),
            activation: Activation::Silu,
            scale_d: step.hidden_scale[0],
            ..Epilogue::default()
        };
        let product = Product::new(&weights.gate_up, hidden).scales(&weights.gate_up_scale);
        let product = product.epilogue(swiglu).amax(&mut step.amax[0]);
        self.up.enqueue_all(stream, tokens, &mut [product])?;
        if let (Some(keep), Some(gathered)) = (&mut step.gathered, self.up.gathered()) {
            keep[..all * width].copy_from_slice(gathered.elements());
        }

        let hidden = Shard::at(&step.hidden[..all * slice]).rows(rows).scales(&step.hidden_inverse);
        let output = &mut step.output[..own * width];
        let residual =
            Epilogue { beta: 1.0, c: Some(&step.residual[..own * width]), ..Epilogue::default() };
        let product = Product::new(&weights.down, output).scales(&weights.down_scale);
        self.down.enqueue_all(stream, hidden, &mut [product.epilogue(residual)])
    }
}
