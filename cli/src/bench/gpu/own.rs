//! This crate's products as contenders, and which variants of them a sweep tries.
//!
//! The only file of the bench that plans this crate's products. Invariant: a variant is named by what
//! actually runs (kernel, swizzle, slices of K), also where the library chose.

use overlap_gemm::cuda::{AsyncGemm, Gemm, GemmOptions, Kernel, RawOperands, Signals, kernels};
use overlap_gemm::plan::{Chunks, Problem};
use overlap_gemm::{Error, Result};

use super::super::gemm::Args;
use super::driver::Gpu;
use super::inputs::Inputs;
use super::timing::Product;

/// Swizzles and slices that `--kernels all` tries.
const USUAL: [u32; 4] = [1, 2, 4, 8];

/// Chunks that the product waits for, no more than rows.
const CHUNKS: u32 = 8;

/// The product with all of A there, and what was chosen for it, as options that choose nothing else.
pub fn own<'a>(
    gpu: &'a Gpu,
    inputs: &'a Inputs,
    problem: &Problem,
    options: &GemmOptions,
) -> Result<(GemmOptions, Box<Product<'a>>)> {
    let gemm = Gemm::plan(&gpu.device, problem, options)?;
    let (choice, chosen) = (gemm.choice(), gemm.options().clone());
    let chosen = chosen.with_kernel(&gemm.kernel().name).with_swizzle(choice.swizzle);
    // SAFETY: the sets and scales are as large as the problem says, and live until the stream is
    // through; D is a block of its own; the bench writes inputs only before it times.
    let product = move |set| unsafe { gemm.enqueue_raw(&gpu.stream, &operands(inputs, set)) };
    Ok((chosen.with_splits(choice.splits), Box::new(product)))
}

/// The product that waits, with a few chunks, every signal of which is set, as is expected.
pub fn own_set<'a>(
    gpu: &'a Gpu,
    inputs: &'a Inputs,
    problem: &Problem,
    options: &GemmOptions,
) -> Result<Box<Product<'a>>> {
    let chunks = Chunks::even(problem.shards(), CHUNKS.min(problem.m()))?.early();
    let gemm = AsyncGemm::plan(&gpu.device, problem, &chunks, 0, options)?;
    let signals = Signals::new(&gpu.device, chunks.len())?;
    signals.advance(&gpu.stream)?;
    signals.post_all(&gpu.stream)?;
    gpu.synchronize()?;
    // The epoch stays, so the signals stay set.
    // SAFETY: as for `own`.
    let enqueue =
        move |set| unsafe { gemm.enqueue_raw(&gpu.stream, &operands(inputs, set), &signals) };
    Ok(Box::new(enqueue))
}

/// The addresses of a set.
pub fn operands(inputs: &Inputs, set: usize) -> RawOperands {
    let matrices = &inputs.sets[set];
    let operands = RawOperands::new(matrices.a.address, matrices.b.address, matrices.d.address);
    match (&inputs.scale_a, &inputs.scale_b) {
        (Some(a), Some(b)) => operands.scales(a.address, b.address),
        _ => operands,
    }
}

/// A kernel's name, swizzle and slices of K.
pub fn describe(options: &GemmOptions) -> String {
    let mut text = options.kernel.clone().unwrap_or_else(|| "the library's choice".into());
    if let Some(swizzle) = options.swizzle {
        text += &format!(" swizzle {swizzle}");
    }
    if let Some(splits) = options.splits.filter(|splits| *splits > 1) {
        text += &format!(" splits {splits}");
    }
    text
}

/// Everything that was asked to be tried for one problem; never empty.
pub fn variants(args: &Args, problem: &Problem, sm_count: u32) -> Result<Vec<GemmOptions>> {
    let Args { kernels: wanted, swizzles, splits, .. } = args;
    let plain = GemmOptions::default();
    if *wanted == ["auto"] {
        return Ok(crossed(&plain, swizzles, splits));
    }
    if *wanted != ["all"] {
        let named = |name| crossed(&plain.clone().with_kernel(name), swizzles, splits);
        return Ok(wanted.iter().flat_map(named).collect());
    }
    let fits = |kernel: &&Kernel| kernel.serves(problem, plain.fast_accumulation);
    let mut all = Vec::new();
    for kernel in kernels()?.iter().filter(fits) {
        let units = problem.m().div_ceil(kernel.tile.m * kernel.cluster.m);
        let tiles = u64::from(problem.m().div_ceil(kernel.tile.m))
            * u64::from(problem.n().div_ceil(kernel.tile.n));
        let usual = |given: &[u32], useful: &dyn Fn(u32) -> bool| -> Vec<u32> {
            match given {
                [] => USUAL.into_iter().filter(|&number| number == 1 || useful(number)).collect(),
                given => given.to_vec(),
            }
        };
        // More rows together than there are sweep no differently.
        let swizzles = usual(swizzles, &|swizzle| swizzle / 2 < units);
        // Slices are for outputs with fewer tiles than SMs.
        let splits = usual(splits, &|splits| {
            splits <= kernel.max_splits && tiles * u64::from(splits) / 2 < u64::from(sm_count)
        });
        all.extend(crossed(&plain.clone().with_kernel(&kernel.name), &swizzles, &splits));
    }
    if all.is_empty() {
        return Err(Error::Unsupported {
            what: format!("the product {problem} on the GPU"),
            why: "no kernel of these types, layout and accumulation was compiled".into(),
            remedy: "see the list in the JSON output, or build with more kernels",
        });
    }
    Ok(all)
}

/// `options` with each swizzle and each number of slices; an empty list leaves it to the library.
fn crossed(options: &GemmOptions, swizzles: &[u32], splits: &[u32]) -> Vec<GemmOptions> {
    let each = |numbers: &[u32]| -> Vec<Option<u32>> {
        if numbers.is_empty() { vec![None] } else { numbers.iter().copied().map(Some).collect() }
    };
    let mut all = Vec::new();
    for swizzle in each(swizzles) {
        for splits in each(splits) {
            let mut variant = options.clone();
            (variant.swizzle, variant.splits) = (swizzle, splits);
            all.push(variant);
        }
    }
    all
}
