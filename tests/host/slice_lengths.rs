//! How long a caller's slices may be: the rows of their matrix in this step, no fewer and no more.
//!
//! What belongs here: lengths, for every matrix that an operation on the host or the reference takes.
//! Invariant: whatever length is refused, the operation goes on as if it had not been called.

use overlap_gemm::element::{F8E4M3 as E, bf16};
use overlap_gemm::host::{AllGatherGemm, AsyncGemm, Group, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{BLayout, PlanOptions, Problem, Scaling, Tiling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Epilogue, Reference};
use overlap_gemm::{Error, Result};
use proptest::prelude::*;

use crate::threads::on_threads;

const OPTIONS: PlanOptions = PlanOptions::new().with_pieces(1).with_tiling(Tiling::of_tile(16, 16));

/// The lengths that hold `rows` rows: up to the last element of the last row, up to its padding.
fn admitted(rows: u32, columns: u32, stride: u32) -> (usize, usize) {
    let [rows, columns, stride] = [rows, columns, stride].map(|x| x as usize);
    (rows.saturating_sub(1) * stride + if rows > 0 { columns } else { 0 }, rows * stride)
}

/// Lengths that are wrong: one off at both ends, a row off, and twice the matrix.
fn wrong((least, most): (usize, usize), stride: u32) -> Vec<usize> {
    let short = [least.checked_sub(1), least.checked_sub(stride as usize)];
    let long = [most + 1, most + stride as usize, 2 * most + 1];
    short.into_iter().flatten().chain(long).collect()
}

fn assert_refused(result: Result<()>, what: &str, len: usize, (least, most): (usize, usize)) {
    let text = result.expect_err(what).to_string();
    let limit = if least == most { format!("{least}:") } else { format!("{least} and {most}:") };
    let start = format!("the length of {what} is {len}, but must be ");
    assert!(text.starts_with(&start) && text.contains(&limit), "{text}");
    assert!(text.contains("pass "), "no remedy: {text}");
}

/// A problem of a few rows, some of them nobody's; most rows are padded.
fn random_problem(random: &mut Random, rows: &[u32]) -> Problem {
    let (n, k) = (random.within(1..=20), random.within(1..=20));
    let layout = random.choose(&[BLayout::Nk, BLayout::Kn]);
    let columns = if layout == BLayout::Nk { k } else { n };
    let mut pad = || random.choose(&[0, 0, 1, 9]);
    let builder = Problem::builder(rows.iter().sum::<u32>().into(), n, k).shards(rows);
    let (lda, ldb, ldd) = (k + pad(), columns + pad(), n + pad());
    builder.b_layout(layout).lda(lda).ldb(ldb).ldd(ldd).build().unwrap()
}

fn random_rows(random: &mut Random, ranks: usize) -> Vec<u32> {
    let mut rows: Vec<u32> =
        (0..ranks).map(|_| random.choose(&[0, 1, 2, 7, 20, 20]) as u32).collect();
    rows[ranks - 1] = rows[ranks - 1].max(1);
    rows
}

/// Any of the admitted lengths of a slice.
fn cut<'a, T>(all: &'a [T], (least, most): (usize, usize), random: &mut Random) -> &'a [T] {
    &all[..random.within(least as u64..=most as u64) as usize]
}

/// Every wrong length is refused by one rank, then all ranks compute a step with admitted ones.
fn steps_of_one_rank(rank: &Rank, planned: &Problem, steps: &[Vec<u32>], seed: u64) {
    let mut op = AllGatherGemm::<bf16>::plan(rank, planned, OPTIONS).unwrap();
    let (number, stream) = (rank.rank(), Stream::new(1).unwrap());
    for (step, rows) in (0..).zip(steps) {
        let shape = planned.with_shards(rows).unwrap();
        let (own, m) = (shape.shards().rows(number), shape.m());
        let (k, n, lda) = (shape.k(), shape.n(), shape.lda());
        // More than any slice needs, so that each can be cut too long.
        let matrix = |stream, most: usize| -> Vec<bf16> {
            Random::of_stream(seed, 100 * step + stream).elements(3 * (most + 40) as u64)
        };
        let mut random = Random::of_stream(seed, 100 * step + 50 + u64::from(number));
        let all_of_a = matrix(0, admitted(m, k, lda).1);
        let shard = &all_of_a[own.start as usize * lda as usize..];
        let own_lens = admitted(own.len() as u32, k, lda);
        let (b_rows, b_columns) = shape.b_extent();
        let b_lens = admitted(b_rows, b_columns, shape.ldb());
        let b = matrix(1 + u64::from(number), b_lens.1);
        let d_lens = admitted(m, n, shape.ldd());
        let mut d = vec![bf16::NAN; 3 * (d_lens.1 + 40)];

        let mut enqueue = |shard: &[bf16], b: &[bf16], d: &mut [bf16]| {
            op.enqueue_all(&stream, Shard::at(shard).rows(rows), &mut [Product::new(b, d)])
        };
        let (right_a, right_b) = (&shard[..own_lens.0], &b[..b_lens.0]);
        for len in wrong(own_lens, lda) {
            let result = enqueue(&shard[..len], right_b, &mut d[..d_lens.0]);
            assert_refused(result, "the shard", len, own_lens);
        }
        for len in wrong(b_lens, shape.ldb()) {
            assert_refused(enqueue(right_a, &b[..len], &mut d[..d_lens.0]), "B", len, b_lens);
        }
        for len in wrong(d_lens, shape.ldd()) {
            assert_refused(enqueue(right_a, right_b, &mut d[..len]), "D", len, d_lens);
        }
        assert!(d.iter().all(|d| d.is_nan()), "a refused call writes nothing");

        let cut_d = cut(&d, d_lens, &mut random).len();
        let shard = cut(shard, own_lens, &mut random);
        let cut_b = cut(&b, b_lens, &mut random);
        enqueue(shard, cut_b, &mut d[..cut_d]).unwrap();
        let a = cut(&all_of_a, admitted(m, k, lda), &mut random);
        let reference = Reference::new(&shape, a, cut_b, &[], &[]).unwrap();
        let report = reference.compare(&d[..cut_d], 0..m).unwrap();
        assert_eq!((report.wrong, report.compared), (0, u64::from(m) * u64::from(n)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn operations_take_their_rows_and_no_others(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let ranks = random.within(1..=4) as usize;
        let steps: Vec<_> = (0..3).map(|_| random_rows(&mut random, ranks)).collect();
        let largest = steps.iter().max_by_key(|rows| rows.iter().sum::<u32>()).unwrap();
        let problem = random_problem(&mut random, largest);
        on_threads(Group::local(ranks as u32).unwrap(), |rank| {
            steps_of_one_rank(&rank, &problem, &steps, seed);
        });
    }

    #[test]
    fn the_reference_takes_its_rows_and_no_others(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let rows = random_rows(&mut random, 1);
        let problem = random_problem(&mut random, &rows);
        let (m, n, k) = (problem.m(), problem.n(), problem.k());
        let (b_rows, b_columns) = problem.b_extent();
        let a_lens = admitted(m, k, problem.lda());
        let b_lens = admitted(b_rows, b_columns, problem.ldb());
        let d_lens = admitted(m, n, problem.ldd());
        let many = vec![bf16::ONE; 3 * (a_lens.1 + b_lens.1 + d_lens.1 + 40)];
        let new = |a: usize, b: usize| {
            Reference::new(&problem, &many[..a], &many[..b], &[], &[]).map(|_| ())
        };
        for len in wrong(a_lens, problem.lda()) {
            assert_refused(new(len, b_lens.1), "A", len, a_lens);
        }
        for len in wrong(b_lens, problem.ldb()) {
            assert_refused(new(a_lens.1, len), "B", len, b_lens);
        }
        let reference = Reference::new(
            &problem,
            cut(&many, a_lens, &mut random),
            cut(&many, b_lens, &mut random),
            &[],
            &[],
        )
        .unwrap();
        let compare = |d: usize, c: usize, bias: usize| {
            let epilogue =
                Epilogue { c: Some(&many[..c]), bias: Some(&many[..bias]), ..Epilogue::default() };
            reference.compare_with(&many[..d], 0..m, epilogue).map(|_| ())
        };
        for len in wrong(d_lens, problem.ldd()) {
            assert_refused(compare(len, d_lens.0, n as usize), "D", len, d_lens);
            assert_refused(compare(d_lens.0, len, n as usize), "C", len, d_lens);
        }
        for len in [n as usize - 1, n as usize + 1] {
            let whole = (n as usize, n as usize);
            assert_refused(compare(d_lens.0, d_lens.0, len), "the bias", len, whole);
        }
        compare(d_lens.1, d_lens.0, n as usize).unwrap();
    }
}

/// A chunk may be short, for a step may be; it may not have more rows than planned.
#[test]
fn a_chunk_takes_its_rows_and_no_others() {
    use overlap_gemm::ElementType::{Bf16, E4m3};
    let builder = Problem::builder(24, 8, 4).shards(&[16, 0, 8]).elements(E4m3, E4m3, Bf16);
    let problem = builder.scaling(Scaling::Rows).build().unwrap();
    let mut gemm = AsyncGemm::<E, E, bf16>::plan(&problem, OPTIONS, 0).unwrap();
    let mut input = gemm.input().unwrap();
    let writer = input.writer();
    let (rows, scales) = (vec![E::from_f32(1.0); 24 * 4], vec![0.5; 24]);
    for (chunk, most) in [(0, 16), (1, 8)] {
        for (given, scaled) in [(most + 1, most + 1), (24, 24), (most, most - 1), (1, 2)] {
            let result = writer.publish_scaled(0, chunk, &rows[..given * 4], &scales[..scaled]);
            let what = format!("{given} rows and {scaled} scales for chunk {chunk}");
            assert!(matches!(result, Err(Error::Mismatch { .. })), "{what}: {result:?}");
        }
        writer.publish_scaled(0, chunk, &rows[..most * 4], &scales[..most]).unwrap();
    }
    let (b_scales, stream) = ([2.0; 9], Stream::new(1).unwrap());
    let mut d = vec![bf16::NAN; 25 * 8];
    let mut enqueue = |m: u32, b: usize, d: &mut [bf16], b_scales: &[f32]| {
        let product = Product::new(&rows[..b], d).scales(b_scales);
        gemm.enqueue_all(&stream, &mut input, m, &[], &mut [product])
    };
    for m in [20, 24] {
        for rows in [m as usize - 1, m as usize + 1] {
            let needed = (8 * m as usize, 8 * m as usize);
            let result = enqueue(m, 32, &mut d[..rows * 8], &b_scales[..8]);
            assert_refused(result, "D", rows * 8, needed);
        }
    }
    assert_refused(enqueue(20, 36, &mut d[..160], &b_scales[..8]), "B", 36, (32, 32));
    assert!(enqueue(20, 32, &mut d[..160], &b_scales).is_err(), "nine scales for eight columns");
    enqueue(20, 32, &mut d[..160], &b_scales[..8]).unwrap();
    assert!(d[..160].iter().all(|d| d.to_f32() == 4.0));
    assert!(d[160..].iter().all(|d| d.is_nan()), "rows beyond the step are left alone");
}
