//! On threads: two products of one input that a producer delivers.

use overlap_gemm::Result;
use overlap_gemm::element::bf16;
use overlap_gemm::host::{AsyncGemm, Product, Stream};
use overlap_gemm::plan::{PlanOptions, Problem};

use crate::{CHUNKS, K, M, N, Operands, silu};

pub fn run(problem: &Problem, operands: &Operands) -> Result<Vec<bf16>> {
    let options = PlanOptions { pieces: Some(CHUNKS), ..PlanOptions::default() };
    let mut gemm = AsyncGemm::<bf16>::plan(problem, options, 0)?;
    let mut input = gemm.input()?;
    let mut products = [vec![bf16::NAN; M * N], vec![bf16::NAN; M * N]];

    let writer = input.writer();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let chunks = writer.plan().chunks();
            chunks.need_order(0).try_for_each(|chunk| {
                let rows = chunks.rows(chunk);
                let data = &operands.a[rows.start as usize * K..rows.end as usize * K];
                writer.publish(0, chunk, data) // copies, then signals
            })
        });
        let [gate, up] = &mut products;
        let mut products = [Product::new(&operands.gate, gate), Product::new(&operands.up, up)];
        gemm.enqueue_all(&Stream::new(2)?, &mut input, M as u32, &[], &mut products)?;
        producer.join().expect("no panic")
    })?;

    let [gate, up] = products;
    let combine = |(gate, up): (&bf16, &bf16)| {
        bf16::from_f64(silu(gate.to_f32().into()) * f64::from(up.to_f32()))
    };
    Ok(gate.iter().zip(&up).map(combine).collect())
}
