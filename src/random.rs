//! Seeded pseudo-random numbers, so that a seed determines a run.
//!
//! Invariant: the same seed gives the same numbers on every machine and in every version of this
//! crate: a reported failing case can be run again.

use crate::element::Element;

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, well mixed; not for secrets.
///
/// ```
/// use overlap_gemm::random::Random;
/// assert_eq!(Random::new(7).next_u64(), Random::new(7).next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The numbers of one seed.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// Independent numbers for part `stream` of the run of `seed`.
    pub fn of_stream(seed: u64, stream: u64) -> Self {
        Random::new(Random::new(seed ^ Random::new(stream).next_u64()).next_u64())
    }

    /// Any 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Any number of `range`, which must not be empty. (Slightly uneven for huge ranges.)
    pub fn within(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        let width = (range.end() - range.start()).wrapping_add(1);
        let offset = if width == 0 { self.next_u64() } else { self.next_u64() % width };
        range.start() + offset
    }

    /// One of `choices`, which must not be empty.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next_u64() % choices.len() as u64) as usize]
    }

    /// Uniform in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [−1, 1).
    #[inline]
    pub fn signed(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `len` elements, uniform in [−1, 1) before rounding to the type.
    pub fn elements<T: Element>(&mut self, len: u64) -> Vec<T> {
        (0..len).map(|_| T::narrow(self.signed())).collect()
    }

    /// `len` scales.
    pub fn scales(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| 3.0 * self.signed()).collect()
    }
}
