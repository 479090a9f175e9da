//! This crate's products as contenders, and which variants of them a sweep tries.
//!
//! The only file of the bench that plans this crate's products. Invariant: a variant is named by what
//! actually runs (kernel, swizzle, slices of K), also where the library chose.

use overlap_gemm::cuda::{AsyncGemm, Gemm, GemmOptions, Kernel, RawOperands, Signals, kernels};
use overlap_gemm::plan::{Chunks, Problem};
use overlap_gemm::{Error, Result};

use super::super::cases::spread;
use super::super::wanted::{Kernels, Products};
use super::driver::Gpu;
use super::inputs::Inputs;
use super::timing::Product;
use crate::exit::Failure;

/// Swizzles and slices that `--kernels all` tries.
const USUAL: [u32; 4] = [1, 2, 4, 8];

/// The product with all of A there.
pub struct Own {
    gemm: Gemm,
}

impl Own {
    /// Plans it.
    pub fn plan(gpu: &Gpu, problem: &Problem, options: &GemmOptions) -> Result<Own> {
        Ok(Own { gemm: Gemm::plan(&gpu.device, problem, options)? })
    }

    /// What was chosen, as options that choose nothing else.
    pub fn chosen(&self) -> GemmOptions {
        let choice = self.gemm.choice();
        let options = self.gemm.options().clone().with_kernel(&self.gemm.kernel().name);
        options.with_swizzle(choice.swizzle).with_splits(choice.splits)
    }
}

impl Product for Own {
    fn enqueue(&self, gpu: &Gpu, inputs: &Inputs, set: usize) -> Result<()> {
        // SAFETY: the sets and scales are as large as the problem says, and live until the stream is
        // through; D is a block of its own; the bench writes inputs only before it times.
        unsafe { self.gemm.enqueue_raw(&gpu.stream, &operands(inputs, set)) }
    }
}

/// The product that waits, with every signal set.
pub struct OwnSet {
    gemm: AsyncGemm,
    signals: Signals,
}

impl OwnSet {
    /// Plans it, and sets its signals.
    pub fn plan(
        gpu: &Gpu,
        problem: &Problem,
        chunks: &Chunks,
        options: &GemmOptions,
    ) -> Result<OwnSet> {
        let gemm = AsyncGemm::plan(&gpu.device, problem, chunks, 0, options)?;
        let signals = Signals::new(&gpu.device, chunks.len())?;
        signals.advance(&gpu.stream)?;
        signals.post_all(&gpu.stream)?;
        gpu.synchronize()?;
        Ok(OwnSet { gemm, signals })
    }
}

impl Product for OwnSet {
    fn enqueue(&self, gpu: &Gpu, inputs: &Inputs, set: usize) -> Result<()> {
        // The epoch stays, so the signals stay set.
        // SAFETY: as for `Own`.
        unsafe { self.gemm.enqueue_raw(&gpu.stream, &operands(inputs, set), &self.signals) }
    }
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

/// How many chunks there are: a rank's worth each, no more than rows.
pub fn chunks(problem: &Problem, wanted: u32) -> Result<(Problem, Chunks)> {
    let spread = spread(problem, wanted.min(problem.m()))?;
    let chunks = Chunks::even(spread.shards(), 1)?;
    Ok((spread, chunks))
}

/// Everything that was asked to be tried for one problem; never empty.
pub fn variants(wanted: &Products, problem: &Problem, sm_count: u32) -> Result<Vec<GemmOptions>> {
    variants_of(kernels()?, wanted, problem, sm_count)
}

fn variants_of(
    kernels: &[Kernel],
    wanted: &Products,
    problem: &Problem,
    sm_count: u32,
) -> Result<Vec<GemmOptions>> {
    let mut plain = GemmOptions::default().with_fast_accumulation(wanted.fast_accumulation);
    plain.sm_limit = wanted.sm_limit;
    let chosen = match &wanted.kernels {
        Kernels::Auto => return Ok(crossed(&plain, &wanted.swizzles, &wanted.splits)),
        Kernels::Named(names) => {
            let named =
                |name| crossed(&plain.clone().with_kernel(name), &wanted.swizzles, &wanted.splits);
            return Ok(names.iter().flat_map(named).collect());
        }
        Kernels::All => kernels.iter().filter(|kernel| {
            kernel.serves(problem.elements(), problem.b_layout(), wanted.fast_accumulation)
        }),
    };
    let sms = wanted.sm_limit.unwrap_or(sm_count);
    let mut all = Vec::new();
    for kernel in chosen {
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
        let swizzles = usual(&wanted.swizzles, &|swizzle| swizzle / 2 < units);
        // Slices are for outputs with fewer tiles than SMs.
        let splits = usual(&wanted.splits, &|splits| {
            splits <= kernel.max_splits && tiles * u64::from(splits) / 2 < u64::from(sms)
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

/// An error for a name that no kernel has.
pub fn check_names(wanted: &Kernels) -> Result<(), Failure> {
    let Kernels::Named(names) = wanted else { return Ok(()) };
    let all = kernels()?;
    match names.iter().find(|name| all.iter().all(|kernel| kernel.name != **name)) {
        None => Ok(()),
        Some(name) => {
            let list: Vec<_> = all.iter().map(|kernel| kernel.name.as_str()).collect();
            Err(Failure::Usage(format!(
                "no kernel is called {name}; there are {}",
                list.join(", ")
            )))
        }
    }
}
