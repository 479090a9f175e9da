//! A product whose input another thread delivers, chunk by chunk and out of order.
//!
//! `AsyncGemm` is the other half of the crate on its own: no ranks, no gather, only the product that
//! starts before its input is there. The producer here is a thread that pretends to be the layer
//! before (it takes a moment for every chunk); in earnest it could be a network, a decoder or a disk.
//!
//! Two things to see:
//!
//! - *Order.* The product visits its tiles in the order it was planned for. Chunks may come in any
//!   other; one that comes early waits in its buffer, and the tile that is next waits for its own.
//!   So the closer the producer keeps to the planned order, the less the product waits.
//! - *Two buffers.* The producer is free to run ahead by a step. `publish` waits when it would
//!   overwrite what the step before last still reads; nobody has to be told.
//!
//! Run it: `cargo run --release --example async_gemm`

use std::thread;
use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::element::bf16;
use overlap_gemm::host::{AsyncGemm, ChunkWriter, Stream};
use overlap_gemm::plan::{PlanOptions, Problem, Tiling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Reference;

const STEPS: u32 = 3;
const SEED: u64 = 11;

fn main() -> Result<()> {
    // Two sources of 128 rows, four chunks each: chunks 0 to 3, then 4 to 7.
    let problem = Problem::builder(256, 160, 96).ranks(2).build()?;
    let options = PlanOptions::new().with_pieces(4).with_tiling(Tiling::of_tile(32, 80));

    // Source 1 is expected first, so the planned order is 4 5 6 7 0 1 2 3.
    let patience = Duration::from_secs(5);
    let mut gemm =
        AsyncGemm::<bf16>::plan(&problem, options, 1)?.with_timeouts(patience, patience).recorded();
    let planned: Vec<u32> = gemm.planned().chunks().need_order(1).collect();
    println!("chunks are needed in the order {planned:?}");

    let mut input = gemm.input()?;
    let writer = input.writer();
    let producer = thread::spawn(move || deliver(&writer));

    let stream = Stream::for_ranks(1);
    let weight: Vec<bf16> = Random::of_stream(SEED, 100).elements(problem.b_len());
    let mut output = vec![bf16::NAN; problem.d_len() as usize];
    for step in 0..STEPS {
        gemm.enqueue(&stream, &mut input, &weight, &mut output)?;

        let a = activations(&problem, step);
        let report = Reference::new(&problem, &a, &weight, &[], &[])?;
        let report = report.compare(&output, 0..problem.m())?;
        println!("step {step}: {} results, {} wrong", report.compared, report.wrong);
        assert_eq!(report.wrong, 0, "{report:?}");
    }
    producer.join().expect("the producer does not panic")?;

    let last = gemm.take_timeline().of_epoch(STEPS); // epochs count from 1
    println!("\nthe last step, in which workers waited for {:?}:", last.waited());
    println!("{}", last.to_text(72));
    Ok(())
}

/// The producer: every chunk of every step once, the chunks of a step in an order of its own.
fn deliver(writer: &ChunkWriter<bf16>) -> Result<()> {
    let (problem, chunks) = (writer.plan().problem(), writer.plan().chunks());
    for step in 0..STEPS {
        let a = activations(problem, step);
        let mut order: Vec<u32> = chunks.need_order(1).collect();
        order.swap(1, 2);
        order.swap(4, 7);
        println!("step {step}: chunks are delivered in the order {order:?}");
        for chunk in order {
            thread::sleep(Duration::from_millis(1));
            let rows = chunks.rows(chunk);
            let k = problem.k();
            writer.publish(step, chunk, &a[(rows.start * k) as usize..(rows.end * k) as usize])?;
        }
    }
    Ok(())
}

/// All of A in one step.
fn activations(problem: &Problem, step: u32) -> Vec<bf16> {
    Random::of_stream(SEED, step.into()).elements(problem.a_len(problem.m()))
}
