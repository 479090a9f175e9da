//! Random inputs, in enough copies that no launch finds its own in the cache.
//!
//! Matrices are cut from two pools of random normal numbers, repeated: element i of A in set s is
//! `pool[(start + i) mod LEN]`. The pools' length is a prime, so no two rows begin alike, and host
//! and device agree on every element without anybody keeping the matrices twice. A rank's starts follow from the seed and the
//! rank, so every rank knows the elements of all others, too. Invariant: inputs
//! are never constants, zeros or a short pattern (products of those run faster and hide mistakes),
//! and successive launches read other memory than the L2 can hold.

use std::collections::HashMap;

use overlap_gemm::ElementType;
use overlap_gemm::element::{Element, F8E4M3, F8E5M2, bf16, f16};
use overlap_gemm::plan::{BLayout, Problem};
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};

use super::driver::{Block, Gpu};

/// Numbers in a pool: the largest prime below 2²².
const LEN: u64 = 4_194_301;

/// How many times the L2 all inputs together fill at least.
const CACHES: u64 = 4;

/// Sets at least, where memory allows, and at most.
const SETS: std::ops::RangeInclusive<u64> = 3..=64;

/// The part of the free memory that the sets may take.
const SHARE: f64 = 0.6;

/// Which matrix a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Matrix {
    A,
    B,
}

/// The pools, and what of them is on the device.
pub struct Pools {
    seed: u64,
    normals: [Vec<f32>; 2],
    uploaded: HashMap<(Matrix, ElementType), Block>,
}

/// One set of matrices.
pub struct Set {
    pub a: Block,
    pub b: Block,
    pub d: Block,
}

/// All matrices of one case.
pub struct Inputs {
    pub sets: Vec<Set>,
    pub scale_a: Option<Block>,
    pub scale_b: Option<Block>,
    pub numbers: Numbers,
}

/// What is in a rank's matrices.
#[derive(Clone)]
pub struct Numbers {
    /// Scales of A and of B, the same for every set.
    pub scales: [Vec<f32>; 2],
    /// Where A and B of each set start in their pools.
    starts: Vec<[u64; 2]>,
}

/// An element as it lies in memory.
pub trait InMemory: Element {
    /// Appends its bytes.
    fn put(self, bytes: &mut Vec<u8>);
    /// Reads a number from as many bytes as its type has; NaN from fewer.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! in_memory {
    ($($element:ty: $bits:ty),*) => {$(
        impl InMemory for $element {
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_bits().to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                let bits = bytes.try_into().map(<$bits>::from_le_bytes);
                bits.map_or(Self::POISON, Self::from_bits)
            }
        }
    )*};
}

in_memory!(bf16: u16, f16: u16, f32: u32, F8E4M3: u8, F8E5M2: u8);

impl Pools {
    /// Draws the numbers.
    pub fn new(seed: u64) -> Self {
        let draw = |stream| normals(&mut Random::of_stream(seed, stream), LEN as usize);
        Pools { seed, normals: [draw(0), draw(1)], uploaded: HashMap::new() }
    }

    /// A rank's matrices of `problem`, in as many sets as the cache asks for and memory allows.
    pub fn inputs(
        &mut self,
        rank: u32,
        gpu: &Gpu,
        problem: &Problem,
        l2_bytes: u64,
    ) -> Result<Inputs> {
        let types = problem.elements();
        let bytes = |len: u64, element: ElementType| len.saturating_mul(element.size().into());
        let a_bytes = bytes(problem.a_len(problem.m()), types.a);
        let (b_bytes, d_bytes) = (bytes(problem.b_len(), types.b), bytes(problem.d_len(), types.d));
        let all_bytes = a_bytes.saturating_add(b_bytes).saturating_add(d_bytes).max(1);
        // What earlier cases freed counts only when the stream is through.
        gpu.synchronize()?;
        let count = sets(all_bytes, l2_bytes, gpu.free_bytes()?)?;
        let numbers = self.numbers(rank, problem, count as usize);
        let mut sets = Vec::new();
        for starts in &numbers.starts {
            let set = Set {
                a: gpu.allocate(a_bytes)?,
                b: gpu.allocate(b_bytes)?,
                d: gpu.allocate(d_bytes)?,
            };
            self.fill(gpu, Matrix::A, types.a, &set.a, starts[0])?;
            self.fill(gpu, Matrix::B, types.b, &set.b, starts[1])?;
            sets.push(set);
        }
        let upload = |scales: &[f32]| -> Result<Option<Block>> {
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            if bytes.is_empty() { Ok(None) } else { gpu.upload(&bytes).map(Some) }
        };
        let [scale_a, scale_b] = [upload(&numbers.scales[0])?, upload(&numbers.scales[1])?];
        gpu.synchronize()?;
        Ok(Inputs { sets, scale_a, scale_b, numbers })
    }

    /// What is in the matrices of a rank. Those of the first sets do not depend on how many there are.
    pub fn numbers(&self, rank: u32, problem: &Problem, sets: usize) -> Numbers {
        let mut random = Random::of_stream(self.seed, 2 + (u64::from(rank) << 32));
        let mut scales = |lines| -> Vec<f32> {
            (0..problem.scaling().count(lines)).map(|_| (0.5 + random.fraction()) as f32).collect()
        };
        let scales = [scales(problem.m()), scales(problem.n())];
        let mut start = || random.within(0..=LEN - 1);
        let starts = (0..sets).map(|_| [start(), start()]).collect();
        Numbers { scales, starts }
    }

    /// Columns `0..k` of the given rows of A in a set, packed.
    pub fn rows_of_a<T: Element>(
        &self,
        problem: &Problem,
        numbers: &Numbers,
        set: usize,
        rows: &[u32],
    ) -> Vec<T> {
        let start = numbers.starts[set][0];
        let row = |row: &u32| self.run(0, start, *row, problem.k(), problem.k(), 1);
        rows.iter().flat_map(row).collect()
    }

    /// The given columns of B (N×K: rows) in a set, each as K elements, packed.
    pub fn columns_of_b<T: Element>(
        &self,
        problem: &Problem,
        numbers: &Numbers,
        set: usize,
        columns: &[u32],
    ) -> Vec<T> {
        let (n, k) = (problem.n(), problem.k());
        let start = numbers.starts[set][1];
        let column = |&column: &u32| match problem.b_layout() {
            BLayout::Nk => self.run(1, start, column, k, k, 1),
            BLayout::Kn => self.run(1, start, column, 1, k, n),
        };
        columns.iter().flat_map(column).collect()
    }

    /// `len` elements, `stride` apart, from element `line * pitch` of the matrix.
    fn run<T: Element>(
        &self,
        pool: usize,
        start: u64,
        line: u32,
        pitch: u32,
        len: u32,
        stride: u32,
    ) -> Vec<T> {
        let first = start + u64::from(line) * u64::from(pitch);
        let at = |i: u32| ((first + u64::from(i) * u64::from(stride)) % LEN) as usize;
        (0..len).map(|i| T::narrow(self.normals[pool][at(i)])).collect()
    }

    fn fill(
        &mut self,
        gpu: &Gpu,
        matrix: Matrix,
        element: ElementType,
        block: &Block,
        start: u64,
    ) -> Result<()> {
        let pool = match self.uploaded.entry((matrix, element)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let normals = &self.normals[matrix as usize];
                entry.insert(gpu.upload(&bytes_of(normals, element))?)
            }
        };
        let size = u64::from(element.size());
        let (start, period) = (start * size, LEN * size);
        for copy in copies(block.bytes, start, period) {
            let from = if copy.from_pool { pool.address } else { block.address };
            // SAFETY: `copies` stays within both blocks, and copies within one block do not overlap.
            unsafe { gpu.copy(block.address + copy.to, from + copy.from, copy.bytes)? };
        }
        Ok(())
    }
}

/// One piece of filling a matrix.
#[derive(Debug, PartialEq)]
struct Copy {
    from_pool: bool,
    from: u64,
    to: u64,
    bytes: u64,
}

/// How a pool of `period` bytes is repeated over `total`, beginning at `start` of it: the first
/// period from the pool, then copies of all that was written so far, each as long as all before it.
fn copies(total: u64, start: u64, period: u64) -> Vec<Copy> {
    let first = total.min(period - start);
    let rest = (total - first).min(start);
    let mut all = vec![Copy { from_pool: true, from: start, to: 0, bytes: first }];
    if rest > 0 {
        all.push(Copy { from_pool: true, from: 0, to: first, bytes: rest });
    }
    let mut done = first + rest;
    while done < total {
        let bytes = done.min(total - done);
        all.push(Copy { from_pool: false, from: 0, to: done, bytes });
        done += bytes;
    }
    all
}

/// How many sets of `bytes` there should be.
fn sets(bytes: u64, l2_bytes: u64, free_bytes: u64) -> Result<u64> {
    let most = (free_bytes as f64 * SHARE) as u64;
    if bytes > most {
        return Err(Error::OutOfRange {
            what: "the memory for A, B and D in bytes".into(),
            value: bytes,
            min: 0,
            max: most,
            remedy: "choose a smaller problem, or a GPU with more free memory",
        });
    }
    let wanted = (CACHES * l2_bytes).div_ceil(bytes).clamp(*SETS.start(), *SETS.end());
    Ok(wanted.min(most / bytes))
}

fn normals(random: &mut Random, len: usize) -> Vec<f32> {
    let pair = |_| {
        // Box and Muller's transform; 1 − u keeps the logarithm finite.
        let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * random.fraction()).sin_cos();
        [(radius * cosine) as f32, (radius * sine) as f32]
    };
    let mut all: Vec<f32> = (0..len.div_ceil(2)).flat_map(pair).collect();
    all.truncate(len);
    all
}

fn bytes_of(values: &[f32], element: ElementType) -> Vec<u8> {
    fn each<T: InMemory>(values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len() * T::TYPE.size() as usize);
        values.iter().for_each(|&value| T::narrow(value).put(&mut bytes));
        bytes
    }
    match element {
        ElementType::Bf16 => each::<bf16>(values),
        ElementType::F16 => each::<f16>(values),
        ElementType::F32 => each::<f32>(values),
        ElementType::E4m3 => each::<F8E4M3>(values),
        ElementType::E5m2 => each::<F8E5M2>(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overlap_gemm::plan::Scaling;

    #[test]
    fn a_pool_is_repeated_from_where_it_starts() {
        let pool: Vec<u8> = (0..7).collect();
        for total in 1..60u64 {
            for start in 0..7u64 {
                let mut filled = vec![0xff; total as usize];
                for Copy { from_pool, from, to, bytes } in copies(total, start, 7) {
                    assert!(from_pool || from + bytes <= to, "a copy overlaps itself");
                    for i in 0..bytes {
                        let from = (from + i) as usize;
                        let byte = if from_pool { pool[from] } else { filled[from] };
                        filled[(to + i) as usize] = byte;
                    }
                }
                let expected: Vec<u8> = (0..total).map(|i| ((start + i) % 7) as u8).collect();
                assert_eq!(filled, expected, "{total} bytes from {start}");
            }
        }
    }

    #[test]
    fn rows_and_columns_are_those_of_the_matrix() {
        let pools = Pools::new(1);
        let starts = [5u64, LEN - 3];
        let at = |pool: usize, i: u64| {
            bf16::narrow(pools.normals[pool][((starts[pool] + i) % LEN) as usize])
        };
        let run = |pool, line, pitch, len, stride| -> Vec<bf16> {
            pools.run(pool, starts[pool], line, pitch, len, stride)
        };
        assert_eq!(run(0, 3, 10, 4, 1), (30..34).map(|i| at(0, i)).collect::<Vec<_>>());
        assert_eq!(run(1, 2, 1, 3, 9), [2, 11, 20].map(|i| at(1, i)));
    }

    #[test]
    fn ranks_have_other_numbers_and_know_each_others() {
        let (one, other) = (Pools::new(5), Pools::new(5));
        let problem = Problem::builder(64, 32, 16)
            .elements(ElementType::E4m3, ElementType::E4m3, ElementType::Bf16)
            .scaling(Scaling::Rows)
            .ranks(2)
            .build()
            .unwrap();
        let rows = |pools: &Pools, rank, sets| -> (Vec<Vec<f32>>, [Vec<f32>; 2]) {
            let numbers = pools.numbers(rank, &problem, sets);
            let a: Vec<F8E4M3> = pools.rows_of_a(&problem, &numbers, 1, &[0, 63]);
            let b: Vec<F8E4M3> = pools.columns_of_b(&problem, &numbers, 1, &[7]);
            let wide = |all: &[F8E4M3]| all.iter().map(|x| x.widen()).collect();
            (vec![wide(&a), wide(&b)], numbers.scales)
        };
        let [first, second] = [0, 1].map(|rank| rows(&one, rank, 2));
        assert_eq!(second, rows(&other, 1, 9), "whoever asks, and however many sets there are");
        assert!(first.0[0] != second.0[0] && first.0[1] != second.0[1] && first.1 != second.1);
        assert_eq!((first.1[0].len(), first.1[1].len()), (64, 32));
    }

    #[test]
    fn sets_fill_the_cache_and_fit_the_memory() {
        let (l2, free) = (60 << 20, 100u64 << 30);
        assert_eq!(sets(512 << 20, l2, free), Ok(3), "three at least");
        assert_eq!(sets(60 << 20, l2, free), Ok(4), "four times the cache");
        assert_eq!(sets(1 << 10, l2, free), Ok(64), "no more than that");
        assert_eq!(sets(30 << 30, l2, free), Ok(2), "what fits");
        assert!(matches!(sets(70 << 30, l2, free), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn numbers_are_normal() {
        let all = normals(&mut Random::new(3), 100_001);
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / all.len() as f32;
        assert_eq!(all.len(), 100_001);
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn elements_survive_memory() {
        let values = [1.5f32, -0.25, 0.0, 3.0];
        let bytes = bytes_of(&values, ElementType::Bf16);
        let read: Vec<f32> = bytes.chunks(2).map(|two| bf16::get(two).widen()).collect();
        assert_eq!(read, values);
        assert_eq!(bytes_of(&values, ElementType::E4m3).len(), 4);
        assert!(f16::get(&[0xff, 0xff]).widen().is_nan() && bf16::get(&[1]).widen().is_nan());
    }
}
