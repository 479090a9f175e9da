//! All-gather + GEMM on host threads against the same library's plain product of the whole thing.
//!
//! `cargo bench --bench host`. The bar: within 1.3× on two cores. Both sides start from bf16, both
//! widen to f32 and round to bf16; the plain product has all of A and all columns at once, and the
//! library's own parallelism. Random data.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use overlap_gemm::element::{Element, bf16};
use overlap_gemm::host::{AllGatherGemm, Group, Stream};
use overlap_gemm::plan::{PlanOptions, Problem};
use overlap_gemm::random::Random;

/// M, N in all, K; each rank has N / RANKS columns.
const SIZE: usize = 1024;
const RANKS: usize = 4;

fn random(len: usize, seed: u64) -> Vec<bf16> {
    Random::new(seed).elements(len as u64)
}

/// The whole product by the library alone: widen, multiply on all cores, narrow.
struct Plain {
    a: Vec<bf16>,
    b: Vec<bf16>,
    d: Vec<bf16>,
    wide: [Vec<f32>; 3],
}

impl Plain {
    fn new() -> Self {
        let (a, b) = (random(SIZE * SIZE, 1), random(SIZE * SIZE, 2));
        let wide = [0; 3].map(|_| vec![0.0; SIZE * SIZE]);
        Plain { a, b, d: vec![bf16::ZERO; SIZE * SIZE], wide }
    }

    fn run(&mut self) {
        let [a, b, d] = &mut self.wide;
        bf16::widen_row(&self.a, a);
        bf16::widen_row(&self.b, b);
        let (s, pitch) = (SIZE, SIZE as isize);
        // SAFETY: three distinct SIZE×SIZE matrices; A and D row-major, B as N×K.
        unsafe {
            gemm::gemm(
                s,
                s,
                s,
                d.as_mut_ptr(),
                1,
                pitch,
                false,
                a.as_ptr(),
                1,
                pitch,
                b.as_ptr(),
                pitch,
                1,
                0.0f32,
                1.0f32,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
        for (narrow, wide) in self.d.iter_mut().zip(d) {
            *narrow = bf16::narrow(*wide);
        }
        black_box(&self.d);
    }
}

/// The ranks' threads, kept for the whole bench; told how many steps to run.
struct Ranks {
    orders: Vec<mpsc::Sender<u64>>,
    done: mpsc::Receiver<()>,
}

impl Ranks {
    fn new() -> Self {
        let (tell, done) = mpsc::channel();
        let spawn = |rank: overlap_gemm::host::Rank| {
            let (order, orders) = mpsc::channel::<u64>();
            let tell = tell.clone();
            std::thread::spawn(move || {
                let (m, columns) = (SIZE / RANKS, SIZE / RANKS);
                let problem = Problem::builder(SIZE as u64, columns as u64, SIZE as u64)
                    .ranks(RANKS as u64)
                    .build()
                    .expect("a valid problem");
                let stream = Stream::for_ranks(RANKS as u32);
                let mut layer =
                    AllGatherGemm::<bf16>::plan(&rank, &problem, PlanOptions::default())
                        .expect("memory for it");
                let seed = u64::from(rank.rank());
                let (a, b) = (random(m * SIZE, 3 + seed), random(columns * SIZE, 7 + seed));
                let mut d = vec![bf16::ZERO; SIZE * columns];
                for steps in orders {
                    for _ in 0..steps {
                        layer.enqueue(&stream, &a, &b, &mut d).expect("peers that keep up");
                    }
                    black_box(&d);
                    if tell.send(()).is_err() {
                        return;
                    }
                }
            });
            order
        };
        let ranks = Group::local(RANKS as u32).expect("ranks");
        Ranks { orders: ranks.into_iter().map(spawn).collect(), done }
    }

    fn run(&self, steps: u64) -> Duration {
        let begin = Instant::now();
        self.orders.iter().for_each(|order| order.send(steps).expect("a rank"));
        (0..RANKS).for_each(|_| self.done.recv().expect("a rank"));
        begin.elapsed()
    }
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bf16 1024×1024×1024");
    group.sample_size(30).measurement_time(Duration::from_secs(8));
    let mut plain = Plain::new();
    group.bench_function("plain product", |bencher| bencher.iter(|| plain.run()));
    let ranks = Ranks::new();
    group.bench_function("all-gather + GEMM on 4 ranks", |bencher| {
        bencher.iter_custom(|steps| ranks.run(steps))
    });
    group.finish();

    // The bar is a ratio, so it is measured as one: both in turn, on the same machine state.
    let mut ratios: Vec<f64> = (0..41)
        .map(|_| {
            let begin = Instant::now();
            (0..3).for_each(|_| plain.run());
            let plain = begin.elapsed();
            ranks.run(3).as_secs_f64() / plain.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "all-gather + GEMM ÷ plain product, interleaved: median {:.3}, quartiles {:.3} to {:.3}",
        ratios[20], ratios[10], ratios[30]
    );
}

criterion_group!(benches, bench);
criterion_main!(benches);
