//! A product whose input another thread delivers, chunk by chunk and out of order.
//!
//! `AsyncGemm` is the product alone, without ranks and without a gather: it starts before its input has
//! arrived. The producer here is a thread that stands for the previous layer and takes a millisecond for
//! every chunk; it could be a network, a decoder or a disk.
//!
//! Two properties to look at:
//!
//! - *Order.* The product computes its tiles in the planned order. Chunks may arrive in any order; an early
//!   chunk stays in its buffer, and the next tile waits for its own chunks. The product waits least when
//!   the producer keeps to the planned order.
//! - *Two buffers.* The producer may be one step ahead. `publish` waits before it would overwrite rows that
//!   the step before last still reads; no other synchronisation is needed.
//!
//! Run it: `cargo run --release --example async_gemm`

use std::process::ExitCode;
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

fn main() -> ExitCode {
    match deliver_and_multiply() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn deliver_and_multiply() -> Result<()> {
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
