//! Runs whole steps on the host executor with random numbers, and compares with the reference.

use std::time::Duration;

use overlap_gemm::element::Element;
use overlap_gemm::host::{Group, GroupOptions, Link, Stream};
use overlap_gemm::ops::{AllGatherGemm, Input, Product};
use overlap_gemm::plan::{PlanOptions, Problem, Scaling};
use overlap_gemm::reference::{Reference, Report};

/// A small pseudo-random generator, so that a failing seed says everything.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn elements<T: Element>(&mut self, len: u64) -> Vec<T> {
        (0..len).map(|_| T::narrow(self.uniform())).collect()
    }

    pub fn scales(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.uniform() * 3.0).collect()
    }
}

pub fn jitter(seed: u64, most: Duration) -> Option<Link> {
    Some(Link { bytes_per_second: 1e12, jitter: most, seed })
}

/// How many scales a matrix with `lines` lines carries.
pub fn scale_count(scaling: Scaling, lines: u32) -> usize {
    match scaling {
        Scaling::None => 0,
        Scaling::Tensor => 1,
        Scaling::Rows => lines as usize,
    }
}

/// Runs one step for each of `steps` (the rows of each rank) on threads; inputs change every step.
/// Panics unless every output of every rank and step is right. Returns the merged report.
pub fn run_all_gather_gemm<A: Element, B: Element, D: Element>(
    problem: &Problem,
    plan: PlanOptions,
    group: GroupOptions,
    steps: &[Vec<u32>],
    in_place: bool,
    seed: u64,
) -> Report {
    let stream = Stream::new(1 + (seed % 2) as u32).unwrap();
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let ranks = Group::local_with(problem.ranks(), group).unwrap();
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let mut op = AllGatherGemm::<A, B, D>::plan(&rank, problem, plan).unwrap();
                    let me = rank.rank();
                    let mut total = Report::default();
                    for (step, rows) in steps.iter().enumerate() {
                        let shape = problem.with_shards(rows).unwrap();
                        // A is the same on every rank; B and its scales are the rank's own.
                        let mut of_step = Random(seed ^ (step as u64) << 8);
                        let a: Vec<A> = of_step.elements(shape.a_len(shape.m()));
                        let a_scales = of_step.scales(scale_count(shape.scaling(), shape.m()));
                        let mut of_rank = Random(seed ^ (step as u64) << 8 ^ u64::from(me) << 32);
                        let b: Vec<B> = of_rank.elements(shape.b_len());
                        let b_scales = of_rank.scales(scale_count(shape.scaling(), shape.n()));
                        let mut d = vec![D::POISON; shape.d_len() as usize];

                        let own = shape.shards().rows(me);
                        let begin = own.start as usize * shape.lda() as usize;
                        let shard = if own.is_empty() { &[] } else { &a[begin..] };
                        let own_scales = match shape.scaling() {
                            Scaling::Rows => &a_scales[own.start as usize..own.end as usize],
                            _ => &a_scales[..],
                        };
                        let input = if in_place {
                            let (k, lda) = (shape.k() as usize, shape.lda() as usize);
                            let slot = op.local_shard(Some(rows)).unwrap();
                            for (row, slot) in slot.chunks_exact_mut(k).enumerate() {
                                slot.copy_from_slice(&shard[row * lda..row * lda + k]);
                            }
                            Input::in_place()
                        } else {
                            Input::copied(shard)
                        };
                        let product = Product::new(&b, &mut d).scales(&b_scales);
                        let input = input.rows(rows).scales(own_scales);
                        op.enqueue_all(&stream, input, &mut [product]).unwrap();

                        let reference =
                            Reference::new(&shape, &a, &b, &a_scales, &b_scales).unwrap();
                        let report = reference.compare(&d, 0..shape.m()).unwrap();
                        assert_eq!(report.wrong, 0, "rank {me}, step {step}: {report:?}");
                        let gathered = op.gathered().unwrap();
                        for row in 0..shape.m() {
                            let given = &a[row as usize * shape.lda() as usize..];
                            let same = gathered
                                .row(row)
                                .iter()
                                .zip(given)
                                .all(|(x, y)| x.widen().to_bits() == y.widen().to_bits());
                            assert!(same, "rank {me}, step {step}: gathered row {row}");
                        }
                        total.merge(&report);
                    }
                    total
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut total = Report::default();
    reports.iter().for_each(|report| total.merge(report));
    total
}
