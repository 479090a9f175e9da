//! Whether a contender computes what it is timed for.
//!
//! Two looks at every result: all of D for NaNs (D is poisoned before, so a tile that nobody computed
//! shows), and results spread over all of D against the f64 reference: of one product, or of the total of all ranks'.
//! Invariant: the bound is the reference's own, and since that covers the worst inputs, the error on these must be small as
//! well.

use std::ops::Range;

use overlap_gemm::element::{Element, of_types};
use overlap_gemm::plan::{BLayout, Partials, Problem, Reduction, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{
    Accumulation, Epilogue, Reference, Report, Wrong, compare_in_partials, compare_reduced,
};
use overlap_gemm::{Error, Result};

use super::driver::{Block, Gpu};
use super::inputs::{InMemory, Inputs, Numbers, Pools};

/// Rows and columns that are compared: each row meets each column.
const LINES: u32 = 32;

/// The largest error in norm, but for fp8 with fast accumulation ([`fast_allowance`]): rounding D to
/// bf16 costs a fifth of it.
const MOST_RELATIVE_ERROR: f64 = 1e-2;

/// Who adds up a total: that says how it may be rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adder {
    /// This crate, in `f32`.
    Own,
    /// NCCL, in the type of the partials.
    Nccl,
}

/// What is compared in one case.
pub struct Check<'a> {
    pools: &'a Pools,
    problem: &'a Problem,
    /// What is in the matrices of each rank whose product is in the result.
    ranks: Vec<Numbers>,
    /// The row of A that the first row of D comes from.
    first: u32,
    /// Rows of A.
    rows: Vec<u32>,
    columns: Vec<u32>,
    /// The set that is looked at: the last, since a mistake may well hide in the first.
    pub set: usize,
}

impl<'a> Check<'a> {
    /// Of one product. Rows and columns are drawn, one from each of equal parts, so that no region is left out.
    pub fn new(
        pools: &'a Pools,
        problem: &'a Problem,
        inputs: &Inputs,
        sets: usize,
        seed: u64,
    ) -> Self {
        let ranks = vec![inputs.numbers.clone()];
        Check::of(pools, problem, ranks, 0..problem.m(), sets, seed)
    }

    /// The same for the total of all ranks' products, of which a rank gets the rows `own`.
    pub fn of_total(
        pools: &'a Pools,
        problem: &'a Problem,
        own: Range<u32>,
        sets: usize,
        seed: u64,
    ) -> Self {
        let of_rank = |rank| pools.numbers(rank, problem, sets);
        let ranks = (0..problem.ranks()).map(of_rank).collect();
        Check::of(pools, problem, ranks, own, sets, seed)
    }

    fn of(
        pools: &'a Pools,
        problem: &'a Problem,
        ranks: Vec<Numbers>,
        own: Range<u32>,
        sets: usize,
        seed: u64,
    ) -> Self {
        let mut random = Random::of_stream(seed, 3);
        let rows = spread(own.len() as u32, &mut random);
        let rows = rows.into_iter().map(|row| own.start + row).collect();
        let columns = spread(problem.n(), &mut random);
        let (first, set) = (own.start, sets.saturating_sub(1));
        Check { pools, problem, ranks, first, rows, columns, set }
    }

    /// Poisons D, lets `enqueue` compute it, and looks at it: what is wrong, if anything is.
    pub fn run(
        &self,
        gpu: &Gpu,
        inputs: &Inputs,
        enqueue: impl FnOnce(usize) -> Result<()>,
    ) -> Result<Result<(), String>> {
        let d = &inputs.sets[self.set].d;
        self.run_into(gpu, d, &[d], Adder::Own, enqueue)
    }

    /// The same for a result that lies in `d`; all of `poisoned` is NaN before.
    pub fn run_into(
        &self,
        gpu: &Gpu,
        d: &Block,
        poisoned: &[&Block],
        adder: Adder,
        enqueue: impl FnOnce(usize) -> Result<()>,
    ) -> Result<Result<(), String>> {
        poisoned.iter().try_for_each(|block| gpu.poison(block))?;
        enqueue(self.set)?;
        let mut bytes = vec![0; d.bytes as usize];
        gpu.download(d, &mut bytes)?;
        self.compare(&bytes, adder)
    }

    fn compare(&self, d: &[u8], adder: Adder) -> Result<Result<(), String>> {
        let types = self.problem.elements();
        macro_rules! judge {
            ($a:ty, $b:ty, $d:ty) => {
                self.judge::<$a, $b, $d>(d, adder)
            };
        }
        of_types!(
            types,
            judge,
            Err(Error::Unsupported {
                what: format!("checking {} × {} → {}", types.a, types.b, types.d),
                why: "no reference is written down for it".into(),
                remedy: "use --no-check",
            })
        )
    }

    fn judge<A: Element, B: Element, D: InMemory>(
        &self,
        d: &[u8],
        adder: Adder,
    ) -> Result<Result<(), String>> {
        let Check { pools, problem, ranks, first, rows, columns, set, .. } = self;
        // A rank may have no rows.
        if rows.is_empty() {
            return Ok(Ok(()));
        }
        let (n, size) = (problem.n() as usize, D::TYPE.size() as usize);
        let hole = d.chunks_exact(size).position(|bytes| D::get(bytes).widen().is_nan());
        if let Some(place) = hole {
            let (row, column) = (place / n, place % n);
            let why = format!("D[{row}, {column}] is NaN: nobody wrote it, or it came out wrong");
            return Ok(Err(why));
        }
        let at = |row: u32, column: u32| (row - first) as usize * n + column as usize;
        let got: Vec<D> = rows
            .iter()
            .flat_map(|&row| columns.iter().map(move |&column| at(row, column)))
            .map(|place| D::get(&d[place * size..(place + 1) * size]))
            .collect();
        let pick = |scales: &[f32], lines: &[u32]| -> Vec<f32> {
            match problem.scaling() {
                Scaling::Rows => lines.iter().map(|&line| scales[line as usize]).collect(),
                _ => scales.to_vec(),
            }
        };
        let types = problem.elements();
        let sampled = Problem::builder(rows.len() as u64, columns.len() as u64, problem.k().into())
            .elements(types.a, types.b, types.d)
            .b_layout(BLayout::Nk)
            .scaling(problem.scaling())
            .ranks(ranks.len() as u64)
            .build()?;
        let fast = types.a.is_fp8();
        let accumulation = if fast { Accumulation::Fp8 } else { Accumulation::F32 };
        let of_rank = |numbers: &Numbers| {
            let scales = [pick(&numbers.scales[0], rows), pick(&numbers.scales[1], columns)];
            let a: Vec<A> = pools.rows_of_a(problem, numbers, *set, rows);
            let b: Vec<B> = pools.columns_of_b(problem, numbers, *set, columns);
            (a, b, scales)
        };
        let inputs: Vec<_> = ranks.iter().map(of_rank).collect();
        let references = (inputs.iter())
            .map(|(a, b, [a_scales, b_scales])| {
                let reference = Reference::new(&sampled, a, b, a_scales, b_scales)?;
                Ok(reference.with_accumulation(accumulation))
            })
            .collect::<Result<Vec<_>>>()?;
        let alone = references.len() == 1;
        // The sum of one rank alone goes nowhere.
        let partials = if alone { Partials::F32 } else { Partials::Bf16 };
        let reduction = Reduction { partials, average: false };
        let all = 0..rows.len() as u32;
        let report = match adder {
            Adder::Own => {
                compare_reduced(&references, None, reduction, &got, all, Epilogue::default())
            }
            Adder::Nccl => compare_in_partials(&references, reduction, &got, all),
        }?;
        let allowed = fast.then(|| fast_allowance(problem.k(), ranks.len(), &got));
        let place = |row: u32, column: u32| (rows[row as usize] - first, columns[column as usize]);
        Ok(verdict(&report, allowed, place))
    }
}

/// How far an fp8 sum of random inputs may be off with fast accumulation, which cuts it to 13 fractional
/// bits every 32 products: on the way it seldom exceeds three times what sums come to. Then D is
/// rounded. (The reference's bound allows for the worst inputs: more than the sums themselves.)
/// A sum of one of W ranks is 1/√W of a total, and W of them are off: at worst √W times as much in all.
fn fast_allowance<D: Element>(k: u32, ranks: usize, sums: &[D]) -> f64 {
    let values = || sums.iter().map(|sum| f64::from(sum.widen()));
    let root_mean_square =
        (values().map(|value| value * value).sum::<f64>() / sums.len().max(1) as f64).sqrt();
    let largest = values().map(f64::abs).fold(0.0, f64::max);
    let cuts = f64::from(k.div_ceil(32)) * 2f64.powi(-13);
    let of_one = 3.0 * root_mean_square * cuts + 2.0 * D::TYPE.unit_roundoff() * largest;
    (ranks as f64).sqrt() * of_one
}

/// What a comparison of some rows with some columns says; the largest error may be as large as is
/// `allowed`, or if nothing is said, the error in norm must be small. `place` tells where they are in D.
fn verdict(
    report: &Report,
    allowed: Option<f64>,
    place: impl Fn(u32, u32) -> (u32, u32),
) -> Result<(), String> {
    let Report { compared, max_error, relative_error, .. } = *report;
    let first_wrong = report.first_wrong.map(|wrong| {
        let (row, column) = place(wrong.row, wrong.column);
        Wrong { row, column, ..wrong }
    });
    if let Some(why) = (Report { first_wrong, ..*report }).complaint() {
        return Err(why);
    }
    // A NaN compares as no less, so it fails.
    let (what, error, most) = match allowed {
        Some(allowed) => ("the largest error", max_error, allowed),
        None => ("the error in norm", relative_error, MOST_RELATIVE_ERROR),
    };
    let small = error <= most;
    if !small {
        return Err(format!("{what} is {error:.1e} over {compared} results, more than {most:.1e}"));
    }
    Ok(())
}

/// One of each of up to [`LINES`] equal parts of `0..len`.
fn spread(len: u32, random: &mut Random) -> Vec<u32> {
    let parts = u64::from(len.min(LINES));
    let place = |part: u64| part * u64::from(len) / parts;
    (0..parts).map(|part| random.within(place(part)..=place(part + 1) - 1) as u32).collect()
}

#[cfg(test)]
mod tests {
    use overlap_gemm::element::bf16;

    use super::*;

    #[test]
    fn lines_are_spread_over_the_whole() {
        let mut random = Random::new(1);
        assert_eq!(spread(1, &mut random), [0]);
        assert_eq!(spread(32, &mut random), (0..32).collect::<Vec<_>>());
        for len in [33, 100, 3584] {
            let lines = spread(len, &mut random);
            assert!(lines.is_sorted_by(|one, next| one < next) && lines.len() == 32, "{lines:?}");
            assert!(lines[31] < len && lines[31] >= len - len.div_ceil(32), "{lines:?}");
        }
    }

    #[test]
    fn one_wrong_result_is_enough() {
        let problem = Problem::builder(2, 2, 1).build().unwrap();
        let (a, b) = ([1.0, 2.0].map(bf16::from_f32), [3.0, 4.0].map(bf16::from_f32));
        let reference = Reference::new(&problem, &a, &b, &[], &[]).unwrap();
        let judge = |d: [f32; 4], allowed| {
            let report = reference.compare(&d.map(bf16::from_f32), 0..2).unwrap();
            verdict(&report, allowed, |row, column| (10 * row, 100 * column))
        };
        assert_eq!(judge([3.0, 4.0, 6.0, 8.0], None), Ok(()));
        let why = judge([3.0, 4.0, 6.0, 8.5], None).unwrap_err();
        assert!(why.contains("1 of 4") && why.contains("D[10, 100] is 8.5"), "{why}");
        assert!(judge([3.0, 4.0, 6.0, f32::NAN], None).is_err());
        // Within its bound, an error may still be larger than it should be.
        let report =
            Report { compared: 4, max_error: 0.5, relative_error: 0.1, ..Report::default() };
        let judge = |allowed| verdict(&report, allowed, |row, column| (row, column));
        assert!(judge(None).unwrap_err().contains("in norm is 1.0e-1 over 4 results"));
        assert!(judge(Some(0.4)).unwrap_err().contains("largest error is 5.0e-1"));
        assert!(judge(Some(0.5)).is_ok());
        let unknown = Report { max_error: f64::NAN, ..report };
        assert!(verdict(&unknown, Some(0.5), |row, column| (row, column)).is_err());
    }

    #[test]
    fn fast_sums_may_be_off_by_less_than_what_they_are() {
        let sums: Vec<bf16> = (0..1000).map(|i| bf16::from_f32((i % 7) as f32 - 3.0)).collect();
        let allowed = fast_allowance(8192, 1, &sums);
        assert!((0.1..0.5).contains(&allowed), "{allowed}: the sums' root mean square is 2");
        assert_eq!(fast_allowance(8192, 4, &sums), 2.0 * allowed);
    }
    /// Each of four ranks counts once: rank 1 has rows 2 and 3 of D.
    #[test]
    fn a_total_has_every_rank_once() {
        let pools = Pools::new(9);
        let problem = Problem::builder(8, 16, 64).ranks(4).build().unwrap();
        let check = Check::of_total(&pools, &problem, 2..4, 3, 1);
        assert_eq!((&check.rows[..], check.set, check.ranks.len()), (&[2, 3][..], 2, 4));
        let product = |rank: u32| -> Vec<f64> {
            let numbers = pools.numbers(rank, &problem, 3);
            let a: Vec<bf16> = pools.rows_of_a(&problem, &numbers, 2, &[2, 3]);
            let columns: Vec<u32> = (0..16).collect();
            let b: Vec<bf16> = pools.columns_of_b(&problem, &numbers, 2, &columns);
            let dot = |a: &[bf16], b: &[bf16]| -> f64 {
                a.iter().zip(b).map(|(a, b)| f64::from(a.widen()) * f64::from(b.widen())).sum()
            };
            a.chunks(64).flat_map(|a| b.chunks(64).map(move |b| dot(a, b))).collect()
        };
        let total = |ranks: &[u32]| -> Vec<u8> {
            let products: Vec<_> = ranks.iter().map(|rank| product(*rank)).collect();
            let sum = |at: usize| products.iter().map(|one| one[at]).sum::<f64>() as f32;
            let mut bytes = Vec::new();
            (0..32).for_each(|at| bf16::from_f32(sum(at)).put(&mut bytes));
            bytes
        };
        for adder in [Adder::Own, Adder::Nccl] {
            let judge = |d: &[u8]| check.compare(d, adder).unwrap();
            assert_eq!(judge(&total(&[0, 1, 2, 3])), Ok(()));
            for wrong in [&[0, 1, 2][..], &[0, 1, 2, 3, 3], &[0, 1, 1, 3]] {
                let why = judge(&total(wrong)).unwrap_err();
                assert!(why.contains("results are wrong"), "{wrong:?}: {why}");
            }
            let mut hole = total(&[0, 1, 2, 3]);
            hole[2 * 17..2 * 18].fill(0xff);
            assert!(judge(&hole).unwrap_err().contains("D[1, 1] is NaN"));
        }
    }
}
