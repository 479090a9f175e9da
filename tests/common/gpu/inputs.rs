//! Random inputs of one call, and which of its outputs to look at.
//!
//! Invariant: nearly normal numbers with mean 0 and deviation 1, so that sums neither overflow nor
//! vanish; NaN between rows, which nobody may read.

use overlap_gemm::Element;
use overlap_gemm::cuda::cudarc::driver::result;
use overlap_gemm::cuda::cudarc::driver::sys::CUdeviceptr;
use overlap_gemm::plan::{Problem, Scaling};
use overlap_gemm::random::Random;

use super::case::Case;

/// Rows of D that are compared; the first, the last and those at tile borders are among them.
pub const CHECKED_ROWS: usize = 64;

/// The inputs of one call on the host; C and the bias where the case has them.
#[derive(Clone, Debug)]
pub struct Inputs<A, B, D: Element> {
    pub a: Vec<A>,
    pub b: Vec<B>,
    pub c: Option<Vec<D::Addend>>,
    pub bias: Option<Vec<D::Addend>>,
    pub a_scales: Vec<f32>,
    pub b_scales: Vec<f32>,
}

impl<A: Element, B: Element, D: Element> Inputs<A, B, D> {
    /// C has `d_rows` rows.
    pub fn random(case: &Case, problem: &Problem, d_rows: u32, random: &mut Random) -> Self {
        let (b_rows, b_columns) = problem.b_extent();
        let (m, n, ldd) = (problem.rows_of_a(), problem.n(), problem.ldd());
        Inputs {
            a: random_rows(random, m, problem.k(), problem.lda()),
            b: random_rows(random, b_rows, b_columns, problem.ldb()),
            c: case.options.c.then(|| random_rows(random, d_rows, n, ldd)),
            bias: case.options.bias.then(|| random_rows(random, 1, n, n)),
            a_scales: scales(problem.scaling(), m, random),
            b_scales: scales(problem.scaling(), problem.columns_of_b(), random),
        }
    }

    /// New numbers for A and its row scales.
    pub fn renew_a(&mut self, problem: &Problem, random: &mut Random) {
        self.a = random_rows(random, problem.m(), problem.k(), problem.lda());
        if problem.scaling() == Scaling::Rows {
            self.a_scales = scales(Scaling::Rows, problem.m(), random);
        }
    }
}

/// A factor of either sign that is not so small that outputs become subnormal numbers of f16; or 1, for which kernels have codes
/// of their own.
pub fn factor(random: &mut Random) -> f32 {
    let size = 0.25 + 1.75 * random.fraction() as f32;
    if random.within(0..=2) == 0 {
        return 1.0;
    }
    if random.within(0..=1) == 0 { size } else { -size }
}

fn scales(scaling: Scaling, lines: u32, random: &mut Random) -> Vec<f32> {
    (0..scaling.count(lines)).map(|_| factor(random)).collect()
}

/// Rows of random numbers, `leading` apart.
pub fn random_rows<T: Element>(
    random: &mut Random,
    rows: u32,
    columns: u32,
    leading: u32,
) -> Vec<T> {
    let (columns, leading) = (columns as usize, leading as usize);
    let mut all = vec![T::POISON; (rows as usize - 1) * leading + columns];
    let numbers = Numbers::<T>::new(random);
    all.chunks_mut(leading).for_each(|row| numbers.fill(random, &mut row[..columns]));
    all
}

/// Numbers to draw from. Rounding one to its type takes longer than all else, so few are rounded, and
/// each element is one of them.
struct Numbers<T>([T; NUMBERS]);

const NUMBERS: usize = 1024;
const BITS: u32 = NUMBERS.ilog2();
/// How many draws 64 random bits are enough for.
const DRAWS: usize = (u64::BITS / BITS) as usize;

impl<T: Element> Numbers<T> {
    /// Sums of three uniform numbers.
    fn new(random: &mut Random) -> Self {
        let number = |_| T::narrow(random.signed() + random.signed() + random.signed());
        Numbers(std::array::from_fn(number))
    }

    fn fill(&self, random: &mut Random, row: &mut [T]) {
        for some in row.chunks_mut(DRAWS) {
            let mut bits = random.next_u64();
            for element in some {
                *element = self.0[bits as usize % NUMBERS];
                bits >>= BITS;
            }
        }
    }
}

/// Bytes that rank `from` has at no other time, nor any other rank.
pub fn random_bytes(from: u32, time: u64, count: u64) -> Vec<u8> {
    let mut random = Random::of_stream(time, from.into());
    (0..count).map(|_| random.next_u64() as u8).collect()
}

/// Bytes of the device's memory.
///
/// # Safety
/// There are so many, and nobody writes to them meanwhile.
pub unsafe fn read_bytes(at: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut read = vec![0; count];
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_dtoh_sync(&mut read, at) }.unwrap();
    read
}

/// Rows worth looking at: the ends, tile borders, and random others.
pub fn some_rows(m: u32, random: &mut Random) -> Vec<u32> {
    if m as usize <= CHECKED_ROWS {
        return (0..m).collect();
    }
    let mut rows = vec![0, 15, 16, 63, 64, 127, 128, 255, 256, m / 128 * 128, m - 1];
    rows.retain(|&row| row < m);
    while rows.len() < CHECKED_ROWS {
        rows.push((random.next_u64() % u64::from(m)) as u32);
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// The same in random order.
pub fn shuffled<T>(items: impl IntoIterator<Item = T>, random: &mut Random) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    for last in (1..items.len()).rev() {
        items.swap(last, random.within(0..=last as u64) as usize);
    }
    items
}

/// The rows of each rank: unequal, some of them none, `m` in all.
pub fn shards(m: u64, ranks: u32, random: &mut Random) -> Vec<u32> {
    let mut cuts: Vec<u64> = (1..ranks).map(|_| random.within(0..=m)).collect();
    cuts.extend([0, m]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| (pair[1] - pair[0]) as u32).collect()
}
