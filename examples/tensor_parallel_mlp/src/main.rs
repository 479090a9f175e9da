//! Runs the layer and compares it with `f64`. On threads: `cargo run --package tensor-parallel-mlp`. On GPUs: `cargo build --release
//! --package tensor-parallel-mlp --features cuda`, then `overlap-gemm launch -n 2 -- target/release/tensor-parallel-mlp gpus`.

use std::error::Error;
use std::thread;

use overlap_gemm::Result;
use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::host::{Group, Rank, Stream};
use overlap_gemm::plan::{Activation, Epilogue, Reduction};
use overlap_gemm::reference::{Accumulation, Reference, Report, compare_reduced};
use tensor_parallel_mlp::threads::{Mlp, Threads};
use tensor_parallel_mlp::{Matrices, Sizes, Weights};

const SIZES: Sizes = Sizes { tokens: 256, width: 128, slice: 64 };

/// What a rank has after a step.
struct Outcome {
    gathered: Option<Vec<F8E4M3>>,
    hidden: Vec<F8E4M3>,
    amax: f32,
    output: Vec<bf16>,
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    #[cfg(feature = "cuda")]
    if std::env::args().nth(1).as_deref() == Some("gpus") {
        return on_gpus();
    }
    #[cfg(not(feature = "cuda"))]
    if std::env::args().nth(1).is_some() {
        return Err("an argument needs the feature `cuda`: build with `--features cuda`".into());
    }
    Ok(on_threads()?)
}

fn on_threads() -> Result<()> {
    // Of all steps of one plan: the tokens of each rank.
    let steps: [&[u32]; 3] = [&[64; 4], &[5, 0, 20, 1], &[64; 4]];
    let one_rank = |rank: Rank| -> Result<Vec<Outcome>> {
        let (mut mlp, stream) = (Mlp::plan(&rank, SIZES)?, Stream::for_ranks(4));
        let weights = Weights::random(SIZES, rank.rank())?;
        let mut matrices = Matrices::random(SIZES, rank.rank(), 64);
        let outcome = |rows: &&[u32]| -> Result<Outcome> {
            matrices.amax[0] = 0.0;
            mlp.enqueue(&stream, &weights, &mut matrices, rows)?;
            let Matrices { gathered, hidden, amax, output, .. } = &matrices;
            let (gathered, hidden) = (gathered.clone(), hidden.clone());
            Ok(Outcome { gathered, hidden, amax: amax[0], output: output.clone() })
        };
        steps.iter().map(outcome).collect()
    };
    let ranks = Group::local(4)?;
    let outcomes = thread::scope(|scope| {
        let spawn = |rank| scope.spawn(move || one_rank(rank));
        let threads: Vec<_> = ranks.into_iter().map(spawn).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no rank panics"));
        joined.collect::<Result<Vec<_>>>()
    })?;
    for (step, rows) in steps.iter().enumerate() {
        let hidden: Vec<_> = outcomes.iter().map(|steps| steps[step].hidden.clone()).collect();
        for (rank, steps) in outcomes.iter().enumerate() {
            check(rows, &hidden, rank, &steps[step], Accumulation::F32)?;
        }
    }
    println!("{} steps on threads: right", steps.len());
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_gpus() -> std::result::Result<(), Box<dyn Error>> {
    use std::time::Duration;

    use overlap_gemm::cuda::{Device, SharedWorkspace};
    use overlap_gemm::group::GroupOptions;
    use tensor_parallel_mlp::gpus::{Gpu, Mlp, matrices_on, weights_on};

    let limit = Duration::from_secs(30);
    // Ranks may share a GPU: this shows that the layer is right, not how fast it is.
    let (group, device) = Device::join(&GroupOptions::default().shared_devices(true))?;
    let (rank, ranks, stream) = (group.rank(), group.ranks(), device.new_stream()?);
    let workspace = SharedWorkspace::new(&group, &device, limit)?;
    let mut mlp = Mlp::plan(&group, &device, &workspace, SIZES)?;
    let most_own = SIZES.tokens.div_ceil(ranks as usize);
    let weights = weights_on(&stream, &Weights::random(SIZES, rank)?)?;
    let mut matrices = matrices_on(&stream, &Matrices::random(SIZES, rank, most_own))?;

    let compare = |matrices: &mut Matrices<Gpu>, rows: &[u32]| {
        let gathered =
            matrices.gathered.as_ref().map(|rows| stream.clone_dtoh(rows)).transpose()?;
        let (hidden, output) =
            (stream.clone_dtoh(&matrices.hidden)?, stream.clone_dtoh(&matrices.output)?);
        let amax = stream.clone_dtoh(&matrices.amax)?[0];
        stream.memset_zeros(&mut matrices.amax)?;
        let bytes: Vec<u8> = hidden.iter().map(|x| x.to_bits()).collect();
        let all = group.all_gather("the hidden layer", &bytes, limit)?;
        let elements = |of: &Vec<u8>| of.iter().map(|x| F8E4M3::from_bits(*x)).collect();
        let all: Vec<Vec<_>> = all.iter().map(elements).collect();
        let found = Outcome { gathered, hidden, amax, output };
        Ok::<_, Box<dyn Error>>(check(rows, &all, rank as usize, &found, Accumulation::Fp8)?)
    };
    let even = |rows: u32| vec![rows; ranks as usize];
    for rows in [8, 3] {
        mlp.enqueue(&stream, &weights, &mut matrices, &even(rows))?;
        mlp.synchronize(&stream)?;
        compare(&mut matrices, &even(rows))?;
    }
    matrices.gathered = None;
    let mut graphs = Vec::new();
    for rows in [4, 16] {
        // SAFETY: all of them live until the end of this function; the graphs are dropped first.
        let graph = unsafe { mlp.capture(&stream, &weights, &mut matrices, &even(rows))? };
        graphs.push((rows, graph));
    }
    for (rows, graph) in graphs.iter().rev() {
        graph.launch()?;
        mlp.synchronize(&stream)?;
        compare(&mut matrices, &even(*rows))?;
    }
    drop(graphs);
    println!("rank {rank} of {ranks}, two steps and two graphs on GPUs: right");
    Ok(())
}

/// Compares what a rank found with `f64`. Its output is a sum over all ranks' slices of the hidden layer.
fn check(
    rows: &[u32],
    hidden: &[Vec<F8E4M3>],
    rank: usize,
    found: &Outcome,
    accumulation: Accumulation,
) -> Result<()> {
    let [gathered, summed] = SIZES.problems(rows.len() as u32)?;
    let (gathered, summed) = (gathered.with_shards(rows)?, summed.with_shards(rows)?);
    let (all, own) = (gathered.m() as usize, rows[rank] as usize);
    let of_ranks = 0..rows.len() as u32;
    let weights = of_ranks.clone().map(|rank| Weights::random(SIZES, rank));
    let weights: Vec<Weights<Threads>> = weights.collect::<Result<_>>()?;
    let matrices: Vec<_> =
        of_ranks.map(|rank| Matrices::random(SIZES, rank, SIZES.tokens)).collect();

    let parts =
        matrices.iter().zip(rows).map(|(of, rows)| &of.tokens[..*rows as usize * SIZES.width]);
    let tokens = parts.collect::<Vec<_>>().concat();
    let kept = found.gathered.as_ref().map_or(&tokens[..], |kept| &kept[..tokens.len()]);
    assert!(kept == tokens, "the gathered tokens");

    let (weight, matrix) = (&weights[rank], &matrices[rank]);
    let scales = [&matrix.tokens_scale, &weight.gate_up_scale];
    let reference = Reference::new(&gathered, &tokens, &weight.gate_up, scales[0], scales[1])?
        .with_accumulation(accumulation);
    let swiglu = Epilogue {
        bias: Some(&weight.bias),
        activation: Activation::Silu,
        scale_d: matrix.hidden_scale[0],
        ..Epilogue::default()
    };
    let slice = |hidden: &'_ Vec<F8E4M3>| hidden[..all * SIZES.slice].to_vec();
    right("hidden", &reference.compare_with(&slice(&found.hidden), 0..gathered.m(), swiglu)?);
    let largest = reference.amax(0..gathered.m(), swiglu)?;
    assert!(largest.contains(&found.amax.into()), "{} is not in {largest:?}", found.amax);

    let slices: Vec<_> = hidden.iter().map(slice).collect();
    let products = slices.iter().zip(&weights).map(|(hidden, weight)| {
        let (of_hidden, of_down) = (&matrix.hidden_inverse, &weight.down_scale);
        let product = Reference::new(&summed, hidden, &weight.down, of_hidden, of_down)?;
        Ok(product.with_accumulation(accumulation))
    });
    let products = products.collect::<Result<Vec<_>>>()?;
    // On GPUs the owner's sum is rounded as the others' are, as in an all-reduce: no owner is named, and D has all rows.
    let (first, width) = (summed.shards().rows(rank as u32).start as usize, SIZES.width);
    let whole = |own_rows: &[bf16]| {
        let mut all_rows = vec![bf16::NAN; all * width];
        all_rows[first * width..][..own * width].copy_from_slice(&own_rows[..own * width]);
        all_rows
    };
    let (output, residual) = (whole(&found.output), whole(&matrix.residual));
    let residual = Epilogue { beta: 1.0, c: Some(&residual), ..Epilogue::default() };
    let (sum, rows) = (Reduction::default(), first as u32..(first + own) as u32);
    let report = compare_reduced(&products, None, sum, &output, rows, residual)?;
    right("output", &report);
    Ok(())
}

fn right(what: &str, report: &Report) {
    assert_eq!(report.complaint(), None, "{what}");
}
